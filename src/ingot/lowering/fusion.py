"""Fusion: fewer passes over memory.

    dead_steps        steps that nobody needs are removed (uses.py)
    epilogue_fusion   a Map that reads a product where it is written becomes the product's epilogue
    map_fusion        Maps over the same loops, one reading the other where it writes, become one
    row_fusion        Reduces and Maps that share their outer loops become a Nest (rows.py)
    loop_collapse     loops that memory does not tell apart become one (collapse.py)
    loop_order        the innermost loop is the one that runs along memory (access.py)

Each is a pass over modules that computes the same; `FUSION` lists them in order. Nothing here looks at operators: only
at loops, reads and writes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
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
from ingot.lowering.uses import History, private, readers, without_dead

WithEpilogue: TypeAlias = Product | Convolution | Attention

# A body longer than this is left alone: C compilers spill.
LONG_BODY = 160


# What a pass does with one list of steps, of the module or of a branch or loop. `outside` counts reads by other lists.
ListPass: TypeAlias = Callable[[list[Step], dict[str, Buffer], Module, dict[str, int]], list[Step]]


def fuse(module: Module) -> Module:
    """The module after every pass of FUSION."""
    for _, run in FUSION:
        module = run(module)
    return module


def _on_each_list(run: ListPass) -> Callable[[Module], Module]:
    """A pass over lists of steps as a pass over modules: on the module's own list, and within branches and loops."""

    def transform(module: Module) -> Module:
        buffers = dict(module.buffers)
        steps = _transformed(run, list(module.steps), buffers, module, {})
        return replace(module, steps=tuple(steps), buffers=buffers)

    return transform


def _transformed(
    run: ListPass, steps: list[Step], buffers: dict[str, Buffer], module: Module, outside: dict[str, int]
) -> list[Step]:
    steps = run(steps, buffers, module, outside)
    if not any(map(nested, steps)):
        return steps
    # Others may read what a branch or loop writes.
    used: Counter[str] = Counter(outside)
    for step in steps:
        used.update(set().union(*touched(step)))

    def inside(step: Step, inner: tuple[Step, ...]) -> tuple[Step, ...]:
        r, w = touched(step)
        seen = used.copy()
        seen.subtract(w - r)  # a loop reads what it wrote the time before
        around = {name: count for name, count in seen.items() if count > 0}
        return tuple(_transformed(run, list(inner), buffers, module, around))

    done: list[Step] = []
    for step in steps:
        match step:
            case If():
                step = replace(step, then=inside(step, step.then), otherwise=inside(step, step.otherwise))
            case While():
                step = replace(step, test=inside(step, step.test), steps=inside(step, step.steps))
            case Repeat():
                step = replace(step, steps=inside(step, step.steps))
        done.append(step)
    return done


# ---------------------------------------------------------------------- epilogues


def _epilogues(steps: Sequence[Step], buffers: dict[str, Buffer], outside: dict[str, int]) -> list[Step]:
    done = History()
    counts = readers(steps, outside)
    for step in steps:
        if isinstance(step, Map) and not step.serial:
            place = done.last_writer(touched(step)[0], (Product, Convolution, Attention))
            if place is not None:
                target = done[place]
                assert isinstance(target, WithEpilogue)
                # An epilogue runs while other tiles still read their operands: it may overwrite none of them.
                apart = not touched(step)[1] & set().union(*touched(target))
                aside = touched(target)[1] - touched(target.epilogue)[1]
                apart = apart and not touched(step)[0] & aside and done.may_follow(step, place)
                joined = _absorb(target, step, counts, buffers) if apart else None
                if joined is not None:
                    done.replace(place, joined)
                    continue
        done.append(step)
    return done.steps()


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
            mask = op.attribute.mask  # where it is false, the value is 0
            return value if mask is None else ops.where(mask, value, ops.const(0, op.dtype))
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
    done = History()
    for step in steps:
        if isinstance(step, Map) and not step.serial:
            place = _partner(step, done)
            if place is not None:
                first = done[place]
                assert isinstance(first, Map)
                done.replace(place, _joined(first, step))
                continue
        done.append(step)
    return done.steps()


def _partner(step: Map, done: History) -> int | None:
    """The last step that writes what this one reads, if it is a Map over the same loops, and this one reads its results
    only where they were just written."""
    place = done.last_writer(touched(step)[0])
    other = None if place is None else done[place]
    if place is None or not isinstance(other, Map) or other.serial:
        return None
    if [x.extent for x in other.loops] != [x.extent for x in step.loops]:
        return None
    at = {s.buffer: s.index for s in other.stores}
    same = all(a.index == at[a.buffer] and a.mask is None for a in reads(step.body) if a.buffer in at)
    same = same and _overwrites_in_place(step, other)
    short = len(other.body.ops) + len(step.body.ops) <= LONG_BODY
    return place if same and short and done.may_follow(step, place) else None


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


# ---------------------------------------------------------------------- the passes in order


def _order_loops(module: Module) -> Module:
    steps = [in_blocks(along_memory(step)) if isinstance(step, Map) else step for step in module.steps]
    return replace(module, steps=tuple(steps))


_without_dead = _on_each_list(lambda steps, buffers, module, outside: without_dead(steps, buffers, outside))

FUSION: tuple[tuple[str, Callable[[Module], Module]], ...] = (
    ("dead_steps", _without_dead),
    ("epilogue_fusion", _on_each_list(lambda steps, buffers, module, outside: _epilogues(steps, buffers, outside))),
    ("map_fusion", _on_each_list(lambda steps, buffers, module, outside: _joints(steps, outside, buffers))),
    ("dead_steps", _without_dead),
    ("row_fusion", _on_each_list(fuse_rows)),
    ("loop_collapse", _on_each_list(lambda steps, buffers, module, outside: [collapsed(step) for step in steps])),
    ("loop_order", _order_loops),
)
