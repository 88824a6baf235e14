"""Rows: Reduces and Maps that share their outer loops become a Nest; what only they use becomes local to a row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from ingot.lowering.access import across
from ingot.lowering.body import Recorder, reads, rewrite
from ingot.lowering.expr import Size, coefficient_of, guess, product, substitute, within
from ingot.lowering.ir import Access, Buffer, Loop, Map, Module, Nest, Op, Reduce, Step, Store, wide
from ingot.lowering.memory import touched
from ingot.lowering.uses import may_move, private, readers

# Fewer rows than this are not worth giving up the parallel work inside them.
FEW_ROWS = 8
LONG_ROW = 1 << 16


def fuse_rows(steps: Sequence[Step], buffers: dict[str, Buffer], module: Module, outside: dict[str, int]) -> list[Step]:
    groups: list[list[Step]] = []
    for step in steps:
        if isinstance(step, (Map, Reduce)) and not (isinstance(step, Map) and step.serial):
            place = _row_partner(step, groups, module)
            if place is not None:
                groups[place].append(step)
                continue
        groups.append([step])
    counts = readers(steps, outside)
    writers = Counter(name for step in steps for name in touched(step)[1])
    return [_nest(group, buffers, counts, writers) if len(group) > 1 else group[0] for group in groups]


def _row_partner(step: Map | Reduce, groups: Sequence[list[Step]], module: Module) -> int | None:
    """The latest group that the step shares data and outer loops with, if it may move there."""
    r, _ = touched(step)
    for place in range(len(groups) - 1, max(-1, len(groups) - 6), -1):
        group = groups[place]
        if not all(isinstance(s, (Map, Reduce)) and not getattr(s, "serial", False) for s in group):
            if r & set().union(*(touched(s)[1] for s in group)):
                return None
            continue
        group_r, group_w = set().union(*(touched(s)[0] for s in group)), set().union(*(touched(s)[1] for s in group))
        if not (r & group_w or r & group_r):
            continue
        members = [s for s in group if isinstance(s, (Map, Reduce))]
        outer = _shared([*members, step])
        if outer and _worth(outer, [*members, step], module) and _rows_agree([*members, step], outer):
            later = [s for other in groups[place + 1 :] for s in other]
            if may_move(step, later):
                return place
        if r & group_w:
            return None
    return None


def _shared(steps: Sequence[Map | Reduce]) -> int:
    """How many outer loops the steps have in common; 0 where there is no reduction among them."""
    if not any(isinstance(s, Reduce) for s in steps):
        return 0
    limit = min(len(s.loops) - (isinstance(s, Reduce) and across(s)) for s in steps)
    limit = min([limit, *(len(s.loops) for s in steps if isinstance(s, Reduce))])
    shared = 0
    while shared < limit and len({s.loops[shared].extent for s in steps}) == 1:
        shared += 1
    # A reduction whose own loops are not all shared would run inside, once for every row: not a row kernel.
    if any(isinstance(s, Reduce) and not across(s) and len(s.loops) != shared for s in steps):
        return 0
    return shared


def _worth(outer: int, steps: Sequence[Map | Reduce], module: Module) -> bool:
    count = guess(product([loop.extent for loop in steps[0].loops[:outer]]), module.hints)
    row = max(
        guess(
            product([loop.extent for loop in (*s.loops[outer:], *(s.over if isinstance(s, Reduce) else ()))]),
            module.hints,
        )
        for s in steps
    )
    return count >= FEW_ROWS or row <= LONG_ROW


def _row_size(store: Store, outer: Sequence[Loop]) -> Size | None:
    """The size of the piece of a buffer that one outer point writes, where pieces lie one after another."""
    size: Size | None = None
    step: Size | None = None
    for loop in reversed(outer):
        coefficient = coefficient_of(store.index, loop.variable)
        if coefficient is None or (isinstance(coefficient, int) and coefficient == 0):
            return None
        if step is None:
            size = coefficient
        elif coefficient != step:
            return None
        step = coefficient * loop.extent
    return size


def _rows_agree(steps: Sequence[Map | Reduce], outer: int) -> bool:
    """Whether every step reads what another one writes only from its own row."""
    loops = steps[0].loops[:outer]
    written: dict[str, list[Store]] = {}
    for step in steps:
        for s in step.stores:
            written.setdefault(s.buffer, []).append(s)
    zero: dict[str, Size] = {loop.variable: 0 for loop in loops}
    uses: list[Access | Store] = [access for step in steps for access in reads(step.body)]
    uses += [s for stores in written.values() if len(stores) > 1 for s in stores]
    for use in uses:
        for store in written.get(use.buffer, ()):
            size = _row_size(store, loops)
            if size is None or not within(substitute(store.index, zero), size):
                return False
            for loop in loops:
                if coefficient_of(use.index, loop.variable) != coefficient_of(store.index, loop.variable):
                    return False
            if not within(substitute(use.index, zero), size):
                return False
    return True


def _nest(group: Sequence[Step], buffers: dict[str, Buffer], counts: Counter[str], writers: Counter[str]) -> Nest:
    """The group as one nest. Local to a row becomes what only the group reads and, piece by piece, writes."""
    steps = [s for s in group if isinstance(s, (Map, Reduce))]
    shared = _shared(steps)
    outer = steps[0].loops[:shared]
    zero: dict[str, Size] = {loop.variable: 0 for loop in outer}
    inside: Counter[str] = Counter()
    written: Counter[str] = Counter()
    for step in steps:
        inside.update(touched(step)[0])
        written.update(touched(step)[1])
    local: list[str] = []
    for step in steps:
        for store in step.stores:
            name = store.buffer
            size = _row_size(store, outer)
            alone = counts[name] == inside[name] and writers[name] == written[name]
            mine = private(name, buffers) and alone and name not in local
            if mine and size is not None and within(substitute(store.index, zero), size):
                local.append(name)
                # A Map rounds what it stores in a half dtype; what a Reduce stores, only the memory rounds.
                dtype = buffers[name].dtype if isinstance(step, Reduce) else wide(buffers[name].dtype)
                buffers[name] = Buffer(name, dtype, () if size == 1 else (size,))
    # One place needs no index, whatever it was computed from.
    single = {name for name in local if not buffers[name].shape}
    moved = [_localized(step, set(local), single, zero) for step in steps]
    last = max(steps, key=lambda s: len(s.loops))
    return Nest(outer, tuple(moved), tuple(local), last.origin)


def _localized(step: Map | Reduce, local: set[str], single: set[str], zero: dict[str, Size]) -> Map | Reduce:
    def within_row(use: Access | Store) -> Size:
        return 0 if use.buffer in single else substitute(use.index, zero)

    def known(op: Op, operands: tuple[int, ...], ops: Recorder) -> int | None:
        if isinstance(op.attribute, Access) and op.attribute.buffer in local:
            access = op.attribute
            return ops.emit("load", (), op.dtype, Access(access.buffer, within_row(access), access.mask))
        return None

    ops, results = rewrite(step.body, replace=known)
    stores = tuple(replace(s, index=within_row(s)) if s.buffer in local else s for s in step.stores)
    return replace(step, body=ops.finish(results), stores=stores)
