"""Random networks with weights of 4 and 8 bits, with the integers packed and not, with gates in their kernels
and not: as near to float64 as eager is."""

from __future__ import annotations

import copy
import random
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ingot.targets.cuda.schedule.quantized.gates import GatedCodes
from tests.support.cuda_emulation.emulated_model import build_models
from tests.targets.cuda.quantized.test_coded_products import RoundedCoded, find_coded, lower_model

SEEDS = 24
SWITCHES = ((), ("packed_codes",), ("coded_gates",))


class RandomLayer(RoundedCoded):
    """A layer that can be asked for its exact weight."""

    is_exact = False

    def weight(self) -> torch.Tensor:
        if not self.is_exact:
            return super().weight()
        each = self.codes.shape[1] // self.scales.reshape(self.codes.shape[0], -1).shape[1]
        scales, zeros = (
            one.double().reshape(self.codes.shape[0], -1).repeat_interleave(each, 1)
            for one in (self.scales, self.zeros)
        )
        return (self.codes.double() - zeros) * scales


class RandomCodedModel(nn.Module):
    """Layers one after another, with norms, gates, residuals and second uses of a weight between them."""

    def __init__(self, draw: random.Random, number: torch.dtype) -> None:
        super().__init__()
        self.width = draw.choice([24, 37, 64, 96, 128, 210])
        self.layers, self.norms, self.kinds = nn.ModuleList(), nn.ModuleList(), []
        for _ in range(draw.randint(1, 3)):
            kind = draw.choice(["plain", "gate", "twice"])
            columns = 2 * self.width if kind == "gate" else self.width
            self.layers.append(self._make_layer(draw, columns, number))
            self.norms.append(nn.LayerNorm(self.width).to(number))
            self.kinds.append(kind)
        self.head = self._make_layer(draw, draw.choice([7, 16, 33]), number)

    def _make_layer(self, draw: random.Random, columns: int, number: torch.dtype) -> RandomLayer:
        divisors = [size for size in range(2, self.width + 1) if self.width % size == 0]
        signed = draw.random() < 0.6
        return RandomLayer(
            self.width, columns, draw.choice([None, *divisors]), bits=draw.choice([4, 4, 8]), zeros=draw.random() < 0.4,
            dtype=torch.int8 if signed else torch.uint8, bias=draw.random() < 0.5, number=number,
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for layer, norm, kind in zip(self.layers, self.norms, self.kinds, strict=True):
            y = layer(norm(x))
            if kind == "gate":
                gate, up = y.chunk(2, -1)
                y = F.silu(gate) * up
            elif kind == "twice":
                y = layer(torch.tanh(y))
            x = x + y
        return self.head(x), x


def make_case(seed: int) -> tuple[nn.Module, torch.Tensor]:
    draw = random.Random(seed)
    torch.manual_seed(seed)
    number = draw.choice([torch.bfloat16, torch.bfloat16, torch.float32, torch.float16])
    model = RandomCodedModel(draw, number).requires_grad_(False).eval()
    return model, torch.randn(draw.choice([1, 1, 2, 5, 8, 9, 17, 40]), model.width).to(number)


def in_double(model: nn.Module) -> Any:
    exact = copy.deepcopy(model)
    for layer in exact.modules():
        if isinstance(layer, RandomLayer):
            layer.is_exact = True
    return exact.double()


def test_random_models() -> None:
    cases = [make_case(seed) for seed in range(SEEDS)]
    lowered = [lower_model(model, (x,), off) for model, x in cases for off in SWITCHES]
    found = [len(find_coded(module.steps)) for _, module in lowered]
    gates = [any(isinstance(step, GatedCodes) for step in module.steps) for _, module in lowered]
    assert sum(count > 0 for count in found[::3]) >= SEEDS // 2 and not any(found[1::3])
    assert sum(gates[::3]) >= 2 and not any(gates[2::3])
    runs = build_models(lowered)
    for number, (model, x) in enumerate(cases):
        with torch.no_grad():
            exact, eager = in_double(model)(x.double()), model(x)
            for run in runs[3 * number : 3 * number + 3]:
                for mine, theirs, expected in zip(run(x), eager, exact, strict=True):
                    error, usual = (float((one.double() - expected).abs().max()) for one in (mine, theirs))
                    rest = (2e-6 if x.dtype is torch.float32 else 1e-3) * float(expected.abs().max())
                    assert error <= 3 * usual + rest, (number, model.kinds, x.dtype, error, usual)
