"""Order: sorting, the largest few, distinct values, places in sorted ones."""

from __future__ import annotations

import math
from typing import Any

import torch

from ingot.onnx.exporter import Exporter
from ingot.onnx.registry import OnnxUnsupported, exports
from ingot.onnx.values import OnnxValue, Size, axis

aten = torch.ops.aten


def _top(ex: Exporter, x: OnnxValue, count: Size, dim: int, largest: bool) -> list[OnnxValue]:
    """The first `count` in order; of equal ones the first comes first."""
    at = axis(dim, x.rank)
    key = ex.cast(x, torch.uint8) if x.dtype is torch.bool else x
    values, places = ex.several("TopK", 2, key, ex.sizes.one(count), axis=at, largest=int(largest), sorted=1)
    return [ex.cast(values, x.dtype), places]


def _sort(ex: Exporter, x: OnnxValue, dim: int, descending: bool) -> list[OnnxValue]:
    if not x.rank:
        return [x, ex.number(0, torch.int64)]
    return _top(ex, x, x.sizes[axis(dim, x.rank)], dim, descending)


@exports(aten.sort.default)
def sort(ex: Exporter, x: OnnxValue, dim: int = -1, descending: bool = False) -> list[OnnxValue]:
    return _sort(ex, x, dim, descending)


@exports(aten.sort.stable)
def sort_stable(
    ex: Exporter, x: OnnxValue, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> list[OnnxValue]:
    return _sort(ex, x, dim, descending)


@exports(aten.argsort.default)
def argsort(ex: Exporter, x: OnnxValue, dim: int = -1, descending: bool = False) -> OnnxValue:
    return _sort(ex, x, dim, descending)[1]


@exports(aten.argsort.stable)
def argsort_stable(ex: Exporter, x: OnnxValue, *, stable: bool, dim: int = -1, descending: bool = False) -> OnnxValue:
    return _sort(ex, x, dim, descending)[1]


@exports(aten.topk.default)
def topk(
    ex: Exporter, x: OnnxValue, count: Size, dim: int = -1, largest: bool = True, sorted: bool = True
) -> list[OnnxValue]:
    if not x.rank:
        return [x, ex.number(0, torch.int64)]
    return _top(ex, x, count, dim, largest)


@exports(aten.kthvalue.default)
def kthvalue(ex: Exporter, x: OnnxValue, k: int, dim: int = -1, keepdim: bool = False) -> list[OnnxValue]:
    return _nth(ex, x, k - 1, dim, keepdim)


def _nth(ex: Exporter, x: OnnxValue, place: Size, dim: int, keepdim: bool) -> list[OnnxValue]:
    if not x.rank:
        return [x, ex.number(0, torch.int64)]
    at = axis(dim, x.rank)
    parts = _top(ex, x, place + 1, dim, False)
    index = ex.sizes.one(place) if keepdim else ex.sizes.scalar(place)
    return [ex.op("Gather", part, index, axis=at) for part in parts]


@exports(aten.median.dim)
def median(ex: Exporter, x: OnnxValue, dim: int, keepdim: bool = False) -> list[OnnxValue]:
    if not x.rank:
        return [x, ex.number(0, torch.int64)]
    return _nth(ex, x, (x.sizes[axis(dim, x.rank)] - 1) // 2, dim, keepdim)


@exports(aten.median.default)
def median_all(ex: Exporter, x: OnnxValue) -> OnnxValue:
    if not x.rank:
        return x
    count: Size = 1
    for size in x.sizes:
        count = count * size
    if count == 0:
        if not x.is_float:
            raise OnnxUnsupported("the median of nothing, as an integer")
        return ex.number(math.nan, x.dtype)
    flat = ex.reshape(x, [count])
    return _nth(ex, flat, (count - 1) // 2, 0, False)[0]


@exports(aten._unique2.default)
def unique(
    ex: Exporter, x: OnnxValue, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> list[OnnxValue]:
    values, _, inverse, counts = _distinct(ex, ex.reshape(x, [-1]), x.dtype, None)
    placed = ex.reshape(OnnxValue(inverse.value, torch.int64), x.sizes)
    return [values, *_drop_unrequested(ex, (placed, return_inverse), (counts, return_counts))]


@exports(aten.unique_dim.default)
def unique_dim(
    ex: Exporter, x: OnnxValue, dim: int, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> list[OnnxValue]:
    values, _, inverse, counts = _distinct(ex, x, x.dtype, axis(dim, x.rank))
    return [values, *_drop_unrequested(ex, (inverse, return_inverse), (counts, return_counts))]


@exports(aten.unique_consecutive.default)
def unique_consecutive(
    ex: Exporter, x: OnnxValue, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> list[OnnxValue]:
    at = 0 if dim is None else axis(dim, x.rank)
    parts = ex.reshape(x, [-1]) if dim is None else x
    count: Size = math.prod(x.sizes) if dim is None else x.sizes[at]
    zero, one, last, along = ex.ints([0]), ex.ints([1]), ex.ints([2**63 - 1]), ex.ints([at])
    same = ex.op("Equal", ex.op("Slice", parts, one, last, along), ex.op("Slice", parts, zero, ex.ints([-1]), along))
    others = [] if dim is None else [d for d in range(x.rank) if d != at]
    if others:
        same = ex.cast(ex.op("ReduceMin", ex.cast(same, torch.int32), ex.ints(others), keepdims=0), torch.bool)
    begins = ex.op("Concat", ex.constant(torch.tensor([True])), ex.op("Not", same), axis=0)
    begins = ex.op("Slice", begins, zero, ex.sizes.one(count))  # of nothing, nothing begins
    values = ex.op("Compress", parts, begins, axis=at)
    inverse = ex.op("Sub", ex.op("CumSum", ex.cast(begins, torch.int64), ex.number(0, torch.int64)), one)
    places = ex.squeeze(ex.op("NonZero", begins), 0)
    ends = ex.op("Concat", ex.op("Slice", places, one, last), ex.sizes.one(count), axis=0)
    if dim is None:
        inverse = ex.reshape(OnnxValue(inverse.value, torch.int64), x.sizes)
    return [values, *_drop_unrequested(ex, (inverse, return_inverse), (ex.op("Sub", ends, places), return_counts))]


def _drop_unrequested(ex: Exporter, *parts: tuple[OnnxValue, bool]) -> list[OnnxValue]:
    """Results that were not requested are empty."""
    return [part if asked else ex.constant(torch.zeros(0, dtype=torch.int64)) for part, asked in parts]


def _distinct(ex: Exporter, x: OnnxValue, dtype: torch.dtype, at: int | None) -> list[OnnxValue]:
    key = x if dtype in (torch.float32, torch.float64, torch.int64, torch.int8) else ex.cast(x, torch.int64)
    if dtype in (torch.bfloat16, torch.float16):
        key = ex.cast(x, torch.float32)
    values, *rest = ex.several("Unique", 4, key, axis=at, sorted=1)
    return [ex.cast(values, dtype), *rest]


@exports(aten.searchsorted.Tensor, aten.searchsorted.Scalar)
def searchsorted(
    ex: Exporter, row: OnnxValue, x: Any, *, out_int32: bool = False, right: bool = False, side: str | None = None,
    sorter: OnnxValue | None = None,
) -> OnnxValue:  # fmt: skip
    if sorter is not None:
        row_ = ex.op("GatherElements", row, sorter, axis=-1)
        row = OnnxValue(row_.value, row.dtype, row.shape)
    return _places(ex, row, x, right or side == "right")


@exports(aten.bucketize.Tensor, aten.bucketize.Scalar)
def bucketize(ex: Exporter, x: Any, row: OnnxValue, *, out_int32: bool = False, right: bool = False) -> OnnxValue:
    return _places(ex, row, x, right)


def _places(ex: Exporter, row: OnnxValue, x: Any, right: bool) -> OnnxValue:
    """How many of a sorted row come before each value."""
    dtype = torch.promote_types(row.dtype, x.dtype) if isinstance(x, OnnxValue) else row.dtype
    rows = ex.cast(row, dtype)
    rank = x.rank if isinstance(x, OnnxValue) else 0
    values = ex.operand(x, dtype)
    wide = ex.unsqueeze(OnnxValue(values.value, dtype), rank)
    # [.., 1] beside [.., n]; where the row has one dim it goes with all values.
    rows_wide = rows if row.rank == 1 else OnnxValue(ex.unsqueeze(rows, row.rank - 1).value, dtype)
    before = ex.op("GreaterOrEqual" if right else "Greater", wide, rows_wide)
    return ex.op("ReduceSum", ex.cast(before, torch.int64), ex.ints([rank]), keepdims=0)


@exports(aten.repeat_interleave.Tensor)
def repeated_places(ex: Exporter, counts: OnnxValue, *, output_size: Any = None) -> OnnxValue:
    """Each place as often as its count says: how many end at or before each of the results."""
    counts, zero = ex.cast(counts, torch.int64), ex.number(0, torch.int64)
    ends = OnnxValue(ex.op("CumSum", counts, zero).value, torch.int64, counts.shape)
    total = ex.op("ReduceSum", counts, keepdims=0)
    numbers = ex.op("Range", zero, total, ex.number(1, torch.int64))
    return _places(ex, ends, OnnxValue(numbers.value, torch.int64, ex.shape), right=True)


@exports(aten.histc.default)
def histc(ex: Exporter, x: OnnxValue, bins: int = 100, low: Any = 0, high: Any = 0) -> OnnxValue:
    """How many elements are in each of equal ranges; the last one has its upper end too."""
    if low == high:
        raise OnnxUnsupported("ranges that depend on the smallest and the largest element")
    dtype = torch.float64
    value = ex.reshape(ex.cast(x, dtype), [-1])
    first, last = ex.operand(low, dtype), ex.operand(high, dtype)
    place = ex.op("Mul", ex.op("Sub", value, first), ex.number(bins / (high - low), dtype))
    place = ex.op("Min", ex.op("Floor", place), ex.number(float(bins - 1), dtype))
    inside = ex.op("And", ex.op("GreaterOrEqual", value, first), ex.op("LessOrEqual", value, last))
    number = ex.cast(ex.op("Where", inside, place, ex.number(-1.0, dtype)), torch.int64)
    same = ex.op("Equal", ex.unsqueeze(number, 1), ex.unsqueeze(ex.range(bins), 0))
    return ex.op("ReduceSum", ex.cast(same, torch.int64), ex.ints([0]), keepdims=0)
