"""Products with weights of 4 and 8 bits: where they read integers, how these lie, and how far sums may be off.

A product of few rows is within (K + 4) · 2⁻²⁴ Σ|x||w| of the exact one, K its terms, before it is rounded to its own
dtype: integers less their zeros are exact in bfloat16, and so is each part of a number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from ingot.errors import ScheduleError
from ingot.ir.program import Program
from ingot.lowering.dependence import all_steps
from ingot.lowering.loop_ir import Stmt
from ingot.lowering.loop_ir_printer import print_module
from ingot.lowering.loop_module import Module
from ingot.targets.cuda.schedule.quantized.layouts import (
    CodeForm,
    CodeFragments,
    CodeRows,
    FragmentScales,
    read_fragments,
    read_scales,
)
from ingot.targets.cuda.schedule.quantized.products import CodedGemm
from ingot.targets.cuda.schedule.statements import TiledGemm
from ingot.targets.cuda.schedule.verifier import verify_schedule
from ingot.targets.cuda.target import CUDA
from ingot.targets.reference.interpreted_model import InterpretedModel
from ingot.targets.reference.target import REFERENCE
from tests.support.cuda_emulation.emulated_model import PackingTarget, build_models, lower_for_cuda
from tests.support.cuda_emulation.kernels import check_cubin, write_kernels
from tests.support.cuda_emulation.target import EMULATED, open_driver
from tests.support.cuda_emulation.toolkit import count, disassemble, needs_nvrtc
from tests.support.weight_only_layers import Coded, Tied, quantized

SINGLE = 2.0**-24
# Of a result, and of a weight that is dequantized to memory.
ROUNDING = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


class RoundedCoded(Coded):
    """The same, its numbers rounded to the dtype of what they are multiplied with."""

    def __init__(self, *args: Any, number: torch.dtype = torch.float32, **options: Any) -> None:
        super().__init__(*args, **options)
        self.number = number
        if self.bias is not None:
            self.bias.data = self.bias.data.to(number)

    def weight(self) -> torch.Tensor:
        if self.group is None:
            given = (self.codes, self.scales, self.zeros, 0, self.low, self.high, self.dtype)
            kwargs = {} if self.number is torch.float32 else {"out_dtype": self.number}
            return quantized.dequantize_per_channel(*given, **kwargs)
        given = (self.codes, self.scales, self.zeros, self.low, self.high, self.dtype, self.group, self.number)
        return quantized.dequantize_per_channel_group(*given)


def lower_model(
    model: nn.Module, args: tuple[torch.Tensor, ...], disabled: Sequence[str] = (), **options: Any
) -> tuple[Program, Module]:
    program = run_cpu_pipeline(ingot.capture(model.eval(), args, **options), (), REFERENCE)
    return program, lower_for_cuda(program, disabled)


def find_coded(steps: Sequence[Stmt]) -> list[CodedGemm]:
    return [step for step in all_steps(steps) if isinstance(step, CodedGemm)]


def judge(layer: Coded, x: torch.Tensor, ours: torch.Tensor, *, is_exact: bool = True) -> None:
    """A layer's result against the exact one. Not `is_exact`: the weight was rounded to the dtype of the rows."""
    codes, zeros, scales = layer.codes.double(), layer.zeros.double(), layer.scales.double()
    each = 1 if layer.group is None else layer.group
    zeros, scales = (one[:, None] if layer.group is None else one.repeat_interleave(each, 1) for one in (zeros, scales))
    weight = (codes - zeros) * scales
    exact, size = x.double() @ weight.T, x.double().abs() @ weight.abs().T
    if layer.bias is not None:
        exact, size = exact + layer.bias.double(), size + layer.bias.double().abs()
    rounding = ROUNDING[x.dtype]
    bound = (x.shape[-1] + 4) * SINGLE * size + rounding * exact.abs() + (0 if is_exact else rounding * size)
    assert ours.shape == exact.shape and ours.dtype == x.dtype
    worst = ((ours.double() - exact).abs() / bound.clamp_min(1e-30)).max()
    assert worst <= 1, float(worst)


def make_layers(number: torch.dtype) -> list[RoundedCoded]:
    """Every way in which codes lie: whole units, units of one fragment, groups that are padded, one group; signed,
    unsigned, with zeros; lines and terms that fill nothing."""
    torch.manual_seed(0)
    made = [
        RoundedCoded(256, 64, 32, number=number),
        RoundedCoded(192, 50, 64, zeros=True, bias=True, number=number),
        RoundedCoded(480, 33, 48, zeros=True, dtype=torch.uint8, number=number),
        RoundedCoded(40, 50, 8, zeros=True, dtype=torch.uint8, number=number),
        RoundedCoded(37, 13, None, number=number),
        RoundedCoded(77, 17, 7, number=number),
        RoundedCoded(96, 19, 12, bits=8, number=number),
        RoundedCoded(1100, 16, None, bits=8, bias=True, number=number),
        RoundedCoded(101, 31, None, bits=8, zeros=True, dtype=torch.uint8, number=number),
        RoundedCoded(256, 40, 128, bits=8, zeros=True, number=number),
        RoundedCoded(2048, 24, 128, number=number),
    ]
    return [layer.requires_grad_(False).eval() for layer in made]


@pytest.mark.parametrize("number", [torch.bfloat16, torch.float32, torch.float16], ids=str)
def test_rows(number: torch.dtype) -> None:
    """One row to more than are multiplied at once; the interpreter computes the same."""
    counts = (1, 8, 9, 33) if number is torch.bfloat16 else (1, 3, 8, 11)
    tried, lowered = [], []
    for layer in make_layers(number):
        for rows in counts:
            x = torch.randn(rows, layer.codes.shape[1]).to(number)
            tried.append((layer, x))
            lowered.append(lower_model(layer, (x,)))
    few = {torch.bfloat16: 32, torch.float16: 16, torch.float32: 10}[number]
    for (layer, x), run, (program, module) in zip(tried, build_models(lowered), lowered, strict=True):
        is_few = x.shape[0] <= few
        assert len(find_coded(module.steps)) == is_few, (layer, x.shape)
        judge(layer, x, run(x), is_exact=is_few)
        judge(layer, x, InterpretedModel(PackingTarget(), program, module)(x), is_exact=is_few)


def test_rows_that_lie_anyhow() -> None:
    """Rows a step apart, terms a step apart, and rows that begin at an odd place."""

    class Moved(nn.Module):
        def __init__(self, layer: Coded, move: Callable[[torch.Tensor], torch.Tensor]) -> None:
            super().__init__()
            self.layer, self.move = layer, move

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(self.move(x))

    tried, lowered = [], []
    moves: list[tuple[Callable[[torch.Tensor], torch.Tensor], tuple[int, ...]]] = [
        (lambda x: x.T, (64, 3)),
        (lambda x: x[:, 1:65], (3, 80)),
        (lambda x: x[:, 8:72], (3, 80)),
        (lambda x: x.reshape(6, 64), (2, 3, 64)),
    ]
    for number in (torch.float32, torch.bfloat16):
        layer = RoundedCoded(64, 50, 32, zeros=True, number=number).requires_grad_(False)
        for move, shape in moves:
            x = torch.randn(shape).to(number)
            tried.append((layer, move, x))
            lowered.append(lower_model(Moved(layer, move), (x,)))
    for (layer, move, x), run in zip(tried, build_models(lowered), strict=True):
        judge(layer, move(x), run(x))


def test_special_numbers() -> None:
    """Nan, infinities, and numbers that have as many bits as a float can: only what eager makes of them."""
    layer = RoundedCoded(64, 16, 32, bits=8).requires_grad_(False)
    layer.codes[:] = torch.arange(16, dtype=torch.int8)[:, None] + 1
    x = torch.zeros(6, 64)
    x[0, 3], x[1, 3], x[2, 3], x[3, 3] = float("nan"), float("inf"), -float("inf"), 1.5e36
    x[4, 5], x[5, 5] = 1 + 2.0**-23, 2.0**-126 * 1.75
    layer.scales[:] = 2.0**-8
    program, module = lower_model(layer, (x,))
    assert find_coded(module.steps)
    (run,) = build_models([(program, module)])
    with torch.no_grad():
        torch.testing.assert_close(run(x), layer(x), rtol=0, atol=0, equal_nan=True)


def test_layouts() -> None:
    """What is spread is found again, element by element."""
    torch.manual_seed(1)
    for bits, n, k, group in (
        (4, 16, 64, 32), (4, 50, 96, 32), (4, 17, 33, 33), (4, 5, 21, 7), (4, 40, 480, 48), (8, 16, 32, 32),
        (8, 31, 101, 101), (8, 20, 36, 12), (8, 33, 256, 128),
    ):  # fmt: skip
        form = CodeForm(bits, group)
        codes = torch.randint(0, 1 << bits, (n, k)) - 5
        layout = CodeFragments(form, 0, n, k, k, 1, -5)
        words = layout.spread(codes.reshape(-1))
        assert tuple(words.shape) == layout.stored_shape() and words.dtype is torch.uint32
        assert (read_fragments(words.numpy(), form, n, k) - 5 == codes.numpy()).all()
        turned = replace(layout, line_step=1, term_step=n).spread(codes.T.contiguous().reshape(-1))
        assert torch.equal(turned, words)
        scales = torch.randn(n, k // group)
        spread = FragmentScales(0, n, k // group, k // group, 1, 3).spread(scales.reshape(-1))
        assert (read_scales(spread.numpy(), form, n, k) == (scales - 3).numpy()).all()
        if bits == 4:
            rows = CodeRows(0, n, k, k, 1, -5).spread(codes.reshape(-1)).numpy()
            places = np.arange(k)
            found = rows[:, places // 8] >> (4 * (places % 8)).astype(np.uint32) & 15
            assert (found.astype(np.int64) - 5 == codes.numpy()).all()


def test_schedule(golden: Callable[[str, str], None]) -> None:
    """A product of few rows with what follows it in its kernel, and one of many behind its dequantized weight."""

    class Gate(nn.Module):
        def __init__(self, layer: Coded) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.silu(self.layer(x)) + 1

    model = Gate(RoundedCoded(64, 48, 32, zeros=True, number=torch.bfloat16).requires_grad_(False))
    lowered = [lower_model(model, (torch.randn(rows, 64).bfloat16(),))[1] for rows in (3, 100)]
    texts = [print_module(module, locations=False) for module in lowered]
    golden("coded_products", "\n".join(texts))


def test_what_reads_integers() -> None:
    x = torch.randn(4, 64)

    def has_coded(layer: nn.Module, x: torch.Tensor = x, disabled: Sequence[str] = (), **options: Any) -> bool:
        return bool(find_coded(lower_model(layer, (x,), disabled, **options)[1].steps))

    layer = RoundedCoded(64, 48, 32)
    assert has_coded(layer) and not has_coded(layer, disabled=["packed_codes"])
    assert not has_coded(layer, dynamic_shapes={"x": {0: "rows"}})
    assert "packed_codes" in CUDA.optional_passes
    far = RoundedCoded(64, 48, None, bits=8)
    far.zeros[3] = 400  # a code less this is not exact
    assert not has_coded(far)
    broken = RoundedCoded(64, 48, 32)
    broken.zeros = torch.full_like(broken.scales, 0.5)
    assert not has_coded(broken)
    wide = RoundedCoded(64, 48, 32)
    wide.codes[3, 3] = 100  # outside the range that is said
    (step,) = find_coded(lower_model(wide, (x,))[1].steps)
    assert step.form.bits == 8


def test_refused_steps() -> None:
    module = lower_model(RoundedCoded(64, 48, 32, zeros=True).requires_grad_(False), (torch.randn(4, 64),))[1]
    (step,) = find_coded(module.steps)

    def refuse(why: str, **changed: Any) -> None:
        with pytest.raises(ScheduleError, match=why):
            verify_schedule(replace(module, steps=(replace(step, **changed),)), "tiles")

    verify_schedule(module, "tiles")
    refuse("not groups of 28", form=CodeForm(4, 28))
    refuse("not groups of 32 integers of 4 or 8 bits", form=CodeForm(5, 32))
    refuse("not a weight of uint32", codes=step.a.buffer)
    refuse("has 384 elements, and 768 are needed", form=CodeForm(8, 32))
    refuse("outside", a=replace(step.a, rows=65))
    layer = RoundedCoded(64, 48, 32, number=torch.bfloat16).requires_grad_(False)
    module = lower_model(layer, (torch.randn(11, 64).bfloat16(),))[1]
    (step,) = find_coded(module.steps)
    rows = {step.a.buffer: replace(module.buffers[step.a.buffer], dtype="float32")}
    with pytest.raises(ScheduleError, match="11 rows of float32 are not one to 10"):
        verify_schedule(replace(module, buffers={**module.buffers, **rows}), "tiles")


@pytest.mark.parametrize("number", [torch.float32, torch.bfloat16], ids=str)
def test_recipes(number: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models that ingot.quantize makes: the weights stay integers in the file, and results are eager's."""
    monkeypatch.setenv("INGOT_CUDA_DRIVER", str(open_driver().path))
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(256, 96), nn.GELU(), nn.Linear(96, 257)).to(number).eval()
    x = torch.randn(1, 256).to(number)
    program = ingot.capture(model, (x,))
    sizes = []
    for recipe in (ingot.quantize.int8_weight_only(), ingot.quantize.int4_weight_only()):
        made = ingot.quantize.convert(ingot.quantize.prepare(program, recipe))
        compiled = ingot.compile(made, target=EMULATED)
        assert compiled.loop_ir.count("coded_gemm") == 2
        sizes.append(compiled.weight_bytes)
        with torch.no_grad():
            expected = made(x).double()
        error = float((compiled(x).double() - expected).abs().max() / expected.abs().max())
        assert error <= (2e-2 if number is torch.bfloat16 else 2e-6), error
        compiled.save(tmp_path / "m.ingot")
        with ingot_runtime.load(tmp_path / "m.ingot") as model_:
            assert model_.self_test() <= (2e-2 if number is torch.bfloat16 else 2e-6)
    weights = 256 * 96 + 96 * 257
    assert sizes[0] < 1.15 * weights and sizes[1] < 0.85 * weights  # of which a fifth are scales of float32


def test_tables() -> None:
    """An embedding and the product with the same table, both of 4 bits."""
    model = Tied(Coded(64, 50, 32, zeros=True), Coded(64, 64, 32)).requires_grad_(False)
    tokens = torch.tensor([3, 49, 0])
    program, module = lower_model(model, (tokens,))
    assert len(find_coded(module.steps)) == 2 and "CodeRows" in str(module)
    (run,) = build_models([(program, module)])
    with torch.no_grad():
        torch.testing.assert_close(run(tokens), model(tokens), rtol=1e-5, atol=1e-5)


@needs_nvrtc
def test_kernels_use_tensor_cores_and_spill_nothing(tmp_path: Path) -> None:
    for number in (torch.bfloat16, torch.float32):
        modules = []
        for rows in (1, 8, 32) if number is torch.bfloat16 else (1, 8):
            for bits, group, zeros in ((4, 32, False), (4, 128, True), (8, None, False), (4, 7, False)):
                depth = 2048 if group != 7 else 2058
                layer = RoundedCoded(depth, 2048, group, bits=bits, zeros=zeros, number=number).requires_grad_(False)
                modules.append(lower_model(layer, (torch.randn(rows, depth).to(number),))[1])
        for module in modules:
            text, _ = write_kernels(module)
            for found in disassemble(check_cubin(text, ["sm_90a"])["sm_90a"], tmp_path).values():
                assert count(found, "HMMA") > 0 and count(found, "STL", "LDL") == 0, find_coded(module.steps)
                assert "LDG.E.128" in found, find_coded(module.steps)
    text, _ = write_kernels(modules[0])
    assert check_cubin(text, ["sm_80"])["sm_80"]


def test_one_step_of_tiles_is_left() -> None:
    """With many rows the product is one of floats, behind a Map that reads words of eight integers."""
    layer = RoundedCoded(64, 48, 32, number=torch.bfloat16).requires_grad_(False)
    module = lower_model(layer, (torch.randn(100, 64).bfloat16(),))[1]
    kinds = [type(step) for step in module.steps]
    assert len(kinds) == 2 and issubclass(kinds[1], TiledGemm) and "CodeRows" in str(module)
