"""Images of bytes at another size, in what native code has rules for.

torch computes them with whole numbers: one dim after the other, the last first; the share of each place in each place
of the result has 15 bits, and every dim's result is rounded to bytes. Its own decompositions compute with floats, which
round some bytes otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

aten = torch.ops.aten
_MOST_BITS = 22


def resampled_bytes(op: Any, usual: Callable[..., Any]) -> Callable[..., Any]:
    """What to call for `op`, upsample_bilinear2d or upsample_bicubic2d in one of its overloads."""
    by_floats = getattr(aten, op._schema.name.partition("::")[2]).default

    def rule(x: torch.Tensor, sizes: Sequence[int] | None, align_corners: bool, *scales: Any) -> torch.Tensor:
        if x.dtype is not torch.uint8:
            return usual(x, sizes, align_corners, *scales)  # type: ignore[no-any-return]
        factors = (scales[0] if len(scales) == 1 else scales) or (None, None)
        ends = sizes if sizes is not None else [torch.sym_int(n * s) for n, s in zip(x.shape[2:], factors, strict=True)]
        for place in (1, 0):
            size, end = x.shape[2 + place], ends[place]
            places = torch.arange(size)
            rows = (places.view(size, 1, 1, 1) == places).to(torch.float64)
            shares = by_floats(rows, [1, end], align_corners, None, factors[place]).view(size, end)
            x = _along(x, 2 + place, shares)
        return x

    return rule


def _along(x: torch.Tensor, dim: int, shares: torch.Tensor) -> torch.Tensor:
    """The product of a dim with [size, end], in whole numbers; float64 holds them."""
    units = 2.0 ** torch.arange(_MOST_BITS + 1, dtype=torch.float64)
    unit = torch.where((shares.amax() * units + 0.5).floor() < 2**15, units, 1.0).amax()
    whole = (shares * unit + torch.where(shares < 0, -0.5, 0.5)).trunc()
    made = torch.matmul(x.to(torch.float64).movedim(dim, -1), whole).movedim(-1, dim)
    return (made / unit + 0.5).floor().clamp(0, 255).to(torch.uint8)
