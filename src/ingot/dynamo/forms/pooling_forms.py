"""Maxima of windows, with places inside the window."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ingot.dynamo.late_forms import late_form
from ingot.passes.decompositions.special.drawn_pools import each_of

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
