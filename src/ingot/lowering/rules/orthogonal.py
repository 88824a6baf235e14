"""QR by reflections and the singular value decomposition by rotations, in float64 and rounded at the end."""

from __future__ import annotations

from typing import Any

import torch

from ingot.lowering.body import Recorder
from ingot.lowering.expr import Size, smallest
from ingot.lowering.lower import Lowering, lowers
from ingot.lowering.refusing import Unsupported
from ingot.lowering.rules.linalg import _count, _exact, _rounded, _transposed
from ingot.lowering.values import Index, Lazy, Tensor, broadcast_shapes

aten = torch.ops.aten


def _factored(low: Lowering, a: Tensor) -> tuple[Tensor, Tensor]:
    """R above the diagonal with the reflections below it, and their factors."""
    *lead, m, n = a.shape
    results = [(a.shape, "float64"), ((*lead, smallest(m, n)), "float64")]
    r, tau = low.routine("qr", [_exact(a)], results, (_count(a), m, n))
    return r, tau


def _reflected(low: Lowering, v: Tensor, tau: Tensor, c: Tensor, transposed: bool = False) -> Tensor:
    """Q · c, or Qᵀ · c."""
    lead = broadcast_shapes(broadcast_shapes(v.shape[:-2], tau.shape[:-1]), c.shape[:-2])
    v, c = (low.expand(t, (*lead, *t.shape[-2:])) for t in (_exact(v), _exact(c)))
    tau = low.expand(_exact(tau), (*lead, tau.shape[-1]))
    m, n = v.shape[-2:]
    sizes = (_count(v), m, n, tau.shape[-1], c.shape[-1])
    (made,) = low.routine("reflect", [v, tau, c], [(c.shape, "float64")], sizes, transposed=transposed)
    return made


def _axes(lead: tuple[Size, ...], m: Size, n: Size) -> Tensor:
    def load(ops: Recorder, index: Index) -> int:
        return ops.cast(ops.call("eq", ops.index(index[-1]), ops.index(index[-2])), "float64")

    return Tensor((*lead, m, n), "float64", Lazy(load, 2))


@lowers(aten.geqrf.default)
def geqrf(low: Lowering, a: Tensor) -> tuple[Tensor, Tensor]:
    r, tau = _factored(low, a)
    return _rounded(r, a.dtype), _rounded(tau, a.dtype)


@lowers(aten.linalg_qr.default)
def qr(low: Lowering, a: Tensor, mode: str = "reduced") -> tuple[Tensor, Tensor]:
    made, tau = _factored(low, a)
    *lead, m, n = a.shape
    k = m if mode == "complete" else smallest(m, n)

    def upper(ops: Recorder, index: Index) -> int:
        kept = ops.call("le", ops.index(index[-2]), ops.index(index[-1]))
        return ops.where(kept, made.load(ops, index), ops.const(0, "float64"))

    r = _rounded(Tensor((*lead, k, n), "float64", Lazy(upper, 3)), a.dtype)
    if mode == "r":
        return low.full((0,), 0, a.dtype), r
    return _rounded(_reflected(low, made, tau, _axes(tuple(lead), m, k)), a.dtype), r


@lowers(aten.linalg_householder_product.default)
def householder_product(low: Lowering, v: Tensor, tau: Tensor) -> Tensor:
    return _rounded(_reflected(low, v, tau, _axes(v.shape[:-2], v.shape[-2], v.shape[-1])), low.out_dtype)


@lowers(aten.ormqr.default)
def ormqr(low: Lowering, v: Tensor, tau: Tensor, c: Tensor, left: bool = True, transpose: bool = False) -> Tensor:
    if left:
        return _rounded(_reflected(low, v, tau, c, transpose), low.out_dtype)
    return _rounded(_transposed(_reflected(low, v, tau, _transposed(c), not transpose)), low.out_dtype)


@lowers(aten._linalg_svd.default)
def svd(
    low: Lowering, a: Tensor, full_matrices: bool = False, compute_uv: bool = True, *, driver: Any = None
) -> tuple[Tensor, Tensor, Tensor]:
    *lead, m, n = a.shape
    if not isinstance(m, int) or not isinstance(n, int):
        raise Unsupported("a singular value decomposition of dynamic size")
    tall = m >= n
    x = _exact(a) if tall else _transposed(_exact(a))
    high, wide = (m, n) if tall else (n, m)
    columns = high if full_matrices else wide
    results = [((*lead, high, columns), "float64"), ((*lead, wide), "float64"), ((*lead, wide, wide), "float64")]
    u, s, v = low.routine("svd", [x], results, (_count(a), high, wide, columns))
    s = _rounded(s, a.dtype)
    if not compute_uv:
        return low.full((0,), 0, a.dtype), s, low.full((0,), 0, a.dtype)
    left, right = (u, v) if tall else (v, u)
    return _rounded(left, a.dtype), s, _rounded(_transposed(right), a.dtype)
