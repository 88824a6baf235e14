"""Values that a step stores and others compute again, and buffers that hold halves only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from ingot.lowering.loop_body import reads
from ingot.lowering.loop_ir import WithEpilogue
from ingot.lowering.loop_module import Module
from ingot.targets.cuda.schedule.narrow_buffers import narrow_buffers
from ingot.targets.cuda.schedule.stored_values import read_stored_values
from ingot.targets.reference.interpreted_model import InterpretedModel
from tests.support.cuda_emulation.emulated_model import EmulatedModel, PackingTarget
from tests.targets.cuda.streams.test_streamed_groups import Norm, schedule
from tests.targets.cuda.test_gemm_epilogues import compare, randn
from tests.targets.cuda.test_schedule import print_pass

Golden = Callable[[str, str], None]
PASSES = ("narrow_buffers", "stored_values")


class Residuals(nn.Module):
    """Two products with a norm between, and sums that the next ones read."""

    def __init__(self, width: int, norm: bool = True) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.norm = Norm(width) if norm else nn.Tanh()

    def forward(self, x: torch.Tensor, a: torch.Tensor) -> Any:
        y = x + self.one(a)
        return y + self.other(self.norm(y))


class Given(Residuals):
    """The first product is a result too."""

    def forward(self, x: torch.Tensor, a: torch.Tensor) -> Any:
        made = self.one(a)
        y = x + made
        return y + self.other(self.norm(y)), made


class Rows(Residuals):
    """What is read again lies elsewhere."""

    def forward(self, x: torch.Tensor, a: torch.Tensor) -> Any:
        y = x + self.one(a)
        return y.flip(0) + self.other(self.norm(y))


class Written(nn.Module):
    """What a sum is made of changes before it is computed again."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.one, self.other, self.norm = nn.Linear(width, width), nn.Linear(width, width), Norm(width)
        self.register_buffer("state", torch.ones(70, width))

    def forward(self, x: torch.Tensor, a: torch.Tensor) -> Any:
        made = self.one(a)
        y = self.state + made
        z = self.norm(y)
        self.state.mul_(2)
        return (self.state + made) + self.other(z), y.float().sum(-1)


def list_products(module: Module) -> list[WithEpilogue]:
    return [step for step in module.steps if isinstance(step, WithEpilogue)]


def build(model: nn.Module, rows: int = 70, dtype: torch.dtype = torch.bfloat16) -> tuple[nn.Module, tuple[Any, ...]]:
    return model.to(dtype).eval(), (randn(rows, 64, dtype=dtype, seed=1), randn(rows, 64, dtype=dtype, seed=2))


@pytest.mark.parametrize("rows", [70, 1])
def test_residuals(rows: int, golden: Golden) -> None:
    """The sum is stored once, as halves, and read; what it is made of is not stored."""
    torch.manual_seed(0)
    model, args = build(Residuals(64), rows)
    program, lowered, module = schedule(model, args, ("streams",))
    first, last = list_products(module)
    (stored,) = first.epilogue.stores
    assert module.buffers[stored.buffer].dtype == "bfloat16"
    assert {load.buffer for load in reads(last.epilogue.body)} == {stored.buffer}
    compare(model, args, EmulatedModel(program, module))
    compare(model, args, InterpretedModel(PackingTarget(), program, module))
    if rows == 70:
        golden("stored_values", print_pass(lowered, "stored_values"))
    assert read_stored_values(module) == module and narrow_buffers(module) == module


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_numbers_are_the_same(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for model in (Residuals(64), Residuals(64, norm=False), Given(64), Rows(64)):
        made, args = build(model, dtype=dtype)
        found = []
        for disabled in ((), *((name,) for name in PASSES), PASSES):
            program, _, module = schedule(made, args, disabled)
            found.append(EmulatedModel(program, module)(*args))
        for other in found[1:]:
            for mine, theirs in zip(*map(torch.utils._pytree.tree_leaves, (found[0], other)), strict=True):
                assert torch.equal(mine, theirs)


def test_a_result_stays_stored() -> None:
    model, args = build(Given(64))
    _, _, module = schedule(model, args)
    first, last = list_products(module)
    assert len(first.epilogue.stores) == 2 and len(reads(last.epilogue.body)) == 1


def test_what_stays_apart() -> None:
    """Sums of other rows, sums of something that was written meanwhile, passes that are off."""
    model, args = build(Rows(64))
    _, _, module = schedule(model, args)
    assert len(list_products(module)[0].epilogue.stores) == 2
    model, args = build(Written(64))
    torch.manual_seed(0)
    program, _, module = schedule(model, args)
    exact = Written(64).double().eval()
    exact.load_state_dict({name: one.double() for name, one in model.state_dict().items()})
    found = EmulatedModel(program, module)(*args)
    with torch.no_grad():
        expected = exact(*(arg.double() for arg in args))
    for ours, theirs in zip(found, expected, strict=True):
        assert float((ours.double() - theirs).abs().max() / theirs.abs().max()) <= 2e-2
    model, args = build(Residuals(64))
    _, _, module = schedule(model, args, ("stored_values",))
    assert len(list_products(module)[0].epilogue.stores) == 2
    _, _, module = schedule(model, args, ("narrow_buffers",))
    assert "float32" in {module.buffers[store.buffer].dtype for store in list_products(module)[0].epilogue.stores}
