"""Quantized modules, as torch.ao makes them."""

import warnings
from typing import Any

import torch
import torch.ao.quantization as ao
from torch import nn
from torch.ao.nn.intrinsic.quantized.dynamic import LinearReLU


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.quant, self.dequant = ao.QuantStub(), ao.DeQuantStub()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.relu = nn.ReLU()
        self.pool = nn.MaxPool2d(2)
        self.fc = nn.Linear(4, 2)
        self.sums = torch.ao.nn.quantized.FloatFunctional()

    def forward(self, x):
        y = self.relu(self.norm(self.conv(self.quant(x))))
        y = self.sums.add(y, y)
        y = self.pool(y).mean([2, 3])
        return self.dequant(self.fc(y))


def static() -> nn.Module:
    """Quantized with fixed scales, as calibration found them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        model: Any = Net().eval()
        model.qconfig = ao.get_default_qconfig("fbgemm")
        model = ao.prepare(ao.fuse_modules(model, [["conv", "norm", "relu"]]))
        for _ in range(8):
            model(torch.randn(2, 3, 14, 14))
        return ao.convert(model)


def dynamic() -> nn.Module:
    """Weights quantized; activations by what they hold."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
        return ao.quantize_dynamic(model, {nn.Linear}, torch.qint8)


class Layers(nn.Module):
    """Layers that give their results a scale of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.quant, self.dequant = ao.QuantStub(), ao.DeQuantStub()
        self.convolution, self.norm = nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8)
        self.linear, self.layer_norm, self.elu = nn.Linear(8, 8), nn.LayerNorm(8), nn.ELU()
        self.leaky, self.swish, self.sigmoid = nn.LeakyReLU(0.1), nn.Hardswish(), nn.Sigmoid()
        self.by = torch.ao.nn.quantized.FloatFunctional()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.convolution(self.quant(x))).relu()
        x = self.linear(x.mean([2, 3]))
        y = self.swish(self.leaky(self.elu(self.layer_norm(x))))
        y = self.by.mul_scalar(self.by.add_scalar(self.by.mul_scalar(y, 0.5), 9.0), -0.7)
        return self.dequant(self.sigmoid(torch.tanh(y)))


def layers() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        model: Any = Layers().eval()
        model.qconfig = ao.get_default_qconfig("fbgemm")
        model = ao.prepare(model)
        for _ in range(4):
            model(torch.randn(2, 3, 9, 9))
        return ao.convert(model)


def rounded() -> nn.Module:
    """Weights in float16."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        joined = LinearReLU(8, 8, dtype=torch.float16)
        joined.set_weight_bias(torch.randn(8, 8), torch.randn(8))
        model = nn.Sequential(nn.Linear(16, 8), nn.Tanh()).eval()
        return nn.Sequential(ao.quantize_dynamic(model, {nn.Linear}, dtype=torch.float16), joined)


def recurrent() -> nn.Module:
    """Weights in an object that no operator takes apart."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ao.quantize_dynamic(nn.Sequential(nn.LSTM(3, 4)).eval(), {nn.LSTM})
