"""Each rule of the verifier: a module that breaks it, and what is said of it, with the pass that is to blame."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ingot.errors import ScheduleError
from ingot.lowering.index_expr import (
    Size,
    size_symbol,
    symbol,
    value_symbol,
)
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
    Load,
    Loop,
    LoopNest,
    Map,
    MatrixView,
    Op,
    Reduce,
    Scan,
    Scatter,
    Stmt,
    Store,
    StridedView,
    While,
)
from ingot.lowering.loop_ir_verifier import verify_module
from ingot.lowering.loop_module import Argument, Module, SymbolSource

N = size_symbol("n0")
I0, I1 = symbol("i0", below=4), symbol("i1", below=8)
ROWS, COLUMNS = Loop("i0", 4), Loop("i1", 8)
FLAT = I0 * 8 + I1

BUFFERS = (
    Buffer("x", "float32", (4, 8), "input"),
    Buffer("changed", "float32", (4, 8), "input"),
    Buffer("d", "float32", (N, 8), "input"),
    Buffer("places", "int64", (4,), "input"),
    Buffer("flags", "bool", (4,), "input"),
    Buffer("w", "float32", (8, 6), "weight"),
    Buffer("half", "bfloat16", (4, 8), "weight"),
    Buffer("s", "float32", (4, 8), "state"),
    Buffer("t", "float32", (4, 8)),
    Buffer("row", "float32", (4,)),
    Buffer("best", "int64", ()),
    Buffer("tiles", "uint8", (1, 1)),
    Buffer("dynamic", "float32", (N, 8)),
    Buffer("y", "float32", (4, 6), "output"),
)


def module(*steps: Stmt) -> Module:
    def argument(name: str, mutated: bool = False) -> Argument:
        buffer = next(buffer for buffer in BUFFERS if buffer.name == name)
        return Argument(name, name, buffer.dtype, buffer.shape, mutated)

    inputs = (argument("x"), argument("changed", True), argument("d"), argument("places"), argument("flags"))
    symbols = {"n0": SymbolSource(2, 0, "batch", 2, 10)}
    return Module({buffer.name: buffer for buffer in BUFFERS}, steps, inputs, (), (), symbols, {"n0": 3})


def load(buffer: str = "x", index: Size = FLAT, dtype: str = "float32", mask: int | None = None) -> Op:
    return Op("load", (), dtype, Load(buffer, index, mask))


def body(*ops: Op, results: tuple[int, ...] | None = None) -> Body:
    return Body(ops, (len(ops) - 1,) if results is None else results)


def constant(value: Any, dtype: str) -> Op:
    ops = BodyBuilder()
    return replace(ops.ops[ops.const(value, "float64" if isinstance(value, float) else "int64")], dtype=dtype)


def a_map(made: Body, store: Store | None = None, loops: tuple[Loop, ...] = (ROWS, COLUMNS)) -> Map:
    return Map(loops, made, (store or Store("t", FLAT, 0),))


def mapped(*ops: Op) -> Map:
    return a_map(body(*ops))


COPY = mapped(load())
ACCUMULATOR = Op("accumulator", (), "float32")
K = symbol("i1", below=6)
GEMM = Gemm(
    batch=(),
    m=4,
    n=6,
    k=8,
    a=MatrixView("x", 0, 8, 1),
    b=MatrixView("w", 0, 6, 1),
    dtype="float32",
    epilogue=Map((ROWS, Loop("i1", 6)), body(ACCUMULATOR), (Store("y", I0 * 6 + K, 0),)),
)
CONVOLUTION = Convolution(
    images=1,
    channels=1,
    out_channels=2,
    groups=1,
    size=(4, 8),
    out_size=(3, 4),
    kernel=(2, 5),
    stride=(1, 1),
    padding=(0, 0),
    dilation=(1, 1),
    x=StridedView("x", 0, (32, 32, 8, 1)),
    weight=StridedView("w", 0, (10, 10, 5, 1)),
    dtype="float32",
    epilogue=Map(
        (Loop("i0", 12), Loop("i1", 2)),
        body(ACCUMULATOR),
        (Store("y", symbol("i0", below=12) * 2 + symbol("i1", below=2), 0),),
    ),
)
ATTENTION = Attention(
    batch=(),
    queries=4,
    keys=4,
    depth=8,
    values=8,
    scale=1.0,
    causal=False,
    q=MatrixView("x", 0, 8, 1),
    k=MatrixView("x", 0, 8, 1),
    v=MatrixView("x", 0, 8, 1),
    score=body(ACCUMULATOR),
    dtype="float32",
    epilogue=a_map(body(ACCUMULATOR)),
)
BLOCKS = ClassifyMaskBlocks(
    (), 4, 4, 4, 4, body(load("places", symbol("i"), "int64"), Op("eq", (0, 0), "bool")), "tiles"
)
BACKWARD = AttentionBackward(
    side="queries",
    batch=(Loop("i0", 1), Loop("i1", 1)),
    queries=4,
    keys=4,
    depth=8,
    values=8,
    scale=1.0,
    heads=1,
    images=1,
    q=MatrixView("x", 0, 8, 1),
    k=MatrixView("x", 0, 8, 1),
    v=MatrixView("x", 0, 8, 1),
    gradient=MatrixView("x", 0, 8, 1),
    body=body(ACCUMULATOR, Op("gradient", (), "float32"), Op("mul", (0, 1), "float32")),
    dtype="float32",
    first="t",
)
SUM = Reduce((ROWS,), (COLUMNS,), ("sum",), body(load()), (Store("row", I0, 0),))
STATE = Op("input", (), "float32", 0)
SCAN = Scan(
    (ROWS,),
    COLUMNS,
    body(constant(0.0, "float32")),
    body(STATE, load(), Op("add", (0, 1), "float32"), results=(2, 2)),
    (Store("t", FLAT, 1),),
)
FLAG = body(load("flags", 0, "bool"))
PLACE = body(load("places", 0, "int64"))
OVER_N = a_map(body(load("d", FLAT)), Store("dynamic", FLAT, 0), (Loop("i0", N), COLUMNS))
BOUND = size_symbol("n7")
OVER_BOUND = a_map(body(load("x", I1)), Store("t", I1, 0), (Loop("i0", BOUND), COLUMNS))

GOOD: dict[str, tuple[Stmt, ...]] = {
    "map": (COPY,),
    "product": (GEMM,),
    "convolution": (CONVOLUTION,),
    "attention": (ATTENTION,),
    "attention with a mask": (BLOCKS, replace(ATTENTION, mask=BLOCKS.mask, tiles=BlockMask("tiles", 0, 1))),
    "attention backward": (BACKWARD,),
    "reduce": (SUM,),
    "argmax": (Reduce((), (ROWS,), ("argmax",), body(load("x", I0 * 8)), (Store("best", 0, 0),)),),
    "scan": (SCAN,),
    "nest": (LoopNest((ROWS,), (SUM, a_map(body(load("row", I0)))), ()),),
    "state and a mutated input are written": (
        a_map(body(load()), Store("s", FLAT, 0)),
        a_map(body(load()), Store("changed", FLAT, 0)),
    ),
    "dynamic": (OVER_N,),
    "bound symbol": (BindSymbol("n7", PLACE), OVER_BOUND),
    "a mask may hide what is outside": (mapped(load("flags", I0, "bool"), load("x", FLAT + 100, mask=0)),),
    "no point at all": (a_map(body(load("x", FLAT + 100)), loops=(Loop("i0", 0), COLUMNS)),),
    "what the run decides may be outside": (
        mapped(load("places", I0, "int64"), load("x", value_symbol(0, signed=True))),
    ),
    "control flow": (If(FLAG, (COPY,), (COPY,)), While((COPY,), FLAG, (COPY,)), For(Loop("n5", 3), (COPY,))),
    "extern": (ExternKernel("sort", ("x",), ("t",), (N,)), Assert(FLAG, "no")),
}

BAD: dict[str, tuple[tuple[Stmt, ...], str]] = {
    # dtypes
    "operands of two dtypes": (
        (mapped(load(), load("places", I0, "int64"), Op("add", (0, 1), "float32")),),
        "%2 is add of dtype float32, and has an operand of int64",
    ),
    "result of another dtype": (
        (mapped(load(), Op("neg", (0,), "float64")),),
        "%1 is neg of dtype float64, and has an operand of float32",
    ),
    "comparison that gives a number": (
        (mapped(load(), Op("lt", (0, 0), "float32")),),
        "and a comparison gives bool",
    ),
    "comparison of two dtypes": (
        (mapped(load(), load("places", I0, "int64"), Op("lt", (0, 1), "bool"), load()),),
        "and compares float32 with int64",
    ),
    "where without a condition": (
        (mapped(load(), Op("where", (0, 0, 0), "float32")),),
        "and its condition is not bool",
    ),
    "where between two dtypes": (
        (mapped(load(), Op("lt", (0, 0), "bool"), constant(1, "int64"), Op("where", (1, 0, 2), "float32")),),
        "and chooses between float32 and int64",
    ),
    "cast to another dtype": (
        (mapped(load(), Op("cast", (0,), "float32", "int32")),),
        "%1 is cast of dtype float32, and casts to int32",
    ),
    "constant of another type": ((mapped(constant(1, "float32")),), "and has the value 1"),
    "index that is a float": ((mapped(Op("index", (), "float32", I0 + 1)),), "and an index is int64"),
    "check of a float": (
        (mapped(load(), Op("bounds_check", (0,), "int64", 8), load()),),
        "and a place is int64; its operand is float32",
    ),
    "check with a mask that is not bool": (
        (mapped(load("places", I0, "int64"), Op("bounds_check", (0, 0), "int64", 8), load()),),
        "and its mask is int64, which is not bool",
    ),
    "rounding of an integer": (
        (mapped(load("places", I0, "int64"), Op("round_to_int", (0,), "int32"), load()),),
        "not int64",
    ),
    "load of another dtype": ((mapped(load(dtype="float64")),), "and x holds float32"),
    "half that is not widened": ((mapped(load("half", dtype="bfloat16")),), "and half holds bfloat16"),
    "store of another dtype": ((mapped(load("places", I0, "int64")),), "it stores int64 in t, which holds float32"),
    "store by an unknown mode": ((a_map(body(load()), Store("t", FLAT, 0, "sub")),), "it stores by sub"),
    # what a step gives its body
    "accumulator of a map": ((mapped(ACCUMULATOR),), "and the step has no accumulator for it"),
    "accumulator of another dtype": (
        (replace(GEMM, epilogue=replace(GEMM.epilogue, body=body(replace(ACCUMULATOR, dtype="float64")))),),
        "and the accumulator is float32",
    ),
    "gradient of a product": (
        (replace(GEMM, epilogue=replace(GEMM.epilogue, body=body(Op("gradient", (), "float32")))),),
        "and the step has no gradient for it",
    ),
    # masks
    "mask that comes later": ((mapped(load(mask=1), load("flags", I0, "bool")),), "%0 has the operand %1"),
    "mask that is not bool": (
        (mapped(load(), load(mask=0)),),
        "%1 is load of dtype float32, and its mask %0 is float32, which is not bool",
    ),
    # writes
    "weight": ((a_map(body(load()), Store("w", FLAT, 0)),), "it writes w, which is read-only (kind 'weight')"),
    "input": ((a_map(body(load()), Store("x", FLAT, 0)),), "it writes x, which is read-only (kind 'input')"),
    "extern kernel": ((ExternKernel("sort", ("x",), ("w",)),), "it writes w, which is read-only"),
    "gradient of a weight": ((replace(BACKWARD, first="w"),), "it writes w, which is read-only"),
    "log-sum-exp": ((replace(ATTENTION, lse=Store("nowhere", 0, 0)),), "it writes nowhere, and there is no such"),
    # extents and loops
    "negative extent": ((a_map(body(load()), loops=(ROWS, COLUMNS, Loop("i2", -1))),), "has a negative extent"),
    "extent that is always negative": (
        (a_map(body(load()), loops=(ROWS, COLUMNS, Loop("i2", 1 - N))),),
        "has a negative extent",
    ),
    "two loops of a name": ((a_map(body(load()), loops=(ROWS, COLUMNS, ROWS)),), "have the variable i0"),
    "two loops of a reduction": ((replace(SUM, over=(ROWS, COLUMNS)),), "two of its loops have the variable i0"),
    "loop with the name of a size": (
        (a_map(body(load()), loops=(ROWS, COLUMNS, Loop("n0", 2))),),
        "has the name of a symbol that is in use",
    ),
    "range of a loop": (
        (a_map(body(load("x", I1)), Store("t", I1, 0), (Loop("i1", 16),)),),
        "i1 is taken to be below 8 in the index i1, and its loop has 16",
    ),
    "nest": ((LoopNest((COLUMNS,), (SUM,), ()),), "its outer loops are not those of the nest"),
    # epilogues
    "columns of an epilogue": ((replace(GEMM, n=5),), "the last loop of its epilogue is i1 < 6, for 5 columns"),
    "rows of an epilogue": ((replace(GEMM, m=3),), "the loops of its epilogue have 4 rows, and its sums 3"),
    "dynamic rows of an epilogue": ((replace(GEMM, m=N + 3),), "have 4 rows, and its sums 3 + n0"),
    "epilogue without loops": (
        (replace(GEMM, epilogue=Map((), body(ACCUMULATOR), (Store("y", 0, 0),))),),
        "the last loop of its epilogue is missing",
    ),
    "batch of an epilogue": (
        (replace(GEMM, batch=(Loop("b", 1),)),),
        "the outer loops of its epilogue are not those of its batch, (b < 1)",
    ),
    "pixels of an epilogue": ((replace(CONVOLUTION, out_size=(3, 5)),), "have 12 rows, and its sums 15"),
    # accesses
    "load behind the end": (
        (mapped(load("x", FLAT + 1)),),
        "%0 reads x[1 + 8*i0 + i1], which is outside its 32 elements, at i0 = 3, i1 = 7",
    ),
    "load before the beginning": ((mapped(load("x", I1 - 1)),), "outside its 32 elements, at i1 = 0"),
    "load in another order": ((mapped(load("x", I1 * 8 + I0)),), "which is outside its 32 elements, at i0 = 3, i1 = 7"),
    "load through a division": ((mapped(load("x", (FLAT // 3) * 4)),), "which is outside its 32 elements"),
    "load of a value": (
        (
            mapped(
                load("places", I0, "int64"),
                Op("bounds_check", (0,), "int64", 9),
                load("x", value_symbol(1, below=9) + 32),
            ),
        ),
        "%2 reads x[32 + v1], which is outside",
    ),
    "load of a dynamic buffer": (
        (replace(OVER_N, body=body(load("d", FLAT + 8))),),
        "%0 reads d[8 + 8*i0 + i1], which is outside its 8*n0 elements, at i0 = -1 + n0, i1 = 7",
    ),
    "load for every size that there may be": ((mapped(load("x", I1 + 16 * N)),), "which is outside its 32 elements"),
    "store behind the end": ((a_map(body(load()), Store("row", FLAT, 0)),), "it writes row[8*i0 + i1], which is"),
    "store of a dynamic buffer": (
        (replace(OVER_N, stores=(Store("dynamic", FLAT + N * 8, 0),)),),
        "which is outside its 8*n0 elements",
    ),
    # views
    "rows of a": ((replace(GEMM, a=MatrixView("x", 0, 9, 1)),), "a is x[column + 9*row], which is outside its 32"),
    "columns of b": ((replace(GEMM, b=MatrixView("w", 6, 6, 1)),), "b is w[6 + column + 6*row], which is outside"),
    "image": (
        (replace(CONVOLUTION, x=StridedView("x", 1, (32, 32, 8, 1))),),
        "x is x[1 + 32*d0 + 32*d1 + 8*d2 + d3], which is outside",
    ),
    "weight of a convolution": (
        (replace(CONVOLUTION, weight=StridedView("w", 0, (40, 10, 5, 1))),),
        "weight is w[40*d0",
    ),
    "strides of a weight": (
        (replace(CONVOLUTION, weight=StridedView("w", 0, (1,))),),
        "weight has 1 strides for 4 dims",
    ),
    "groups": ((replace(CONVOLUTION, groups=3),), "2 output channels are not 3 groups"),
    "queries": ((replace(ATTENTION, q=MatrixView("x", 0, 11, 1)),), "q is x[column + 11*row], which is outside"),
    "values": ((replace(ATTENTION, v=MatrixView("x", -1, 8, 1)),), "v is x[-1 + column + 8*row], which is outside"),
    "keys of a gradient": ((replace(BACKWARD, k=MatrixView("x", 8, 8, 1)),), "k is x[8 + column + 8*row]"),
    "gradient": ((replace(BACKWARD, gradient=MatrixView("x", 8, 8, 1)),), "gradient is x[8 + column + 8*row]"),
    # attention
    "score of another dtype": (
        (replace(ATTENTION, score=PLACE),),
        "the score is int64, and must be float32",
    ),
    "mask that gives a number": ((replace(ATTENTION, mask=PLACE),), "the mask is int64, and must be bool"),
    "log-sum-exp of another dtype": (
        (replace(ATTENTION, lse=Store("tiles", 0, 0)),),
        "it stores float32 in tiles, which holds uint8",
    ),
    "largest score outside": (
        (replace(ATTENTION, top=Store("row", symbol("i", below=4) + 1, 0)),),
        "it writes row[1 + i], which is outside",
    ),
    "side": ((replace(BACKWARD, side="both"),), "its side is both"),
    "tiles that are not bytes": (
        (replace(ATTENTION, mask=BLOCKS.mask, tiles=BlockMask("x", 0, 1)),),
        "which holds float32 and not uint8",
    ),
    "tiles outside": (
        (BLOCKS, replace(ATTENTION, mask=BLOCKS.mask, tiles=BlockMask("tiles", 1, 1))),
        "the tiles of its mask begin outside tiles",
    ),
    "mask that reads outside": (
        (replace(BLOCKS, mask=body(load("places", symbol("i") + 1, "int64"), Op("eq", (0, 0), "bool"))),),
        "%0 reads places[1 + i], which is outside its 4 elements, at i = 3",
    ),
    "batch of tiles": (
        (replace(BLOCKS, batch=(Loop("i0", 1), Loop("i0", 1))),),
        "two of its loops have the variable i0",
    ),
    "table of a gradient": (
        (replace(BACKWARD, scatter=(Scatter(PLACE, Store("s", value_symbol(0, below=4) + 32, 1, "add")),)),),
        "it writes s[32 + v0], which is outside its 32 elements",
    ),
    "value of a table": (
        (replace(BACKWARD, scatter=(Scatter(PLACE, Store("s", value_symbol(1, below=4), 1, "add")),)),),
        "nothing gives v1 a value",
    ),
    "too few tiles": ((replace(BLOCKS, high=2),), "tiles has 1 elements, and 2 are needed"),
    "tiles written as floats": ((replace(BLOCKS, buffer="t"),), "it writes t, which holds float32 and not uint8"),
    # reductions and scans
    "kinds": ((replace(SUM, kinds=("sum", "max")),), "it has 2 kinds, and its body 1 results"),
    "unknown kind": ((replace(SUM, kinds=("mean",)),), "it reduces by mean"),
    "dtype of a kind": (
        (replace(SUM, kinds=("argmax",)),),
        "it stores int64 in row, which holds float32",
    ),
    "state arity": ((replace(SCAN, body=body(load(), results=()), stores=()),), "its state has 1 values"),
    "state of another dtype": (
        (replace(SCAN, body=body(STATE, load("places", I0, "int64"), load(), results=(1, 2))),),
        "the next state is int64, and must be float32",
    ),
    "state that there is not": (
        (replace(SCAN, body=body(replace(STATE, attribute=1), load(), results=(1, 1))),),
        "and the step has no input 1 for it",
    ),
    "store of a scan": ((replace(SCAN, stores=(Store("t", FLAT, 2),)),), "it stores result 2, of 2"),
    # conditions and symbols
    "condition": ((If(PLACE, (), ()),), "its value is int64, and must be bool"),
    "condition of a loop": ((While((), PLACE, ()),), "its value is int64, and must be bool"),
    "assertion": ((Assert(PLACE, "no"),), "its value is int64, and must be bool"),
    "size that is bool": ((BindSymbol("n7", FLAG),), "its value is bool, and must be int64"),
    "symbol before it is bound": (
        (OVER_BOUND, BindSymbol("n7", PLACE)),
        "nothing gives n7 a value, in the index n7",
    ),
    "symbol of a branch": (
        (If(FLAG, (BindSymbol("n7", PLACE),), ()), OVER_BOUND),
        "nothing gives n7 a value",
    ),
    "symbol of a loop": (
        (While((), FLAG, (BindSymbol("n7", PLACE),)), OVER_BOUND),
        "nothing gives n7 a value",
    ),
    "variable of a loop behind it": ((For(Loop("n7", 3), ()), OVER_BOUND), "nothing gives n7 a value"),
    "size of a kernel": ((ExternKernel("sort", ("x",), ("t",), (BOUND,)),), "nothing gives n7 a value"),
    "rows of a product": ((replace(GEMM, m=BOUND),), "nothing gives n7 a value"),
    "value that comes later": (
        (mapped(load("x", value_symbol(1, below=4)), load("places", I0, "int64"), load()),),
        "nothing gives v1 a value",
    ),
}


@pytest.mark.parametrize("name", GOOD)
def test_modules_that_hold(name: str) -> None:
    verify_module(module(*GOOD[name]), "map_fusion")


@pytest.mark.parametrize("name", BAD)
def test_modules_that_break_a_rule(name: str) -> None:
    steps, said = BAD[name]
    with pytest.raises(ScheduleError) as caught:
        verify_module(module(*steps), "map_fusion")
    assert said in str(caught.value)
    assert "The scheduling pass 'map_fusion'" in str(caught.value)


def test_structure_alone_leaves_dtypes_and_accesses() -> None:
    for name in ("operands of two dtypes", "load behind the end", "kinds", "rows of a"):
        verify_module(module(*BAD[name][0]), "map_fusion", full=False)
    for name in ("weight", "two loops of a name", "symbol before it is bound", "mask that comes later"):
        with pytest.raises(ScheduleError):
            verify_module(module(*BAD[name][0]), "map_fusion", full=False)


def test_a_target_says_what_its_steps_must_hold() -> None:
    with pytest.raises(ScheduleError, match="Map: not here"):
        verify_module(module(COPY), "loop_order", lambda step, facts: "not here", full=False)
