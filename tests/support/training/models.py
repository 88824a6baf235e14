"""Twelve small models that train, each of a kind of its own: a module that returns its loss, and batches for it.

    entry = MODELS["gpt2"]
    model, batch = entry.model(), entry.batch(entry.sizes[0], step=3)
    loss = model(*batch)

The second of the two sizes is another length, batch or picture. A task can be learned, so that the loss falls.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

X = torch.Tensor
Batch = tuple[X, ...]


@dataclass(frozen=True)
class Entry:
    """`batch(size, draws)` draws a batch; `rate` is the learning rate."""

    name: str
    model: Callable[[], nn.Module]
    batch: Callable[[int, torch.Generator], Batch]
    sizes: tuple[int, int]
    rate: float = 0.05


class Classifier(nn.Module):
    """A model with the loss of its labels; transformers' models give their logits in a record."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: X, labels: X) -> X:
        made: Any = self.body(x)
        logits = made if isinstance(made, X) else made.logits
        return functional.cross_entropy(logits, labels)


class Language(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, ids: X) -> X:
        loss: X = self.body(input_ids=ids, labels=ids, use_cache=False).loss
        return loss


class EncoderDecoder(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, ids: X, labels: X) -> X:
        loss: X = self.body(input_ids=ids, labels=labels, use_cache=False).loss
        return loss


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layers, self.head = nn.Embedding(8, 12), nn.LSTM(12, 16, 2, batch_first=True), nn.Linear(16, 8)

    def forward(self, ids: X) -> X:
        made, _ = self.layers(self.embed(ids[:, :-1]))
        return functional.cross_entropy(self.head(made).flatten(0, 1), ids[:, 1:].flatten())


class Block(nn.Module):
    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inner, outer, 3, padding=1)
        self.norm, self.second = nn.GroupNorm(2, outer), nn.Conv2d(outer, outer, 3, padding=1)

    def forward(self, x: X) -> X:
        return functional.silu(self.second(functional.silu(self.norm(self.first(x)))))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.lower, self.bottom = Block(1, 4), Block(4, 8), Block(8, 8)
        self.up, self.outer = nn.ConvTranspose2d(8, 4, 2, stride=2), Block(8, 4)
        self.last = nn.Conv2d(4, 1, 1)

    def forward(self, x: X, wanted: X) -> X:
        first = self.inner(x)
        low = self.lower(functional.max_pool2d(first, 2))
        low = functional.interpolate(self.bottom(functional.avg_pool2d(low, 2)), scale_factor=2.0) + low
        made = self.last(self.outer(torch.cat([first, self.up(low)], 1)))
        return functional.mse_loss(made, wanted)


class GraphConvolution(nn.Module):
    """Sums over the edges of a graph: gathers, and adds up by index."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 16), nn.Linear(16, 3)

    def spread(self, x: X, edges: X) -> X:
        count = torch.zeros(x.shape[0], dtype=x.dtype).index_add(0, edges[1], torch.ones(edges.shape[1], dtype=x.dtype))
        total = torch.zeros_like(x).index_add(0, edges[1], x[edges[0]])
        return x + total / count.clamp(min=1)[:, None]

    def forward(self, x: X, edges: X, labels: X) -> X:
        made = functional.relu(self.first(self.spread(x, edges)))
        return functional.cross_entropy(self.second(self.spread(made, edges)), labels)


class Variational(nn.Module):
    """An autoencoder whose noise is an argument."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.mean, self.spread = nn.Linear(12, 16), nn.Linear(16, 3), nn.Linear(16, 3)
        self.decode = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 12))

    def forward(self, x: X, noise: X) -> X:
        inner = torch.tanh(self.encode(x))
        mean, spread = self.mean(inner), self.spread(inner)
        made = self.decode(mean + noise * (0.5 * spread).exp())
        divergence = -0.5 * (1 + spread - mean.square() - spread.exp()).sum(1).mean()
        return functional.mse_loss(made, x) + 0.05 * divergence


class StraightThrough(torch.autograd.Function):
    """Rounds, and hands the gradient on where the value is in range."""

    @staticmethod
    def forward(ctx: Any, x: X, limit: float) -> X:
        ctx.save_for_backward(x)
        ctx.limit = limit
        return (x.clamp(-limit, limit) * 8).round() / 8

    @staticmethod
    def backward(ctx: Any, grad: X) -> tuple[X, None]:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return grad * (x.abs() <= ctx.limit), None


class Quantized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 16), nn.Linear(16, 3)

    def forward(self, x: X, labels: X) -> X:
        inner = torch.tanh(functional.linear(x, StraightThrough.apply(self.first.weight, 1.0), self.first.bias))
        return functional.cross_entropy(self.second(inner), labels)


# ---------------------------------------------------------------------- transformers' models


def _gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=16, n_positions=32)
    for rate in ("attn_pdrop", "embd_pdrop", "resid_pdrop"):
        setattr(config, rate, 0.0)
    return Language(GPT2LMHeadModel(config))


def _llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        num_hidden_layers=2, hidden_size=16, intermediate_size=24, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=16, max_position_embeddings=32,
    )  # fmt: skip
    return Language(LlamaForCausalLM(config))


def _t5() -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        num_layers=1, num_decoder_layers=1, d_model=16, d_kv=8, d_ff=24, num_heads=2, vocab_size=16, dropout_rate=0.0,
        decoder_start_token_id=0, pad_token_id=0,
    )  # fmt: skip
    return EncoderDecoder(T5ForConditionalGeneration(config))


def _vit() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        num_hidden_layers=2, hidden_size=16, intermediate_size=24, num_attention_heads=2, image_size=16, patch_size=4,
        num_labels=3, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return Classifier(ViTForImageClassification(config))


def _resnet() -> nn.Module:
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=3)
    return Classifier(ResNetForImageClassification(config))


def _convnext() -> nn.Module:
    from transformers import ConvNextConfig, ConvNextForImageClassification

    config = ConvNextConfig(
        hidden_sizes=[8, 16], depths=[1, 1], num_stages=2, patch_size=2, num_labels=3, image_size=16
    )
    return Classifier(ConvNextForImageClassification(config))


def _mlp() -> nn.Module:
    return Classifier(nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3)))


# ---------------------------------------------------------------------- batches


def _rows(size: int, draws: torch.Generator) -> Batch:
    x = torch.randn(size, 6, generator=draws)
    return x, x[:, :3].argmax(1)


def _pictures(size: int, draws: torch.Generator) -> Batch:
    labels = torch.randint(0, 3, (size,), generator=draws)
    x = torch.randn(size, 3, 16, 16, generator=draws)
    return x + 2 * functional.one_hot(labels, 3)[:, :, None, None], labels


def _words(size: int, draws: torch.Generator, count: int = 16) -> Batch:
    starts = torch.randint(0, count - 1, (4, 1), generator=draws)
    return (1 + (starts + torch.arange(size)) % (count - 1),)


def _letters(size: int, draws: torch.Generator) -> Batch:
    return _words(size, draws, 8)


def _pairs(size: int, draws: torch.Generator) -> Batch:
    (ids,) = _words(size, draws)
    return ids, ids.flip(1).contiguous()


def _images(size: int, draws: torch.Generator) -> Batch:
    x = torch.randn(2, 1, size, size, generator=draws)
    return x, functional.avg_pool2d(x, 3, 1, 1)


def _graph(size: int, draws: torch.Generator) -> Batch:
    """Edges lie between nodes of the same label, of which there are three."""
    labels = torch.arange(size) % 3
    x = torch.randn(size, 6, generator=draws) + functional.one_hot(labels, 6)
    starts = torch.randint(0, size, (3 * size,), generator=draws)
    ends = (starts + 3 * torch.randint(1, size // 3, (3 * size,), generator=draws)) % size
    return x, torch.stack([starts, ends]), labels


def _codes(size: int, draws: torch.Generator) -> Batch:
    basis = torch.linspace(-1, 1, 36).view(3, 12)
    return torch.randn(size, 3, generator=draws) @ basis, torch.randn(size, 3, generator=draws)


MODELS = {
    entry.name: entry
    for entry in (
        Entry("mlp with batch norm", _mlp, _rows, (16, 9)),
        Entry("resnet", _resnet, _pictures, (4, 3), 0.02),
        Entry("convnext", _convnext, _pictures, (4, 3), 0.02),
        Entry("lstm", Recurrent, _letters, (7, 5), 0.2),
        Entry("gpt2", _gpt2, _words, (8, 6), 0.02),
        Entry("llama", _llama, _words, (8, 6), 0.02),
        Entry("vit", _vit, _pictures, (4, 3), 0.02),
        Entry("t5", _t5, _pairs, (6, 5), 0.005),
        Entry("u-net", UNet, _images, (8, 12), 0.02),
        Entry("gcn", GraphConvolution, _graph, (12, 9), 0.01),
        Entry("vae", Variational, _codes, (16, 9)),
        Entry("autograd function", Quantized, _rows, (16, 9)),
    )
}
