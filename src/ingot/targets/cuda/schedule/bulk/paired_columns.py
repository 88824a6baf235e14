"""Epilogues of pairs of a product's columns: of one thread that has the sums of both.

    silu(z[i]) · z[i + n / 2]                 one point for each pair
    rotated(z)[c], of z[c] and z[c ± half]    two points for each pair: the Map at its first column and at its second

Conditions on the place, such as those of a concatenation, are known at each of the two points. Values between product
and Map are rounded as memory would hold them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ingot.lowering.dependence import reads_and_writes
from ingot.lowering.index_expr import BodyValue, Expr, Size, bounds, coefficient_of, product, substitute, symbol
from ingot.lowering.loop_body import BodyBuilder, reads, rewrite
from ingot.lowering.loop_ir import Buffer, Load, Loop, Map, Op, Store
from ingot.targets.cuda.schedule.alignment import is_multiple
from ingot.targets.cuda.schedule.column_pairs import ColumnPairs, PairMap, find_pairs, flatten_loops, is_own_column
from ingot.targets.cuda.schedule.statements import GatedGemm, MapGroup, TiledGemm

# Columns of a run: a pair of them is whole.
RUN = 8


@dataclass(frozen=True, slots=True)
class PairedEpilogue:
    """What becomes of `count` pairs of columns, from pair `first` on. The last `columns` loops of the Map are the
    pairs, those before them the rows. It reads the sum of a pair's first column as the op "accumulator", and that of
    its second one as "second_accumulator"."""

    step: Map
    first: int
    count: int
    columns: int = 1


@dataclass(frozen=True, slots=True)
class ColumnMap:
    """A Map over a product's rows and `count` of its columns, from `first` on, by which of its loops these are."""

    step: Map
    rows: tuple[Loop, ...]
    columns: tuple[Loop, ...]
    first: int
    count: int


def find_gate_fault(group: GatedGemm, buffers: Mapping[str, Buffer]) -> str | None:
    """Why a product and Maps cannot be one kernel; None where they can."""
    if [type(step) for step in group.steps] not in ([TiledGemm, Map], [TiledGemm, MapGroup]):
        return "it is a product with a Map behind it"
    step, gate = group.steps
    if step.algorithm != "bulk" or not step.pairs or step.batch:
        return "its product is not one by tiles of a weight that hold pairs of columns"
    joined = join_pairs(group, buffers)
    if isinstance(joined, str):
        return joined
    if {store.buffer for store in step.epilogue.stores} != set(group.local):
        return "its product's result is in memory"
    if reads_and_writes(step)[0] & reads_and_writes(gate)[1]:
        return "its Map writes what its product reads, in other blocks too"
    return None


def join_pairs(group: GatedGemm, buffers: Mapping[str, Buffer]) -> tuple[PairedEpilogue, ...] | str:
    """The epilogues of the pairs of a product's columns, in their order, or why there are none."""
    step, maps = group.steps[0], group.gate_maps
    pairs = find_pairs(maps, step) if len(maps) == 1 else ""
    if isinstance(pairs, ColumnPairs) and pairs.maps[0].points == 1:
        return _join_gate(maps[0], step, pairs.half, buffers)
    fault = _find_result_fault(maps, step)
    if fault is not None:
        return fault
    made: list[PairedEpilogue] = []
    for one in maps:
        found = find_columns(one, step, step.pairs)
        joined = found if isinstance(found, str) else _join_columns(found, step, buffers)
        if isinstance(joined, str):
            return joined
        made.append(joined)
    made.sort(key=lambda part: part.first)
    if any(part.first + part.count > after.first for part, after in itertools.pairwise(made)):
        return "two Maps behind its product read the same columns"
    return tuple(made)


def _find_result_fault(maps: Sequence[Map], step: TiledGemm) -> str | None:
    n, half, stores = step.n, step.pairs, step.epilogue.stores
    if not isinstance(n, int) or half % RUN or n % (2 * half) or len(stores) != 1 or stores[0].mode != "set":
        return "its product does not have columns in pairs, of whole runs of 8"
    if stores[0].index != flatten_loops(step.epilogue.loops):
        return "its product's result is not dense"
    for one in maps:
        read, written = reads_and_writes(one)
        if stores[0].buffer not in read or read & written:
            return "a Map behind its product does not read the result, or reads what it writes"
        names = [one for store in one.stores for one in (store.index.symbols if isinstance(store.index, Expr) else ())]
        if one.collides or any(isinstance(name, BodyValue) for name in names):
            return "points of a Map behind its product may write the same place"
        if any(store.mode != "set" for store in one.stores):
            return "a Map behind its product adds to what it writes"
    return None


# ---------------------------------------------------------------------- gates: one point for each pair


def _join_gate(
    gate: Map, step: TiledGemm, half: int, buffers: Mapping[str, Buffer]
) -> tuple[PairedEpilogue, ...] | str:
    """One epilogue, of half the columns."""
    if len(step.epilogue.loops) != 2 or len(gate.loops) != 2 or half % RUN or step.pairs != half:
        return "its Map does not go over rows and the halves of its columns, of whole runs of 8"
    (store,) = step.epilogue.stores
    ops = BodyBuilder()
    row, column = (symbol(loop.variable, below=loop.extent) for loop in gate.loops)
    values = _write_values(ops, step, [((row,), column), ((row,), column + half)], buffers)
    pair = PairMap(gate, 1)

    def take_value(op: Op, _: tuple[int, ...], into: BodyBuilder) -> int | None:
        if not isinstance(op.attribute, Load) or op.attribute.buffer != store.buffer:
            return None
        return values[0 if is_own_column(pair, step, op.attribute.index) else 1]

    _, results = rewrite(gate.body, into=ops, replace=take_value)
    return (PairedEpilogue(replace(gate, body=ops.finish(results)), 0, half),)


def _write_values(
    ops: BodyBuilder, step: TiledGemm, places: Sequence[tuple[Sequence[Size], Size]], buffers: Mapping[str, Buffer]
) -> list[int]:
    """The product's results at both columns of a pair, given their rows and columns, as memory would hold them."""
    (store,) = step.epilogue.stores
    values: list[int] = []
    for sums, (rows, column) in zip(("accumulator", "second_accumulator"), places, strict=True):
        loops = step.epilogue.loops
        names: dict[str, Size] = {loop.variable: at for loop, at in zip(loops, (*rows, column), strict=True)}

        def take_sum(op: Op, _: tuple[int, ...], into: BodyBuilder, sums: str = sums) -> int | None:
            return into.emit(sums, (), op.dtype) if op.name == "accumulator" else None

        _, results = rewrite(step.epilogue.body, symbols=names, into=ops, replace=take_sum)
        values.append(ops.cast(results[store.result], buffers[store.buffer].dtype))
    return values


# ---------------------------------------------------------------------- rotations: two points for each pair


def find_columns(one: Map, step: TiledGemm, half: int) -> ColumnMap | str:
    """Which columns of a product a Map goes over, in whole groups of 2 · half."""
    (store,) = step.epilogue.stores
    assert isinstance(step.n, int)
    for load in reads(one.body):
        found = _split_loops(one, load.index, step) if load.buffer == store.buffer else None
        if found is None or found.first % (2 * half) or found.first + found.count > step.n:
            continue
        last = found.columns[-1].extent
        if isinstance(last, int) and last % (2 * half) == 0:
            return found
    return "a Map behind its product does not go over its rows and whole groups of its columns"


def _split_loops(one: Map, index: Size, step: TiledGemm) -> ColumnMap | None:
    """A Map's loops as rows and columns of what it reads of a product's result."""
    assert isinstance(step.n, int)
    index = substitute(index, _name_variables(one))
    rows: list[Loop] = []
    columns: list[Loop] = []
    for loop in one.loops:
        if loop.extent == 1:
            continue
        by = coefficient_of(index, loop.variable)
        if by is None or by == 0:
            return None
        is_column = isinstance(by, int) and 0 < by < step.n
        if not is_column and not is_multiple(by, step.n):
            return None
        (columns if is_column else rows).append(loop)
    first = index - flatten_loops(rows) * step.n - flatten_loops(columns)
    count = product([loop.extent for loop in columns])
    if not isinstance(first, int) or first < 0 or not isinstance(count, int) or not columns:
        return None
    if product([loop.extent for loop in rows]) != step.m:
        return None
    return ColumnMap(one, tuple(rows), tuple(columns), first, count)


def _name_variables(one: Map) -> dict[str, Size]:
    """The loops' variables, with the ranges that the loops have now; 0 where that is all."""
    return {loop.variable: 0 if loop.extent == 1 else symbol(loop.variable, below=loop.extent) for loop in one.loops}


def _join_columns(found: ColumnMap, step: TiledGemm, buffers: Mapping[str, Buffer]) -> PairedEpilogue | str:
    """The Map at both columns of each pair."""
    half, one, (result,) = step.pairs, found.step, step.epilogue.stores
    assert isinstance(step.n, int)
    *outer, last = found.columns
    assert isinstance(last.extent, int)
    groups = last.extent // (2 * half)
    more = [Loop(f"{last.variable}_group", groups)] if groups > 1 else []
    column: Size = symbol(last.variable, below=half)
    for loop in more:
        column = column + symbol(loop.variable, below=groups) * (2 * half)
    points: list[dict[str, Size]] = [{**_name_variables(one), last.variable: column + further} for further in (0, half)]
    rows = _match_rows(found.rows, step.epilogue.loops[:-1])
    if rows is None:
        return "a Map behind its product has other rows"
    columns = [substitute(flatten_loops(found.columns), names) + found.first for names in points]
    ops = BodyBuilder()
    values = _write_values(ops, step, [(rows, one) for one in columns], buffers)
    places = [flatten_loops(found.rows) * step.n + one for one in columns]
    results: list[int] = []
    stores: list[Store] = []

    def take_value(op: Op, operands: tuple[int, ...], into: BodyBuilder) -> int | None:
        load = op.attribute
        if not isinstance(load, Load):
            return _fold_condition(op, operands, into)
        happens = True if load.mask is None else _find_constant(into, load.mask)
        if happens is False:
            return into.const(0, op.dtype)
        if happens and load.buffer == result.buffer and load.index in places:
            return values[places.index(load.index)]
        return into.emit(op.name, (), op.dtype, replace(load, mask=None)) if happens else None

    for names in points:
        _, found_results = rewrite(one.body, symbols=names, into=ops, replace=take_value)
        for store in one.stores:
            place = len(results) + store.result
            stores.append(replace(store, index=substitute(store.index, names), result=place))
        results += found_results
    body = ops.finish(results)
    if any(load.buffer == result.buffer for load in reads(body)):
        return "a Map behind its product reads columns of other pairs"
    loops = (*found.rows, *outer, *more, Loop(last.variable, half))
    made = replace(one, loops=loops, body=body, stores=tuple(stores))
    return PairedEpilogue(made, found.first // 2, found.count // 2, len(outer) + len(more) + 1)


def _match_rows(rows: Sequence[Loop], loops: Sequence[Loop]) -> list[Size] | None:
    """The places of a product's rows, in its epilogue's loops, over a Map's."""
    wanted = [loop for loop in loops if loop.extent != 1]
    if [loop.extent for loop in wanted] == [loop.extent for loop in rows]:
        own = iter(rows)
        return [0 if loop.extent == 1 else symbol((at := next(own)).variable, below=at.extent) for loop in loops]
    return [flatten_loops(rows)] if len(loops) == 1 else None


def _fold_condition(op: Op, operands: Sequence[int], into: BodyBuilder) -> int | None:
    """The value of a condition, or of what it selects, where all points agree on it."""
    if op.name in _SIGNS and all(_find_place(into, one) is not None for one in operands):
        left, right = (_find_place(into, one) for one in operands)
        assert left is not None and right is not None
        known = _SIGNS[op.name](*bounds(left - right))
        return None if known is None else into.const(known, "bool")
    known_operands = [_find_constant(into, one) for one in operands]
    if op.name == "where" and known_operands[0] is not None:
        return operands[1 if known_operands[0] else 2]
    if op.name == "not" and known_operands[0] is not None:
        return into.const(not known_operands[0], "bool")
    if op.name in ("and", "or"):
        decides = op.name == "or"
        if decides in known_operands:
            return into.const(decides, "bool")
        for place, known in enumerate(known_operands):
            if known is not None:
                return operands[1 - place]
    return None


def _find_place(ops: BodyBuilder, value: int) -> Size | None:
    """A value that is an index or an integer."""
    op = ops.ops[value]
    if op.name == "index":
        index: Size = op.attribute
        return index
    number = op.attribute.value if op.name == "const" else None
    return number if isinstance(number, int) and not isinstance(number, bool) else None


def _find_constant(ops: BodyBuilder, value: int) -> bool | None:
    """A condition that is known."""
    op = ops.ops[value]
    number = op.attribute.value if op.name == "const" else None
    return number if isinstance(number, bool) else None


def _is_less(low: int | None, high: int | None) -> bool | None:
    return True if high is not None and high < 0 else False if low is not None and low >= 0 else None


def _is_more(low: int | None, high: int | None) -> bool | None:
    return True if low is not None and low > 0 else False if high is not None and high <= 0 else None


def _negate(known: bool | None) -> bool | None:
    return None if known is None else not known


# Comparisons, by the bounds of how much the left side is more than the right one.
_SIGNS: Mapping[str, Callable[[int | None, int | None], bool | None]] = {
    "lt": _is_less,
    "gt": _is_more,
    "ge": lambda low, high: _negate(_is_less(low, high)),
    "le": lambda low, high: _negate(_is_more(low, high)),
}
