"""The gradient of grid_sample: a picture is read at places between its own, which the grid gives.

What is read is a sum of values next to the place, each times a weight. The gradient of a value is that of the result
times its weight, added up where the value lies; that of the place goes through the weights, and back through how the
place was moved inside.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch

from ingot.autograd.gradient_rules import gradient

aten = torch.ops.aten
X = torch.Tensor
_BILINEAR, _NEAREST, _BICUBIC = range(3)
_ZEROS, _BORDER, _REFLECTION = range(3)
_A = -0.75  # of the cubic kernel


@gradient(aten.grid_sampler_2d_backward.default)
def grid_sampler_2d_backward(
    grad: X, x: X, grid: X, interpolation: int, padding: int, align: bool, mask: Sequence[bool]
) -> tuple[X | None, X | None]:
    rows, columns = x.shape[2:]
    count = grid.shape[1] * grid.shape[2]
    across, down = (_unnormalize(grid[..., dim].flatten(1), size, align) for dim, size in ((0, columns), (1, rows)))

    def pad(place: X, size: int) -> X:
        return _move_inside(place, size, padding, align)[0]

    if interpolation == _BICUBIC:
        taps = [_cubic(place, partial(pad, size=size)) for place, size in ((across, columns), (down, rows))]
        slopes = [torch.ones_like(across)] * 2
    else:
        moved = [_move_inside(place, size, padding, align) for place, size in ((across, columns), (down, rows))]
        slopes = [slope for _, slope in moved]
        read = _nearest if interpolation == _NEAREST else _linear
        taps = [read(place) for place, _ in moved]

    values, grads = x.flatten(2), grad.reshape(*grad.shape[:2], count)
    of_x = torch.zeros_like(values)
    of_place = [torch.zeros_like(across), torch.zeros_like(down)]
    for at_row, weight_down, slope_down in taps[1]:
        for at_column, weight_across, slope_across in taps[0]:
            is_inside = (at_column >= 0) & (at_column < columns) & (at_row >= 0) & (at_row < rows)
            index = torch.where(is_inside, at_row * columns + at_column, 0.0).to(torch.int64)
            index = index[:, None].expand(grads.shape)
            if mask[0]:
                weight = torch.where(is_inside, weight_across * weight_down, 0.0)
                of_x = of_x.scatter_add(2, index, grads * weight[:, None])
            if mask[1] and interpolation != _NEAREST:
                along = torch.where(is_inside, (grads * values.gather(2, index)).sum(1), 0.0)
                of_place[0] = of_place[0] + along * slope_across * weight_down
                of_place[1] = of_place[1] + along * weight_across * slope_down
    of_grid = None
    if mask[1]:
        scales = [(size - 1) / 2 if align else size / 2 for size in (columns, rows)]
        parts = [part * slope * scale for part, slope, scale in zip(of_place, slopes, scales, strict=True)]
        of_grid = torch.stack(parts, -1).reshape(grid.shape)
    return of_x.reshape(x.shape) if mask[0] else None, of_grid


Taps = list[tuple[X, X, X]]  # places that are read along a dim, their weights, and the slopes of these


def _linear(place: X) -> Taps:
    first = place.floor()
    part = place - first
    one = torch.ones_like(part)
    return [(first, 1 - part, -one), (first + 1, part, one)]


def _nearest(place: X) -> Taps:
    return [(place.round(), torch.ones_like(place), torch.zeros_like(place))]


def _cubic(place: X, pad: Callable[[X], X]) -> Taps:
    first = place.floor()
    part = place - first
    taps = []
    for offset in (-1, 0, 1, 2):
        away = part - offset if offset <= 0 else offset - part  # how far the place is, at most 2
        sign = 1.0 if offset <= 0 else -1.0
        if offset in (0, 1):
            weight = ((_A + 2) * away - (_A + 3)) * away * away + 1
            slope = (3 * (_A + 2) * away - 2 * (_A + 3)) * away
        else:
            weight = ((_A * away - 5 * _A) * away + 8 * _A) * away - 4 * _A
            slope = (3 * _A * away - 10 * _A) * away + 8 * _A
        taps.append((pad(first + offset), weight, slope * sign))
    return taps


def _unnormalize(place: X, size: int, align: bool) -> X:
    """From -1 … 1 to places along a dim of this size."""
    return (place + 1) / 2 * (size - 1) if align else ((place + 1) * size - 1) / 2


def _move_inside(place: X, size: int, padding: int, align: bool) -> tuple[X, X]:
    """The place that is read for one outside, and the slope of that."""
    slope = torch.ones_like(place)
    if padding == _ZEROS:
        return place, slope
    if padding == _REFLECTION:
        low, span = (0.0, float(size - 1)) if align else (-0.5, float(size))
        if span == 0:
            return torch.zeros_like(place), torch.zeros_like(place)
        away = (place - low).abs()
        extra = away.fmod(span)
        is_even = (away / span).floor().fmod(2) == 0
        slope = torch.where((place < low) == is_even, -slope, slope)
        place = torch.where(is_even, extra, span - extra) + low
    slope = torch.where((place <= 0) | (place >= size - 1), 0.0, slope)
    return place.clamp(0, math.inf if size < 1 else size - 1), slope
