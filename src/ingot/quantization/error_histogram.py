"""A histogram of errors that are seen batch by batch: the range grows with them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

_BINS = 64  # while errors are seen: as many on each side of 0, so that two of them make one when the range doubles
SHOWN = 32  # of the result


@dataclass(frozen=True, slots=True)
class ErrorHistogram:
    """How many values lie in each part of a range, all parts as wide."""

    low: float
    high: float
    counts: tuple[int, ...]


@dataclass(slots=True)
class ErrorCounter:
    """Counts errors between -limit and limit; `limit` is a power of two, 0 before the first error that is not 0."""

    limit: float = 0.0
    exact: int = 0
    counts: torch.Tensor = field(default_factory=lambda: torch.zeros(_BINS, dtype=torch.int64))

    def add(self, errors: torch.Tensor) -> None:
        """Counts these; infinities and nan are left out."""
        numbers = errors.detach().to(torch.float64).reshape(-1)
        numbers = numbers[numbers.isfinite()]
        if not numbers.numel():
            return
        self._grow(float(numbers.abs().max()))
        if self.limit == 0:
            self.exact += numbers.numel()
            return
        self.counts += torch.histc(numbers, _BINS, -self.limit, self.limit).to(torch.int64)

    def _grow(self, largest: float) -> None:
        if largest <= self.limit:
            return
        # Below the least normal number a bin would have no width.
        wanted = 2.0 ** min(1023, math.ceil(math.log2(max(largest, 2.0**-1000))))
        if self.limit == 0:
            self.counts[_BINS // 2] += self.exact
            self.exact = 0
        else:
            for _ in range(min(_BINS, round(math.log2(wanted) - math.log2(self.limit)))):
                pairs = self.counts.reshape(-1, 2).sum(1)
                self.counts.zero_()
                self.counts[_BINS // 4 : -_BINS // 4] = pairs
        self.limit = wanted

    def finish(self) -> ErrorHistogram | None:
        """The histogram on the least symmetric range of bins that holds all errors; None where there was none."""
        if self.limit == 0:
            return None
        counts, limit = self.counts.clone(), self.limit
        outer = _BINS // 4
        if not counts[:outer].any() and not counts[-outer:].any():
            counts, limit = counts[outer:-outer], limit / 2
        shown = counts.reshape(SHOWN, -1).sum(1)
        return ErrorHistogram(-limit, limit, tuple(int(count) for count in shown))
