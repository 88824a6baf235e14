"""Operators that torch's compiler writes, in terms of those that native code has: gradients, and what they save.

_foreach_…                                     the operator on each tensor
prims.fma                                      a product and a sum
convolution_backward                           convolutions and matrix products
_weight_norm_interface_backward                sums of products
_scaled_dot_product_flash_attention_for_cpu    attention as a whole, and the logarithm of its sums
… _backward                                    matrix products; probabilities are computed again
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from ingot import torch_internals as internals
from ingot.dynamo import spread_gradients
from ingot.dynamo.foreach import foreach_form
from ingot.ir.metadata import value_of
from ingot.registry import Registry

aten = torch.ops.aten
Rule = Callable[..., Any]
_RULES: Registry[Any, Rule] = Registry("form of an operator of torch's compiler")
writes = _RULES.register


for _target, _rule in spread_gradients.RULES.items():
    writes(_target)(_rule)


def training_decompositions() -> dict[Any, Callable[..., Any]]:
    """What AOTAutograd takes apart before it cuts a graph in halves, so that it can choose what is computed again.

    Without attention, whose decomposition does not return what its gradient needs.
    """
    table = internals.default_decompositions()
    return {target: decompose for target, decompose in table.items() if _RULES.find(target) is None}


def replace_operators(graph: fx.GraphModule) -> None:
    """Replaces operators that have a rule here with calls of it, which a capture looks into.

    A view is a reshape then: what rules return has other strides than torch's operators, and native code has none.
    """
    reads_strides = any(node.target is aten.as_strided.default for node in graph.graph.nodes)
    for node in graph.graph.nodes:
        if node.op != "call_function":
            continue
        rule = _RULES.find(node.target) or _late_form(node.target) or foreach_form(node.target)
        if rule is not None:
            node.target = _keep_strides(rule, value_of(node)) if reads_strides else rule
        elif node.target is aten.view.default:
            node.target = aten.reshape.default
    graph.recompile()


def _keep_strides(rule: Rule, fakes: Any) -> Rule:
    """The rule with results in the order of memory of those that torch's operator has."""

    def restride(result: Any, fake: Any) -> Any:
        if not isinstance(result, torch.Tensor) or not isinstance(fake, torch.Tensor):
            return result
        strides = fake.stride()
        dims = sorted(range(len(strides)), key=lambda dim: -strides[dim])
        return result.permute(dims).contiguous().permute([dims.index(dim) for dim in range(len(dims))])

    def run(*args: Any, **kwargs: Any) -> Any:
        results = rule(*args, **kwargs)
        if isinstance(results, torch.Tensor):
            return restride(results, fakes)
        return [restride(result, fake) for result, fake in zip(results, fakes, strict=True)]

    return run


def _late_form(target: Any) -> Rule | None:
    """The form of an operator that torch registers when its own compiler is imported."""
    schema = getattr(target, "_schema", None)
    return _LATE.get(schema.name) if schema is not None else None


def _fma(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    return a * b + c


_LATE: dict[str, Rule] = {"prims::fma": _fma}


# ---------------------------------------------------------------------- convolution


@writes(aten.convolution_backward.default)
def _convolution_backward(
    gradient: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[torch.Tensor | None, ...]:
    dims = x.dim() - 2
    stride, padding, dilation = (
        [*given] * dims if len(given) == 1 else [*given] for given in (stride, padding, dilation)
    )
    kernel = weight.shape[2:]
    of_x = of_weight = of_bias = None
    if output_mask[0]:
        if transposed:
            of_x = aten.convolution.default(
                gradient, weight, None, stride, padding, dilation, False, [0] * dims, groups
            )
            for dim in range(2, x.dim()):
                of_x = of_x.narrow(dim, 0, x.shape[dim])
        else:
            reached = [
                (gradient.shape[d + 2] - 1) * stride[d] - 2 * padding[d] + dilation[d] * (kernel[d] - 1) + 1
                for d in range(dims)
            ]
            missing = [x.shape[d + 2] - reached[d] for d in range(dims)]
            of_x = aten.convolution.default(gradient, weight, None, stride, padding, dilation, True, missing, groups)
    if output_mask[1]:
        large, small = (gradient, x) if transposed else (x, gradient)
        of_weight = _weight_gradient(large, small, kernel, stride, padding, dilation, groups).to(weight.dtype)
    if output_mask[2]:
        of_bias = gradient.sum([0, *range(2, x.dim())])
    return of_x, of_weight, of_bias


def _weight_gradient(
    large: torch.Tensor,
    small: torch.Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> torch.Tensor:
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


# ---------------------------------------------------------------------- norms of weights


@writes(aten._weight_norm_interface_backward.default)
def _weight_norm_backward(
    gradient: torch.Tensor, direction: torch.Tensor, length: torch.Tensor, norms: torch.Tensor, dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    others = [other for other in range(direction.dim()) if other != dim % direction.dim()]
    products = (gradient * direction).sum(others, keepdim=True)
    of_direction = length / norms * (gradient - direction * (products / (norms * norms)))
    return of_direction, products / norms


# ---------------------------------------------------------------------- attention


@writes(aten._scaled_dot_product_flash_attention_for_cpu.default)
def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    key, value = _repeat_heads(query, key), _repeat_heads(query, value)
    out = aten.scaled_dot_product_attention.default(query, key, value, attn_mask, 0.0, is_causal, scale=scale)
    return out, torch.logsumexp(_scores(query, key, attn_mask, is_causal, scale), -1)


@writes(aten._scaled_dot_product_flash_attention_for_cpu_backward.default)
def _attention_backward(
    gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    heads = key.shape[-3]
    key, value = _repeat_heads(query, key), _repeat_heads(query, value)
    sums = logsumexp.unsqueeze(-1)
    sums = torch.where(sums == -math.inf, 0.0, sums)  # of a row that is masked as a whole
    probabilities = torch.exp(_scores(query, key, attn_mask, is_causal, scale) - sums)
    wide = gradient.to(sums.dtype)
    of_value = probabilities.transpose(-2, -1) @ wide
    of_probabilities = wide @ value.to(sums.dtype).transpose(-2, -1)
    correction = (wide * out.to(sums.dtype)).sum(-1, keepdim=True)
    of_scores = probabilities * (of_probabilities - correction) * _factor(query, scale)
    of_query = of_scores @ key.to(sums.dtype)
    of_key = of_scores.transpose(-2, -1) @ query.to(sums.dtype)
    of_key, of_value = _add_heads(of_key, heads), _add_heads(of_value, heads)
    return of_query.to(query.dtype), of_key.to(key.dtype), of_value.to(value.dtype)


def _repeat_heads(query: torch.Tensor, shared: torch.Tensor) -> torch.Tensor:
    """Keys or values with a head for each head of the query, several of which may share one."""
    times = query.shape[-3] // shared.shape[-3]
    return shared if times == 1 else shared.repeat_interleave(times, dim=-3)


def _add_heads(gradient: torch.Tensor, heads: int) -> torch.Tensor:
    """The gradient of heads that were repeated."""
    if gradient.shape[-3] == heads:
        return gradient
    parts: torch.Tensor = gradient.unflatten(-3, (heads, gradient.shape[-3] // heads))
    return parts.sum(-3)


def _scores(
    query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor | None, is_causal: bool, scale: float | None
) -> torch.Tensor:
    """What the softmax of attention is of, in the precision that its sums are kept in."""
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    scores = query.to(wide) @ key.to(wide).transpose(-2, -1) * _factor(query, scale)
    if is_causal:
        rows = torch.arange(query.shape[-2], device=query.device).unsqueeze(-1)
        scores = torch.where(torch.arange(key.shape[-2], device=query.device) <= rows, scores, -math.inf)
    if mask is not None:
        scores = torch.where(mask, scores, -math.inf) if mask.dtype == torch.bool else scores + mask
    return scores


def _factor(query: torch.Tensor, scale: float | None) -> float:
    return 1 / math.sqrt(query.shape[-1]) if scale is None else scale
