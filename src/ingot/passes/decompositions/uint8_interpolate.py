"""Images of bytes at another size, in what native code has rules for.

torch computes them with integers: one dim after the other, the last first; the share of each place in each place
of the result has 15 bits, and every dim's result is rounded to bytes. Its own decompositions compute with floats, or
round a share that stands for several places outside the image in parts, and get some bytes otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import torch

aten = torch.ops.aten
_MOST_BITS = 22
_A = -0.75  # of the cubics


def resampled_bytes(op: Any, usual: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """What to call for `op`, upsample_bilinear2d or upsample_bicubic2d in one of its overloads."""
    shares_of = _linear if "bilinear" in op._schema.name else _cubic

    def rule(x: torch.Tensor, sizes: Sequence[int] | None, align_corners: bool, *scales: Any) -> torch.Tensor:
        if x.dtype is not torch.uint8:
            return usual(x, sizes, align_corners, *scales)
        factors = (scales[0] if len(scales) == 1 else scales) or (None, None)
        ends = sizes if sizes is not None else [torch.sym_int(n * s) for n, s in zip(x.shape[2:], factors, strict=True)]
        for dim in (3, 2):
            size = x.shape[dim]
            middles = _middles(size, ends[dim - 2], align_corners, factors[dim - 2])
            x = _interpolate_dim(x, dim, *_once(*shares_of(middles, size)))
        return x

    return rule


def _middles(size: Any, end: Any, align_corners: bool, factor: float | None) -> torch.Tensor:
    """Where in the image each place of the result has its middle."""
    places = torch.arange(end, dtype=torch.float64)
    if align_corners:
        step: float = (size - 1) / torch.sym_max(end - 1, 1)
        return places * step
    step = 1.0 / factor if factor else size / end
    return (places + 0.5) * step - 0.5


def _linear(middles: torch.Tensor, size: Any) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """For each place of the result, two places of the image and their shares."""
    middles = middles.clamp(min=0)
    low = middles.floor()
    part = middles - low
    return [(low + k).clamp(max=size - 1) for k in (0, 1)], [1 - part, part]


def _cubic(middles: torch.Tensor, size: Any) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Four of them, by Keys' two cubics."""
    low = middles.floor()
    part = middles - low

    def weigh_near(x: torch.Tensor) -> torch.Tensor:
        return ((_A + 2) * x - (_A + 3)) * x * x + 1

    def weigh_far(x: torch.Tensor) -> torch.Tensor:
        return ((_A * x - 5 * _A) * x + 8 * _A) * x - 4 * _A

    return [(low + k).clamp(0, size - 1) for k in range(-1, 3)], [
        weigh_far(part + 1),
        weigh_near(part),
        weigh_near(1 - part),
        weigh_far(2 - part),
    ]


def _once(places: list[torch.Tensor], shares: list[torch.Tensor]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """A place that stands for several, at the image's border, has all of their shares where it comes first."""
    whole = []
    for k, place in enumerate(places):
        share = shares[k]
        for other in range(k + 1, len(places)):
            share = share + torch.where(places[other] == place, shares[other], 0.0)
        for other in range(k):
            share = torch.where(places[other] == place, 0.0, share)
        whole.append(share)
    return places, whole


def _interpolate_dim(x: torch.Tensor, dim: int, places: list[torch.Tensor], shares: list[torch.Tensor]) -> torch.Tensor:
    """One dim at its new size: sums of integers, rounded to uint8."""
    units = 2.0 ** torch.arange(_MOST_BITS + 1, dtype=torch.float64)
    unit = torch.where((torch.stack(shares).amax() * units + 0.5).floor() < 2**15, units, 1.0).amax()
    shape = [-1 if d == dim else 1 for d in range(x.dim())]
    terms = []
    for place, share in zip(places, shares, strict=True):
        whole = (share * unit + torch.where(share < 0, -0.5, 0.5)).trunc().to(torch.int32)
        terms.append(x.index_select(dim, place.to(torch.int64)).to(torch.int32) * whole.view(shape))
    total = reduce(torch.add, terms)
    return (total.to(torch.float64) / unit + 0.5).floor().clamp(0, 255).to(torch.uint8)
