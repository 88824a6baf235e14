"""On a machine with a GPU: kernels of every kind, and the same bits from the saved file in a process without torch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support.oracle import judge as judge_model
from tests.support.oracle import without_torch
from tests.support.zoo import entry
from tests.targets.cuda.gpu.cases import DTYPES, TF32, cases, is_right, judge, uses_tensor_cores

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

MODELS = ("static:bert", "dynamic:bert", "static:resnet", "dynamic:llama", "static:t5", "static:mamba", "static:vit")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", cases())
def test_kernels_are_as_near_to_float64_as_eager(name: str, dtype: torch.dtype) -> None:
    errors = judge(name, dtype)
    assert is_right(*errors), errors


@pytest.mark.parametrize("name", TF32)
def test_products_in_tf32_are_as_near_to_float64_as_eager(name: str) -> None:
    ours, eager, largest = judge(name, torch.float32, "tf32")
    assert is_right(ours, eager, largest) and uses_tensor_cores(ours, largest), (ours, eager, largest)


@pytest.mark.parametrize("name", MODELS)
def test_models_of_the_zoo(name: str, tmp_path: Path) -> None:
    kind, _, model = name.partition(":")
    verdict = judge_model(entry(model), kind, tmp_path, "cuda")
    assert verdict.outcome == "right", verdict.detail
    assert without_torch(tmp_path) == []


def test_host_tensors_and_device_tensors_give_the_same_bits() -> None:
    import ingot

    model, args = torch.nn.Linear(64, 32).eval(), (torch.randn(10, 64),)
    compiled = ingot.compile(model, args, target="cuda")
    on_host, on_device = compiled(*args), compiled(*(arg.cuda() for arg in args))
    assert on_host.device.type == "cpu" and on_device.device.type == "cuda"
    assert torch.equal(on_host, on_device.cpu())


def test_calls_on_several_streams() -> None:
    import ingot

    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU(), torch.nn.Linear(256, 256)).eval().cuda()
    compiled = ingot.compile(model, (torch.randn(8, 256, device="cuda"),), target="cuda")
    inputs = [torch.randn(8, 256, device="cuda") for _ in range(40)]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(4)]
    results = []
    for number, x in enumerate(inputs):
        with torch.cuda.stream(streams[number % 4]):
            results.append(compiled(x))
    torch.cuda.synchronize()
    for x, result in zip(inputs, results, strict=True):
        assert torch.equal(result, compiled(x))
