"""Running sums, products and extremes along a dim."""

from __future__ import annotations

from typing import Any

import torch

from ingot.lowering.expr import Size, product
from ingot.lowering.ir import wide
from ingot.lowering.lower import Lowering, lowers
from ingot.lowering.rules.scatter import narrowed
from ingot.lowering.rules.views import dim_of
from ingot.lowering.values import Lazy, Tensor

aten = torch.ops.aten


def _around(x: Tensor, dim: int) -> tuple[Size, Size, Size]:
    return product(x.shape[:dim]), x.shape[dim], product(x.shape[dim + 1 :])


def scanned(low: Lowering, x: Tensor, dim: int, kind: str, dtype: str) -> Tensor:
    """The scan of x, cast to `dtype` first."""
    inner = wide(dtype)
    cast = Tensor(x.shape, inner, Lazy(lambda ops, index: ops.cast(x.load(ops, index), inner), x.cost))
    if not x.rank:
        return narrowed(cast, dtype)
    (made,) = low.routine("scan", [cast], [(x.shape, inner)], _around(x, dim_of(x, dim)), kind=kind)
    return narrowed(made, dtype)


@lowers(aten.cumsum.default)
def cumsum(low: Lowering, x: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    return scanned(low, x, dim, "sum", low.out_dtype)


@lowers(aten.cumprod.default)
def cumprod(low: Lowering, x: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    return scanned(low, x, dim, "prod", low.out_dtype)


@lowers(aten.logcumsumexp.default)
def logcumsumexp(low: Lowering, x: Tensor, dim: int) -> Tensor:
    return scanned(low, x, dim, "logsumexp", low.out_dtype)


def _extremes(low: Lowering, x: Tensor, dim: int, kind: str) -> tuple[Tensor, Tensor]:
    if not x.rank:
        return x, low.full((), 0, "int64")
    inner = wide(x.dtype)
    cast = Tensor(x.shape, inner, Lazy(lambda ops, index: x.load(ops, index), x.cost)) if inner != x.dtype else x
    found, places = low.routine(
        "scan_places", [cast], [(x.shape, inner), (x.shape, "int64")], _around(x, dim_of(x, dim)), kind=kind
    )
    return narrowed(found, x.dtype), places


@lowers(aten.cummax.default)
def cummax(low: Lowering, x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    return _extremes(low, x, dim, "max")


@lowers(aten.cummin.default)
def cummin(low: Lowering, x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    return _extremes(low, x, dim, "min")
