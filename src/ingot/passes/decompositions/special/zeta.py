"""Hurwitz's zeta function, of which the derivatives of digamma are made, as arithmetic in float64."""

from __future__ import annotations

import math

import torch

# Terms of the sum that are added one by one, and Bernoulli numbers B(2k) / (2k)! of what is left of it.
_TERMS = 10
_BERNOULLI = (1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160, -691 / 1307674368000, 1 / 74724249600)


def hurwitz(x: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """The sum of (q + k)^-x over k from 0 on.

    Below 0, where only whole exponents have a value, with q = f - m and 0 < f < 1:
    ζ(x, q) = ζ(x, f) ± (ζ(x, 1 - f) - ζ(x, m + 1 - f)), plus for even exponents.
    """
    whole = torch.floor(q)
    is_negative = q < 0
    below, above = _sum_of_positive(x, whole + 1 - q), _sum_of_positive(x, 1 - q)
    found = _sum_of_positive(x, torch.where(is_negative, q - whole, q))
    is_even = torch.remainder(x, 2) == 0
    mirrored = torch.where(is_even, found + below - above, found - below + above)
    found = torch.where(is_negative, mirrored, found)
    found = torch.where(x.isnan() | q.isnan() | ((q < 0) & (torch.floor(x) != x)), math.nan, found)
    found = torch.where((q <= 0) & (q == whole), math.inf, found)
    return torch.where(x < 1, math.nan, torch.where(x == 1, math.inf, found))


def _sum_of_positive(x: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Euler's and Maclaurin's sum."""
    total = torch.pow(q, -x)
    for k in range(1, _TERMS):
        total = total + torch.pow(q + k, -x)
    end = q + _TERMS
    power = torch.pow(end, -x)
    total = total + power * end / (x - 1) + power / 2
    factor = x * power / end
    for k, number in enumerate(_BERNOULLI):
        total = total + number * factor
        factor = factor * (x + (2 * k + 1)) * (x + (2 * k + 2)) / (end * end)
    return total
