"""What a convolution with batch norm is trained to, by the formulas, in float64: the judge where torchao and we differ.

Convolution, batch norm and activation are torch's own modules, side by side and not fused. Quantization is simulated by
its definition, with ranges that move by a hundredth of the way, as torchao's XNNPACKQuantizer asks for them.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from tests.quantization.qat_scenarios import Situation

EPS = 2.0**-12  # the smallest scale


class Simulation:
    """Of one tensor: learns its range, by tensor or along the first axis, and rounds."""

    def __init__(self, *, symmetric: bool = False, per_channel: bool = False) -> None:
        self.symmetric, self.per_channel = symmetric, per_channel
        self.limits = (-127, 127) if symmetric else (-128, 127)
        self.range: tuple[torch.Tensor, torch.Tensor] | None = None

    def learn(self, x: torch.Tensor) -> None:
        rows = x.detach().flatten(1) if self.per_channel else x.detach().reshape(1, -1)
        seen = (rows.amin(1), rows.amax(1))
        old = self.range
        self.range = seen if old is None else (old[0] + 0.01 * (seen[0] - old[0]), old[1] + 0.01 * (seen[1] - old[1]))

    def parameters(self) -> tuple[torch.Tensor, torch.Tensor]:
        assert self.range is not None
        low, high = self.range[0].clamp(max=0), self.range[1].clamp(min=0)
        if self.symmetric:
            return (torch.maximum(-low, high) / 127).clamp(min=EPS), torch.zeros_like(low)
        scale = ((high - low) / 255).clamp(min=EPS)
        return scale, (-128 - torch.round(low / scale)).clamp(-128, 127)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Rounded; gradients pass where the value is in range."""
        shape = (-1, *[1] * (x.dim() - 1)) if self.per_channel else ()
        scale, zero = (part.reshape(shape) for part in self.parameters())
        numbers = torch.round(x / scale) + zero
        inside = (numbers >= self.limits[0]) & (numbers <= self.limits[1])
        rounded = (numbers.clamp(*self.limits) - zero) * scale
        return torch.where(inside, x, x.detach()) + (rounded - x).detach()


class Unfused(nn.Module):
    """The model of a situation as it is trained with simulated quantization."""

    def __init__(self, situation: Situation, model: nn.Sequential) -> None:
        super().__init__()
        self.model = copy.deepcopy(model).double()
        self.twice = situation.activation == "relu6"  # which is quantized before and behind, with one range
        self.first, self.last = Simulation(), Simulation()
        self.weight = Simulation(symmetric=True, per_channel=situation.per_channel)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        conv, norm, *activation = self.model
        factor = _for_weight(norm.weight / torch.sqrt(norm.running_var + norm.eps), conv)
        weight = self._passed(conv.weight * factor, self.weight) / factor
        y = norm(_convolved(conv, self._passed(x.double(), self.first), weight))
        y = self._passed(y, self.last) if self.twice else y
        for each in activation:
            y = each(y)
        return self._passed(y, self.last)

    def _passed(self, x: torch.Tensor, simulation: Simulation) -> torch.Tensor:
        if self.training:
            simulation.learn(x)
        return simulation(x)


def _for_weight(factor: torch.Tensor, conv: Any) -> torch.Tensor:
    """For each of a convolution's weights the factor of the channel that it adds to."""
    rows, columns = conv.weight.shape[:2]
    if not conv.transposed:
        channel = torch.arange(rows)[:, None].expand(-1, columns)
    else:
        group = torch.arange(rows)[:, None] // (rows // conv.groups)
        channel = group * columns + torch.arange(columns)
    return factor[channel].view(rows, columns, *[1] * (conv.weight.dim() - 2))


def _convolved(conv: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    function = getattr(nn.functional, f"conv{'_transpose' if conv.transposed else ''}{x.dim() - 2}d")
    words = {"stride": conv.stride, "padding": conv.padding, "groups": conv.groups}
    made: torch.Tensor = function(x, weight, conv.bias, **words)
    return made
