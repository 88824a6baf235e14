"""Grouped matrix products, one matrix per group of rows, as mixtures of experts use them."""

from __future__ import annotations

from typing import Any

import torch

from ingot.onnx.exporter import Exporter
from ingot.onnx.registry import OnnxUnsupported, exports
from ingot.onnx.values import OnnxValue

aten = torch.ops.aten


@exports("transformers.grouped_mm_fallback.default")
def multiply_groups(ex: Exporter, x: OnnxValue, weight: OnnxValue, offs: OnnxValue) -> OnnxValue:
    """Rows of x up to offs[g], and from offs[g - 1] on, times weight[g]. Rows behind the last offset are zeros."""
    groups, _, columns = weight.sizes
    if not isinstance(groups, int):
        raise OnnxUnsupported("a data-dependent number of groups")
    ends = ex.cast(offs, torch.int64)
    begin, at, one = ex.ints([0]), ex.ints([0]), ex.ints([1])
    made = []
    for group in range(groups):
        end = ex.op("Slice", ends, ex.ints([group]), ex.ints([group + 1]), at)
        rows = ex.op("Slice", x, begin, end, at, one)
        matrix = ex.op("Gather", weight, ex.number(group, torch.int64), axis=0)
        made.append(ex.op("MatMul", rows, matrix))
        begin = end
    left = ex.op("Sub", ex.sizes.one(x.sizes[0]), begin)
    shape = ex.op("Concat", ex.op("Max", left, ex.ints([0])), ex.sizes.one(columns), axis=0)
    made.append(ex.op("Expand", ex.number(0.0, x.dtype), shape))
    return ex.op("Concat", *made, axis=0)


@exports(aten._grouped_mm.default)
def grouped_mm(
    ex: Exporter, x: OnnxValue, weight: OnnxValue, offs: OnnxValue | None = None, bias: OnnxValue | None = None,
    out_dtype: Any = None,
) -> OnnxValue:  # fmt: skip
    if x.rank != 2 or weight.rank != 3 or offs is None or bias is not None:
        raise OnnxUnsupported("a grouped product of other operands than rows and one matrix per group")
    return multiply_groups(ex, x, weight, offs)
