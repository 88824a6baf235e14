"""A body at every point of a grid: the handler that bodies are replayed on, whose values are arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ingot.lowering.index_expr import Size, value_name
from ingot.lowering.loop_ir import Load, Op
from ingot.targets.base import Fault
from ingot.targets.reference.index_grid import LANE, IndexGrid, evaluate_index
from ingot.targets.reference.memory import Array, Memory, check_range, computed_type, decode, poison
from ingot.targets.reference.random_numbers import DRAWS
from ingot.targets.reference.scalar_ops import SCALAR_OPS, bitcast, cast, constant
from ingot_runtime.errors import IndexOutOfRange

# What a kernel hands in: sums, and the state of a scan.
GIVEN = ("accumulator", "gradient", "second_accumulator")


@dataclass(frozen=True, slots=True)
class LocalBuffer:
    """A buffer that each outer point of a nest has for itself: so many elements of `array` for each."""

    array: Array
    size: int
    dtype: str

    def place(self, name: str, index: Array, grid: IndexGrid) -> Array:
        check_range(name, index, self.size)
        return np.asarray(index + grid.variables[LANE] * self.size)


def make_local(points: int, size: int, dtype: str) -> LocalBuffer:
    return LocalBuffer(poison(points * size, dtype), size, dtype)


@dataclass(slots=True)
class BodyEvaluator:
    """`given` has what the kernel around the body hands in, by the name of its op; the states of a scan are a list."""

    memory: Memory
    grid: IndexGrid
    local: Mapping[str, LocalBuffer]
    given: Mapping[str, Any]
    seed: int = 0
    first_draw: int = 0
    values: list[Array] = field(default_factory=list)
    symbols: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.symbols = {**self.memory.sizes, **self.grid.variables}

    def op(self, place: int, op: Op, operands: tuple[Array, ...]) -> Array:
        with np.errstate(all="ignore"):
            value = np.asarray(self._compute(op, operands))
        if op.name not in ("cast", "truncate"):
            value = value.astype(computed_type(op.dtype), copy=False)
        self.values.append(value)
        if op.dtype == "int64":
            self.symbols[value_name(place)] = value
        return value

    def index(self, size: Size) -> Array:
        return np.asarray(evaluate_index(size, self.symbols), np.int64)

    def _compute(self, op: Op, operands: tuple[Array, ...]) -> Any:
        attribute = op.attribute
        if op.name in GIVEN:
            return self.given[op.name]
        match op.name:
            case "load":
                return self._load(attribute, op.dtype)
            case "const":
                return constant(attribute.value, op.dtype)
            case "index":
                return self.index(attribute)
            case "input":
                return self.given["input"][attribute]
            case "cast":
                return cast(operands[0], attribute)
            case "bitcast":
                return bitcast(operands[0], *attribute)
            case "truncate":
                return operands[0].astype(computed_type(op.dtype))
            case "bounds_check":
                return self._check(attribute, *operands)
            case "random":
                kind, number = attribute
                return DRAWS[kind](self.seed, self.first_draw + number, *np.broadcast_arrays(*operands))
        if op.name not in SCALAR_OPS:
            raise Fault(f"there is no scalar operation {op.name!r}")
        return SCALAR_OPS[op.name](*operands)

    def _load(self, access: Load, dtype: str) -> Array:
        index = self.index(access.index)
        if access.mask is None:
            return self._read(access.buffer, index, self.grid)
        mask = self.values[access.mask]
        if not mask.any():
            return np.zeros(np.broadcast_shapes(index.shape, mask.shape), computed_type(dtype))
        # Where the mask is false nothing is read: those places take one that is read anyway.
        index, mask = np.broadcast_arrays(index, mask)
        local = self.local.get(access.buffer)
        if local is None:
            spare = index[mask][0]
            found = self._read(access.buffer, np.where(mask, index, spare), self.grid)
        else:
            check_range(access.buffer, index[mask], local.size)
            found = self._read(access.buffer, np.where(mask, index, 0), self.grid)
        return np.where(mask, found, np.zeros((), found.dtype))

    def _read(self, name: str, index: Array, grid: IndexGrid) -> Array:
        local = self.local.get(name)
        if local is None:
            return self.memory.load(name, index)
        return decode(local.array[local.place(name, index, grid)], local.dtype)

    def _check(self, size: Size, value: Array, mask: Array | None = None) -> Array:
        """An index into `size` places; a negative one counts from the end."""
        limit = self.index(size)
        wrapped = np.where(value < 0, value + limit, value)
        outside = (wrapped < 0) | (wrapped >= limit)
        bad = outside if mask is None else outside & mask
        if bad.any():
            value, _ = np.broadcast_arrays(value, bad)
            first = np.flatnonzero(np.broadcast_to(bad, value.shape))[0]
            size = int(np.broadcast_to(limit, value.shape).flat[first])
            range_ = f"a dim of {size} elements (valid: {-size} to {size - 1})" if size else "a dim without elements"
            raise IndexOutOfRange(f"The index {int(value.flat[first])} is out of range for {range_}.")
        return np.where(outside, 0, wrapped)
