"""Writes at computed places. A scatter runs in order and alone, so that its result does not depend on threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ingot.lowering import values
from ingot.lowering.body import Recorder
from ingot.lowering.expr import Size, divide, product, remainder
from ingot.lowering.ir import wide
from ingot.lowering.lower import Lowering, lowers
from ingot.lowering.refusing import Unsupported
from ingot.lowering.rules.indexing import advanced, element
from ingot.lowering.rules.pointwise import value_at
from ingot.lowering.rules.views import dim_of, strided_place
from ingot.lowering.values import Index, Lazy, Strided, Tensor, broadcast, broadcast_shapes, contiguous_strides

aten = torch.ops.aten

_MODES = {"sum": "add", "add": "add", "prod": "prod", "multiply": "prod", "amax": "max", "amin": "min", "mean": "add"}


def as_computed(x: Tensor) -> Tensor:
    """The tensor in the dtype it is computed in: a half would round at every step of an accumulation."""
    return (
        x if wide(x.dtype) == x.dtype else Tensor(x.shape, wide(x.dtype), Lazy(lambda ops, i: x.load(ops, i), x.cost))
    )


def narrowed(x: Tensor, dtype: str) -> Tensor:
    return x if x.dtype == dtype else Tensor(x.shape, dtype, Lazy(lambda ops, i: x.load(ops, i), x.cost))


def writable(low: Lowering, x: Tensor) -> Tensor:
    """A copy of the tensor, dense, that nobody else reads."""
    name = low.buffer("temporary", x.dtype, x.shape).name
    low.realize(low.lazy_copy(x), into=name)
    return Tensor(x.shape, x.dtype, Strided(name, 0, contiguous_strides(x.shape)))


def _empty(x: Tensor) -> bool:
    return any(isinstance(size, int) and size == 0 for size in x.shape)


# ---------------------------------------------------------------------- along one dim


def scattered(
    low: Lowering, x: Tensor, dim: int, places: Tensor, source: Any, mode: str = "set", include: bool = True,
    mean: bool = False, wraps: bool = False
) -> Tensor:  # fmt: skip
    """x with source[…] written to places[…] of `dim`. Without `include` what is hit starts anew.

    If it `wraps`, negative places count from the end.
    """
    dtype = x.dtype
    rank = max(x.rank, 1)
    dim = dim % rank
    x, places = (values.insert(t, 0) if not t.rank else t for t in (x, places))
    if isinstance(source, Tensor) and not source.rank:
        source = values.insert(source, 0)
    rankless = low.out.dim() == 0
    if _empty(places):
        made = x
    else:
        made = writable(low, as_computed(x) if mode != "set" else x)
        kind = wide(dtype)
        places = low.keep(places)

        def place(ops: Recorder, index: Index) -> Index:
            at = ops.checked(places.load(ops, index), x.shape[dim], wraps=wraps)
            return (*index[:dim], at, *index[dim + 1 :])

        def write(ops: Recorder, index: Index) -> tuple[Index, int]:
            value = source.load(ops, index) if isinstance(source, Tensor) else value_at(ops, source, (), dtype)
            return place(ops, index), ops.cast(value, kind)

        if not include:
            start = {"add": 0, "prod": 1, "max": _lowest(kind), "min": _highest(kind)}[mode]
            low.scatter(made, places.shape, lambda ops, index: (place(ops, index), ops.const(start, kind)))
        low.scatter(made, places.shape, write, mode)
        if mean:
            made = _averaged(low, made, places, place, include, kind)
        made = narrowed(made, dtype)
    return values.drop(made, (0,)) if rankless else made


def _averaged(low: Lowering, total: Tensor, places: Tensor, place: Any, include: bool, kind: str) -> Tensor:
    count = writable(low, low.full(total.shape, int(include), kind))
    low.scatter(count, places.shape, lambda ops, index: (place(ops, index), ops.const(1, kind)), "add")

    def load(ops: Recorder, index: Index) -> int:
        n = ops.call("max", count.load(ops, index), ops.const(1, kind))
        return ops.call("div" if kind in ("float32", "float64") else "floordiv", total.load(ops, index), n)

    return Tensor(total.shape, kind, Lazy(load, 3))


def _lowest(dtype: str) -> int | float:
    kind = getattr(torch, dtype)
    return float("-inf") if kind.is_floating_point else 0 if dtype == "bool" else torch.iinfo(kind).min


def _highest(dtype: str) -> int | float:
    kind = getattr(torch, dtype)
    return float("inf") if kind.is_floating_point else 1 if dtype == "bool" else torch.iinfo(kind).max


@lowers(aten.scatter.src, aten.scatter.value, aten.scatter_add.default)
def scatter(low: Lowering, x: Tensor, dim: int, places: Tensor, source: Any) -> Tensor:
    return scattered(low, x, dim, places, source, "add" if low.node.target is aten.scatter_add.default else "set")


@lowers(aten.scatter.reduce, aten.scatter.value_reduce)
def scatter_with(low: Lowering, x: Tensor, dim: int, places: Tensor, source: Any, *, reduce: str) -> Tensor:
    return scattered(low, x, dim, places, source, _MODES[reduce])


@lowers(aten.scatter_reduce.two)
def scatter_reduce(
    low: Lowering, x: Tensor, dim: int, places: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    return scattered(low, x, dim, places, source, _MODES[reduce], include_self, reduce == "mean")


def _spread(x: Tensor, dim: int, places: Tensor, source: Tensor) -> Tensor:
    """Places of a vector as places of every element of `source`."""
    flat = places if places.rank else values.insert(places, 0)
    shape = source.shape if source.rank else (1,)
    return Tensor(shape, places.dtype, Lazy(lambda ops, index: flat.load(ops, (index[dim],)), flat.cost + 1))


@lowers(aten.index_reduce.default)
def index_reduce(
    low: Lowering, x: Tensor, dim: int, places: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    dim = dim_of(x, dim)
    return scattered(
        low, x, dim, _spread(x, dim, places, source), source, _MODES[reduce], include_self, reduce == "mean"
    )


@lowers(aten.index_add.default)
def index_add(low: Lowering, x: Tensor, dim: int, places: Tensor, source: Tensor, *, alpha: Any = 1) -> Tensor:
    dim = dim_of(x, dim)
    kind = wide(x.dtype)

    def load(ops: Recorder, index: Index) -> int:
        return ops.call("mul", ops.cast(source.load(ops, index), kind), value_at(ops, alpha, (), x.dtype))

    scaled = source if alpha == 1 else Tensor(source.shape, kind, Lazy(load, source.cost + 1))
    return scattered(low, x, dim, _spread(x, dim, places, source), scaled, "add")


@lowers(aten.index_copy.default)
def index_copy(low: Lowering, x: Tensor, dim: int, places: Tensor, source: Tensor) -> Tensor:
    dim = dim_of(x, dim)
    return scattered(low, x, dim, _spread(x, dim, places, source), source)


@lowers(aten.index_fill.int_Scalar, aten.index_fill.int_Tensor)
def index_fill(low: Lowering, x: Tensor, dim: int, places: Tensor, value: Any) -> Tensor:
    dim = dim_of(x, dim)
    if not x.rank:
        x = values.insert(x, 0)  # as if of one element: there may be no place to fill
    count = places.numel
    shape = (*x.shape[:dim], count, *x.shape[dim + 1 :])
    stand_in = low.full(shape, 0, x.dtype)
    source = value
    if isinstance(value, Tensor):
        source = Tensor(shape, x.dtype, Lazy(lambda ops, index: value_at(ops, value, (), x.dtype), 1))
    return scattered(low, x, dim, _spread(x, dim, places, stand_in), source, wraps=True)


# ---------------------------------------------------------------------- by several index tensors


@lowers(aten.index_put.default, aten._unsafe_index_put.default, aten._index_put_impl.default)
def index_put(
    low: Lowering, x: Tensor, indices: Sequence[Tensor | None], source: Tensor, accumulate: bool = False, *_: Any
) -> Tensor:
    dtype = x.dtype
    masks = [i for i in indices if i is not None and i.dtype in ("bool", "uint8")]
    if masks:
        alone = sum(i is not None for i in indices) == 1
        if alone and all(size == 1 for size in source.shape):
            return _masked_put(low, x, indices, source, accumulate)
        from ingot.lowering.rules.masks import without_masks  # which is built on this file

        if len(masks) > 1:
            raise Unsupported("a write through more than one mask")
        own = next(d for d, i in enumerate(indices) if i is not None)
        # The source has the places as one dim, before those that come after the mask's own.
        behind = x.rank - own - masks[0].rank
        expected = source.shape[source.rank - behind - 1] if alone and source.rank > behind else None
        indices = without_masks(low, indices, None if expected == 1 else expected)
    given = [i for i in indices if i is not None]
    if not given:
        return narrowed(source, dtype)
    first, width = advanced(indices, x.rank, 0)
    inner: tuple[Size, ...] = ()
    for each in given:
        inner = broadcast_shapes(inner, each.shape)
    indices = [i if i is None else low.align(i, inner) for i in indices]
    rest = [size for d, size in enumerate(x.shape) if d >= len(indices) or indices[d] is None]
    shape = (*rest[:first], *inner, *rest[first:])
    if any(isinstance(size, int) and size == 0 for size in shape):
        return x
    made = writable(low, as_computed(x) if accumulate else x)
    kept = [low.keep(i) if i is not None else None for i in indices]
    source = low.align(source, shape)

    def write(ops: Recorder, index: Index) -> tuple[Index, int]:
        place = element(ops, x.shape, kept, index, first, width)
        value = source.load(ops, broadcast(index, source.shape))
        return place, ops.cast(value, wide(dtype))

    low.scatter(made, shape, write, "add" if accumulate else "set")
    return narrowed(made, dtype)


def _masked_put(low: Lowering, x: Tensor, indices: Sequence[Tensor | None], source: Tensor, accumulate: bool) -> Tensor:
    """x[mask] = one value: every place asks the mask."""
    ((dim, mask),) = [(d, i) for d, i in enumerate(indices) if i is not None]
    kind = wide(x.dtype)

    def load(ops: Recorder, index: Index) -> int:
        hit = ops.cast(mask.load(ops, index[dim : dim + mask.rank]), "bool")
        old = x.load(ops, index)
        value = ops.cast(source.load(ops, (0,) * source.rank), kind)
        return ops.where(hit, ops.call("add", old, value) if accumulate else value, old)

    return Tensor(x.shape, x.dtype, Lazy(load, x.cost + mask.cost + source.cost + 2))


@lowers(aten.put.default)
def put(low: Lowering, x: Tensor, places: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    flat = values.reshape(x, (x.numel,), low.hint)
    where = values.reshape(places, (places.numel,), low.hint)
    what = values.reshape(low.keep(source), (source.numel,), low.hint)
    made = (
        scattered(low, flat, 0, where, what, "add" if accumulate else "set", wraps=True)
        if x.rank
        else _put_one(low, x, where, what, accumulate)
    )
    return values.reshape(made, x.shape, low.hint)


def _put_one(low: Lowering, x: Tensor, places: Tensor, source: Tensor, accumulate: bool) -> Tensor:
    return scattered(low, x, 0, places, source, "add" if accumulate else "set", wraps=True)


@lowers(aten.masked_scatter.default)
def masked_scatter(low: Lowering, x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """Places where the mask holds take the next element of source each: a running count of the mask says which."""
    shape = low.shape_of(low.out)
    mask, x = low.keep(low.expand(mask, shape)), low.expand(x, shape)
    count = product(shape)
    ones = Tensor(shape, "int64", Lazy(lambda ops, index: ops.cast(mask.load(ops, index), "int64"), mask.cost + 1))
    (order,) = low.routine("scan", [ones], [(shape, "int64")], (1, count, 1), kind="sum")
    flat = low.dense(source)
    sizes = flat.shape

    def load(ops: Recorder, index: Index) -> int:
        hit = ops.cast(mask.load(ops, index), "bool")
        number = ops.call("sub", order.load(ops, index), ops.const(1, "int64"))
        with ops.masked(hit):
            at = ops.checked(number, flat.numel)
            place: list[Size] = []
            for size in reversed(sizes):
                place.append(remainder(at, size))
                at = divide(at, size)
            value = flat.load(ops, tuple(reversed(place)))
        return ops.where(hit, value, x.load(ops, index))

    if _empty(flat):
        return x
    return Tensor(shape, x.dtype, Lazy(load, x.cost + mask.cost + 6))


# ---------------------------------------------------------------------- into a part known beforehand


@lowers(aten.select_scatter.default)
def select_scatter(low: Lowering, x: Tensor, source: Tensor, dim: int, place: Size) -> Tensor:
    dim = dim_of(x, dim)
    at = x.shape[dim] + place if isinstance(place, int) and place < 0 else place

    def load(ops: Recorder, index: Index) -> int:
        hit = ops.call("eq", ops.index(index[dim]), ops.index(at))
        with ops.masked(hit):
            value = ops.cast(source.load(ops, (*index[:dim], *index[dim + 1 :])), wide(x.dtype))
        return ops.where(hit, value, x.load(ops, index))

    return Tensor(x.shape, x.dtype, Lazy(load, x.cost + source.cost + 2))


@lowers(aten.slice_scatter.default)
def slice_scatter(
    low: Lowering, x: Tensor, source: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: Size = 1
) -> Tensor:
    from ingot.lowering.rules.views import first_place

    dim = dim_of(x, dim)
    begin = first_place(low, start, x.shape[dim])
    length = source.shape[dim]

    def load(ops: Recorder, index: Index) -> int:
        away = index[dim] - begin
        hit = ops.call(
            "and",
            ops.call("ge", ops.index(away), ops.index(0)),
            ops.call("lt", ops.index(away), ops.index(length * step)),
        )
        if step != 1:
            hit = ops.call("and", hit, ops.call("eq", ops.index(remainder(away, step)), ops.index(0)))
        with ops.masked(hit):
            value = ops.cast(source.load(ops, (*index[:dim], divide(away, step), *index[dim + 1 :])), wide(x.dtype))
        return ops.where(hit, value, x.load(ops, index))

    return x if length == 0 else Tensor(x.shape, x.dtype, Lazy(load, x.cost + source.cost + 3))


@lowers(aten.diagonal_scatter.default)
def diagonal_scatter(low: Lowering, x: Tensor, source: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    a, b = dim_of(x, dim1), dim_of(x, dim2)
    rest = [d for d in range(x.rank) if d not in (a, b)]

    def load(ops: Recorder, index: Index) -> int:
        hit = ops.call("eq", ops.index(index[b] - index[a]), ops.index(offset))
        along = index[a] - max(-offset, 0)
        with ops.masked(hit):
            value = ops.cast(source.load(ops, (*(index[d] for d in rest), along)), wide(x.dtype))
        return ops.where(hit, value, x.load(ops, index))

    return x if _empty(source) else Tensor(x.shape, x.dtype, Lazy(load, x.cost + source.cost + 2))


@lowers(aten.as_strided_scatter.default)
def as_strided_scatter(
    low: Lowering, x: Tensor, source: Tensor, size: Sequence[Size], stride: Sequence[Size], offset: Size | None = None
) -> Tensor:
    """Strides count elements of the tensor as torch lays it out; only a dense row-major one says which those are."""
    from ingot.program.metadata import value_of

    if not value_of(low.node.args[0]).is_contiguous():  # type: ignore[arg-type]
        raise Unsupported("as_strided_scatter into a tensor that is not contiguous")
    if _empty(source):
        return x
    made = writable(low, x)
    flat = values.reshape(made, (x.numel,), low.hint)
    place = strided_place(x.numel, size, stride, offset or 0)

    def write(ops: Recorder, index: Index) -> tuple[Index, int]:
        return (place(ops, index),), ops.cast(source.load(ops, index), wide(x.dtype))

    low.scatter(flat, source.shape, write)
    return made
