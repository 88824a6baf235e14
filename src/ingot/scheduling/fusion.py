"""Fusion: fewer passes over memory.

    dead_steps        steps whose results are unused are removed (dependence.py)
    epilogue_fusion   a Map that reads a product where it is written becomes the product's epilogue
    map_fusion        Maps over the same loops, one reading the other where it writes, become one
    row_fusion        Reduces and Maps that share their outer loops become a LoopNest (row_fusion.py)
    loop_collapse     loops that are contiguous in memory become one (loop_collapse.py)

Each is a pass over modules that computes the same; `fusion_passes` lists them in order. Nothing here looks at
operators: only at loops, reads and writes. How far fusion goes depends on the target: it sets the `FusionLimits`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from ingot.lowering.dependence import (
    History,
    child_blocks,
    count_readers,
    eliminate_dead_steps,
    is_temporary,
    map_child_blocks,
    reads_and_writes,
)
from ingot.lowering.index_expr import Size, product, substitute, symbol
from ingot.lowering.loop_body import BodyBuilder, reads, rewrite
from ingot.lowering.loop_ir import Buffer, Load, Loop, Map, Op, Stmt, Store, WithEpilogue
from ingot.lowering.loop_module import Module
from ingot.scheduling.fusion_limits import FusionLimits
from ingot.scheduling.loop_collapse import collapse_loops
from ingot.scheduling.row_fusion import fuse_rows

# What a pass does with one list of steps, of the module or of a branch or loop. `outside` counts reads by other lists.
ListPass: TypeAlias = Callable[[list[Stmt], dict[str, Buffer], Module, dict[str, int]], list[Stmt]]


def fuse(module: Module, limits: FusionLimits) -> Module:
    """The module after every pass of fusion."""
    for _, run in fusion_passes(limits):
        module = run(module)
    return module


def _on_each_list(run: ListPass) -> Callable[[Module], Module]:
    """A pass over lists of steps as a pass over modules: on the module's own list, and within branches and loops."""

    def transform(module: Module) -> Module:
        buffers = dict(module.buffers)
        steps = _transform(run, list(module.steps), buffers, module, {})
        return replace(module, steps=tuple(steps), buffers=buffers)

    return transform


def _transform(
    run: ListPass, steps: list[Stmt], buffers: dict[str, Buffer], module: Module, outside: dict[str, int]
) -> list[Stmt]:
    steps = run(steps, buffers, module, outside)
    if not any(map(child_blocks, steps)):
        return steps
    # Others may read what a branch or loop writes.
    used: Counter[str] = Counter(outside)
    for step in steps:
        used.update(set().union(*reads_and_writes(step)))

    def fuse_inner(step: Stmt, inner: tuple[Stmt, ...]) -> list[Stmt]:
        r, w = reads_and_writes(step)
        seen = used.copy()
        seen.subtract(w - r)  # a loop reads what it wrote the time before
        around = {name: count for name, count in seen.items() if count > 0}
        return _transform(run, list(inner), buffers, module, around)

    return [map_child_blocks(step, partial(fuse_inner, step)) for step in steps]


# ---------------------------------------------------------------------- epilogues


def _epilogues(
    limits: FusionLimits, steps: Sequence[Stmt], buffers: dict[str, Buffer], module: Module, outside: dict[str, int]
) -> list[Stmt]:
    done = History()
    counts = count_readers(steps, outside)
    for step in steps:
        if isinstance(step, Map) and not step.collides:
            place = done.last_writer(reads_and_writes(step)[0], (WithEpilogue,))
            if place is not None:
                target = done[place]
                assert isinstance(target, WithEpilogue)
                # An epilogue runs while other tiles still read their operands: it may overwrite none of them.
                apart = not reads_and_writes(step)[1] & set().union(*reads_and_writes(target))
                aside = reads_and_writes(target)[1] - reads_and_writes(target.epilogue)[1]
                apart = apart and not reads_and_writes(step)[0] & aside and done.may_follow(step, place)
                joined = _absorb(target, step, counts, buffers, limits) if apart else None
                if joined is not None:
                    done.replace(place, joined)
                    continue
        done.append(step)
    return done.steps()


def _absorb(
    target: WithEpilogue, step: Map, counts: Counter[str], buffers: dict[str, Buffer], limits: FusionLimits
) -> WithEpilogue | None:
    old = target.epilogue
    names = match_loops(old, step.loops, len(target.batch_loops()))
    if names is None or len(old.body.ops) + len(step.body.ops) > limits.body_length:
        return None
    at = {s.buffer: (substitute(s.index, names), s.result) for s in old.stores}
    if any(a.buffer in at and a.index != at[a.buffer][0] for a in reads(step.body)):
        return None
    ops, results = rewrite(old.body, symbols=names)

    def substitute_known(op: Op, operands: tuple[int, ...], ops: BodyBuilder) -> int | None:
        if isinstance(op.attribute, Load) and op.attribute.buffer in at:
            value = results[at[op.attribute.buffer][1]]
            mask = op.attribute.mask  # where it is false, the value is 0
            return value if mask is None else ops.where(mask, value, ops.const(0, op.dtype))
        return None

    ops, added = rewrite(step.body, into=ops, replace=substitute_known)
    used = reads_and_writes(step)[0]
    kept = [s for s in old.stores if counts[s.buffer] > (s.buffer in used) or not is_temporary(s.buffer, buffers)]
    stores = [Store(s.buffer, substitute(s.index, names), number) for number, s in enumerate(kept)]
    stores += [replace(s, result=len(kept) + s.result) for s in step.stores]
    body = ops.finish([*(results[s.result] for s in kept), *added])
    counts.subtract(used & set(at))
    return target.replace_epilogue(Map(step.loops, body, tuple(stores), step.origin))


def match_loops(old: Map, loops: Sequence[Loop], lead: int) -> dict[str, Size] | None:
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


def _joints(
    limits: FusionLimits, steps: Sequence[Stmt], buffers: dict[str, Buffer], module: Module, outside: dict[str, int]
) -> list[Stmt]:
    done = History()
    for step in steps:
        if isinstance(step, Map) and not step.collides:
            place = _partner(step, done, limits)
            if place is not None:
                first = done[place]
                assert isinstance(first, Map)
                done.replace(place, _join(first, step))
                continue
        done.append(step)
    return done.steps()


def _partner(step: Map, done: History, limits: FusionLimits) -> int | None:
    """The last step that writes what this one reads, if it is a Map over the same loops, and this one reads its results
    only where they were just written."""
    place = done.last_writer(reads_and_writes(step)[0])
    other = None if place is None else done[place]
    if place is None or not isinstance(other, Map) or other.collides:
        return None
    if [x.extent for x in other.loops] != [x.extent for x in step.loops]:
        return None
    at = {s.buffer: s.index for s in other.stores}
    same = all(a.index == at[a.buffer] and a.mask is None for a in reads(step.body) if a.buffer in at)
    same = same and _overwrites_in_place(step, other)
    short = len(other.body.ops) + len(step.body.ops) <= limits.body_length
    return place if same and short and done.may_follow(step, place) else None


def _overwrites_in_place(step: Map, other: Map) -> bool:
    """Whether the step writes to memory that `other` uses only at the point where `other` uses it."""
    used = [(a.buffer, a.index) for a in reads(other.body)] + [(s.buffer, s.index) for s in other.stores]
    return all(index == s.index for s in step.stores for buffer, index in used if buffer == s.buffer)


def _join(first: Map, second: Map) -> Map:
    at = {s.buffer: s.result for s in first.stores}
    ops, results = rewrite(first.body)

    def substitute_known(op: Op, operands: tuple[int, ...], ops: BodyBuilder) -> int | None:
        if isinstance(op.attribute, Load) and op.attribute.buffer in at:
            return results[at[op.attribute.buffer]]
        return None

    ops, added = rewrite(second.body, into=ops, replace=substitute_known)
    stores = (*first.stores, *(replace(s, result=s.result + len(results)) for s in second.stores))
    return replace(first, body=ops.finish([*results, *added]), stores=stores)


# ---------------------------------------------------------------------- the passes in order


_without_dead = _on_each_list(lambda steps, buffers, module, outside: eliminate_dead_steps(steps, buffers, outside))
_collapsed = _on_each_list(lambda steps, buffers, module, outside: [collapse_loops(step) for step in steps])


def fusion_passes(limits: FusionLimits) -> tuple[tuple[str, Callable[[Module], Module]], ...]:
    """The passes by name, in order, as far as a target's limits let them go."""
    return (
        ("dead_steps", _without_dead),
        ("epilogue_fusion", _on_each_list(partial(_epilogues, limits))),
        ("map_fusion", _on_each_list(partial(_joints, limits))),
        ("dead_steps", _without_dead),
        ("row_fusion", _on_each_list(partial(fuse_rows, limits))),
        ("loop_collapse", _collapsed),
    )
