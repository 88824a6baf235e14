"""Products that one kernel computes: which ones are joined, what they give, and what the verifier refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ingot.errors import ScheduleError
from ingot.lowering.loop_module import Module
from ingot.targets.cuda.codegen import convolution as _convolution  # registers its writers
from ingot.targets.cuda.schedule.siblings import join_siblings
from ingot.targets.cuda.schedule.statements import SiblingGemms, TiledGemm
from ingot.targets.cuda.schedule.verifier import verify_schedule
from ingot.targets.reference.interpreted_model import InterpretedModel
from tests.support.cuda_emulation.emulated_model import EmulatedModel, PackingTarget
from tests.targets.cuda.test_gemm_epilogues import compare, lower_model, randn

assert _convolution.KERNELS


class Heads(nn.Module):
    """Queries, keys and values, of different widths."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(64, 32), nn.Linear(64, 16), nn.Linear(64, 24, bias=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.q(x), F.gelu(self.k(x)), self.v(x) * 2


class Gate(nn.Module):
    """What a gate lets through, and a product of it."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = (nn.Linear(a, b, bias=False) for a, b in ((64, 48), (64, 48), (48, 64)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return made


class Branches(nn.Module):
    """A block of two branches, both of which end in a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(8, 16, 3, padding=1)
        self.first, self.second = nn.Conv2d(16, 8, 3, 2, 1), nn.Conv2d(8, 24, 1)
        self.aside, self.last = nn.Conv2d(16, 24, 1, 2), nn.Conv2d(24, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.stem(x))
        made: torch.Tensor = self.last(torch.relu(self.second(torch.relu(self.first(x))) + self.aside(x)))
        return made.flatten(1)


def groups_of(module: Module) -> list[SiblingGemms]:
    return [step for step in module.steps if isinstance(step, SiblingGemms)]


CASES = {
    "heads": (Heads, (35, 64), [(3, False)]),
    "heads of one row": (Heads, (1, 64), [(3, False)]),
    "gate": (Gate, (35, 64), [(2, True)]),
    "gate of few rows": (Gate, (3, 64), [(2, True)]),
    "branches": (Branches, (1, 8, 9, 9), [(2, True)]),
}


@pytest.mark.parametrize("name", list(CASES))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_siblings(name: str, dtype: torch.dtype) -> None:
    make, shape, expected = CASES[name]
    torch.manual_seed(0)
    model, args = make().to(dtype).eval(), (randn(*shape, dtype=dtype),)
    program, module = lower_model(model, args)
    assert [(len(group.steps), group.in_turn) for group in groups_of(module)] == expected, str(module)
    compare(model, args, EmulatedModel(program, module))
    compare(model, args, InterpretedModel(PackingTarget(), program, module))
    again = join_siblings(module)
    assert again.steps == module.steps


def test_refused_groups() -> None:
    _, module = lower_model(Gate().to(torch.bfloat16).eval(), (randn(35, 64),))
    (group,) = groups_of(module)
    place = module.steps.index(group)

    def change(changed: SiblingGemms) -> Module:
        return replace(module, steps=(*module.steps[:place], changed, *module.steps[place + 1 :]))

    first, second = group.steps
    assert isinstance(first, TiledGemm)
    for changed, why in (
        (replace(group, in_turn=False), "uses what another one writes"),
        (replace(group, steps=(first,)), "two or more"),
        (replace(group, steps=(replace(first, split_k=2), second)), "all terms"),
        (replace(group, steps=(replace(first, tile=replace(first.tile, rows=128)), second)), "different tiles"),
    ):
        with pytest.raises(ScheduleError, match=why):
            verify_schedule(change(changed), "siblings", full=False)


def test_printed_group() -> None:
    _, module = lower_model(Heads().to(torch.bfloat16).eval(), (randn(35, 64),))
    text = str(module)
    assert "sibling_gemms" in text and text.count("tiled_gemm m=35") == 3
