"""Decoders of one token whose layers become one kernel: layers that are alike, each with caches of its own."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from tests.targets.cuda.streams.test_streamed_groups import Gated, Norm


@dataclass(frozen=True)
class DecoderSizes:
    width: int = 64
    heads: int = 4
    key_heads: int = 2
    depth: int = 64
    length: int = 40
    hidden: int = 48
    layers: int = 3
    # "bias": added to scores; "none": all keys count, also those that no token has written yet.
    masks: str = "bool"


class CachedLayer(nn.Module):
    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self, sizes: DecoderSizes) -> None:
        super().__init__()
        self.sizes, width, depth = sizes, sizes.heads * sizes.depth, sizes.depth
        self.norm, self.second = Norm(sizes.width), Gated(sizes.width, sizes.hidden)
        self.qkv = nn.Linear(sizes.width, width + 2 * sizes.key_heads * depth, bias=False)
        self.out = nn.Linear(width, sizes.width, bias=False)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(1, sizes.key_heads, sizes.length, depth))

    def rotate(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat((-second, first), -1) * sin

    def forward(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, at: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        heads, key_heads = self.sizes.heads, self.sizes.key_heads
        parts = self.qkv(self.norm(x)).view(1, 1, -1, self.sizes.depth).transpose(1, 2)
        q, k, v = parts.split((heads, key_heads, key_heads), 1)
        self.keys.index_copy_(2, at, self.rotate(k, cos, sin))
        self.values.index_copy_(2, at, v)
        q = self.rotate(q, cos, sin)
        y = F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=mask, enable_gqa=True)
        return self.second(x + self.out(y.transpose(1, 2).reshape(1, 1, -1)))[0]


class CachedDecoder(nn.Module):
    cos: torch.Tensor
    sin: torch.Tensor

    def __init__(self, sizes: DecoderSizes, words: int = 44) -> None:
        super().__init__()
        self.sizes = sizes
        self.embed, self.norm = nn.Embedding(words, sizes.width), Norm(sizes.width)
        self.head = nn.Linear(sizes.width, words, bias=False)
        self.layers = nn.ModuleList(CachedLayer(sizes) for _ in range(sizes.layers))
        angles = torch.outer(torch.arange(sizes.length), 10.0 ** -torch.linspace(0, 1, sizes.depth // 2)).repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, ids: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        x, mask = self.embed(ids), None
        if self.sizes.masks != "none":
            mask = (torch.arange(self.sizes.length) <= at[:, None])[None, None]
        if self.sizes.masks == "bias":
            mask = torch.where(mask, torch.arange(self.sizes.length) * -0.01, -torch.inf).to(x.dtype)
        for layer in self.layers:
            x = layer(x, self.cos[at], self.sin[at], at, mask)
        return self.head(self.norm(x))


def draw_sizes(seed: int) -> DecoderSizes:
    choose = random.Random(seed)
    key_heads = choose.choice([1, 1, 2, 3])
    return DecoderSizes(
        choose.choice([24, 40, 64]), key_heads * choose.choice([1, 2, 3, 8]), key_heads, choose.choice([64, 64, 128]),
        choose.choice([1, 7, 65, 300]), choose.choice([8, 40, 48]), choose.choice([2, 3, 4, 5]),
        choose.choice(["none", "bool", "bias"]),
    )  # fmt: skip


def list_calls(sizes: DecoderSizes, count: int = 3) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Tokens one after another, the last one at the end of the caches."""
    places = sorted({0, *range(min(count - 1, sizes.length)), sizes.length - 1})
    return [(torch.tensor([[7 * at % 44]]), torch.tensor([at])) for at in places]
