"""Normalizations: ONNX's own where the opset has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ingot.onnx.exporter import Exporter
from ingot.onnx.registry import OnnxUnsupported, exports
from ingot.onnx.values import OnnxValue, Size

aten = torch.ops.aten


def _or_number(ex: Exporter, x: OnnxValue | None, sizes: Sequence[Size], value: float, dtype: torch.dtype) -> OnnxValue:
    """A weight, or one number in its place."""
    return ex.cast(x, dtype) if x is not None else ex.full(sizes, value, dtype)


# ---------------------------------------------------------------------- over the last dims


@exports(aten.layer_norm.default)
def layer_norm(
    ex: Exporter, x: OnnxValue, shape: Sequence[Size], weight: OnnxValue | None = None, bias: OnnxValue | None = None,
    eps: float = 1e-5, _cudnn: bool = True,
) -> OnnxValue:  # fmt: skip
    if not ex.says(x.dtype, eps):
        return _normalize_last(ex, x, shape, weight, bias, eps)[0]
    scale = _or_number(ex, weight, shape, 1.0, x.dtype)
    rest = () if bias is None else (ex.cast(bias, x.dtype),)
    return ex.op("LayerNormalization", x, scale, *rest, axis=-len(shape), epsilon=eps)


def _center(ex: Exporter, x: OnnxValue, dims: Sequence[int], eps: float) -> tuple[OnnxValue, OnnxValue, OnnxValue]:
    """The mean over dims, how far x is away from it, and the inverse of its deviation."""
    at = ex.ints(dims)
    mean = ex.op("ReduceMean", x, at)
    away = ex.op("Sub", x, mean)
    variance = ex.op("ReduceMean", ex.op("Mul", away, away), at)
    return mean, away, ex.op("Reciprocal", ex.op("Sqrt", ex.op("Add", variance, ex.number(eps, x.dtype))))


def _normalize_last(
    ex: Exporter, x: OnnxValue, shape: Sequence[Size], weight: OnnxValue | None, bias: OnnxValue | None, eps: float
) -> list[OnnxValue]:
    """Spelled out: the result, mean and inverse deviation."""
    mean, away, inverse = _center(ex, x, range(x.rank - len(shape), x.rank), eps)
    made = ex.op("Mul", away, inverse)
    made = made if weight is None else ex.op("Mul", made, ex.cast(weight, x.dtype))
    return [made if bias is None else ex.op("Add", made, ex.cast(bias, x.dtype)), mean, inverse]


@exports(aten.native_layer_norm.default)
def native_layer_norm(
    ex: Exporter, x: OnnxValue, shape: Sequence[Size], weight: OnnxValue | None, bias: OnnxValue | None, eps: float
) -> list[OnnxValue]:
    """Mean and inverse deviation as well: computed apart, since kernels do not return them."""
    made = layer_norm(ex, x, shape, weight, bias, eps)
    if not any(user.args[1] != 0 for user in ex.node.users):
        return [made, made, made]
    return [made, *_normalize_last(ex, x, shape, None, None, eps)[1:]]


@exports(aten.rms_norm.default)
def rms_norm(
    ex: Exporter, x: OnnxValue, shape: Sequence[Size], weight: OnnxValue | None = None, eps: float | None = None
) -> OnnxValue:
    eps = torch.finfo(torch.float32 if x.dtype is torch.bfloat16 else x.dtype).eps if eps is None else eps
    if ex.opset >= 23 and weight is not None and weight.dtype is x.dtype and ex.says(x.dtype, eps):
        return ex.op("RMSNormalization", x, weight, axis=-len(shape), epsilon=eps)
    dtype = x.dtype
    wide = ex.cast(x, torch.float32) if dtype in (torch.float16, torch.bfloat16) else x
    at = ex.ints(list(range(x.rank - len(shape), x.rank)))
    mean = ex.op("ReduceMean", ex.op("Mul", wide, wide), at)
    root = ex.op("Sqrt", ex.op("Add", mean, ex.number(eps, wide.dtype)))
    made = ex.op("Div", wide, root)
    return made if weight is None else ex.op("Mul", made, ex.cast(weight, wide.dtype))


# ---------------------------------------------------------------------- over batches


def _reshape_per_channel(ex: Exporter, x: OnnxValue, rank: int) -> OnnxValue:
    """One number a channel, to go with a tensor whose dim 1 are the channels."""
    return ex.reshape(x, [*x.sizes, *([1] * (rank - 2))])


def _batch_norm(
    ex: Exporter,
    x: OnnxValue,
    weight: OnnxValue | None,
    bias: OnnxValue | None,
    mean: OnnxValue,
    variance: OnnxValue,
    eps: float,
) -> OnnxValue:
    """With the statistics that were learned."""
    if x.rank < 2:
        raise OnnxUnsupported("a batch norm without a channel dim")
    if not ex.says(x.dtype, eps):
        learned = [_reshape_per_channel(ex, ex.cast(part, x.dtype), x.rank) for part in (mean, variance)]
        return _normalize(ex, x, learned[0], learned[1], weight, bias, eps)[0]
    channels = [x.sizes[1]]
    return ex.op(
        "BatchNormalization",
        x,
        _or_number(ex, weight, channels, 1.0, x.dtype),
        _or_number(ex, bias, channels, 0.0, x.dtype),
        ex.cast(mean, x.dtype),
        ex.cast(variance, x.dtype),
        epsilon=eps,
    )


def _statistics(ex: Exporter, x: OnnxValue) -> tuple[OnnxValue, OnnxValue]:
    """Mean and variance of each channel over this batch, with the other dims as 1."""
    at = ex.ints([0, *range(2, x.rank)])
    mean = ex.op("ReduceMean", x, at)
    away = ex.op("Sub", x, mean)
    return mean, ex.op("ReduceMean", ex.op("Mul", away, away), at)


def _normalize(
    ex: Exporter,
    x: OnnxValue,
    mean: OnnxValue,
    variance: OnnxValue,
    weight: OnnxValue | None,
    bias: OnnxValue | None,
    eps: float,
) -> tuple[OnnxValue, OnnxValue]:
    inverse = ex.op("Reciprocal", ex.op("Sqrt", ex.op("Add", variance, ex.number(eps, x.dtype))))
    made = ex.op("Mul", ex.op("Sub", x, mean), inverse)
    if weight is not None:
        made = ex.op("Mul", made, _reshape_per_channel(ex, ex.cast(weight, x.dtype), x.rank))
    if bias is not None:
        made = ex.op("Add", made, _reshape_per_channel(ex, ex.cast(bias, x.dtype), x.rank))
    return made, inverse


@exports(aten.batch_norm.default, takes=lambda node: not node.args[5] or node.args[3] is None)
def batch_norm(
    ex: Exporter, x: OnnxValue, weight: OnnxValue | None, bias: OnnxValue | None, mean: OnnxValue | None,
    variance: OnnxValue | None,
    training: bool, momentum: float, eps: float, _cudnn: bool,
) -> OnnxValue:  # fmt: skip
    if mean is None or variance is None:
        found, spread = _statistics(ex, x)
        return _normalize(ex, x, found, spread, weight, bias, eps)[0]
    return _batch_norm(ex, x, weight, bias, mean, variance, eps)


@exports(aten._native_batch_norm_legit_no_training.default)
def batch_norm_no_training(
    ex: Exporter, x: OnnxValue, weight: OnnxValue | None, bias: OnnxValue | None, mean: OnnxValue, variance: OnnxValue,
    momentum: float, eps: float,
) -> list[OnnxValue]:  # fmt: skip
    none = ex.constant(torch.zeros(0))
    return [_batch_norm(ex, x, weight, bias, mean, variance, eps), none, none]


@exports(aten._native_batch_norm_legit.no_stats)
def batch_norm_no_stats(
    ex: Exporter,
    x: OnnxValue,
    weight: OnnxValue | None,
    bias: OnnxValue | None,
    training: bool,
    momentum: float,
    eps: float,
) -> list[OnnxValue]:
    mean, variance = _statistics(ex, x)
    made, inverse = _normalize(ex, x, mean, variance, weight, bias, eps)
    return [made, ex.reshape(mean, [x.sizes[1]]), ex.reshape(inverse, [x.sizes[1]])]


@exports(aten._native_batch_norm_legit_functional.default)
def batch_norm_training(
    ex: Exporter, x: OnnxValue, weight: OnnxValue | None, bias: OnnxValue | None, mean: OnnxValue, variance: OnnxValue,
    training: bool, momentum: float, eps: float,
) -> list[OnnxValue]:  # fmt: skip
    """What it normalizes with are this batch's statistics; the running ones move towards them."""
    none = ex.constant(torch.zeros(0))
    if not training:
        return [_batch_norm(ex, x, weight, bias, mean, variance, eps), none, none, mean, variance]
    found, spread = _statistics(ex, x)
    made, inverse = _normalize(ex, x, found, spread, weight, bias, eps)
    channels = [x.sizes[1]]
    found, spread, inverse = (ex.reshape(part, channels) for part in (found, spread, inverse))
    dtype = mean.dtype
    count = ex.number(1, torch.int64)
    for size in (x.sizes[0], *x.sizes[2:]):
        count = ex.op("Mul", count, ex.sizes.scalar(size))
    count = ex.cast(count, dtype)
    unbiased = ex.op("Mul", ex.cast(spread, dtype), ex.op("Div", count, ex.op("Sub", count, ex.number(1.0, dtype))))
    moved = []
    for old, new in ((mean, ex.cast(found, dtype)), (variance, unbiased)):
        kept = ex.op("Mul", old, ex.number(1 - momentum, dtype))
        moved.append(ex.op("Add", kept, ex.op("Mul", new, ex.number(momentum, dtype))))
    return [made, found, inverse, *moved]


# ---------------------------------------------------------------------- over groups


def _moves_nothing(node: Any) -> bool:
    """Whether it normalizes with what it learned, or has learned nothing to move."""
    return bool(node.args[5]) == (node.args[3] is None)


@exports(aten.instance_norm.default, takes=_moves_nothing)
def instance_norm(
    ex: Exporter, x: OnnxValue, weight: OnnxValue | None, bias: OnnxValue | None, mean: OnnxValue | None,
    variance: OnnxValue | None,
    use_input_stats: bool, momentum: float, eps: float, _cudnn: bool,
) -> OnnxValue:  # fmt: skip
    if mean is not None and variance is not None:
        return _batch_norm(ex, x, weight, bias, mean, variance, eps)
    channels = [x.sizes[1]]
    if not ex.says(x.dtype, eps):
        return _normalize_groups(ex, x, x.sizes[1], weight, bias, eps)[0]
    scale = _or_number(ex, weight, channels, 1.0, x.dtype)
    shift = _or_number(ex, bias, channels, 0.0, x.dtype)
    return ex.op("InstanceNormalization", x, scale, shift, epsilon=eps)


def _normalize_groups(
    ex: Exporter, x: OnnxValue, groups: Size, weight: OnnxValue | None, bias: OnnxValue | None, eps: float
) -> tuple[OnnxValue, OnnxValue, OnnxValue]:
    """Each group of channels as one row."""
    each: Size = x.sizes[1] // groups
    for size in x.sizes[2:]:
        each = each * size
    rows = ex.reshape(x, [x.sizes[0], groups, each])
    mean, away, inverse = _center(ex, rows, [2], eps)
    made = ex.reshape(ex.op("Mul", away, inverse), x.sizes)
    if weight is not None:
        made = ex.op("Mul", made, _reshape_per_channel(ex, ex.cast(weight, x.dtype), x.rank))
    if bias is not None:
        made = ex.op("Add", made, _reshape_per_channel(ex, ex.cast(bias, x.dtype), x.rank))
    return made, mean, inverse


@exports(aten.group_norm.default)
def group_norm(
    ex: Exporter, x: OnnxValue, groups: int, weight: OnnxValue | None = None, bias: OnnxValue | None = None,
    eps: float = 1e-5,
    _cudnn: bool = True,
) -> OnnxValue:  # fmt: skip
    if ex.opset >= 21 and x.rank > 2 and weight is not None and bias is not None and ex.says(x.dtype, eps):
        scale, shift = ex.cast(weight, x.dtype), ex.cast(bias, x.dtype)
        return ex.op("GroupNormalization", x, scale, shift, num_groups=groups, epsilon=eps)
    return _normalize_groups(ex, x, groups, weight, bias, eps)[0]


@exports(aten.native_group_norm.default)
def native_group_norm(
    ex: Exporter, x: OnnxValue, weight: OnnxValue | None, bias: OnnxValue | None, batch: Any, channels: Any,
    pixels: Any,
    groups: int, eps: float,
) -> list[OnnxValue]:  # fmt: skip
    made, mean, inverse = _normalize_groups(ex, x, groups, weight, bias, eps)
    return [made, ex.squeeze(mean, 2), ex.squeeze(inverse, 2)]
