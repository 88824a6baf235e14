"""torch.compile(backend="ingot") with tensors on a GPU: graphs become native code there, on torch's current stream."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from ingot.dynamo import GraphReport

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def _compile(model: Callable[..., Any], **options: Any) -> tuple[Callable[..., Any], list[GraphReport]]:
    reports: list[GraphReport] = []
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="ingot", options={"on_graph": reports.append}, **options)
    return compiled, reports


def _perceptron() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 10)).cuda()


def test_inference_runs_on_the_gpu() -> None:
    model = _perceptron().eval()
    compiled, reports = _compile(model)
    x = torch.randn(8, 64, device="cuda")
    with torch.no_grad():
        made = compiled(x)
        torch.testing.assert_close(made, model(x), rtol=1e-4, atol=1e-5)
    assert made.is_cuda and [one.is_native for one in reports] == [True]


def test_sizes_that_change_are_one_code() -> None:
    model = _perceptron().eval()
    compiled, reports = _compile(model, dynamic=True)
    with torch.no_grad():
        for size in (8, 3, 17):
            x = torch.randn(size, 64, device="cuda")
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    assert all(one.is_native for one in reports) and len(reports) <= 2


def test_calls_run_on_the_current_stream() -> None:
    model = _perceptron().eval()
    compiled, _ = _compile(model)
    inputs = [torch.randn(8, 64, device="cuda") for _ in range(20)]
    with torch.no_grad():
        expected = [model(x) for x in inputs]
        compiled(inputs[0])
        torch.cuda.synchronize()
        streams = [torch.cuda.Stream() for _ in range(3)]
        made = []
        for number, x in enumerate(inputs):
            with torch.cuda.stream(streams[number % 3]):
                made.append(compiled(x * 1.0))
    torch.cuda.synchronize()
    for found, right in zip(made, expected, strict=True):
        torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-5)


def test_a_state_on_the_gpu_is_written_in_place() -> None:
    class Cache(nn.Module):
        seen: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(16, 16)
            self.register_buffer("seen", torch.zeros(4, 16))

        def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
            self.seen.index_copy_(0, at, self.linear(x))
            return self.seen.sum(0)

    model = Cache().cuda().eval()
    twin = copy.deepcopy(model)
    compiled, reports = _compile(model)
    with torch.no_grad():
        for step in range(4):
            x, at = torch.randn(1, 16, device="cuda"), torch.tensor([step], device="cuda")
            torch.testing.assert_close(compiled(x, at), twin(x, at), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model.seen, twin.seen, rtol=1e-4, atol=1e-5)
    assert all(one.is_native for one in reports)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_training_follows_eager(dtype: torch.dtype) -> None:
    model = _perceptron().to(dtype)
    twin = copy.deepcopy(model)
    compiled, reports = _compile(model)
    first = torch.optim.SGD(model.parameters(), lr=0.05)
    second = torch.optim.SGD(twin.parameters(), lr=0.05)
    for step in range(20):
        torch.manual_seed(step)
        x, y = torch.randn(32, 64, device="cuda", dtype=dtype), torch.randint(0, 10, (32,), device="cuda")
        losses = []
        for net, optimizer in ((compiled, first), (twin, second)):
            loss = nn.functional.cross_entropy(net(x).float(), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[0] == pytest.approx(losses[1], rel=2e-4 if dtype == torch.float32 else 3e-2)
    assert reports and all(one.is_native for one in reports), [one.reasons for one in reports]
