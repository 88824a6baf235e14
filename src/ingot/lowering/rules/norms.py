"""Softmax and normalizations: reductions along rows with what surrounds them. Fusion makes each one pass over a row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ingot.lowering import values
from ingot.lowering.body import Recorder
from ingot.lowering.expr import product
from ingot.lowering.ir import wide
from ingot.lowering.lower import Lowering, lowers
from ingot.lowering.rules.reductions import moments, reduced
from ingot.lowering.rules.views import dim_of
from ingot.lowering.values import Index, Lazy, Tensor

aten = torch.ops.aten


def at_row(index: Index, over: Sequence[int]) -> Index:
    return tuple(0 if d in over else i for d, i in enumerate(index))


@lowers(aten._softmax.default, aten.softmax.int, aten._log_softmax.default, aten.log_softmax.int)
def softmax(low: Lowering, x: Tensor, dim: int, *_: Any, **__: Any) -> Tensor:
    logarithm = low.node.target in (aten._log_softmax.default, aten.log_softmax.int)
    kind = wide(low.out_dtype)
    if kind != wide(x.dtype):
        # The dtype that was asked for is that of the whole computation, not of its result only.
        given = x
        x = Tensor(x.shape, kind, Lazy(lambda ops, index: ops.cast(given.load(ops, index), kind), x.cost + 1))
    if not x.rank:
        x = values.insert(x, 0)
        return values.drop(softmax_of(low, x, 0, logarithm, kind, low.out_dtype), (0,))
    return softmax_of(low, x, dim_of(x, dim), logarithm, kind, low.out_dtype)


def softmax_of(low: Lowering, x: Tensor, dim: int, logarithm: bool, kind: str, dtype: str) -> Tensor:
    x = low.keep(x)
    top = reduced(low, x, [dim], True, "max", wide(x.dtype))

    def shifted(ops: Recorder, index: Index) -> int:
        return ops.cast(ops.call("sub", x.load(ops, index), top.load(ops, at_row(index, [dim]))), kind)

    def exponential(ops: Recorder, index: Index) -> int:
        return ops.call("exp", shifted(ops, index))

    powers = Tensor(x.shape, kind, Lazy(exponential, 12, low.order_of(x)))
    if not logarithm:
        low.realize(powers)
    total = reduced(low, powers, [dim], True, "sum", kind)

    def load(ops: Recorder, index: Index) -> int:
        row = at_row(index, [dim])
        if logarithm:
            return ops.call("sub", shifted(ops, index), ops.call("log", total.load(ops, row)))
        return ops.call("div", powers.load(ops, index), total.load(ops, row))

    return Tensor(x.shape, dtype, Lazy(load, 12 if logarithm else 3, low.order_of(x)))


@lowers(aten.native_layer_norm.default, aten.layer_norm.default)
def layer_norm(
    low: Lowering, x: Tensor, shape: Sequence[int], weight: Tensor | None = None, bias: Tensor | None = None,
    eps: float = 1e-5, *_: Any
) -> Any:  # fmt: skip
    over = list(range(x.rank - len(shape), x.rank))
    x = low.keep(x)
    normal, middle, scale = normalized(low, x, over, eps)
    dtype = low.out_dtype

    def load(ops: Recorder, index: Index) -> int:
        value = normal.load(ops, index)
        inner = index[x.rank - len(shape) :]
        for name, factor in (("mul", weight), ("add", bias)):
            if factor is not None:
                value = ops.call(name, value, ops.cast(factor.load(ops, inner), wide(dtype)))
        return value

    result = Tensor(x.shape, dtype, Lazy(load, 6, low.order_of(x)))
    if low.node.target is aten.layer_norm.default:
        return result
    return result, middle, scale


def normalized(low: Lowering, x: Tensor, over: Sequence[int], eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """(x - mean) · rstd, the mean, and rstd = 1 / sqrt(variance + eps), the last two with size 1 in `over`."""
    middle, spread = moments(low, x, over)
    kind = wide(x.dtype)
    count = product([x.shape[d] for d in over])

    def inverse(ops: Recorder, index: Index) -> int:
        average = ops.call("div", spread.load(ops, index), ops.index(count, kind))
        return ops.call("rsqrt", ops.call("add", average, ops.const(eps, kind)))

    scale = low.realize(Tensor(spread.shape, kind, Lazy(inverse, 12)))

    def load(ops: Recorder, index: Index) -> int:
        row = at_row(index, over)
        distance = ops.call("sub", x.load(ops, index), middle.load(ops, row))
        return ops.call("mul", distance, scale.load(ops, row))

    return Tensor(x.shape, kind, Lazy(load, 4, low.order_of(x))), middle, scale


@lowers(aten.native_group_norm.default)
def group_norm(
    low: Lowering,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    n: Any,
    c: Any,
    hw: Any,
    groups: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    channels = x.shape[1]
    grouped = values.reshape(low.keep(x), (x.shape[0], groups, channels // groups, *x.shape[2:]), low.hint)
    over = list(range(2, grouped.rank))
    normal, middle, scale = normalized(low, grouped, over, eps)
    dtype = low.out_dtype
    flat = values.reshape(normal, x.shape, low.hint)

    def load(ops: Recorder, index: Index) -> int:
        value = flat.load(ops, index)
        for name, factor in (("mul", weight), ("add", bias)):
            if factor is not None:
                value = ops.call(name, value, ops.cast(factor.load(ops, (index[1],)), wide(dtype)))
        return value

    return Tensor(x.shape, dtype, Lazy(load, 6)), values.drop(middle, over), values.drop(scale, over)


@lowers(aten._native_batch_norm_legit_no_training.default)
def batch_norm(
    low: Lowering,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    var: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    dtype, kind = low.out_dtype, wide(low.out_dtype)

    def load(ops: Recorder, index: Index) -> int:
        channel = (index[1],)
        spread = ops.call("add", ops.cast(var.load(ops, channel), kind), ops.const(eps, kind))
        value = ops.call("sub", x.load(ops, index), ops.cast(mean.load(ops, channel), kind))
        value = ops.call("mul", value, ops.call("rsqrt", spread))
        for name, factor in (("mul", weight), ("add", bias)):
            if factor is not None:
                value = ops.call(name, value, ops.cast(factor.load(ops, channel), kind))
        return value

    empty = low.full((0,), 0, dtype)
    return Tensor(x.shape, dtype, Lazy(load, x.cost + 8, low.order_of(x))), empty, empty
