"""Rows: Reduces and Maps that share their outer loops become a LoopNest; what only they use becomes local to a row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from ingot.lowering.dependence import can_hoist_over, count_readers, is_temporary, reads_and_writes
from ingot.lowering.dtypes import wide
from ingot.lowering.index_expr import Size, coefficient_of, estimate, is_in_range, product, substitute
from ingot.lowering.loop_body import BodyBuilder, reads, rewrite
from ingot.lowering.loop_ir import Buffer, Load, Loop, LoopNest, Map, Op, Reduce, Stmt, Store
from ingot.lowering.loop_module import Module
from ingot.scheduling.fusion_limits import FusionLimits


def fuse_rows(
    limits: FusionLimits, steps: Sequence[Stmt], buffers: dict[str, Buffer], module: Module, outside: dict[str, int]
) -> list[Stmt]:
    groups: list[list[Stmt]] = []
    for step in steps:
        if isinstance(step, (Map, Reduce)) and not (isinstance(step, Map) and step.collides):
            place = _row_partner(step, groups, module, limits)
            if place is not None:
                groups[place].append(step)
                continue
        groups.append([step])
    counts = count_readers(steps, outside)
    writers = Counter(name for step in steps for name in reads_and_writes(step)[1])
    return [_nest(group, buffers, counts, writers, limits) if len(group) > 1 else group[0] for group in groups]


def _row_partner(step: Map | Reduce, groups: Sequence[list[Stmt]], module: Module, limits: FusionLimits) -> int | None:
    """The latest group that the step shares data and outer loops with, if it may move there."""
    r, _ = reads_and_writes(step)
    for place in range(len(groups) - 1, max(-1, len(groups) - 6), -1):
        group = groups[place]
        if not all(isinstance(s, (Map, Reduce)) and not getattr(s, "collides", False) for s in group):
            if r & set().union(*(reads_and_writes(s)[1] for s in group)):
                return None
            continue
        group_r, group_w = (
            set().union(*(reads_and_writes(s)[0] for s in group)),
            set().union(*(reads_and_writes(s)[1] for s in group)),
        )
        if not (r & group_w or r & group_r):
            continue
        members = [s for s in group if isinstance(s, (Map, Reduce))]
        together = [*members, step]
        outer = _count_shared_loops(together, limits)
        worth = _worth(outer, together, module, limits) if outer else _is_lone_row(together, limits)
        if worth and _rows_agree(together, outer):
            later = [s for other in groups[place + 1 :] for s in other]
            if can_hoist_over(step, later):
                return place
        if r & group_w:
            return None
    return None


def _count_shared_loops(steps: Sequence[Map | Reduce], limits: FusionLimits) -> int:
    """How many outer loops the steps have in common; 0 where there is no reduction among them."""
    if not any(isinstance(s, Reduce) for s in steps):
        return 0
    across = limits.reduces_across
    limit = min(len(s.loops) - (isinstance(s, Reduce) and across(s)) for s in steps)
    limit = min([limit, *(len(s.loops) for s in steps if isinstance(s, Reduce))])
    shared = 0
    while shared < limit and len({s.loops[shared].extent for s in steps}) == 1:
        shared += 1
    # A reduction whose own loops are not all shared would run inside, once for every row: not a row kernel.
    if any(isinstance(s, Reduce) and not across(s) and len(s.loops) != shared for s in steps):
        return 0
    return shared


def _worth(outer: int, steps: Sequence[Map | Reduce], module: Module, limits: FusionLimits) -> bool:
    """Few outer points are not worth giving up the parallel work inside them."""
    count = estimate(product([loop.extent for loop in steps[0].loops[:outer]]), module.hints)
    row = max(estimate(_inner_points(s, outer), module.hints) for s in steps)
    return count >= limits.outer_points or row <= limits.row_length


def _inner_points(step: Map | Reduce, outer: int) -> Size:
    over = step.over if isinstance(step, Reduce) else ()
    return product([loop.extent for loop in (*step.loops[outer:], *over)])


def _is_lone_row(steps: Sequence[Map | Reduce], limits: FusionLimits) -> bool:
    """Whether the steps are all there is of one row: reductions to one value, and Maps of known, small sizes."""
    if not limits.lone_row_length:
        return False
    reductions = [s for s in steps if isinstance(s, Reduce)]
    sizes = [_inner_points(s, 0) for s in steps]
    small = all(isinstance(size, int) and size <= limits.lone_row_length for size in sizes)
    return small and bool(reductions) and not any(s.loops for s in reductions)


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
    """Whether every step reads what another one writes only from its own row. One row has all there is."""
    if not outer:
        return True
    loops = steps[0].loops[:outer]
    written: dict[str, list[Store]] = {}
    for step in steps:
        for s in step.stores:
            written.setdefault(s.buffer, []).append(s)
    zero: dict[str, Size] = {loop.variable: 0 for loop in loops}
    uses: list[Load | Store] = [access for step in steps for access in reads(step.body)]
    uses += [s for stores in written.values() if len(stores) > 1 for s in stores]
    for use in uses:
        for store in written.get(use.buffer, ()):
            size = _row_size(store, loops)
            if size is None or not is_in_range(substitute(store.index, zero), size):
                return False
            for loop in loops:
                if coefficient_of(use.index, loop.variable) != coefficient_of(store.index, loop.variable):
                    return False
            if not is_in_range(substitute(use.index, zero), size):
                return False
    return True


def _nest(
    group: Sequence[Stmt],
    buffers: dict[str, Buffer],
    counts: Counter[str],
    writers: Counter[str],
    limits: FusionLimits,
) -> LoopNest:
    """The group as one nest. Local to a row becomes what only the group reads and, piece by piece, writes."""
    steps = [s for s in group if isinstance(s, (Map, Reduce))]
    shared = _count_shared_loops(steps, limits)
    outer = steps[0].loops[:shared]
    zero: dict[str, Size] = {loop.variable: 0 for loop in outer}
    inside: Counter[str] = Counter()
    written: Counter[str] = Counter()
    for step in steps:
        inside.update(reads_and_writes(step)[0])
        written.update(reads_and_writes(step)[1])
    local: list[str] = []
    for step in steps:
        for store in step.stores:
            name = store.buffer
            size = _row_size(store, outer) if outer else buffers[name].size
            alone = counts[name] == inside[name] and writers[name] == written[name]
            mine = is_temporary(name, buffers) and alone and name not in local
            if mine and size is not None and is_in_range(substitute(store.index, zero), size):
                local.append(name)
                # A Map rounds what it stores in a half dtype; what a Reduce stores, only the memory rounds.
                dtype = buffers[name].dtype if isinstance(step, Reduce) else wide(buffers[name].dtype)
                buffers[name] = Buffer(name, dtype, () if size == 1 else (size,))
    # One place needs no index, whatever it was computed from.
    single = {name for name in local if not buffers[name].shape}
    moved = [_localize(step, set(local), single, zero) for step in steps]
    last = max(steps, key=lambda s: len(s.loops))
    return LoopNest(outer, tuple(moved), tuple(local), last.origin)


def _localize(step: Map | Reduce, local: set[str], single: set[str], zero: dict[str, Size]) -> Map | Reduce:
    def offset_in_row(use: Load | Store) -> Size:
        return 0 if use.buffer in single else substitute(use.index, zero)

    def substitute_known(op: Op, operands: tuple[int, ...], ops: BodyBuilder) -> int | None:
        if isinstance(op.attribute, Load) and op.attribute.buffer in local:
            access = op.attribute
            return ops.emit("load", (), op.dtype, Load(access.buffer, offset_in_row(access), access.mask))
        return None

    ops, results = rewrite(step.body, replace=substitute_known)
    stores = tuple(replace(s, index=offset_in_row(s)) if s.buffer in local else s for s in step.stores)
    return replace(step, body=ops.finish(results), stores=stores)
