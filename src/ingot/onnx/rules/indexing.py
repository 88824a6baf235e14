"""Reading and writing at places that tensors name."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import sympy
import torch

from ingot.onnx.export import Exporter
from ingot.onnx.registry import Unsupported, exports
from ingot.onnx.rules.pointwise import truth
from ingot.onnx.values import Size, Tensor, axis, sizes_of
from ingot.program.metadata import value_of

aten = torch.ops.aten


def _places(ex: Exporter, index: Tensor) -> Tensor:
    """Indices as kernels take them."""
    return index if index.dtype in (torch.int32, torch.int64) else ex.cast(index, torch.int64)


@exports(aten.embedding.default)
def embedding(ex: Exporter, weight: Tensor, index: Tensor, *_: Any, **__: Any) -> Tensor:
    return ex.op("Gather", weight, _places(ex, index), axis=0)


@exports(aten.index_select.default)
def index_select(ex: Exporter, x: Tensor, dim: int, index: Tensor) -> Tensor:
    if not x.rank:
        return x
    places = index if index.rank else ex.reshape(index, [1])
    return ex.op("Gather", x, _places(ex, places), axis=axis(dim, x.rank))


@exports(aten.gather.default)
def gather(ex: Exporter, x: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:
    places = _places(ex, index)
    if not x.rank:
        return ex.expand(x, index.sizes)
    if not index.rank:
        x, places = ex.reshape(x, [-1]), ex.reshape(places, [1])
        return ex.reshape(ex.op("GatherElements", x, places, axis=0), [])
    return ex.op("GatherElements", x, places, axis=axis(dim, x.rank))


@exports(aten.take.default)
def take(ex: Exporter, x: Tensor, index: Tensor) -> Tensor:
    return ex.op("Gather", ex.reshape(x, [-1]), index, axis=0)


@exports(aten.nonzero.default)
def nonzero(ex: Exporter, x: Tensor) -> Tensor:
    if not x.rank:  # one place without coordinates, or none
        flag = ex.cast(ex.reshape(truth(ex, x), [1]), torch.int64)
        return ex.op(
            "Expand", ex.constant(torch.zeros(1, 0, dtype=torch.int64)), ex.op("Concat", flag, ex.ints([0]), axis=0)
        )
    found = ex.op("NonZero", truth(ex, x))
    return ex.op("Transpose", found, perm=[1, 0])


@exports(aten.masked_select.default)
def masked_select(ex: Exporter, x: Tensor, mask: Tensor) -> Tensor:
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


def _indexed(ex: Exporter, x: Tensor, indices: Sequence[Tensor | None]) -> tuple[list[int], list[Tensor]]:
    """The dims that are indexed, and their indices as whole numbers: a mask is the places where it is true."""
    at: list[int] = []
    found: list[Tensor] = []
    dim = 0
    for index in indices:
        if index is None:
            dim += 1
        elif index.dtype is torch.bool or (index.dtype is torch.uint8):
            if not index.rank:
                raise Unsupported("an index that is a single bool")
            places = ex.op("NonZero", truth(ex, index))
            for place in range(index.rank):
                one = ex.op("Gather", places, ex.number(place, torch.int64), axis=0)
                found.append(Tensor(one.value, torch.int64, (_count(ex, index),)))
                at.append(dim)
                dim += 1
        else:
            found.append(ex.cast(index, torch.int64))
            at.append(dim)
            dim += 1
    return at, found


def _count(ex: Exporter, mask: Tensor) -> Any:
    """The size of what a mask chooses, which only the run tells: something of its own that equals itself."""
    return sympy.Symbol(f"chosen_{mask.value.name}")


@exports(aten.index.Tensor, aten._unsafe_index.Tensor)
def index(ex: Exporter, x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    at, found = _indexed(ex, x, indices)
    if not at:
        return x
    if len(at) == 1:
        return ex.op("Gather", x, found[0], axis=at[0])
    moved, places, shape = _gathered(ex, x, at, found)
    made = ex.op("GatherND", moved, places)
    rank = len(shape)
    together = at == list(range(at[0], at[0] + len(at)))
    if together and at[0]:  # the dims of the indices stand where the indexed ones stood
        order = [*range(rank, rank + at[0]), *range(rank), *range(rank + at[0], rank + x.rank - len(at))]
        return ex.op("Transpose", made, perm=order)
    return made


def _gathered(ex: Exporter, x: Tensor, at: Sequence[int], found: Sequence[Tensor]) -> tuple[Tensor, Tensor, list[Size]]:
    """The tensor with indexed dims first, one vector of indices for each place, and the shape of the places."""
    moved = ex.transpose(x, [*at, *(d for d in range(x.rank) if d not in at)])
    shape = _broadcast(*(part.sizes for part in found))
    if all(part.sizes == tuple(shape) for part in found):
        spread = list(found)
    else:
        target = _common_shape(ex, found)
        spread = [Tensor(ex.op("Expand", part, target).value, torch.int64) for part in found]
    columns = [ex.unsqueeze(part, len(shape)) for part in spread]
    return moved, ex.op("Concat", *columns, axis=len(shape)), shape


def _common_shape(ex: Exporter, found: Sequence[Tensor]) -> Tensor:
    """The shape that tensors broadcast to, as a vector: from the tensors, since only the run may know it."""
    total = found[0]
    for part in found[1:]:
        total = ex.op("Add", total, part)
    return ex.op("Shape", total)


@exports(aten.index_put.default, aten._unsafe_index_put.default, aten._index_put_impl.default)
def index_put(
    ex: Exporter, x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False, *_: Any
) -> Tensor:
    if len(indices) == 1 and indices[0] is not None and indices[0].dtype is torch.bool and not accumulate:
        mask = indices[0]
        if not values.rank or all(size == 1 for size in values.sizes):
            wide = ex.reshape(mask, [*mask.sizes, *([1] * (x.rank - mask.rank))])
            filling = ex.reshape(values, []) if values.rank else values
            return ex.op("Where", wide, ex.cast(filling, x.dtype), x)
    at, found = _indexed(ex, x, indices)
    if not at:
        return ex.expand(ex.cast(values, x.dtype), x.sizes)
    moved, places, shape = _gathered(ex, x, at, found)
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
    made = ex.op("ScatterND", moved, _inside(ex, places, [x.sizes[d] for d in at]), updates,
                 reduction="add" if accumulate else "none")  # fmt: skip
    order = [*at, *(d for d in range(x.rank) if d not in at)]
    return ex.transpose(Tensor(made.value, made.dtype), [order.index(d) for d in range(x.rank)])


def _inside(ex: Exporter, places: Tensor, sizes: Sequence[Size]) -> Tensor:
    """Negative places counted from the end."""
    negative = ex.op("Less", places, ex.number(0, torch.int64))
    return ex.op("Where", negative, ex.op("Add", places, ex.sizes.vector(sizes)), places)


# ---------------------------------------------------------------------- writing elements


def _at_least_1d(ex: Exporter, *parts: Tensor) -> list[Tensor]:
    return [part if part.rank else ex.reshape(part, [1]) for part in parts]


def scattered(ex: Exporter, x: Tensor, dim: int, index: Tensor, source: Tensor, reduction: str) -> Tensor:
    """Elements of `source` at the places that `index` names along a dim."""
    shape = x.sizes
    x, index = _at_least_1d(ex, x, index)
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
        raise Unsupported("a scatter that adds up bools")
    made = _written(ex, x, index, source, axis(dim, x.rank), reduction)
    return ex.reshape(Tensor(made.value, made.dtype, x.shape), shape)


def _written(ex: Exporter, x: Tensor, index: Tensor, source: Tensor, at: int, reduction: str) -> Tensor:
    """Kernels move bfloat16, and do not add it up."""
    if reduction != "none" and x.dtype is torch.bfloat16:
        x, source = (Tensor(ex.cast(part, torch.float32).value, torch.float32, part.shape) for part in (x, source))
    return ex.op("ScatterElements", x, index, source, axis=at, reduction=reduction)


@exports(aten.scatter.src)
def scatter(ex: Exporter, x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    return scattered(ex, x, dim, index, source, "none")


@exports(aten.scatter.value)
def scatter_value(ex: Exporter, x: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    filling = ex.operand(value, x.dtype)
    return scattered(ex, x, dim, index, Tensor(filling.value, x.dtype, ()), "none")


@exports(aten.scatter_add.default)
def scatter_add(ex: Exporter, x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    return scattered(ex, x, dim, index, source, "add")


_REDUCTIONS = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min", "add": "add", "multiply": "mul"}


@exports(aten.scatter.reduce)
def scatter_reduce_old(ex: Exporter, x: Tensor, dim: int, index: Tensor, source: Tensor, *, reduce: str) -> Tensor:
    return scattered(ex, x, dim, index, source, _REDUCTIONS[reduce])


@exports(aten.scatter.value_reduce)
def scatter_value_reduce(ex: Exporter, x: Tensor, dim: int, index: Tensor, value: Any, *, reduce: str) -> Tensor:
    filling = ex.operand(value, x.dtype)
    return scattered(ex, x, dim, index, Tensor(filling.value, x.dtype, ()), _REDUCTIONS[reduce])


@exports(aten.scatter_reduce.two)
def scatter_reduce(
    ex: Exporter, x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    if x.dtype is torch.bool:
        raise Unsupported("a scatter that reduces bools")
    if x.dtype is torch.bfloat16:
        x, source = (Tensor(ex.cast(part, torch.float32).value, torch.float32, part.shape) for part in (x, source))
    if not include_self:
        x = _without_self(ex, x, dim, index, reduce)
    if reduce != "mean":
        return scattered(ex, x, dim, index, source, _REDUCTIONS[reduce])
    total = scattered(ex, x, dim, index, source, "add")
    ones = ex.expand(Tensor(ex.number(1, x.dtype).value, x.dtype, ()), x.sizes)
    start = ones if include_self else _without_self(ex, ones, dim, index, "sum")
    one = Tensor(ex.number(1, x.dtype).value, x.dtype, ())
    count = scattered(ex, start, dim, index, one, "add")
    count = ex.op("Max", count, ex.number(1, x.dtype))
    if x.is_float:
        return ex.op("Div", total, count)
    left = ex.op("Mod", total, count)  # rounded down
    return ex.op("Div", ex.op("Sub", total, left), count)


_NEUTRAL = {"sum": 0, "prod": 1, "mean": 0, "amax": -math.inf, "amin": math.inf}


def _without_self(ex: Exporter, x: Tensor, dim: int, index: Tensor, reduce: str) -> Tensor:
    """What is about to be written is neutral before."""
    value = _NEUTRAL[reduce]
    if not x.is_float and isinstance(value, float):
        limits = torch.iinfo(x.dtype)
        value = limits.min if value < 0 else limits.max
    filling = Tensor(ex.number(value, x.dtype).value, x.dtype, ())
    return scattered(ex, x, dim, index, filling, "none")


# ---------------------------------------------------------------------- writing parts


@exports(aten.slice_scatter.default)
def slice_scatter(
    ex: Exporter, x: Tensor, source: Tensor, dim: int = 0, start: Size | None = None, end: Size | None = None,
    step: int = 1,
) -> Tensor:  # fmt: skip
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
    places = ex.reshape(Tensor(places.value, torch.int64), [-1, *([1] * (x.rank - at - 1))])
    index = ex.op("Expand", places, ex.sizes.vector(shape))
    return ex.op("ScatterElements", x, index, source, axis=at)


@exports(aten.select_scatter.default)
def select_scatter(ex: Exporter, x: Tensor, source: Tensor, dim: int, index: Size) -> Tensor:
    at = axis(dim, x.rank)
    sizes = [*x.sizes[:at], 1, *x.sizes[at + 1 :]]
    part = ex.reshape(ex.cast(source, x.dtype), sizes)
    places = ex.op("Expand", ex.sizes.one(index), ex.sizes.vector(sizes))
    return ex.op("ScatterElements", x, places, part, axis=at)


@exports(aten.index_fill.int_Scalar, aten.index_fill.int_Tensor)
def index_fill(ex: Exporter, x: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    filling = ex.operand(value, x.dtype)
    return _by_rows(ex, x, dim, index, Tensor(filling.value, x.dtype, ()), "none")


@exports(aten.index_copy.default)
def index_copy(ex: Exporter, x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    return _by_rows(ex, x, dim, index, source, "none")


@exports(aten.index_add.default)
def index_add(ex: Exporter, x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Any = 1) -> Tensor:
    source = ex.cast(source, x.dtype) if source.dtype is not x.dtype else source
    if alpha != 1:
        scaled = ex.op("Mul", source, ex.operand(alpha, x.dtype))
        source = Tensor(scaled.value, x.dtype, source.shape)
    return _by_rows(ex, x, dim, index, source, "add")


def _by_rows(ex: Exporter, x: Tensor, dim: int, index: Tensor, source: Tensor, reduction: str) -> Tensor:
    """One index for each row along a dim."""
    shape = x.sizes
    x, index = _at_least_1d(ex, x, index)
    at = axis(dim, x.rank)
    sizes = [*x.sizes[:at], index.sizes[0], *x.sizes[at + 1 :]]
    places = ex.reshape(_places(ex, index), [index.sizes[0], *([1] * (x.rank - at - 1))])
    places = ex.expand(places, sizes)
    if source.rank != x.rank:
        source = ex.expand(source, sizes) if not source.rank else ex.reshape(source, sizes)
    if reduction != "none" and x.dtype is torch.bool:
        raise Unsupported("a sum of bools at places")
    made = _written(ex, x, places, ex.cast(source, x.dtype), at, reduction)
    return ex.reshape(Tensor(made.value, made.dtype, x.shape), shape)


@exports(aten.masked_scatter.default)
def masked_scatter(ex: Exporter, x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
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
    return ex.op("Where", spread, ex.reshape(Tensor(taken.value, taken.dtype), shape), ex.expand(x, shape))
