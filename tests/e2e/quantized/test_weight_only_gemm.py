"""Products with weights that are integers of 4 or 8 bits: how far they may be off, where they are used.

The weight is (code - zero) · scale, and every result of a product with it is within (K + 4) · 2⁻²⁴ Σ|x||w| of the exact
one, K its terms: for the weights are exact but for one rounding, and so is a group's sum of products times its scale.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import ingot
import ingot_runtime
from ingot.artifacts.compiled_model import CompiledModel
from ingot.codegen.build.isa import ISAS, Isa, missing_features
from ingot.lowering.loop_ir import Stmt
from ingot.targets.cpu.schedule.statements import GemmGroup, PackedGemm
from tests.support.pipeline_fixtures import assemble, lowered
from tests.support.weight_only_layers import Coded, Several, Tied, quantized

SINGLE = 2**-24
RUNNABLE = [isa for isa in ISAS.values() if isa.architecture and not missing_features(isa)]


def native(model: nn.Module, *args: torch.Tensor, isa: Isa | None = None, dims: object = None) -> CompiledModel:
    program, module = lowered(model, args, dynamic_shapes=dims)
    return assemble(program, module, isa=isa, threads=2)


def products(steps: tuple[Stmt, ...]) -> list[PackedGemm]:
    found: list[PackedGemm] = []
    for step in steps:
        found += [step] if isinstance(step, PackedGemm) else list(step.steps) if isinstance(step, GemmGroup) else []
    return found


def judge(layer: Coded, x: torch.Tensor, ours: torch.Tensor) -> None:
    """A layer's result against the theorem, and against what torch makes of it."""
    codes, zeros, scales = layer.codes.double(), layer.zeros.double(), layer.scales.double()
    if layer.group is None:
        weight = (codes - zeros[:, None]) * scales[:, None]
    else:
        weight = (codes - zeros.repeat_interleave(layer.group, 1)) * scales.repeat_interleave(layer.group, 1)
    exact, size = x.double() @ weight.T, x.double().abs() @ weight.abs().T
    if layer.bias is not None:
        exact, size = exact + layer.bias.double(), size + layer.bias.double().abs()
    bound = (x.shape[-1] + 4) * SINGLE * size
    assert ours.shape == exact.shape
    assert ((ours - exact).abs() <= bound).all()
    assert ((ours - layer(x)).abs() <= 2 * bound).all()


def layers() -> list[Coded]:
    """Every way in which codes lie: groups, one group, a last word that is not full; signed, unsigned, with zeros."""
    torch.manual_seed(0)
    return [
        Coded(64, 64, 32),
        Coded(96, 50, 32, zeros=True, bias=True),
        Coded(40, 50, 8, zeros=True, dtype=torch.uint8),
        Coded(33, 15, 33),
        Coded(36, 100, 12, bits=8),
        Coded(1100, 16, None, bits=8, bias=True),
        Coded(21, 17, 7, bits=8, zeros=True, dtype=torch.uint8),
    ]


@pytest.mark.parametrize("isa", RUNNABLE, ids=str)
def test_products_of_any_number_of_rows(isa: Isa) -> None:
    each = layers()
    model = Several(*each).eval()
    xs = [torch.randn(5, layer.codes.shape[1]) for layer in each]
    dims = {"xs": [{0: "rows"} for _ in xs]}
    made = native(model, *xs, isa=isa, dims=dims)
    chosen = [step.codes for step in products(made._module.steps)]
    assert [codes.bits for codes in chosen] == [4, 4, 4, 4, 8, 8, 8]
    assert [codes.zeros != 0 for codes in chosen] == [bool((layer.zeros != 0).any()) for layer in each]
    for rows in (1, 2, 7, 9, 33, 130):
        xs = [torch.randn(rows, layer.codes.shape[1]) for layer in each]
        with torch.no_grad():
            for layer, x, ours in zip(each, xs, made(*xs), strict=True):
                judge(layer, x, ours)


@pytest.mark.parametrize("rows", [0, 1, 5, 65])
def test_products_of_known_rows(rows: int) -> None:
    each = [Coded(64, 96, 32, zeros=True), Coded(70, 50, None, bits=8)]
    xs = [torch.randn(rows, 64), torch.randn(70, rows).T]  # the second lies the other way
    made = native(Several(*each), *xs)
    with torch.no_grad():
        for layer, x, ours in zip(each, xs, made(*xs), strict=True):
            judge(layer, x, ours)


def test_how_codes_lie_in_words() -> None:
    """Eight terms of a column in a word, or four, the first one lowest; a group begins with a word of its own."""
    layer = Coded(10, 3, 5)
    layer.codes[:] = torch.arange(-8, 2)
    layer.codes[1] = 7
    made = native(layer, torch.randn(1, 10))
    words = _weights(made, "uint32").reshape(2, 16)  # groups of five terms, a panel of 16 columns
    assert [hex(word) for word in words[:, 0]] == ["0xcba98", "0x10fed"]
    assert [hex(word) for word in words[:, 1]] == ["0x77777", "0x77777"]
    assert not words[:, 3:].any()

    layer = Coded(6, 3, None, bits=8, dtype=torch.uint8, zeros=True)
    layer.codes[0] = torch.tensor([0, 1, 127, 128, 129, 255])
    words = _weights(native(layer, torch.randn(1, 6)), "uint32").reshape(2, 16)
    assert [hex(word) for word in words[:, 0]] == ["0xff8180", "0x7f01"]


def _weights(made: CompiledModel, dtype: str) -> np.ndarray:
    (name,) = (name for name, buffer in made._module.buffers.items() if buffer.dtype == dtype)
    stored, shape, data = made._blob.tensors()[name]
    assert stored == "U32"
    return np.frombuffer(data, np.uint32).reshape(shape)


def test_codes_that_are_not_in_the_range_that_is_said() -> None:
    layer = Coded(16, 8, 8)
    layer.codes[3, 3] = 100
    x = torch.randn(3, 16)
    made = native(layer, x)
    with torch.no_grad():
        assert [step.codes.bits for step in products(made._module.steps)] == [8]
        judge(layer, x, made(x))


class One(nn.Module):
    """A linear layer with one scale and one zero for all of its weight: numbers, or constants of one element."""

    def __init__(self, zero: int, dtype: torch.dtype, constants: bool) -> None:
        super().__init__()
        self.zero, self.dtype, self.constants = zero, dtype, constants
        ends = torch.iinfo(dtype)
        self.given = (ends.min, ends.max, dtype)
        self.register_buffer("codes", torch.randint(ends.min, ends.max + 1, (20, 37)).to(dtype))
        self.register_buffer("one_scale", torch.tensor([2.0**-10 * 1.3]))
        self.register_buffer("one_zero", torch.tensor([zero]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.constants:
            weight = quantized.dequantize_per_tensor.tensor(self.codes, self.one_scale, self.one_zero, *self.given)
        else:
            weight = quantized.dequantize_per_tensor.default(self.codes, 2.0**-10 * 1.3, self.zero, *self.given)
        return torch.nn.functional.linear(x, weight)


def test_one_scale_for_all() -> None:
    torch.manual_seed(0)
    cases = [(zero, dtype, const) for zero, dtype in ((0, torch.int8), (131, torch.uint8)) for const in (False, True)]
    model = Several(*(One(*case) for case in cases))
    xs = [torch.randn(3, 37) for _ in cases]
    made = native(model, *xs)
    assert [step.codes.bits for step in products(made._module.steps)] == [8] * 4
    for layer, x, ours in zip(model.layers, xs, made(*xs), strict=True):
        weight = (layer.codes.double() - layer.zero) * 2.0**-10 * 1.3
        bound = 41 * SINGLE * (x.double().abs() @ weight.abs().T)
        assert ((ours - x.double() @ weight.T).abs() <= bound).all()
        torch.testing.assert_close(ours, layer(x))


def test_groups_that_do_not_fit() -> None:
    """One scale a row serves any group that is longer; other groups must divide the row, as torch has it."""
    layer, x = Coded(24, 8, 24), torch.randn(2, 24)
    layer.group = 32
    made = native(layer, x)
    assert [step.codes.group for step in products(made._module.steps)] == [24]
    layer.group = 24
    with torch.no_grad():
        judge(layer, x, made(x))
    layer.group = 7
    with pytest.raises(ingot.errors.CaptureError, match="divisible by group_size"):
        ingot.capture(layer, (x,))


def test_what_cannot_be_read_as_codes_is_computed() -> None:
    """By the terms and not by the columns; of codes that are an argument; with another type of result."""

    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = Coded(16, 8, None, bits=8, zeros=True)
            self.register_buffer("by_term", torch.rand(16) + 0.5)

        def forward(self, x: torch.Tensor, codes: torch.Tensor) -> list[torch.Tensor]:
            given, zeros = (self.layer.zeros, torch.zeros(16, dtype=torch.int64))
            by_term = quantized.dequantize_per_channel(self.layer.codes, self.by_term, zeros, 1, -128, 127, torch.int8)
            other = quantized.dequantize_per_channel(codes, self.layer.scales, given, 0, -128, 127, torch.int8)
            half = quantized.dequantize_per_channel(
                self.layer.codes, self.layer.scales, given, 0, -128, 127, torch.int8, out_dtype=torch.bfloat16
            )
            return [x @ by_term.T, x @ other.T, (x.bfloat16() @ half.T).float()]

    torch.manual_seed(0)
    model, args = Odd(), (torch.randn(3, 16), torch.randint(-128, 128, (8, 16)).to(torch.int8))
    made = native(model, *args)
    assert all(step.codes is None for step in products(made._module.steps))
    for ours, theirs, near in zip(made(*args), model(*args), (1e-5, 1e-5, 0.02), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=near, atol=near * float(theirs.abs().max()))


def test_the_other_way_round() -> None:
    """x · w with w[terms, columns], by the columns."""

    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("codes", torch.randint(-128, 128, (24, 20)).to(torch.int8))
            self.register_buffer("scales", torch.rand(20))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ quantized.dequantize_per_channel(self.codes, self.scales, None, 1, -128, 127, torch.int8)

    model, x = Turned(), torch.randn(2, 4, 24)
    made = native(model, x)
    assert [step.codes is not None for step in products(made._module.steps)] == [True]
    torch.testing.assert_close(made(x), model(x), rtol=1e-5, atol=1e-3)


def test_products_of_the_same_rows_are_one() -> None:
    class Three(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v = (Coded(32, 48, 16) for _ in range(3))

        def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
            return [self.q(x), self.k(x), self.v(x)]

    torch.manual_seed(0)
    model, x = Three(), torch.randn(1, 32)
    made = native(model, x)
    (step,) = (step for step in made._module.steps if isinstance(step, GemmGroup))
    assert len(step.steps) == 3
    torch.testing.assert_close(made(x), model(x), rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8], ids=str)
def test_a_table_of_codes_is_read_where_tokens_say(dtype: torch.dtype) -> None:
    """The rows read are widened, no others; the table lies in 4 bits, once for its rows and once for its columns."""
    torch.manual_seed(0)
    model = Tied(Coded(27, 40, 9, zeros=True, dtype=dtype), Coded(27, 27, None, bits=8)).eval()
    tokens = torch.tensor([[3, 0, 39]])
    made = native(model, tokens)
    buffers = made._module.buffers.values()
    assert not any(buffer.kind == "temporary" and buffer.size == 27 * 40 for buffer in buffers)
    tables = [tensor[1] for tensor in made._blob.tensors().values() if tensor[0] == "U32"]
    assert (40, 4, 1) in tables and not any(tensor[0] in ("I8", "U8") for tensor in made._blob.tensors().values())
    torch.testing.assert_close(made(tokens), model(tokens), rtol=1e-5, atol=1e-5)


def test_constants_stay_codes() -> None:
    """Folding would write them out as the floats that they stand for."""
    layer = Coded(16, 8, 8)
    program = ingot.capture(layer, (torch.randn(1, 16),))
    ingot.passes.constant_fold(program, parameters=True)
    assert "dequantize_per_channel_group" in program.graph_module.code


def test_a_saved_file_is_smaller_and_runs_without_torch(tmp_path: Path) -> None:
    torch.manual_seed(0)
    plain = nn.Linear(512, 512, bias=False)
    x = torch.randn(2, 512)
    sizes = {}
    for name, model in {"float": plain, "int8": Coded(512, 512, None, bits=8), "int4": Coded(512, 512, 128)}.items():
        compiled = ingot.compile(model, (x,))
        sizes[name] = compiled.weight_bytes
        compiled.save(tmp_path / "m.ingot")
        with ingot_runtime.load(tmp_path / "m.ingot") as loaded, torch.no_grad():
            assert loaded.self_test() < 1e-4
            np.testing.assert_allclose(loaded(x.numpy()), model(x).numpy(), rtol=1e-4, atol=1e-3)
    assert sizes["int8"] < 0.26 * sizes["float"] and sizes["int4"] < 0.135 * sizes["float"]


@pytest.mark.parametrize("bits", [4, 8])
def test_what_recipes_make_is_read_as_codes(bits: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(64, 64), nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 64)).eval()
    tokens = torch.tensor([[1, 63, 7]])
    recipes = ingot.quantize
    recipe = recipes.int8_weight_only() if bits == 8 else recipes.int4_weight_only(kinds=("linear", "embedding"))
    program = recipes.convert(recipes.prepare(ingot.capture(model, (tokens,)), recipe))
    compiled = ingot.compile(program, (tokens,))
    assert [step.codes.bits for step in products(compiled._module.steps)] == [bits, bits]
    assert compiled.weight_bytes < (0.25 if bits == 4 else 0.35) * sum(4 * p.numel() for p in model.parameters())
    with torch.no_grad():
        torch.testing.assert_close(compiled(tokens), program(tokens), rtol=1e-5, atol=1e-5)
