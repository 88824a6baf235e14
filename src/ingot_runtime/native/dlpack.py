"""Tensors of other libraries through DLPack, over their own memory, without importing the libraries.

numpy reads DLPack too, but neither bfloat16 nor, in older releases, bool.
"""

import ctypes
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

CPU = 1  # kDLCPU
CUDA = 2  # kDLCUDA
_HOST_DEVICES = frozenset({CPU, 3, 11, 13})  # also memory that CUDA or ROCm has pinned, and CUDA's managed memory
BFLOAT = 4  # kDLBfloat

_INT, _UINT, _FLOAT, _BOOL = 0, 1, 2, 6
_NAMES = {
    (_BOOL, 8): "bool",
    (_UINT, 8): "uint8",
    (_UINT, 16): "uint16",
    (_UINT, 32): "uint32",
    (_UINT, 64): "uint64",
    (_INT, 8): "int8",
    (_INT, 16): "int16",
    (_INT, 32): "int32",
    (_INT, 64): "int64",
    (_FLOAT, 16): "float16",
    (_FLOAT, 32): "float32",
    (_FLOAT, 64): "float64",
    (BFLOAT, 16): "bfloat16",
}
_CAPSULE, _VERSIONED_CAPSULE = b"dltensor", b"dltensor_versioned"
_VERSION = (1, 0)
_READ_ONLY = 1


class DlpackExporter(Protocol):
    def __dlpack__(self, **options: Any) -> Any: ...

    def __dlpack_device__(self) -> tuple[int, int]: ...


class _Device(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("number", ctypes.c_int32))


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    # A DLManagedTensor of DLPack 0 begins with this, and nothing behind it is needed here.
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("rank", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    # A DLManagedTensor, of DLPack 0.
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _Versioned(ctypes.Structure):
    # A DLManagedTensorVersioned, of DLPack 1.
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype = ctypes.c_int
_is_valid.argtypes = (ctypes.py_object, ctypes.c_char_p)
_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype = ctypes.c_void_p
_get_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


class NotImportable(Exception):
    """The tensor cannot be used where it lies; the message says why."""


def import_(value: DlpackExporter) -> tuple[str, NDArray[Any], Any]:
    """The dtype's name, an array over the tensor's memory (bfloat16 as uint16), and what keeps the memory alive.

    The array is read-only where the other library says that the tensor is, and where it is a copy, since torch keeps
    the tensor's sign apart from its memory (x.is_neg(), x.is_conj()). Raises NotImportable.
    """
    is_copy = _is_lazy(value)
    if is_copy:
        value = value.resolve_neg().resolve_conj()  # type: ignore[attr-defined]
    try:
        device, _ = value.__dlpack_device__()
        if device not in _HOST_DEVICES:
            raise NotImportable("it is not in the memory of the CPU")
        # The capsule is not consumed: as long as it lives, so does the tensor, and its own destructor lets go of it.
        capsule = _export(value)
        tensor, is_read_only = _open(capsule)
    except (BufferError, RuntimeError, ValueError, TypeError) as failure:
        raise NotImportable(str(failure)) from failure
    kind = tensor.dtype
    name = _NAMES.get((kind.code, kind.bits)) if kind.lanes == 1 else None
    if name is None:
        raise NotImportable(f"its elements are of DLPack's type {kind.code} with {kind.lanes} times {kind.bits} bits")
    dtype = np.dtype("uint16" if name == "bfloat16" else name)
    shape = tuple(tensor.shape[: tensor.rank]) if tensor.rank else ()
    if 0 in shape:
        return name, np.empty(shape, dtype), capsule
    strides = tuple(step * dtype.itemsize for step in tensor.strides[: tensor.rank]) if tensor.strides else None
    if strides is None:
        extent = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    else:
        if any(step < 0 for step in strides):
            raise NotImportable("it runs backwards through memory: make it contiguous")
        extent = dtype.itemsize + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
    memory: Any = (ctypes.c_char * extent).from_address((tensor.data or 0) + tensor.byte_offset)
    array: NDArray[Any] = np.ndarray(shape, dtype, memory, 0, strides)
    array.flags.writeable = not is_read_only and not is_copy
    return name, array, capsule


def import_device(value: DlpackExporter, stream: int) -> tuple[tuple[int, str, tuple[int, ...], int, bool, bool], Any]:
    """A tensor on a GPU: its address, dtype, shape, device, whether it is contiguous and whether it is read-only; and
    what keeps its memory alive. What it holds is there for work on `stream`, 0 for the default one. Raises
    NotImportable."""
    if _is_lazy(value):
        raise NotImportable("its sign is kept apart from its memory: x.resolve_neg().resolve_conj()")
    try:
        capsule = _export(value, stream=stream or 1)  # 1 is DLPack's number for CUDA's default stream
        tensor, is_read_only = _open(capsule)
    except (BufferError, RuntimeError, ValueError, TypeError) as failure:
        raise NotImportable(str(failure)) from failure
    kind = tensor.dtype
    name = _NAMES.get((kind.code, kind.bits)) if kind.lanes == 1 else None
    if name is None:
        raise NotImportable(f"its elements are of DLPack's type {kind.code} with {kind.lanes} times {kind.bits} bits")
    shape = tuple(tensor.shape[: tensor.rank]) if tensor.rank else ()
    strides = tuple(tensor.strides[: tensor.rank]) if tensor.strides and tensor.rank else None
    address = (tensor.data or 0) + tensor.byte_offset
    return (address, name, shape, tensor.device.number, _is_contiguous(shape, strides), is_read_only), capsule


def _is_contiguous(shape: tuple[int, ...], strides: tuple[int, ...] | None) -> bool:
    expected = 1
    for size, step in zip(reversed(shape), reversed(strides or ()), strict=False):
        if size not in (0, 1) and step != expected:
            return 0 in shape
        expected *= size
    return True


# Tensors that other libraries have, by the address of their record, with what keeps their memory alive.
_exported: dict[int, Any] = {}


def _forget(record: int) -> None:
    _exported.pop(record, None)


def _forget_unused(capsule: int) -> None:
    """Of a capsule whose tensor has not been taken out."""
    alive = ctypes.cast(capsule, ctypes.py_object)
    if _is_valid(alive, _CAPSULE):
        _exported.pop(_get_pointer(alive, _CAPSULE), None)


_Callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_deleter, _destructor = _Callback(_forget), _Callback(_forget_unused)


def export_device(owner: object, address: int, dtype: str, shape: tuple[int, ...], device: int) -> Any:
    """A capsule for a dense tensor on a GPU, which keeps its owner alive."""
    code, bits = next(kind for kind, name in _NAMES.items() if name == dtype)
    sizes = (ctypes.c_int64 * max(len(shape), 1))(*shape)
    tensor = _Tensor(
        address, _Device(CUDA, device), len(shape), _DataType(code, bits, 1),
        ctypes.cast(sizes, ctypes.POINTER(ctypes.c_int64)), None, 0,
    )  # fmt: skip
    record = _Managed(tensor, None, ctypes.cast(_deleter, ctypes.c_void_p))
    at = ctypes.addressof(record)
    _exported[at] = (record, sizes, owner)
    return _new_capsule(at, _CAPSULE, ctypes.cast(_destructor, ctypes.c_void_p))


def relabel(capsule: Any, code: int) -> Any:
    """The capsule, its elements now said to be of another type of the same size."""
    _open(capsule)[0].dtype.code = code
    return capsule


def _is_lazy(value: Any) -> bool:
    """Whether a tensor's values are its memory's with another sign, by the words that torch has for it."""
    asked = (getattr(value, name, None) for name in ("is_neg", "is_conj"))
    return any(callable(question) and question() is True for question in asked)


def _export(value: DlpackExporter, **options: Any) -> Any:
    try:
        return value.__dlpack__(max_version=_VERSION, **options)
    except TypeError:  # it knows DLPack 0 only, which cannot say that a tensor is read-only
        return value.__dlpack__(**options)


def _open(capsule: Any) -> tuple[_Tensor, bool]:
    """The tensor of a capsule, and whether it is read-only."""
    if _is_valid(capsule, _CAPSULE):
        return _Tensor.from_address(_get_pointer(capsule, _CAPSULE)), False
    found = _Versioned.from_address(_get_pointer(capsule, _VERSIONED_CAPSULE))
    if found.major != _VERSION[0]:
        raise NotImportable(f"it is of DLPack {found.major}, which this release does not read")
    return found.tensor, bool(found.flags & _READ_ONLY)
