"""Buffers as NumPy arrays: stored as native code stores them, poisoned until something is written.

A bfloat16 is stored as its 16 bits, a bool as a byte. What is read is converted to the type that values of its dtype
are computed in; what is written is rounded back. An access outside a buffer is an error.

With a memory plan, temporaries lie at the plan's places in one array of bytes: two buffers that are alive at the same
time and overlap overwrite each other, as they would in native code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ingot.lowering.dtypes import BYTES, FLOATS, wide
from ingot.lowering.index_expr import Expr, evaluate
from ingot.lowering.loop_ir import Buffer
from ingot.scheduling.buffer_planning import ALIGN, MemoryPlan, byte_size
from ingot.targets.base import Fault

Array: TypeAlias = NDArray[Any]

_POISON_BYTE = 0xA5


def stored_type(dtype: str) -> np.dtype[Any]:
    return np.dtype({"bool": "uint8", "bfloat16": "uint16"}.get(dtype, dtype))


def computed_type(dtype: str) -> np.dtype[Any]:
    return np.dtype(wide(dtype))


def decode(array: Array, dtype: str) -> Array:
    """What is stored, as values that are computed with."""
    if dtype == "bfloat16":
        return np.asarray(array.astype(np.uint32) << 16).view(np.float32)
    if dtype == "float16":
        return array.astype(np.float32)
    if dtype == "bool":
        if array.size and array.max() > 1:
            raise Fault("it reads a bool that nothing wrote")
        return array.astype(np.bool_)
    return array


def encode(values: Array, dtype: str) -> Array:
    """Values as they are stored: to nearest, ties to even."""
    if dtype == "bfloat16":
        return np.asarray(round_to_bfloat16(values).view(np.uint32) >> 16, np.uint16)
    if dtype == "bool":
        return np.asarray(values != 0, np.uint8)
    with np.errstate(all="ignore"):  # what is too large for a half is infinite
        return values.astype(stored_type(dtype), copy=False)


def round_to_bfloat16(values: Array) -> Array:
    single = np.ascontiguousarray(values, np.float32)
    bits = single.view(np.uint32)
    rounded = ((bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) & np.uint32(0xFFFF0000)).view(
        np.float32
    )
    return np.where(np.isnan(single), np.float32(np.nan), rounded).astype(np.float32).reshape(values.shape)


def poison(size: int, dtype: str) -> Array:
    """Elements that nothing has written: nan, an unlikely integer, a byte that is not a bool."""
    if dtype == "bfloat16":
        return np.full(size, 0xFFFF, np.uint16)
    if dtype in FLOATS:
        return np.full(size, np.nan, stored_type(dtype))
    return np.full(size * BYTES[dtype], _POISON_BYTE, np.uint8).view(stored_type(dtype))


class Memory:
    """The arrays of one run, each flat. `sizes` has the value of every symbol that is known so far."""

    def __init__(self, buffers: Mapping[str, Buffer], sizes: dict[str, int], plan: MemoryPlan | None = None) -> None:
        self.buffers = buffers
        self.sizes = sizes
        self.arrays: dict[str, Array] = {}
        self._plan = plan
        self._offsets: dict[str, int] | None = None
        self._arena: NDArray[np.uint8] = np.empty(0, np.uint8)

    def assign(self, name: str, array: Array) -> None:
        """Gives a buffer its elements; the array is used, not copied, where it is dense."""
        stored = np.ascontiguousarray(array).reshape(-1).view(stored_type(self.buffers[name].dtype))
        if stored.size != self.count(name):
            raise Fault(f"{name} has {stored.size} elements, and its buffer {self.count(name)}")
        self.arrays[name] = stored

    def count(self, name: str) -> int:
        return evaluate(self.buffers[name].size, self.sizes)

    def array(self, name: str) -> Array:
        """The elements as they are stored. A buffer that nothing wrote yet is poisoned."""
        found = self.arrays.get(name)
        if found is None or found.size != self.count(name):
            found = self.arrays[name] = self._allocate(name)
        return found

    def values(self, name: str) -> Array:
        return decode(self.array(name), self.buffers[name].dtype)

    def poison(self, name: str) -> None:
        self.array(name)[...] = poison(self.count(name), self.buffers[name].dtype)

    def load(self, name: str, index: Array) -> Array:
        array = self.array(name)
        check_range(name, index, array.size)
        return decode(array[index], self.buffers[name].dtype)

    def store(self, name: str, index: Array, values: Array, mode: str) -> None:
        array, dtype = self.array(name), self.buffers[name].dtype
        check_range(name, index, array.size)
        write(array, index, encode(values, dtype), mode, dtype)

    # ------------------------------------------------------------------ the arena

    def _allocate(self, name: str) -> Array:
        size, dtype = self.count(name), self.buffers[name].dtype
        if self._plan is None or self.buffers[name].kind != "temporary":
            return poison(size, dtype)
        if self._offsets is None:
            self._offsets = self._place(self._plan)
        at = self._offsets.get(name)
        if at is None:
            return poison(size, dtype)
        made = self._arena[at : at + size * BYTES[dtype]].view(stored_type(dtype))
        if made.size != size:
            raise Fault(f"{name} does not fit in the arena at its place {at}")
        return made

    def _place(self, plan: MemoryPlan) -> dict[str, int]:
        """The place of each buffer that the plan has one for, once the sizes of inputs are known."""
        if not plan.dynamic:
            self._arena = np.full(plan.size, 0xFF, np.uint8)
            return dict(plan.offsets)
        found: dict[str, int] = {}
        begin = 0
        for slot in plan.slots:
            known = [name for name in slot if self._is_known(name)]
            sizes = [evaluate(byte_size(self.buffers[name]), self.sizes) for name in known]
            found |= dict.fromkeys(known, begin)
            begin += -(-max(sizes, default=0) // ALIGN) * ALIGN
        self._arena = np.full(begin, 0xFF, np.uint8)
        return found

    def _is_known(self, name: str) -> bool:
        size = self.buffers[name].size
        return not isinstance(size, Expr) or all(symbol.name in self.sizes for symbol in size.symbols)


def check_range(name: str, index: Array, size: int) -> None:
    if index.size and (int(index.min()) < 0 or int(index.max()) >= size):
        outside = index[(index < 0) | (index >= size)]
        raise Fault(f"it accesses {name}[{int(outside.flat[0])}], and {name} has {size} elements")


_ACCUMULATE: dict[str, Any] = {"add": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
_ACCUMULATE_BOOL: dict[str, Any] = {
    "add": np.bitwise_or, "prod": np.bitwise_and, "max": np.bitwise_or, "min": np.bitwise_and
}  # fmt: skip


def write(array: Array, index: Array, stored: Array, mode: str, dtype: str) -> None:
    """Writes elements in the order of the index; of several for one place the last one stays, or all accumulate."""
    if mode == "set":
        array[index] = stored
    else:
        (_ACCUMULATE_BOOL if dtype == "bool" else _ACCUMULATE)[mode].at(array, index, stored)
