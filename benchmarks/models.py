"""The models that speed is measured on, from transformers' configs with random weights, and the machine's limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import nn

THREADS = 2


class Plain(nn.Module):
    """A model whose result is a tuple of tensors, which every exporter understands."""

    def __init__(self, model: nn.Module, **fixed: Any) -> None:
        super().__init__()
        self.model, self.fixed = model, fixed

    def forward(self, *args: torch.Tensor) -> Any:
        result = self.model(*args, **self.fixed)
        return result[0]


class Decoder(nn.Module):
    """One token of a Llama against `past` cached ones."""

    def __init__(self, model: nn.Module, layers: int) -> None:
        super().__init__()
        self.model, self.layers = model, layers

    def forward(self, token: torch.Tensor, *cache: torch.Tensor) -> Any:
        pairs = [(cache[2 * n], cache[2 * n + 1]) for n in range(self.layers)]
        past = transformers.DynamicCache(pairs)
        result = self.model(input_ids=token, past_key_values=past, use_cache=True)
        return result.logits


@dataclass(frozen=True, slots=True)
class Subject:
    """A model by name: how to build it, and its inputs for a batch."""

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[int], tuple[torch.Tensor, ...]]


def _ids(size: int, length: int) -> torch.Tensor:
    return torch.randint(0, 1000, (size, length))


def _image(size: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(size, 3, 224, 224),)


LLAMA = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 12, "num_attention_heads": 16,
         "num_key_value_heads": 16, "vocab_size": 32000}  # fmt: skip


def _llama() -> nn.Module:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA))


def _t5() -> nn.Module:
    class T5(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = transformers.T5Model(transformers.T5Config(vocab_size=32128))

        def forward(self, ids: torch.Tensor, decoder_ids: torch.Tensor) -> Any:
            return self.model(input_ids=ids, decoder_input_ids=decoder_ids, use_cache=False)[0]

    return T5()


def _whisper() -> nn.Module:
    return Plain(transformers.WhisperModel(transformers.WhisperConfig()).encoder)


SUBJECTS = (
    Subject("resnet-50", lambda: Plain(transformers.ResNetModel(transformers.ResNetConfig())), _image),
    Subject("mobilenet-v2", lambda: Plain(transformers.MobileNetV2Model(transformers.MobileNetV2Config())), _image),
    Subject("convnext-t", lambda: Plain(transformers.ConvNextModel(transformers.ConvNextConfig())), _image),
    Subject("vit-b16", lambda: Plain(transformers.ViTModel(transformers.ViTConfig())), _image),
    Subject("bert-base", lambda: Plain(transformers.BertModel(transformers.BertConfig())), lambda n: (_ids(n, 128),)),
    Subject(
        "gpt2",
        lambda: Plain(transformers.GPT2LMHeadModel(transformers.GPT2Config()), use_cache=False),
        lambda n: (_ids(n, 128),),
    ),
    Subject("t5-small", _t5, lambda n: (_ids(n, 64), _ids(n, 64))),
    Subject("llama-200m", lambda: Plain(_llama(), use_cache=False), lambda n: (_ids(n, 128),)),
    Subject(
        "llama-200m-decode",
        lambda: Decoder(_llama(), 12),
        lambda n: (_ids(n, 1), *(torch.randn(n, 16, 128, 64) for _ in range(24))),
    ),
    Subject("whisper-tiny-encoder", _whisper, lambda n: (torch.randn(n, 80, 3000),)),
)


# ---------------------------------------------------------------------- the machine's limits


def gflop(model: nn.Module, inputs: tuple[torch.Tensor, ...]) -> float:
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    # The counter knows the two products that attention is made of, and not every operator that does both.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(*inputs)
    return counter.get_total_flops() / 1e9
