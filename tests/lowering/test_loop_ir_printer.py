"""The loop IR as text: every kind of step, sizes as a person writes them, and the same text in every process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import get_args

import torch
from torch import nn

import ingot
from ingot.lowering.index_expr import Size, largest, size_symbol, smallest, symbol, value_symbol
from ingot.lowering.loop_body import BodyBuilder
from ingot.lowering.loop_ir import (
    Assert,
    Attention,
    AttentionBackward,
    BindSymbol,
    BlockMask,
    Body,
    Buffer,
    ClassifyMaskBlocks,
    Convolution,
    ExternKernel,
    For,
    Gemm,
    If,
    Loop,
    LoopNest,
    Map,
    MatrixView,
    Op,
    Reduce,
    Scan,
    Scatter,
    SourceLocation,
    StepGroup,
    Stmt,
    Store,
    StridedView,
    While,
    WithEpilogue,
)
from ingot.lowering.loop_ir_printer import format_size, print_body, print_module, print_steps
from ingot.lowering.loop_module import Argument, Module, PackedWeight, SymbolSource
from ingot.targets.cpu.schedule.statements import DualGemm, PackedGemm, PackedMatrix, StripMined
from ingot.targets.cpu.schedule.weight_layouts import (
    CodeWordLayout,
    ColumnSumsLayout,
    InterleavedPanelLayout,
    PackedLayout,
    PanelLayout,
    PanelView,
    ScaledLayout,
    StridedLayout,
    WeightView,
    WinogradPanelLayout,
)
from ingot.targets.cpu.target import CPU
from tests.support.kernel_models import CASES, model_of
from tests.support.pipeline_fixtures import lowered

N = size_symbol("n0")
ROW, COLUMN = symbol("i0", below=4), symbol("i1", below=8)
LOOPS = (Loop("i0", 4), Loop("i1", 8))


def test_sizes_are_written_as_strides_fall() -> None:
    assert format_size(7) == "7"
    assert format_size(ROW * 8 + COLUMN - 1) == "8*i0 + i1 - 1"
    assert format_size(N * ROW + COLUMN) == "i0*n0 + i1"
    assert format_size(5 - ROW) == "-i0 + 5"
    assert format_size(value_symbol(7) * 8 + COLUMN) == "8*%7 + i1"
    assert format_size(N // 2) == "n0 // 2"
    assert format_size((N + 1) // 2 * 3 - (N + 5) % 7) == "3*((n0 + 1) // 2) - ((n0 + 5) % 7)"
    assert format_size(largest(N, 4) + smallest(value_symbol(3), N)) == "max(4, n0) + min(n0, %3)"


NOWHERE = SourceLocation()


def add_one(buffer: str = "x", to: str = "t", origin: SourceLocation = NOWHERE) -> Map:
    ops = BodyBuilder()
    value = ops.call("add", ops.load(buffer, ROW * 8 + COLUMN, "float32"), ops.const(1, "float32"))
    return Map(LOOPS, ops.finish([value]), (Store(to, ROW * 8 + COLUMN, 0),), origin)


def flag() -> Body:
    ops = BodyBuilder()
    return ops.finish([ops.load("flag", 0, "bool")])


def place() -> Body:
    ops = BodyBuilder()
    return ops.finish([ops.load("places", 0, "int64")])


def epilogue(to: str = "t", dtype: str = "float32") -> Map:
    return Map(LOOPS, Body((Op("accumulator", (), dtype),), (0,)), (Store(to, ROW * 8 + COLUMN, 0),))


def gather() -> Map:
    """A body with masks, checks, casts and a store that adds."""
    ops = BodyBuilder()
    at = ops.check_index(ops.load("places", ROW, "int64"), N)
    inside = ops.call("lt", ops.index(COLUMN * 2), ops.const(8, "int64"))
    with ops.mask(inside):
        value = ops.load("x", at * 8 + COLUMN * 2, "float32")
    half = ops.cast(value, "bfloat16")
    body = Body(tuple(ops.ops), (half, 1))
    return Map(LOOPS, body, (Store("t", at, 0, "add"),), collides=True)


def every_step() -> tuple[Stmt, ...]:
    here = SourceLocation("block.act", "model.py:7", "relu.default")
    view, origin = MatrixView("x", 0, 8, 1), SourceLocation("", "model.py:9", "")
    score = Body((Op("accumulator", (), "float32"),), (0,))
    summed = Body(add_one().body.ops, (2, 0))
    pair = BodyBuilder()
    mask = pair.finish([pair.call("ge", pair.index(symbol("i")), pair.index(symbol("j")))])
    scan = BodyBuilder()
    state = scan.emit("input", (), "float32", 0)
    following = scan.call("add", state, scan.load("x", ROW * 8 + COLUMN, "float32"))
    start = BodyBuilder()
    batch = (Loop("i0", 1), Loop("i1", 2))
    return (
        add_one(origin=here),
        gather(),
        Reduce(LOOPS[:1], LOOPS[1:], ("sum", "max"), summed, (Store("row", ROW, 0), Store("u", ROW, 1))),
        Reduce(LOOPS[:1], LOOPS[1:], ("sum", "max"), summed, (Store("row", ROW, 0),)),
        LoopNest(LOOPS[:1], (add_one("x", "t"), add_one("t", "y")), ("t",), here),
        Gemm((Loop("b", 2),), 4, 8, N, MatrixView("x", symbol("b") * 32, N, 1), view, "float32", epilogue(), origin),
        Convolution(
            1, 2, 8, 1, (4, 8), (2, 2), (3, 3), (1, 1), (0, N), (1, 1),
            StridedView("x", 0, (64, 32, 8, 1)), StridedView("w", 4, (18, 9, 3, 1)), "float32", epilogue(),
        ),
        Attention(
            batch, N, N, 8, 8, 0.5, True, view, view, view, score, "float32", epilogue(), mask=mask,
            tiles=BlockMask("tiles", 0, 2), lse=Store("row", symbol("i"), 0),
        ),
        ClassifyMaskBlocks(batch, N, N, 48, 64, mask, "tiles"),
        AttentionBackward(
            "keys", batch, N, N, 8, 8, 0.5, 1, 1, view, view, view, view, score, "float32", "t", "u",
            scatter=(Scatter(place(), Store("table", value_symbol(0), 1, "add")),), parts=4,
        ),
        Scan(
            LOOPS[:1], LOOPS[1], start.finish([start.const(0, "float32")]), scan.finish([following, following]),
            (Store("t", ROW * 8 + COLUMN, 1),), back=True,
        ),
        ExternKernel("sort", ("x",), ("t", "u"), (4, N), (("descending", True), ("dtype", "float32"))),
        BindSymbol("n7", place()),
        Assert(flag(), "A dim must be 1.", on_sizes=True),
        If(flag(), (add_one(),), ()),
        While((add_one(),), flag(), (add_one("t", "t"),)),
        For(Loop("n5", N), (add_one(),)),
    )  # fmt: skip


def module(steps: tuple[Stmt, ...]) -> Module:
    buffers = [
        Buffer("x", "float32", (N, 8), "input"),
        Buffer("places", "int64", (4,), "input"),
        Buffer("flag", "bool", (), "input"),
        Buffer("w", "float32", (8, 2, 3, 3), "weight"),
        Buffer("t", "float32", (4, 8)),
        Buffer("y", "bfloat16", (4, 8), "output"),
    ]
    inputs = (
        Argument("x", "x", "float32", (N, 8), mutated=True),
        Argument("places", "places", "int64", (4,)),
        Argument("flag", "flag", "bool", (), scalar=True),
    )
    symbols = {"n0": SymbolSource(0, 0, "batch", 2, 64), "n1": SymbolSource(0, 1, "length", 1, None, 2, 1)}
    outputs = (Argument("y", "result", "bfloat16", (4, 8)),)
    weights = (PackedWeight("w", "conv.weight"),)
    return Module({b.name: b for b in buffers}, steps, inputs, outputs, weights, symbols, {}, 2, "bfloat16")


def test_every_kind_of_step(golden: Callable[[str, str], None]) -> None:
    steps = every_step()
    kinds = {kind for kind in get_args(Stmt) if kind not in (WithEpilogue, StepGroup)}
    assert {type(step) for step in steps} >= kinds, "a kind of step is missing here"
    text = print_module(module(steps))
    golden("every step", text)
    assert str(module(steps)) == text


def test_locations_may_be_left_out() -> None:
    step = add_one(origin=SourceLocation("act", "model.py:7", "relu.default"))
    assert print_steps((step,)).startswith("map (i0 < 4, i1 < 8) {  // relu.default  act  model.py:7\n")
    assert "//" not in print_steps((step,), locations=False)


def test_a_body_that_is_wrong_is_printed_too() -> None:
    """Whoever finds the fault needs to see it."""
    step = replace(add_one(), stores=(Store("t", 0, 5),))
    assert "store t[0] = result 5" in print_steps((step,))
    assert print_body(Body((Op("add", (3, 4), "float32"),), (9,))) == "%0 = add %3, %4: float32\nyield %9\n"


def test_modules_that_differ_have_texts_that_differ() -> None:
    steps = every_step()
    texts = [print_steps((step,)) for step in steps]
    assert len(set(texts)) == len(texts)
    assert print_steps((add_one("x", "t"),)) != print_steps((add_one("x", "u"),))


def test_steps_of_the_cpu(golden: Callable[[str, str], None]) -> None:
    """A target adds steps of its own: they are printed by their fields. The texts of tests/targets/cpu/schedule have a
    group and strips."""
    case = CASES["a pair of integers"]
    _, made = lowered(model_of("a pair of integers"), case.args())
    assert {DualGemm, PackedGemm, Map} <= {type(step) for step in made.steps}
    text = print_module(made, locations=False)
    golden("a pair of integers", text)
    assert "object at 0x" not in text and "SourceLocation" not in text and "Expr" not in text


def test_layouts_of_the_cpu() -> None:
    view, panels = WeightView(0, (4, 2), (1, N)), PanelView(0, (1, 1, 8, 16), (0, 128, 1, 8), 8)
    layouts: dict[PackedLayout, str] = {
        StridedLayout(view): "StridedLayout(view=WeightView(offset=0, shape=(4, 2), strides=(1, n0)))",
        ScaledLayout(view, 0.5): "ScaledLayout(view=WeightView(offset=0, shape=(4, 2), strides=(1, n0)), times=0.5)",
        ColumnSumsLayout(view, -3): ", times=-3)",
        PanelLayout(panels): (
            "PanelLayout(view=PanelView(offset=0, shape=(1, 1, 8, 16), strides=(0, 128, 1, 8), columns=8))"
        ),
        PanelLayout(panels, 8): ", columns=8), minus=8)",
        WinogradPanelLayout(panels): "WinogradPanelLayout(view=PanelView(",
        InterleavedPanelLayout(panels, 1, 4): ", run=1, together=4)",
        CodeWordLayout(panels, 4, 8, 0): ", bits=4, group=8, minus=0)",
    }
    assert {type(layout) for layout in layouts} == set(get_args(PackedLayout))
    for layout, said in layouts.items():
        text = print_module(replace(module(()), weights=(PackedWeight("w", "conv.weight", layout),)))
        assert f"buffer w: float32[8, 2, 3, 3] weight = conv.weight as {type(layout).__name__}(" in text
        assert said in text


def test_strips_by_hand() -> None:
    gemm = _packed()
    text = print_steps((StripMined(N, (gemm, gemm), ("t",), ((6, 6), (6, N)), 2),))
    assert text.startswith("strip_mined images=n0 local=(t) grids=((6, 6), (6, n0)) lines=2 {\n  packed_gemm m=4 ")


def _packed() -> PackedGemm:
    return PackedGemm((), 4, 8, 8, MatrixView("x", 0, 8, 1), PackedMatrix("w", 0, 16), "float32", epilogue())


class Small(nn.Module):
    """Symbols, a nest, a product and a lookup: what sets could shuffle."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm, self.out = nn.Embedding(11, 16), nn.LayerNorm(16), nn.Linear(16, 16)

    def forward(self, places: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.table(places) * scale)
        return torch.softmax(self.out(x) @ x.mT, -1)


def print_small() -> str:
    args = (torch.zeros(3, 5, dtype=torch.int64), torch.ones(3, 1, 1))
    return print_module(lowered(Small().eval(), args, dynamic_shapes=({0: "batch", 1: "length"}, {0: "batch"}))[1])


def test_another_process_prints_the_same() -> None:
    code = "from tests.lowering.test_loop_ir_printer import print_small; print(print_small(), end='')"
    root = Path(__file__).parent.parent.parent
    path = os.pathsep.join([str(root), *sys.path])
    environment = {**os.environ, "PYTHONHASHSEED": "2025", "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == print_small()


def test_a_compiled_model_shows_its_loops() -> None:
    model, x = nn.Sequential(nn.Linear(16, 8), nn.ReLU()).eval(), torch.zeros(3, 16)
    compiled = ingot.compile(model, (x,))
    module = CPU.schedule(CPU.lower(compiled.program))
    assert compiled.loop_ir == print_module(module)
    assert "packed_gemm m=3 n=8 k=16 dtype=float32 {  // linear.default  0" in compiled.loop_ir
    compiled.close()


def test_long_indices_stay_on_one_line() -> None:
    index: Size = 0
    for number in range(30):
        index = index * 3 + symbol(f"i{number}", below=3)
    body = Body((Op("index", (), "int64", index),), (0,))
    assert print_body(body).count("\n") == 2
