"""Layers of every kind through the whole target: kernels of all writers, launched by the host text."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ingot
from tests.support.cuda_emulation.target import EMULATED, EmulatedDriver


class Block(nn.Module):
    """A layer of a transformer."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.project = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.grow, self.shrink = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        images, length, width = x.shape
        parts = self.project(self.norm(x)).view(images, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(images, length, width))
        return x + self.shrink(F.gelu(self.grow(x)))


class Images(nn.Module):
    """Convolutions, a pool, a norm and a mean."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.apart, self.last = nn.Conv2d(8, 8, 3, groups=8, padding=1), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(self.apart(F.relu(self.norm(self.first(x)))), 2)
        return self.last(x.mean((2, 3))).softmax(-1)


def decode(cache: torch.Tensor, at: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """A cache that is written in place, as a decoder's."""
    cache.index_copy_(1, at, x)
    return (cache * x).sum(-1)


MODELS: dict[str, tuple[Callable[[], Any], tuple[torch.Tensor, ...], Any]] = {
    "block": (Block, (torch.randn(2, 9, 32),), None),
    "block of any size": (Block, (torch.randn(2, 9, 32),), ({0: "images", 1: "length"},)),
    "images": (Images, (torch.randn(2, 3, 8, 8),), ({0: "images"},)),
    "recurrent": (lambda: nn.LSTM(4, 6, batch_first=True), (torch.randn(2, 5, 4),), None),
    "sort and sum": (lambda: lambda x: (x.sort(-1), x.cumsum(0), x.sum()), (torch.randn(3, 17),), None),
    "a size from data": (lambda: lambda x: x[x > 0].sum(), (torch.randn(3, 17),), None),
    "a cache": (lambda: decode, (torch.zeros(1, 6, 4), torch.tensor([2]), torch.randn(1, 1, 4)), None),
}


@pytest.mark.parametrize("name", MODELS)
def test_it_gives_what_float64_gives(driver: EmulatedDriver, name: str) -> None:
    make, args, shapes = MODELS[name]
    model = make()
    exact = model
    if isinstance(model, nn.Module):
        model = model.eval()
        exact = copy.deepcopy(model).double()
    compiled = ingot.compile(model, args, dynamic_shapes=shapes, target=EMULATED)
    calls = [args, tuple(arg * 2 if arg.is_floating_point() else arg for arg in args)]
    if shapes is not None:
        calls.append(tuple(torch.cat([arg, arg * 3]) for arg in args))
    for given in calls:
        wide = [arg.double() if arg.is_floating_point() else arg.clone() for arg in given]
        mine = [arg.clone() for arg in given]
        with torch.no_grad():
            expected = exact(*wide)
        torch.testing.assert_close(compiled(*mine), expected, rtol=2e-5, atol=2e-5, check_dtype=False)
        torch.testing.assert_close(mine, wide, rtol=2e-5, atol=2e-5, check_dtype=False)
    compiled.close()


def test_draws_follow_the_seed_as_on_the_host(driver: EmulatedDriver) -> None:
    def noise(x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand_like(x), torch.randn_like(x)

    here, there = (ingot.compile(noise, (torch.zeros(40),), target=target) for target in ("cpu", EMULATED))
    results = []
    for compiled in (here, there):
        compiled.seed(7)
        results.append([compiled(torch.zeros(40)) for _ in range(3)])
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)
    assert not torch.equal(results[0][0][0], results[0][1][0])
    there.seed(7)
    torch.testing.assert_close(there(torch.zeros(40)), results[1][0], rtol=0, atol=0)
    here.close()
    there.close()


@pytest.mark.parametrize(("capability", "overlaps"), [("90", True), ("80", False)])
def test_products_begin_before_the_kernel_before_them_ends(
    driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch, capability: str, overlaps: bool
) -> None:
    """Where code has the instruction that waits, and nowhere else."""
    monkeypatch.setenv("INGOT_EMULATED_CC", capability)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8)).eval()
    compiled = ingot.compile(model, (torch.randn(4, 16),), target=EMULATED)
    before = driver.calls("cuGraphAddDependencies_v2")
    x = torch.randn(4, 16)
    torch.testing.assert_close(compiled(x), model(x))
    assert (driver.calls("cuGraphAddDependencies_v2") > before) is overlaps
    compiled.close()


def test_gradients(driver: EmulatedDriver) -> None:
    model, x = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 1)), torch.randn(4, 8)
    trained = ingot.compile(model, (x,), target=EMULATED, training=True)
    trained(x).sum().backward()
    found = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    model(x).sum().backward()
    torch.testing.assert_close(found, [parameter.grad for parameter in model.parameters()])
    trained.close()
