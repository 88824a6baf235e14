"""Maxima of windows: with places inside the window, and of windows whose places are drawn."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ingot.autograd.gradient_rules import each_of
from ingot.dynamo.late_forms import late_form

aten = torch.ops.aten


@late_form("prims::_low_memory_max_pool_with_offsets")
def max_pool_with_offsets(
    x: torch.Tensor, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
    ceil_mode: bool,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """The maxima, and the place of each in its window as a number of 8 bits."""
    pool = aten.max_pool2d_with_indices if len(kernel) == 2 else aten.max_pool3d_with_indices
    values, indices = pool.default(x, kernel, stride, padding, dilation, ceil_mode)
    dims = len(kernel)
    inside = [
        (at - first) // step
        for at, first, step in zip(
            _unravel(indices, x.shape[-dims:]), _window_starts(indices, stride, padding), each_of(dilation, dims),
            strict=True,
        )
    ]  # fmt: skip
    return values, _ravel(inside, kernel).to(torch.int8)


@late_form("prims::_low_memory_max_pool_offsets_to_indices")
def pool_offsets_to_indices(
    offsets: torch.Tensor, kernel: Sequence[int], sizes: Sequence[int], stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int],
) -> torch.Tensor:  # fmt: skip
    """The places in the whole tensor of those in windows."""
    starts = _window_starts(offsets, stride, padding)
    inside = _unravel(offsets.long(), kernel)
    steps = each_of(dilation, len(kernel))
    return _ravel([first + at * step for first, at, step in zip(starts, inside, steps, strict=True)], sizes)


def _window_starts(like: torch.Tensor, stride: Sequence[int], padding: Sequence[int]) -> list[torch.Tensor]:
    """Where each window begins, along each of the last dims."""
    dims = len(stride)
    found = []
    for dim, (step, pad) in enumerate(zip(stride, each_of(padding, dims), strict=True)):
        starts = torch.arange(like.shape[dim - dims], device=like.device) * step - pad
        found.append(starts.reshape(-1, *[1] * (dims - 1 - dim)))
    return found


def _unravel(index: torch.Tensor, sizes: Sequence[int]) -> list[torch.Tensor]:
    """The place along each dim, of places in a flat tensor of these sizes."""
    found = []
    for size in reversed(sizes):
        found.append(index % size)
        index = index // size
    return found[::-1]


def _ravel(places: Sequence[torch.Tensor], sizes: Sequence[int]) -> torch.Tensor:
    total = places[0]
    for place, size in zip(places[1:], sizes[1:], strict=True):
        total = total * size + place
    return total


@late_form("aten::fractional_max_pool2d")
def fractional_max_pool2d(
    x: torch.Tensor, kernel: Sequence[int], out: Sequence[int], samples: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    return _pool_drawn(x, each_of(kernel, 2), each_of(out, 2), samples.flip(-1))  # those of columns are first


@late_form("aten::fractional_max_pool3d")
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
    index = flat.reshape(*planes, *out, -1)
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
