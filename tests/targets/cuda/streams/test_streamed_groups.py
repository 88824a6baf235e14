"""What is in one kernel with a streamed product: its row, and the gate of its halves. Numbers against float64."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

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
from ingot.targets.cuda.schedule.statements import MapGroup, StreamedGemm, TiledGemm
from ingot.targets.cuda.schedule.verifier import verify_schedule
from ingot.targets.cuda.target import CUDA
from ingot.targets.reference.interpreted_model import InterpretedModel
from tests.support.cuda_emulation.emulated_model import EmulatedModel, PackingTarget
from tests.support.cuda_emulation.kernels import check_cubin, write_kernels
from tests.support.cuda_emulation.toolkit import needs_nvrtc
from tests.targets.cuda.test_gemm_epilogues import TOLERANCES, compare, in_double, randn
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


class Rotated(nn.Module):
    """The first half of a decoder's layer: queries, and keys and values that go to their caches."""

    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self, width: int = 24, heads: int = 3, key_heads: int = 2, depth: int = 6, length: int = 5) -> None:
        super().__init__()
        self.norm, self.heads, self.key_heads, self.depth = Norm(width), heads, key_heads, depth
        self.qkv = nn.Linear(width, (heads + 2 * key_heads) * depth, bias=False)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(1, key_heads, length, depth))

    def rotate(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat((-second, first), -1) * sin

    def forward(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, at: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        parts = self.qkv(self.norm(x)).view(1, 1, -1, self.depth).transpose(1, 2)
        q, k, v = parts.split((self.heads, self.key_heads, self.key_heads), 1)
        self.keys.index_copy_(2, at, self.rotate(k, cos, sin))
        self.values.index_copy_(2, at, v)
        return self.rotate(q, cos, sin), self.keys + 0, self.values * 2


class Twice(nn.Module):
    """One row, two products of it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.one, self.other = Norm(24), nn.Linear(24, 19), nn.Linear(24, 33)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = self.norm(x)
        return torch.tanh(self.one(rows)), self.other(rows)


def schedule(
    model: nn.Module, args: tuple[torch.Tensor, ...], disabled: Sequence[str] = ("chains",)
) -> tuple[Program, Module, Module]:
    program = run_cpu_pipeline(ingot.capture(model, args), (), CUDA)
    module = CUDA.lower(program, "float32")
    return program, module, CUDA.schedule(module, disabled, verify=True)


def check(model: nn.Module, x: torch.Tensor, disabled: Sequence[str] = ("chains",)) -> Module:
    """Kernels and interpreted steps, against eager in float64."""
    program, _, module = schedule(model, (x,), disabled)
    compare(model, (x,), EmulatedModel(program, module))
    compare(model, (x,), InterpretedModel(PackingTarget(), program, module))
    return module


def compare_with(exact: nn.Module, args: tuple[torch.Tensor, ...], run: Callable[..., Any]) -> None:
    """As `compare`, of models that have a state."""
    found = run(*args)
    with torch.no_grad():
        expected = exact(*map(in_double, args))
    for ours, theirs in zip(found, expected, strict=True):
        error = float((ours.double() - theirs).abs().max() / theirs.abs().max())
        assert error <= TOLERANCES[args[0].dtype], error


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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rotations_and_caches_are_in_the_product(dtype: torch.dtype) -> None:
    """Calls one after another: each writes one place of the caches."""
    torch.manual_seed(0)
    for sizes in ((24, 3, 2, 6), (16, 4, 1, 4), (40, 5, 5, 34)):
        model = Rotated(*sizes).to(dtype).eval()
        angles = torch.randn(5, sizes[3] // 2).repeat(1, 2)
        calls = [
            (randn(1, 1, sizes[0], dtype=dtype, seed=at), *(f(angles[[at]]).to(dtype) for f in (torch.cos, torch.sin)))
            for at in (3, 0, 4)
        ]
        program, _, module = schedule(copy.deepcopy(model), (*calls[0], torch.tensor([3])))
        assert list_groups(module)[0] == [LoopNest, TiledGemm, MapGroup]
        mine, exact = EmulatedModel(program, module), copy.deepcopy(model).double()
        for args, at in zip(calls, (3, 0, 4), strict=True):
            compare_with(exact, (*args, torch.tensor([at])), mine)


def test_an_index_outside_of_a_cache_is_reported() -> None:
    model = Rotated().bfloat16().eval()
    args = (randn(1, 1, 24), randn(1, 6), randn(1, 6))
    program, _, module = schedule(model, (*args, torch.tensor([0])))
    assert list_groups(module)
    with pytest.raises(Exception, match=r"index|status|out of range"):
        EmulatedModel(program, module)(*args, torch.tensor([5]))


def test_a_row_that_others_read_is_stored() -> None:
    torch.manual_seed(0)
    module = check(Gated(40, 24, keeps=True).bfloat16().eval(), randn(1, 40))
    (group,) = (step for step in module.steps if isinstance(step, StreamedGemm))
    assert group.row is not None and group.product.a.buffer not in group.local
    module = check(Twice().bfloat16().eval(), randn(1, 24), ("siblings", "chains"))
    assert list_groups(module) == [[LoopNest, TiledGemm]]
    assert not list_groups(check(Twice().bfloat16().eval(), randn(1, 24)))  # siblings are one kernel already


def test_a_row_that_the_epilogue_reads_too() -> None:
    class Added(nn.Module):
        def __init__(self, halves: int) -> None:
            super().__init__()
            self.halves, self.norm, self.linear = halves, Norm(24), nn.Linear(24, 24 * halves)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            rows = self.norm(x)
            first, second = (self.linear(rows).chunk(2, -1)) if self.halves == 2 else (self.linear(rows), 1)
            return torch.tanh(first) * second + rows

    torch.manual_seed(0)
    for halves in (1, 2):
        module = check(Added(halves).bfloat16().eval(), randn(1, 24))
        assert list_groups(module) == [[LoopNest, TiledGemm, *([Map] if halves == 2 else [])]]
        assert len(module.steps) == 1


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
    assert list_groups(check(model, randn(1, 40), ("gates", "chains"))) == [[LoopNest, TiledGemm]]
    assert list_groups(check(model, randn(1, 40), ("row_prologues", "chains"))) == [[TiledGemm, Map]]
    assert not list_groups(check(model, randn(1, 40), ("streams", "chains")))


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
    refuse("does not read the result", replace(group, steps=(row, product, replace(gate, body=product.epilogue.body))))
    (store,) = gate.stores
    into = next(name for name in module.buffers if module.buffers[name].kind == "input")
    refuse("other blocks", replace(group, steps=(row, product, replace(gate, stores=(replace(store, buffer=into),)))))


@needs_nvrtc
def test_groups_compile_by_nvrtc() -> None:
    for model, rows in ((Gated(40, 72), 1), (Gated(40, 72), 3), (Gated(40, 24, True, True), 1)):
        text, _ = write_kernels(schedule(model.bfloat16().eval(), (randn(rows, 40),))[2])
        cubins = check_cubin(text)
        assert set(cubins) == {"sm_80", "sm_90a"} and all(cubins.values())
