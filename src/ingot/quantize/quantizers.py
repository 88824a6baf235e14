"""The modules that stand in a prepared graph, where its values will be quantized.

While a model is calibrated they watch and hand on what they are given. In training they hand on what quantization
leaves of it, and learn from what goes through while they are in train mode.
"""

from __future__ import annotations

import torch
from torch import nn

from ingot.quantize.observers import Observer, observer_for
from ingot.quantize.scheme import Parameters, Scheme, parameters_of, range_of, simulated

# Below this a batch norm's factor is taken for zero: its channel is quantized as the convolution has it.
_TINY = 1e-12


class Quantizer(nn.Module):
    """Of the points of one group. `simulates` is for training; without it a quantizer only watches."""

    observer: Observer | None

    def __init__(self, scheme: Scheme, *, simulates: bool, fixed: Parameters | None = None) -> None:
        super().__init__()
        self.scheme, self.simulates, self.fixed = scheme, simulates, fixed
        self.observing = True
        self.observer = None if scheme.dynamic or fixed is not None else observer_for(scheme, training=simulates)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.observer is not None and self.observing and (self.training or not self.simulates):
            self.observer.observe(x)
        if not self.simulates:
            return x
        parameters = self.parameters_for(x)
        return x if parameters is None else simulated(x, parameters, self.scheme)

    def parameters_for(self, x: torch.Tensor) -> Parameters | None:
        """The parameters that a tensor is quantized with; None while nothing is known."""
        if self.fixed is not None:
            return self.fixed
        if self.observer is None:
            return parameters_of(*range_of(x.detach().float(), self.scheme), self.scheme)
        return self.observer.parameters_now() if self.observer.seen else None

    def extra_repr(self) -> str:
        kind = "dynamic" if self.scheme.dynamic else "fixed" if self.fixed is not None else "observed"
        return f"{str(self.scheme.dtype).removeprefix('torch.')}, {kind}"


class WeightQuantizer(nn.Module):
    """Simulates a quantized weight in training. Its scales are those of the weight as it is now.

    With batch norm behind the convolution, what will be quantized in the end is the weight times the norm's factor.
    So that is what is quantized here, and then divided by the factor: the convolution and the norm stay as they are.
    """

    def __init__(self, scheme: Scheme, *, eps: float | None = None, groups: int | None = None) -> None:
        """`eps` of the batch norm, if there is one; `groups` of a transposed convolution, None for another."""
        super().__init__()
        self.scheme, self.eps, self.groups = scheme, eps, groups

    def forward(
        self, weight: torch.Tensor, gamma: torch.Tensor | None = None, variance: torch.Tensor | None = None
    ) -> torch.Tensor:
        if variance is None:
            return self._simulated(weight)
        assert self.eps is not None
        factor = (variance.detach() + self.eps).rsqrt()
        factor = factor if gamma is None else gamma * factor
        factor = torch.where(factor.abs() < _TINY, torch.ones_like(factor), factor)
        factor = self._along_channels(factor, weight)
        return self._simulated(weight * factor) / factor

    def _along_channels(self, factor: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        tail = (1,) * (weight.dim() - 2)
        if self.groups is None:
            return factor.view(-1, 1, *tail)
        inputs = weight.shape[0] // self.groups
        return factor.view(self.groups, 1, -1, *tail).expand(-1, inputs, -1, *tail).reshape(weight.shape[0], -1, *tail)

    def _simulated(self, weight: torch.Tensor) -> torch.Tensor:
        parameters = parameters_of(*range_of(weight.detach().float(), self.scheme), self.scheme)
        return simulated(weight, parameters, self.scheme)
