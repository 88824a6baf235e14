"""AMX: what uses it, its switch, and the real instructions, which compile everywhere and run where they exist.

Exact results by emulated instructions are in test_random_windows.py, errors of bfloat16 in test_bfloat16.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ingot.codegen.build.isa import find_isa
from ingot.codegen.build.toolchain import find
from ingot.lowering import loop_ir
from ingot.lowering.loop_ir import StepGroup, Stmt
from ingot.scheduling.buffer_planning import plan
from ingot.targets.cpu.codegen.module_emitter import emit
from ingot.targets.cpu.schedule.statements import AmxAttention, PackedGemm, TiledConvolution
from ingot.targets.cpu.target import CPU
from ingot_runtime.cpu_features import architecture
from tests.support.emulated_amx import DENIED_AMX, EMULATED_AMX
from tests.support.int8_layers import Layer, inputs
from tests.support.pipeline_fixtures import QUICK, assemble, lowered

AMX = find_isa("x86-64-v4-amx")


class Both(nn.Module):
    """Layers of floats and of bytes: products, a convolution, one whose channels are groups, and attention."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.depth = nn.Conv2d(16, 40, 3, padding=1), nn.Conv2d(48, 48, 3, groups=48)
        self.bytes, self.floats = Layer(64, 40, out=None), nn.Linear(64, 50)
        self.wide = nn.Linear(64, 100, dtype=torch.float64)

    def forward(self, image: torch.Tensor, other: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        tokens = x.view(1, 1, *x.shape)
        seen = F.scaled_dot_product_attention(tokens, tokens, tokens)
        return self.conv(image), self.depth(other), self.bytes(x), self.floats(x).relu(), self.wide(x.double()), seen


class Beside(nn.Module):
    """Layers, each with an input of its own."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(layer(x) for layer, x in zip(self.layers, given, strict=True))


def both() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    return Both().eval(), (torch.randn(2, 16, 9, 11), torch.randn(1, 48, 6, 7), *inputs((37, 64)))


def products(steps: tuple[Stmt, ...]) -> Iterator[PackedGemm | TiledConvolution]:
    for step in steps:
        if isinstance(step, StepGroup):
            yield from products(step.members())
        elif isinstance(step, PackedGemm | TiledConvolution):
            yield step


def test_what_uses_it() -> None:
    model, args = both()
    module = lowered(model, args, precision="bfloat16")[1]
    found = {(type(step).__name__, step.factors, step.dtype): step.amx for step in products(module.steps)}
    assert found == {
        ("TiledConvolution", "bfloat16", "float32"): True,
        ("TiledConvolution", "same", "float32"): False,
        ("PackedGemm", "int8", "int32"): True,
        ("PackedGemm", "bfloat16", "float32"): True,
        ("PackedGemm", "same", "float64"): False,
    }


def test_its_switch() -> None:
    model, args = both()
    program, module = lowered(model, args, precision="bfloat16")
    off = CPU.schedule(CPU.lower(program, "bfloat16", {"amx"}), {"amx", "amx_attention"})
    assert not any(step.amx for step in products(off.steps))
    assert "ig_amx" not in emit(off, plan(off)).text and "ig_tile_amx_u8" in emit(module, plan(module)).text
    plain = assemble(program, off, threads=2)(*args)[:-1]
    for isa in (EMULATED_AMX, DENIED_AMX):
        for ours, right in zip(assemble(program, module, isa=isa, threads=2)(*args)[:-1], plain, strict=True):
            torch.testing.assert_close(ours, right, rtol=2**-20, atol=2**-16)


@pytest.mark.skipif(architecture() != "x86_64", reason="AMX is a part of x86-64")
@pytest.mark.parametrize("parts", [1, 3])
def test_the_instructions_compile(parts: int, tmp_path: Path) -> None:
    model, args = both()
    module = lowered(model, args, precision="bfloat16")[1]
    library, flags = tmp_path / "model.so", QUICK if parts == 1 else ()
    find().compile_library(emit(module, plan(module)).text, AMX, library, extra_flags=flags, parts=parts)
    code = library.read_bytes()
    opcodes = {"tdpbf16ps": (b"\xc4\xe2", b"\x5c"), "tdpbusd": (b"\xc4\xe2", b"\x5e")}
    for name, (prefix, opcode) in opcodes.items():
        places = (code.find(prefix, at) for at in range(len(code)) if code.startswith(prefix, at))
        assert any(code[at + 3 : at + 4] == opcode for at in places), name


# Channels of whole registers, of which rows are read where they lie; lines of images shorter and longer than a tile.
WINDOWS = [
    (64, 40, (3, 3), (1, 40, 9), {"padding": 1}),
    (128, 64, (3, 3), (2, 9, 41), {"padding": 1}),
    (64, 48, (5, 2), (1, 20, 19), {"stride": (1, 2), "dilation": (2, 1)}),
    (192, 70, (1, 3), (3, 5, 17), {"groups": 3, "padding": (0, 1)}),
    (1088, 16, (3, 1), (1, 7, 35), {"stride": 2}),
]


@pytest.mark.parametrize("kind", ["bfloat16", "int8"])
def test_rows_of_windows_are_read_where_they_lie(kind: str) -> None:
    draws = torch.Generator().manual_seed(3)
    layers: list[nn.Module] = []
    shapes = [(images, channels, *size) for channels, _, _, (images, *size), _ in WINDOWS]
    for channels, outs, kernel, _, options in WINDOWS:
        outs *= options.get("groups", 1)
        if kind == "int8":
            layers.append(Layer(channels, outs, kernel, zero=255, out=None, options=options))
        else:
            layers.append(nn.Conv2d(channels, outs, kernel, **options))
            for parameter in layers[-1].parameters():
                parameter.data = torch.randint(-4, 5, parameter.shape, generator=draws).float()
    model = Beside(layers).eval()
    given = inputs(*shapes) if kind == "int8" else tuple(
        torch.randint(-4, 5, shape, generator=draws).float() for shape in shapes
    )  # fmt: skip
    native = assemble(*lowered(model, tuple(given), precision="bfloat16"), isa=EMULATED_AMX, threads=2)
    with torch.no_grad():
        expected = model(*given) if kind == "int8" else model.double()(*(x.double() for x in given))
        for ours, right in zip(native(*given), expected, strict=True):
            assert torch.equal(ours.to(right.dtype), right)


class Attention(nn.Module):
    """Attention with a mask, or with none but perhaps the causal one."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal = causal

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, mask, is_causal=self.causal)


@pytest.mark.parametrize(
    ("batch", "queries", "keys", "depth", "values", "kind"),
    [
        ((1, 2), 50, 70, 64, 64, "plain"),
        ((2, 1), 128, 128, 64, 64, "causal"),
        ((1, 1), 5, 129, 33, 80, "plain"),
        ((1, 2), 49, 49, 16, 24, "causal"),
        ((1, 1), 100, 33, 128, 128, "mask"),
        ((2, 2), 60, 150, 40, 8, "mask"),
    ],
)
def test_attention(batch: tuple[int, int], queries: int, keys: int, depth: int, values: int, kind: str) -> None:
    """At most twice as far off as torch in bfloat16, which rounds the result too; and as exact as ever without AMX."""
    shapes = [(queries, depth), (keys, depth), (keys, values)]
    given = [torch.randn(*batch, *shape) for shape in shapes]
    if kind == "mask":
        given.append((torch.rand(1, 1, queries, keys) < 0.7).index_fill(3, torch.tensor([0]), True))
    model = Attention(kind == "causal")
    exact = model(*(x.double() if x.is_floating_point() else x for x in given))
    coarse = model(*(x.bfloat16() if x.is_floating_point() else x for x in given)).double()
    program, module = lowered(model, tuple(given), precision="bfloat16")
    assert [type(step) for step in module.steps if isinstance(step, loop_ir.Attention)] == [AmxAttention]
    limit = float((coarse - exact).norm())
    for isa in (EMULATED_AMX, DENIED_AMX):
        off = float((assemble(program, module, isa=isa, threads=2)(*given).double() - exact).norm())
        assert limit / 1e3 < off <= 2 * limit
    plain = assemble(program, module, isa=find_isa("x86-64-v3"))
    assert float((plain(*given).double() - exact).norm()) < limit / 100


def test_attention_has_its_switch() -> None:
    given = tuple(torch.randn(1, 2, 40, 16) for _ in range(3))
    program, _ = lowered(Attention(False), given)
    off = CPU.schedule(CPU.lower(program, "bfloat16"), {"amx_attention"})
    assert not any(isinstance(step, AmxAttention) for step in off.steps)
    exact = Attention(False)(*given)
    torch.testing.assert_close(assemble(program, off, isa=EMULATED_AMX)(*given), exact, rtol=1e-5, atol=1e-5)
