"""Gradients that torch has as one operator, made of operators that have native code.

A rule takes what the operator takes, and returns what it returns; torch's tracer calls it in the operator's place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ingot.passes.decompositions.special.drawn_pools import each_of
from ingot.passes.decompositions.special.polygamma import polygamma
from ingot.registry import Registry

aten = torch.ops.aten
Rule = Callable[..., Any]
_RULES: Registry[Any, Rule] = Registry("gradient rule")
gradient = _RULES.register


def gradient_rules() -> Mapping[Any, Rule]:
    """Every rule, by operator."""
    from ingot.autograd import attention_gradients, grid_gradients, resampling_gradients  # noqa: F401  register their rules here

    return _RULES


def lay_out(result: torch.Tensor, *like: torch.Tensor) -> torch.Tensor:
    """The result with channels last in memory where one of `like` has them there, and row-major otherwise."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(result.dim())
    if last is not None and any(not x.is_contiguous() and x.is_contiguous(memory_format=last) for x in like):
        return result.contiguous(memory_format=last)
    return result.contiguous()


def order_as(result: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The result with its dims in memory in the order that those of `like` have, without holes."""
    strides = like.stride()
    dims = sorted(range(len(strides)), key=lambda dim: -strides[dim])
    return result.permute(dims).contiguous().permute([dims.index(dim) for dim in range(len(dims))])


# ---------------------------------------------------------------------- convolution


@gradient(aten.convolution_backward.default)
def convolution_backward(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias_sizes: Sequence[int] | None,
    stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], transposed: bool,
    output_padding: Sequence[int], groups: int, mask: Sequence[bool],
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:  # fmt: skip
    """The gradient of the input is the other kind of convolution with the same weights; that of the weights is the
    product of the gradient with the windows of the input (for a transposed one the other way round)."""
    dims = x.dim() - 2
    stride, padding, dilation = (each_of(value, dims) for value in (stride, padding, dilation))
    of_input = of_weight = of_bias = None
    if mask[0]:
        of_input = lay_out(_input_gradient(grad, x, weight, stride, padding, dilation, transposed, groups), x, weight)
    if mask[1]:
        large, small = (grad, x) if transposed else (x, grad)
        of_weight = _weight_gradient(large, small, weight.shape[2:], stride, padding, dilation, groups)
        of_weight = lay_out(of_weight.to(weight.dtype), x, weight)
    if mask[2]:
        of_bias = grad.sum([0, *range(2, grad.dim())])
    return of_input, of_weight, of_bias


def _input_gradient(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], transposed: bool, groups: int,
) -> torch.Tensor:  # fmt: skip
    sizes = x.shape[2:]
    made: torch.Tensor
    if transposed:
        none = [0] * len(sizes)
        made = aten.convolution.default(grad, weight, None, stride, padding, dilation, False, none, groups)
        for dim, size in enumerate(sizes, start=2):
            made = made.narrow(dim, 0, size)
        return made
    # What the last window does not reach has no gradient: the transposed convolution leaves so much out.
    left = [
        size - ((out - 1) * s - 2 * p + d * (k - 1) + 1)
        for size, out, s, p, d, k in zip(
            sizes, grad.shape[2:], stride, padding, dilation, weight.shape[2:], strict=True
        )
    ]
    made = aten.convolution.default(grad, weight, None, stride, padding, dilation, True, left, groups)
    return made


def _weight_gradient(
    large: torch.Tensor, small: torch.Tensor, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], groups: int,
) -> torch.Tensor:  # fmt: skip
    """The product of `small` with the windows of `large` that were multiplied with the same weights."""
    dims = len(kernel)
    if any(padding):
        large = aten.constant_pad_nd.default(large, [p for p in reversed(padding) for _ in range(2)], 0)
    for d in range(dims):
        span = dilation[d] * (kernel[d] - 1) + 1
        large = large.unfold(d + 2, span, stride[d]).narrow(d + 2, 0, small.shape[d + 2])
        if dilation[d] > 1:
            large = large[..., :: dilation[d]]
    batch, inner, outer = large.shape[0], large.shape[1] // groups, small.shape[1] // groups
    places = [*range(3, 3 + dims)]
    windows = large.reshape(batch, groups, inner, *large.shape[2:])  # then places, then the kernel's dims
    windows = windows.permute(1, 0, *places, 2, *range(3 + dims, 3 + 2 * dims))
    parts = small.reshape(batch, groups, outer, *small.shape[2:]).permute(1, 2, 0, *places)
    rows = batch * math.prod(small.shape[2:])
    found = torch.bmm(parts.reshape(groups, outer, rows), windows.reshape(groups, rows, inner * math.prod(kernel)))
    return found.reshape(groups * outer, inner, *kernel)


# ---------------------------------------------------------------------- layers


@gradient(aten._weight_norm_interface_backward.default)
def weight_norm_backward(
    grad: torch.Tensor, v: torch.Tensor, g: torch.Tensor, norms: torch.Tensor, dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    others = [d for d in range(v.dim()) if d != dim % v.dim()]
    along = (grad * v).sum(others, keepdim=True) if others else grad * v
    return g / norms * (grad - v * (along / (norms * norms))), along / norms


@gradient(aten.hardshrink_backward.default, aten.softshrink_backward.default)
def shrink_backward(grad: torch.Tensor, x: torch.Tensor, limit: float = 0.5) -> torch.Tensor:
    return torch.where((x >= -limit) & (x <= limit), 0.0, grad)


@gradient(aten.rrelu_with_noise_backward.default)
def rrelu_backward(
    grad: torch.Tensor, x: torch.Tensor, noise: torch.Tensor, lower: float, upper: float, training: bool, _: bool
) -> torch.Tensor:
    if training and upper - lower > 1e-6:
        return grad * noise
    return torch.where(x > 0, grad, grad * ((lower + upper) / 2))


@gradient(aten.masked_scatter_backward.default)
def masked_scatter_backward(grad: torch.Tensor, mask: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """The gradients under the mask, one after the other; what is not taken goes to a place of its own at the end."""
    count = math.prod(sizes)
    mask = mask.expand(grad.shape).flatten()
    places = torch.where(mask, mask.cumsum(0) - 1, count).clamp(max=count)
    return grad.new_zeros(count + 1).scatter_add(0, places, grad.flatten())[:count].reshape(sizes)


@gradient(aten.fractional_max_pool2d_backward.default, aten.fractional_max_pool3d_backward.default)
def fractional_max_pool_backward(
    grad: torch.Tensor, x: torch.Tensor, kernel: Sequence[int], _: Sequence[int], indices: torch.Tensor
) -> torch.Tensor:
    dims = len(kernel)
    flat = x.new_zeros((*x.shape[:-dims], math.prod(x.shape[-dims:])))
    return flat.scatter_add(-1, indices.flatten(-dims), grad.flatten(-dims)).reshape(x.shape)


gradient(aten.polygamma.default)(polygamma)
