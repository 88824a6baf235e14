"""QR by reflections and the singular value decomposition by rotations, in float64 and rounded at the end."""

from __future__ import annotations

from typing import Any

import torch

from ingot.lowering.index_expr import Size, smallest
from ingot.lowering.loop_body import BodyBuilder
from ingot.lowering.lower import Lowering, lowers
from ingot.lowering.rules.linalg.factorization import _count, _exact, _round, _transpose
from ingot.lowering.tensor_views import Deferred, Index, TensorValue, broadcast_shapes
from ingot.lowering.unsupported import LoweringUnsupported

aten = torch.ops.aten


def _factor(low: Lowering, a: TensorValue) -> tuple[TensorValue, TensorValue]:
    """R above the diagonal with the reflections below it, and their factors."""
    *lead, m, n = a.shape
    results = [(a.shape, "float64"), ((*lead, smallest(m, n)), "float64")]
    r, tau = low.routine("qr", [_exact(a)], results, (_count(a), m, n))
    return r, tau


def _reflect(low: Lowering, v: TensorValue, tau: TensorValue, c: TensorValue, transposed: bool = False) -> TensorValue:
    """Q · c, or Qᵀ · c."""
    lead = broadcast_shapes(broadcast_shapes(v.shape[:-2], tau.shape[:-1]), c.shape[:-2])
    v, c = (low.expand(t, (*lead, *t.shape[-2:])) for t in (_exact(v), _exact(c)))
    tau = low.expand(_exact(tau), (*lead, tau.shape[-1]))
    m, n = v.shape[-2:]
    sizes = (_count(v), m, n, tau.shape[-1], c.shape[-1])
    (made,) = low.routine("reflect", [v, tau, c], [(c.shape, "float64")], sizes, transposed=transposed)
    return made


def _axes(lead: tuple[Size, ...], m: Size, n: Size) -> TensorValue:
    def load(ops: BodyBuilder, index: Index) -> int:
        return ops.cast(ops.call("eq", ops.index(index[-1]), ops.index(index[-2])), "float64")

    return TensorValue((*lead, m, n), "float64", Deferred(load, 2))


@lowers(aten.geqrf.default)
def geqrf(low: Lowering, a: TensorValue) -> tuple[TensorValue, TensorValue]:
    r, tau = _factor(low, a)
    return _round(r, a.dtype), _round(tau, a.dtype)


@lowers(aten.linalg_qr.default)
def qr(low: Lowering, a: TensorValue, mode: str = "reduced") -> tuple[TensorValue, TensorValue]:
    made, tau = _factor(low, a)
    *lead, m, n = a.shape
    k = m if mode == "complete" else smallest(m, n)

    def upper(ops: BodyBuilder, index: Index) -> int:
        kept = ops.call("le", ops.index(index[-2]), ops.index(index[-1]))
        return ops.where(kept, made.load(ops, index), ops.const(0, "float64"))

    r = _round(TensorValue((*lead, k, n), "float64", Deferred(upper, 3)), a.dtype)
    if mode == "r":
        return low.full((0,), 0, a.dtype), r
    return _round(_reflect(low, made, tau, _axes(tuple(lead), m, k)), a.dtype), r


@lowers(aten.linalg_householder_product.default)
def householder_product(low: Lowering, v: TensorValue, tau: TensorValue) -> TensorValue:
    return _round(_reflect(low, v, tau, _axes(v.shape[:-2], v.shape[-2], v.shape[-1])), low.out_dtype)


@lowers(aten.ormqr.default)
def ormqr(
    low: Lowering, v: TensorValue, tau: TensorValue, c: TensorValue, left: bool = True, transpose: bool = False
) -> TensorValue:
    if left:
        return _round(_reflect(low, v, tau, c, transpose), low.out_dtype)
    return _round(_transpose(_reflect(low, v, tau, _transpose(c), not transpose)), low.out_dtype)


@lowers(aten._linalg_svd.default)
def svd(
    low: Lowering, a: TensorValue, full_matrices: bool = False, compute_uv: bool = True, *, driver: Any = None
) -> tuple[TensorValue, TensorValue, TensorValue]:
    *lead, m, n = a.shape
    if not isinstance(m, int) or not isinstance(n, int):
        raise LoweringUnsupported("a singular value decomposition of dynamic size")
    tall = m >= n
    x = _exact(a) if tall else _transpose(_exact(a))
    high, wide = (m, n) if tall else (n, m)
    columns = high if full_matrices else wide
    results = [((*lead, high, columns), "float64"), ((*lead, wide), "float64"), ((*lead, wide, wide), "float64")]
    u, s, v = low.routine("svd", [x], results, (_count(a), high, wide, columns))
    s = _round(s, a.dtype)
    if not compute_uv:
        return low.full((0,), 0, a.dtype), s, low.full((0,), 0, a.dtype)
    left, right = (u, v) if tall else (v, u)
    return _round(left, a.dtype), s, _round(_transpose(right), a.dtype)
