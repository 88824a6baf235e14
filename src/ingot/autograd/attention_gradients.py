"""Attention as torch computes it on the CPU, and its gradient, made of matrix products.

The forward hands over log Σ exp of each query's scores, from which the backward makes the probabilities again.
"""

from __future__ import annotations

import math

import torch

from ingot.autograd.gradient_rules import gradient, order_as

aten = torch.ops.aten


@gradient(aten._scaled_dot_product_flash_attention_for_cpu.default)
def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout_p: float = 0.0, is_causal: bool = False, *,
    attn_mask: torch.Tensor | None = None, scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    assert dropout_p == 0.0, "torch takes another way where there is dropout"
    scores = attention_scores(q, k, is_causal, attn_mask, scale)
    total = scores.logsumexp(-1)
    out = _probabilities(scores, total) @ _wide(repeat_heads(v, q))
    return order_as(out.to(q.dtype), q), _heads_inside(total)


@gradient(aten._scaled_dot_product_flash_attention_for_cpu_backward.default)
def attention_backward(
    grad: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, total: torch.Tensor,
    dropout_p: float, is_causal: bool, *, attn_mask: torch.Tensor | None = None, scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    p = _probabilities(attention_scores(q, k, is_causal, attn_mask, scale), total)
    grad = _wide(grad)
    of_v = p.transpose(-2, -1) @ grad
    of_p = grad @ _wide(repeat_heads(v, q)).transpose(-2, -1)
    of_scores = p * (of_p - (grad * _wide(out)).sum(-1, keepdim=True)) * _factor(q, scale)
    of_q, of_k = of_scores @ _wide(repeat_heads(k, q)), of_scores.transpose(-2, -1) @ _wide(q)
    found = of_q.to(q.dtype), _add_heads(of_k, k), _add_heads(of_v, v)
    return _heads_inside(found[0]), _heads_inside(found[1]), _heads_inside(found[2])


def attention_scores(
    q: torch.Tensor, k: torch.Tensor, is_causal: bool, mask: torch.Tensor | None, scale: float | None
) -> torch.Tensor:
    """What the softmax of attention is of, in the precision that its sums are kept in."""
    scores = _wide(q) @ _wide(repeat_heads(k, q)).transpose(-2, -1) * _factor(q, scale)
    if is_causal:
        rows, columns = (torch.arange(size, device=q.device) for size in scores.shape[-2:])
        scores = torch.where(columns <= rows[:, None], scores, -math.inf)
    if mask is not None:
        scores = torch.where(mask, scores, -math.inf) if mask.dtype == torch.bool else scores + mask
    return scores


def repeat_heads(x: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Keys or values with a head for each head of the queries, several of which may share one."""
    return x if x.shape[1] == q.shape[1] else x.repeat_interleave(q.shape[1] // x.shape[1], 1)


def _add_heads(grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The gradient of heads that were repeated."""
    if grad.shape[1] != x.shape[1]:
        grad = grad.unflatten(1, (x.shape[1], grad.shape[1] // x.shape[1])).sum(2)
    return grad.to(x.dtype)


def _heads_inside(x: torch.Tensor) -> torch.Tensor:
    """In memory in the order batch, length, heads, as what torch's own kernels make."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _factor(q: torch.Tensor, scale: float | None) -> float:
    return 1 / math.sqrt(q.shape[-1]) if scale is None else scale


def _probabilities(scores: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    """softmax, with zeros for a query that sees no key."""
    total = total[..., None]
    return torch.where(total == -math.inf, 0.0, (scores - total).exp())
