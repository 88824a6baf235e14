"""The short way of calls with torch's tensors. In the emulated driver the host's memory serves as the device's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import ingot
import ingot_runtime
from ingot import torch_internals as internals
from ingot.artifacts.device_calls import DeviceCalls
from ingot_runtime.device_model import DeviceModel
from tests.support.cuda_emulation.target import EMULATED, EmulatedDriver
from tests.targets.cuda.host.models import Several, Writer


@pytest.fixture
def _host_as_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "get_device", lambda self: 0)
    monkeypatch.setattr(internals, "raw_cuda_stream", lambda device: 0)
    monkeypatch.setattr(internals, "current_cuda_device", lambda: 0)


def load(model: Any, args: tuple[Any, ...], folder: Path, **options: Any) -> DeviceModel:
    ingot.compile(model, args, target=EMULATED, **options).save(folder / "m.ingot")
    loaded = ingot_runtime.load(folder / "m.ingot")
    assert isinstance(loaded, DeviceModel)
    return loaded


def calls_of(model: DeviceModel) -> DeviceCalls:
    made = DeviceCalls.create(model)
    assert made is not None
    made._device = torch.device("cpu")
    made._allocate = internals.short_empty_strided("cpu")
    return made


@pytest.mark.usefixtures("_host_as_device")
def test_plain_calls_take_the_short_way(driver: EmulatedDriver, tmp_path: Path) -> None:
    model = Several().eval()
    batch = torch.export.Dim("b", min=1, max=9)
    args = torch.randn(4, 5), torch.randn(3, 7)
    with load(model, args, tmp_path, dynamic_shapes=({0: batch}, None)) as loaded:
        calls = calls_of(loaded)
        for rows in (4, 4, 1, 9):
            x, y = torch.randn(rows, 5), torch.randn(3, 7)
            results = calls.run((x, y))
            assert results is not None
            with torch.no_grad():
                expected = model(x, y)
            for result, wanted in zip(results, expected, strict=True):
                assert torch.equal(result, wanted)
        with pytest.raises(ingot_runtime.InputError):
            calls.run((torch.randn(10, 5), args[1]))


@pytest.mark.usefixtures("_host_as_device")
@pytest.mark.parametrize("current", [0, 1])
def test_results_lie_on_the_device_of_the_model(
    driver: EmulatedDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, current: int
) -> None:
    """The short way of allocating knows the current device only; if another one is current, torch gets its number."""
    model, args = Several().eval(), (torch.randn(4, 5), torch.randn(3, 7))
    monkeypatch.setattr(internals, "current_cuda_device", lambda: current)
    with load(model, args, tmp_path) as loaded:
        calls = calls_of(loaded)
        made: list[torch.Tensor] = []
        short = internals.short_empty_strided("cpu")
        assert short is not None
        calls._allocate = lambda *given: made.append(short(*given)) or made[-1]  # type: ignore[func-returns-value]
        results = calls.run(args)
        assert results is not None and len(made) == (0 if current else len(results))
        for result, wanted in zip(results, model(*args), strict=True):
            assert result.is_contiguous() and torch.equal(result, wanted) and result.dtype is wanted.dtype
        again = calls.run(args)
        assert again is not None and again[0].data_ptr() != results[0].data_ptr(), "results belong to the caller"


@pytest.mark.usefixtures("_host_as_device")
def test_other_calls_go_the_longer_way(driver: EmulatedDriver, tmp_path: Path) -> None:
    x, y = torch.randn(4, 5), torch.randn(3, 7)
    with load(Several().eval(), (x, y), tmp_path) as loaded:
        calls = calls_of(loaded)
        assert calls.run((x, y)) is not None
        others: list[tuple[Any, ...]] = [(x,), (x.double(), y), (torch.randn(5, 4).t(), y), (x, 3), (x, y.numpy())]
        others += [(torch._neg_view(x), y)]
        assert [calls.run(other) for other in others] == [None] * len(others)


@pytest.mark.usefixtures("_host_as_device")
def test_a_model_that_writes_to_its_arguments_is_checked_each_time(driver: EmulatedDriver, tmp_path: Path) -> None:
    args = torch.randn(4, 5), torch.randn(2, 5)
    with load(Writer().eval(), args, tmp_path) as loaded:
        assert calls_of(loaded).run(args) is None
