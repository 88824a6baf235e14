"""Tensors in a GPU's memory: those that callers pass, and arrays of our own for results."""

import math
import weakref
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import dtypes
from ..dtypes import BFLOAT16
from . import arrays, cuda_driver, dlpack
from .bfloat16 import BFloat16Array


class DeviceTensor(NamedTuple):
    """A tensor where it lies on a device. `owner` is what keeps the memory alive."""

    address: int
    dtype: str
    shape: tuple[int, ...]
    device: int
    is_contiguous: bool = True
    is_read_only: bool = False
    owner: Any = None

    @property
    def size(self) -> int:
        """Bytes."""
        return math.prod(self.shape) * dtypes.BY_NAME[self.dtype].numpy.itemsize

    def overlaps(self, other: "DeviceTensor") -> bool:
        """Whether two tensors share memory."""
        apart = self.address + self.size <= other.address or other.address + other.size <= self.address
        return self.device == other.device and not apart and self.size > 0 and other.size > 0


def view_device(value: Any, stream: int) -> DeviceTensor | None:
    """A value that lies on a GPU, ready to be read on that stream; None for any other. Raises dlpack.NotImportable."""
    if isinstance(value, DeviceTensor):
        return value
    if isinstance(value, DeviceArray):
        return DeviceTensor(value.address, value.dtype, value.shape, value.device, owner=value)
    if isinstance(value, np.ndarray) or not hasattr(value, "__dlpack_device__"):
        return None
    try:
        kind, _ = value.__dlpack_device__()
    except (BufferError, RuntimeError, ValueError, TypeError):
        return None  # what it is, is said where tensors of the host are taken
    if kind != dlpack.CUDA:
        return None
    found, capsule = dlpack.import_device(value, stream)
    return DeviceTensor(*found, owner=capsule)


class DeviceArray:
    """An array in a GPU's memory.

        array.numpy()                       a copy on the host; np.asarray(array) too
        torch.from_dlpack(array)            a tensor over the same memory
        DeviceArray.from_numpy(numbers)     a copy on the device

    Memory is freed when the array and everything made of it is gone. bfloat16 becomes a BFloat16Array on the host.
    """

    __slots__ = ("__weakref__", "address", "device", "dtype", "shape")

    def __init__(self, shape: tuple[int, ...], dtype: str, device: int = 0) -> None:
        """Memory of any content. Raises DeviceUnavailable, OutOfMemory."""
        driver = cuda_driver.find_driver()
        self.shape = shape
        self.dtype = dtype
        self.device = device
        self.address = driver.allocate(self.nbytes, device)
        release = weakref.finalize(self, driver.free, self.address, device)
        release.atexit = False  # the driver frees what a process leaves

    @classmethod
    def from_numpy(cls, array: "NDArray[Any] | BFloat16Array", device: int = 0) -> "DeviceArray":
        """A copy of an array on a device."""
        name, host = (BFLOAT16, array.bits) if isinstance(array, BFloat16Array) else (array.dtype.name, array)
        host = np.ascontiguousarray(host)
        made = cls(tuple(array.shape), name, device)
        cuda_driver.find_driver().copy_to_device(made.address, arrays.address(host), made.nbytes, device)
        return made

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * dtypes.BY_NAME[self.dtype].numpy.itemsize

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def numpy(self) -> "NDArray[Any] | BFloat16Array":
        """A copy on the host, behind everything that was queued on the default stream."""
        host = np.empty(self.shape, dtypes.BY_NAME[self.dtype].numpy)
        cuda_driver.find_driver().copy_to_host(arrays.address(host), self.address, self.nbytes, self.device)
        return BFloat16Array(host) if self.dtype == BFLOAT16 else host

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("an array on a GPU cannot become a numpy array without a copy")
        return np.asarray(self.numpy(), dtype=dtype)

    def __dlpack__(self, *, stream: int | None = None, **_: Any) -> Any:
        # Results are queued on the default stream: a reader on another stream finds them there.
        if stream != -1:
            cuda_driver.find_driver().synchronize(self.device)
        return dlpack.export_device(self, self.address, self.dtype, self.shape, self.device)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (dlpack.CUDA, self.device)

    def __repr__(self) -> str:
        return f"DeviceArray({self.dtype}{list(self.shape)}, device={self.device})"


def stream_number(stream: Any) -> int:
    """The driver's handle of a stream: an int, torch's (`cuda_stream`), CuPy's (`ptr`), None for the default one."""
    if stream is None:
        return 0
    if isinstance(stream, int):
        return stream
    for name in ("cuda_stream", "ptr"):
        if hasattr(stream, name):
            return int(getattr(stream, name))
    raise TypeError(f"a stream is the number of one, not a {type(stream).__name__}")
