"""What some operators give of fakes, where torch's own rules would ask more of them than the operators do.

Torch computes the shapes of a recurrent layer step by step, so that a number of steps that is not known is frozen at
the example's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

aten = torch.ops.aten


def on_fakes(operator: Any) -> Callable[..., Any]:
    """What to call in place of an operator, where all that counts are shapes and types."""
    rule: Callable[..., Any] = _RULES.get(operator, operator)
    return rule


def _recurrent(operator: Any) -> Callable[..., Any]:
    def rule(
        x: torch.Tensor,
        state: Any,
        weights: Sequence[torch.Tensor],
        biases: bool,
        layers: int,
        dropout: float,
        train: bool,
        both_ways: bool,
        batch_first: bool,
    ) -> Any:
        steps = x.shape[int(batch_first)]
        if not isinstance(steps, torch.SymInt):
            return operator(x, state, weights, biases, layers, dropout, train, both_ways, batch_first)
        states = list(state) if isinstance(state, list | tuple) else [state]
        batch, width = x.shape[int(not batch_first)], states[0].shape[-1]
        made = x.new_empty((steps, batch, (1 + both_ways) * width))
        return (made.transpose(0, 1) if batch_first else made, *(torch.empty_like(part) for part in states))

    return rule


_RULES = {op: _recurrent(op) for op in (aten.lstm.input, aten.gru.input, aten.rnn_tanh.input, aten.rnn_relu.input)}
