"""The verifier of the CPU's own steps: for each rule a step that breaks it, and what is said of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ingot.errors import ScheduleError
from ingot.lowering.index_expr import Size, symbol
from ingot.lowering.loop_ir import Body, Buffer, Convolution, Loop, Map, MatrixView, Op, Stmt, Store, StridedView
from ingot.lowering.loop_module import Module
from ingot.targets.cpu.schedule.statements import (
    DualGemm,
    GemmGroup,
    PackedGemm,
    PackedMatrix,
    QuantizedLayout,
    StripMined,
    TiledConvolution,
)
from ingot.targets.cpu.schedule.verifier import verify_schedule

BUFFERS = (
    Buffer("x", "float32", (36, 8), "input"),
    Buffer("bytes", "uint8", (36, 8), "input"),
    Buffer("tiles", "float32", (16, 9, 16), "input"),
    Buffer("w", "float32", (1, 1, 8, 16), "weight"),
    Buffer("v", "float32", (1, 1, 8, 16), "weight"),
    Buffer("narrow", "float32", (1, 1, 7, 16), "weight"),
    Buffer("w8", "int8", (1, 1, 2, 16, 4), "weight"),
    Buffer("words", "uint32", (1, 1, 2, 16), "weight"),
    Buffer("scales", "float32", (1, 2, 16), "weight"),
    Buffer("taps", "float32", (1, 1, 3, 3, 8, 16), "weight"),
    Buffer("deep", "float32", (3, 3, 16), "weight"),
    Buffer("squares", "float32", (16, 1, 16, 16), "weight"),
    Buffer("t", "float32", (36, 16)),
    Buffer("u", "float32", (36, 16)),
    Buffer("small", "float32", (36, 2)),
    Buffer("y", "float32", (36, 16), "output"),
)


def epilogue(buffer: str, rows: Size = 36, columns: int = 16, dtype: str = "float32", *more: Op) -> Map:
    loops = (Loop("i0", rows), Loop("i1", columns))
    index = symbol("i0", below=rows) * columns + symbol("i1", below=columns)
    ops = [Op("accumulator", (), dtype), *more]
    if dtype != "float32":
        ops.append(Op("cast", (len(ops) - 1,), "float32", "float32"))
    return Map(loops, Body(tuple(ops), (len(ops) - 1,)), (Store(buffer, index, 0),))


GEMM = PackedGemm(
    batch=(),
    m=36,
    n=16,
    k=8,
    a=MatrixView("x", 0, 8, 1),
    b=PackedMatrix("w", 0, 16),
    dtype="float32",
    epilogue=epilogue("t"),
)
INT8 = replace(
    GEMM,
    a=MatrixView("bytes", 0, 8, 1),
    b=PackedMatrix("w8", 0, 16),
    dtype="int32",
    factors="int8",
    epilogue=epilogue("t", dtype="int32"),
)
CODED = replace(GEMM, b=PackedMatrix("words", 0, 16), codes=QuantizedLayout(4, 4, "scales"))
WINDOWS = TiledConvolution(
    images=1,
    size=(6, 6),
    pixel=8,
    channels=8,
    out_size=(6, 6),
    out_channels=16,
    kernel=(3, 3),
    stride=(1, 1),
    padding=(1, 1),
    dilation=(1, 1),
    groups=1,
    x="x",
    weight="taps",
    panel=16,
    dtype="float32",
    epilogue=epilogue("t"),
)
DEEP = replace(
    WINDOWS,
    pixel=16,
    channels=1,
    groups=16,
    x="t",
    weight="deep",
    algorithm="depthwise",
    epilogue=epilogue("u"),
)
WINOGRAD = replace(WINDOWS, channels=16, x="tiles", weight="squares", algorithm="winograd")
OTHER = replace(GEMM, b=PackedMatrix("v", 0, 16), epilogue=epilogue("u"))
GROUP = GemmGroup((GEMM, OTHER))
BOTH = epilogue("y", 36, 16, "float32", Op("second_accumulator", (), "float32"), Op("add", (0, 1), "float32"))
SILENT = Map(GEMM.epilogue.loops, Body((), ()), ())
PAIR = DualGemm((replace(WINDOWS, epilogue=BOTH), replace(GEMM, epilogue=SILENT)))
STRIPS = StripMined(1, (GEMM, DEEP), ("t",), ((6, 6), (6, 6)), 2)

GOOD: dict[str, tuple[Stmt, ...]] = {
    "product": (GEMM,),
    "product of integers": (INT8,),
    "product with codes": (CODED,),
    "windows": (WINDOWS,),
    "depthwise": (GEMM, DEEP),
    "winograd": (WINOGRAD,),
    "group": (GROUP,),
    "pair": (PAIR,),
    "strips": (STRIPS,),
}
BAD: dict[str, tuple[tuple[Stmt, ...], str]] = {
    "rows that are not contiguous": (
        (replace(INT8, a=MatrixView("bytes", 0, 1, 36)),),
        "rows of int8 factors are not contiguous",
    ),
    "rows of another dtype": ((replace(INT8, a=GEMM.a),), "rows of int8 factors are float32, in x"),
    "rows outside": ((replace(GEMM, a=MatrixView("x", 8, 8, 1)),), "a is x[8 + column + 8*row], which is outside"),
    "weight of another dtype": ((replace(INT8, b=GEMM.b),), "w holds float32, and its factors need int8"),
    "codes that are not words": ((replace(CODED, b=GEMM.b),), "w holds float32, and its factors need uint32"),
    "weight that is computed": (
        (GEMM, replace(GEMM, b=PackedMatrix("t", 0, 16), epilogue=epilogue("u"))),
        "t is packed ahead of time, and is not a weight (temporary)",
    ),
    "weight with too few terms": (
        (replace(GEMM, b=PackedMatrix("narrow", 0, 16)),),
        "narrow has 112 elements, and 128 are needed",
    ),
    "panels that are too wide": ((replace(GEMM, b=PackedMatrix("w", 0, 48)),), "w has 128 elements, and 384 are"),
    "groups of codes": ((replace(CODED, codes=QuantizedLayout(4, 3, "scales")),), "8 terms are not groups of 3"),
    "scales of codes": ((replace(CODED, codes=QuantizedLayout(4, 1, "scales")),), "scales has 32 elements, and 128"),
    "zeros of codes": (
        (replace(CODED, codes=QuantizedLayout(4, 4, "scales", "words")),),
        "words holds uint32, and its factors need float32",
    ),
    "groups of channels": ((replace(WINDOWS, groups=3),), "16 output channels are not 3 groups"),
    "stride": ((replace(WINDOWS, stride=(0, 1)),), "its kernel, stride or dilation is not positive"),
    "weight of windows": ((replace(WINDOWS, weight="w"),), "w has 128 elements, and 1152 are needed"),
    "image of windows": ((replace(WINDOWS, size=(6, 7)),), "x has 288 elements, and 336 are needed"),
    "image of another dtype": ((replace(WINDOWS, x="bytes"),), "its image bytes holds uint8"),
    "groups of a depthwise convolution": ((GEMM, replace(DEEP, groups=8)), "has 8 groups for 16 channels"),
    "taps of a depthwise convolution": ((GEMM, replace(DEEP, kernel=(5, 5))), "deep has 144 elements, and 400"),
    "tiles of winograd": ((replace(WINOGRAD, channels=17),), "tiles has 2304 elements, and 2448 are needed"),
    "panels of winograd": ((replace(WINOGRAD, weight="taps"),), "taps has 1152 elements, and 4096 are needed"),
    "pixels": ((replace(WINDOWS, out_size=(5, 6)),), "the loops of its epilogue have 36 rows, and its sums 30"),
    "convolution without an algorithm": (
        (
            Convolution(
                1,
                8,
                16,
                1,
                (6, 6),
                (4, 4),
                (3, 3),
                (1, 1),
                (0, 0),
                (1, 1),
                StridedView("x", 0, (288, 1, 48, 8)),
                StridedView("taps", 0, (72, 9, 3, 1)),
                "float32",
                epilogue("t", 16),
            ),
        ),
        "it has no algorithm",
    ),
    "group of one": ((GemmGroup((GEMM,)),), "a group has two products or more"),
    "group of other rows": (
        (replace(GROUP, steps=(GEMM, replace(OTHER, a=MatrixView("x", 0, 4, 2)))),),
        "products of a group differ in their rows or sizes",
    ),
    "pair that stores twice": (
        (replace(PAIR, steps=(PAIR.steps[0], GEMM)),),
        "the second step of a pair has stores of its own",
    ),
    "pair of other panels": (
        (replace(PAIR, steps=(replace(WINDOWS, panel=32, epilogue=BOTH), PAIR.steps[1])),),
        "the two steps of a pair differ in their rows, columns or panels",
    ),
    "pair that is not by windows": (
        (replace(PAIR, steps=(replace(WINOGRAD, epilogue=BOTH), PAIR.steps[1])),),
        "is a convolution that is not by windows",
    ),
    "sums beside a lone product": ((replace(GEMM, epilogue=BOTH),), "and the step has no second_accumulator for it"),
    "buffers between strips": ((replace(STRIPS, local=()),), "2 steps have 0 buffers between them and 2 grids"),
    "lines of a strip": ((replace(STRIPS, lines=0),), "a strip has 0 lines"),
    "what a strip writes": (
        (replace(STRIPS, local=("u",)),),
        "a step before the last does not write u alone",
    ),
    "what a strip reads": (
        (replace(STRIPS, steps=(replace(GEMM, epilogue=epilogue("u")), DEEP), local=("u",)),),
        "a step does not read u, which the one before it writes",
    ),
    "grids of strips": (
        (replace(STRIPS, grids=((6, 6), (6, 5))),),
        "30 pixels of a grid are not the 36 rows of its step",
    ),
}


def module(steps: tuple[Stmt, ...]) -> Module:
    return Module({buffer.name: buffer for buffer in BUFFERS}, steps, (), (), (), {})


@pytest.mark.parametrize("name", GOOD)
def test_steps_that_hold(name: str) -> None:
    verify_schedule(module(GOOD[name]), "pairs")


@pytest.mark.parametrize("name", BAD)
def test_steps_that_break_a_rule(name: str) -> None:
    steps, said = BAD[name]
    with pytest.raises(ScheduleError) as caught:
        verify_schedule(module(steps), "pairs")
    assert said in str(caught.value)
    assert "The scheduling pass 'pairs'" in str(caught.value)


def test_groups_are_part_of_the_structure() -> None:
    for name in ("group of one", "pair that stores twice", "grids of strips", "convolution without an algorithm"):
        with pytest.raises(ScheduleError):
            verify_schedule(module(BAD[name][0]), "pairs", full=False)
    verify_schedule(module(BAD["weight of windows"][0]), "pairs", full=False)
