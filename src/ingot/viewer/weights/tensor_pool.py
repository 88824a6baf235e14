"""The weights of a view, each once, and blocks of their values.

A block is some rows and columns of a slice: the last two dims of a tensor are its rows and columns, the others are held
at an index. A vector is a column, one number is one row of one column.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch

from ingot.viewer.view_data import NOWHERE, Json

Array: TypeAlias = np.ndarray[Any, Any]
# What NumPy has no type for, or stores as another: how a page reads the bytes.
_WIDENED = {"int4": np.int8, "uint4": np.uint8, "int2": np.int8, "uint2": np.uint8}
_WIRES = {"float": "f", "int": "i", "uint": "u", "complex": "c"}
_CHUNK = 1 << 20
# Subclasses have other values than their memory says, or none.
_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter, torch.nn.Buffer})
_READABLE = frozenset(
    getattr(torch, name)
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "bfloat16", "complex32", "complex64", "complex128"),
        *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
    )
    if hasattr(torch, name)
)


class Tensor(Protocol):
    """Where the values of a weight are."""

    shape: tuple[int, ...]
    dtype: str

    def read(self, fixed: tuple[int, ...], rows: slice, columns: slice) -> Array:
        """A block of two dims, bfloat16 as uint16. Raises OSError and ValueError where its file is damaged."""

    def read_all(self, fixed: tuple[int, ...], part: slice) -> Array:
        """All values with these first indexes, of a part of the next dim. Raises what `read` raises."""


class TorchTensor:
    """A tensor of a program."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape = tuple(int(size) for size in tensor.shape)
        self.dtype = str(tensor.dtype).removeprefix("torch.")
        self._tensor = tensor.detach()

    def read(self, fixed: tuple[int, ...], rows: slice, columns: slice) -> Array:
        return _to_numpy(matrix_of(self._tensor[fixed])[rows, columns])

    def read_all(self, fixed: tuple[int, ...], part: slice) -> Array:
        return _to_numpy(self._tensor[fixed][part])


def _to_numpy(values: torch.Tensor) -> Array:
    block = values.cpu().contiguous()
    if block.dtype is torch.bfloat16:
        return np.asarray(block.view(torch.int16).numpy().view(np.uint16))
    if block.dtype is torch.complex32:
        block = block.to(torch.complex64)
    if block.dtype.itemsize == 1 and block.dtype.is_floating_point:
        block = block.to(torch.float32)
    return np.asarray(block.numpy())


def matrix_of(values: Any) -> Any:
    """At most two dims as two."""
    return (
        values.reshape(values.shape[0], 1) if values.ndim == 1 else values.reshape(1, 1) if values.ndim == 0 else values
    )


class TensorPool:
    """Weights by number."""

    def __init__(self) -> None:
        self.items: list[Tensor] = []
        self._numbers: dict[Any, int] = {}
        self._kept: list[Any] = []  # an address is that of one tensor as long as that lives

    def add(self, tensor: object) -> int:
        """The number of a tensor, -1 for what has no values of its own. What shares its memory has the same number."""
        if not isinstance(tensor, torch.Tensor) or type(tensor) not in _PLAIN or tensor.dtype not in _READABLE:
            return NOWHERE
        if tensor.layout is not torch.strided or tensor.device.type == "meta":
            return NOWHERE
        key: Any = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.device)
        if tensor.numel() == 0:
            key = (id(tensor), *key)
        if key not in self._numbers:
            self._kept.append(tensor)
            self._numbers[key] = self.add_lazy(TorchTensor(tensor))
        return self._numbers[key]

    def add_lazy(self, tensor: Tensor) -> int:
        """The number of a tensor that comes from elsewhere."""
        self.items.append(tensor)
        return len(self.items) - 1

    def describe(self) -> list[Json]:
        """What a page knows of each weight."""
        return [{"dtype": one.dtype, "shape": list(one.shape), "wire": wire_of(one.dtype)} for one in self.items]

    def size(self) -> int:
        """How many bytes the values take that a page would be sent."""
        return sum(math.prod(one.shape) * _wire_type(one.dtype).itemsize for one in self.items)

    def read(self, number: int, fixed: Sequence[int], rows: tuple[int, int], columns: tuple[int, int]) -> bytes | None:
        """The bytes of a block, row by row, little-endian; None where the tensor has no such block."""
        if not 0 <= number < len(self.items):
            return None
        tensor = self.items[number]
        leading, (height, width) = tensor.shape[:-2], matrix_size(tensor.shape)
        if len(fixed) != len(leading) or any(not 0 <= at < size for at, size in zip(fixed, leading, strict=True)):
            return None
        if not 0 <= rows[0] < rows[1] <= height or not 0 <= columns[0] < columns[1] <= width:
            return None
        return _bytes(tensor, tensor.read(tuple(fixed), slice(*rows), slice(*columns)))


def matrix_size(shape: Sequence[int]) -> tuple[int, int]:
    """How many rows and columns each slice of a tensor has."""
    return (shape[-2], shape[-1]) if len(shape) > 1 else (shape[0], 1) if shape else (1, 1)


def wire_of(dtype: str) -> str:
    """How the bytes of a block are to be read."""
    return "bf16" if dtype == "bfloat16" else "bool" if dtype == "bool" else _wire(_wire_type(dtype))


def _wire(dtype: np.dtype[Any]) -> str:
    name = dtype.name.rstrip("0123456789")
    return f"{_WIRES[name]}{dtype.itemsize * 8}"


def _wire_type(dtype: str) -> np.dtype[Any]:
    """NumPy's type of the values that are sent."""
    if dtype == "bfloat16":
        return np.dtype(np.uint16)
    if dtype == "complex32":
        return np.dtype(np.complex64)
    if dtype.startswith("float") and dtype not in ("float16", "float32", "float64"):
        return np.dtype(np.float32)
    return np.dtype(_WIDENED.get(dtype) or dtype)


def has_values(dtype: str) -> bool:
    """Whether values of this dtype can be shown."""
    try:
        stored = _wire_type(dtype)
    except TypeError:
        return False
    return stored.kind in "biufc"


def _bytes(tensor: Tensor, values: Array) -> bytes:
    sent = _wire_type(tensor.dtype)
    return np.ascontiguousarray(values.astype(sent, copy=False)).astype(sent.newbyteorder("<"), copy=False).tobytes()


def blocks_of(tensor: Tensor) -> Iterator[bytes]:
    """All values in order, in pieces of about a megabyte: many small slices at once, a large one in parts."""
    if not tensor.shape:
        yield _bytes(tensor, tensor.read((), slice(0, 1), slice(0, 1)))
        return
    yield from _walk(tensor, ())


def _walk(tensor: Tensor, fixed: tuple[int, ...]) -> Iterator[bytes]:
    size, *inner = tensor.shape[len(fixed) :]
    below = math.prod(inner) * _wire_type(tensor.dtype).itemsize
    if below > _CHUNK and inner:
        for index in range(size):
            yield from _walk(tensor, (*fixed, index))
        return
    many = max(1, _CHUNK // max(1, below))
    for first in range(0, size if below else 0, many):
        yield _bytes(tensor, tensor.read_all(fixed, slice(first, min(size, first + many))))


def numbers_in(piece: bytes, dtype: str) -> Array:
    """The values of a piece as float64."""
    if dtype == "bfloat16":
        return np.frombuffer(_widen(piece), "<f4").astype(np.float64)
    return np.frombuffer(piece, _wire_type(dtype).newbyteorder("<")).astype(np.float64)


def file_size(tensor: Tensor) -> int:
    """How many bytes the .npy file of a tensor has."""
    return len(_file_header(tensor)) + math.prod(tensor.shape) * _file_type(tensor.dtype).itemsize


def file_pieces(tensor: Tensor) -> Iterator[bytes]:
    """The .npy file of a tensor. NumPy has no bfloat16: its values are saved as float32, which has all of them."""
    yield _file_header(tensor)
    for piece in blocks_of(tensor):
        yield _widen(piece) if tensor.dtype == "bfloat16" else piece


def _file_type(dtype: str) -> np.dtype[Any]:
    return (np.dtype(np.float32) if dtype == "bfloat16" else _wire_type(dtype)).newbyteorder("<")


def _file_header(tensor: Tensor) -> bytes:
    file = io.BytesIO()
    described = np.lib.format.dtype_to_descr(_file_type(tensor.dtype))
    np.lib.format.write_array_header_1_0(file, {"descr": described, "fortran_order": False, "shape": tensor.shape})
    return file.getvalue()


def _widen(piece: bytes) -> bytes:
    """bfloat16 as float32: the upper half of its bits."""
    return (np.frombuffer(piece, "<u2").astype("<u4") << 16).astype("<u4").tobytes()
