"""bfloat16, which numpy does not have."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import dlpack

_QUIET_BIT = 0x0040


class BFloat16Array:
    """An array of bfloat16 numbers.

        array = BFloat16Array.of(np.array([1.5, 2.0]))      rounds to nearest, ties to even
        np.asarray(array)                                   float32, exact
        torch.from_dlpack(array)                            a bfloat16 tensor over the same memory
        array.bits                                          the numbers' bits, uint16

    It is not an ndarray: arithmetic on the bits would be wrong numbers without a word.
    """

    __slots__ = ("bits",)

    def __init__(self, bits: NDArray[np.uint16]) -> None:
        if bits.dtype != np.uint16:
            raise TypeError(
                f"the bits of bfloat16 numbers are uint16, not {bits.dtype}; BFloat16Array.of() rounds numbers"
            )
        self.bits = bits

    @classmethod
    def of(cls, numbers: Any) -> "BFloat16Array":
        """Numbers of any type that float32 holds, rounded to bfloat16."""
        words = np.ascontiguousarray(numbers, dtype=np.float32).view(np.uint32).reshape(np.shape(numbers))
        rounded = (words + (np.uint32(0x7FFF) + ((words >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)
        # Rounding carries a NaN whose low bits are set into another number: cut it off, and keep it a NaN.
        nan = (words & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
        bits = np.where(nan, (words >> np.uint32(16)) | np.uint32(_QUIET_BIT), rounded)
        return cls(np.asarray(bits.astype(np.uint16)))

    @property
    def shape(self) -> tuple[int, ...]:
        return self.bits.shape

    @property
    def ndim(self) -> int:
        return self.bits.ndim

    @property
    def size(self) -> int:
        return self.bits.size

    @property
    def dtype(self) -> str:
        return "bfloat16"

    def float32(self) -> NDArray[np.float32]:
        """The numbers as float32; every bfloat16 is one."""
        words = self.bits.astype(np.uint32) << np.uint32(16)
        return np.asarray(words).view(np.float32)

    def __len__(self) -> int:
        return len(self.bits)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("bfloat16 numbers cannot become a numpy array without a copy: use .bits or DLPack")
        numbers = self.float32()
        return numbers if dtype is None else numbers.astype(dtype, copy=False)

    def __dlpack__(self, **_: Any) -> Any:
        return dlpack.relabel(self.bits.__dlpack__(), dlpack.BFLOAT)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (dlpack.CPU, 0)

    def __repr__(self) -> str:
        return f"BFloat16Array({self.float32()!s}, shape={self.shape})"
