"""Observers: they estimate a value's range from data.

    minmax           the smallest and the largest value seen
    moving_average   the same of each batch, averaged; what training uses
    percentile       the range that all but one value in ten thousand lie in
    histogram        the range with the smallest squared error
    auto             histogram where a model is calibrated, moving_average where it is trained

An observer is an nn.Module whose buffers hold what it learned, so that it is saved, moved and shared as a module is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from ingot.quantization.qscheme import Parameters, Range, Scheme, parameters_of, range_of, scale_of

BINS = 2048
AUTO = "auto"
KEPT = 0.9999  # what a percentile keeps on each side
CANDIDATES = 60  # that a histogram tries for each end of a range


class Observer(nn.Module):
    """Remembers the range of what it is shown. `low` above `high` means that nothing was seen."""

    low: torch.Tensor
    high: torch.Tensor

    def __init__(self, scheme: Scheme) -> None:
        super().__init__()
        self.scheme = scheme
        self.register_buffer("low", torch.tensor(float("inf")))
        self.register_buffer("high", torch.tensor(float("-inf")))

    @property
    def seen(self) -> bool:
        return bool((self.low <= self.high).all())

    @torch.no_grad()
    def observe(self, tensor: torch.Tensor) -> None:
        """Takes a tensor into account; an empty one says nothing."""
        if tensor.numel():
            low, high = range_of(tensor.detach().float(), self.scheme)
            self.learn(tensor.detach(), low, high)

    def learn(self, tensor: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> None:
        self._set(torch.minimum(self.low, low), torch.maximum(self.high, high))

    def range(self) -> Range:
        return self.low, self.high

    def parameters_now(self) -> Parameters:
        return parameters_of(*self.range(), self.scheme)

    def _set(self, low: torch.Tensor, high: torch.Tensor) -> None:
        """In place where the shape allows it: data-parallel training holds on to buffers."""
        if self.low.shape == low.shape:
            self.low.copy_(low)
            self.high.copy_(high)
        else:
            self.low, self.high = low, high

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any, **kwargs: Any) -> None:
        for name in ("low", "high"):  # one for each channel, once something was seen
            saved = state_dict.get(prefix + name)
            if saved is not None and saved.shape != getattr(self, name).shape:
                setattr(self, name, torch.empty_like(saved))
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


class MovingAverage(Observer):
    """The range of each batch moves the range by a hundredth of the way."""

    share = 0.01

    def learn(self, tensor: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> None:
        if not self.seen:
            self._set(low, high)
        else:
            self._set(self.low + self.share * (low - self.low), self.high + self.share * (high - self.high))


class Histogram(Observer):
    """Counts values in bins over the range seen; the range used is the one with the smallest squared error."""

    counts: torch.Tensor

    def __init__(self, scheme: Scheme) -> None:
        super().__init__(scheme)
        self.register_buffer("counts", torch.zeros(BINS))

    def learn(self, tensor: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> None:
        before = (float(self.low), float(self.high))
        super().learn(tensor, low, high)
        start, end = float(self.low), float(self.high)
        if end <= start:
            return
        if before[0] < before[1] and before != (start, end):
            self.counts.copy_(_rebin(self.counts, *before, start, end))
        self.counts.add_(torch.histc(tensor.float(), BINS, start, end))

    def range(self) -> Range:
        low, high = self.ranges([self])
        return low[0].to(self.low.device), high[0].to(self.low.device)

    @classmethod
    def ranges(cls, observers: Sequence[Histogram]) -> Range:
        """The ranges of many observers with one scheme; at once, which is many times faster than one by one."""
        counts = torch.stack([observer.counts for observer in observers]).cpu()
        low = torch.tensor([float(observer.low) for observer in observers], dtype=torch.float64)
        high = torch.tensor([float(observer.high) for observer in observers], dtype=torch.float64)
        full = (counts.sum(1) > 0).nonzero().flatten()
        if len(full):
            low[full], high[full] = cls.clip(counts[full].double(), low[full], high[full], observers[0].scheme)
        return low.float(), high.float()

    @staticmethod
    def clip(counts: torch.Tensor, low: torch.Tensor, high: torch.Tensor, scheme: Scheme) -> Range:
        """For each row of counts the pair of ends with the smallest error.

        Values inside are off by a step evenly spread, others by more.
        """
        width = ((high - low) / BINS)[:, None]
        middles = low[:, None] + width * (torch.arange(BINS, dtype=torch.float64) + 0.5)
        around = (low <= 0) & (high >= 0)
        zeros = (-low / width[:, 0]).long().clamp(0, BINS - 1)  # zero is a number of every range
        counts[around.nonzero().flatten(), zeros[around]] = 0
        factors = torch.linspace(1.0, 0.2, CANDIDATES, dtype=torch.float64)
        lows, highs = low.clamp(max=0.0)[:, None] * factors, high.clamp(min=0.0)[:, None] * factors
        sums = torch.stack([counts, counts * middles, counts * middles.square()]).cumsum(2)
        sums = torch.nn.functional.pad(sums, (1, 0))  # of all bins before one
        left, right = torch.searchsorted(middles, lows), torch.searchsorted(middles, highs, right=True)
        below, under = _distances(sums.gather(2, left.expand(3, -1, -1)), lows)
        above, over = _distances(sums[:, :, -1:] - sums.gather(2, right.expand(3, -1, -1)), highs)
        scales = scale_of(lows[:, :, None], highs[:, None], scheme)
        inside = counts.sum(1)[:, None, None] - below[:, :, None] - above[:, None]
        errors = inside * scales.double().square() / 12 + under[:, :, None] + over[:, None]
        best = errors.flatten(1).argmin(1, keepdim=True)
        return lows.gather(1, best // CANDIDATES)[:, 0], highs.gather(1, best % CANDIDATES)[:, 0]


def _distances(sums: torch.Tensor, ends: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """How many values lie beyond each end, and their squared distances from it: from the sums of powers 0, 1 and 2."""
    count, first, second = sums
    return count, (second - 2 * ends * first + ends.square() * count).clamp_(min=0)


class Percentile(Histogram):
    """All but one value in ten thousand on either side."""

    @staticmethod
    def clip(counts: torch.Tensor, low: torch.Tensor, high: torch.Tensor, scheme: Scheme) -> Range:
        total = counts.cumsum(1)
        whole = total[:, -1:]
        outside = whole * (1 - KEPT)
        first, last = (total <= outside).sum(1), (total < whole - outside).sum(1)
        width = (high - low) / BINS
        return low + width * first, low + width * (last + 1)


def _rebin(counts: torch.Tensor, low: float, high: float, start: float, end: float) -> torch.Tensor:
    """The counts of bins from `low` to `high`, in as many bins from `start` to `end`."""
    middles = low + (high - low) / BINS * (torch.arange(BINS, device=counts.device) + 0.5)
    places = ((middles - start) * (BINS / (end - start))).long().clamp_(0, BINS - 1)
    return torch.zeros_like(counts).index_add_(0, places, counts)


def find_all_parameters(observers: Sequence[Observer]) -> list[Parameters]:
    """What `parameters_now` of each observer returns."""
    found: dict[Observer, Parameters] = {}
    alike: dict[Any, list[Histogram]] = {}
    for observer in observers:
        if isinstance(observer, Histogram) and type(observer).range is Histogram.range:
            alike.setdefault((type(observer), observer.scheme, observer.low.device), []).append(observer)
    for (kind, scheme, device), group in alike.items():
        low, high = kind.ranges(group)
        known = parameters_of(low, high, scheme)
        parts = zip(known.scale.to(device).unbind(), known.zero_point.to(device).unbind(), strict=True)
        found.update(zip(group, (Parameters(*part) for part in parts), strict=True))
    return [found.get(observer) or observer.parameters_now() for observer in observers]


OBSERVERS: dict[str, type[Observer]] = {
    "minmax": Observer,
    "moving_average": MovingAverage,
    "percentile": Percentile,
    "histogram": Histogram,
}


def observer_for(scheme: Scheme, *, training: bool = False) -> Observer:
    """A new observer for a scheme."""
    if callable(scheme.observer):
        made = scheme.observer(scheme)
        assert isinstance(made, Observer)
        return made
    found = OBSERVERS.get(
        ("moving_average" if training else "histogram") if scheme.observer == AUTO else scheme.observer
    )
    if found is None:
        raise ValueError(f"there is no observer {scheme.observer!r}: give one of {', '.join((AUTO, *OBSERVERS))}")
    if scheme.granularity == "channel" and issubclass(found, Histogram):
        found = Observer  # a histogram for each channel would hold more than the channels do
    return found(scheme)
