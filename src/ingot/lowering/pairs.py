"""Pairs: two products or convolutions whose sums meet in one epilogue.

    before                                          after
    Product      x · w → t          784 × 512       Pair  x · w, and windows of z · v, then s·(…) + r·(…) → y
    Convolution  z ∗ v, … + t → y   784 × 512

A residual block that changes its size adds two convolutions. What the first one would write, and the second one read
again, is as large as the result and four times as wide where that is quantized: it stays in registers.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from ingot.lowering.body import Recorder, reads, rewrite
from ingot.lowering.expr import product, substitute
from ingot.lowering.fusion import LONG_BODY, matched
from ingot.lowering.ir import (
    BYTES,
    Access,
    Body,
    Buffer,
    Convolution,
    Map,
    Module,
    Op,
    Pair,
    Product,
    Store,
    rows_dtype,
)
from ingot.lowering.memory import touched
from ingot.lowering.uses import History, is_read_in_epilogue_only, private, readers

# Bytes of the two panels of weights that a tile reads: they stay in a core's own cache.
PANELS = 1 << 18


def pair(module: Module) -> Module:
    """Joins a product or convolution to the later one that alone reads its results, where it reads each of them once;
    computes the same."""
    counts = readers(module.steps, {})
    done = History()
    for step in module.steps:
        if isinstance(step, Product | Convolution):
            place = done.last_writer({access.buffer for access in reads(step.epilogue.body)}, (Product, Convolution))
            joined = None if place is None else _as_pair(step, place, done, module.buffers, counts)
            if place is not None and joined is not None:
                done.remove(place)
                step = joined
        done.append(step)
    return replace(module, steps=tuple(done.steps()))


def _as_pair(
    step: Product | Convolution, place: int, done: History, buffers: dict[str, Buffer], counts: Counter[str]
) -> Pair | None:
    """The step and the one at `place`, whose results it reads, as one."""
    before = done[place]
    assert isinstance(before, Product | Convolution)
    (store, *more) = before.epilogue.stores
    alone = not more and store.mode == "set" and private(store.buffer, buffers)
    alone = alone and is_read_in_epilogue_only(store.buffer, step, counts)
    alone = alone and buffers[store.buffer].dtype == _stored(before.epilogue, store)  # nothing is rounded
    if alone and done.may_come_last(place) and _alike(before, step, buffers):
        return _joined(before, step, store)
    return None


def _stored(epilogue: Map, store: Store) -> str:
    return epilogue.body.ops[epilogue.body.results[store.result]].dtype


def _alike(one: Product | Convolution, other: Product | Convolution, buffers: dict[str, Buffer]) -> bool:
    """Whether two steps can be computed tile by tile, each from rows as they lie and panels that are packed. Products
    of the same rows are rather siblings."""
    if isinstance(one, Product) and isinstance(other, Product) and one.a == other.a:
        return False
    return (
        all(_is_tiled(step, buffers) for step in (one, other))
        and _shape(one) == _shape(other)
        and _panel_bytes(one, buffers) + _panel_bytes(other, buffers) <= PANELS
        and len(one.epilogue.body.ops) + len(other.epilogue.body.ops) <= LONG_BODY
        and not touched(other)[1] & touched(one)[0]
    )


def _is_tiled(step: Product | Convolution, buffers: dict[str, Buffer]) -> bool:
    if isinstance(step, Convolution):
        return step.way == "windows" and step.groups == 1
    as_it_lies = step.a.columns == 1 and buffers[step.a.buffer].dtype == rows_dtype(step)
    return as_it_lies and not step.batch and step.b.packed is not None and step.codes is None


def _shape(step: Product | Convolution) -> tuple[object, ...]:
    if isinstance(step, Convolution):
        rows = product([step.images, *step.out_size])
        return rows, step.out_channels, step.panel, step.dtype, step.factors
    return step.m, step.n, step.b.packed, step.dtype, step.factors


def _panel_bytes(step: Product | Convolution, buffers: dict[str, Buffer]) -> int:
    """Bytes of one panel; more than fit anywhere where nobody knows."""
    if isinstance(step, Convolution):
        return step.kernel[0] * step.kernel[1] * step.channels * step.panel * BYTES[buffers[step.weight].dtype]
    if not isinstance(step.k, int) or step.b.packed is None:
        return PANELS + 1
    return step.k * step.b.packed * BYTES[buffers[step.b.buffer].dtype]


def _joined(before: Product | Convolution, step: Product | Convolution, store: Store) -> Pair | None:
    old, new = before.epilogue, step.epilogue
    names = matched(old, new.loops, 0)
    if names is None:
        return None
    index = substitute(store.index, names)
    if any(a.index != index or a.mask is not None for a in reads(new.body) if a.buffer == store.buffer):
        return None

    def beside(op: Op, operands: tuple[int, ...], ops: Recorder) -> int | None:
        return ops.emit("beside", (), op.dtype) if op.name == "accumulator" else None

    ops, results = rewrite(old.body, symbols=names, replace=beside)

    def known(op: Op, operands: tuple[int, ...], ops: Recorder) -> int | None:
        read = op.attribute.buffer == store.buffer if isinstance(op.attribute, Access) else False
        return results[store.result] if read else None

    ops, added = rewrite(new.body, into=ops, replace=known)
    first = replace(step, epilogue=replace(new, body=ops.finish(added)))
    second = replace(before, epilogue=Map(old.loops, Body((), ()), (), old.origin))
    return Pair((first, second), step.origin)
