"""Heads that share their keys, one query each: they become the queries of one head.

When a model decodes, each head has one query. Where a group of heads reads the same keys and values, their queries fill
the rows of one tile, and the keys are read once for all of them.
"""

from __future__ import annotations

from dataclasses import replace

from ingot.lowering.index_expr import Size, coefficient_of, depends_on, substitute, symbol
from ingot.lowering.loop_body import rewrite
from ingot.lowering.loop_ir import Attention, Body, Loop, Map, MatrixView, Store
from ingot.targets.cuda.schedule.attention_tiles import FRAGMENT

_MEMBER = "member"


def pack_grouped_heads(step: Attention) -> Attention:
    """The step with the heads of each group as its queries, or as it is."""
    if step.queries != 1 or step.causal or not step.batch or not isinstance(step.batch[-1].extent, int):
        return step
    if any(op.name == "bounds_check" for op in step.epilogue.body.ops):
        return step  # a store may name the body's values, which are not renumbered
    heads = step.batch[-1].extent
    for group in range(min(heads, FRAGMENT), 1, -1):
        packed = _pack(step, group) if heads % group == 0 else None
        if packed is not None:
            return packed
    return step


def _pack(step: Attention, group: int) -> Attention | None:
    *outer, loop = step.batch
    assert isinstance(loop.extent, int)
    heads = Loop(loop.variable, loop.extent // group)

    def place(member: Size) -> dict[str, Size]:
        """What a head is in the packed step."""
        return {loop.variable: symbol(heads.variable, below=heads.extent) * group + member}

    members = place(symbol(_MEMBER, below=group))
    shared = [step.k.offset, step.v.offset, *([step.tiles.offset] if step.tiles else [])]
    if any(depends_on(substitute(offset, members), _MEMBER) for offset in shared):
        return None
    rows = coefficient_of(substitute(step.q.offset, members), _MEMBER)
    if rows is None:
        return None
    pairs = {**place(symbol("i", below=group)), "i": 0}
    first = place(0)
    return replace(
        step,
        batch=(*outer, heads),
        queries=group,
        q=MatrixView(step.q.buffer, substitute(step.q.offset, first), rows, step.q.columns),
        k=replace(step.k, offset=substitute(step.k.offset, first)),
        v=replace(step.v, offset=substitute(step.v.offset, first)),
        score=_rename(step.score, pairs) if step.score else None,
        mask=_rename(step.mask, pairs) if step.mask else None,
        tiles=replace(step.tiles, offset=substitute(step.tiles.offset, first)) if step.tiles else None,
        lse=_move(step.lse, pairs) if step.lse else None,
        top=_move(step.top, pairs) if step.top else None,
        epilogue=_pack_epilogue(step, heads, group),
    )


def _pack_epilogue(step: Attention, heads: Loop, group: int) -> Map:
    epilogue = step.epilogue
    *rows, column = epilogue.loops[len(step.batch) :]
    member = symbol(_MEMBER, below=group)
    names: dict[str, Size] = {heads.variable: symbol(heads.variable, below=heads.extent) * group + member}
    names |= {row.variable: 0 for row in rows}
    loops = (*step.batch[:-1], heads, Loop(_MEMBER, group), column)
    stores = tuple(_move(store, names) for store in epilogue.stores)
    return replace(epilogue, loops=loops, body=_rename(epilogue.body, names), stores=stores)


def _rename(body: Body, names: dict[str, Size]) -> Body:
    ops, results = rewrite(body, symbols=names)
    return ops.finish(results)


def _move(store: Store, names: dict[str, Size]) -> Store:
    return replace(store, index=substitute(store.index, names))
