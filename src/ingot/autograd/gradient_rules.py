"""Gradients that torch has as one operator, made of operators that have native code.

A rule takes what the operator takes, and returns what it returns; torch's tracer calls it in the operator's place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ingot.registry import Registry

aten = torch.ops.aten
Rule = Callable[..., Any]
_RULES: Registry[Any, Rule] = Registry("gradient rule")
gradient = _RULES.register


def gradient_rules() -> Mapping[Any, Rule]:
    """Every rule, by operator."""
    from ingot.autograd import resampling_gradients  # noqa: F401  registers its rules here

    return _RULES


# ---------------------------------------------------------------------- convolution


@gradient(aten.convolution_backward.default)
def convolution_backward(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias_sizes: Sequence[int] | None,
    stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], transposed: bool,
    output_padding: Sequence[int], groups: int, mask: Sequence[bool],
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:  # fmt: skip
    """The gradient of the input is the other kind of convolution with the same weights; that of the weights is a
    convolution over the batch, where the gradient (or for a transposed one the input) is the window that slides."""
    dims = x.dim() - 2
    stride, padding, dilation = (each_of(value, dims) for value in (stride, padding, dilation))
    of_input = of_weight = of_bias = None
    if mask[0]:
        of_input = _input_gradient(grad, x, weight, stride, padding, dilation, transposed, groups)
    if mask[1]:
        window, slides = (x, grad) if transposed else (grad, x)
        of_weight = _weight_gradient(slides, window, weight, stride, padding, dilation, groups)
    if mask[2]:
        of_bias = grad.sum([0, *range(2, grad.dim())])
    return of_input, of_weight, of_bias


def each_of(value: Sequence[int], dims: int) -> list[int]:
    return list(value) * dims if len(value) == 1 else list(value)


def _input_gradient(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], transposed: bool, groups: int,
) -> torch.Tensor:  # fmt: skip
    sizes = x.shape[2:]
    none = [0] * len(sizes)
    if transposed:
        made = aten.convolution.default(grad, weight, None, stride, padding, dilation, False, none, groups)
        return _cut(made, sizes)
    # What the last window does not reach has no gradient: the transposed convolution leaves so much out.
    left = [
        size - ((out - 1) * s - 2 * p + d * (k - 1) + 1)
        for size, out, s, p, d, k in zip(
            sizes, grad.shape[2:], stride, padding, dilation, weight.shape[2:], strict=True
        )
    ]
    made = aten.convolution.default(grad, weight, None, stride, padding, dilation, True, left, groups)
    return _cut(made, sizes)


def _weight_gradient(
    slides: torch.Tensor, window: torch.Tensor, weight: torch.Tensor, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], groups: int,
) -> torch.Tensor:  # fmt: skip
    batch, spatial = slides.shape[0], list(slides.shape[2:])
    inner, outer = slides.shape[1] // groups, window.shape[1]
    # Channels of a group become the batch, and the batch of each group its channels.
    data = slides.reshape(batch, groups, inner, *spatial).transpose(0, 2).reshape(inner, groups * batch, *spatial)
    kernel = window.transpose(0, 1)  # [outer, batch, …], of which each group has outer / groups
    none = [0] * len(spatial)
    made = aten.convolution.default(data, kernel, None, dilation, padding, stride, False, none, groups)
    return _cut(made, weight.shape[2:]).transpose(0, 1).reshape(outer, inner, *weight.shape[2:])


def _cut(x: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    for dim, size in enumerate(sizes):
        if x.shape[dim + 2] != size:
            x = x.narrow(dim + 2, 0, size)
    return x


# ---------------------------------------------------------------------- attention


@gradient(aten._scaled_dot_product_flash_attention_for_cpu.default)
def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout_p: float = 0.0, is_causal: bool = False, *,
    attn_mask: torch.Tensor | None = None, scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """The result, and log Σ exp of each query's scores, from which the backward makes the probabilities again."""
    assert dropout_p == 0.0, "torch takes another way where there is dropout"
    scores = _scores(q, _spread(k, q), is_causal, attn_mask, scale)
    total = scores.logsumexp(-1)
    out = _probabilities(scores, total) @ _wide(_spread(v, q))
    # Its memory is in the order batch, length, heads, depth, as torch's own is.
    return out.to(q.dtype).transpose(1, 2).contiguous().transpose(1, 2), total


@gradient(aten._scaled_dot_product_flash_attention_for_cpu_backward.default)
def attention_backward(
    grad: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, total: torch.Tensor,
    dropout_p: float, is_causal: bool, *, attn_mask: torch.Tensor | None = None, scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    keys, values = _spread(k, q), _spread(v, q)
    p = _probabilities(_scores(q, keys, is_causal, attn_mask, scale), total)
    grad, result = _wide(grad), _wide(out)
    of_v = p.transpose(-2, -1) @ grad
    of_p = grad @ _wide(values).transpose(-2, -1)
    of_scores = p * (of_p - (grad * result).sum(-1, keepdim=True)) * _scale(q, scale)
    of_q, of_k = of_scores @ _wide(keys), of_scores.transpose(-2, -1) @ _wide(q)
    return of_q.to(q.dtype), _gather(of_k, k), _gather(of_v, v)


def _spread(x: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Keys or values, whose heads may be fewer: each for a group of the queries' heads."""
    return x if x.shape[1] == q.shape[1] else x.repeat_interleave(q.shape[1] // x.shape[1], 1)


def _gather(grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The gradient of what `_spread` spread."""
    if grad.shape[1] != x.shape[1]:
        grad = grad.reshape(x.shape[0], x.shape[1], -1, *x.shape[2:]).sum(2)
    return grad.to(x.dtype)


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _scale(q: torch.Tensor, scale: float | None) -> float:
    return float(q.shape[-1]) ** -0.5 if scale is None else scale


def _scores(
    q: torch.Tensor, k: torch.Tensor, is_causal: bool, mask: torch.Tensor | None, scale: float | None
) -> torch.Tensor:
    scores = _wide(q) @ _wide(k).transpose(-2, -1) * _scale(q, scale)
    if is_causal:
        rows, columns = (torch.arange(size, device=q.device) for size in scores.shape[-2:])
        scores = scores.masked_fill(columns > rows[:, None], -torch.inf)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    return scores


def _probabilities(scores: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    """softmax, with zeros for a query that sees no key."""
    total = total[..., None]
    return torch.where(total == -torch.inf, 0.0, (scores - total).exp())


# ---------------------------------------------------------------------- layers


@gradient(aten._weight_norm_interface_backward.default)
def weight_norm_backward(
    grad: torch.Tensor, v: torch.Tensor, g: torch.Tensor, norms: torch.Tensor, dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    others = [d for d in range(v.dim()) if d != dim]
    along = (grad * v).sum(others, keepdim=True) if others else grad * v
    return g / norms * (grad - v * along / (norms * norms)), along / norms


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
