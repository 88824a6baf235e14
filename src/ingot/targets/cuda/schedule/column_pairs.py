"""Pairs of a product's columns that the Maps behind it read together.

    silu(y[i]) · y[i + n / 2]                     a point for each pair: the halves of all columns
    rotated(y)[c], of y[c] and y[c ± half]        a point for each column: halves of each group of 2 · half columns

One block computes both columns of a pair, so that what becomes of them needs no memory between.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ingot.lowering.dependence import reads_and_writes
from ingot.lowering.index_expr import BodyValue, Expr, Size, Symbol, product, substitute, symbol
from ingot.lowering.loop_body import reads
from ingot.lowering.loop_ir import Body, Load, Loop, Map, Store
from ingot.targets.cuda.schedule.statements import TiledGemm

Values: TypeAlias = NDArray[Any]

# What a condition on the place of a point is made of.
_CONDITIONS: Mapping[str, Callable[..., Values]] = {
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "and": np.logical_and,
    "or": np.logical_or,
    "not": np.logical_not,
}
# Operations whose value is the same at all points if their operands' are.
_UNIFORM = {*_CONDITIONS, "load", "const", "index", "where", "bounds_check", "add", "sub", "mul", "neg", "cast"}


@dataclass(frozen=True, slots=True)
class PairMap:
    """A Map of pairs, with one point for each pair, or two: those of its columns, from column `first` on."""

    step: Map
    points: int
    first: int = 0

    @property
    def count(self) -> int:
        """Its points."""
        count = product([loop.extent for loop in self.step.loops])
        assert isinstance(count, int)
        return count


@dataclass(frozen=True, slots=True)
class ColumnPairs:
    """Columns c and c + `half` of each group of 2 · half, and the Maps that read them."""

    half: int
    maps: tuple[PairMap, ...]


def find_pairs(maps: Sequence[Map], step: TiledGemm) -> ColumnPairs | str:
    """The pairs of a product's columns that Maps read, or why they do not read pairs."""
    n, stores = step.n, step.epilogue.stores
    if not isinstance(n, int) or n % 2 or len(stores) != 1 or stores[0].mode != "set":
        return "its product does not have columns in pairs"
    if place_of(step.epilogue, stores[0].index) != _flat_place(step):
        return "its product's result is not dense"
    buffer = stores[0].buffer
    for one in maps:
        read, written = reads_and_writes(one)
        if buffer not in read or read & written or any(store.mode != "set" for store in one.stores):
            return "a Map behind its product does not read the result, or reads what it writes"
    if len(maps) == 1 and _reads_halves(maps[0], step, buffer):
        return ColumnPairs(n // 2, (PairMap(maps[0], 1),))
    return _find_column_pairs(maps, step, buffer)


def _reads_halves(gate: Map, step: TiledGemm, buffer: str) -> bool:
    """Whether a Map goes over the rows and half of the columns, and reads these and those that lie as many further."""
    assert isinstance(step.n, int)
    half = step.n // 2
    extents = [loop.extent for loop in gate.loops]
    if gate.collides or (extents != [step.m, half] and not (step.m == 1 and extents == [half])):
        return False
    first = _flat_place(step)
    loads = _list_loads(gate, buffer)
    return all(load.mask is None and place_of(gate, load.index) in (first, first + half) for load in loads)


def _find_column_pairs(maps: Sequence[Map], step: TiledGemm, buffer: str) -> ColumnPairs | str:
    assert isinstance(step.n, int)
    found, distances = [], set()
    for one in maps:
        count = product([loop.extent for loop in one.loops])
        places = [load.index - flatten_loops(one.loops) for load in _list_loads(one, buffer)]
        own = {place for load, place in zip(_list_loads(one, buffer), places, strict=True) if load.mask is None}
        if step.m != 1 or not isinstance(count, int) or len(own) != 1:
            return "a Map behind its product does not read the column that it is at"
        (first,) = own
        if not isinstance(first, int) or not all(isinstance(place, int) for place in places):
            return "a Map behind its product reads columns that are not known"
        found.append(PairMap(one, 2, first))
        distances |= {abs(place - first) for place in places if isinstance(place, int)} - {0}
    if len(distances) != 1:
        return "the Maps behind its product read no pairs of columns"
    (half,) = distances
    for pair in found:
        if step.n % (2 * half) or pair.first % (2 * half) or pair.count % (2 * half) or pair.first < 0:
            return "the columns of a Map behind its product are not whole groups"
        if pair.step.collides and not all(_is_injective(pair.step, store) for store in pair.step.stores):
            return "points of a Map behind its product may write the same place"
        for load in _list_loads(pair.step, buffer):
            if not _stays_inside(pair, load, half):
                return "a Map behind its product reads columns of other pairs"
    return ColumnPairs(half, tuple(found))


def _list_loads(step: Map, buffer: str) -> list[Load]:
    return [load for load in reads(step.body) if load.buffer == buffer]


def _flat_place(step: TiledGemm) -> Size:
    column = symbol("column")
    return column if step.m == 1 else symbol("row") * step.n + column


def flatten_loops(loops: Sequence[Loop]) -> Size:
    """A point's number in row-major order."""
    at: Size = 0
    for loop in loops:
        at = at * loop.extent + symbol(loop.variable, below=loop.extent)
    return at


def place_of(step: Map, index: Size) -> Size:
    """An index over a Map's loops, with these called "row", of which there may be none, and "column"."""
    if not step.loops:
        return index
    *rows, column = step.loops
    names: dict[str, Size] = {column.variable: symbol("column")}
    for number, loop in enumerate(rows):
        names[loop.variable] = 0 if loop.extent == 1 else symbol(f"row{number or ''}")
    return substitute(index, names)


def is_own_column(pair: PairMap, step: TiledGemm, index: Size) -> bool:
    """Whether what a Map reads of the product's result is at the point's own column, or, of a point for each pair, at
    the first one."""
    if pair.points == 1:
        return place_of(pair.step, index) == _flat_place(step)
    return index - flatten_loops(pair.step.loops) == pair.first


def _stays_inside(pair: PairMap, load: Load, half: int) -> bool:
    """Whether a load, where it happens, is of the point's own column or of the other one of its pair."""
    distance = load.index - flatten_loops(pair.step.loops) - pair.first
    if distance == 0:
        return True
    extents = [loop.extent for loop in pair.step.loops if isinstance(loop.extent, int)]
    points = dict(zip((loop.variable for loop in pair.step.loops), np.indices(extents), strict=True))
    happens = None if load.mask is None else _find_condition(pair.step.body, load.mask, points)
    if happens is None:
        return False
    is_second = np.arange(pair.count).reshape(happens.shape) % (2 * half) >= half
    return bool((is_second if distance == -half else ~is_second)[happens].all()) and distance in (half, -half)


def _find_condition(body: Body, place: int, points: Mapping[str, Values]) -> Values | None:
    """The value of a condition on the place at every point; None where it depends on something else."""
    shape = next(iter(points.values())).shape
    known: dict[int, Values | None] = {}
    for number, op in enumerate(body.ops[: place + 1]):
        given = [known[operand] for operand in op.operands]
        if op.name == "const":
            known[number] = np.full(shape, op.attribute.value)
        elif op.name == "index":
            known[number] = _find_index(op.attribute, points, shape)
        elif op.name in _CONDITIONS and all(value is not None for value in given):
            known[number] = _CONDITIONS[op.name](*given)
        else:
            known[number] = None
    return known[place]


def _find_index(index: Size, points: Mapping[str, Values], shape: tuple[int, ...]) -> Values | None:
    total = np.zeros(shape, np.int64)
    for term, coefficient in ({(): index} if isinstance(index, int) else index.terms).items():
        value = np.full(shape, coefficient)
        for atom in term:
            if not isinstance(atom, Symbol) or atom.name not in points:
                return None
            value = value * points[atom.name]
        total += value
    return total


def _is_injective(step: Map, store: Store) -> bool:
    """Whether different points write different places: loops are digits of the index, and what else is in it is the
    same at all points."""
    loops = {loop.variable: loop.extent for loop in step.loops}
    digits: list[tuple[int, int]] = []
    for term, coefficient in ({(): store.index} if isinstance(store.index, int) else store.index.terms).items():
        if any(not isinstance(atom, Symbol) for atom in term):
            return False
        names = [atom.name for atom in term if isinstance(atom, Symbol) and atom.name in loops]
        if not names:
            values = [atom.place for atom in term if isinstance(atom, BodyValue)]
            if not all(_is_uniform(step.body, place, set(loops)) for place in values):
                return False
            continue
        extent = loops.pop(names[0], None)
        if len(term) > 1 or not isinstance(extent, int) or coefficient < 1:
            return False
        digits.append((coefficient, extent))
    largest = 0
    for coefficient, extent in sorted(digits):
        if coefficient <= largest:
            return False
        largest += coefficient * (extent - 1)
    return not any(extent != 1 for extent in loops.values())


def _is_uniform(body: Body, place: int, loops: set[str]) -> bool:
    """Whether a value of a body is the same at all points."""
    op = body.ops[place]
    index = op.attribute.index if isinstance(op.attribute, Load) else op.attribute
    symbols = index.symbols if isinstance(index, Expr) else frozenset()
    inside = [one.place for one in symbols if isinstance(one, BodyValue)]
    if isinstance(op.attribute, Load) and op.attribute.mask is not None:
        inside.append(op.attribute.mask)
    if op.name not in _UNIFORM or any(one.name in loops for one in symbols):
        return False
    return all(_is_uniform(body, one, loops) for one in (*op.operands, *inside))
