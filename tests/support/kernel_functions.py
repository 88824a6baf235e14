"""Score, mask and combine functions that kernels are tried with, and what they mean, written with whole tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Score = Callable[..., torch.Tensor]
HEADS, LENGTH = 4, 200  # what tables below are large enough for


@dataclass(frozen=True)
class Attending:
    """A score function and a mask over tables: `tables()` makes them, the learned ones first."""

    score: Score | None = None
    mask: Score | None = None
    tables: Callable[[], list[torch.Tensor]] = list
    learned: int = 0


def _slopes() -> list[torch.Tensor]:
    return [torch.tensor([2.0 ** -(h + 1) for h in range(HEADS)])]


def _relative() -> list[torch.Tensor]:
    return [torch.randn(HEADS, 2 * LENGTH)]


def _documents() -> list[torch.Tensor]:
    return [torch.arange(LENGTH, dtype=torch.int64) // 37]


# Each function takes its tables behind the score and the places.
ATTENDING: dict[str, Attending] = {
    "plain": Attending(),
    "alibi": Attending(lambda s, b, h, i, j, slope: s + slope[h] * (j - i), None, _slopes),
    "causal": Attending(None, lambda b, h, i, j: i >= j),
    "window": Attending(None, lambda b, h, i, j: (i >= j) & (i - j < 24)),
    "soft cap": Attending(lambda s, b, h, i, j: 5 * torch.tanh(s / 5), lambda b, h, i, j: i >= j),
    "relative": Attending(lambda s, b, h, i, j, t: s + t[h, i - j + LENGTH], None, _relative, 1),
    "documents": Attending(None, lambda b, h, i, j, doc: (doc[i] == doc[j]) & (i >= j), _documents),
    "temperature": Attending(lambda s, b, h, i, j, t: s * torch.sigmoid(t) + t, None, lambda: [torch.tensor(0.7)], 1),
    "per head": Attending(
        lambda s, b, h, i, j, gain, cap: cap[h] * torch.tanh(s * gain[h] / cap[h]),
        lambda b, h, i, j, *_: (i + h) % 3 != j % 3,
        lambda: [torch.rand(HEADS) + 0.5, torch.rand(HEADS) + 4],
        2,
    ),
    "buckets": Attending(
        lambda s, b, h, i, j, t: s + t[torch.clamp(torch.abs(i - j) // 8, max=15), h],
        None,
        lambda: [torch.randn(16, HEADS)],
        1,
    ),
    "prefix": Attending(
        lambda s, b, h, i, j, n: torch.where(j < n[b], s + 1, s * 0.5),
        lambda b, h, i, j, n: (j < n[b]) | (i >= j),
        lambda: [torch.tensor([17, 5])],
    ),
    "twice read": Attending(
        lambda s, b, h, i, j, t: s * t[i] + torch.sin(t[j]) + t[0], None, lambda: [torch.randn(LENGTH)], 1
    ),
    "empty rows": Attending(lambda s, b, h, i, j: s * 2, lambda b, h, i, j: (i % 5 != 0) & (j < 70)),
}


def attend(
    case: Attending, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, tables: list[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """What the kernel means, every score of it in memory: the result and the log of each row's sum of weights."""
    groups = q.shape[1] // k.shape[1]
    k, v = (t.expand(q.shape[0], -1, -1, -1).repeat_interleave(groups, 1) for t in (k, v))
    scores = q @ k.mT / q.shape[-1] ** 0.5
    b, h, i, j = (torch.arange(n).view([-1 if d == e else 1 for e in range(4)]) for d, n in enumerate(scores.shape))
    if case.score is not None:
        scores = case.score(scores, b, h, i, j, *tables)
    if case.mask is not None:
        scores = scores.masked_fill(~case.mask(b, h, i, j, *tables).expand(scores.shape), -torch.inf)
    empty = (scores == -torch.inf).all(-1, keepdim=True)
    weights = torch.softmax(scores.masked_fill(empty, 0), -1).masked_fill(empty, 0)
    return weights @ v, torch.logsumexp(scores.masked_fill(empty, 0), -1).masked_fill(empty[..., 0], -torch.inf)


Leaves = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Combining:
    """A combine function of `count` leaves over learned numbers, one for each of the last dim's places."""

    combine: Callable[..., Leaves]
    count: int = 1
    learned: int = 0
    positive: bool = False  # whether it wants inputs in (0.5, 1)


def _affine(a: Leaves, b: Leaves) -> Leaves:
    return a[0] * b[0], b[0] * a[1] + b[1]


def _soft_largest(a: Leaves, b: Leaves, g: torch.Tensor) -> Leaves:
    top = torch.maximum(a[0], b[0])
    return (top + torch.log(torch.exp(g * (a[0] - top)) + torch.exp(g * (b[0] - top))) / g,)


def _mean(a: Leaves, b: Leaves) -> Leaves:
    """Weights, means and sums of squares of two parts of a sample, joined."""
    weight, apart = a[0] + b[0], b[1] - a[1]
    return weight, a[1] + apart * b[0] / weight, a[2] + b[2] + apart * apart * a[0] * b[0] / weight


def _turn(a: Leaves, b: Leaves) -> Leaves:
    return a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]


COMBINING: dict[str, Combining] = {
    "sum": Combining(lambda a, b: (a[0] + b[0],)),
    "product": Combining(lambda a, b: (a[0] * b[0],), positive=True),
    "largest": Combining(lambda a, b: (torch.maximum(a[0], b[0]),)),
    "affine": Combining(_affine, 2, positive=True),
    "complex": Combining(_turn, 2, positive=True),
    "soft largest": Combining(_soft_largest, 1, 1),
    "moments": Combining(_mean, 3, positive=True),
    "decayed": Combining(lambda a, b, g: (a[0] * b[0], b[0] * a[1] + b[1] * g / g), 2, 1, positive=True),
}


def combine_along(case: Combining, xs: Leaves, tables: list[torch.Tensor], dim: int, reverse: bool) -> Leaves:
    """What the scan means, one place after another."""
    slices = [x.unbind(dim) for x in xs]
    order = range(len(slices[0]))[:: -1 if reverse else 1]
    states: dict[int, Leaves] = {}
    state: Leaves | None = None
    for t in order:
        now = tuple(s[t] for s in slices)
        state = now if state is None else case.combine(state, now, *tables)
        states[t] = state
    return tuple(torch.stack([states[t][leaf] for t in range(len(states))], dim) for leaf in range(case.count))


def scoring(case: Attending, tables: list[torch.Tensor]) -> Any:
    """The score function as users write it, closed over its tables."""
    return None if case.score is None else lambda s, b, h, i, j: case.score(s, b, h, i, j, *tables)  # type: ignore[misc]


def masking(case: Attending, tables: list[torch.Tensor]) -> Any:
    return None if case.mask is None else lambda b, h, i, j: case.mask(b, h, i, j, *tables)  # type: ignore[misc]
