"""What programs do around compiled graphs."""

from __future__ import annotations

import math
import threading
import time
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.attention.flex_attention import flex_attention

from ingot.dynamo import backend
from tests.dynamo.recording import Recording, close


@pytest.mark.parametrize("kind", ["transposed", "expanded", "none"])
def test_gradients_that_come_in(recording: Recording, kind: str) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (x * 2).sin(), x.cos()

    x = torch.randn(3, 4, requires_grad=True)
    given = {"transposed": torch.randn(4, 3).t(), "expanded": torch.ones(()).expand(3, 4), "none": torch.ones(3, 4)}[
        kind
    ]
    found = []
    for run in (torch.compile(function, backend=recording), function):
        first, second = run(x)
        found.append(
            torch.autograd.grad(
                first if kind == "none" else [first, second], x, given if kind == "none" else [given] * 2
            )[0]
        )
    close(*found)
    assert recording.native == [True, True]


@torch.no_grad()
def test_a_weight_whose_memory_is_another(recording: Recording) -> None:
    model = nn.Linear(4, 4)
    compiled = torch.compile(model, backend=recording)
    x = torch.randn(2, 4)
    for _ in range(6):  # memory of the last one is free, and is taken again
        model.weight.data = torch.randn(4, 4)
        close(compiled(x), model(x))
    assert recording.native == [True]


def test_several_threads_train(recording: Recording) -> None:
    compiled = torch.compile(lambda x: (x * 2).sin().sum(), backend=recording)
    compiled(torch.ones(5, requires_grad=True)).backward()
    wrong: list[int] = []

    def train() -> None:
        for _ in range(20):
            x = torch.randn(5, requires_grad=True)
            compiled(x).backward()
            if not torch.allclose(x.grad, 2 * (x * 2).cos()):
                wrong.append(1)

    callers = [threading.Thread(target=train) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong and all(recording.native)


@torch.no_grad()
def test_sizes_that_are_products(recording: Recording) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[Any, ...]:
        rows, columns = x.shape
        flat = x.reshape(-1)
        return flat[: rows * columns // 2].sum() + y.sum(), x.reshape(rows * columns) * 2, rows * columns

    compiled = torch.compile(function, backend=recording, dynamic=True)
    for rows, columns in ((4, 3), (6, 5), (8, 7)):
        x, y = torch.randn(rows, columns), torch.randn(rows * columns)
        close(compiled(x, y), function(x, y))
    assert recording.native == [True]


def test_a_half_that_fails_to_compile_runs_in_eager(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was raised: a bug of ours does not end the user's program."""
    build = backend.NativeGraph

    def fail_in_backward(graph: Any, *rest: Any) -> Any:
        if any("tangents" in node.name for node in graph.graph.nodes):
            raise RuntimeError("a bug")
        return build(graph, *rest)

    monkeypatch.setattr(backend, "NativeGraph", fail_in_backward)
    x = torch.randn(3, requires_grad=True)
    torch.compile(lambda x: x.sin().sum(), backend=recording)(x).backward()
    close(x.grad, x.detach().cos())
    assert recording.native == [True, False] and "RuntimeError: a bug" in recording.reports[1].reasons[0]


@torch.no_grad()
def test_a_branch(recording: Recording) -> None:
    def function(x: torch.Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))

    compiled = torch.compile(function, backend=recording)
    for x in (torch.ones(3), -torch.ones(3)):
        close(compiled(x), x.sin() if x.sum() > 0 else x.cos())
    assert recording.native == [True]


@torch.no_grad()
def test_attention_with_a_function(recording: Recording) -> None:
    def function(q: torch.Tensor) -> Any:
        return flex_attention(q, q, q, score_mod=lambda score, b, h, i, j: score - (i - j).abs())

    q = torch.randn(1, 2, 16, 8)
    distance = (torch.arange(16).unsqueeze(1) - torch.arange(16)).abs()
    want = nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=-distance.float())
    close(torch.compile(function, backend=recording)(q), want)
    assert recording.native == [True]


@torch.no_grad()
def test_an_index_out_of_range_is_an_index_error(recording: Recording) -> None:
    with pytest.raises(IndexError):
        torch.compile(lambda x, i: x[i] * 2, backend=recording)(torch.randn(3), torch.tensor([5]))


def test_sizes_that_are_rounded_up(recording: Recording) -> None:
    def pad_to_steps(x: torch.Tensor, step: int) -> torch.Tensor:
        missing = max((math.ceil(x.shape[-1] / step) - 1) * step + 5 - x.shape[-1], 0)
        return torch.nn.functional.pad(x, [missing // 2, missing - missing // 2])

    run = torch.compile(pad_to_steps, backend=recording, dynamic=True)
    for size, step in ((110, 2), (111, 3), (17, 5)):
        x = torch.randn(2, size)
        close(run(x, step), pad_to_steps(x, step))
    assert all(recording.native)


def test_an_integer_divided_by_zero(recording: Recording) -> None:
    x = torch.arange(1, 5, dtype=torch.uint8)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        torch.compile(torch.fmod, backend=recording)(x, x - 1)
    assert recording.native == [True]


def test_sizes_tied_by_a_condition_without_a_fix(recording: Recording) -> None:
    """The search for a hint about each of many conditions took minutes."""

    def function(x: torch.Tensor, source: torch.Tensor, offset: int) -> torch.Tensor:
        return torch.diagonal_scatter(x, source, offset, 0, 2).sum()

    run = torch.compile(function, backend=recording, dynamic=True)
    x, source = torch.zeros(5, 4, 5, requires_grad=True), torch.ones(4, 4, requires_grad=True)
    begun = time.process_time()
    run(x, source, 1).backward()
    assert time.process_time() - begun < 30
    assert x.grad is not None and x.grad.sum() == 84
