"""Rows of tables summed by bag, and distances between rows."""

from __future__ import annotations

import math
from typing import Any

import torch

from ingot.onnx.exporter import Exporter
from ingot.onnx.registry import OnnxUnsupported, exports
from ingot.onnx.values import OnnxValue

aten = torch.ops.aten

_SUM, _MEAN, _MAX = 0, 1, 2


@exports(aten._embedding_bag.default, aten._embedding_bag_forward_only.default)
def embedding_bag(
    ex: Exporter, weight: OnnxValue, indices: OnnxValue, offsets: OnnxValue, _scale_grad: bool = False,
    mode: int = _SUM,
    _sparse: bool = False, weights: OnnxValue | None = None, include_last: bool = False, padding: int = -1,
) -> list[OnnxValue]:  # fmt: skip
    """A row belongs to the last bag that begins at it or before; rows of the padding index count in none."""
    if any(user.args[1] != 0 for user in ex.node.users):
        raise OnnxUnsupported("results of embedding_bag that only its backward reads")
    bags, width = ex.shape
    index = ex.cast(indices, torch.int64)
    starts = ex.cast(offsets, torch.int64)
    if include_last:
        starts = ex.slice(starts, 0, 0, bags)
    places = ex.range(indices.sizes[0])
    begun = ex.op("GreaterOrEqual", ex.unsqueeze(places, 1), ex.unsqueeze(starts, 0))
    one = ex.number(1, torch.int64)
    bag = ex.op("Sub", ex.op("ReduceSum", ex.cast(begun, torch.int64), ex.ints([1]), keepdims=0), one)
    rows = ex.op("Gather", weight, index, axis=0)
    counted = ex.expand(OnnxValue(ex.number(1, weight.dtype).value, weight.dtype, ()), indices.sizes)
    if padding >= 0:
        ignored = ex.op("Equal", index, ex.number(padding, torch.int64))
        counted = ex.op("Where", ignored, ex.number(0, weight.dtype), counted)
        neutral = ex.number(0 if mode != _MAX else -math.inf, weight.dtype)
        rows = ex.op("Where", ex.unsqueeze(ignored, 1), neutral, rows)
    if weights is not None:
        rows = ex.op("Mul", rows, ex.unsqueeze(ex.cast(weights, weight.dtype), 1))
    column = ex.unsqueeze(bag, 1)
    target = ex.op("Expand", column, ex.sizes.vector([indices.sizes[0], width]))
    start = ex.full([bags, width], 0 if mode != _MAX else -math.inf, weight.dtype)
    reduction = "max" if mode == _MAX else "add"
    made = ex.op("ScatterElements", start, target, rows, axis=0, reduction=reduction)
    if mode == _SUM:
        total = made
    else:
        none = ex.full([bags], 0, weight.dtype)
        count = ex.op("ScatterElements", none, bag, counted, axis=0, reduction="add")
        wide = ex.unsqueeze(count, 1)
        if mode == _MEAN:
            total = ex.op("Div", made, ex.op("Max", wide, ex.number(1, weight.dtype)))
        else:
            empty = ex.op("Equal", wide, ex.number(0, weight.dtype))
            total = ex.op("Where", empty, ex.number(0, weight.dtype), made)
    unused = ex.constant(torch.zeros(0, dtype=torch.int64))
    return [total, unused, unused, unused]


@exports(aten.embedding_dense_backward.default)
def embedding_backward(
    ex: Exporter, gradient: OnnxValue, indices: OnnxValue, count: Any, padding: int, by_frequency: bool
) -> OnnxValue:
    if by_frequency:
        raise OnnxUnsupported("scale_grad_by_freq")
    width = gradient.sizes[-1]
    places: Any = 1
    for size in indices.sizes:
        places = places * size
    flat = ex.reshape(gradient, [places, width])
    rows = ex.reshape(ex.cast(indices, torch.int64), [places, 1])
    if padding >= 0:
        ignored = ex.op("Equal", rows, ex.number(padding, torch.int64))
        flat = ex.op("Where", ignored, ex.number(0, gradient.dtype), flat)
    target = ex.op("Expand", rows, ex.sizes.vector([places, width]))
    start = ex.full([count, width], 0, gradient.dtype)
    return ex.op("ScatterElements", start, target, flat, axis=0, reduction="add")


@exports(aten._cdist_forward.default)
def cdist(ex: Exporter, x: OnnxValue, y: OnnxValue, p: float, mode: int | None = None) -> OnnxValue:
    """The distance of every row from every row; in float64, so that near ones keep their digits."""
    wide = [ex.cast(part, torch.float64) for part in (x, y)]
    apart = ex.op("Abs", ex.op("Sub", ex.unsqueeze(wide[0], x.rank - 1), ex.unsqueeze(wide[1], y.rank - 2)))
    last = ex.ints([-1])
    if 0 in x.sizes[-1:]:
        return ex.full(ex.shape, 0, ex.dtype)
    if p == 0:
        some = ex.op("Not", ex.op("Equal", apart, ex.number(0.0, torch.float64)))
        return ex.op("ReduceSum", ex.cast(some, torch.float64), last, keepdims=0)
    if p == math.inf:
        return ex.op("ReduceMax", apart, last, keepdims=0)
    if p == 1:
        return ex.op("ReduceSum", apart, last, keepdims=0)
    powers = ex.op("Mul", apart, apart) if p == 2 else ex.op("Pow", apart, ex.number(float(p), torch.float64))
    total = ex.op("ReduceSum", powers, last, keepdims=0)
    return ex.op("Sqrt", total) if p == 2 else ex.op("Pow", total, ex.number(1 / float(p), torch.float64))
