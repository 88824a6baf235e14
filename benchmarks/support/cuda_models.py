"""The models of benchmarks/cuda.py: BERT-base, ResNet-50, a Llama with 0.84 billion parameters, and attention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import ingot

WIDTH, LAYERS, HEADS, KEY_HEADS, HIDDEN, VOCABULARY = 2048, 16, 32, 8, 5632, 32000
DEPTH = WIDTH // HEADS


class RmsNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


class LlamaBlock(nn.Module):
    """One layer. With a cache, keys and values are written to it in place, at the positions of the tokens."""

    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self, cache: int) -> None:
        super().__init__()
        self.before, self.behind = RmsNorm(WIDTH), RmsNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, (HEADS + 2 * KEY_HEADS) * DEPTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 2 * HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)
        self.cache = cache
        if cache:
            self.register_buffer("keys", torch.zeros(1, KEY_HEADS, cache, DEPTH))
            self.register_buffer("values", torch.zeros(1, KEY_HEADS, cache, DEPTH))

    def forward(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, at: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        batch, length, _ = x.shape
        parts = self.qkv(self.before(x)).view(batch, length, -1, DEPTH).transpose(1, 2)
        q, k, v = parts.split((HEADS, KEY_HEADS, KEY_HEADS), 1)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if self.cache:
            self.keys.index_copy_(2, at, k)
            self.values.index_copy_(2, at, v)
            k, v = self.keys, self.values
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, WIDTH))
        gate, up = self.up(self.behind(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Llama(nn.Module):
    """`cache`: how many tokens its caches hold; 0 for none. Gives the logits of the last token."""

    cos: torch.Tensor
    sin: torch.Tensor

    def __init__(self, cache: int = 0) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(LlamaBlock(cache) for _ in range(LAYERS))
        self.norm = RmsNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.cache = cache
        frequencies = 10000.0 ** (-torch.arange(0, DEPTH, 2) / DEPTH)
        angles = torch.outer(torch.arange(max(cache, 1024)), frequencies).repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, ids: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        cos, sin = self.cos[at], self.sin[at]
        mask = (torch.arange(self.cache, device=ids.device) <= at[:, None])[None, None] if self.cache else None
        for block in self.blocks:
            x = block(x, cos, sin, at, mask)
        return self.head(self.norm(x[:, -1:]))


class Bert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        import transformers

        self.model = transformers.BertModel(transformers.BertConfig())

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=ids).last_hidden_state


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        import transformers

        self.model = transformers.ResNetForImageClassification(transformers.ResNetConfig(num_labels=1000))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(pixel_values=x).logits


def alibi(score: torch.Tensor, b: Any, h: Any, i: Any, j: Any) -> torch.Tensor:
    return score + (j - i) * torch.exp2(-(h + 1) * 0.5)


def identity(score: torch.Tensor, b: Any, h: Any, i: Any, j: Any) -> torch.Tensor:
    return score


class FlexAttention(nn.Module):
    def __init__(self, score_mod: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.score_mod = score_mod

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        from torch.nn.attention.flex_attention import flex_attention

        return flex_attention(q, k, v, score_mod=self.score_mod)


@dataclass(frozen=True)
class Row:
    """One row of the table. `flops` is what the GPU must compute at least; `peers` are functions that compute the same,
    or less, and take the place of eager."""

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[], tuple[torch.Tensor, ...]]
    flops: float
    peers: tuple[tuple[str, Callable[..., Any]], ...] = ()


def _ids(batch: int, length: int) -> Callable[[], tuple[torch.Tensor, ...]]:
    return lambda: (torch.randint(0, 30000, (batch, length)),)


def _images(batch: int) -> Callable[[], tuple[torch.Tensor, ...]]:
    return lambda: (torch.randn(batch, 3, 224, 224, dtype=torch.bfloat16),)


def _tokens(length: int, at: int) -> Callable[[], tuple[torch.Tensor, ...]]:
    return lambda: (torch.randint(0, VOCABULARY, (1, length)), torch.arange(at, at + length))


def _heads(length: int) -> Callable[[], tuple[torch.Tensor, ...]]:
    return lambda: tuple(torch.randn(2, 16, length, 64, dtype=torch.bfloat16) for _ in range(3))


def _llama_flops(length: int, keys: int) -> float:
    layer = WIDTH * (HEADS + 2 * KEY_HEADS) * DEPTH + WIDTH * WIDTH + 3 * WIDTH * HIDDEN
    return 2.0 * (length * LAYERS * layer + WIDTH * VOCABULARY) + 4.0 * LAYERS * HEADS * DEPTH * length * keys


def _bert_flops(batch: int, length: int) -> float:
    return batch * 12 * (2.0 * length * (4 * 768 * 768 + 2 * 768 * 3072) + 4.0 * length * length * 768)


ROWS = (
    Row("BERT-base b1 s128", Bert, _ids(1, 128), _bert_flops(1, 128)),
    Row("BERT-base b8 s512", Bert, _ids(8, 512), _bert_flops(8, 512)),
    Row("ResNet-50 b4", ResNet, _images(4), 4 * 8.2e9),
    Row("ResNet-50 b32", ResNet, _images(32), 32 * 8.2e9),
    Row("Llama 0.84B, one token", lambda: Llama(1024), _tokens(1, 700), _llama_flops(1, 1024)),
    Row("Llama 0.84B, prefill 512", Llama, _tokens(512, 0), _llama_flops(512, 256)),
    *(
        Row(
            f"{name} attention, S = {length}",
            partial(FlexAttention, function),
            _heads(length),
            4.0 * 2 * 16 * length * length * 64,
            (("SDPA", F.scaled_dot_product_attention),),
        )
        for name, function in (("ALiBi", alibi), ("Plain", identity))
        for length in (1024, 4096, 16384)
    ),
)


@dataclass(frozen=True)
class QuantizedRow:
    """A model, and the recipe by which its weights become integers."""

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[], tuple[torch.Tensor, ...]]
    recipe: Callable[[], ingot.quantize.Recipe]


QUANTIZED_ROWS = tuple(
    QuantizedRow(f"Llama 0.84B, one token, {name}", lambda: Llama(1024), _tokens(1, 700), recipe)
    for name, recipe in (
        ("int8", lambda: ingot.quantize.int8_weight_only(kinds=("linear",))),
        ("int4 by 128", lambda: ingot.quantize.int4_weight_only(group_size=128)),
        ("int4 by 32", lambda: ingot.quantize.int4_weight_only(group_size=32)),
    )
)
