"""Gradients of pooling, interpolation and padding.

What averages or interpolates is linear, one dim at a time: its gradient is a product with a matrix for each dim, which
is made of the operator itself, applied to the identity.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ingot.autograd.gradient_rules import gradient, lay_out
from ingot.passes.decompositions.special.drawn_pools import each_of

aten = torch.ops.aten
Scale = float | None


# ---------------------------------------------------------------------- averages


@gradient(aten.avg_pool2d_backward.default)
def average_pool_2d_backward(grad: torch.Tensor, x: torch.Tensor, *options: Any) -> torch.Tensor:
    return lay_out(_average_pool_backward(2, grad, x, *options), x)


@gradient(aten.avg_pool3d_backward.default)
def average_pool_3d_backward(grad: torch.Tensor, x: torch.Tensor, *options: Any) -> torch.Tensor:
    return _average_pool_backward(3, grad, x, *options).contiguous()


def _average_pool_backward(
    dims: int, grad: torch.Tensor, x: torch.Tensor, kernel: Sequence[int], stride: Sequence[int],
    padding: Sequence[int], ceil_mode: bool, count_include_pad: bool, divisor: int | None,
) -> torch.Tensor:  # fmt: skip
    """Each place adds up, one dim at a time, what the windows that it lies in have for each of their places."""
    kernel, padding = each_of(kernel, dims), each_of(padding, dims)
    stride = each_of(stride, dims) if stride else kernel
    grad = grad if divisor is None else grad / divisor
    for number in range(dims):
        dim, k, step, pad = number - dims, kernel[number], stride[number], padding[number]
        size, out = x.shape[dim], grad.shape[dim]
        along = [-1] + [1] * (dims - 1 - number)
        if divisor is None:
            first = torch.arange(out, device=x.device) * step - pad
            last = (first + k).clamp(max=size + pad)
            count = last - first if count_include_pad else last.clamp(max=size) - first.clamp(min=0)
            grad = grad / count.view(along)
        place = torch.arange(size, device=x.device) + pad
        parts = []
        for back in range(-(-k // step)):
            window = place // step - back
            inside = (window >= 0) & (window < out) & (place < window * step + k)
            part = grad.index_select(dim, window.clamp(min=0).clamp(max=out - 1))
            parts.append(torch.where(inside.view(along), part, 0.0))
        grad = sum(parts[1:], parts[0])
    return grad


@gradient(aten._adaptive_avg_pool2d_backward.default)
def adaptive_average_pool_2d_backward(grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return lay_out(_multiply_each_dim(grad, [_averages(x.shape[d], grad.shape[d], grad) for d in (-2, -1)]), x)


@gradient(aten._adaptive_avg_pool3d_backward.default)
def adaptive_average_pool_3d_backward(grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return _multiply_each_dim(grad, [_averages(x.shape[d], grad.shape[d], grad) for d in (-3, -2, -1)])


def _averages(size: int, out: int, like: torch.Tensor) -> torch.Tensor:
    """A matrix [size, out]: what each place adds to each average."""
    number = torch.arange(out, device=like.device)
    first, last = number * size // out, ((number + 1) * size + out - 1) // out
    place = torch.arange(size, device=like.device)[:, None]
    return ((place >= first) & (place < last)).to(like.dtype) / (last - first).to(like.dtype)


def _multiply_each_dim(grad: torch.Tensor, matrices: Sequence[torch.Tensor]) -> torch.Tensor:
    """The gradient times the matrix [size, out] of each of its last dims."""
    for number, matrix in enumerate(matrices):
        dim = number - len(matrices)
        grad = (grad.transpose(dim, -1) @ matrix.T).transpose(dim, -1)
    return grad.contiguous()


# ---------------------------------------------------------------------- the largest of each window


@gradient(aten.adaptive_max_pool2d_backward.default)
def adaptive_max_pool_2d_backward(grad: torch.Tensor, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    return lay_out(_put_back(2, grad, x, places), x)


@gradient(aten.adaptive_max_pool3d_backward.default)
def adaptive_max_pool_3d_backward(grad: torch.Tensor, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    return _put_back(3, grad, x, places)


@gradient(aten.max_pool3d_with_indices_backward.default)
def max_pool_3d_backward(grad: torch.Tensor, x: torch.Tensor, *options: Any) -> torch.Tensor:
    return lay_out(_put_back(3, grad, x, options[-1]), x)


def _put_back(dims: int, grad: torch.Tensor, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Adds each gradient at the place in the last dims that its value came from."""
    zeros = torch.zeros_like(x, memory_format=torch.contiguous_format).flatten(-dims)
    return zeros.scatter_add(-1, places.flatten(-dims), grad.flatten(-dims)).reshape(x.shape)


# ---------------------------------------------------------------------- interpolation


@gradient(aten.upsample_nearest1d_backward.default)
@gradient(aten.upsample_nearest2d_backward.default)
@gradient(aten.upsample_nearest3d_backward.default)
def nearest_backward(grad: torch.Tensor, outs: Sequence[int], sizes: Sequence[int], *scales: Scale) -> torch.Tensor:
    return _pull_back(grad, sizes, scales, lambda x, out, scale: aten.upsample_nearest1d.default(x, out, scale))


@gradient(aten._upsample_nearest_exact1d_backward.default)
@gradient(aten._upsample_nearest_exact2d_backward.default)
@gradient(aten._upsample_nearest_exact3d_backward.default)
def nearest_exact_backward(
    grad: torch.Tensor, outs: Sequence[int], sizes: Sequence[int], *scales: Scale
) -> torch.Tensor:
    return _pull_back(grad, sizes, scales, lambda x, out, scale: aten._upsample_nearest_exact1d.default(x, out, scale))


@gradient(aten.upsample_linear1d_backward.default)
@gradient(aten.upsample_bilinear2d_backward.default)
@gradient(aten.upsample_trilinear3d_backward.default)
def linear_backward(
    grad: torch.Tensor, outs: Sequence[int], sizes: Sequence[int], corners: bool, *scales: Scale
) -> torch.Tensor:
    return _pull_back(grad, sizes, scales, lambda x, out, scale: aten.upsample_linear1d.default(x, out, corners, scale))


@gradient(aten.upsample_bicubic2d_backward.default)
def bicubic_backward(
    grad: torch.Tensor, outs: Sequence[int], sizes: Sequence[int], corners: bool, *scales: Scale
) -> torch.Tensor:
    return _pull_back(grad, sizes, scales, _as_picture(aten.upsample_bicubic2d.default, corners))


def _as_picture(operator: Any, corners: bool) -> Any:
    """An operator on pictures as one on rows: pictures of one row, which stays as it is."""

    def on_rows(x: torch.Tensor, out: Sequence[int], scale: Scale) -> torch.Tensor:
        made: torch.Tensor = operator(x[:, :, None], [1, *out], corners, None, scale)
        return made[:, :, 0]

    return on_rows


def _pull_back(grad: torch.Tensor, sizes: Sequence[int], scales: Sequence[Scale], operator: Any) -> torch.Tensor:
    dims, dtype = len(sizes) - 2, torch.float64 if grad.dtype == torch.float64 else torch.float32
    matrices = []
    for dim, scale in zip(range(-dims, 0), [*scales, *[None] * dims], strict=False):
        rows = torch.eye(sizes[dim], dtype=dtype, device=grad.device)[:, None]
        matrices.append(operator(rows, [grad.shape[dim]], scale)[:, 0].to(grad.dtype))
    return lay_out(_multiply_each_dim(grad, matrices), grad)


# ---------------------------------------------------------------------- padding


@gradient(aten.replication_pad1d_backward.default)
@gradient(aten.replication_pad2d_backward.default)
@gradient(aten.replication_pad3d_backward.default)
def replication_pad_backward(grad: torch.Tensor, x: torch.Tensor, padding: Sequence[int]) -> torch.Tensor:
    matrices = []
    for number in reversed(range(len(padding) // 2)):
        size, out = x.shape[-1 - number], grad.shape[-1 - number]
        source = (torch.arange(out, device=grad.device) - padding[2 * number]).clamp(0, size - 1)
        matrices.append((torch.arange(size, device=grad.device)[:, None] == source).to(grad.dtype))
    return _multiply_each_dim(grad, matrices)
