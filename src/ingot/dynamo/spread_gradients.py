"""Gradients of pooling and padding: a gradient is spread over the places that its result was made of.

Along each dim that is a product with a small matrix of weights, which says how much of a place each result holds. Where
a maximum was taken, the gradient goes to the place of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

aten = torch.ops.aten


def _spread(gradient: torch.Tensor, weights: Sequence[torch.Tensor]) -> torch.Tensor:
    """`weights` are those of the last dims: a row for each result, a column for each place."""
    for dim, matrix in enumerate(weights, start=gradient.dim() - len(weights)):
        gradient = (gradient.movedim(dim, -1) @ matrix.to(gradient.dtype)).movedim(-1, dim)
    return gradient


def _windows(first: torch.Tensor, last: torch.Tensor, places: int) -> torch.Tensor:
    """1 for the places from the first of each result up to its last, which does not count."""
    place = torch.arange(places, device=first.device)
    return (place >= first.unsqueeze(1)) & (place < last.unsqueeze(1))


def _each(given: Sequence[int], dims: int) -> list[int]:
    return [*given] * dims if len(given) == 1 else [*given]


def average_pool(
    gradient: torch.Tensor,
    x: torch.Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
    *,
    dims: int,
) -> torch.Tensor:
    kernel = _each(kernel_size, dims)
    steps, pads = _each(stride, dims) if len(stride) else kernel, _each(padding, dims)
    weights = []
    for d in range(dims):
        results, places = gradient.shape[d - dims], x.shape[d - dims]
        first = torch.arange(results, device=x.device) * steps[d] - pads[d]
        last = (first + kernel[d]).clamp(max=places + pads[d])
        inside = _windows(first, last, places).to(gradient.dtype)
        if divisor_override is None:
            count = last - first if count_include_pad else last.clamp(max=places) - first.clamp(min=0)
            inside = inside / count.unsqueeze(1)
        weights.append(inside)
    if divisor_override is not None:
        gradient = gradient / divisor_override
    return _spread(gradient, weights)


def adaptive_average_pool(gradient: torch.Tensor, x: torch.Tensor, *, dims: int) -> torch.Tensor:
    weights = []
    for d in range(dims):
        results, places = gradient.shape[d - dims], x.shape[d - dims]
        number = torch.arange(results, device=x.device)
        first, last = number * places // results, ((number + 1) * places + results - 1) // results
        weights.append(_windows(first, last, places).to(gradient.dtype) / (last - first).unsqueeze(1))
    return _spread(gradient, weights)


def replication_pad(gradient: torch.Tensor, x: torch.Tensor, padding: Sequence[int], *, dims: int) -> torch.Tensor:
    weights = []
    for d in range(dims):
        results, places = gradient.shape[d - dims], x.shape[d - dims]
        source = (torch.arange(results, device=x.device) - padding[2 * (dims - 1 - d)]).clamp(0, places - 1)
        weights.append(_windows(source, source + 1, places))
    return _spread(gradient, weights)


def maximum_pool(gradient: torch.Tensor, x: torch.Tensor, indices: torch.Tensor, *, dims: int) -> torch.Tensor:
    outer, places = x.shape[: x.dim() - dims], x.shape[x.dim() - dims :]
    zeros = torch.zeros([*outer, math.prod(places)], dtype=gradient.dtype, device=gradient.device)
    return zeros.scatter_add(-1, indices.flatten(-dims), gradient.flatten(-dims)).reshape(x.shape)


def _fixed_dims(rule: Callable[..., torch.Tensor], dims: int) -> Callable[..., torch.Tensor]:
    def run(*args: Any, **kwargs: Any) -> torch.Tensor:
        return rule(*args, dims=dims, **kwargs)

    return run


def _maximum_of_windows(gradient: torch.Tensor, x: torch.Tensor, *rest: Any) -> torch.Tensor:
    """Of max_pool3d: between come kernel, stride, padding, dilation and ceil_mode."""
    return maximum_pool(gradient, x, rest[-1], dims=3)


RULES: dict[Any, Callable[..., torch.Tensor]] = {
    aten.avg_pool2d_backward.default: _fixed_dims(average_pool, 2),
    aten.avg_pool3d_backward.default: _fixed_dims(average_pool, 3),
    aten._adaptive_avg_pool2d_backward.default: _fixed_dims(adaptive_average_pool, 2),
    aten._adaptive_avg_pool3d_backward.default: _fixed_dims(adaptive_average_pool, 3),
    aten.adaptive_max_pool2d_backward.default: _fixed_dims(maximum_pool, 2),
    aten.adaptive_max_pool3d_backward.default: _fixed_dims(maximum_pool, 3),
    aten.max_pool3d_with_indices_backward.default: _maximum_of_windows,
    aten.replication_pad1d_backward.default: _fixed_dims(replication_pad, 1),
    aten.replication_pad2d_backward.default: _fixed_dims(replication_pad, 2),
    aten.replication_pad3d_backward.default: _fixed_dims(replication_pad, 3),
}
