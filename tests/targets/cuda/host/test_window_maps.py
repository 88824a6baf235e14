"""Convolutions by boxes of pixels through the whole target: a ResNet of two stages, and GPUs that have no boxes."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import ingot
from tests.support.cuda_emulation.target import EMULATED, EmulatedDriver


class ResNet(nn.Module):
    """Two stages of two bottleneck blocks; the shortcut of the second one moves by two."""

    def __init__(self) -> None:
        super().__init__()
        transformers = pytest.importorskip("transformers")
        config = transformers.ResNetConfig(
            embedding_size=64, hidden_sizes=[256, 256], depths=[2, 2], num_labels=8, layer_type="bottleneck"
        )
        self.model = transformers.ResNetForImageClassification(config)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(pixel_values=x).logits
        return logits


@pytest.mark.parametrize("capability", ["90", "80"])
def test_resnet(capability: str, driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGOT_EMULATED_CC", capability)
    torch.manual_seed(0)
    model = ResNet().to(torch.bfloat16).eval()
    x = torch.randn(2, 3, 29, 36).to(torch.bfloat16)
    compiled = ingot.compile(model, (x,), target=EMULATED)
    assert compiled.source.count("const ig_window_rows source") == 5  # the first layer too; two others share one
    with torch.no_grad():
        expected = copy.deepcopy(model).double()(x.double())
        eager = model(x).double()
    error, theirs = (float((found - expected).abs().max()) for found in (compiled(x).double(), eager))
    assert error <= max(2 * theirs, 1e-2 * float(expected.abs().max())), (error, theirs)
    compiled.close()
