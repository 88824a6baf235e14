"""Special functions of which native code has none, as arithmetic in float64: Bessel's, Airy's, Hurwitz's zeta, normal
quantiles. Their polynomials are those of `special_tables`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from ingot.passes.decompositions.special import special_tables as tables
from ingot.passes.decompositions.special.expansions import expands, expands_late
from ingot.passes.decompositions.special.zeta import hurwitz

aten = torch.ops.aten
Function = Callable[[torch.Tensor], torch.Tensor]

_NEWTON_STEPS = 6


def result_dtype(*given: torch.Tensor | float) -> torch.dtype:
    """The dtype of a function of numbers: that of the tensors, and torch's default one where they are integers."""
    dtypes = [x.dtype for x in given if isinstance(x, torch.Tensor)]
    found = dtypes[0]
    for dtype in dtypes[1:]:
        found = torch.promote_types(found, dtype)
    return found if found.is_floating_point else torch.get_default_dtype()


def widen(value: torch.Tensor | float) -> torch.Tensor:
    """A tensor of float64."""
    return value.double() if isinstance(value, torch.Tensor) else torch.full((), float(value), dtype=torch.float64)


def _polynomial(t: torch.Tensor, table: Sequence[float]) -> torch.Tensor:
    total = t * table[0] + table[1]
    for coefficient in table[2:]:
        total = total * t + coefficient
    return total


def _function(*names: str, late: bool = False) -> Callable[[Function], Function]:
    """Registers a function of float64, of operators of one argument in any dtype."""

    def register(function: Function) -> Function:
        def apply(x: torch.Tensor) -> torch.Tensor:
            return function(x.double()).to(result_dtype(x))

        (expands_late if late else expands)(*names)(apply)
        return function

    return register


# ---------------------------------------------------------------------- Bessel functions


def _evaluate_near(a: torch.Tensor, end: float, table: Sequence[float]) -> torch.Tensor:
    """A table of squares, of arguments up to `end`."""
    bounded = a.clamp(max=end)
    return _polynomial(bounded * bounded * (2 / end**2) - 1, table)


def _evaluate_far(
    a: torch.Tensor, order: int, real: Sequence[float], imag: Sequence[float], *, second: bool
) -> torch.Tensor:
    """The Bessel function of the first or the second kind, from 8 on: the real or the imaginary part of
    sqrt(2/πa) (p + iq) e^i(a - π/4 - order π/2)."""
    u = 8 / a.clamp(min=8)
    t = 2 * u * u - 1
    p, q = _polynomial(t, real), _polynomial(t, imag) / a
    # Of the difference a - π/4 little would be right where a is large.
    plus, minus = torch.sin(a) + torch.cos(a), torch.sin(a) - torch.cos(a)
    cos, sin = (plus, minus) if order == 0 else (minus, -plus)
    turned = p * sin + q * cos if second else p * cos - q * sin
    return turned / torch.sqrt(math.pi * a)


def _j0(a: torch.Tensor) -> torch.Tensor:
    far = _evaluate_far(a, 0, tables.J0_REAL, tables.J0_IMAG, second=False)
    return torch.where(a < 8, _evaluate_near(a, 8, tables.J0_NEAR), far)


def _j1(a: torch.Tensor) -> torch.Tensor:
    far = _evaluate_far(a, 1, tables.J1_REAL, tables.J1_IMAG, second=False)
    return torch.where(a < 8, a * _evaluate_near(a, 8, tables.J1_NEAR), far)


@_function("aten::special_bessel_j0", late=True)
def bessel_j0(x: torch.Tensor) -> torch.Tensor:
    return _j0(x.abs())


@_function("aten::special_bessel_j1", late=True)
def bessel_j1(x: torch.Tensor) -> torch.Tensor:
    found = _j1(x.abs())
    return torch.where(x < 0, -found, found)


@_function("aten::special_bessel_y0", late=True)
def bessel_y0(x: torch.Tensor) -> torch.Tensor:
    near = _evaluate_near(x, 8, tables.Y0_NEAR) + (2 / math.pi) * torch.log(x / 2) * _evaluate_near(
        x, 8, tables.J0_NEAR
    )
    far = _evaluate_far(x, 0, tables.J0_REAL, tables.J0_IMAG, second=True)
    return _on_positive(x, torch.where(x < 8, near, far), -math.inf)


@_function("aten::special_bessel_y1", late=True)
def bessel_y1(x: torch.Tensor) -> torch.Tensor:
    first = x * _evaluate_near(x, 8, tables.J1_NEAR)
    near = x * _evaluate_near(x, 8, tables.Y1_NEAR) + (2 / math.pi) * (torch.log(x / 2) * first - 1 / x)
    far = _evaluate_far(x, 1, tables.J1_REAL, tables.J1_IMAG, second=True)
    return _on_positive(x, torch.where(x < 8, near, far), -math.inf)


def _on_positive(x: torch.Tensor, value: torch.Tensor, at_zero: float) -> torch.Tensor:
    """The value where x is positive, no number where it is negative."""
    return torch.where(x == 0, at_zero, torch.where(x < 0, math.nan, value))


expands("aten::special_modified_bessel_i0")(torch.special.i0)
expands("aten::special_modified_bessel_i1")(torch.special.i1)


def _k0(x: torch.Tensor) -> torch.Tensor:
    first: torch.Tensor = torch.special.i0(x.clamp(max=2))
    return _evaluate_near(x, 2, tables.K0_NEAR) - torch.log(x / 2) * first


def _k1(x: torch.Tensor) -> torch.Tensor:
    first: torch.Tensor = torch.special.i1(x.clamp(max=2))
    return x * _evaluate_near(x, 2, tables.K1_NEAR) + torch.log(x / 2) * first + 1 / x


def _k_tail(x: torch.Tensor, table: Sequence[float]) -> torch.Tensor:
    """sqrt(x) e^x K(x) from 2 on."""
    return _polynomial(4 / x.clamp(min=2) - 1, table)


@_function("aten::special_modified_bessel_k0")
def modified_bessel_k0(x: torch.Tensor) -> torch.Tensor:
    tail = _k_tail(x, tables.K0_TAIL) * torch.exp(-x) / torch.sqrt(x)
    return _on_positive(x, torch.where(x <= 2, _k0(x), tail), math.inf)


@_function("aten::special_modified_bessel_k1")
def modified_bessel_k1(x: torch.Tensor) -> torch.Tensor:
    tail = _k_tail(x, tables.K1_TAIL) * torch.exp(-x) / torch.sqrt(x)
    return _on_positive(x, torch.where(x <= 2, _k1(x), tail), math.inf)


@_function("aten::special_scaled_modified_bessel_k0")
def scaled_modified_bessel_k0(x: torch.Tensor) -> torch.Tensor:
    near = _k0(x) * torch.exp(x.clamp(max=2))
    return _on_positive(x, torch.where(x <= 2, near, _k_tail(x, tables.K0_TAIL) / torch.sqrt(x)), math.inf)


@_function("aten::special_scaled_modified_bessel_k1")
def scaled_modified_bessel_k1(x: torch.Tensor) -> torch.Tensor:
    near = _k1(x) * torch.exp(x.clamp(max=2))
    return _on_positive(x, torch.where(x <= 2, near, _k_tail(x, tables.K1_TAIL) / torch.sqrt(x)), math.inf)


@_function("prims::spherical_bessel_j0", "aten::special_spherical_bessel_j0")
def spherical_bessel_j0(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x == 0, 1.0, torch.where(x.isinf(), 0.0, torch.sin(x) / x))


@_function("aten::special_airy_ai", late=True)
def airy_ai(x: torch.Tensor) -> torch.Tensor:
    """Waves below -4, a polynomial up to 3, and what falls with e^(-ζ) above; ζ = ⅔ |x|^1.5."""
    a = x.abs()
    zeta = a * torch.sqrt(a) * (2 / 3)
    root = torch.sqrt(torch.sqrt(a)) * math.sqrt(math.pi)
    u = (16 / 3) / zeta.clamp(min=16 / 3)
    t = 2 * u * u - 1
    p, q = _polynomial(t, tables.AIRY_REAL), _polynomial(t, tables.AIRY_IMAG) / zeta
    cos, sin = torch.cos(zeta) + torch.sin(zeta), torch.cos(zeta) - torch.sin(zeta)
    waves = (p * cos - q * sin) / (root * math.sqrt(2))
    near = _polynomial((x.clamp(-4, 3) + 0.5) * (2 / 7), tables.AIRY_NEAR)
    first = 2 * math.sqrt(3)
    tail = _polynomial(2 * first / zeta.clamp(min=first) - 1, tables.AIRY_TAIL) * torch.exp(-zeta) / (2 * root)
    found = torch.where(x < -4, waves, torch.where(x < 3, near, tail))
    return torch.where(x.isinf(), math.nan, found)


# ---------------------------------------------------------------------- normal distribution


@_function("aten::special_erfcx", "prims::erfcx")
def erfcx(x: torch.Tensor) -> torch.Tensor:
    """e^(x²) erfc(x); of a negative x it is 2 e^(x²) less that of -x."""
    a = x.abs()
    t = 1 - 8 / (a + 4)
    positive = _polynomial(t, tables.ERFCX) / (1 + 2 * a)
    high = x.float().double()  # its square is exact
    low = x - high
    square = torch.exp(high * high) * torch.exp(low * (high + x))
    negative = torch.where(x < -27, math.inf, 2 * square - positive)
    return torch.where(x.isinf(), torch.where(x < 0, math.inf, 0.0), torch.where(x < 0, negative, positive))


@_function("aten::special_log_ndtr")
def log_ndtr(x: torch.Tensor) -> torch.Tensor:
    t = x * math.sqrt(0.5)
    below = torch.log(erfcx(-t) / 2) - t * t
    return torch.where(x < -1, below, torch.log1p(-torch.erfc(t) / 2))


@_function("aten::special_ndtri", "prims::ndtri")
def ndtri(p: torch.Tensor) -> torch.Tensor:
    """Newton's steps on the logarithm of the smaller tail."""
    tail = torch.where(p < 0.5, p, 1 - p)
    goal = torch.log(tail)
    x = torch.sqrt(-2 * (goal + math.log(2)).clamp(max=0))  # the tail is at most ½ e^(-x²/2)
    for _ in range(_NEWTON_STEPS):
        scaled = erfcx(x * math.sqrt(0.5))
        x = x + (torch.log(scaled / 2) - x * x / 2 - goal) * scaled * math.sqrt(math.pi / 2)
    x = torch.where(p == 0.5, 0.0, torch.where(tail == 0, math.inf, x))
    return torch.where((p < 0) | (p > 1), math.nan, torch.where(p < 0.5, -x, x))


# ---------------------------------------------------------------------- zeta


@expands("aten::special_zeta", "prims::zeta")
def zeta(x: torch.Tensor | float, q: torch.Tensor | float) -> torch.Tensor:
    """Hurwitz's zeta: the sum of (q + k)^-x."""
    dtype = result_dtype(x, q)
    return hurwitz(widen(x), widen(q)).to(dtype)
