"""Pairs: two products or convolutions whose sums meet in one epilogue.

    before                                               after
    PackedGemm        x · w → t          784 × 512       DualGemm  x · w, and windows of z · v, then s·(…) + r·(…) → y
    TiledConvolution  z ∗ v, … + t → y   784 × 512

A residual block that changes its size adds two convolutions. What the first one would write, and the second one read
again, is as large as the result and four times as wide where that is quantized: it stays in registers.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from ingot.lowering.dependence import History, count_readers, is_read_in_epilogue_only, is_temporary, reads_and_writes
from ingot.lowering.dtypes import BYTES
from ingot.lowering.index_expr import product, substitute
from ingot.lowering.loop_body import BodyBuilder, reads, rewrite
from ingot.lowering.loop_ir import Body, Buffer, Gemm, Load, Map, Op, Store
from ingot.lowering.loop_module import Module
from ingot.scheduling.fusion import match_loops
from ingot.targets.cpu.schedule.limits import FUSION_LIMITS
from ingot.targets.cpu.schedule.statements import DualGemm, PackedGemm, Tiled, TiledConvolution, rows_dtype

_TILED = (PackedGemm, TiledConvolution)
# Bytes of the two panels of weights that a tile reads: they stay in a core's own cache.
PANELS = 1 << 18


def fuse_dual_gemms(module: Module) -> Module:
    """Joins a product or convolution to the later one that alone reads its results, where it reads each of them once;
    computes the same."""
    counts = count_readers(module.steps, {})
    done = History()
    for step in module.steps:
        if isinstance(step, Tiled):
            place = done.last_writer({access.buffer for access in reads(step.epilogue.body)}, (Gemm, *_TILED))
            joined = None if place is None else _as_pair(step, place, done, module.buffers, counts)
            if place is not None and joined is not None:
                done.remove(place)
                step = joined
        done.append(step)
    return replace(module, steps=tuple(done.steps()))


def _as_pair(
    step: Tiled, place: int, done: History, buffers: dict[str, Buffer], counts: Counter[str]
) -> DualGemm | None:
    """The step and the one at `place`, whose results it reads, as one."""
    before = done[place]
    if not isinstance(before, Tiled):
        return None
    (store, *more) = before.epilogue.stores
    alone = not more and store.mode == "set" and is_temporary(store.buffer, buffers)
    alone = alone and is_read_in_epilogue_only(store.buffer, step, counts)
    alone = alone and buffers[store.buffer].dtype == _stored_dtype(before.epilogue, store)  # nothing is rounded
    if alone and done.may_come_last(place) and _alike(before, step, buffers):
        return _join(before, step, store)
    return None


def _stored_dtype(epilogue: Map, store: Store) -> str:
    return epilogue.body.ops[epilogue.body.results[store.result]].dtype


def _alike(one: Tiled, other: Tiled, buffers: dict[str, Buffer]) -> bool:
    """Whether two steps can be computed tile by tile, each from rows as they lie and panels that are packed. Products
    of the same rows are rather siblings."""
    if isinstance(one, PackedGemm) and isinstance(other, PackedGemm) and one.a == other.a:
        return False
    return (
        all(_is_tiled(step, buffers) for step in (one, other))
        and _shape(one) == _shape(other)
        and _panel_bytes(one, buffers) + _panel_bytes(other, buffers) <= PANELS
        and len(one.epilogue.body.ops) + len(other.epilogue.body.ops) <= FUSION_LIMITS.body_length
        and not reads_and_writes(other)[1] & reads_and_writes(one)[0]
    )


def _is_tiled(step: Tiled, buffers: dict[str, Buffer]) -> bool:
    if isinstance(step, TiledConvolution):
        return step.algorithm == "windows" and step.groups == 1
    as_it_lies = step.a.columns == 1 and buffers[step.a.buffer].dtype == rows_dtype(step)
    return as_it_lies and not step.batch and step.codes is None


def _shape(step: Tiled) -> tuple[object, ...]:
    if isinstance(step, TiledConvolution):
        rows = product([step.images, *step.out_size])
        return rows, step.out_channels, step.panel, step.dtype, step.factors
    return step.m, step.n, step.b.width, step.dtype, step.factors


def _panel_bytes(step: Tiled, buffers: dict[str, Buffer]) -> int:
    """Panel size in bytes, or a value above any budget if the size is dynamic."""
    if isinstance(step, TiledConvolution):
        return step.kernel[0] * step.kernel[1] * step.channels * step.panel * BYTES[buffers[step.weight].dtype]
    if not isinstance(step.k, int):
        return PANELS + 1
    return step.k * step.b.width * BYTES[buffers[step.b.buffer].dtype]


def _join(before: Tiled, step: Tiled, store: Store) -> DualGemm | None:
    old, new = before.epilogue, step.epilogue
    names = match_loops(old, new.loops, 0)
    if names is None:
        return None
    index = substitute(store.index, names)
    if any(a.index != index or a.mask is not None for a in reads(new.body) if a.buffer == store.buffer):
        return None

    def beside(op: Op, operands: tuple[int, ...], ops: BodyBuilder) -> int | None:
        return ops.emit("second_accumulator", (), op.dtype) if op.name == "accumulator" else None

    ops, results = rewrite(old.body, symbols=names, replace=beside)

    def known(op: Op, operands: tuple[int, ...], ops: BodyBuilder) -> int | None:
        read = op.attribute.buffer == store.buffer if isinstance(op.attribute, Load) else False
        return results[store.result] if read else None

    ops, added = rewrite(new.body, into=ops, replace=known)
    first = replace(step, epilogue=replace(new, body=ops.finish(added)))
    second = replace(before, epilogue=Map(old.loops, Body((), ()), (), old.origin))
    return DualGemm((first, second), step.origin)
