"""Rotations of the heads of a product of many rows go into its kernel.

    before                                          after
    TiledGemm  x · qkv, in tiles → z                GatedGemm  TiledGemm x · qkv, in tiles of pairs → z,
    MapGroup   rotated z → q, rotated z → k                    MapGroup rotated z → q, rotated z → k, z → values
    Attention  q, k, columns of z                   Attention  q, k, values

A rotation reads columns c and c + half of a head: runs of 8 of both lie in turn in the weight's tiles, so that a thread
has the sums of both. Columns that are read as they are, by attention, are copied: they become a result of their own.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from ingot.lowering.dependence import can_hoist_over, reads_and_writes
from ingot.lowering.index_expr import Expr, Size, as_expr, bounds, estimate, substitute, symbol
from ingot.lowering.loop_body import BodyBuilder, reads
from ingot.lowering.loop_ir import Attention, Buffer, Loop, Map, MatrixView, Stmt, Store
from ingot.lowering.loop_module import Module
from ingot.targets.cuda.schedule.alignment import is_multiple
from ingot.targets.cuda.schedule.bulk.gates import PairFolding
from ingot.targets.cuda.schedule.bulk.paired_columns import RUN, ColumnMap, find_columns, find_gate_fault
from ingot.targets.cuda.schedule.bulk.tiles import BulkChoice, choose_bulk_tile, estimate_bulk_time
from ingot.targets.cuda.schedule.column_pairs import flatten_loops
from ingot.targets.cuda.schedule.statements import GatedGemm, MapGroup, TiledGemm

# Steps between a product and a Map that joins it, at most.
_REACH = 8
# Microseconds that a kernel of Maps takes beside its bytes, and bytes that it reads and writes in one.
_LAUNCH_TIME = 2.0
_MAP_RATE = 3.5e6
# Bytes of an element.
_ELEMENT = 2


def fold_rotations(module: Module) -> Module:
    """Puts Maps of pairs of columns of heads into the kernels of products by tiles of a weight; computes the same."""
    return _RotationFolding.create(module).fold()


class _RotationFolding(PairFolding):
    most_sums = 96

    def fold(self) -> Module:
        steps: list[Stmt | None] = list(self.module.steps)
        users: dict[str, list[int]] = {}
        for place, step in enumerate(self.module.steps):
            for name in set().union(*reads_and_writes(step)):
                users.setdefault(name, []).append(place)
        for place, step in enumerate(self.module.steps):
            if isinstance(step, TiledGemm) and step.algorithm == "bulk" and len(step.epilogue.stores) == 1:
                for at, made in self.join(place, step, steps, users[step.epilogue.stores[0].buffer]).items():
                    steps[at] = made
        return self.finish([step for step in steps if step is not None])

    def join(
        self, place: int, step: TiledGemm, steps: Sequence[Stmt | None], users: Sequence[int]
    ) -> dict[int, Stmt | None]:
        """What becomes of a product and of the steps that read its result, by their places; nothing where Maps cannot
        join it."""
        buffer = step.epilogue.stores[0].buffer
        first, *others = users
        if self.buffers[buffer].kind != "temporary" or first != place or not others or others[-1] - place > _REACH:
            return {}
        maps: list[Map] = []
        changed: dict[int, Stmt | None] = {}
        for at in others:
            user = steps[at]
            if user is None or buffer in reads_and_writes(user)[1]:
                return {}
            members = user.steps if isinstance(user, MapGroup) else (user,) if isinstance(user, Map) else ()
            own = [one for one in members if buffer in reads_and_writes(one)[0]]
            if members:
                changed[at] = _leave(members, own)
            elif not isinstance(user, Attention):
                return {}
            between = [one for one in steps[place + 1 : at] if one is not None]
            if not all(can_hoist_over(one, [*between, *maps]) for one in own):
                return {}
            maps += own
        half = _find_half(maps, buffer)
        if half is None or not isinstance(step.n, int) or step.batch or half % RUN or step.n % (2 * half):
            return {}
        step = replace(step, pairs=half)
        columns = [find_columns(one, step, half) for one in maps]
        found = [one for one in columns if not isinstance(one, str)]
        readers = {at: one for at in others if isinstance(one := steps[at], Attention)}
        if len(found) < len(columns):
            return {}
        kept = self.keep(step, buffer, found, readers) if readers else (None, {})
        if kept is None:
            return {}
        copy, moved = kept
        gate = (*maps, *([] if copy is None else [copy]))
        joined = MapGroup(gate, gate[0].origin) if len(gate) > 1 else gate[0]
        group = GatedGemm((step, joined), (buffer,), step.origin)
        packed = self.pack(group) if find_gate_fault(group, self.buffers) is None else None
        return {**changed, **moved, place: packed} if packed is not None and self.is_faster(packed, found) else {}

    def is_faster(self, packed: GatedGemm, found: Sequence[ColumnMap]) -> bool:
        """Whether the kernel takes less time than two: an epilogue that reads and computes more has smaller tiles."""
        step = packed.steps[0]
        assert isinstance(step.n, int) and isinstance(step.k, int)
        m = estimate(step.m, self.module.hints)
        alone = choose_bulk_tile(m, [step.n], step.k, "plain", in_turn=False)
        if alone is None:
            return True
        apart = estimate_bulk_time(alone, m, step.n, step.k, "plain") + _LAUNCH_TIME
        apart += m * sum(one.count for one in found) * 2 * _ELEMENT / _MAP_RATE
        return estimate_bulk_time(BulkChoice(step.tile, step.split_k), m, step.n, step.k, "reads") <= apart

    def keep(
        self, step: TiledGemm, buffer: str, found: Sequence[ColumnMap], readers: dict[int, Attention]
    ) -> tuple[Map, dict[int, Stmt | None]] | None:
        """A Map that copies the columns which attention reads as they are, and the attention that reads the copy. None
        where these columns are not between those of other Maps."""
        assert isinstance(step.n, int)
        for first, end in _find_gaps(found, step.n):
            name = f"{buffer}_columns{first}"
            moved: dict[int, Stmt | None] = {}
            for at, reader in readers.items():
                narrowed = _narrow(reader, buffer, step.n, first, end, name)
                if narrowed is not None:
                    moved[at] = narrowed
            if len(moved) == len(readers):
                rows = step.epilogue.loops[:-1]
                shape = (*(loop.extent for loop in rows), end - first)
                self.buffers[name] = Buffer(name, self.buffers[buffer].dtype, shape, "temporary")
                return _copy_columns(step, self.buffers[buffer], first, end, name), moved
        return None


def _leave(members: Sequence[Map], own: Sequence[Map]) -> Stmt | None:
    """The members of a group without those that go elsewhere."""
    rest = tuple(one for one in members if one not in own)
    return None if not rest else rest[0] if len(rest) == 1 else MapGroup(rest, rest[0].origin)


def _find_half(maps: Sequence[Map], buffer: str) -> int | None:
    """How far the columns of a pair are apart: the least distance between what one Map reads of a result."""
    distances: set[int] = set()
    for one in maps:
        places = [load.index for load in reads(one.body) if load.buffer == buffer]
        apart = [place - places[0] for place in places]
        numbers = sorted({number for number in apart if isinstance(number, int)})
        if len(numbers) < len(set(apart)):
            return None
        distances |= {after - before for before, after in itertools.pairwise(numbers)}
    return distances.pop() if len(distances) == 1 else None


def _find_gaps(found: Sequence[ColumnMap], n: int) -> list[tuple[int, int]]:
    """Ranges of columns that no Map goes over."""
    gaps, begin = [], 0
    for first, count in [*sorted((one.first, one.count) for one in found), (n, 0)]:
        if first > begin:
            gaps.append((begin, first))
        begin = max(begin, first + count)
    return gaps


def _copy_columns(step: TiledGemm, source: Buffer, first: int, end: int, to: str) -> Map:
    *rows, column = step.epilogue.loops
    loops = (*rows, Loop(column.variable, end - first))
    at, ops = symbol(column.variable, below=end - first), BodyBuilder()
    value = ops.load(source.name, flatten_loops(rows) * step.n + at + first, source.dtype)
    return Map(loops, ops.finish([value]), (Store(to, flatten_loops(loops), 0),), step.origin)


def _narrow(step: Attention, buffer: str, n: int, first: int, end: int, to: str) -> Attention | None:
    """Attention that reads columns of a matrix of n, which are now all that there are of another one."""

    names: dict[str, Size] = {loop.variable: symbol(loop.variable, below=loop.extent) for loop in step.batch}

    def move(view: MatrixView, width: int) -> MatrixView:
        if view.buffer != buffer:
            return view
        found = _split_offset(substitute(view.offset, names), n)
        if found is None or view.columns != 1 or not is_multiple(view.rows, n):
            return view
        row, column = found
        low, high = bounds(column)
        if low is None or high is None or low < first or high + width > end:
            return view
        return MatrixView(to, row * (end - first) + column - first, view.rows // n * (end - first), 1)

    q, k, v = (move(view, width) for view, width in ((step.q, step.depth), (step.k, step.depth), (step.v, step.values)))
    made = replace(step, q=q, k=k, v=v)
    return None if buffer in reads_and_writes(made)[0] else made


def _split_offset(offset: Size, n: int) -> tuple[Size, Size] | None:
    """An offset into rows of n columns as a row and a column."""
    row: Size = 0
    column: Size = 0
    for term, coefficient in as_expr(offset).terms.items():
        whole, rest = divmod(coefficient, n)
        if term and whole and rest:
            return None
        row = row + Expr({term: whole}) if term and whole else row + (0 if term else whole)
        column = column + Expr({term: rest}) if term and rest else column + (0 if term else rest)
    return row, column
