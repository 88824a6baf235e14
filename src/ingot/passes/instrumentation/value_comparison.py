"""Whether two values are the same, bit for bit or within the roundings of a dtype."""

from __future__ import annotations

import math
from typing import Any

import torch

from ingot.ir import execution

# Relative to the largest value: a handful of roundings in each dtype.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-4, torch.bfloat16: 4e-2, torch.float16: 4e-3}
TOLERANCE |= {torch.complex128: TOLERANCE[torch.float64], torch.complex64: TOLERANCE[torch.float32]}


def compare_values(a: Any, b: Any, exact: bool, computed_in: torch.dtype | None = None) -> str | None:
    """How two values differ, or None. `exact` requires the same bits; else `computed_in` sets the tolerance."""
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        problems = (compare_values(x, y, exact, computed_in) for x, y in zip(a, b, strict=False))
        return next((p for p in problems if p), None) or (None if len(a) == len(b) else "has another length")
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        same = type(a) is type(b) and (a == b or (isinstance(a, float) and math.isnan(a) and math.isnan(b)))
        return None if same or callable(a) else f"is {b!r} instead of {a!r}"
    a, b = a.detach(), b.detach()
    if a.shape != b.shape or a.dtype != b.dtype:
        return f"is {execution.show_shape(b)} instead of {execution.show_shape(a)}"
    if torch.equal(a.isnan(), b.isnan()) and torch.equal(a[~a.isnan()], b[~b.isnan()]):
        return None
    if not a.dtype.is_floating_point and not a.dtype.is_complex:
        return f"differs in {int((a != b).sum())} of {a.numel()} places"
    if not torch.equal(a.isnan(), b.isnan()) or not torch.equal(a.isinf(), b.isinf()):
        return "has nan or inf in other places"
    finite = a.isfinite() & b.isfinite()
    wide = torch.complex128 if a.dtype.is_complex else torch.float64
    x, y = a[finite].to(wide), b[finite].to(wide)
    error = float((x - y).abs().max()) if x.numel() else 0.0
    scale = float(x.abs().max()) if x.numel() else 0.0
    rounding = max(TOLERANCE.get(a.dtype, 1e-9), TOLERANCE.get(computed_in, 0.0) if computed_in else 0.0)
    allowed = 0.0 if exact else rounding * max(scale, 1e-30)
    return None if error <= allowed else f"differs by {error:.3g} where the largest value is {scale:.3g}"
