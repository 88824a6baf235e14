"""The models whose pages are measured: large, deep, with regions, and quantized."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import ingot
from tests.viewer.models import Deep, Gate

Capture = Callable[[], ingot.Program]


def bert_12() -> ingot.Program:
    from transformers import BertConfig, BertModel

    return ingot.capture(BertModel(BertConfig()).eval(), (torch.randint(0, 1000, (1, 64)),))


def resnet_50() -> ingot.Program:
    from transformers import ResNetConfig, ResNetModel

    return ingot.capture(ResNetModel(ResNetConfig()).eval(), (torch.randn(1, 3, 224, 224),))


def llama_2() -> ingot.Program:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=1000,
    )
    inputs: dict[str, Any] = {"input_ids": torch.randint(0, 1000, (1, 16)), "use_cache": False}
    return ingot.capture(LlamaForCausalLM(config).eval(), (), inputs)


def cond_autocast() -> ingot.Program:
    return ingot.capture(Gate().eval(), (torch.randn(5, 4),), dynamic_shapes={"x": {0: "batch"}})


def quantized() -> ingot.Program:
    layers = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    program = ingot.capture(layers.eval(), (torch.randn(8, 64),))
    prepared = ingot.quantize.prepare(program, ingot.quantize.int8_static())
    ingot.quantize.calibrate(prepared, [torch.randn(8, 64) for _ in range(4)])
    return ingot.quantize.convert(prepared)


def nodes_3000() -> ingot.Program:
    return ingot.capture(Deep(300).eval(), (torch.randn(4, 16),))


# Each with what its view shows besides the stages.
PAGES: dict[str, tuple[Capture, dict[str, bool]]] = {
    "BERT, 12 layers": (bert_12, {"profile": True}),
    "ResNet-50": (resnet_50, {"profile": True}),
    "cond and autocast": (cond_autocast, {"numerics": True, "profile": True}),
    "quantized MLP": (quantized, {"numerics": True, "profile": True}),
    "Llama, 2 layers": (llama_2, {"numerics": True, "profile": True}),
    "3,300 nodes": (nodes_3000, {}),
}
