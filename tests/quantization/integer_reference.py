"""Products and convolutions of integers in numpy, tap by tap, of any rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Whole: TypeAlias = NDArray[np.int64]


def multiplied(a: Whole, b: Whole) -> Whole:
    """A matrix product."""
    return _held(np.matmul(a, b))


def convolved(x: Whole, w: Whole, stride: Any, padding: Any, dilation: Any, groups: int) -> Whole:
    """A convolution as torch has it: x is (batch, channels, ...), w is (results, channels of a group, ...)."""
    kernel = w.shape[2:]
    step, apart = _each(stride, kernel), _each(dilation, kernel)
    if padding == "same":
        reach = [(k - 1) * d for k, d in zip(kernel, apart, strict=True)]
        around = [(r // 2, r - r // 2) for r in reach]
    else:
        around = [(p, p) for p in _each(0 if padding == "valid" else padding, kernel)]
    x = np.pad(x, ((0, 0), (0, 0), *around))
    sizes = [(n - (k - 1) * d - 1) // s + 1 for n, k, d, s in zip(x.shape[2:], kernel, apart, step, strict=True)]
    total = np.zeros((x.shape[0], w.shape[0], *sizes), np.int64)
    for tap in np.ndindex(*kernel):
        lines = tuple(
            slice(t * d, t * d + (n - 1) * s + 1, s) for t, d, n, s in zip(tap, apart, sizes, step, strict=True)
        )
        for rows, columns in _groups(w.shape[0], x.shape[1], groups):
            total[:, rows] += np.einsum("nc...,oc->no...", x[:, columns][(..., *lines)], w[(rows, slice(None), *tap)])
    return _held(total)


def spread(x: Whole, w: Whole, stride: Any, padding: Any, extra: Any, groups: int, dilation: Any) -> Whole:
    """A transposed convolution: w is (channels, results of a group, ...), and each value adds to what it reaches."""
    kernel = w.shape[2:]
    step, apart, cut, more = (_each(given, kernel) for given in (stride, dilation, padding, extra))
    sizes = [
        (n - 1) * s + (k - 1) * d + 1 + e for n, s, k, d, e in zip(x.shape[2:], step, kernel, apart, more, strict=True)
    ]
    total = np.zeros((x.shape[0], w.shape[1] * groups, *sizes), np.int64)
    for tap in np.ndindex(*kernel):
        lines = tuple(
            slice(t * d, t * d + (n - 1) * s + 1, s) for t, d, n, s in zip(tap, apart, x.shape[2:], step, strict=True)
        )
        for rows, columns in _groups(total.shape[1], x.shape[1], groups):
            part = np.einsum("nc...,co->no...", x[:, columns], w[(columns, slice(None), *tap)])
            total[(slice(None), rows, *lines)] += part
    kept = tuple(slice(c, n - c) for c, n in zip(cut, sizes, strict=True))
    return _held(total[(..., *kept)])


def _groups(results: int, channels: int, groups: int) -> list[tuple[slice, slice]]:
    """The results of each group, and the channels that they are made of."""
    r, c = results // groups, channels // groups
    return [(slice(g * r, g * r + r), slice(g * c, g * c + c)) for g in range(groups)]


def _each(given: Any, kernel: Sequence[int]) -> list[int]:
    """One number for each dimension."""
    values = list(given) if isinstance(given, Sequence) else [given]
    return values * len(kernel) if len(values) == 1 else values


def _held(sums: Whole) -> Whole:
    assert np.abs(sums).max(initial=0) < 2**31, "an int32 does not hold the sum"
    return sums
