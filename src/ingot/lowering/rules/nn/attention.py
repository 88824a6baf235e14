"""Attention: one kernel by blocks of keys, or two products and a softmax."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from ingot.lowering import tensor_views
from ingot.lowering.dtypes import wide
from ingot.lowering.index_expr import Size, divide, symbol
from ingot.lowering.loop_body import BodyBuilder
from ingot.lowering.loop_ir import Attention, Loop, Map, MatrixView, Store
from ingot.lowering.lower import Lowering, lowers
from ingot.lowering.rules.linalg.matmul import matmul, sum_of_products
from ingot.lowering.rules.nn.normalization import softmax_of
from ingot.lowering.tensor_views import Deferred, Index, Strided, TensorValue, contiguous_strides, loop_variables
from ingot.lowering.unsupported import LoweringUnsupported

aten = torch.ops.aten


@lowers(whole=[aten.scaled_dot_product_attention.default])
def attention(
    low: Lowering,
    q: TensorValue,
    k: TensorValue,
    v: TensorValue,
    mask: TensorValue | None = None,
    dropout: float = 0.0,
    causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> TensorValue:
    if dropout:
        raise LoweringUnsupported("attention with dropout draws random numbers")
    lead = (
        tensor_views.broadcast_shapes(tensor_views.broadcast_shapes(q.shape[:-2], k.shape[:-2]), v.shape[:-2])
        if not enable_gqa
        else q.shape[:-2]
    )
    if scale is None:
        if not isinstance(q.shape[-1], int):
            raise LoweringUnsupported("attention whose depth is dynamic")
        scale = 1 / math.sqrt(q.shape[-1]) if q.shape[-1] else 1.0
    if any(size == 0 for size in (*lead, q.shape[-2])):
        mask = None  # of an empty result no score is computed, so eager does not ask whether the mask fits
    if mask is not None:
        if mask.cost > 3:
            low.realize(mask)
        mask = low.align(mask, (*lead, q.shape[-2], k.shape[-2]))
    few = low.strategy.computes_by_loops(q.shape[-2])
    if (
        all(isinstance(size, int) for size in (q.shape[-1], v.shape[-1]))
        and not few
        and not any(size == 0 for t in (q, k, v) for size in t.shape)
    ):
        return _attend_in_blocks(low, q, k, v, mask, lead, scale, causal)
    return _attend_with_gemms(low, q, k, v, mask, lead, scale, causal)


def _attend_in_blocks(
    low: Lowering,
    q: TensorValue,
    k: TensorValue,
    v: TensorValue,
    mask: TensorValue | None,
    lead: tuple[Size, ...],
    scale: float,
    causal: bool,
) -> TensorValue:
    """One kernel that never holds more than a block of scores."""
    dtype, kind = low.out_dtype, wide(low.out_dtype)
    batch, named = loop_variables(lead, range(len(lead)))
    loops = tuple(Loop(*pair) for pair in named)
    matrices = []
    for tensor in (q, k, v):
        strided = low.realize(tensor)
        assert isinstance(strided.data, Strided)
        offset = strided.data.offset_at((*_heads(low, batch, strided.shape[:-2], lead), 0, 0))
        matrices.append(MatrixView(strided.data.buffer, offset, strided.data.strides[-2], strided.data.strides[-1]))
    queries, keys, depth, columns = q.shape[-2], k.shape[-2], q.shape[-1], v.shape[-1]
    body = None
    if mask is not None:
        ops = BodyBuilder()
        at = (*batch, symbol("i", below=queries), symbol("j", below=keys))
        more = mask.load(ops, tensor_views.broadcast(at, mask.shape))
        score = ops.emit("accumulator", (), kind)
        if mask.dtype == "bool":
            masked = ops.where(more, score, ops.const(-math.inf, kind))
        else:
            masked = ops.call("add", score, ops.cast(more, kind))
        body = ops.finish([masked])
    shape = (*lead, queries, columns)
    # Heads are adjacent, as the layer that follows reads them.
    rank = len(shape)
    order = (*range(rank - 3), rank - 2, rank - 3, rank - 1) if rank > 2 else (0, 1)
    physical = [shape[d] for d in order]
    steps = contiguous_strides(physical)
    buffer = low.buffer("temporary", dtype, physical)
    home = Strided(buffer.name, 0, tuple(steps[order.index(d)] for d in range(rank)))
    row, column = Loop(f"i{len(loops)}", queries), Loop(f"i{len(loops) + 1}", columns)
    index = (*batch, *(symbol(loop.variable, below=loop.extent) for loop in (row, column)))
    ops = BodyBuilder()
    value = ops.cast(ops.emit("accumulator", (), kind), dtype)
    epilogue = Map(
        (*loops, row, column), ops.finish([value]), (Store(buffer.name, home.offset_at(index), 0),), low.origin
    )
    assert isinstance(depth, int) and isinstance(columns, int)
    low.steps.append(
        Attention(
            batch=loops,
            queries=queries,
            keys=keys,
            depth=depth,
            values=columns,
            scale=scale,
            causal=causal,
            q=matrices[0],
            k=matrices[1],
            v=matrices[2],
            score=body,
            dtype=kind,
            epilogue=epilogue,
            origin=low.origin,
        )
    )
    return TensorValue(shape, dtype, home)


def _heads(low: Lowering, batch: Index, shape: tuple[Size, ...], lead: tuple[Size, ...]) -> Index:
    """The batch index into a tensor whose leading dims broadcast, or whose heads are shared by groups of heads."""
    index: list[Size] = []
    tail = batch[len(batch) - len(shape) :]
    for place, size, full in zip(tail, shape, lead[len(lead) - len(shape) :], strict=True):
        ratio = divide(full, size) if size != 1 else 1
        shared = isinstance(ratio, int) and ratio > 1
        if not shared:
            low.check_fit(size, full)
        index.append(place // ratio if shared else tensor_views.broadcast_place(place, size, full))
    return tuple(index)


def _attend_with_gemms(
    low: Lowering,
    q: TensorValue,
    k: TensorValue,
    v: TensorValue,
    mask: TensorValue | None,
    lead: tuple[Size, ...],
    scale: float,
    causal: bool,
) -> TensorValue:
    """Two products and a softmax: for what the kernel cannot take, and for queries that are too few for its blocks."""
    kind = wide(low.out_dtype)

    def weigh(ops: BodyBuilder, value: int, index: Index) -> int:
        minus = ops.const(-math.inf, kind)
        if mask is not None:
            more = mask.load(ops, tensor_views.broadcast(index, mask.shape))
            value = (
                ops.where(more, value, minus) if mask.dtype == "bool" else ops.call("add", value, ops.cast(more, kind))
            )
        if causal:
            value = ops.where(ops.call("le", ops.index(index[-1]), ops.index(index[-2])), value, minus)
        return value

    return attend_with_gemms(low, q, k, v, lead, scale, weigh, may_hide=mask is not None)[0]


def attend_with_gemms(
    low: Lowering,
    q: TensorValue,
    k: TensorValue,
    v: TensorValue,
    lead: tuple[Size, ...],
    scale: float,
    weigh: Callable[[BodyBuilder, int, Index], int],
    *,
    may_hide: bool,
) -> tuple[TensorValue, TensorValue]:
    """The result and the scores, as `weigh(ops, score, index)` changes them. `may_hide`: a query may see no key."""
    product = sum_of_products if low.strategy.computes_by_loops(q.shape[-2]) else _as_matrices
    dtype, kind = low.out_dtype, wide(low.out_dtype)
    if q.shape[-3:-2] != k.shape[-3:-2] and q.rank > 2:
        k, v = (_repeat_heads(t, q.shape[-3]) for t in (k, v))
    q, k, v = (low.expand(t, (*lead, *t.shape[-2:])) for t in (q, k, v))
    swapped = tensor_views.permute(k, (*range(k.rank - 2), k.rank - 1, k.rank - 2))
    scores = product(low, q, swapped, kind)

    def load(ops: BodyBuilder, index: Index) -> int:
        return weigh(ops, ops.call("mul", scores.load(ops, index), ops.const(scale, kind)), index)

    weighed = low.realize(TensorValue(scores.shape, kind, Deferred(load, 6)))
    soft = softmax_of(low, weighed, scores.rank - 1, False, kind, kind)
    if may_hide:
        soft = _zero_empty_rows(low, weighed, soft, kind)
    made = product(low, soft, v, dtype)
    return TensorValue(made.shape, dtype, made.data), weighed


def _as_matrices(low: Lowering, a: TensorValue, b: TensorValue, dtype: str) -> TensorValue:
    return matmul(low, a, b)


def _zero_empty_rows(low: Lowering, weighed: TensorValue, soft: TensorValue, kind: str) -> TensorValue:
    """A fully masked row returns zeros, as in torch, not nan."""
    last = weighed.rank - 1
    (top,) = low.reduce(weighed, (last,), ("max",), lambda ops, v, index: (v,), (kind,))

    def load(ops: BodyBuilder, index: Index) -> int:
        empty = ops.call("eq", top.load(ops, index[:-1]), ops.const(-math.inf, kind))
        return ops.where(empty, ops.const(0, kind), soft.load(ops, index))

    return TensorValue(soft.shape, kind, Deferred(load, soft.cost + 2))


def _repeat_heads(x: TensorValue, heads: Size) -> TensorValue:
    groups = heads // x.shape[-3]
    shape = (*x.shape[:-3], heads, *x.shape[-2:])

    def load(ops: BodyBuilder, index: Index) -> int:
        return x.load(ops, (*index[:-3], index[-3] // groups, *index[-2:]))

    return TensorValue(shape, x.dtype, Deferred(load, 1)) if groups != 1 else x
