"""Order along a dim: sort, topk, kthvalue, median, mode, searchsorted."""

from __future__ import annotations

from typing import Any

import torch

from ingot.lowering import values
from ingot.lowering.body import Recorder
from ingot.lowering.expr import Size, product
from ingot.lowering.ir import wide
from ingot.lowering.lower import Lowering, lowers
from ingot.lowering.rules.pointwise import promoted, value_at
from ingot.lowering.rules.scatter import as_computed, narrowed
from ingot.lowering.rules.views import dim_of
from ingot.lowering.values import Index, Lazy, Tensor

aten = torch.ops.aten


def last(x: Tensor, dim: int) -> Tensor:
    """With `dim` as the last one."""
    return values.permute(x, (*(d for d in range(x.rank) if d != dim), dim))


def back(x: Tensor, dim: int) -> Tensor:
    """With the last dim at `dim` again."""
    order = list(range(x.rank - 1))
    order.insert(dim, x.rank - 1)
    return values.permute(x, order)


def ordered(low: Lowering, x: Tensor, dim: int, descending: bool) -> tuple[Tensor, Tensor]:
    """Rows of x along `dim`, sorted and as the last dim, and the places they came from."""
    rows = last(as_computed(x), dim)
    shape = rows.shape
    sizes: tuple[Size, Size] = (product(shape[:-1]), shape[-1])
    found, places = low.routine("sort", [rows], [(shape, rows.dtype), (shape, "int64")], sizes, descending=descending)
    return found, places


@lowers(aten.sort.default, aten.sort.stable)
def sort(
    low: Lowering, x: Tensor, dim: int = -1, descending: bool = False, *, stable: bool | None = None
) -> tuple[Tensor, Tensor]:
    if not x.rank:
        return x, low.full((), 0, "int64")
    dim = dim_of(x, dim)
    found, places = ordered(low, x, dim, descending)
    return narrowed(back(found, dim), x.dtype), back(places, dim)


@lowers(aten.argsort.default, aten.argsort.stable)
def argsort(
    low: Lowering, x: Tensor, *args: Any, stable: bool = False, dim: int = -1, descending: bool = False
) -> Tensor:
    given = [a for a in args if type(a) is int]
    down = descending or any(a is True for a in args)
    return sort(low, x, given[0] if given else dim, down)[1]


@lowers(aten.topk.default)
def topk(
    low: Lowering, x: Tensor, k: Size, dim: int = -1, largest: bool = True, is_sorted: bool = True
) -> tuple[Tensor, Tensor]:
    if not x.rank:
        return x, low.full((), 0, "int64")
    dim = dim_of(x, dim)
    found, places = ordered(low, x, dim, largest)
    end = found.rank - 1
    first, second = (back(values.slice_dim(t, end, 0, 1, k), dim) for t in (found, places))
    return narrowed(first, x.dtype), second


def _row(low: Lowering, t: Tensor, place: Any, dim: int, keep: bool) -> Tensor:
    """One element of each row: at a place known, or told by a tensor of the rows' shape."""
    if isinstance(place, Tensor):
        made = Tensor(
            t.shape[:-1],
            t.dtype,
            Lazy(lambda ops, index: t.load(ops, (*index, ops.as_index(place.load(ops, index), t.shape[-1]))), 2),
        )
    else:
        made = values.select(t, t.rank - 1, place)
    return values.insert(made, dim) if keep else made


@lowers(aten.kthvalue.default)
def kthvalue(low: Lowering, x: Tensor, k: Size, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    if not x.rank:
        return x, low.full((), 0, "int64")
    dim = dim_of(x, dim)
    found, places = ordered(low, x, dim, False)
    return narrowed(_row(low, found, k - 1, dim, keepdim), x.dtype), _row(low, places, k - 1, dim, keepdim)


def _middle(low: Lowering, found: Tensor, ignore: bool) -> Tensor:
    """Where each sorted row's median is; a nan, which stands at the end, is the median itself unless ignored."""
    n = found.shape[-1]
    over = (found.rank - 1,)
    floating = found.dtype in ("float32", "float64")

    def count(ops: Recorder, value: int, index: Index) -> tuple[int]:
        return (ops.cast(ops.call("eq", value, value), "int64"),)

    if not floating:
        return Tensor(found.shape[:-1], "int64", Lazy(lambda ops, index: ops.index((n - 1) // 2), 1))
    (real,) = low.reduce(found, over, ("sum",), count, ("int64",))

    def load(ops: Recorder, index: Index) -> int:
        numbers = real.load(ops, index)
        half = ops.call("shr", ops.call("sub", numbers, ops.const(1, "int64")), ops.const(1, "int64"))
        half = ops.call("max", half, ops.const(0, "int64"))
        if ignore:
            return half
        whole = ops.call("eq", numbers, ops.index(n))
        return ops.where(whole, half, ops.call("min", numbers, ops.index(n - 1)))

    return low.realize(Tensor(found.shape[:-1], "int64", Lazy(load, 6)))


@lowers(aten.median.dim, aten.nanmedian.dim)
def median(low: Lowering, x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    if not x.rank:
        return x, low.full((), 0, "int64")
    dim = dim_of(x, dim)
    found, places = ordered(low, x, dim, False)
    middle = _middle(low, found, low.node.target is aten.nanmedian.dim)
    return narrowed(_row(low, found, middle, dim, keepdim), x.dtype), _row(low, places, middle, dim, keepdim)


@lowers(aten.median.default, aten.nanmedian.default)
def median_all(low: Lowering, x: Tensor) -> Tensor:
    if x.numel == 0:
        if x.dtype not in ("float16", "bfloat16", "float32", "float64"):
            return low.full((), torch.iinfo(getattr(torch, x.dtype)).min, x.dtype)
        return low.full((), float("nan"), x.dtype)
    flat = values.reshape(x, (x.numel,), low.hint)
    found, _ = ordered(low, flat, 0, False)
    middle = _middle(low, found, low.node.target is aten.nanmedian.default)
    return narrowed(_row(low, found, middle, 0, False), x.dtype)


@lowers(aten.mode.default)
def mode(low: Lowering, x: Tensor, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    if not x.rank:
        return x, low.full((), 0, "int64")
    dim = dim_of(x, dim)
    found, places = ordered(low, x, dim, False)
    rows = found.shape[:-1]
    value, place = low.routine(
        "mode", [found, places], [(rows, found.dtype), (rows, "int64")], (product(rows), found.shape[-1])
    )
    if keepdim:
        value, place = values.insert(value, dim), values.insert(place, dim)
    return narrowed(value, x.dtype), place


# ---------------------------------------------------------------------- searching


def _search(low: Lowering, borders: Tensor, x: Any, right: bool, sorter: Tensor | None) -> Tensor:
    out = low.out_dtype
    kind = wide(promoted((borders, x)))
    shape = low.shape_of(low.out)
    given = Tensor(shape, kind, Lazy(lambda ops, index: value_at(ops, x, index, kind), 1))
    edges = Tensor(borders.shape, kind, Lazy(lambda ops, index: ops.cast(borders.load(ops, index), kind), borders.cost))
    count = product(shape)
    every = count if borders.rank == 1 else shape[-1]
    reads = [edges, given] if sorter is None else [edges, given, sorter]
    if any(isinstance(size, int) and size == 0 for size in shape):
        return low.full(shape, 0, out)
    (found,) = low.routine("search", reads, [(shape, "int64")], (count, borders.shape[-1], every), right=right)
    return found if out == "int64" else Tensor(shape, out, Lazy(lambda ops, i: ops.cast(found.load(ops, i), out), 1))


@lowers(aten.searchsorted.Tensor, aten.searchsorted.Scalar)
def searchsorted(
    low: Lowering, borders: Tensor, x: Any, *, out_int32: bool = False, right: bool = False, side: str | None = None,
    sorter: Tensor | None = None
) -> Tensor:  # fmt: skip
    return _search(low, borders, x, right or side == "right", sorter)


@lowers(aten.bucketize.Tensor, aten.bucketize.Scalar)
def bucketize(low: Lowering, x: Any, borders: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    return _search(low, borders, x, right, None)
