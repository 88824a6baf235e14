"""precision="tf32": float32 products on tensor cores, where they are asked for, and how far they may be off."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ingot
import ingot_runtime
from ingot.compiler import run_cpu_pipeline
from ingot.errors import ScheduleError, UnsupportedPrecision
from ingot.ir.program import Program
from ingot.lowering.loop_ir import Stmt
from ingot.lowering.loop_ir_printer import print_module
from ingot.lowering.loop_module import Module, Precision
from ingot.targets.cuda.schedule.statements import ImplicitGemm, SiblingGemms, TiledGemm
from ingot.targets.cuda.schedule.tiles import TENSOR_TILES
from ingot.targets.cuda.schedule.tiling import choose_tiles
from ingot.targets.cuda.schedule.verifier import verify_schedule
from ingot.targets.reference.interpreted_model import InterpretedModel
from ingot.targets.reference.target import REFERENCE
from tests.support.cuda_emulation.emulated_model import PackingTarget, build_models, lower_for_cuda
from tests.support.cuda_emulation.kernels import check_cubin, run_module, write_kernels
from tests.support.cuda_emulation.products import Case, join_cases, make_values, view_values
from tests.support.cuda_emulation.target import EMULATED
from tests.support.cuda_emulation.toolkit import count, disassemble, needs_nvrtc
from tests.targets.cuda.test_convolution import LAYERS
from tests.targets.cuda.test_gemm import SMALL, pair, small, tiled
from tests.targets.cuda.test_gemm_epilogues import compare, randn

# Of Σ |a · b|: two roundings to 10 bits of fraction, and what float32 adds to them.
TF32 = 2.0**-10
FLOAT32 = 2.0**-20


def round_tf32(values: np.ndarray) -> np.ndarray:
    """What cvt.rna.tf32 gives: 10 bits of fraction, the nearest, ties away from zero."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)


def lower_model(model: Any, args: tuple[Any, ...], precision: Precision = "tf32") -> tuple[Program, Module]:
    program = run_cpu_pipeline(ingot.capture(model, args), (), REFERENCE)
    return program, lower_for_cuda(program, (), precision)


def find_products(steps: tuple[Stmt, ...]) -> list[TiledGemm | ImplicitGemm]:
    found: list[TiledGemm | ImplicitGemm] = []
    for step in steps:
        members = step.steps if isinstance(step, SiblingGemms) else (step,)
        found += [one for one in members if isinstance(one, (TiledGemm, ImplicitGemm))]
    return found


def test_operands_are_rounded_and_sums_are_not() -> None:
    """Every tile, both orders of the operands, parts of terms: the products of rounded numbers, added in float32."""
    cases = []
    for number, tile in enumerate(TENSOR_TILES[1:]):
        a, b = pair(tile.rows + 5, tile.columns + 3, 76, "float32", number % 3 == 1, number % 2 == 0)
        cases.append(Case(a, b, tiled("tensor", small(tile), 1 + number % 2)))
    for m, n, k in ((33, 40, 68), (1, 1, 1), (17, 31, 129), (16, 8, 8)):
        cases.append(Case(*pair(m, n, k, "float32"), tiled("tensor", SMALL)))
    values = {
        f"{side}_{number}": make_values("float32", operand.size(), 2 * number + (side == "b"))
        for number, case in enumerate(cases)
        for side, operand in (("a", case.a), ("b", case.b))
    }
    found = run_module(join_cases(cases), values)
    for number, case in enumerate(cases):
        left, right = view_values(values[f"a_{number}"], case.a), view_values(values[f"b_{number}"], case.b)
        ours = found[f"out_{number}"].reshape(left.shape[0], right.shape[1]).astype(np.float64)
        scale = np.abs(left) @ np.abs(right)
        rounded, exact = (
            np.abs(ours - round_tf32(left) @ round_tf32(right)) / scale,
            np.abs(ours - left @ right) / scale,
        )
        assert rounded.max() <= FLOAT32, (number, rounded.max())
        assert exact.max() <= TF32, (number, exact.max())
        if ours.size > 1:
            assert exact.max() > 32 * FLOAT32, (number, exact.max())  # a product of all bits is not meant


def test_special_values() -> None:
    """Nan and infinities stay what they are, and what rounds up to infinity does."""
    a, b = pair(16, 16, 8, "float32")
    left, right = np.zeros((16, 8), np.float32), np.zeros((8, 16), np.float32)
    left[0, 0], left[1, 0], left[2, 0] = np.nan, np.inf, np.finfo(np.float32).max
    left[3, 0], left[4, 0] = 1 + 2.0**-11, -(1 + 2.0**-11)  # ties
    left[5, 0] = np.uint32(0x7FFFFFFF).view(np.float32)  # a nan, all bits of which are set
    right[0, :] = 1
    values = {"a_0": left.reshape(-1), "b_0": np.ascontiguousarray(right.T).reshape(-1)}
    found = run_module(join_cases([Case(a, b, tiled("tensor", SMALL))]), values)["out_0"].reshape(16, 16)[:, 0]
    assert np.isnan(found[[0, 5]]).all()
    assert found[1:5].tolist() == [np.inf, np.inf, 1 + 2.0**-10, -(1 + 2.0**-10)]


def test_which_products() -> None:
    """Those of float32 with more than a few rows; only with the precision asked for."""

    def choose(m: int, n: int, dtype: str, precision: Precision) -> str:
        module = join_cases([Case(*pair(m, n, 256, dtype), lambda step: step)])
        (step,) = choose_tiles(replace(module, precision=precision)).steps
        assert isinstance(step, TiledGemm)
        return step.algorithm

    assert choose(100, 128, "float32", "tf32") == "tensor"
    assert choose(100, 128, "float32", "float32") == "simt"
    assert choose(100, 128, "float64", "tf32") == "simt"
    assert choose(100, 128, "bfloat16", "tf32") == choose(100, 128, "bfloat16", "float32")
    assert choose(1, 128, "float32", "tf32") == "rows"  # memory is what takes the time: nothing is gained


def test_unasked_products_are_refused() -> None:
    module = join_cases([Case(*pair(33, 40, 68, "float32"), tiled("tensor", SMALL))])
    verify_schedule(replace(module, precision="tf32"), "tiles")
    with pytest.raises(ScheduleError, match="float32 is multiplied on tensor cores, and the module's precision is flo"):
        verify_schedule(module, "tiles")


class Block(nn.Module):
    """Products of one input, a convolution, and what follows them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(24, 40, 3, padding=1)
        self.up, self.gate, self.down = nn.Linear(40, 72), nn.Linear(40, 72), nn.Linear(72, 33)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x).transpose(1, 2)
        return self.down(F.silu(self.gate(y)) * self.up(y))


def make_models() -> list[tuple[nn.Module, tuple[torch.Tensor, ...]]]:
    torch.manual_seed(5)
    made = [(make().eval(), (randn(*shape, dtype=torch.float32),)) for make, shape in LAYERS]
    return [*made, (Block().eval(), (randn(3, 24, 20, dtype=torch.float32),))]


def test_models(golden: Callable[[str, str], None]) -> None:
    """Convolutions and products of models: as near to float64 as 10 bits let them be, and not nearer. The interpreter
    computes exact sums of the same steps."""
    models = make_models()
    lowered = [lower_model(model, args) for model, args in models]
    unlike = 0
    for (model, args), (program, module), run in zip(models, lowered, build_models(lowered), strict=True):
        compare(model, args, InterpretedModel(PackingTarget(), program, module))
        with torch.no_grad():
            exact = copy.deepcopy(model).double()(*(arg.double() for arg in args))
        error = float((run(*args).double() - exact).abs().max() / exact.abs().max())
        on_tensor_cores = any(step.algorithm == "tensor" for step in find_products(module.steps))
        assert error <= (2e-3 if on_tensor_cores else 2e-6), (model, error)
        unlike += on_tensor_cores and error > 2e-5
    assert unlike >= 10
    golden("tf32_block", print_module(lowered[-1][1], locations=False))


def test_compile_takes_it_for_this_target_alone(tmp_path: Path) -> None:
    model, x = nn.Linear(64, 48), torch.randn(40, 64)
    with pytest.raises(UnsupportedPrecision, match="'tf32', which the target 'cuda' has: give 'float32' or 'bfloat16'"):
        ingot.compile(model, (x,), precision="tf32")
    with pytest.raises(ValueError, match="'bfloat16', which the target 'cpu' has: give 'float32' or 'tf32'"):
        ingot.compile(model, (x,), target="cuda", precision="bfloat16")
    with pytest.raises(ValueError, match="precision is 'int3': give 'float32' or 'tf32' for the target 'cuda'"):
        ingot.compile(model, (x,), target="cuda", precision="int3")  # type: ignore[arg-type]
    narrow = ingot.compile(model, (x,), target=EMULATED, precision="tf32")
    assert narrow.precision == "tf32" and "ig_multiply_tf32" in narrow.source
    narrow.save(tmp_path / "m.ingot")
    with ingot_runtime.open_container(tmp_path / "m.ingot") as container:
        assert container.manifest["native"]["precision"] == "tf32"


def test_torch_is_not_asked() -> None:
    model, x, before = nn.Linear(64, 48), torch.randn(40, 64), torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        assert torch.backends.cuda.matmul.allow_tf32
        assert "ig_tensor_sums<ig_multiply_tf32" not in ingot.compile(model, (x,), target=EMULATED).source
    finally:
        torch.set_float32_matmul_precision(before)


@needs_nvrtc
def test_kernels_use_tensor_cores_and_spill_nothing(tmp_path: Path) -> None:
    cases = [
        Case(*pair(4096, 4096, 1024, "float32", right=number != 3), tiled("tensor", tile))
        for number, tile in enumerate(TENSOR_TILES)
    ]
    text, _ = write_kernels(join_cases(cases))
    for architecture in ("sm_90a", "sm_80"):
        kernels = disassemble(check_cubin(text, [architecture])[architecture], tmp_path)
        assert len(kernels) == len(cases)
        for name, found in kernels.items():
            assert re.search(r"\bHMMA\.\S*TF32", found), name
            assert count(found, "STL", "LDL") == 0, f"{name} spills registers"
    convolution = nn.Conv2d(64, 64, 3, padding=1).eval()
    text, _ = write_kernels(lower_model(convolution, (randn(1, 64, 20, 20, dtype=torch.float32),))[1])
    kernels = disassemble(check_cubin(text, ["sm_90a"])["sm_90a"], tmp_path)
    assert any(re.search(r"\bHMMA\.\S*TF32", found) for found in kernels.values())
