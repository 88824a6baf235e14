"""Products whose halves meet: the loop IR as text, numbers on the interpreter, and kernels in emulation."""

from __future__ import annotations

import collections
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ingot
from ingot.targets.cuda.codegen import writer_modules as _writers
from ingot.targets.cuda.schedule.statements import SiblingGemms
from ingot.targets.cuda.target import CUDA
from tests.targets.cuda import schedule_sweep
from tests.targets.cuda.test_schedule import check_calls, lower, print_pass

assert _writers


class Gated(nn.Module):
    """`join` takes the product's columns."""

    def __init__(self, width: int, columns: int, join: Callable[[torch.Tensor], torch.Tensor], bias: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(width, columns, bias=bias)
        self.join = join

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.join(self.layer(x))


def gate(y: torch.Tensor) -> torch.Tensor:
    first, second = y.chunk(2, -1)
    return F.silu(first) * second


JOINS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], bool]] = {
    "silu of the first": (gate, True),
    "glu": (lambda y: F.glu(y, -1), True),
    "second minus first": (lambda y: y[..., y.shape[-1] // 2 :] - y[..., : y.shape[-1] // 2] * 2, True),
    "both twice": (lambda y: (y.chunk(2, -1)[0] + y.chunk(2, -1)[1]) / (y.chunk(2, -1)[1].abs() + 1), True),
    "first half only": (lambda y: torch.relu(y[..., : y.shape[-1] // 2]), False),
    "halves apart by one": (
        lambda y: y[..., : y.shape[-1] // 2] * torch.roll(y, -1, -1)[..., : y.shape[-1] // 2],
        False,
    ),
    "every other column": (lambda y: y[..., ::2] * y[..., 1::2], False),
    "rows reversed": (lambda y: y.chunk(2, -1)[0].flip(0) * y.chunk(2, -1)[1], True),
    "columns reversed": (lambda y: y.chunk(2, -1)[0].flip(-1) * y.chunk(2, -1)[1], False),
}


@pytest.mark.parametrize("name", JOINS)
@pytest.mark.parametrize("bias", [False, True])
def test_what_is_split(name: str, bias: bool) -> None:
    torch.manual_seed(0)
    join, is_split = JOINS[name]
    changed: collections.Counter[str] = collections.Counter()
    for shape in ((4, 24), (2, 3, 24), (1, 24)):
        schedule_sweep.check_program(ingot.capture(Gated(24, 32, join, bias), (torch.randn(shape),)), changed)
    # Of one row, the reversed rows are the rows.
    assert changed["gated_products"] == (3 if is_split else 0) or name == "rows reversed"


def test_sizes_that_are_dynamic() -> None:
    torch.manual_seed(0)
    changed: collections.Counter[str] = collections.Counter()
    rows = torch.export.Dim("rows", min=1, max=40)
    program = ingot.capture(Gated(24, 32, gate, True), (torch.randn(5, 24),), dynamic_shapes=({0: rows},))
    schedule_sweep.check_program(program, changed)
    assert changed["gated_products"] == 1


def test_a_result_that_another_step_reads_is_not_split() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(24, 32)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y = self.layer(x)
            return gate(y), y.sum(0)

    changed: collections.Counter[str] = collections.Counter()
    schedule_sweep.check_program(ingot.capture(Both(), (torch.randn(4, 24),)), changed)
    assert changed["gated_products"] == 0


@pytest.mark.parametrize(("rows", "dtype"), [(1, torch.bfloat16), (1, torch.float32), (40, torch.bfloat16)])
def test_halves_are_one_kernel(rows: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = Gated(64, 96, gate, True).to(dtype)
    scheduled = check_calls(model, [(torch.randn(rows, 64).to(dtype),)], 2e-2 if dtype == torch.bfloat16 else 1e-5)
    assert [type(step) for step in scheduled.steps] == [SiblingGemms]
    assert len(CUDA.emit(scheduled).launches) == 1


def test_a_split_as_text(golden: Callable[[str, str], None]) -> None:
    module = lower(Gated(16, 32, gate, True), (torch.randn(5, 16),))[1]
    golden("gated_products", print_pass(module, "gated_products"))
