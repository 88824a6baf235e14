"""precision="bfloat16": how far products may be off, where it is used, and that the file says so.

bfloat16 has 8 bits, so rounding a number to it moves it by at most 2⁻⁸ of itself. A sum of K products of two such
numbers is then off by at most (2 · 2⁻⁸ + 2⁻¹⁶) Σ|a||b| for the operands, and by about K · 2⁻²⁴ Σ|a||b| for its own
roundings in float32: a theorem, so no result of one product may be beyond it. Against the exact product of the rounded
operands only the second part is left. A whole model has no such bound; torch's own autocast to bfloat16, which also
rounds what products give, is what it is measured by.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ingot
import ingot_runtime
from ingot.artifacts.compiled_model import CompiledModel
from ingot.codegen.build.isa import ISAS, Isa, missing_features
from ingot.lowering.loop_ir import Stmt
from ingot.targets.cpu.schedule.statements import GemmGroup, PackedGemm, StripMined, TiledConvolution
from ingot.targets.cpu.target import CPU, CpuTarget
from tests.support.emulated_amx import DENIED_AMX, EMULATED_AMX
from tests.support.kernel_models import Block, ConvNet, Inverted
from tests.support.pipeline_fixtures import assemble, lowered

OPERANDS = 2 * 2**-8 + 2**-16
SINGLE = 2**-24
# Every way in which two bfloat16 numbers are multiplied, as far as this machine can run it.
RUNNABLE = [*(isa for isa in ISAS.values() if isa.architecture and not missing_features(isa)), EMULATED_AMX, DENIED_AMX]


def narrow(
    model: nn.Module | Callable[..., torch.Tensor],
    *args: torch.Tensor,
    isa: Isa | None = None,
    dims: object = None,
    target: CpuTarget = CPU,
) -> CompiledModel:
    program, module = lowered(model, args, dynamic_shapes=dims, precision="bfloat16")
    return assemble(program, module, isa=isa, threads=2, target=target)


def products(steps: tuple[Stmt, ...]) -> Iterator[PackedGemm | TiledConvolution]:
    for step in steps:
        if isinstance(step, PackedGemm | TiledConvolution):
            yield step
        elif isinstance(step, GemmGroup | StripMined):
            yield from products(step.steps)


def rounded(x: torch.Tensor) -> torch.Tensor:
    return x.bfloat16().double()


def judge(model: nn.Module, x: torch.Tensor, native: CompiledModel, terms: int) -> None:
    """One layer without bias, against the theorem."""
    exact, absolute, operands = (copy.deepcopy(model).double() for _ in range(3))
    absolute.weight.data.abs_()
    operands.weight.data = rounded(model.weight.data)
    with torch.no_grad():
        size = absolute(x.double().abs())
        ours = native(x).double()
        assert ours.shape == size.shape
        assert ((ours - exact(x.double())).abs() <= (OPERANDS + terms * SINGLE) * size).all()
        assert ((ours - operands(rounded(x))).abs() <= terms * SINGLE * size).all()
    assert (ours - exact(x.double())).abs().max() > 2**-13 * size.mean(), "it is float32"


@pytest.mark.parametrize("isa", RUNNABLE, ids=str)
@pytest.mark.parametrize(("rows", "depth", "columns"), [(1, 64, 64), (13, 769, 50), (70, 1100, 96), (5, 33, 17)])
def test_products(rows: int, depth: int, columns: int, isa: Isa) -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(depth, columns, bias=False), torch.randn(rows, depth)
    native = narrow(model, x, isa=isa)
    assert [step.factors for step in products(native._module.steps)] == ["bfloat16"]
    judge(model, x, native, depth)


@pytest.mark.parametrize("isa", RUNNABLE, ids=str)
@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((3, 32, 7), {"stride": 2, "padding": 3}),  # few channels: lines of taps, an odd number of terms
        ((32, 64, 3), {"padding": 1}),  # would be Winograd in float32
        ((17, 20, 3), {"padding": 1, "dilation": 2}),  # a tap's channels in pairs, and one left over
        ((64, 48, 3), {"padding": 1, "groups": 4}),
        ((16, 48, 1), {}),
        ((16, 48, 1), {"stride": 2}),
    ],
)
def test_convolutions(shape: tuple[int, int, int], options: dict[str, int], isa: Isa) -> None:
    torch.manual_seed(0)
    model, x = nn.Conv2d(*shape, bias=False, **options), torch.randn(2, shape[0], 13, 15)
    native = narrow(model, x, isa=isa)
    assert [step.factors for step in products(native._module.steps)] == ["bfloat16"]
    judge(model, x, native, shape[0] // options.get("groups", 1) * shape[2] ** 2)


def test_an_odd_number_of_terms_reads_nothing_of_the_next_row() -> None:
    model, x = nn.Linear(7, 5), torch.randn(4, 7)
    x[1::2] = torch.nan
    ours = narrow(model, x)(x)
    assert ours[::2].isfinite().all() and ours[1::2].isnan().all()


def test_nan_stays_nan() -> None:
    model, x = nn.Linear(8, 3), torch.zeros(3, 8)
    x[0, 3], x[1, 4] = torch.inf, torch.nan
    ours = narrow(model, x)(x)
    assert ours[0].isinf().all() and ours[1].isnan().all() and torch.equal(ours[2], model.bias.detach())


@pytest.mark.parametrize("make", [Block, ConvNet, Inverted])
def test_a_model_is_as_near_as_autocast(make: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model = make(48, 4) if make is Block else make()
    shape = (2, 20, 48) if isinstance(model, Block) else (2, 16 if isinstance(model, Inverted) else 3, 96, 96)
    args = (torch.randn(shape), *([torch.ones(2, 20, dtype=torch.bool)] if isinstance(model, Block) else []))
    model.eval()
    native = narrow(model, *args)
    chosen = [step for step in products(native._module.steps) if not (isinstance(step, PackedGemm) and step.batch)]
    assert all(step.factors == "bfloat16" for step in chosen if getattr(step, "algorithm", "windows") == "windows")
    with torch.no_grad():
        exact = copy.deepcopy(model).double()(args[0].double(), *args[1:])
        with torch.autocast("cpu", torch.bfloat16):
            theirs = model(*args).double() - exact
        single = model(*args).double() - exact
        ours = native(*args).double() - exact
    assert ours.norm() <= 2 * theirs.norm()
    assert ours.norm() > 16 * single.norm(), "it is float32"


def test_rows_of_any_number_and_one_tensor_in_many_products() -> None:
    class Many(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = F.layer_norm(x, (32,)).relu()
            mixed = torch.cond(x.sum() > 0, lambda y: self.a(y), lambda y: self.b(y), (y,))
            return self.c(y) + self.c(mixed + y) + y[..., :16]

    torch.manual_seed(0)
    model, x = Many().eval(), torch.randn(2, 5, 32)
    native = narrow(model, x, dims={"x": {0: "batch"}})
    for size in (1, 2, 7):
        x = torch.randn(size, 5, 32)
        with torch.no_grad():
            torch.testing.assert_close(native(x), ingot.capture(model, (x,))(x), rtol=0, atol=0.05)


def test_other_types_stay_what_they_are() -> None:
    for dtype in (torch.float64, torch.float16):
        model, x = nn.Linear(8, 8).to(dtype), torch.randn(3, 8, dtype=dtype)
        sources = [ingot.compile(model, (x,), precision=precision).source for precision in ("float32", "bfloat16")]
        assert sources[0] == sources[1]


def test_a_saved_file_is_smaller_and_says_so(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256)), torch.randn(3, 256)
    compiled = [ingot.compile(model, (x,), precision=precision) for precision in ("float32", "bfloat16")]
    assert compiled[1].precision == "bfloat16" and compiled[0].source != compiled[1].source
    assert compiled[1].weight_bytes < 0.51 * compiled[0].weight_bytes
    for one in compiled:
        one.save(tmp_path / "m.ingot")
        with ingot_runtime.load(tmp_path / "m.ingot") as model_:
            assert model_.spec.precision == one.precision
            assert ("multiplied in bfloat16" in model_.describe()) == (one is compiled[1])
            assert model_.self_test() < (0.05 if one is compiled[1] else 1e-4)


def test_another_precision_is_refused() -> None:
    with pytest.raises(ValueError, match="precision is 'int3': give 'float32' or 'bfloat16'"):
        ingot.compile(nn.Linear(2, 2), (torch.zeros(1, 2),), precision="int3")  # type: ignore[arg-type]
