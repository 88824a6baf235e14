"""Quantized models as ONNX: QuantizeLinear and DequantizeLinear around the float operators, and the same numbers."""

from __future__ import annotations

import copy
from collections import Counter
from pathlib import Path

import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.ao.quantization.fx import _decomposed  # noqa: F401  registers the operators

import ingot
from tests.zoo import entry

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
quantized = torch.ops.quantized_decomposed


class Quantized(nn.Module):
    """A linear layer or a convolution on int8 weights, one scale a channel, and uint8 inputs."""

    def __init__(self, layer: nn.Linear | nn.Conv2d) -> None:
        super().__init__()
        self.layer = copy.deepcopy(layer)
        weight = layer.weight.detach()
        scales = weight.flatten(1).abs().amax(1).clamp(min=1e-6) / 127
        zeros = torch.zeros(len(scales), dtype=torch.int64)
        stored = quantized.quantize_per_channel(weight, scales, zeros, 0, -127, 127, torch.int8)
        self.register_buffer("scales", scales)
        self.register_buffer("zeros", zeros)
        self.register_buffer("stored", stored)
        del self.layer.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = quantized.quantize_per_tensor(x, 0.05, 128, 0, 255, torch.uint8)
        x = quantized.dequantize_per_tensor(x, 0.05, 128, 0, 255, torch.uint8)
        weight = quantized.dequantize_per_channel(self.stored, self.scales, self.zeros, 0, -127, 127, torch.int8)
        if isinstance(self.layer, nn.Linear):
            return F.linear(x, weight, self.layer.bias)
        given = self.layer
        return F.conv2d(x, weight, given.bias, given.stride, given.padding, given.dilation, given.groups)


def quantize(module: nn.Module) -> int:
    """Every linear layer and convolution in the module becomes a quantized one; returns how many."""
    count = 0
    for name, child in list(module.named_children()):
        if isinstance(child, nn.Linear) or (isinstance(child, nn.Conv2d) and child.padding_mode == "zeros"):
            setattr(module, name, Quantized(child))
            count += 1
        else:
            count += quantize(child)
    return count


@pytest.mark.parametrize("name", ["resnet", "bert"])
def test_quantized_models(name: str, tmp_path: Path) -> None:
    item = entry(name)
    model = item.build()
    count = quantize(model)
    program = ingot.capture(model, (), item.inputs(item.sizes), dynamic_shapes=item.dynamic)
    report = ingot.export_onnx(program, tmp_path / "m.onnx")
    kinds = Counter(node.op_type for node in onnx.load(tmp_path / "m.onnx").graph.node)
    assert count > 5 and report.runner == "ONNX Runtime" and len(report.differences) == 3
    assert kinds["QuantizeLinear"] <= count and kinds["DequantizeLinear"] >= 2 * count - (
        count - kinds["QuantizeLinear"]
    )
    stored = {t.name: t.data_type for t in onnx.load(tmp_path / "m.onnx").graph.initializer}
    assert sum(kind == onnx.TensorProto.INT8 for kind in stored.values()) >= count
