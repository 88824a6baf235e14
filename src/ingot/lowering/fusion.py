"""Fusion: fewer passes over memory.

    epilogues   a Map that reads a product where it is written becomes the product's epilogue
    joints      Maps over the same loops, one reading the other where it writes, become one
    rows        Reduces and Maps that share their outer loops become a Nest (rows.py)
    collapse    loops that memory does not tell apart become one (collapse.py)

`fuse` returns a Module that computes the same. Nothing here looks at operators: only at loops, reads and writes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

from ingot.lowering.access import along_memory, in_blocks
from ingot.lowering.body import Recorder, reads, rewrite
from ingot.lowering.collapse import collapsed
from ingot.lowering.expr import Size, product, substitute, symbol
from ingot.lowering.ir import (
    Access,
    Attention,
    Buffer,
    Convolution,
    If,
    Loop,
    Map,
    Module,
    Op,
    Product,
    Repeat,
    Step,
    Store,
    While,
)
from ingot.lowering.memory import nested, touched
from ingot.lowering.rows import fuse_rows
from ingot.lowering.uses import may_move, private, readers, without_dead

WithEpilogue: TypeAlias = Product | Convolution | Attention

# A body longer than this is left alone: C compilers spill.
LONG_BODY = 160


def fuse(module: Module) -> Module:
    buffers = dict(module.buffers)
    steps = _fused(list(module.steps), buffers, module, {})
    steps = [in_blocks(along_memory(step)) if isinstance(step, Map) else step for step in steps]
    return replace(module, steps=tuple(steps), buffers=buffers)


def _fused(steps: list[Step], buffers: dict[str, Buffer], module: Module, outside: dict[str, int]) -> list[Step]:
    """`outside` counts reads by steps around this list."""
    steps = without_dead(steps, buffers, outside)
    steps = [_inside(step, buffers, module, steps, outside) for step in steps]
    steps = _epilogues(steps, buffers, outside)
    steps = _joints(steps, outside, buffers)
    steps = without_dead(steps, buffers, outside)
    steps = fuse_rows(steps, buffers, module, outside)
    return [collapsed(step) for step in steps]


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


# ---------------------------------------------------------------------- epilogues


def _epilogues(steps: Sequence[Step], buffers: dict[str, Buffer], outside: dict[str, int]) -> list[Step]:
    done: list[Step] = []
    counts = readers(steps, outside)
    for step in steps:
        if isinstance(step, Map) and not step.serial:
            place = _writer(step, done)
            if place is not None:
                target = done[place]
                assert isinstance(target, WithEpilogue)
                # An epilogue runs while other tiles still read their operands: it may overwrite none of them.
                apart = not touched(step)[1] & set().union(*touched(target))
                aside = touched(target)[1] - touched(target.epilogue)[1]
                apart = apart and not touched(step)[0] & aside and may_move(step, done[place + 1 :])
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
    names = matched(old, step.loops, lead)
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
    kept = [s for s in old.stores if counts[s.buffer] > (s.buffer in used) or not private(s.buffer, buffers)]
    stores = [Store(s.buffer, substitute(s.index, names), number) for number, s in enumerate(kept)]
    stores += [replace(s, result=len(kept) + s.result) for s in step.stores]
    body = ops.finish([*(results[s.result] for s in kept), *added])
    counts.subtract(used & set(at))
    return replace(target, epilogue=Map(step.loops, body, tuple(stores), step.origin))


def matched(old: Map, loops: Sequence[Loop], lead: int) -> dict[str, Size] | None:
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
            return place if same and short and may_move(step, done[place + 1 :]) else None
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
