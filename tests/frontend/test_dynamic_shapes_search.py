"""A search for a size that is frozen without a word: random functions that move shapes, run at other sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import ingot
from ingot.errors import CallError, DataDependentError, DynamicShapeError, EagerError

# One step takes a tensor of any rank from one to four and gives another; some fit only some tensors, in eager too.
Step = Callable[[torch.Tensor], torch.Tensor]
STEPS: dict[str, Step] = {
    "flatten": lambda t: t.reshape(-1),
    "merge": lambda t: t.reshape(t.shape[0] * t.shape[1], *t.shape[2:]),
    "split": lambda t: t.reshape(*t.shape[:-1], 2, t.shape[-1] // 2),
    "split rest": lambda t: t.reshape(t.shape[0], -1, 2),
    "view back": lambda t: t.contiguous().view(t.shape[0], -1),
    "transpose": lambda t: t.transpose(0, -1),
    "cat self": lambda t: torch.cat([t, t]),
    "cat last": lambda t: torch.cat([t, t[..., :1]], -1),
    "stack": lambda t: torch.stack([t, t + 1], 1),
    "expand": lambda t: t.unsqueeze(1).expand(-1, t.shape[0], *t.shape[1:]),
    "repeat": lambda t: t.repeat(2, *[1] * (t.dim() - 1)),
    "first half": lambda t: t[: t.shape[0] // 2 + 1],
    "drop first": lambda t: t[1:],
    "drop last": lambda t: t[..., :-1],
    "every other": lambda t: t[::2],
    "last row": lambda t: t[-1],
    "first row": lambda t: t[0],
    "at half": lambda t: t[t.shape[0] // 2],
    "positions": lambda t: t + torch.arange(t.shape[0]).view(-1, *[1] * (t.dim() - 1)),
    "by size": lambda t: t * t.shape[-1] / (t.shape[0] + 1),
    "roots": lambda t: t * t.shape[-1] ** 0.5,
    "scalar": lambda t: t + torch.tensor(t.shape[0]) * torch.tensor([float(t.shape[-1])]),
    "pad": lambda t: F.pad(t, (1, 2)),
    "pad to four": lambda t: F.pad(t, (0, -t.shape[-1] % 4)),
    "pad to even": lambda t: F.pad(t, (0, 1)) if t.shape[-1] % 2 else t,
    "sum": lambda t: t.sum(0, keepdim=True),
    "mean": lambda t: t.mean(-1),
    "cumsum": lambda t: t.cumsum(0),
    "softmax": lambda t: t.softmax(-1),
    "outer": lambda t: t.flatten()[:, None] * t.flatten()[None, :],
    "triangle": lambda t: t.flatten()[:, None] * torch.ones(t.numel(), t.numel()).tril(),
    "gram": lambda t: t.reshape(t.shape[0], -1) @ t.reshape(t.shape[0], -1).mT,
    "squeeze": lambda t: t.squeeze(),
    "squeeze first": lambda t: t.squeeze(0),
    "unsqueeze": lambda t: t.unsqueeze(0),
    "chunk": lambda t: t.chunk(2, 0)[0],
    "split two": lambda t: torch.cat(t.split(2, 0)),
    "unbind": lambda t: sum(t.unbind(0), torch.zeros(())),
    "loop": lambda t: sum((t[i] for i in range(t.shape[0])), torch.zeros(())),
    "branch": lambda t: t * 2 if t.shape[0] > 3 else t - 1,
    "branch on equal": lambda t: t * 2 if t.shape[0] == t.shape[-1] else t - 1,
    "branch on product": lambda t: t * 2 if t.numel() > 12 else t - 1,
    "biggest": lambda t: t[: max(t.shape[0] - 2, 1)],
    "sym_max": lambda t: t.new_zeros(torch.sym_max(t.shape[0], 2)) + t.sum(),
    "floor": lambda t: t.new_ones((t.shape[0] + 1) // 2) * t.sum(),
    "roll": lambda t: t.roll(t.shape[0] // 2, 0),
    "flip": lambda t: t.flip(0),
    "diagonal": lambda t: t.reshape(t.shape[0], -1).diagonal() * t.shape[0],
    "diagonal size": lambda t: t * t.reshape(t.shape[0], -1).diagonal().shape[0],
    "unfold": lambda t: t.unfold(0, 2, 1),
    "pool": lambda t: F.avg_pool1d(t.reshape(1, 1, -1), 2),
    "topk": lambda t: t.flatten().topk(t.shape[0]).values,
    "conv": lambda t: F.conv1d(t.reshape(1, 1, -1), torch.ones(1, 1, 2)),
    "index": lambda t: t[torch.arange(t.shape[0] - 1, -1, -1)],
    "narrow": lambda t: t.narrow(0, 0, t.shape[0] // 2 + 1),
    "one hot": lambda t: F.one_hot(torch.arange(t.shape[0]), t.shape[0]) * t.sum(),
    "matmul fixed": lambda t: t.reshape(-1, 6) @ torch.ones(6, 2),
    "add fixed": lambda t: t + torch.ones(4),
    "interpolate": lambda t: F.interpolate(t.reshape(1, 1, -1), scale_factor=2.0),
    "write": lambda t: t.clone().index_fill_(0, torch.tensor([0]), 1.0),
    "set row": lambda t: _with_row(t),
}


# Two of these in a row take gigabytes.
SQUARING = frozenset({"outer", "triangle", "expand", "gram", "one hot"})


def _with_row(t: torch.Tensor) -> torch.Tensor:
    out = t.new_zeros(t.shape)
    out[t.shape[0] - 1 :] = 1
    return out + t


def compose(names: list[str]) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        for name in names:
            a = STEPS[name](a)
        return a.sum() + a * 1 + b.sum() * b.shape[0]

    return f


SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 12, 13)


def tensors(n: int, m: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(n, m, generator=generator), torch.randn(k, generator=generator)


def check_names(names: list[str], example: tuple[int, int, int], spec: Any) -> None:
    """Either capture refuses, or a call refuses, or the program equals eager."""
    f = compose(names)
    try:
        program = ingot.capture(f, tensors(*example), dynamic_shapes=spec)
    except (DynamicShapeError, EagerError, DataDependentError):
        return
    accepted = 0
    for n, m, k in (
        [(i, example[1], 3) for i in SIZES] + [(example[0], j, 2) for j in SIZES] + [(i, i, 1) for i in SIZES]
    ):
        a, b = tensors(n, m, k)
        try:
            want = f(a, b)
        except Exception:
            continue
        try:
            got = program(a, b)
        except CallError:
            continue
        accepted += 1
        assert got.shape == want.shape, f"{names} captured at {example}, run at {(n, m, k)}: {got.shape} {want.shape}"
        torch.testing.assert_close(
            got, want, rtol=1e-6, atol=1e-6, equal_nan=True, msg=f"{names} {example} {(n, m, k)}"
        )
    assert accepted, f"{names}: no size is accepted, not even the example's"


SEARCH = settings(
    max_examples=50,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate, Phase.shrink],
)
PROGRAMS = given(
    names=st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=4).filter(
        lambda names: sum(name in SQUARING for name in names) < 2
    ),
    example=st.tuples(st.sampled_from((1, 2, 3, 4, 6)), st.sampled_from((1, 2, 4, 5)), st.just(3)),
    spec=st.sampled_from(
        [
            {"a": {0: "n"}, "b": {0: "k"}},
            {"a": {0: "n", 1: "m"}, "b": {0: "k"}},
            {"a": {1: "m"}, "b": {0: "k"}},
            "auto",
        ]
    ),
)


@SEARCH
@PROGRAMS
def test_never_a_silently_frozen_size(names: list[str], example: tuple[int, int, int], spec: Any) -> None:
    check_names(names, example, spec)


@pytest.mark.slow
@settings(SEARCH, max_examples=500)
@PROGRAMS
def test_never_a_silently_frozen_size_at_length(names: list[str], example: tuple[int, int, int], spec: Any) -> None:
    check_names(names, example, spec)


@pytest.mark.parametrize("name", sorted(STEPS))
def test_each_step_alone(name: str) -> None:
    check_names([name], (3, 4, 3), {"a": {0: "n", 1: "m"}, "b": {0: "k"}})
    check_names([name], (6, 2, 3), {"a": {0: "n"}, "b": {0: "k"}})
