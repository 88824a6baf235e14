"""Order along a dim: sort, topk, kthvalue, median, mode, searchsorted."""

from __future__ import annotations

from typing import Any

import torch

from ingot.lowering import tensor_views
from ingot.lowering.dtypes import wide
from ingot.lowering.index_expr import Size, product
from ingot.lowering.loop_body import BodyBuilder
from ingot.lowering.lower import Lowering, lowers
from ingot.lowering.rules.pointwise import promote, value_at
from ingot.lowering.rules.scatter import as_computed, narrow
from ingot.lowering.rules.views import dim_of
from ingot.lowering.tensor_views import Deferred, Index, TensorValue

aten = torch.ops.aten


def last(x: TensorValue, dim: int) -> TensorValue:
    """With `dim` as the last one."""
    return tensor_views.permute(x, (*(d for d in range(x.rank) if d != dim), dim))


def back(x: TensorValue, dim: int) -> TensorValue:
    """With the last dim at `dim` again."""
    order = list(range(x.rank - 1))
    order.insert(dim, x.rank - 1)
    return tensor_views.permute(x, order)


def sort_rows(low: Lowering, x: TensorValue, dim: int, descending: bool) -> tuple[TensorValue, TensorValue]:
    """Rows of x along `dim`, sorted and as the last dim, and the places they came from."""
    rows = last(as_computed(x), dim)
    shape = rows.shape
    sizes: tuple[Size, Size] = (product(shape[:-1]), shape[-1])
    found, places = low.routine("sort", [rows], [(shape, rows.dtype), (shape, "int64")], sizes, descending=descending)
    return found, places


@lowers(aten.sort.default, aten.sort.stable)
def sort(
    low: Lowering, x: TensorValue, dim: int = -1, descending: bool = False, *, stable: bool | None = None
) -> tuple[TensorValue, TensorValue]:
    if not x.rank:
        return x, low.full((), 0, "int64")
    dim = dim_of(x, dim)
    found, places = sort_rows(low, x, dim, descending)
    return narrow(back(found, dim), x.dtype), back(places, dim)


@lowers(aten.argsort.default, aten.argsort.stable)
def argsort(
    low: Lowering, x: TensorValue, *args: Any, stable: bool = False, dim: int = -1, descending: bool = False
) -> TensorValue:
    given = [a for a in args if type(a) is int]
    down = descending or any(a is True for a in args)
    return sort(low, x, given[0] if given else dim, down)[1]


@lowers(aten.topk.default)
def topk(
    low: Lowering, x: TensorValue, k: Size, dim: int = -1, largest: bool = True, is_sorted: bool = True
) -> tuple[TensorValue, TensorValue]:
    if not x.rank:
        return x, low.full((), 0, "int64")
    dim = dim_of(x, dim)
    found, places = sort_rows(low, x, dim, largest)
    end = found.rank - 1
    first, second = (back(tensor_views.slice_dim(t, end, 0, 1, k), dim) for t in (found, places))
    return narrow(first, x.dtype), second


def _row(low: Lowering, t: TensorValue, place: Any, dim: int, keep: bool) -> TensorValue:
    """One element of each row: at a known position, or at one given by a tensor of the rows' shape."""
    if isinstance(place, TensorValue):
        made = TensorValue(
            t.shape[:-1],
            t.dtype,
            Deferred(lambda ops, index: t.load(ops, (*index, ops.as_index(place.load(ops, index), t.shape[-1]))), 2),
        )
    else:
        made = tensor_views.select(t, t.rank - 1, place)
    return tensor_views.insert(made, dim) if keep else made


@lowers(aten.kthvalue.default)
def kthvalue(
    low: Lowering, x: TensorValue, k: Size, dim: int = -1, keepdim: bool = False
) -> tuple[TensorValue, TensorValue]:
    if not x.rank:
        return x, low.full((), 0, "int64")
    dim = dim_of(x, dim)
    found, places = sort_rows(low, x, dim, False)
    return narrow(_row(low, found, k - 1, dim, keepdim), x.dtype), _row(low, places, k - 1, dim, keepdim)


def _middle(low: Lowering, found: TensorValue, ignore: bool) -> TensorValue:
    """Where each sorted row's median is; a nan, which stands at the end, is the median itself unless ignored."""
    n = found.shape[-1]
    over = (found.rank - 1,)
    floating = found.dtype in ("float32", "float64")

    def count(ops: BodyBuilder, value: int, index: Index) -> tuple[int]:
        return (ops.cast(ops.call("eq", value, value), "int64"),)

    if not floating:
        return TensorValue(found.shape[:-1], "int64", Deferred(lambda ops, index: ops.index((n - 1) // 2), 1))
    (real,) = low.reduce(found, over, ("sum",), count, ("int64",))

    def load(ops: BodyBuilder, index: Index) -> int:
        numbers = real.load(ops, index)
        half = ops.call("shr", ops.call("sub", numbers, ops.const(1, "int64")), ops.const(1, "int64"))
        half = ops.call("max", half, ops.const(0, "int64"))
        if ignore:
            return half
        whole = ops.call("eq", numbers, ops.index(n))
        return ops.where(whole, half, ops.call("min", numbers, ops.index(n - 1)))

    return low.realize(TensorValue(found.shape[:-1], "int64", Deferred(load, 6)))


@lowers(aten.median.dim, aten.nanmedian.dim)
def median(low: Lowering, x: TensorValue, dim: int, keepdim: bool = False) -> tuple[TensorValue, TensorValue]:
    if not x.rank:
        return x, low.full((), 0, "int64")
    dim = dim_of(x, dim)
    found, places = sort_rows(low, x, dim, False)
    middle = _middle(low, found, low.node.target is aten.nanmedian.dim)
    return narrow(_row(low, found, middle, dim, keepdim), x.dtype), _row(low, places, middle, dim, keepdim)


@lowers(aten.median.default, aten.nanmedian.default)
def median_all(low: Lowering, x: TensorValue) -> TensorValue:
    if x.numel == 0:
        if x.dtype not in ("float16", "bfloat16", "float32", "float64"):
            return low.full((), torch.iinfo(getattr(torch, x.dtype)).min, x.dtype)
        return low.full((), float("nan"), x.dtype)
    flat = tensor_views.reshape(x, (x.numel,), low.hint)
    found, _ = sort_rows(low, flat, 0, False)
    middle = _middle(low, found, low.node.target is aten.nanmedian.default)
    return narrow(_row(low, found, middle, 0, False), x.dtype)


@lowers(aten.mode.default)
def mode(low: Lowering, x: TensorValue, dim: int = -1, keepdim: bool = False) -> tuple[TensorValue, TensorValue]:
    if not x.rank:
        return x, low.full((), 0, "int64")
    dim = dim_of(x, dim)
    found, places = sort_rows(low, x, dim, False)
    rows = found.shape[:-1]
    value, place = low.routine(
        "mode", [found, places], [(rows, found.dtype), (rows, "int64")], (product(rows), found.shape[-1])
    )
    if keepdim:
        value, place = tensor_views.insert(value, dim), tensor_views.insert(place, dim)
    return narrow(value, x.dtype), place


# ---------------------------------------------------------------------- searching


def _search(low: Lowering, borders: TensorValue, x: Any, right: bool, sorter: TensorValue | None) -> TensorValue:
    out = low.out_dtype
    kind = wide(promote((borders, x)))
    shape = low.shape_of(low.out)
    given = TensorValue(shape, kind, Deferred(lambda ops, index: value_at(ops, x, index, kind), 1))
    edges = TensorValue(
        borders.shape, kind, Deferred(lambda ops, index: ops.cast(borders.load(ops, index), kind), borders.cost)
    )
    count = product(shape)
    every = count if borders.rank == 1 else shape[-1]
    reads = [edges, given] if sorter is None else [edges, given, sorter]
    if any(isinstance(size, int) and size == 0 for size in shape):
        return low.full(shape, 0, out)
    (found,) = low.routine("search", reads, [(shape, "int64")], (count, borders.shape[-1], every), right=right)
    return (
        found
        if out == "int64"
        else TensorValue(shape, out, Deferred(lambda ops, i: ops.cast(found.load(ops, i), out), 1))
    )


@lowers(aten.searchsorted.Tensor, aten.searchsorted.Scalar)
def searchsorted(
    low: Lowering, borders: TensorValue, x: Any, *, out_int32: bool = False, right: bool = False,
    side: str | None = None,
    sorter: TensorValue | None = None
) -> TensorValue:  # fmt: skip
    return _search(low, borders, x, right or side == "right", sorter)


@lowers(aten.bucketize.Tensor, aten.bucketize.Scalar)
def bucketize(
    low: Lowering, x: Any, borders: TensorValue, *, out_int32: bool = False, right: bool = False
) -> TensorValue:
    return _search(low, borders, x, right, None)
