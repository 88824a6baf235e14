"""The CPU's scheduling passes as text: a small module for each, before and after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ingot.lowering.loop_module import Precision
from ingot.targets.cpu.schedule import strip_mining
from ingot.targets.cpu.schedule.pipeline import SCHEDULE
from tests.support.int8_layers import Layer
from tests.support.pass_texts import print_pass
from tests.support.pipeline_fixtures import lowered

X = torch.Tensor


class Meeting(nn.Module):
    """Two products that meet in a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(32, 64), nn.Linear(48, 64)

    def forward(self, x: X, z: X) -> X:
        return self.a(x) + self.b(z)


class Siblings(nn.Module):
    """Two products of the same rows, the second of which reads the first one's results where it writes its own."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(24, 40), nn.Linear(24, 40)

    def forward(self, x: X) -> X:
        return self.gate(x).sigmoid() * self.up(x)


class Attending(nn.Module):
    def forward(self, q: X, k: X, v: X) -> X:
        return F.scaled_dot_product_attention(q, k, v)


def widen() -> nn.Module:
    return nn.Sequential(nn.Conv2d(8, 32, 1), nn.ReLU6(), nn.Conv2d(32, 32, 3, 1, 1, groups=32), nn.Conv2d(32, 8, 1))


# A model for each pass, on which it has something to do.
MODELS: dict[str, tuple[Callable[[], Any], tuple[X, ...]]] = {
    "partial_sort": (lambda: lambda a: a.topk(3).values * 2, (torch.zeros(4, 30),)),
    "loop_order": (lambda: lambda a, b: (a + b).t().contiguous(), (torch.zeros(49, 64), torch.zeros(49, 64))),
    "strips": (widen, (torch.zeros(1, 8, 12, 12),)),
    "pairs": (Meeting, (torch.zeros(9, 32), torch.zeros(9, 48))),
    "siblings": (Siblings, (torch.zeros(9, 24),)),
    "amx_attention": (Attending, tuple(torch.zeros(1, 2, 50, 8) for _ in range(3))),
    "amx": (lambda: Layer(24, 40, out=None), (torch.zeros(9, 24),)),
}


@pytest.mark.parametrize("name", MODELS)
def test_each_pass(name: str, golden: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strip_mining, "LARGE", 0 if name == "strips" else strip_mining.LARGE)
    make, args = MODELS[name]
    model = make()
    precision: Precision = "bfloat16" if name == "amx_attention" else "float32"
    model = model.eval() if isinstance(model, nn.Module) else model
    module = lowered(model, args, fused=False, precision=precision)[1]
    golden(f"pass {name}", print_pass(module, name))


def test_every_pass_of_the_schedule_has_a_text() -> None:
    """Those of fusion are in tests/scheduling."""
    fusion = {"dead_steps", "epilogue_fusion", "map_fusion", "row_fusion", "loop_collapse"}
    assert {name for name, _ in SCHEDULE} == fusion | set(MODELS)
