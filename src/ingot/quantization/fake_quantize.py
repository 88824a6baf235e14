"""The modules that stand in a prepared graph, where its values will be quantized.

While a model is calibrated they watch and hand on what they are given. In training they hand on what quantization
leaves of it, and learn from what goes through while they are in train mode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ingot.quantization.observers import Observer, find_all_parameters, observer_for
from ingot.quantization.qscheme import Parameters, Scheme, parameters_of, range_of, simulate
from ingot.quantization.quantization_plan import Derived, How, ObserverSpec

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
        if self.scheme.dynamic:
            return simulate(x, parameters_of(*range_of(x.detach().float(), self.scheme), self.scheme), self.scheme)
        parameters = self.find_parameters()
        return x if parameters is None else simulate(x, parameters, self.scheme)

    def find_parameters(self) -> Parameters | None:
        """The parameters that are known by now, or None."""
        if self.fixed is not None or self.observer is None:
            return self.fixed
        return self.observer.parameters_now() if self.observer.seen else None

    def calculate_qparams(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Scale and zero point, as those ask who derive parameters of their own."""
        found = self.find_parameters()
        assert found is not None
        return found.scale, found.zero_point

    def extra_repr(self) -> str:
        kind = "dynamic" if self.scheme.dynamic else "fixed" if self.fixed is not None else "observed"
        return f"{str(self.scheme.dtype).removeprefix('torch.')}, {kind}"


class ForeignQuantizer(nn.Module):
    """A foreign observer or fake-quantizer, which learns in train mode only.

    In training it computes what it computes. In eval mode we simulate with the parameters that it would be converted
    with: torch's fused fake-quantizer trains symmetric weights with a scale that is off by one part in 256 from those.
    """

    inner: Any  # a module: called on tensors, and asked to calculate_qparams()

    def __init__(self, scheme: Scheme, inner: nn.Module, *, simulates: bool) -> None:
        super().__init__()
        self.scheme, self.simulates = scheme, simulates
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.simulates or self.training:
            made: torch.Tensor = self.inner(x.float())  # theirs are for float32; in a region values may be others
            return made.to(x.dtype)
        enabled = getattr(self.inner, "fake_quant_enabled", None)
        parameters = self.find_parameters() if enabled is None or bool(enabled) else None
        return x if parameters is None else simulate(x, parameters, self.scheme)

    def find_parameters(self) -> Parameters | None:
        observer = getattr(self.inner, "activation_post_process", self.inner)
        low = getattr(observer, "min_val", None)
        if low is not None and (not low.numel() or bool(torch.isinf(low).any())):
            return None
        scale, zero = self.inner.calculate_qparams()
        return _reshape_parameters(scale, zero, self.scheme)


class DerivedQuantizer(nn.Module):
    """Parameters computed from those of others, whenever they are read."""

    def __init__(self, scheme: Scheme, derived: Derived, sources: list[Any], *, simulates: bool) -> None:
        super().__init__()
        self.scheme, self.simulates = scheme, simulates
        vars(self)["_of"] = (derived, sources)  # they are modules of their own already

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parameters = self.find_parameters() if self.simulates else None
        return x if parameters is None else simulate(x, parameters, self.scheme)

    def find_parameters(self) -> Parameters | None:
        derived, sources = vars(self)["_of"]
        if any(source.find_parameters() is None for source in sources):
            return None
        scale, zero = derived.derive([_innermost(source) for source in sources])
        return _reshape_parameters(scale, zero, self.scheme)


def _reshape_parameters(scale: torch.Tensor, zero: torch.Tensor, scheme: Scheme) -> Parameters:
    """Parameters as ours are. A zero point that lies between two numbers is moved to the nearest: zero stays exact."""
    shape = (-1,) if scheme.granularity == "channel" else ()
    return Parameters(scale.detach().float().reshape(shape), zero.detach().round().to(torch.int64).reshape(shape))


def _innermost(quantizer: Any) -> Any:
    """The wrapped foreign object, if there is one."""
    while getattr(quantizer, "inner", None) is not None:
        quantizer = quantizer.inner
    return quantizer


class WeightQuantizer(nn.Module):
    """Simulates a quantized weight in training. Its scales are those of the weight as it is now, unless `inner` knows.

    With batch norm behind the convolution, what will be quantized in the end is the weight times the norm's factor.
    So that is what is quantized here, and then divided by the factor: the convolution and the norm stay as they are.
    """

    def __init__(
        self,
        scheme: Scheme,
        *,
        eps: float | None = None,
        groups: int | None = None,
        inner: ForeignQuantizer | DerivedQuantizer | Quantizer | None = None,
        transposed: bool = False,
    ) -> None:
        """`eps` of the batch norm, if there is one; `groups` of a transposed convolution, None for another."""
        super().__init__()
        self.scheme, self.eps, self.groups, self.inner, self.transposed = scheme, eps, groups, inner, transposed

    def forward(
        self, weight: torch.Tensor, gamma: torch.Tensor | None = None, variance: torch.Tensor | None = None
    ) -> torch.Tensor:
        if self.transposed:
            return self._simulate(weight.t()).t()
        if variance is None:
            return self._simulate(weight)
        assert self.eps is not None
        factor = (variance.detach() + self.eps).rsqrt()
        factor = factor if gamma is None else gamma * factor
        factor = torch.where(factor.abs() < _TINY, torch.ones_like(factor), factor)
        factor = self._align_to_channels(factor, weight)
        return self._simulate(weight * factor) / factor

    def parameters_for(self, weight: torch.Tensor) -> Parameters:
        """The parameters that a weight is stored with."""
        found = self.inner.find_parameters() if self.inner is not None else None
        return found or parameters_of(*range_of(weight.detach().float(), self.scheme), self.scheme)

    def find_parameters(self) -> Parameters | None:
        """What those ask who derive parameters of their own."""
        return self.inner.find_parameters() if self.inner is not None else None

    def _align_to_channels(self, factor: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        tail = (1,) * (weight.dim() - 2)
        if self.groups is None:
            return factor.view(-1, 1, *tail)
        inputs = weight.shape[0] // self.groups
        return factor.view(self.groups, 1, -1, *tail).expand(-1, inputs, -1, *tail).reshape(weight.shape[0], -1, *tail)

    def _simulate(self, weight: torch.Tensor) -> torch.Tensor:
        if self.inner is not None:
            made: torch.Tensor = self.inner(weight)
            return made
        return simulate(weight, self.parameters_for(weight), self.scheme)


def quantizer_of(scheme: Scheme, how: How, others: Mapping[str, nn.Module], *, simulates: bool) -> Any:
    """The module for a group or weight. `others` are those that a derived one may depend on."""
    if isinstance(how, ObserverSpec):
        return ForeignQuantizer(scheme, how.make(), simulates=simulates)
    if isinstance(how, Derived):
        return DerivedQuantizer(scheme, how, [others[name] for name in how.sources], simulates=simulates)
    return Quantizer(scheme, simulates=simulates, fixed=how.parameters if how is not None else None)


def parameters_of_all(quantizers: Sequence[Any]) -> list[Parameters | None]:
    """What `find_parameters` of each quantizer returns, many times faster."""
    watching = {q: q.observer for q in quantizers if isinstance(q, Quantizer) and q.observer is not None}
    seen = {q: observer for q, observer in watching.items() if observer.seen}
    known = dict(zip(seen, find_all_parameters(list(seen.values())), strict=True))
    return [known[q] if q in known else q.find_parameters() for q in quantizers]
