"""The models of benchmarks/training.py: small enough for a batch of 16 on two cores, each of a kind of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import transformers
from torch import nn
from torch.nn import functional

PIXELS, CLASSES, LENGTH, WORDS = 112, 100, 128, 8000
Batch = tuple[torch.Tensor, ...]


@dataclass(frozen=True, slots=True)
class TrainingSubject:
    """A model by name, which returns its loss, and its arguments for a batch."""

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[int], Batch]


class ImageLoss(nn.Module):
    """A classifier of pictures, with the loss of its labels."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, pictures: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(self.body(pictures).logits, labels)


class LanguageLoss(nn.Module):
    """A language model, with the loss of the next word."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.body(input_ids=ids, labels=ids, use_cache=False).loss
        return loss


class TranslationLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = transformers.T5ForConditionalGeneration(
            transformers.T5Config(vocab_size=WORDS, d_model=384, d_ff=1024, num_layers=4, num_heads=6)
        )

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.body(input_ids=ids, labels=labels, use_cache=False).loss
        return loss


class RecurrentLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.letters = nn.Embedding(128, 256)
        self.layers = nn.LSTM(256, 384, num_layers=2, batch_first=True)
        self.head = nn.Linear(384, 128)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        made, _ = self.layers(self.letters(ids[:, :-1]))
        return functional.cross_entropy(self.head(made).flatten(0, 1), ids[:, 1:].flatten())


class Stage(nn.Sequential):
    def __init__(self, inside: int, outside: int) -> None:
        layers: list[nn.Module] = []
        for width in (inside, outside):
            layers += [nn.Conv2d(width, outside, 3, padding=1, bias=False), nn.BatchNorm2d(outside), nn.ReLU()]
        super().__init__(*layers)


class UNetLoss(nn.Module):
    """Pictures to pictures: half the size and back again, with connections across."""

    def __init__(self, widths: tuple[int, ...] = (24, 48, 96, 192)) -> None:
        super().__init__()
        self.down = nn.ModuleList(map(Stage, (3, *widths), widths))
        wide = widths[::-1]
        self.grow = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, 2) for a, b in pairwise(wide))
        self.up = nn.ModuleList(Stage(2 * b, b) for b in wide[1:])
        self.head = nn.Conv2d(widths[0], 3, 1)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        kept = []
        for number, stage in enumerate(self.down):
            x = stage(functional.max_pool2d(x, 2) if number else x)
            kept.append(x)
        for grow, stage, side in zip(self.grow, self.up, kept[-2::-1], strict=True):
            x = stage(torch.cat([side, grow(x)], 1))
        return functional.mse_loss(self.head(x), target)


def _gpt2() -> nn.Module:
    config = transformers.GPT2Config(vocab_size=WORDS, n_embd=384, n_layer=6, n_head=6, n_positions=LENGTH)
    return LanguageLoss(transformers.GPT2LMHeadModel(config))


def _llama() -> nn.Module:
    shape = {"hidden_size": 384, "intermediate_size": 1024, "num_hidden_layers": 6, "num_attention_heads": 6}
    return LanguageLoss(transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=WORDS, **shape)))


def _resnet() -> nn.Module:
    config = transformers.ResNetConfig(
        depths=[2, 2, 2, 2], hidden_sizes=[64, 128, 256, 512], layer_type="basic", num_labels=CLASSES
    )
    return ImageLoss(transformers.ResNetForImageClassification(config))


def _convnext() -> nn.Module:
    config = transformers.ConvNextConfig(
        depths=[2, 2, 6, 2], hidden_sizes=[64, 128, 256, 512], num_labels=CLASSES, drop_path_rate=0.0
    )
    return ImageLoss(transformers.ConvNextForImageClassification(config))


def _vit() -> nn.Module:
    shape: dict[str, Any] = {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 6}
    config = transformers.ViTConfig(image_size=PIXELS, num_attention_heads=6, num_labels=CLASSES, **shape)
    return ImageLoss(transformers.ViTForImageClassification(config))


def _pictures(count: int) -> Batch:
    return torch.randn(count, 3, PIXELS, PIXELS), torch.randint(0, CLASSES, (count,))


def _words(count: int, length: int = LENGTH, words: int = WORDS) -> torch.Tensor:
    return torch.randint(0, words, (count, length))


def _images(count: int) -> Batch:
    return torch.randn(count, 3, 96, 96), torch.randn(count, 3, 96, 96)


SUBJECTS = (
    TrainingSubject("resnet-18", _resnet, _pictures),
    TrainingSubject("convnext", _convnext, _pictures),
    TrainingSubject("vit", _vit, _pictures),
    TrainingSubject("gpt2", _gpt2, lambda n: (_words(n),)),
    TrainingSubject("llama", _llama, lambda n: (_words(n),)),
    TrainingSubject("t5", TranslationLoss, lambda n: (_words(n, 64), _words(n, 64))),
    TrainingSubject("lstm", RecurrentLoss, lambda n: (_words(n, 33, 128),)),
    TrainingSubject("u-net", UNetLoss, _images),
)
