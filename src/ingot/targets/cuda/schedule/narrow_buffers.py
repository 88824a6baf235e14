"""Buffers of float32 that hold nothing but halves become buffers of halves.

    before                                       after
    Map  cast(x + y, bfloat16) → t (float32)     Map  cast(x + y, bfloat16) → t (bfloat16)

A norm computes in float32 what its input holds in bfloat16: lowering then stores the input as it is computed in. What
is rounded already loses nothing in the narrower buffer, and half as many bytes are stored and read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ingot.lowering.dependence import reads_and_writes
from ingot.lowering.dtypes import HALVES, wide
from ingot.lowering.loop_ir import Body, LoopNest, Map, Reduce, Stmt, Store, WithEpilogue
from ingot.lowering.loop_module import Module


def narrow_buffers(module: Module) -> Module:
    """Gives temporaries the dtype that all their values are rounded to; computes the same."""
    fixed = {name for name, buffer in module.buffers.items() if buffer.kind != "temporary"}
    found: dict[str, set[str | None]] = {}  # what the values of a buffer are rounded to
    for step in module.steps:
        own = set().union(*reads_and_writes(step))
        maps = list(_list_maps(step))
        stored = {store.buffer for one in maps for store in one.stores}
        if isinstance(step, WithEpilogue):
            used = own - set().union(*reads_and_writes(step.epilogue))
            fixed |= used | step.operand_buffers()
        elif not isinstance(step, (Map, Reduce, LoopNest)):
            fixed |= own
        fixed |= reads_and_writes(step)[1] - stored
        if isinstance(step, LoopNest):
            fixed |= {*step.local, *(s.buffer for one in step.steps if isinstance(one, Reduce) for s in one.stores)}
        for one in maps:
            for store in one.stores:
                found.setdefault(store.buffer, set()).add(_find_rounding(one.body, store))
    buffers = dict(module.buffers)
    for name, kinds in found.items():
        half = next(iter(kinds))
        if name not in fixed and len(kinds) == 1 and half is not None and wide(half) == buffers[name].dtype:
            buffers[name] = replace(buffers[name], dtype=half)
    return module if buffers == module.buffers else replace(module, buffers=buffers)


def _list_maps(step: Stmt) -> Iterator[Map]:
    """The Maps of a step."""
    match step:
        case Map():
            yield step
        case LoopNest():
            yield from (one for one in step.steps if isinstance(one, Map))
        case WithEpilogue():
            yield step.epilogue


def _find_rounding(body: Body, store: Store) -> str | None:
    """The half dtype that a stored value is rounded to."""
    op = body.ops[body.results[store.result]]
    rounds = op.name == "cast" and op.attribute in HALVES and store.mode == "set"
    return str(op.attribute) if rounds else None
