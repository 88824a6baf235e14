"""Products by tiles of weights through the whole target: maps of tensors, clusters, and GPUs that have neither."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import ingot
from ingot_runtime import DeviceUnavailable
from tests.support.cuda_emulation.target import EMULATED, EmulatedDriver

ENCODE = "cuTensorMapEncodeTiled"


class Layers(nn.Module):
    """Two products; the second one's rows are a temporary."""

    def __init__(self) -> None:
        super().__init__()
        self.grow, self.shrink = nn.Linear(128, 128), nn.Linear(128, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.shrink(torch.relu(self.grow(x)))


def compare(compiled: ingot.CompiledModel, model: nn.Module, rows: int) -> None:
    x = torch.randn(rows, 128).to(torch.bfloat16)
    with torch.no_grad():
        expected = copy.deepcopy(model).double()(x.double())
    torch.testing.assert_close(compiled(x).double(), expected, rtol=2e-2, atol=2e-2)


def test_maps_are_made_once_for_an_address(driver: EmulatedDriver) -> None:
    torch.manual_seed(0)
    model = Layers().to(torch.bfloat16).eval()
    x = torch.randn(70, 128).to(torch.bfloat16)
    compiled = ingot.compile(model, (x,), target=EMULATED, dynamic_shapes=({0: "rows"},))
    assert compiled.source.count("ig_run_bulk<ig_bulk_form") == 2
    for rows, more in ((70, 2), (70, 2), (70, 0), (70, 0), (9, 2), (600, 2)):
        before = driver.calls(ENCODE)
        compare(compiled, model, rows)
        assert driver.calls(ENCODE) == before + more, rows
    compiled.close()


def test_gpus_without_maps(driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGOT_EMULATED_CC", "80")
    torch.manual_seed(0)
    model = Layers().to(torch.bfloat16).eval()
    compiled = ingot.compile(model, (torch.randn(70, 128).to(torch.bfloat16),), target=EMULATED)
    before = driver.calls(ENCODE)
    compare(compiled, model, 70)
    assert driver.calls(ENCODE) == before
    compiled.close()


def test_a_map_that_the_driver_refuses(driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one a graph is not made; a launch that cannot be made either is a fault with a sentence."""
    torch.manual_seed(0)
    model = Layers().to(torch.bfloat16).eval()
    compiled = ingot.compile(model, (torch.randn(70, 128).to(torch.bfloat16),), target=EMULATED)
    monkeypatch.setenv("INGOT_EMULATED_FAULT", f"{ENCODE}:{driver.calls(ENCODE)}")
    compare(compiled, model, 70)
    compiled.close()
    alone = nn.Linear(128, 64).to(torch.bfloat16).eval()
    one = ingot.compile(alone, (torch.randn(70, 128).to(torch.bfloat16),), target=EMULATED)
    monkeypatch.setenv("INGOT_EMULATED_FAULT", f"{ENCODE}:{driver.calls(ENCODE)}")
    with pytest.raises(DeviceUnavailable, match=f"The GPU failed.*\n.*unknown error .999, in {ENCODE}"):
        compare(one, alone, 70)
    compare(one, alone, 70)
    one.close()
