"""Collapsing: loops that are contiguous in memory become one."""

from __future__ import annotations

from dataclasses import replace

from ingot.lowering.index_expr import Expr, Size, coefficient_of, substitute, symbol
from ingot.lowering.loop_body import rewrite
from ingot.lowering.loop_ir import Attention, Body, Load, Loop, LoopNest, Map, Reduce, Stmt, Store, WithEpilogue


def collapse_loops(step: Stmt) -> Stmt:
    if isinstance(step, Map):
        loops, (body,), stores = _collapse(step.loops, [step.body], [step.stores], 0)
        return replace(step, loops=loops, body=body, stores=stores[0])
    if isinstance(step, Reduce):
        loops, (body,), stores = _collapse(step.loops, [step.body], [step.stores], 0)
        return _collapse_reduction(replace(step, loops=loops, body=body, stores=stores[0]))
    if isinstance(step, LoopNest):
        bodies, stores = [s.body for s in step.steps], [s.stores for s in step.steps]
        outer, bodies, stores = _collapse(step.outer, bodies, stores, 0)
        inner = tuple(
            replace(s, loops=(*outer, *s.loops[len(step.outer) :]), body=b, stores=w)
            for s, b, w in zip(step.steps, bodies, stores, strict=True)
        )
        inner = tuple(_collapse_reduction(s) if isinstance(s, Reduce) else s for s in inner)
        return replace(step, outer=outer, steps=inner)
    if isinstance(step, WithEpilogue) and not isinstance(step, Attention):
        old, lead = step.epilogue, len(step.batch_loops())
        rows, (body,), stores = _collapse(old.loops[lead:-1], [old.body], [old.stores], 0)
        loops = (*old.loops[:lead], *rows, old.loops[-1])
        return step.replace_epilogue(replace(old, loops=loops, body=body, stores=stores[0]))
    return step


def _collapse_reduction(step: Reduce) -> Reduce:
    if any(kind.startswith("arg") for kind in step.kinds):
        return step  # the place is counted along the loops
    over, (body,), _ = _collapse(step.over, [step.body], [()], 0)
    return replace(step, over=over, body=body)


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
                index = op.attribute.index if isinstance(op.attribute, Load) else op.attribute
                if isinstance(index, Expr):
                    indices.append(index)
        if all(_one(index, first, second) for index in indices):
            joint = Loop(first.variable, first.extent * second.extent)
            names: dict[str, Size] = {
                first.variable: 0,
                second.variable: symbol(first.variable, below=joint.extent),
            }
            loops = (*loops[:number], joint, *loops[number + 2 :])
            bodies = [_rename(body, names) for body in bodies]
            stores = [tuple(replace(s, index=substitute(s.index, names)) for s in group) for group in stores]
        number -= 1
    return loops, bodies, stores


def _one(index: Size, first: Loop, second: Loop) -> bool:
    a, b = coefficient_of(index, first.variable), coefficient_of(index, second.variable)
    return a is not None and b is not None and a == b * second.extent


def _rename(body: Body, names: dict[str, Size]) -> Body:
    ops, results = rewrite(body, symbols=names)
    return ops.finish(results)
