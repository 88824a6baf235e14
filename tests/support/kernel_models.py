"""Small models that between them use every kind of kernel, for checks of the generated C as such."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.support import int8_layers
from tests.support.weight_only_layers import Coded, Tied

X = torch.Tensor


def x(*shape: int, seed: int = 0) -> X:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 10, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(10)
        self.deep = nn.Conv2d(10, 20, 3, padding=2, dilation=2, groups=5)
        self.point = nn.Conv2d(20, 50, 1)
        self.head = nn.Linear(50, 7)

    def forward(self, a: X) -> X:
        a = F.max_pool2d(torch.relu(self.norm(self.first(a))), 2)
        a = F.gelu(self.point(self.deep(a)))
        return torch.log_softmax(self.head(a.mean((2, 3))), -1)


class Inverted(nn.Module):
    """Wider, each channel by itself, narrower: large enough in between to be computed by strips of lines."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Conv2d(16, 48, 1)
        self.deep = nn.Conv2d(48, 48, 3, padding=1, groups=48)
        self.narrow = nn.Conv2d(48, 16, 1)

    def forward(self, a: X) -> X:
        return a + self.narrow(F.relu6(self.deep(F.relu6(self.wide(a)))))


class Block(nn.Module):
    """A transformer block, with a mask by length and one that is causal."""

    def __init__(self, width: int = 24, heads: int = 3) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, a: X, keep: X) -> X:
        batch, length, width = a.shape
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in self.qkv(self.norm(a)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=keep[:, None, None, :])
        mixed = mixed + F.scaled_dot_product_attention(q, k, v, is_causal=True)
        a = a + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return a + self.down(F.gelu(self.up(self.norm2(a))))


class Lookup(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 5)

    def forward(self, places: X, a: X) -> tuple[X, X, X]:
        rows = self.table(places)
        picked = a.gather(1, places) + a[:, places[0]]
        return rows, picked, a.index_select(1, places[1].abs())


class Control(nn.Module):
    def forward(self, a: X, flag: X) -> tuple[X, X]:
        chosen = torch.cond(flag.any(), lambda b: b.sin() * 2, lambda b: b.flip(0) - 1, (a,))
        count, halved = torch.while_loop(
            lambda i, b: i < 5, lambda i, b: (i + 1, torch.softmax(b, -1) + b * 0.5), (torch.tensor(0), chosen)
        )
        return halved, count


class Transforms(nn.Module):
    """FFTs of lines that lie apart, next to each other and each by itself; of both parities, and of a prime."""

    def forward(self, a: X) -> tuple[X, X, X]:
        whole = torch.fft.fft2(a)
        return torch.view_as_real(whole), torch.fft.irfft(whole, 17, dim=0), torch.view_as_real(torch.fft.rfft(a, 131))


class Overwriting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(6))

    def forward(self, a: X) -> X:
        self.seen.add_(a.sum(0))
        a.copy_(a.flip(0))
        return a * self.seen


@dataclass(frozen=True)
class Case:
    make: Callable[[], nn.Module]
    args: Callable[[], tuple[Any, ...]]
    dynamic_shapes: Any = None


def half(module: nn.Module) -> nn.Module:
    return module.to(torch.bfloat16)


CASES: dict[str, Case] = {
    "conv net": Case(ConvNet, lambda: (x(2, 3, 19, 17),)),
    "inverted residual": Case(Inverted, lambda: (x(3, 16, 34, 33),)),
    "transformer block": Case(Block, lambda: (x(2, 13, 24), torch.arange(13)[None] < torch.tensor([[13], [5]]))),
    "bfloat16": Case(
        lambda: half(Block()), lambda: (x(2, 13, 24).bfloat16(), torch.arange(13)[None] < torch.tensor([[9], [13]]))
    ),
    "lookup": Case(Lookup, lambda: (torch.tensor([[0, 3, 10], [7, 1, 2]]), x(2, 11))),
    "coded": Case(
        lambda: Tied(Coded(24, 40, 8, zeros=True), Coded(24, 24, None, bits=8)), lambda: (torch.tensor([[3, 0, 39]]),)
    ),
    "integers": Case(int8_layers.Inverted, lambda: (x(2, 3, 31, 25),)),
    "a pair of integers": Case(
        lambda: int8_layers.Residual(
            int8_layers.layer(40, 72, 3, {"stride": 2, "padding": 1}, 5), int8_layers.layer(24, 72, 1), (1.0, 9)
        ),
        lambda: (x(2, 40, 13, 13), x(2, 24, 7, 7)),
    ),
    "control": Case(Control, lambda: (x(6, 9), torch.tensor([False, True]))),
    "transforms": Case(Transforms, lambda: (x(3, 20, 33),)),
    "overwriting": Case(Overwriting, lambda: (x(5, 6),)),
    "dynamic sizes": Case(
        Block,
        lambda: (x(2, 13, 24), torch.arange(13)[None] < torch.tensor([[13], [5]])),
        {"a": {0: "batch", 1: "length"}, "keep": {0: "batch", 1: "length"}},
    ),
}


def model_of(name: str) -> nn.Module:
    torch.manual_seed(0)
    return CASES[name].make().eval()
