"""Orthogonal polynomials: by their recurrences where the degree is a number, Chebyshev's by angles where it is large or
a tensor. Of a negative degree all are 0, as in torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch

from ingot.errors import UnsupportedOperator, format_error
from ingot.passes.decompositions.special.expansions import expands, expands_late
from ingot.passes.decompositions.special.special_functions import result_dtype, widen

# The recurrence of a higher degree would be code of that many lines.
_LARGEST_DEGREE = 128
# Up to this one, torch computes all of Chebyshev's by their recurrence.
_SMALL_DEGREE = 6
# A polynomial of the degrees 0, 1, … in turn.
Recurrence = Callable[[torch.Tensor], Iterator[torch.Tensor]]
# One of an argument, and of an argument and a degree.
Function = Callable[[torch.Tensor], torch.Tensor]
Polynomial = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _register(name: str) -> Callable[[Recurrence], Recurrence]:
    def register(recurrence: Recurrence) -> Recurrence:
        def apply(x: torch.Tensor, n: float | torch.Tensor) -> torch.Tensor:
            degree = _read_degree(name, n)
            return _take(recurrence(x.double()), degree).to(result_dtype(x))

        expands(f"aten::special_{name}")(apply)
        return recurrence

    return register


def _read_degree(name: str, n: Any) -> int:
    degree = int(n) if isinstance(n, int | float) else None
    if degree is None or degree > _LARGEST_DEGREE:
        why = "its degree is a tensor" if degree is None else f"its degree is more than {_LARGEST_DEGREE}"
        raise UnsupportedOperator(format_error(f"aten.special_{name} has no native code.", why=why))
    return degree


def _take(polynomials: Iterator[torch.Tensor], degree: int) -> torch.Tensor:
    """The polynomial of a degree."""
    return next(islice(polynomials, degree, None)) if degree >= 0 else torch.zeros_like(next(polynomials))


def _three_terms(
    x: torch.Tensor, first: torch.Tensor, following: Callable[[int, torch.Tensor, torch.Tensor], torch.Tensor]
) -> Iterator[torch.Tensor]:
    """1, the first one, and what follows the one of degree k and the one before it."""
    before, last = torch.ones_like(x), first
    yield before
    degree = 1
    while True:
        yield last
        before, last = last, following(degree, last, before)
        degree += 1


@_register("hermite_polynomial_h")
def hermite_h(x: torch.Tensor) -> Iterator[torch.Tensor]:
    return _three_terms(x, 2 * x, lambda k, last, before: 2 * x * last - 2 * k * before)


@_register("hermite_polynomial_he")
def hermite_he(x: torch.Tensor) -> Iterator[torch.Tensor]:
    return _three_terms(x, x, lambda k, last, before: x * last - k * before)


@_register("laguerre_polynomial_l")
def laguerre(x: torch.Tensor) -> Iterator[torch.Tensor]:
    return _three_terms(x, 1 - x, lambda k, last, before: ((2 * k + 1 - x) * last - k * before) / (k + 1))


@_register("legendre_polynomial_p")
def legendre(x: torch.Tensor) -> Iterator[torch.Tensor]:
    return _three_terms(x, x, lambda k, last, before: ((2 * k + 1) * x * last - k * before) / (k + 1))


# ---------------------------------------------------------------------- Chebyshev's


def _register_chebyshev(kind: str, compute: Polynomial, first: Function) -> None:
    def apply(x: torch.Tensor | float, n: torch.Tensor | float, *, is_shifted: bool = False) -> torch.Tensor:
        dtype, argument = result_dtype(x, n), widen(x)
        argument = 2 * argument - 1 if is_shifted else argument
        if isinstance(n, int | float) and n <= _SMALL_DEGREE:
            polynomials = _three_terms(argument, first(argument), lambda _, last, before: 2 * argument * last - before)
            return _take(polynomials, int(n)).to(dtype)
        return _use_angles(kind, compute, argument, torch.trunc(widen(n))).to(dtype)

    expands_late(f"aten::special_chebyshev_polynomial_{kind}")(apply)
    expands_late(f"aten::special_shifted_chebyshev_polynomial_{kind}")(lambda x, n: apply(x, n, is_shifted=True))


def _use_angles(
    kind: str, compute: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], x: torch.Tensor, n: torch.Tensor
) -> torch.Tensor:
    sign = _apply_sign(torch.where(x < 0, -1.0, 1.0), n)
    one, minus_one = _ends(kind, n)
    found = torch.where(x == 1, one, torch.where(x == -1, sign * minus_one, compute(x, n)))
    found = torch.where(x.isinf(), torch.where(n > 2, math.nan, sign * math.inf), found)
    return torch.where(n < 0, 0.0, torch.where(n == 0, 1.0, found))


def _ends(kind: str, n: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The values at 1 and at -1, the latter without its sign (-1)^n."""
    one = torch.ones_like(n)
    return {"t": (one, one), "u": (n + 1, n + 1), "v": (one, 2 * n + 1), "w": (2 * n + 1, one)}[kind]


def _parts(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The angle of x inside (-1, 1) and the hyperbolic one of its absolute value outside, whether it is inside, and the
    sign of x."""
    is_inside = x.abs() < 1
    angle = torch.acos(x.clamp(-1, 1))
    outer = torch.acosh(x.abs().clamp(min=1))
    return angle, outer, is_inside, torch.where(x < 0, -1.0, 1.0)


def _apply_sign(sign: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    """The sign to the power n."""
    return torch.where(torch.remainder(n, 2) == 1, sign, 1.0)


def _kind_t(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    angle, outer, is_inside, sign = _parts(x)
    return torch.where(is_inside, torch.cos(n * angle), _apply_sign(sign, n) * torch.cosh(n * outer))


def _kind_u(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    angle, outer, is_inside, sign = _parts(x)
    inside = torch.sin((n + 1) * angle) / torch.sin(angle)
    return torch.where(is_inside, inside, _apply_sign(sign, n) * torch.sinh((n + 1) * outer) / torch.sinh(outer))


def _half_angles(
    inside: Function, right: Function, left: Function
) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """f((n + ½) θ) / f(½ θ), where f is one function inside (-1, 1), and others above 1 and below -1."""

    def polynomial(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        angle, outer, is_inside, sign = _parts(x)

        def ratio(f: Function, at: torch.Tensor) -> torch.Tensor:
            return f((n + 0.5) * at) / f(at / 2)

        outside = torch.where(sign > 0, ratio(right, outer), _apply_sign(sign, n) * ratio(left, outer))
        return torch.where(is_inside, ratio(inside, angle), outside)

    return polynomial


_register_chebyshev("t", _kind_t, lambda x: x)
_register_chebyshev("u", _kind_u, lambda x: 2 * x)
_register_chebyshev("v", _half_angles(torch.cos, torch.cosh, torch.sinh), lambda x: 2 * x - 1)
_register_chebyshev("w", _half_angles(torch.sin, torch.sinh, torch.cosh), lambda x: 2 * x + 1)
