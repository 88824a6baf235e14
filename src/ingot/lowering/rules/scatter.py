"""Writes at computed places. The points of a scatter may write the same element: they do so in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ingot.lowering import tensor_views
from ingot.lowering.dtypes import wide
from ingot.lowering.index_expr import Size, divide, product, remainder
from ingot.lowering.loop_body import BodyBuilder
from ingot.lowering.lower import Lowering, lowers
from ingot.lowering.rules.indexing import element, find_index_dims
from ingot.lowering.rules.pointwise import value_at
from ingot.lowering.rules.views import dim_of, offset_inside, strided_place
from ingot.lowering.tensor_views import (
    Deferred,
    Index,
    Strided,
    TensorValue,
    broadcast,
    broadcast_shapes,
    contiguous_strides,
)
from ingot.lowering.unsupported import LoweringUnsupported

aten = torch.ops.aten

_MODES = {"sum": "add", "add": "add", "prod": "prod", "multiply": "prod", "amax": "max", "amin": "min", "mean": "add"}


def as_computed(x: TensorValue) -> TensorValue:
    """The tensor in the dtype it is computed in: a half would round at every step of an accumulation."""
    return (
        x
        if wide(x.dtype) == x.dtype
        else TensorValue(x.shape, wide(x.dtype), Deferred(lambda ops, i: x.load(ops, i), x.cost))
    )


def narrow(x: TensorValue, dtype: str) -> TensorValue:
    return x if x.dtype == dtype else TensorValue(x.shape, dtype, Deferred(lambda ops, i: x.load(ops, i), x.cost))


def writable(low: Lowering, x: TensorValue) -> TensorValue:
    """A dense copy of the tensor without other readers."""
    name = low.buffer("temporary", x.dtype, x.shape).name
    low.realize(low.lazy_copy(x), into=name)
    return TensorValue(x.shape, x.dtype, Strided(name, 0, contiguous_strides(x.shape)))


def _empty(x: TensorValue) -> bool:
    return any(isinstance(size, int) and size == 0 for size in x.shape)


# ---------------------------------------------------------------------- along one dim


def lower_scatter(
    low: Lowering, x: TensorValue, dim: int, places: TensorValue, source: Any, mode: str = "set", include: bool = True,
    mean: bool = False, wraps: bool = False
) -> TensorValue:  # fmt: skip
    """x with source[…] written to places[…] of `dim`. Without `include`, what is hit starts from the identity.

    If it `wraps`, negative places count from the end.
    """
    dtype = x.dtype
    rank = max(x.rank, 1)
    dim = dim % rank
    x, places = (tensor_views.insert(t, 0) if not t.rank else t for t in (x, places))
    if isinstance(source, TensorValue) and not source.rank:
        source = tensor_views.insert(source, 0)
    rankless = low.out.dim() == 0
    if _empty(places):
        made = x
    else:
        made = writable(low, as_computed(x) if mode != "set" else x)
        kind = wide(dtype)
        places = low.materialize_if_expensive(places)

        def place(ops: BodyBuilder, index: Index) -> Index:
            at = ops.check_index(places.load(ops, index), x.shape[dim], wraps=wraps)
            return (*index[:dim], at, *index[dim + 1 :])

        def write(ops: BodyBuilder, index: Index) -> tuple[Index, int]:
            value = source.load(ops, index) if isinstance(source, TensorValue) else value_at(ops, source, (), dtype)
            return place(ops, index), ops.cast(value, kind)

        if not include:
            start = {"add": 0, "prod": 1, "max": _lowest(kind), "min": _highest(kind)}[mode]
            low.scatter(made, places.shape, lambda ops, index: (place(ops, index), ops.const(start, kind)))
        low.scatter(made, places.shape, write, mode)
        if mean:
            made = _average(low, made, places, place, include, kind)
        made = narrow(made, dtype)
    return tensor_views.drop(made, (0,)) if rankless else made


def _average(
    low: Lowering, total: TensorValue, places: TensorValue, place: Any, include: bool, kind: str
) -> TensorValue:
    count = writable(low, low.full(total.shape, int(include), kind))
    low.scatter(count, places.shape, lambda ops, index: (place(ops, index), ops.const(1, kind)), "add")

    def load(ops: BodyBuilder, index: Index) -> int:
        n = ops.call("max", count.load(ops, index), ops.const(1, kind))
        return ops.call("div" if kind in ("float32", "float64") else "floordiv", total.load(ops, index), n)

    return TensorValue(total.shape, kind, Deferred(load, 3))


def _lowest(dtype: str) -> int | float:
    kind = getattr(torch, dtype)
    return float("-inf") if kind.is_floating_point else 0 if dtype == "bool" else torch.iinfo(kind).min


def _highest(dtype: str) -> int | float:
    kind = getattr(torch, dtype)
    return float("inf") if kind.is_floating_point else 1 if dtype == "bool" else torch.iinfo(kind).max


@lowers(aten.scatter.src, aten.scatter.value, aten.scatter_add.default)
def scatter(low: Lowering, x: TensorValue, dim: int, places: TensorValue, source: Any) -> TensorValue:
    return lower_scatter(low, x, dim, places, source, "add" if low.node.target is aten.scatter_add.default else "set")


@lowers(aten.scatter.reduce, aten.scatter.value_reduce)
def scatter_with(
    low: Lowering, x: TensorValue, dim: int, places: TensorValue, source: Any, *, reduce: str
) -> TensorValue:
    return lower_scatter(low, x, dim, places, source, _MODES[reduce])


@lowers(aten.scatter_reduce.two)
def scatter_reduce(
    low: Lowering,
    x: TensorValue,
    dim: int,
    places: TensorValue,
    source: TensorValue,
    reduce: str,
    *,
    include_self: bool = True,
) -> TensorValue:
    return lower_scatter(low, x, dim, places, source, _MODES[reduce], include_self, reduce == "mean")


def _spread(x: TensorValue, dim: int, places: TensorValue, source: TensorValue) -> TensorValue:
    """Places of a vector as places of every element of `source`."""
    flat = places if places.rank else tensor_views.insert(places, 0)
    shape = source.shape if source.rank else (1,)
    return TensorValue(shape, places.dtype, Deferred(lambda ops, index: flat.load(ops, (index[dim],)), flat.cost + 1))


@lowers(aten.index_reduce.default)
def index_reduce(
    low: Lowering,
    x: TensorValue,
    dim: int,
    places: TensorValue,
    source: TensorValue,
    reduce: str,
    *,
    include_self: bool = True,
) -> TensorValue:
    dim = dim_of(x, dim)
    return lower_scatter(
        low, x, dim, _spread(x, dim, places, source), source, _MODES[reduce], include_self, reduce == "mean"
    )


# torch's decompositions of these accept negative indices that they reject, or reject those that they accept.
@lowers(whole=[aten.index_add.default])
def index_add(
    low: Lowering, x: TensorValue, dim: int, places: TensorValue, source: TensorValue, *, alpha: Any = 1
) -> TensorValue:
    dim = dim_of(x, dim)
    kind = wide(x.dtype)

    def load(ops: BodyBuilder, index: Index) -> int:
        return ops.call("mul", ops.cast(source.load(ops, index), kind), value_at(ops, alpha, (), x.dtype))

    scaled = source if alpha == 1 else TensorValue(source.shape, kind, Deferred(load, source.cost + 1))
    return lower_scatter(low, x, dim, _spread(x, dim, places, source), scaled, "add")


@lowers(whole=[aten.index_copy.default])
def index_copy(low: Lowering, x: TensorValue, dim: int, places: TensorValue, source: TensorValue) -> TensorValue:
    dim = dim_of(x, dim)
    return lower_scatter(low, x, dim, _spread(x, dim, places, source), source)


@lowers(whole=[aten.index_fill.int_Scalar, aten.index_fill.int_Tensor])
def index_fill(low: Lowering, x: TensorValue, dim: int, places: TensorValue, value: Any) -> TensorValue:
    dim = dim_of(x, dim)
    if not x.rank:
        x = tensor_views.insert(x, 0)  # as if of one element: there may be no place to fill
    count = places.numel
    shape = (*x.shape[:dim], count, *x.shape[dim + 1 :])
    stand_in = low.full(shape, 0, x.dtype)
    source = value
    if isinstance(value, TensorValue):
        source = TensorValue(shape, x.dtype, Deferred(lambda ops, index: value_at(ops, value, (), x.dtype), 1))
    return lower_scatter(low, x, dim, _spread(x, dim, places, stand_in), source, wraps=True)


# ---------------------------------------------------------------------- by several index tensors


@lowers(aten.index_put.default, aten._unsafe_index_put.default, aten._index_put_impl.default)
def index_put(
    low: Lowering,
    x: TensorValue,
    indices: Sequence[TensorValue | None],
    source: TensorValue,
    accumulate: bool = False,
    *_: Any,
) -> TensorValue:
    dtype = x.dtype
    masks = [i for i in indices if i is not None and i.dtype in ("bool", "uint8")]
    if masks:
        alone = sum(i is not None for i in indices) == 1
        if alone and all(size == 1 for size in source.shape):
            return _masked_put(low, x, indices, source, accumulate)
        from ingot.lowering.rules.boolean_indexing import replace_masks_by_indices  # which is built on this file

        if len(masks) > 1:
            raise LoweringUnsupported("a write through more than one mask")
        own = next(d for d, i in enumerate(indices) if i is not None)
        # The source has the places as one dim, before those that come after the mask's own.
        behind = x.rank - own - masks[0].rank
        expected = source.shape[source.rank - behind - 1] if alone and source.rank > behind else None
        indices = replace_masks_by_indices(low, indices, None if expected == 1 else expected)
    given = [i for i in indices if i is not None]
    if not given:
        return narrow(source, dtype)
    first, width = find_index_dims(indices, x.rank, 0)
    inner: tuple[Size, ...] = ()
    for each in given:
        inner = broadcast_shapes(inner, each.shape)
    indices = [i if i is None else low.align(i, inner) for i in indices]
    rest = [size for d, size in enumerate(x.shape) if d >= len(indices) or indices[d] is None]
    shape = (*rest[:first], *inner, *rest[first:])
    if any(isinstance(size, int) and size == 0 for size in shape):
        return x
    made = writable(low, as_computed(x) if accumulate else x)
    kept = [low.materialize_if_expensive(i) if i is not None else None for i in indices]
    source = low.align(source, shape)

    def write(ops: BodyBuilder, index: Index) -> tuple[Index, int]:
        place = element(ops, x.shape, kept, index, first, width)
        value = source.load(ops, broadcast(index, source.shape))
        return place, ops.cast(value, wide(dtype))

    low.scatter(made, shape, write, "add" if accumulate else "set")
    return narrow(made, dtype)


def _masked_put(
    low: Lowering, x: TensorValue, indices: Sequence[TensorValue | None], source: TensorValue, accumulate: bool
) -> TensorValue:
    """x[mask] = one value: every place asks the mask."""
    ((dim, mask),) = [(d, i) for d, i in enumerate(indices) if i is not None]
    kind = wide(x.dtype)

    def load(ops: BodyBuilder, index: Index) -> int:
        hit = ops.cast(mask.load(ops, index[dim : dim + mask.rank]), "bool")
        old = x.load(ops, index)
        value = ops.cast(source.load(ops, (0,) * source.rank), kind)
        return ops.where(hit, ops.call("add", old, value) if accumulate else value, old)

    return TensorValue(x.shape, x.dtype, Deferred(load, x.cost + mask.cost + source.cost + 2))


@lowers(aten.put.default)
def put(
    low: Lowering, x: TensorValue, places: TensorValue, source: TensorValue, accumulate: bool = False
) -> TensorValue:
    flat = tensor_views.reshape(x, (x.numel,), low.hint)
    where = tensor_views.reshape(places, (places.numel,), low.hint)
    what = tensor_views.reshape(low.materialize_if_expensive(source), (source.numel,), low.hint)
    made = (
        lower_scatter(low, flat, 0, where, what, "add" if accumulate else "set", wraps=True)
        if x.rank
        else _put_one(low, x, where, what, accumulate)
    )
    return tensor_views.reshape(made, x.shape, low.hint)


def _put_one(low: Lowering, x: TensorValue, places: TensorValue, source: TensorValue, accumulate: bool) -> TensorValue:
    return lower_scatter(low, x, 0, places, source, "add" if accumulate else "set", wraps=True)


@lowers(aten.masked_scatter.default)
def masked_scatter(low: Lowering, x: TensorValue, mask: TensorValue, source: TensorValue) -> TensorValue:
    """Places where the mask holds take the next element of source each: a running count of the mask says which."""
    shape = low.shape_of(low.out)
    mask, x = low.materialize_if_expensive(low.expand(mask, shape)), low.expand(x, shape)
    count = product(shape)
    ones = TensorValue(
        shape, "int64", Deferred(lambda ops, index: ops.cast(mask.load(ops, index), "int64"), mask.cost + 1)
    )
    (order,) = low.routine("scan", [ones], [(shape, "int64")], (1, count, 1), kind="sum")
    flat = low.make_contiguous(source)
    sizes = flat.shape

    def load(ops: BodyBuilder, index: Index) -> int:
        hit = ops.cast(mask.load(ops, index), "bool")
        number = ops.call("sub", order.load(ops, index), ops.const(1, "int64"))
        with ops.mask(hit):
            at = ops.check_index(number, flat.numel)
            place: list[Size] = []
            for size in reversed(sizes):
                place.append(remainder(at, size))
                at = divide(at, size)
            value = flat.load(ops, tuple(reversed(place)))
        return ops.where(hit, value, x.load(ops, index))

    if _empty(flat):
        return x
    return TensorValue(shape, x.dtype, Deferred(load, x.cost + mask.cost + 6))


# ---------------------------------------------------------------------- into a part known beforehand


@lowers(aten.select_scatter.default)
def select_scatter(low: Lowering, x: TensorValue, source: TensorValue, dim: int, place: Size) -> TensorValue:
    dim = dim_of(x, dim)
    at = x.shape[dim] + place if isinstance(place, int) and place < 0 else place

    def load(ops: BodyBuilder, index: Index) -> int:
        hit = ops.call("eq", ops.index(index[dim]), ops.index(at))
        with ops.mask(hit):
            value = ops.cast(source.load(ops, (*index[:dim], *index[dim + 1 :])), wide(x.dtype))
        return ops.where(hit, value, x.load(ops, index))

    return TensorValue(x.shape, x.dtype, Deferred(load, x.cost + source.cost + 2))


@lowers(aten.slice_scatter.default)
def slice_scatter(
    low: Lowering, x: TensorValue, source: TensorValue, dim: int = 0, start: Any = None, end: Any = None, step: Size = 1
) -> TensorValue:
    from ingot.lowering.rules.views import first_place

    dim = dim_of(x, dim)
    begin = first_place(low, start, x.shape[dim])
    length = source.shape[dim]

    def load(ops: BodyBuilder, index: Index) -> int:
        away = index[dim] - begin
        hit = ops.call(
            "and",
            ops.call("ge", ops.index(away), ops.index(0)),
            ops.call("lt", ops.index(away), ops.index(length * step)),
        )
        if step != 1:
            hit = ops.call("and", hit, ops.call("eq", ops.index(remainder(away, step)), ops.index(0)))
        with ops.mask(hit):
            value = ops.cast(source.load(ops, (*index[:dim], divide(away, step), *index[dim + 1 :])), wide(x.dtype))
        return ops.where(hit, value, x.load(ops, index))

    return x if length == 0 else TensorValue(x.shape, x.dtype, Deferred(load, x.cost + source.cost + 3))


@lowers(aten.diagonal_scatter.default)
def diagonal_scatter(
    low: Lowering, x: TensorValue, source: TensorValue, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> TensorValue:
    a, b = dim_of(x, dim1), dim_of(x, dim2)
    rest = [d for d in range(x.rank) if d not in (a, b)]

    def load(ops: BodyBuilder, index: Index) -> int:
        hit = ops.call("eq", ops.index(index[b] - index[a]), ops.index(offset))
        along = index[a] - max(-offset, 0)
        with ops.mask(hit):
            value = ops.cast(source.load(ops, (*(index[d] for d in rest), along)), wide(x.dtype))
        return ops.where(hit, value, x.load(ops, index))

    return x if _empty(source) else TensorValue(x.shape, x.dtype, Deferred(load, x.cost + source.cost + 2))


@lowers(aten.as_strided_scatter.default)
def as_strided_scatter(
    low: Lowering,
    x: TensorValue,
    source: TensorValue,
    size: Sequence[Size],
    stride: Sequence[Size],
    offset: Size | None = None,
) -> TensorValue:
    """Strides count elements of the tensor as torch lays it out; only a dense row-major one says which those are."""
    from ingot.ir.metadata import value_of

    given = value_of(low.node.args[0])  # type: ignore[arg-type]
    if not given.is_contiguous():
        raise LoweringUnsupported("as_strided_scatter into a tensor that is not contiguous")
    if _empty(source):
        return x
    made = writable(low, x)
    flat = tensor_views.reshape(made, (x.numel,), low.hint)
    place = strided_place(x.numel, size, stride, offset_inside(given, offset))

    def write(ops: BodyBuilder, index: Index) -> tuple[Index, int]:
        return (place(ops, index),), ops.cast(source.load(ops, index), wide(x.dtype))

    low.scatter(flat, source.shape, write)
    return made
