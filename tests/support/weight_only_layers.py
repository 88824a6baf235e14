"""Layers whose weights are integers, as weight-only quantization leaves them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.ao.quantization.fx import _decomposed  # noqa: F401  registers the operators

X = torch.Tensor
quantized = torch.ops.quantized_decomposed


class Coded(nn.Module):
    """A linear layer, its weight [columns, depth] by groups of terms, or, without groups, by columns."""

    def __init__(
        self, depth: int, columns: int, group: int | None = None, bits: int = 4, zeros: bool = False,
        dtype: torch.dtype = torch.int8, bias: bool = False
    ) -> None:  # fmt: skip
        super().__init__()
        half = 1 << (bits - 1)
        self.low, self.high = (0, 2 * half - 1) if dtype is torch.uint8 else (-half, half - 1)
        self.group, self.dtype = group, dtype
        shape = (columns,) if group is None else (columns, depth // group)
        codes = torch.randint(self.low, self.high + 1, (columns, depth)).to(dtype)
        codes[0, : min(depth, 2)] = torch.tensor([self.low, self.high][:depth], dtype=dtype)
        self.register_buffer("codes", codes)
        self.register_buffer("scales", (torch.rand(shape) + 0.5) / (half * depth**0.5))
        self.register_buffer(
            "zeros", torch.randint(self.low, self.high + 1, shape) if zeros else torch.zeros(shape).int()
        )
        self.bias = nn.Parameter(torch.randn(columns)) if bias else None

    def weight(self) -> X:
        if self.group is None:
            given = (self.codes, self.scales, self.zeros, 0, self.low, self.high, self.dtype)
            return quantized.dequantize_per_channel(*given)
        given = (self.codes, self.scales, self.zeros, self.low, self.high, self.dtype, self.group, torch.float32)
        return quantized.dequantize_per_channel_group(*given)

    def forward(self, x: X) -> X:
        return F.linear(x, self.weight(), self.bias)


class Several(nn.Module):
    """Layers of the same rows, one after another, side by side."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, *xs: X) -> list[X]:
        return [layer(x) for layer, x in zip(self.layers, xs, strict=True)]


class Tied(nn.Module):
    """Tokens to vectors and back by one table, with a layer in between."""

    def __init__(self, table: Coded, layer: Coded) -> None:
        super().__init__()
        self.table, self.layer = table, layer

    def forward(self, tokens: X) -> X:
        weight = self.table.weight()
        return F.linear(F.gelu(self.layer(F.embedding(tokens, weight))), weight)
