"""Fusion: fewer passes over memory.

    epilogues   a Map that reads a product where it is written becomes the product's epilogue
    joints      Maps over the same loops, one reading the other where it writes, become one
    rows        Reduces and Maps that share their outer loops become a Nest; what only they use becomes local to a row
    collapse    loops that memory does not tell apart become one

`fuse` returns a Module that computes the same. Nothing here looks at operators: only at loops, reads and writes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

from ingot.lowering.access import across, along_memory
from ingot.lowering.body import Recorder, pruned, reads, rewrite
from ingot.lowering.expr import Expr, Size, coefficient_of, evaluate, product, substitute, symbol, within
from ingot.lowering.ir import (
    Access,
    Attention,
    AttentionGradient,
    Bind,
    Body,
    Buffer,
    Convolution,
    If,
    Loop,
    Map,
    MaskTiles,
    Module,
    Nest,
    Op,
    Product,
    Reduce,
    Repeat,
    Scan,
    Step,
    Store,
    While,
    wide,
)
from ingot.lowering.memory import nested, touched

WithEpilogue: TypeAlias = Product | Convolution | Attention
# Steps that need not run if nobody reads what they write.
_WITHOUT_EFFECTS = (Product, Convolution, Attention, MaskTiles, AttentionGradient, Scan)

# Fewer rows than this are not worth giving up the parallel work inside of them.
FEW_ROWS = 8
LONG_ROW = 1 << 16
# A body longer than this is left alone: C compilers spill.
LONG_BODY = 160


def fuse(module: Module) -> Module:
    buffers = dict(module.buffers)
    steps = _fused(list(module.steps), buffers, module, {})
    steps = [along_memory(step) if isinstance(step, Map) else step for step in steps]
    return replace(module, steps=tuple(steps), buffers=buffers)


def _fused(steps: list[Step], buffers: dict[str, Buffer], module: Module, outside: dict[str, int]) -> list[Step]:
    """`outside` counts reads by steps around this list."""
    steps = _without_dead(steps, buffers, outside)
    steps = [_inside(step, buffers, module, steps, outside) for step in steps]
    steps = _epilogues(steps, buffers, outside)
    steps = _joints(steps, outside, buffers)
    steps = _without_dead(steps, buffers, outside)
    steps = _rows(steps, buffers, module, outside)
    return [_collapsed(step) for step in steps]


def _inside(
    step: Step, buffers: dict[str, Buffer], module: Module, around: Sequence[Step], outside: dict[str, int]
) -> Step:
    """Branches and loops are fused within themselves; what they write, others may read."""
    if not nested(step):
        return step
    seen: dict[str, int] = dict(outside)
    for other in (*around, step):
        r, w = touched(other)
        if other is step:
            continue
        for name in r | w:
            seen[name] = seen.get(name, 0) + 1
    # A loop reads what it wrote the time before.
    own, _ = touched(step)
    for name in own:
        seen[name] = seen.get(name, 0) + 1
    match step:
        case If():
            return replace(
                step,
                then=tuple(_fused(list(step.then), buffers, module, seen)),
                otherwise=tuple(_fused(list(step.otherwise), buffers, module, seen)),
            )
        case While():
            return replace(
                step,
                test=tuple(_fused(list(step.test), buffers, module, seen)),
                steps=tuple(_fused(list(step.steps), buffers, module, seen)),
            )
        case Repeat():
            return replace(step, steps=tuple(_fused(list(step.steps), buffers, module, seen)))
    return step


# ---------------------------------------------------------------------- who reads what


def _readers(steps: Sequence[Step], outside: dict[str, int]) -> Counter[str]:
    """How many steps read each buffer."""
    count: Counter[str] = Counter(outside)
    for step in steps:
        count.update(touched(step)[0])
    return count


def _private(name: str, buffers: dict[str, Buffer]) -> bool:
    return buffers[name].kind == "temporary"


def _without_dead(steps: Sequence[Step], buffers: dict[str, Buffer], outside: dict[str, int]) -> list[Step]:
    """Without stores to temporaries that nobody reads, and without steps that store nothing or visit no point."""
    needed = set(outside)
    kept: list[Step] = []
    for step in reversed(steps):
        written = touched(step)[1]
        if written and not nested(step) and all(buffers[name].size == 0 for name in written):
            continue
        if isinstance(step, (Map, Reduce)):
            stores = tuple(s for s in step.stores if s.buffer in needed or not _private(s.buffer, buffers))
            if not stores or any(loop.extent == 0 for loop in step.loops):
                continue
            if len(stores) < len(step.stores):
                step = _with_stores(step, stores)
        elif isinstance(step, _WITHOUT_EFFECTS):
            _, writes = touched(step)
            if not any(name in needed or not _private(name, buffers) for name in writes):
                continue
            if isinstance(step, Attention):
                unread = {
                    s for s in (step.lse, step.top) if s and s.buffer not in needed and _private(s.buffer, buffers)
                }
                lse, top = (None if s in unread else s for s in (step.lse, step.top))
                step = replace(step, lse=lse, top=top)
        needed |= touched(step)[0]
        if nested(step):
            needed |= touched(step)[1]
        kept.append(step)
    return kept[::-1]


def _with_stores(step: Map | Reduce, stores: Sequence[Store]) -> Map | Reduce:
    """The step with some of its stores, and only the results that they need."""
    used = sorted({s.result for s in stores})
    body = pruned(Body(step.body.ops, tuple(step.body.results[r] for r in used)))
    moved = tuple(replace(s, result=used.index(s.result)) for s in stores)
    if isinstance(step, Map):
        return replace(step, body=body, stores=moved)
    return replace(step, body=body, stores=moved, kinds=tuple(step.kinds[r] for r in used))


def _may_move(step: Step, over: Sequence[Step]) -> bool:
    """Whether a step may run before others instead of after them."""
    r, w = touched(step)
    bound = {other.symbol for other in over if isinstance(other, Bind)}
    if bound and bound & _symbols(step):
        return False
    for other in over:
        other_r, other_w = touched(other)
        if r & other_w or w & (other_r | other_w):
            return False
    return True


def _symbols(step: Step) -> set[str]:
    """The sizes that a step is told by steps before it, loops' variables among them."""
    assert isinstance(step, (Map, Reduce))
    loops = (*step.loops, *step.over) if isinstance(step, Reduce) else step.loops
    sizes: list[object] = [*(loop.extent for loop in loops), *(store.index for store in step.stores)]
    sizes += [op.attribute.index if isinstance(op.attribute, Access) else op.attribute for op in step.body.ops]
    return {s.name for size in sizes if isinstance(size, Expr) for s in size.symbols}


# ---------------------------------------------------------------------- epilogues


def _epilogues(steps: Sequence[Step], buffers: dict[str, Buffer], outside: dict[str, int]) -> list[Step]:
    done: list[Step] = []
    counts = _readers(steps, outside)
    for step in steps:
        if isinstance(step, Map) and not step.serial:
            place = _writer(step, done)
            if place is not None:
                target = done[place]
                assert isinstance(target, WithEpilogue)
                # An epilogue runs while other tiles still read their operands: it may overwrite none of them.
                apart = not touched(step)[1] & set().union(*touched(target))
                aside = touched(target)[1] - touched(target.epilogue)[1]
                apart = apart and not touched(step)[0] & aside and _may_move(step, done[place + 1 :])
                joined = _absorb(target, step, counts, buffers) if apart else None
                if joined is not None:
                    done[place] = joined
                    continue
        done.append(step)
    return done


def _writer(step: Map, done: Sequence[Step]) -> int | None:
    """The last product that writes what the step reads."""
    r, _ = touched(step)
    for place in range(len(done) - 1, -1, -1):
        other = done[place]
        if isinstance(other, (Product, Convolution, Attention)) and touched(other)[1] & r:
            return place
    return None


def _absorb(target: WithEpilogue, step: Map, counts: Counter[str], buffers: dict[str, Buffer]) -> WithEpilogue | None:
    old = target.epilogue
    lead = 0 if isinstance(target, Convolution) else len(target.batch)
    names = _matched(old, step.loops, lead)
    if names is None or len(old.body.ops) + len(step.body.ops) > LONG_BODY:
        return None
    at = {s.buffer: (substitute(s.index, names), s.result) for s in old.stores}
    if any(a.buffer in at and a.index != at[a.buffer][0] for a in reads(step.body)):
        return None
    ops, results = rewrite(old.body, symbols=names)

    def known(op: Op, operands: tuple[int, ...], ops: Recorder) -> int | None:
        if isinstance(op.attribute, Access) and op.attribute.buffer in at:
            value = results[at[op.attribute.buffer][1]]
            return value
        return None

    ops, added = rewrite(step.body, into=ops, replace=known)
    used = touched(step)[0]
    kept = [s for s in old.stores if counts[s.buffer] > (s.buffer in used) or not _private(s.buffer, buffers)]
    stores = [Store(s.buffer, substitute(s.index, names), number) for number, s in enumerate(kept)]
    stores += [replace(s, result=len(kept) + s.result) for s in step.stores]
    body = ops.finish([*(results[s.result] for s in kept), *added])
    counts.subtract(used & set(at))
    return replace(target, epilogue=Map(step.loops, body, tuple(stores), step.origin))


def _matched(old: Map, loops: Sequence[Loop], lead: int) -> dict[str, Size] | None:
    """The epilogue's variables in terms of other loops that visit the same points in the same order."""
    batch, rows, column = old.loops[:lead], old.loops[lead:-1], old.loops[-1]
    names: dict[str, Size] = {loop.variable: 0 for loop in (*batch, *rows) if loop.extent == 1}
    batch, rows = (tuple(loop for loop in group if loop.extent != 1) for group in (batch, rows))
    lead = len(batch)
    if len(loops) < lead + 1 or loops[-1].extent != column.extent:
        return None
    names[column.variable] = symbol(loops[-1].variable, below=column.extent)
    for mine, theirs in zip(batch, loops, strict=False):
        if mine.extent != theirs.extent:
            return None
        names[mine.variable] = symbol(theirs.variable, below=theirs.extent)
    others = loops[lead:-1]
    if [loop.extent for loop in rows] == [loop.extent for loop in others]:
        for mine, theirs in zip(rows, others, strict=True):
            names[mine.variable] = symbol(theirs.variable, below=theirs.extent)
        return names
    if len(rows) != 1 or product([loop.extent for loop in others]) != rows[0].extent:
        return None
    flat: Size = 0
    for loop in others:
        flat = flat * loop.extent + symbol(loop.variable, below=loop.extent)
    names[rows[0].variable] = flat
    return names


# ---------------------------------------------------------------------- joints


def _joints(steps: Sequence[Step], outside: dict[str, int], buffers: dict[str, Buffer]) -> list[Step]:
    done: list[Step] = []
    for step in steps:
        if isinstance(step, Map) and not step.serial and done:
            place = _partner(step, done)
            if place is not None:
                first = done[place]
                assert isinstance(first, Map)
                done[place] = _joined(first, step)
                continue
        done.append(step)
    return done


def _partner(step: Map, done: Sequence[Step]) -> int | None:
    """An earlier Map over the same loops whose results this one reads only where they were just written."""
    r, _ = touched(step)
    for place in range(len(done) - 1, -1, -1):
        other = done[place]
        if isinstance(other, Map) and touched(other)[1] & r:
            if other.serial or [x.extent for x in other.loops] != [x.extent for x in step.loops]:
                return None
            at = {s.buffer: s.index for s in other.stores}
            same = all(a.index == at[a.buffer] and a.mask is None for a in reads(step.body) if a.buffer in at)
            same = same and _overwrites_in_place(step, other)
            short = len(other.body.ops) + len(step.body.ops) <= LONG_BODY
            return place if same and short and _may_move(step, done[place + 1 :]) else None
        if touched(other)[1] & r:
            return None
    return None


def _overwrites_in_place(step: Map, other: Map) -> bool:
    """Whether the step writes to memory that `other` uses only at the point where `other` uses it."""
    used = [(a.buffer, a.index) for a in reads(other.body)] + [(s.buffer, s.index) for s in other.stores]
    return all(index == s.index for s in step.stores for buffer, index in used if buffer == s.buffer)


def _joined(first: Map, second: Map) -> Map:
    at = {s.buffer: s.result for s in first.stores}
    ops, results = rewrite(first.body)

    def known(op: Op, operands: tuple[int, ...], ops: Recorder) -> int | None:
        if isinstance(op.attribute, Access) and op.attribute.buffer in at:
            return results[at[op.attribute.buffer]]
        return None

    ops, added = rewrite(second.body, into=ops, replace=known)
    stores = (*first.stores, *(replace(s, result=s.result + len(results)) for s in second.stores))
    return replace(first, body=ops.finish([*results, *added]), stores=stores)


# ---------------------------------------------------------------------- rows


def _rows(steps: Sequence[Step], buffers: dict[str, Buffer], module: Module, outside: dict[str, int]) -> list[Step]:
    groups: list[list[Step]] = []
    for step in steps:
        if isinstance(step, (Map, Reduce)) and not (isinstance(step, Map) and step.serial):
            place = _row_partner(step, groups, module)
            if place is not None:
                groups[place].append(step)
                continue
        groups.append([step])
    counts = _readers(steps, outside)
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
            if _may_move(step, later):
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
    def hint(size: Size) -> int:
        return (
            size
            if isinstance(size, int)
            else evaluate(size, {s.name: module.hints.get(s.name, 8) for s in size.symbols})
        )

    count = hint(product([loop.extent for loop in steps[0].loops[:outer]]))
    row = max(
        hint(product([loop.extent for loop in (*s.loops[outer:], *(s.over if isinstance(s, Reduce) else ()))]))
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
            mine = _private(name, buffers) and alone and name not in local
            if mine and size is not None and within(substitute(store.index, zero), size):
                local.append(name)
                buffers[name] = Buffer(name, wide(buffers[name].dtype), () if size == 1 else (size,))
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


# ---------------------------------------------------------------------- collapse


def _collapsed(step: Step) -> Step:
    if isinstance(step, Map):
        loops, (body,), stores = _collapse(step.loops, [step.body], [step.stores], 0)
        return replace(step, loops=loops, body=body, stores=stores[0])
    if isinstance(step, Reduce):
        loops, (body,), stores = _collapse(step.loops, [step.body], [step.stores], 0)
        over = step.over
        if not any(kind.startswith("arg") for kind in step.kinds):
            over, (body,), _ = _collapse(over, [body], [()], 0)
        return replace(step, loops=loops, over=over, body=body, stores=stores[0])
    if isinstance(step, Nest):
        bodies, stores = [s.body for s in step.steps], [s.stores for s in step.steps]
        outer, bodies, stores = _collapse(step.outer, bodies, stores, 0)
        inner = tuple(
            replace(s, loops=(*outer, *s.loops[len(step.outer) :]), body=b, stores=w)
            for s, b, w in zip(step.steps, bodies, stores, strict=True)
        )
        return replace(step, outer=outer, steps=inner)
    return step


Stores = tuple[Store, ...]


def _collapse(
    loops: tuple[Loop, ...], bodies: list[Body], stores: list[Stores], start: int
) -> tuple[tuple[Loop, ...], list[Body], list[Stores]]:
    """Neighbouring loops i < a, j < b become one t < a·b where every index has i and j only as i·b + j."""
    number = len(loops) - 2
    while number >= start:
        first, second = loops[number], loops[number + 1]
        indices = [s.index for group in stores for s in group]
        for body in bodies:
            for op in body.ops:
                index = op.attribute.index if isinstance(op.attribute, Access) else op.attribute
                if isinstance(index, Expr):
                    indices.append(index)
        if all(_one(index, first, second) for index in indices):
            joint = Loop(first.variable, first.extent * second.extent)
            names: dict[str, Size] = {
                first.variable: 0,
                second.variable: symbol(first.variable, below=joint.extent),
            }
            loops = (*loops[:number], joint, *loops[number + 2 :])
            bodies = [_renamed(body, names) for body in bodies]
            stores = [tuple(replace(s, index=substitute(s.index, names)) for s in group) for group in stores]
        number -= 1
    return loops, bodies, stores


def _one(index: Size, first: Loop, second: Loop) -> bool:
    a, b = coefficient_of(index, first.variable), coefficient_of(index, second.variable)
    return a is not None and b is not None and a == b * second.extent


def _renamed(body: Body, names: dict[str, Size]) -> Body:
    ops, results = rewrite(body, symbols=names)
    return ops.finish(results)
