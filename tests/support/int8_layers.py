"""Layers of integers in QDQ form, with scales that are powers of two: float32 computes them exactly."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from ingot import torch_internals as internals

Q = internals.quantized_operators()
LIMITS = {torch.uint8: (0, 255), torch.int8: (-128, 127)}


def through(x: torch.Tensor, scale: float, zero: int, dtype: torch.dtype) -> torch.Tensor:
    """Quantized and dequantized."""
    given = (scale, zero, *LIMITS[dtype], dtype)
    return Q.dequantize_per_tensor.default(Q.quantize_per_tensor.default(x, *given), *given)


@dataclass(eq=False)
class Layer(nn.Module):
    """A linear layer, or a convolution with `kernel`: quantized input, int8 weight, bias, ReLU if asked for, quantized
    output if `out` says (scale, zero)."""

    ins: int
    outs: int
    kernel: tuple[int, ...] = ()
    zero: int = 7
    dtype: torch.dtype = torch.uint8
    per_channel: bool = True
    out: tuple[float, int] | None = (2.0**-1, 3)
    relu: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    scale: float = 2.0**-4

    def __post_init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(self.ins * 1000 + self.outs)
        shape = (self.outs, self.ins // self.options.get("groups", 1), *self.kernel)
        self.register_buffer("weight", torch.randint(-128, 128, shape, generator=generator).to(torch.int8))
        steps = 2.0 ** torch.randint(-9, -6, (self.outs,), generator=generator).float()
        self.register_buffer("scales", steps if self.per_channel else torch.full((self.outs,), 2.0**-7))
        self.register_buffer("zeros", torch.zeros(self.outs, dtype=torch.int64))
        whole = torch.randint(-900, 900, (self.outs,), generator=generator)
        self.register_buffer("bias", whole * self.scales * self.scale)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = through(x, self.scale, self.zero, self.dtype)
        if self.per_channel:
            weight = Q.dequantize_per_channel.default(self.weight, self.scales, self.zeros, 0, -128, 127, torch.int8)
        else:
            weight = Q.dequantize_per_tensor.default(self.weight, 2.0**-7, 0, -128, 127, torch.int8)
        if not self.kernel:
            y = F.linear(x, weight, self.bias)
        else:
            y = (F.conv1d if len(self.kernel) == 1 else F.conv2d)(x, weight, self.bias, **self.options)
        y = F.relu(y) if self.relu else y
        return y if self.out is None else through(y, *self.out, torch.uint8)


def inputs(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    """Beyond what 8 bits reach, and halfway between two of them."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=generator).mul(40).round().div(8) for shape in shapes]


class Inverted(nn.Module):
    """A residual block as mobile networks have them: padded by the model, wide in the middle, pooled and joined."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = Layer(3, 16, (3, 3), zero=128, relu=True, out=None, options={"stride": 2, "padding": 1})
        self.wide = Layer(16, 96, (1, 1), scale=2.0**-2, zero=0, out=None)
        self.deep = Layer(96, 96, (3, 3), scale=2.0**-4, zero=3, out=None, options={"groups": 96})
        self.narrow = Layer(96, 16, (1, 1), scale=2.0**-2, zero=9, out=None)
        self.join = Layer(32, 20, (1, 1), scale=2.0**-1, zero=40, out=None)
        self.last = Layer(20, 10, scale=2.0**-1, zero=4, out=None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = through(self.stem(x), 2.0**-2, 0, torch.uint8)
        y = F.relu6(self.wide(x))
        y = F.relu6(self.deep(F.pad(y, (1, 1, 1, 1))))
        y = through(self.narrow(y), 2.0**-1, 100, torch.uint8)
        y = through(x + y, 2.0**-1, 40, torch.uint8)
        y = torch.cat([y, through(F.max_pool2d(y, 3, 1, 1), 2.0**-1, 40, torch.uint8)], 1)
        y = F.max_pool2d(F.relu(self.join(y)), 4, 4)
        return self.last(y.flatten(2).transpose(1, 2))


class Residual(nn.Module):
    """What a residual block with two branches ends with; each of them quantized before they are added, or not. The
    layer behind it reads what was added with channels last."""

    def __init__(self, deep: Layer, short: Layer, inner: tuple[float, int] | None = None, keep: bool = False) -> None:
        super().__init__()
        self.deep, self.short, self.inner, self.keep = deep, short, inner, keep
        self.last = Layer(deep.outs, 16, (1, 1), zero=0, out=None, scale=2.0)

    def forward(self, x: torch.Tensor, z: torch.Tensor) -> Any:
        deep, short = self.deep(x), self.short(z)
        if self.inner is not None:
            deep, short = (through(y, *self.inner, torch.uint8) for y in (deep, short))
        y = self.last(F.relu(deep + short))
        return (y, deep) if self.keep else y


def layer(ins: int, outs: int, kernel: int, options: dict[str, Any] | None = None, zero: int = 0) -> Layer:
    """A convolution whose sums stay floats."""
    return Layer(ins, outs, (kernel, kernel), zero=zero, out=None, options=options or {})
