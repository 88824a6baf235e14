"""What can be said of all values of a weight, read piece by piece."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingot.viewer.view_data import Json
from ingot.viewer.weights.tensor_pool import Tensor, blocks_of, numbers_in

MOST_VALUES = 1 << 26


@dataclass(slots=True)
class _FiniteValues:
    """Sums of the values that are finite."""

    count: int = 0
    least: float = math.inf
    greatest: float = -math.inf
    mean: float = 0.0
    squares: float = 0.0  # of the differences from the mean

    def add(self, values: np.ndarray[Any, Any]) -> None:
        """Joins the sums of more values to these, as Chan, Golub and LeVeque do: no large numbers are subtracted."""
        if not values.size:
            return
        mean = float(values.mean())
        squares = float(np.square(values - mean).sum())
        total = self.count + values.size
        apart = mean - self.mean
        self.mean += apart * values.size / total
        self.squares += squares + apart * apart * self.count * values.size / total
        self.least, self.greatest = min(self.least, float(values.min())), max(self.greatest, float(values.max()))
        self.count = total


def summarize_weight(tensor: Tensor) -> Json:
    """Least, most, mean, deviation, and how many are zero, nan or infinite; None of complex numbers, and of more than
    are read in a second or two. Raises OSError and ValueError where a file of weights is damaged."""
    if tensor.dtype.startswith("complex") or math.prod(tensor.shape) > MOST_VALUES:
        return None
    sums, total, nan, inf, zeros = _FiniteValues(), 0, 0, 0, 0
    for piece in blocks_of(tensor):
        values = numbers_in(piece, tensor.dtype)
        total += values.size
        nan += int(np.isnan(values).sum())
        inf += int(np.isinf(values).sum())
        zeros += int((values == 0).sum())
        sums.add(values[np.isfinite(values)])
    known = sums.count > 0
    return {
        "min": sums.least if known else None,
        "max": sums.greatest if known else None,
        "mean": sums.mean if known else None,
        "std": math.sqrt(sums.squares / sums.count) if known else None,
        "nan": nan,
        "inf": inf,
        "zeros": zeros,
        "count": total,
        "histogram": None,
    }
