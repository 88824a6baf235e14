"""Products that share their rows: done as one, with the same bits, and left alone where one needs all of another."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ingot.scheduling.fusion import fuse
from ingot.targets.cpu.schedule.limits import FUSION_LIMITS
from ingot.targets.cpu.schedule.statements import GemmGroup
from tests.support.pipeline_fixtures import assemble, lowered

X = torch.Tensor


class Three(nn.Module):
    def __init__(self, combine: Callable[[X, X, X], X], sizes: tuple[int, int, int] = (40, 40, 40)) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(24, size) for size in sizes)
        self.combine = combine

    def forward(self, x: X) -> X:
        a, b, c = (layer(x) for layer in self.layers)
        return self.combine(a, b, c)


def check(model: nn.Module, sizes: tuple[int, ...] = ()) -> list[int]:
    """Bits as without siblings, with one thread and three; returns how many products each family has."""
    torch.manual_seed(11)
    x = torch.randn(70, 24)
    dims = {"x": {0: "rows"}} if sizes else None
    program, module = lowered(model, (x,), dynamic_shapes=dims)
    _, plain = lowered(model, (x,), dynamic_shapes=dims, fused=False)
    expected = assemble(program, fuse(plain, FUSION_LIMITS))
    for threads in (1, 3):
        ours = assemble(program, module, threads=threads)
        for size in sizes or (70,):
            given = torch.randn(size, 24)
            assert torch.equal(ours(given), expected(given)), (threads, size)
    return [len(step.steps) for step in module.steps if isinstance(step, GemmGroup)]


def test_queries_keys_and_values() -> None:
    assert check(Three(lambda q, k, v: torch.softmax(q @ k.T, -1) @ v)) == [3]


def test_a_gate_and_what_it_lets_through_at_any_size() -> None:
    model = Three(lambda gate, up, rest: F.silu(gate) * up + rest.relu())
    assert check(model, sizes=(1, 2, 63, 64, 65, 200)) == [3]


def test_sizes_that_differ() -> None:
    model = Three(lambda q, k, v: q[:, :8] + k * v, sizes=(40, 8, 8))
    assert check(model) == [2]


@pytest.mark.parametrize("turned", [lambda a: a.flip(0), lambda a: a.flip(1), lambda a: a.roll(1, 0)])
def test_what_is_read_at_another_place_comes_first(turned: Callable[[X], X]) -> None:
    model = Three(lambda a, b, c: (b + turned(a)) * c)
    assert all(size <= 3 for size in check(model)), "whatever was joined, the bits are right"


def test_dependent_products_are_not_grouped() -> None:
    class Chain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(24, 24), nn.Linear(24, 24)

        def forward(self, x: X) -> X:
            return self.b(self.a(x)) + x

    assert check(Chain()) == []
