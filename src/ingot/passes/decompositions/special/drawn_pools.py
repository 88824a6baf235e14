"""Maxima of windows whose places are drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ingot.passes.decompositions.special.expansions import expands


def each_of(value: Sequence[int], dims: int) -> list[int]:
    """A value for each dim, of a list that may have one for all."""
    return list(value) * dims if len(value) == 1 else list(value)


@expands("aten::fractional_max_pool2d")
def fractional_max_pool2d(
    x: torch.Tensor, kernel: Sequence[int], out: Sequence[int], samples: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    return _pool_drawn(x, each_of(kernel, 2), each_of(out, 2), samples.flip(-1))  # those of columns are first


@expands("aten::fractional_max_pool3d")
def fractional_max_pool3d(
    x: torch.Tensor, kernel: Sequence[int], out: Sequence[int], samples: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    return _pool_drawn(x, each_of(kernel, 3), each_of(out, 3), samples)


def _pool_drawn(
    x: torch.Tensor, kernel: Sequence[int], out: Sequence[int], samples: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The maxima of windows at places that `samples` move, and where they are in the flat planes."""
    dims = len(kernel)
    planes = x.shape[:-dims]
    samples = samples.reshape(*planes, dims)
    flat: torch.Tensor | None = None
    for dim in range(dims):
        size = x.shape[dim - dims]
        starts = _draw_starts(samples[..., dim], size, kernel[dim], out[dim])
        places = starts.unsqueeze(-1) + torch.arange(kernel[dim], device=x.device)  # outputs, then the window
        shape = [1] * (2 * dims)
        shape[dim], shape[dims + dim] = out[dim], kernel[dim]
        places = places.reshape(*planes, *shape)
        flat = places if flat is None else flat * size + places
    assert flat is not None
    index = flat.reshape(*planes, *out, math.prod(kernel))
    windows = x.flatten(-dims).gather(-1, index.flatten(len(planes))).reshape(index.shape)
    values, which = windows.max(-1)
    return values, index.gather(-1, which.unsqueeze(-1)).squeeze(-1)


def _draw_starts(sample: torch.Tensor, size: int, kernel: int, out: int) -> torch.Tensor:
    """Where the windows along one dim begin: the last one ends with the dim."""
    last = sample.new_full((*sample.shape, 1), size - kernel, dtype=torch.int64)
    if out == 1:
        return last
    step = torch.full((), size - kernel, dtype=sample.dtype, device=sample.device) / (out - 1)
    sample = sample.unsqueeze(-1)
    counted = torch.arange(out - 1, dtype=sample.dtype, device=sample.device)
    return torch.cat([((counted + sample) * step).long() - (sample * step).long(), last], -1)
