"""The derivatives of digamma."""

from __future__ import annotations

import math

import torch

from ingot.errors import UnsupportedOperator, format_error
from ingot.passes.decompositions.special.expansions import expands_late
from ingot.passes.decompositions.special.zeta import hurwitz

_TRIGAMMA_STEPS = 16
# The factorial of a larger order overflows.
_LARGEST_ORDER = 170


@expands_late("aten::polygamma")
def polygamma(order: int, x: torch.Tensor) -> torch.Tensor:
    """The derivatives of digamma: (-1)^(n+1) n! ζ(n+1, x), and the first one as torch computes it."""
    if order == 0:
        return torch.digamma(x)
    if order > _LARGEST_ORDER:
        what = f"aten.polygamma of order {order} has no native code."
        raise UnsupportedOperator(format_error(what, why="its factor is larger than any number of float64"))
    dtype = x.dtype if x.is_floating_point() else torch.get_default_dtype()
    wide = x.double()
    if order > 1:
        exponent = torch.full((), order + 1.0, dtype=torch.float64, device=x.device)
        factor = float(math.factorial(order) * (1 if order % 2 else -1))
        return (factor * hurwitz(exponent, wide)).to(dtype)
    is_low = wide < 0.5
    mirrored = (math.pi / torch.sin(math.pi * wide)).square()
    at = torch.where(is_low, 1 - wide, wide)
    total = torch.zeros_like(at)
    for _ in range(_TRIGAMMA_STEPS):  # trigamma(x) = 1/x² + trigamma(x + 1)
        total = total + 1 / (at * at)
        at = at + 1
    inverse = 1 / (at * at)  # a series for large arguments
    series = inverse * (1 / 6 - inverse * (1 / 30 - inverse * (1 / 42 - inverse * (1 / 30 - inverse * (5 / 66)))))
    total = total + (1 + 1 / (2 * at) + series) / at
    return torch.where(is_low, mirrored - total, total).to(dtype)
