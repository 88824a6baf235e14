"""Reading and writing at places that tensors name."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import sympy
import torch

from ingot.ir.metadata import value_of
from ingot.onnx.exporter import Exporter
from ingot.onnx.registry import OnnxUnsupported, exports
from ingot.onnx.rules.pointwise import truth
from ingot.onnx.values import OnnxValue, Size, axis, sizes_of

aten = torch.ops.aten


def _places(ex: Exporter, index: OnnxValue) -> OnnxValue:
    """Indices as kernels take them."""
    return index if index.dtype in (torch.int32, torch.int64) else ex.cast(index, torch.int64)


@exports(aten.embedding.default, moves_data=True)
def embedding(ex: Exporter, weight: OnnxValue, index: OnnxValue, *_: Any, **__: Any) -> OnnxValue:
    return ex.op("Gather", weight, _places(ex, index), axis=0)


@exports(aten.index_select.default, moves_data=True)
def index_select(ex: Exporter, x: OnnxValue, dim: int, index: OnnxValue) -> OnnxValue:
    if not x.rank:
        return x
    places = index if index.rank else ex.reshape(index, [1])
    return ex.op("Gather", x, _places(ex, places), axis=axis(dim, x.rank))


@exports(aten.gather.default, moves_data=True)
def gather(ex: Exporter, x: OnnxValue, dim: int, index: OnnxValue, *, sparse_grad: bool = False) -> OnnxValue:
    places = _places(ex, index)
    if not x.rank:
        return ex.expand(x, index.sizes)
    if not index.rank:
        x, places = ex.reshape(x, [-1]), ex.reshape(places, [1])
        return ex.reshape(ex.op("GatherElements", x, places, axis=0), [])
    return ex.op("GatherElements", x, places, axis=axis(dim, x.rank))


@exports(aten.take.default, moves_data=True)
def take(ex: Exporter, x: OnnxValue, index: OnnxValue) -> OnnxValue:
    return ex.op("Gather", ex.reshape(x, [-1]), index, axis=0)


@exports(aten.nonzero.default, moves_data=True)
def nonzero(ex: Exporter, x: OnnxValue) -> OnnxValue:
    if not x.rank:  # one place without coordinates, or none
        flag = ex.cast(ex.reshape(truth(ex, x), [1]), torch.int64)
        return ex.op(
            "Expand", ex.constant(torch.zeros(1, 0, dtype=torch.int64)), ex.op("Concat", flag, ex.ints([0]), axis=0)
        )
    found = ex.op("NonZero", truth(ex, x))
    return ex.op("Transpose", found, perm=[1, 0])


@exports(aten.masked_select.default, moves_data=True)
def masked_select(ex: Exporter, x: OnnxValue, mask: OnnxValue) -> OnnxValue:
    shape = _broadcast(x.sizes, mask.sizes)
    flat, kept = (ex.reshape(ex.expand(part, shape), [-1]) for part in (x, mask))
    return ex.op("Compress", flat, truth(ex, kept), axis=0)


def _broadcast(*shapes: Sequence[Size]) -> list[Size]:
    rank = max(len(shape) for shape in shapes)
    made: list[Size] = []
    for place in range(rank):
        sizes = [shape[place - rank + len(shape)] for shape in shapes if place - rank + len(shape) >= 0]
        made.append(next((size for size in sizes if size != 1), 1))
    return made


# ---------------------------------------------------------------------- indices of several dims


def _find_indexed(ex: Exporter, x: OnnxValue, indices: Sequence[OnnxValue | None]) -> tuple[list[int], list[OnnxValue]]:
    """The dims that are indexed, and their indices as integers: a mask becomes the positions where it is true."""
    at: list[int] = []
    found: list[OnnxValue] = []
    dim = 0
    for index in indices:
        if index is None:
            dim += 1
        elif index.dtype is torch.bool or (index.dtype is torch.uint8):
            if not index.rank:
                raise OnnxUnsupported("an index that is a single bool")
            places = ex.op("NonZero", truth(ex, index))
            for place in range(index.rank):
                one = ex.op("Gather", places, ex.number(place, torch.int64), axis=0)
                found.append(OnnxValue(one.value, torch.int64, (_count(ex, index),)))
                at.append(dim)
                dim += 1
        else:
            found.append(ex.cast(index, torch.int64))
            at.append(dim)
            dim += 1
    return at, found


def _count(ex: Exporter, mask: OnnxValue) -> Any:
    """The size of what a mask selects, which is data-dependent: a value that equals only itself."""
    return sympy.Symbol(f"chosen_{mask.value.name}")


@exports(aten.index.Tensor, aten._unsafe_index.Tensor, moves_data=True)
def index(ex: Exporter, x: OnnxValue, indices: Sequence[OnnxValue | None]) -> OnnxValue:
    at, found = _find_indexed(ex, x, indices)
    if not at:
        return x
    if len(at) == 1:
        return ex.op("Gather", x, found[0], axis=at[0])
    moved, places, shape = _gather(ex, x, at, found)
    made = ex.op("GatherND", moved, places)
    rank = len(shape)
    together = at == list(range(at[0], at[0] + len(at)))
    if together and at[0]:  # the dims of the indices stand where the indexed ones stood
        order = [*range(rank, rank + at[0]), *range(rank), *range(rank + at[0], rank + x.rank - len(at))]
        return ex.op("Transpose", made, perm=order)
    return made


def _gather(
    ex: Exporter, x: OnnxValue, at: Sequence[int], found: Sequence[OnnxValue]
) -> tuple[OnnxValue, OnnxValue, list[Size]]:
    """The tensor with indexed dims first, one vector of indices for each place, and the shape of the places."""
    moved = ex.transpose(x, [*at, *(d for d in range(x.rank) if d not in at)])
    shape = _broadcast(*(part.sizes for part in found))
    if all(part.sizes == tuple(shape) for part in found):
        spread = list(found)
    else:
        target = _common_shape(ex, found)
        spread = [OnnxValue(ex.op("Expand", part, target).value, torch.int64) for part in found]
    columns = [ex.unsqueeze(part, len(shape)) for part in spread]
    return moved, ex.op("Concat", *columns, axis=len(shape)), shape


def _common_shape(ex: Exporter, found: Sequence[OnnxValue]) -> OnnxValue:
    """The shape that tensors broadcast to, as a vector: from the tensors, since it may be data-dependent."""
    total = found[0]
    for part in found[1:]:
        total = ex.op("Add", total, part)
    return ex.op("Shape", total)


@exports(aten.index_put.default, aten._unsafe_index_put.default, aten._index_put_impl.default, moves_data=True)
def index_put(
    ex: Exporter,
    x: OnnxValue,
    indices: Sequence[OnnxValue | None],
    values: OnnxValue,
    accumulate: bool = False,
    *_: Any,
) -> OnnxValue:
    if len(indices) == 1 and indices[0] is not None and indices[0].dtype is torch.bool and not accumulate:
        mask = indices[0]
        if not values.rank or all(size == 1 for size in values.sizes):
            wide = ex.reshape(mask, [*mask.sizes, *([1] * (x.rank - mask.rank))])
            filling = ex.reshape(values, []) if values.rank else values
            return ex.op("Where", wide, ex.cast(filling, x.dtype), x)
    at, found = _find_indexed(ex, x, indices)
    if not at:
        return ex.expand(ex.cast(values, x.dtype), x.sizes)
    moved, places, shape = _gather(ex, x, at, found)
    rest = [x.sizes[d] for d in range(x.rank) if d not in at]
    together = at == list(range(at[0], at[0] + len(at)))
    values = ex.cast(values, x.dtype)
    lead = list(range(at[0])) if together else []
    if lead:  # values are laid out as the indexed tensor would be
        rank, own = len(shape), values.rank
        full = rank + len(rest)
        values = ex.reshape(values, [*([1] * (full - own)), *values.sizes])
        values = ex.transpose(values, [*range(len(lead), len(lead) + rank), *lead, *range(len(lead) + rank, full)])
    head = ex.op("Slice", ex.op("Shape", places), ex.ints([0]), ex.ints([-1]), ex.ints([0]))
    target = ex.op("Concat", head, ex.sizes.vector(rest), axis=0) if rest else head
    updates = ex.op("Expand", values, target)
    made = ex.op("ScatterND", moved, _wrap_negative(ex, places, [x.sizes[d] for d in at]), updates,
                 reduction="add" if accumulate else "none")  # fmt: skip
    order = [*at, *(d for d in range(x.rank) if d not in at)]
    return ex.transpose(OnnxValue(made.value, made.dtype), [order.index(d) for d in range(x.rank)])


def _wrap_negative(ex: Exporter, places: OnnxValue, sizes: Sequence[Size]) -> OnnxValue:
    """Negative places counted from the end."""
    negative = ex.op("Less", places, ex.number(0, torch.int64))
    return ex.op("Where", negative, ex.op("Add", places, ex.sizes.vector(sizes)), places)


# ---------------------------------------------------------------------- writing elements


def _make_at_least_1d(ex: Exporter, *parts: OnnxValue) -> list[OnnxValue]:
    return [part if part.rank else ex.reshape(part, [1]) for part in parts]


def export_scatter(
    ex: Exporter, x: OnnxValue, dim: int, index: OnnxValue, source: OnnxValue, reduction: str
) -> OnnxValue:
    """Elements of `source` at the places that `index` names along a dim."""
    shape = x.sizes
    x, index = _make_at_least_1d(ex, x, index)
    index = _places(ex, index)
    source = ex.cast(source, x.dtype)
    if source.rank:
        bigger = any(a != b for a, b in zip(source.sizes, index.sizes, strict=True))
        if bigger:  # only as much of it as there are indices
            sizes = index.sizes
            at = list(range(len(sizes)))
            source = ex.op("Slice", source, ex.ints([0] * len(sizes)), ex.sizes.vector(sizes), ex.ints(at))
    else:
        source = ex.expand(source, index.sizes)
    if reduction != "none" and x.dtype is torch.bool:
        raise OnnxUnsupported("a scatter that adds up bools")
    made = _write_at(ex, x, index, source, axis(dim, x.rank), reduction)
    return ex.reshape(OnnxValue(made.value, made.dtype, x.shape), shape)


def _write_at(ex: Exporter, x: OnnxValue, index: OnnxValue, source: OnnxValue, at: int, reduction: str) -> OnnxValue:
    """Kernels move bfloat16, and do not add it up."""
    if reduction != "none" and x.dtype is torch.bfloat16:
        x, source = (OnnxValue(ex.cast(part, torch.float32).value, torch.float32, part.shape) for part in (x, source))
    return ex.op("ScatterElements", x, index, source, axis=at, reduction=reduction)


@exports(aten.scatter.src, moves_data=True)
def scatter(ex: Exporter, x: OnnxValue, dim: int, index: OnnxValue, source: OnnxValue) -> OnnxValue:
    return export_scatter(ex, x, dim, index, source, "none")


@exports(aten.scatter.value, moves_data=True)
def scatter_value(ex: Exporter, x: OnnxValue, dim: int, index: OnnxValue, value: Any) -> OnnxValue:
    filling = ex.operand(value, x.dtype)
    return export_scatter(ex, x, dim, index, OnnxValue(filling.value, x.dtype, ()), "none")


@exports(aten.scatter_add.default, moves_data=True)
def scatter_add(ex: Exporter, x: OnnxValue, dim: int, index: OnnxValue, source: OnnxValue) -> OnnxValue:
    return export_scatter(ex, x, dim, index, source, "add")


_REDUCTIONS = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min", "add": "add", "multiply": "mul"}


@exports(aten.scatter.reduce, moves_data=True)
def scatter_reduce_old(
    ex: Exporter, x: OnnxValue, dim: int, index: OnnxValue, source: OnnxValue, *, reduce: str
) -> OnnxValue:
    return export_scatter(ex, x, dim, index, source, _REDUCTIONS[reduce])


@exports(aten.scatter.value_reduce, moves_data=True)
def scatter_value_reduce(
    ex: Exporter, x: OnnxValue, dim: int, index: OnnxValue, value: Any, *, reduce: str
) -> OnnxValue:
    filling = ex.operand(value, x.dtype)
    return export_scatter(ex, x, dim, index, OnnxValue(filling.value, x.dtype, ()), _REDUCTIONS[reduce])


@exports(aten.scatter_reduce.two, moves_data=True)
def scatter_reduce(
    ex: Exporter, x: OnnxValue, dim: int, index: OnnxValue, source: OnnxValue, reduce: str, *, include_self: bool = True
) -> OnnxValue:
    if x.dtype is torch.bool:
        raise OnnxUnsupported("a scatter that reduces bools")
    if x.dtype is torch.bfloat16:
        x, source = (OnnxValue(ex.cast(part, torch.float32).value, torch.float32, part.shape) for part in (x, source))
    if not include_self:
        x = _reset_targets(ex, x, dim, index, reduce)
    if reduce != "mean":
        return export_scatter(ex, x, dim, index, source, _REDUCTIONS[reduce])
    total = export_scatter(ex, x, dim, index, source, "add")
    ones = ex.expand(OnnxValue(ex.number(1, x.dtype).value, x.dtype, ()), x.sizes)
    start = ones if include_self else _reset_targets(ex, ones, dim, index, "sum")
    one = OnnxValue(ex.number(1, x.dtype).value, x.dtype, ())
    count = export_scatter(ex, start, dim, index, one, "add")
    count = ex.op("Max", count, ex.number(1, x.dtype))
    if x.is_float:
        return ex.op("Div", total, count)
    left = ex.op("Mod", total, count)  # rounded down
    return ex.op("Div", ex.op("Sub", total, left), count)


_NEUTRAL = {"sum": 0, "prod": 1, "mean": 0, "amax": -math.inf, "amin": math.inf}


def _reset_targets(ex: Exporter, x: OnnxValue, dim: int, index: OnnxValue, reduce: str) -> OnnxValue:
    """What is about to be written is neutral before."""
    value = _NEUTRAL[reduce]
    if not x.is_float and isinstance(value, float):
        limits = torch.iinfo(x.dtype)
        value = limits.min if value < 0 else limits.max
    filling = OnnxValue(ex.number(value, x.dtype).value, x.dtype, ())
    return export_scatter(ex, x, dim, index, filling, "none")


# ---------------------------------------------------------------------- writing parts


@exports(aten.slice_scatter.default, moves_data=True)
def slice_scatter(
    ex: Exporter, x: OnnxValue, source: OnnxValue, dim: int = 0, start: Size | None = None, end: Size | None = None,
    step: int = 1,
) -> OnnxValue:  # fmt: skip
    """At places start, start + step …, as many as torch says the source has."""
    at = axis(dim, x.rank)
    source = ex.cast(source, x.dtype)
    shape = sizes_of(value_of(ex.node.args[1]).shape)  # type: ignore[arg-type]
    count = shape[at]
    whole = x.sizes[at]
    begin: Size = 0 if start is None else start
    if count == whole and step == 1:
        return source
    if isinstance(begin, int) and begin < 0:
        begin = whole + begin
    if isinstance(begin, int) and isinstance(whole, int):
        begin = min(max(begin, 0), whole)
    if step == 1:
        parts = []
        if begin != 0:
            parts.append(ex.slice(x, at, 0, begin))
        parts.append(source)
        last = begin + count
        if last != whole:
            parts.append(ex.slice(x, at, last, None))
        return ex.op("Concat", *parts, axis=at)
    places = ex.op("Add", ex.op("Mul", ex.range(count), ex.number(step, torch.int64)), ex.sizes.scalar(begin))
    places = ex.reshape(OnnxValue(places.value, torch.int64), [-1, *([1] * (x.rank - at - 1))])
    index = ex.op("Expand", places, ex.sizes.vector(shape))
    return ex.op("ScatterElements", x, index, source, axis=at)


@exports(aten.select_scatter.default, moves_data=True)
def select_scatter(ex: Exporter, x: OnnxValue, source: OnnxValue, dim: int, index: Size) -> OnnxValue:
    at = axis(dim, x.rank)
    sizes = [*x.sizes[:at], 1, *x.sizes[at + 1 :]]
    part = ex.reshape(ex.cast(source, x.dtype), sizes)
    places = ex.op("Expand", ex.sizes.one(index), ex.sizes.vector(sizes))
    return ex.op("ScatterElements", x, places, part, axis=at)


@exports(aten.index_fill.int_Scalar, aten.index_fill.int_Tensor, moves_data=True)
def index_fill(ex: Exporter, x: OnnxValue, dim: int, index: OnnxValue, value: Any) -> OnnxValue:
    filling = ex.operand(value, x.dtype)
    return _scatter_rows(ex, x, dim, index, OnnxValue(filling.value, x.dtype, ()), "none")


@exports(aten.index_copy.default, moves_data=True)
def index_copy(ex: Exporter, x: OnnxValue, dim: int, index: OnnxValue, source: OnnxValue) -> OnnxValue:
    return _scatter_rows(ex, x, dim, index, source, "none")


@exports(aten.index_add.default, moves_data=True)
def index_add(
    ex: Exporter, x: OnnxValue, dim: int, index: OnnxValue, source: OnnxValue, *, alpha: Any = 1
) -> OnnxValue:
    source = ex.cast(source, x.dtype) if source.dtype is not x.dtype else source
    if alpha != 1:
        scaled = ex.op("Mul", source, ex.operand(alpha, x.dtype))
        source = OnnxValue(scaled.value, x.dtype, source.shape)
    return _scatter_rows(ex, x, dim, index, source, "add")


def _scatter_rows(
    ex: Exporter, x: OnnxValue, dim: int, index: OnnxValue, source: OnnxValue, reduction: str
) -> OnnxValue:
    """One index for each row along a dim."""
    shape = x.sizes
    x, index = _make_at_least_1d(ex, x, index)
    at = axis(dim, x.rank)
    sizes = [*x.sizes[:at], index.sizes[0], *x.sizes[at + 1 :]]
    places = ex.reshape(_places(ex, index), [index.sizes[0], *([1] * (x.rank - at - 1))])
    places = ex.expand(places, sizes)
    if source.rank != x.rank:
        source = ex.expand(source, sizes) if not source.rank else ex.reshape(source, sizes)
    if reduction != "none" and x.dtype is torch.bool:
        raise OnnxUnsupported("an accumulation of bools by index")
    made = _write_at(ex, x, places, ex.cast(source, x.dtype), at, reduction)
    return ex.reshape(OnnxValue(made.value, made.dtype, x.shape), shape)


@exports(aten.masked_scatter.default, moves_data=True)
def masked_scatter(ex: Exporter, x: OnnxValue, mask: OnnxValue, source: OnnxValue) -> OnnxValue:
    """Where the mask is true for the nth time stands the nth element of the source."""
    shape = _broadcast(x.sizes, mask.sizes)
    spread = ex.expand(mask, shape)
    flags = ex.cast(ex.reshape(spread, [-1]), torch.int64)
    order = ex.op("Sub", ex.op("CumSum", flags, ex.number(0, torch.int64)), ex.number(1, torch.int64))
    order = ex.op("Max", order, ex.number(0, torch.int64))
    flat = ex.reshape(source, [-1])
    last = ex.op("Sub", ex.op("Size", flat), ex.number(1, torch.int64))
    padded = ex.op("Concat", flat, ex.constant(torch.zeros(1, dtype=source.dtype)), axis=0)
    taken = ex.op("Gather", padded, ex.op("Min", order, ex.op("Max", last, ex.number(0, torch.int64))), axis=0)
    return ex.op("Where", spread, ex.reshape(OnnxValue(taken.value, taken.dtype), shape), ex.expand(x, shape))
