"""Random programs of operators, scheduled for CUDA with all passes and without each, run by emulated kernels."""

from __future__ import annotations

import warnings
from collections.abc import Collection

import pytest
import torch

import ingot
from ingot.compiler import run_cpu_pipeline
from ingot.errors import IngotError
from ingot.targets.cuda.codegen import extern_kernels, loops, mask_blocks, reductions, scan  # noqa: F401
from ingot.targets.cuda.schedule.pipeline import SCHEDULE
from tests.fuzz import operators
from tests.support.cuda_emulation.emulated_model import EmulatedModel, build_models, lower_for_cuda
from tests.support.random_programs.differential import Batch, complain, dynamic_shapes, sizes_of
from tests.support.random_programs.programs import Program

PASSES = tuple(dict.fromkeys(name for name, _ in SCHEDULE))


def prepare(
    program: Program, disabled: Collection[str]
) -> tuple[ingot.Program, ingot.lowering.loop_module.Module] | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            captured = ingot.capture(Batch([program]), ([program.inputs()],), dynamic_shapes=dynamic_shapes([program]))
            passed = run_cpu_pipeline(captured)
            return passed, lower_for_cuda(passed, disabled)
    except IngotError:
        return None


def judge(program: Program, model: EmulatedModel) -> str:
    """Why a result is not what it should be, or nothing."""
    for size in sizes_of([program]):
        given = [x.contiguous() for x in program.inputs(size)]
        (ours,) = model([given])
        complaint = complain(program, size, ours, given)
        if complaint:
            return f"{complaint} at size {size}\n{program}"
    return ""


def check(seeds: Collection[int], disabled: Collection[str] = ()) -> tuple[int, list[str]]:
    """How many programs were run, and what is wrong with some."""
    drawn = [(seed, operators.make(seed)) for seed in seeds]
    made = [(seed, program, prepare(program, disabled)) for seed, program in drawn if not program.refusal]
    kept = [(seed, program, one) for seed, program, one in made if one is not None]
    models = build_models([one for _, _, one in kept])
    wrong = []
    with torch.no_grad():
        for (seed, program, _), model in zip(kept, models, strict=True):
            complaint = judge(program, model)
            if complaint:
                wrong.append(f"program {seed}: {complaint}")
    return len(kept), wrong


def test_programs() -> None:
    count, wrong = check(range(20))
    assert not wrong, wrong[0]
    assert count >= 12


@pytest.mark.parametrize("name", PASSES)
def test_programs_without_a_pass(name: str) -> None:
    count, wrong = check(range(100, 106), (name,))
    assert not wrong, wrong[0]
    assert count >= 3


# ---------------------------------------------------------------------- control flow, on the emulated memory


class Branch(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda v: v.exp(), lambda v: v - 1, (x,))


class Repeat(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count = torch.zeros((), dtype=torch.int64)
        return torch.while_loop(lambda n, v: v.sum() < 100, lambda n, v: (n + 1, v * 2), (count, x))[1]


class Pick(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nonzero(x > 0).sum(0)


@pytest.mark.parametrize("model", [Branch(), Repeat(), Pick()], ids=lambda model: type(model).__name__)
def test_control_flow(model: torch.nn.Module) -> None:
    program = run_cpu_pipeline(ingot.capture(model, (torch.ones(3, 5),)))
    emulated = EmulatedModel(program, lower_for_cuda(program))
    for x in (torch.ones(3, 5), torch.arange(15.0).reshape(3, 5) - 5):
        torch.testing.assert_close(emulated(x), model(x), rtol=1e-6, atol=0)
