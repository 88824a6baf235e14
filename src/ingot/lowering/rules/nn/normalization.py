"""Softmax and normalizations: reductions along rows with what surrounds them. Fusion makes each one pass over a row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ingot.lowering import tensor_views
from ingot.lowering.dtypes import wide
from ingot.lowering.index_expr import product
from ingot.lowering.loop_body import BodyBuilder
from ingot.lowering.lower import Lowering, lowers
from ingot.lowering.rules.reductions import moments, reduce
from ingot.lowering.rules.views import dim_of
from ingot.lowering.tensor_views import Deferred, Index, TensorValue

aten = torch.ops.aten


def index_row(index: Index, over: Sequence[int]) -> Index:
    return tuple(0 if d in over else i for d, i in enumerate(index))


@lowers(aten.softmax.int, aten.log_softmax.int, whole=[aten._softmax.default, aten._log_softmax.default])
def softmax(low: Lowering, x: TensorValue, dim: int, *_: Any, **__: Any) -> TensorValue:
    logarithm = low.node.target in (aten._log_softmax.default, aten.log_softmax.int)
    kind = wide(low.out_dtype)
    if kind != wide(x.dtype):
        # The requested dtype is that of the whole computation, not of its result only.
        given = x
        x = TensorValue(x.shape, kind, Deferred(lambda ops, index: ops.cast(given.load(ops, index), kind), x.cost + 1))
    if not x.rank:
        x = tensor_views.insert(x, 0)
        return tensor_views.drop(softmax_of(low, x, 0, logarithm, kind, low.out_dtype), (0,))
    return softmax_of(low, x, dim_of(x, dim), logarithm, kind, low.out_dtype)


def softmax_of(low: Lowering, x: TensorValue, dim: int, logarithm: bool, kind: str, dtype: str) -> TensorValue:
    x = low.materialize_if_expensive(x)
    top = reduce(low, x, [dim], True, "max", wide(x.dtype))

    def shift(ops: BodyBuilder, index: Index) -> int:
        return ops.cast(ops.call("sub", x.load(ops, index), top.load(ops, index_row(index, [dim]))), kind)

    def exponential(ops: BodyBuilder, index: Index) -> int:
        return ops.call("exp", shift(ops, index))

    powers = TensorValue(x.shape, kind, Deferred(exponential, 12, low.order_of(x)))
    if not logarithm:
        low.realize(powers)
    total = reduce(low, powers, [dim], True, "sum", kind)

    def load(ops: BodyBuilder, index: Index) -> int:
        row = index_row(index, [dim])
        if logarithm:
            return ops.call("sub", shift(ops, index), ops.call("log", total.load(ops, row)))
        return ops.call("div", powers.load(ops, index), total.load(ops, row))

    return TensorValue(x.shape, dtype, Deferred(load, 12 if logarithm else 3, low.order_of(x)))


@lowers(aten.native_layer_norm.default, whole=[aten.layer_norm.default])
def layer_norm(
    low: Lowering, x: TensorValue, shape: Sequence[int], weight: TensorValue | None = None,
    bias: TensorValue | None = None,
    eps: float = 1e-5, *_: Any
) -> Any:  # fmt: skip
    over = list(range(x.rank - len(shape), x.rank))
    x = low.materialize_if_expensive(x)
    normal, middle, scale = normalize(low, x, over, eps)
    dtype = low.out_dtype

    def load(ops: BodyBuilder, index: Index) -> int:
        value = normal.load(ops, index)
        inner = index[x.rank - len(shape) :]
        for name, factor in (("mul", weight), ("add", bias)):
            if factor is not None:
                value = ops.call(name, value, ops.cast(factor.load(ops, inner), wide(dtype)))
        return value

    result = TensorValue(x.shape, dtype, Deferred(load, 6, low.order_of(x)))
    if low.node.target is aten.layer_norm.default:
        return result
    return result, middle, scale


def normalize(
    low: Lowering, x: TensorValue, over: Sequence[int], eps: float
) -> tuple[TensorValue, TensorValue, TensorValue]:
    """(x - mean) · rstd, the mean, and rstd = 1 / sqrt(variance + eps), the last two with size 1 in `over`."""
    middle, spread = moments(low, x, over)
    kind = wide(x.dtype)
    count = product([x.shape[d] for d in over])

    def inverse(ops: BodyBuilder, index: Index) -> int:
        average = ops.call("div", spread.load(ops, index), ops.index(count, kind))
        return ops.call("rsqrt", ops.call("add", average, ops.const(eps, kind)))

    scale = low.realize(TensorValue(spread.shape, kind, Deferred(inverse, 12)))

    def load(ops: BodyBuilder, index: Index) -> int:
        row = index_row(index, over)
        distance = ops.call("sub", x.load(ops, index), middle.load(ops, row))
        return ops.call("mul", distance, scale.load(ops, row))

    return TensorValue(x.shape, kind, Deferred(load, 4, low.order_of(x))), middle, scale


@lowers(aten.native_group_norm.default)
def group_norm(
    low: Lowering,
    x: TensorValue,
    weight: TensorValue | None,
    bias: TensorValue | None,
    n: Any,
    c: Any,
    hw: Any,
    groups: int,
    eps: float,
) -> tuple[TensorValue, TensorValue, TensorValue]:
    channels = x.shape[1]
    grouped = tensor_views.reshape(
        low.materialize_if_expensive(x), (x.shape[0], groups, channels // groups, *x.shape[2:]), low.hint
    )
    over = list(range(2, grouped.rank))
    normal, middle, scale = normalize(low, grouped, over, eps)
    dtype = low.out_dtype
    flat = tensor_views.reshape(normal, x.shape, low.hint)

    def load(ops: BodyBuilder, index: Index) -> int:
        value = flat.load(ops, index)
        for name, factor in (("mul", weight), ("add", bias)):
            if factor is not None:
                value = ops.call(name, value, ops.cast(factor.load(ops, (index[1],)), wide(dtype)))
        return value

    return (
        TensorValue(x.shape, dtype, Deferred(load, 6)),
        tensor_views.drop(middle, over),
        tensor_views.drop(scale, over),
    )


@lowers(aten._native_batch_norm_legit_no_training.default)
def batch_norm(
    low: Lowering,
    x: TensorValue,
    weight: TensorValue | None,
    bias: TensorValue | None,
    mean: TensorValue,
    var: TensorValue,
    momentum: float,
    eps: float,
) -> tuple[TensorValue, TensorValue, TensorValue]:
    dtype, kind = low.out_dtype, wide(low.out_dtype)

    def load(ops: BodyBuilder, index: Index) -> int:
        channel = (index[1],)
        spread = ops.call("add", ops.cast(var.load(ops, channel), kind), ops.const(eps, kind))
        value = ops.call("sub", x.load(ops, index), ops.cast(mean.load(ops, channel), kind))
        value = ops.call("mul", value, ops.call("rsqrt", spread))
        for name, factor in (("mul", weight), ("add", bias)):
            if factor is not None:
                value = ops.call(name, value, ops.cast(factor.load(ops, channel), kind))
        return value

    empty = low.full((0,), 0, dtype)
    return TensorValue(x.shape, dtype, Deferred(load, x.cost + 8, low.order_of(x))), empty, empty
