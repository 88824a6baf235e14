"""The work of compiling grows with the number of layers, not with its square: counted in lines, never timed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn

import ingot
from ingot.compiler import run_cpu_pipeline
from ingot.ir.program import Program
from ingot.scheduling.buffer_planning import plan
from ingot.targets.cpu.codegen.module_emitter import emit
from ingot.targets.cpu.target import CPU

FEW, MANY = 15, 60
OURS = str(Path(ingot.__file__).parent)


class Block(nn.Module):
    """A convolution, its batch norm, and what came in."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.convolution(x)) + x)


class Skips(nn.Module):
    """Every layer of the first half is read again by one of the second, the last one first."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.down = nn.ModuleList(nn.Linear(16, 16) for _ in range(layers // 2))
        self.up = nn.ModuleList(nn.Linear(16, 16) for _ in range(layers // 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for layer in self.down:
            x = torch.relu(layer(x))
            kept.append(x)
        for layer in self.up:
            x = torch.tanh(layer(x)) * kept.pop()
        return x


MODELS: dict[str, tuple[Callable[[int], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda n: nn.Sequential(*(m for _ in range(n) for m in (nn.Linear(16, 16), nn.ReLU()))), (4, 16)),
    "convolution": (lambda n: nn.Sequential(*(Block() for _ in range(n))), (1, 16, 8, 8)),
    "pool": (lambda n: nn.Sequential(*(nn.AvgPool1d(3, 1, 1) for _ in range(n))), (2, 3, 40)),
    "skips": (Skips, (4, 16)),
}


def work(act: Callable[[], Any]) -> int:
    """How many lines of Ingot's own code were run, each turn of a loop or a generator anew."""
    count = 0

    def line(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += 1
        return line

    def call(frame: FrameType, event: str, argument: Any) -> Any:
        return line if frame.f_code.co_filename.startswith(OURS) else None

    before = sys.gettrace()
    sys.settrace(call)
    try:
        act()
    finally:
        sys.settrace(before)
    return count


def lowered(program: Program, precision: Any) -> None:
    module = CPU.schedule(CPU.lower(program, precision))
    emit(module, plan(module))


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", MODELS)
def test_lowering_is_linear(name: str, dynamic: bool) -> None:
    make, shape = MODELS[name]
    shapes = ({0: "n"},) if dynamic else None
    found = []
    for layers in (FEW, FEW, MANY):  # the first one imports and fills tables
        model = make(layers).eval()
        program = run_cpu_pipeline(ingot.capture(model, (torch.randn(shape),), dynamic_shapes=shapes))
        found.append(work(lambda program=program: lowered(program, "float32")) / layers)  # type: ignore[misc]
    assert found[2] <= 1.1 * found[1]


def test_lowering_in_bfloat16_is_linear() -> None:
    found = []
    for layers in (FEW, FEW, MANY):
        program = run_cpu_pipeline(ingot.capture(MODELS["linear"][0](layers).eval(), (torch.randn(4, 16),)))
        found.append(work(lambda program=program: lowered(program, "bfloat16")) / layers)  # type: ignore[misc]
    assert found[2] <= 1.1 * found[1]


@pytest.mark.parametrize("name", MODELS)
def test_passes_are_linear(name: str) -> None:
    make, shape = MODELS[name]
    found = []
    for layers in (FEW, FEW, MANY):
        program = ingot.capture(make(layers).eval(), (torch.randn(shape),))
        found.append(work(lambda program=program: run_cpu_pipeline(program)) / layers)  # type: ignore[misc]
    assert found[2] <= 1.15 * found[1]


def test_the_run_of_a_long_model_is_not_optimized_by_what_its_pointers_may_be() -> None:
    compiled = ingot.compile(nn.Linear(4, 4), (torch.randn(1, 4),))
    assert "IG_CALLS static void ig_model_run(" in compiled.source
