"""Calls of a compiled model: from several threads, with any number of its own, again, and what they leave behind."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn

import ingot
from tests.support.oracle import assert_right, run, same_bits
from tests.support.zoo import entry

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")


def x(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", ["gpt2", "resnet"])
def test_threads_do_not_change_a_bit(name: str) -> None:
    item = entry(name)
    model = item.build()
    sizes = {key: size + 5 for key, size in item.sizes.items()}
    calls = [item.inputs(item.sizes), item.inputs(sizes)]
    results = []
    for threads in (1, 2, 5):
        compiled = ingot.compile(model, (), calls[0], dynamic_shapes=item.dynamic, threads=threads)
        results.append([run(compiled, call) for call in calls])
        assert same_bits(results[-1], [run(compiled, call) for call in calls])
        compiled.close()
    assert same_bits(results[0], results[1]) and same_bits(results[0], results[2])


def test_several_callers_at_once() -> None:
    item = entry("bert")
    model = item.build()
    compiled = ingot.compile(model, (), item.inputs(item.sizes), dynamic_shapes=item.dynamic, threads=2)
    calls = [item.inputs({"batch": 1 + k % 4, "seq": 5 + k % 7}) for k in range(24)]
    alone = [run(compiled, call) for call in calls]

    def again(call: dict[str, Any]) -> Any:
        with torch.no_grad():
            return compiled(**copy.deepcopy(call))

    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            together = list(pool.map(again, calls))
            assert all(same_bits(a, b) for a, b in zip(alone, together, strict=True))


class Cache(nn.Module):
    """Keys and values of the calls so far, in buffers, and how many there are."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(8, 4))
        self.register_buffer("filled", torch.zeros((), dtype=torch.int64))

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        self.keys.index_copy_(0, self.filled + torch.arange(a.shape[0]), a)
        self.filled.add_(a.shape[0])
        return torch.softmax(a @ self.keys.T, -1) @ self.keys


def test_a_cache_in_buffers_grows_call_by_call() -> None:
    assert_right(Cache(), *((x(2, 4, seed=k),) for k in range(4)))


def test_statistics_of_a_batch_norm_in_training() -> None:
    model = nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.BatchNorm2d(5)).train()
    assert_right(model, *((x(4, 3, 6, 7, seed=k),) for k in range(3)))
    trained = ingot.compile(model, (x(4, 3, 6, 7),))
    for seed in range(3):
        trained(x(4, 3, 6, 7, seed=seed))
    with torch.no_grad():
        model(x(4, 3, 6, 7))  # the model's own state is where it was before: compiled code has its own


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("total", torch.zeros(3))

    def forward(self, a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        before = self.total.clone()
        self.calls += 1
        self.total.add_(a).mul_(0.5)
        return before + self.calls, self.total * 2


def test_counters_and_sums_in_buffers() -> None:
    assert_right(Counter(), *((x(3, seed=k),) for k in range(4)))


def test_an_argument_that_the_model_writes_to() -> None:
    class Writes(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            old = a * 1
            a.mul_(2).add_(b)
            b[1:].zero_()
            return old + a

    assert_right(Writes(), *((x(4, 3, seed=k), x(4, 3, seed=k + 9)) for k in range(3)))


def test_callers_of_a_model_with_state_take_turns() -> None:
    compiled = ingot.compile(Counter(), (torch.ones(3),), threads=2)
    with ThreadPoolExecutor(4) as pool:
        counts = [float(first[0]) for first, _ in pool.map(lambda _: compiled(torch.zeros(3)), range(40))]
    assert sorted(counts) == [float(count) for count in range(1, 41)]
