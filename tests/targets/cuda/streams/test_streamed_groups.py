"""What is in one kernel with a streamed product: its row, and the gate of its halves. Numbers against float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ingot
from ingot.compiler import run_cpu_pipeline
from ingot.errors import ScheduleError
from ingot.ir.program import Program
from ingot.lowering.loop_ir import LoopNest, Map
from ingot.lowering.loop_module import Module
from ingot.targets.cuda.codegen import writer_modules as _writers
from ingot.targets.cuda.schedule import streams
from ingot.targets.cuda.schedule.statements import StreamedGemm, TiledGemm
from ingot.targets.cuda.schedule.verifier import verify_schedule
from ingot.targets.cuda.target import CUDA
from ingot.targets.reference.interpreted_model import InterpretedModel
from tests.support.cuda_emulation.emulated_model import EmulatedModel, PackingTarget
from tests.support.cuda_emulation.kernels import check_cubin, write_kernels
from tests.targets.cuda.test_gemm_cubins import _has_nvrtc
from tests.targets.cuda.test_gemm_epilogues import compare, randn
from tests.targets.cuda.test_schedule import print_pass

assert _writers

Golden = Callable[[str, str], None]


@pytest.fixture(autouse=True)
def stream_small_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_LEAST_ELEMENTS", 1)


class Norm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float() if x.dtype != torch.float64 else x
        return self.weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


class Gated(nn.Module):
    """The second half of a decoder's layer."""

    def __init__(self, width: int, hidden: int, bias: bool = False, keeps: bool = False) -> None:
        super().__init__()
        self.norm, self.keeps = Norm(width), keeps
        self.up, self.down = nn.Linear(width, 2 * hidden, bias=bias), nn.Linear(hidden, width, bias=bias)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = self.norm(x)
        gate, up = self.up(rows).chunk(2, -1)
        y = x + self.down(F.silu(gate) * up)
        return (y, rows) if self.keeps else (y,)


class Twice(nn.Module):
    """One row, two products of it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.one, self.other = Norm(24), nn.Linear(24, 19), nn.Linear(24, 33)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = self.norm(x)
        return torch.tanh(self.one(rows)), self.other(rows)


def schedule(
    model: nn.Module, args: tuple[torch.Tensor, ...], disabled: Sequence[str] = ()
) -> tuple[Program, Module, Module]:
    program = run_cpu_pipeline(ingot.capture(model, args), (), CUDA)
    module = CUDA.lower(program, "float32")
    return program, module, CUDA.schedule(module, disabled, verify=True)


def check(model: nn.Module, x: torch.Tensor, disabled: Sequence[str] = ()) -> Module:
    """Kernels and interpreted steps, against eager in float64."""
    program, _, module = schedule(model, (x,), disabled)
    compare(model, (x,), EmulatedModel(program, module))
    compare(model, (x,), InterpretedModel(PackingTarget(), program, module))
    return module


def list_groups(module: Module) -> list[list[type]]:
    return [[type(one) for one in step.steps] for step in module.steps if isinstance(step, StreamedGemm)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_gated_layer_is_two_kernels(dtype: torch.dtype, golden: Golden) -> None:
    """Also with halves of a prime number of columns, and rows of several slots."""
    torch.manual_seed(0)
    for width, hidden, bias in ((40, 72, False), (24, 37, True), (2312, 16, False)):
        model = Gated(width, hidden, bias).to(dtype).eval()
        x = randn(1, 1, width, dtype=dtype)
        module = check(model, x)
        assert list_groups(module) == [[LoopNest, TiledGemm, Map]]
        assert len(module.steps) == 2
        if dtype == torch.bfloat16 and hidden == 72:
            golden("streamed_groups", print_pass(schedule(model, (x,))[1], "row_prologues"))


def test_gates_of_several_rows() -> None:
    torch.manual_seed(0)
    for rows in (2, 5, 8):
        module = check(Gated(40, 136).bfloat16().eval(), randn(rows, 40))
        assert list_groups(module) == [[TiledGemm, Map]]


def test_a_row_that_others_read_is_stored() -> None:
    torch.manual_seed(0)
    module = check(Gated(40, 24, keeps=True).bfloat16().eval(), randn(1, 40))
    (group,) = (step for step in module.steps if isinstance(step, StreamedGemm))
    assert group.row is not None and group.product.a.buffer not in group.local
    module = check(Twice().bfloat16().eval(), randn(1, 24), ("siblings",))
    assert list_groups(module) == [[LoopNest, TiledGemm]]
    assert not list_groups(check(Twice().bfloat16().eval(), randn(1, 24)))  # siblings are one kernel already


def test_what_stays_apart() -> None:
    """Columns that are not halves, a result that is read twice, and passes that are off."""

    class Others(nn.Module):
        def __init__(self, kind: str) -> None:
            super().__init__()
            self.kind, self.up = kind, nn.Linear(24, 48)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            y = self.up(x)
            if self.kind == "pairs":
                return (torch.sigmoid(y[:, 0::2]) * y[:, 1::2],)
            if self.kind == "thirds":
                return (torch.sigmoid(y[:, :16]) * y[:, 16:32],)
            gate, up = y.chunk(2, -1)
            return (y, gate * up)

    torch.manual_seed(0)
    for kind in ("pairs", "thirds", "kept"):
        assert not list_groups(check(Others(kind).bfloat16().eval(), randn(1, 24)))
    model = Gated(40, 24).bfloat16().eval()
    assert list_groups(check(model, randn(1, 40), ("gates",))) == [[LoopNest, TiledGemm]]
    assert list_groups(check(model, randn(1, 40), ("row_prologues",))) == [[TiledGemm, Map]]
    assert not list_groups(check(model, randn(1, 40), ("streams",)))


def test_refused_groups() -> None:
    model = Gated(40, 24).bfloat16().eval()
    module = schedule(model, (randn(1, 40),))[2]
    group = next(step for step in module.steps if isinstance(step, StreamedGemm))
    row, product, gate = group.steps
    assert isinstance(row, LoopNest) and isinstance(product, TiledGemm) and isinstance(gate, Map)

    def refuse(why: str, made: StreamedGemm) -> None:
        steps = tuple(made if step is group else step for step in module.steps)
        with pytest.raises(ScheduleError, match=why):
            verify_schedule(replace(module, steps=steps), "gates")

    refuse("a row before it", replace(group, steps=(product, row, gate)))
    refuse("not streamed", replace(group, steps=(row, replace(product, algorithm="rows"), gate)))
    refuse("other columns", replace(group, steps=(row, product, replace(gate, body=product.epilogue.body))))
    (store,) = gate.stores
    into = next(name for name in module.buffers if module.buffers[name].kind == "input")
    refuse("other blocks", replace(group, steps=(row, product, replace(gate, stores=(replace(store, buffer=into),)))))


@pytest.mark.skipif(not _has_nvrtc(), reason="there is no NVRTC: pip install nvidia-cuda-nvrtc")
def test_groups_compile_by_nvrtc() -> None:
    for model, rows in ((Gated(40, 72), 1), (Gated(40, 72), 3), (Gated(40, 24, True, True), 1)):
        text, _ = write_kernels(schedule(model.bfloat16().eval(), (randn(rows, 40),))[2])
        cubins = check_cubin(text)
        assert set(cubins) == {"sm_80", "sm_90a"} and all(cubins.values())
