"""Gates in the kernels of products with weights of integers: numbers, what is folded, and what is not."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ingot.errors import ScheduleError
from ingot.lowering.loop_ir_printer import print_module
from ingot.lowering.loop_module import Module
from ingot.targets.cuda.schedule.quantized.gates import GatedCodes
from ingot.targets.cuda.schedule.verifier import verify_schedule
from ingot.targets.reference.interpreted_model import InterpretedModel
from tests.support.cuda_emulation.emulated_model import PackingTarget, build_models
from tests.support.cuda_emulation.kernels import check_cubin, write_kernels
from tests.support.cuda_emulation.toolkit import count, disassemble, needs_nvrtc
from tests.targets.cuda.quantized.test_coded_products import lower_model
from tests.targets.cuda.quantized.test_random_models import RandomLayer, in_double


class CodedGate(nn.Module):
    """What one half of a product lets through of the other one; with `keeps`, the halves are results too."""

    def __init__(self, layer: RandomLayer, *, keeps: bool = False) -> None:
        super().__init__()
        self.layer, self.keeps = layer, keeps

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.layer(x)
        gate, up = y.chunk(2, -1)
        return (F.silu(gate) * up - gate, *([y] if self.keeps else []))


def make_gate(
    terms: int, columns: int, group: int | None, number: torch.dtype, bits: int = 4, *, keeps: bool = False
) -> CodedGate:
    layer = RandomLayer(terms, columns, group, bits=bits, zeros=columns % 3 == 0, bias=terms % 3 == 0, number=number)
    return CodedGate(layer, keeps=keeps).requires_grad_(False).eval()


def find_gates(module: Module) -> list[GatedCodes]:
    return [step for step in module.steps if isinstance(step, GatedCodes)]


@pytest.mark.parametrize("number", [torch.bfloat16, torch.float32], ids=str)
def test_numbers(number: torch.dtype) -> None:
    torch.manual_seed(3)
    tried, lowered = [], []
    for rows, terms, columns, group, bits in (
        (1, 64, 96, 32, 4), (1, 99, 48, None, 8), (3, 96, 112, 48, 4), (8, 40, 64, 8, 8), (8, 37, 80, None, 4),
    ):  # fmt: skip
        model, x = make_gate(terms, columns, group, number, bits), torch.randn(rows, terms).to(number)
        tried.append((model, x))
        lowered.append(lower_model(model, (x,)))
    for (model, x), (program, module), run in zip(tried, lowered, build_models(lowered), strict=True):
        assert [type(step) for step in module.steps] == [GatedCodes]
        with torch.no_grad():
            (exact,), (eager,) = in_double(copy.deepcopy(model))(x.double()), model(x)
        for made in (run(x), InterpretedModel(PackingTarget(), program, module)(x)):
            error, usual = (float((one.double() - exact).abs().max()) for one in (made[0], eager))
            assert error <= 3 * usual + 2e-6 * float(exact.abs().max()), (error, usual, x.shape)


def test_schedule(golden: Callable[[str, str], None]) -> None:
    torch.manual_seed(4)
    module = lower_model(make_gate(64, 96, 32, torch.bfloat16), (torch.randn(1, 64).bfloat16(),))[1]
    golden("coded_gates", print_module(module, locations=False))


def test_what_is_not_folded() -> None:
    x = torch.randn(1, 64).bfloat16()

    def has_gate(model: nn.Module, disabled: tuple[str, ...] = ()) -> bool:
        return bool(find_gates(lower_model(model, (x,), disabled)[1]))

    assert has_gate(make_gate(64, 96, 32, torch.bfloat16))
    assert not has_gate(make_gate(64, 96, 32, torch.bfloat16), ("coded_gates",))
    assert not has_gate(make_gate(64, 88, 32, torch.bfloat16))  # halves that are not runs of 8
    assert not has_gate(make_gate(64, 96, 32, torch.bfloat16, keeps=True))  # the product's result is used elsewhere


def test_refused_groups() -> None:
    module = lower_model(make_gate(64, 96, 32, torch.bfloat16), (torch.randn(1, 64).bfloat16(),))[1]
    (group,) = find_gates(module)

    def refuse(why: str, changed: GatedCodes) -> None:
        with pytest.raises(ScheduleError, match=why):
            verify_schedule(replace(module, steps=(changed,)), "coded_gates")

    verify_schedule(module, "coded_gates")
    step, gate = group.steps
    refuse("does not lie in pairs", replace(group, steps=(replace(step, pairs=False), gate)))
    refuse("result is in memory", replace(group, local=()))


@needs_nvrtc
def test_kernels_spill_nothing(tmp_path: Path) -> None:
    for number, bits, group in ((torch.bfloat16, 4, 32), (torch.bfloat16, 8, None), (torch.float32, 4, 128)):
        model = make_gate(1024, 2048, group, number, bits)
        text, _ = write_kernels(lower_model(model, (torch.randn(1, 1024).to(number),))[1])
        for found in disassemble(check_cubin(text, ["sm_90a"])["sm_90a"], tmp_path).values():
            assert count(found, "HMMA") > 0 and count(found, "STL", "LDL") == 0
