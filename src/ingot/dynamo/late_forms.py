"""The table of operators that become others when a graph is captured, after AOTAutograd cut it, by name of schema.

It holds what only graphs of torch's compiler have, and what has another form where it is late than in a model.
"""

from __future__ import annotations

from typing import Any

import torch

from ingot.autograd.attention_gradients import attention_scores, repeat_heads
from ingot.autograd.gradient_rules import Rule
from ingot.passes.decompositions.special import find_expansion
from ingot.registry import Registry

aten = torch.ops.aten
_FORMS: Registry[str, Rule] = Registry("late form of an operator")
late_form = _FORMS.register


def find_late_form(target: Any) -> Rule | None:
    """A function that computes what an operator computes; None where it stays as it is."""
    import ingot.dynamo.forms  # noqa: F401  fills the table

    schema = getattr(target, "_schema", None)
    if schema is None:
        return None
    own = _FORMS.get(f"{schema.name}.{schema.overload_name}") or _FORMS.get(schema.name)
    return own or find_expansion(target, late=True)


@late_form("prims::fma")
def _fma(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    return a * b + c


@late_form("aten::_scaled_dot_product_flash_attention_for_cpu")
def _whole_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout_p: float = 0.0, is_causal: bool = False, *,
    attn_mask: torch.Tensor | None = None, scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """The kernel of native code, which torch would take apart earlier. Sums that nothing uses are not computed."""
    keys, values = repeat_heads(k, q), repeat_heads(v, q)
    out = aten.scaled_dot_product_attention.default(q, keys, values, attn_mask, 0.0, is_causal, scale=scale)
    return out, attention_scores(q, k, is_causal, attn_mask, scale).logsumexp(-1)
