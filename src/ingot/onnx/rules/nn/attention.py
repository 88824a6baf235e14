"""Attention: one node where the opset has it and it says the same, else the products and the softmax that it is."""

from __future__ import annotations

import math
from typing import Any

import torch

from ingot.ir.metadata import value_of
from ingot.onnx.exporter import Exporter
from ingot.onnx.registry import exports
from ingot.onnx.value_ranges import bounds
from ingot.onnx.values import OnnxValue, Size

aten = torch.ops.aten


def _has_no_dropout(node: Any) -> bool:
    given = dict(zip(("query", "key", "value", "attn_mask", "dropout_p"), node.args, strict=False)) | node.kwargs
    return bool(given.get("dropout_p", 0.0) == 0 and value_of(node.args[0]).is_floating_point())


@exports(aten.scaled_dot_product_attention.default, takes=_has_no_dropout)
def attention(
    ex: Exporter, query: OnnxValue, key: OnnxValue, value: OnnxValue, mask: OnnxValue | None = None,
    dropout: float = 0.0,
    is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
) -> OnnxValue:  # fmt: skip
    width = query.sizes[-1]
    if any(size == 0 for size in ex.shape):
        return ex.full(ex.shape, 0.0, query.dtype)
    if scale is None and isinstance(width, int):
        scale = 1 / math.sqrt(width) if width else 1.0
    if mask is not None and _hides_nothing(ex, query, mask):
        mask = None
    if ex.opset >= 23 and _one_node(query, key, value, mask, scale):
        spread = None if mask is None else _spread(ex, mask, query.sizes[-2], key.sizes[-2])
        made = ex.op("Attention", query, key, value, spread, is_causal=int(is_causal), scale=scale)
    else:
        if enable_gqa:
            key, value = (_repeat(ex, x, query.sizes[-3]) for x in (key, value))
        order = [*range(key.rank - 2), key.rank - 1, key.rank - 2]
        scores = ex.op("MatMul", query, ex.transpose(key, order))
        by = _inverse_root(ex, width, query.dtype) if scale is None else scale
        scores = ex.op("Mul", scores, ex.factor(by, query.dtype, [*query.sizes[:-1], key.sizes[-2]]))
        if is_causal:
            scores = ex.op("Add", scores, _causal(ex, query.sizes[-2], key.sizes[-2], query.dtype))
        if mask is not None:
            scores = ex.op("Add", scores, _add(ex, mask, query.dtype))
        made = ex.op("MatMul", ex.op("Softmax", scores, axis=-1), value)
    return made if mask is None or _every_row_sees(ex, mask) else _zero_hidden_rows(ex, made, mask)


def _hides_nothing(ex: Exporter, query: OnnxValue, mask: OnnxValue) -> bool:
    """Whether a mask is all true, or all zeros to add; one that makes the result larger says that as well."""
    open_ = 1.0 if mask.dtype is torch.bool else 0.0
    return bounds(ex, mask) == (open_, open_) and query.sizes[:-2] == ex.shape[:-2]


def _every_row_sees(ex: Exporter, mask: OnnxValue) -> bool:
    """Whether it is known that each query sees some key."""
    if mask.sizes[-1] == 0:
        return False
    if mask.dtype is not torch.bool:
        found = bounds(ex, mask)
        return found is not None and found[0] > -math.inf
    value, node = mask.value, mask.value.producer()
    while node is not None and node.op_type == "Expand" and node.inputs[0] is not None:  # the same rows more often
        value, node = node.inputs[0], node.inputs[0].producer()
    stored = ex.stored(value)
    return stored is not None and stored.dim() > 0 and bool(stored.any(-1).all())


def _one_node(query: OnnxValue, key: OnnxValue, value: OnnxValue, mask: OnnxValue | None, scale: float | None) -> bool:
    """Whether ONNX's Attention takes it: a batch, heads, and a mask of two dims or more."""
    rank = all(x.rank == 4 for x in (query, key, value))
    return rank and scale is not None and (mask is None or mask.rank >= 2) and query.dtype is not torch.float64


def _spread(ex: Exporter, mask: OnnxValue, rows: Size, columns: Size) -> OnnxValue:
    """A mask as Attention's kernels take it: two or four dims, a row for each query and a column for each key."""
    if mask.rank == 3:
        mask = ex.reshape(mask, [1, *mask.sizes])
    return ex.expand(mask, [*mask.sizes[:-2], rows, columns])


def _inverse_root(ex: Exporter, width: Size, dtype: torch.dtype) -> OnnxValue:
    return ex.op("Reciprocal", ex.op("Sqrt", ex.cast(ex.sizes.scalar(width), dtype)))


def _repeat(ex: Exporter, x: OnnxValue, heads: Size) -> OnnxValue:
    """Each head of keys or values as often as there are heads of queries to it."""
    own = x.sizes[-3]
    if own == heads:
        return x
    *batch, _, length, width = x.sizes
    assert isinstance(own, int) and isinstance(heads, int)
    x = ex.reshape(x, [*batch, own, 1, length, width])
    return ex.reshape(ex.expand(x, [*batch, own, heads // own, length, width]), [*batch, heads, length, width])


def _causal(ex: Exporter, rows: Size, columns: Size, dtype: torch.dtype) -> OnnxValue:
    """What is added to scores so that a row sees the columns up to its own number."""

    def make() -> OnnxValue:
        seen = ex.op("GreaterOrEqual", ex.unsqueeze(ex.range(rows), 1), ex.unsqueeze(ex.range(columns), 0))
        return ex.op("Where", seen, ex.number(0.0, dtype), ex.number(-math.inf, dtype))

    return ex.once(("causal", rows, columns, dtype), make)


def _add(ex: Exporter, mask: OnnxValue, dtype: torch.dtype) -> OnnxValue:
    """A mask as what is added to scores."""
    if mask.dtype is not torch.bool:
        return ex.cast(mask, dtype)
    hidden, seen = ex.number(-math.inf, dtype), ex.number(0.0, dtype)
    return ex.once(("mask", mask.value, dtype), lambda: ex.op("Where", mask, seen, hidden))


def _zero_hidden_rows(ex: Exporter, made: OnnxValue, mask: OnnxValue) -> OnnxValue:
    """A query that may see nothing gets zeros from torch, where a softmax alone returns nan."""

    def make() -> OnnxValue:
        last = ex.ints([-1])
        if mask.dtype is torch.bool:
            largest = ex.op("ReduceMax", ex.cast(mask, torch.int32), last, keepdims=1)
            return ex.cast(largest, torch.bool)
        largest = ex.op("ReduceMax", mask, last, keepdims=1)
        return ex.op("Greater", largest, ex.number(-math.inf, mask.dtype))

    sees = ex.once(("sees", mask.value), make)
    return ex.op("Where", sees, made, ex.number(0.0, made.dtype))
