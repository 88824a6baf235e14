"""A decoder's tokens, one after another, through the whole target: few kernels a layer, and numbers that are as near to
float64 as eager's own."""

from __future__ import annotations

import copy
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ingot
from ingot.compiler import run_cpu_pipeline
from ingot.targets.cuda.schedule import streams
from ingot.targets.cuda.target import CUDA
from tests.support.cuda_emulation.target import EMULATED, open_driver
from tests.targets.cuda.streams.test_streamed_groups import Gated, Norm, Rotated

WIDTH, HEADS, KEY_HEADS, DEPTH, LENGTH, WORDS = 32, 4, 2, 8, 6, 44


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = Rotated(WIDTH, HEADS, KEY_HEADS, DEPTH, LENGTH)
        self.out, self.second = nn.Linear(HEADS * DEPTH, WIDTH, bias=False), Gated(WIDTH, 40)

    def forward(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, at: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        q, keys, values = self.first(x, cos, sin, at)
        y = F.scaled_dot_product_attention(q, keys, values / 2, attn_mask=mask, enable_gqa=True)
        return self.second(x + self.out(y.transpose(1, 2).reshape(1, 1, -1)))[0]


class Decoder(nn.Module):
    cos: torch.Tensor
    sin: torch.Tensor

    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.embed, self.norm, self.head = nn.Embedding(WORDS, WIDTH), Norm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        angles = torch.outer(torch.arange(LENGTH), 10.0 ** -torch.linspace(0, 1, DEPTH // 2)).repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, ids: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        mask = (torch.arange(LENGTH) <= at[:, None])[None, None]
        for layer in self.layers:
            x = layer(x, self.cos[at], self.sin[at], at, mask)
        return self.head(self.norm(x))


@pytest.mark.parametrize("capability", ["90", "80"])
def test_tokens(monkeypatch: pytest.MonkeyPatch, capability: str) -> None:
    """On a GPU that has copies that barriers count, and on one that has not."""
    monkeypatch.setattr(streams, "_LEAST_ELEMENTS", 1)
    monkeypatch.setenv("INGOT_CUDA_DRIVER", str(open_driver().path))
    monkeypatch.setenv("INGOT_EMULATED_CC", capability)
    torch.manual_seed(0)
    model = Decoder().bfloat16().eval()
    compiled = ingot.compile(copy.deepcopy(model), (torch.tensor([[3]]), torch.tensor([0])), target=EMULATED)
    exact, eager = copy.deepcopy(model).double(), copy.deepcopy(model)
    for at in range(LENGTH):
        args = (torch.tensor([[at * 7 % WORDS]]), torch.tensor([at]))
        with torch.no_grad():
            expected, theirs = exact(*args), eager(*args)
        error, usual = (float((found.double() - expected).abs().max()) for found in (compiled(*args), theirs))
        assert error <= 1.25 * usual, (at, error, usual)
    compiled.close()


def test_kernels_of_a_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a layer more adds: attention, and its four products in one kernel with the first one of the next layer."""
    monkeypatch.setattr(streams, "_LEAST_ELEMENTS", 1)
    counts = []
    for layers in (1, 2):
        program = run_cpu_pipeline(
            ingot.capture(Decoder(layers).bfloat16().eval(), (torch.tensor([[3]]), torch.tensor([0]))), (), CUDA
        )
        steps = CUDA.schedule(CUDA.lower(program, "float32"), verify=True).steps
        counts.append(Counter(type(step).__name__ for step in steps))
    assert counts[1] - counts[0] == Counter({"StreamedChain": 1, "Attention": 1, "MapGroup": 1})
