"""Running sums, products and extremes along a dim."""

from __future__ import annotations

from typing import Any

import torch

from ingot.lowering.dtypes import wide
from ingot.lowering.index_expr import Size, product
from ingot.lowering.lower import Lowering, lowers
from ingot.lowering.rules.scatter import narrow
from ingot.lowering.rules.views import dim_of
from ingot.lowering.tensor_views import Deferred, TensorValue

aten = torch.ops.aten


def _split_shape(x: TensorValue, dim: int) -> tuple[Size, Size, Size]:
    return product(x.shape[:dim]), x.shape[dim], product(x.shape[dim + 1 :])


def scan(low: Lowering, x: TensorValue, dim: int, kind: str, dtype: str) -> TensorValue:
    """The scan of x, cast to `dtype` first."""
    inner = wide(dtype)
    cast = TensorValue(x.shape, inner, Deferred(lambda ops, index: ops.cast(x.load(ops, index), inner), x.cost))
    if not x.rank:
        return narrow(cast, dtype)
    (made,) = low.routine("scan", [cast], [(x.shape, inner)], _split_shape(x, dim_of(x, dim)), kind=kind)
    return narrow(made, dtype)


@lowers(aten.cumsum.default)
def cumsum(low: Lowering, x: TensorValue, dim: int, *, dtype: Any = None) -> TensorValue:
    return scan(low, x, dim, "sum", low.out_dtype)


@lowers(aten.cumprod.default)
def cumprod(low: Lowering, x: TensorValue, dim: int, *, dtype: Any = None) -> TensorValue:
    return scan(low, x, dim, "prod", low.out_dtype)


@lowers(aten.logcumsumexp.default)
def logcumsumexp(low: Lowering, x: TensorValue, dim: int) -> TensorValue:
    return scan(low, x, dim, "logsumexp", low.out_dtype)


def _extremes(low: Lowering, x: TensorValue, dim: int, kind: str) -> tuple[TensorValue, TensorValue]:
    if not x.rank:
        return x, low.full((), 0, "int64")
    inner = wide(x.dtype)
    cast = (
        TensorValue(x.shape, inner, Deferred(lambda ops, index: x.load(ops, index), x.cost)) if inner != x.dtype else x
    )
    found, places = low.routine(
        "scan_places", [cast], [(x.shape, inner), (x.shape, "int64")], _split_shape(x, dim_of(x, dim)), kind=kind
    )
    return narrow(found, x.dtype), places


@lowers(aten.cummax.default)
def cummax(low: Lowering, x: TensorValue, dim: int) -> tuple[TensorValue, TensorValue]:
    return _extremes(low, x, dim, "max")


@lowers(aten.cummin.default)
def cummin(low: Lowering, x: TensorValue, dim: int) -> tuple[TensorValue, TensorValue]:
    return _extremes(low, x, dim, "min")
