"""What a caller may pass for a tensor, as numpy arrays over the caller's own memory.

numpy arrays, anything with __dlpack__ (torch tensors), buffers, BFloat16Array, and Python numbers for scalars
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..dtypes import BFLOAT16, Dtype
from ..errors import CallError, InputError, format_error
from . import dlpack
from .bfloat16 import BFloat16Array

_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1


def view(value: Any, dtype: Dtype, rank: int, place: str, held: list[Any], error: type[CallError]) -> NDArray[Any]:
    """`value` as an array over its own memory (bfloat16 as uint16); what keeps that memory alive is added to `held`.

    Raises `error` for what is not a tensor of that dtype and rank on the CPU, naming `place`.
    """
    if isinstance(value, np.ndarray):
        array = value
        if value.dtype == dtype.numpy and dtype.name != BFLOAT16:
            name = dtype.name
        elif not value.dtype.isnative:
            name = f"{value.dtype.newbyteorder('=').name} in another byte order"
        else:
            name = value.dtype.name
            if name == BFLOAT16 and value.itemsize == 2:  # of a package that gives numpy this type
                array = value.view(np.uint16)
    elif isinstance(value, BFloat16Array):
        name, array = BFLOAT16, value.bits
    elif isinstance(value, np.generic):
        array = np.asarray(value)
        name = array.dtype.name
    elif hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__"):
        try:
            name, array, capsule = dlpack.import_(value)
        except dlpack.NotImportable as failure:
            raise error(
                format_error(
                    f"{place} is a {type(value).__name__} that cannot be used as it is.",
                    why=str(failure),
                    fix="pass a plain tensor on the CPU (of torch: x.detach().cpu()) or a numpy array",
                )
            ) from None
        held.append(capsule)
    else:
        name, array = _from_buffer(value, dtype, place, error)
    if name != dtype.name:
        raise error(
            format_error(
                f"{place} is {name}, but the model was compiled for {dtype.name}.",
                fix=_conversion(dtype),
            )
        )
    if array.ndim != rank:
        raise error(
            format_error(
                f"{place} has {array.ndim} dims, but the model was compiled for {rank}.",
                why=f"its shape is {array.shape}",
                fix="reshape it, or capture and compile the model again with this rank",
            )
        )
    return array


def number(value: Any, dtype: Dtype, place: str) -> NDArray[Any]:
    """A Python number as the array of a scalar input. Raises InputError where it is not one of the dtype's."""
    kind = type(value)
    if dtype.name == "bool" and kind is bool:
        return np.array(value)
    if dtype.name == "int64" and kind is int and _INT64_MIN <= value <= _INT64_MAX:
        return np.array(value, np.int64)
    if dtype.name == "float64" and (kind is float or (kind is int and abs(value) <= 2**53)):
        return np.array(value, np.float64)
    raise InputError(
        format_error(
            f"{place} is the {kind.__name__} {str(value)[:40]}, but the model was compiled for {dtype.name}[].",
            why="Python numbers stand for int64, float64 and bool scalars, within their range",
            fix=f"pass a {dtype.name} scalar{'' if dtype.name == BFLOAT16 else f': np.{dtype.numpy.name}(…)'}",
        )
    )


def is_ready(array: NDArray[Any]) -> bool:
    """Whether the library can use the array where it lies: row-major, without holes, aligned."""
    flags = array.flags
    return flags.c_contiguous and flags.aligned


def address(array: NDArray[Any]) -> int:
    found: int = array.__array_interface__["data"][0]
    return found


def overlap(a: NDArray[Any], b: NDArray[Any]) -> bool:
    """Whether two arrays share an element; where that is hard to decide, whether their bounds do."""
    if not np.may_share_memory(a, b):
        return False
    exact: Any = np.shares_memory  # its annotations know two limits only
    try:
        return bool(exact(a, b, max_work=10_000))
    except np.exceptions.TooHardError:
        return True


def overlaps_itself(array: NDArray[Any]) -> bool:
    """Whether elements of an array may share memory: some dim's step is within the reach of the dims below it."""
    if array.flags.c_contiguous or array.size == 0:
        return False
    reach = 0
    for step, size in sorted((abs(step), size) for step, size in zip(array.strides, array.shape, strict=True)):
        if size > 1 and step < reach + array.itemsize:
            return True
        reach += step * (size - 1)
    return False


def _from_buffer(value: Any, dtype: Dtype, place: str, error: type[CallError]) -> tuple[str, NDArray[Any]]:
    try:
        array = np.asarray(memoryview(value))
    except (TypeError, ValueError, NotImplementedError):
        raise error(
            format_error(
                f"{place} is a {type(value).__name__}, but the model was compiled for a tensor of {dtype.name}.",
                fix="pass a numpy array (np.asarray converts a list), a torch tensor or another with DLPack, or a "
                "buffer",
            )
        ) from None
    return array.dtype.name, array


def _conversion(dtype: Dtype) -> str:
    if dtype.name == BFLOAT16:
        return "pass a bfloat16 tensor, or ingot_runtime.BFloat16Array.of(numbers), which rounds"
    return f"convert it with .astype(np.{dtype.numpy.name}), or capture and compile the model again with this dtype"
