"""Kernels of reductions and loop nests against the interpreter, run in emulation and compiled by NVRTC."""

from __future__ import annotations

import numpy as np
import pytest

from ingot.lowering.index_expr import Size, size_symbol, smallest, symbol
from ingot.lowering.loop_body import BodyBuilder
from ingot.lowering.loop_ir import Loop, LoopNest, Map, Reduce, Store
from ingot.targets.cuda.build import nvrtc
from ingot.targets.cuda.codegen import reductions
from ingot.targets.cuda.codegen.loop_kernels import loop_nests
from tests.support.cuda_emulation.kernels import check_cubin, run_module, write_kernels
from tests.support.cuda_emulation.statements import Statements, draw_values
from tests.support.cuda_emulation.toolkit import needs_nvrtc

KINDS = ("sum", "prod", "max", "min", "any", "all", "argmax", "argmin")
LENGTHS = (0, 1, 2, 3, 8, 31, 32, 33, 127, 1023, 1025, 2048)


def add_reduce(
    bench: Statements,
    dtype: str,
    outputs: int,
    terms: int,
    kinds: tuple[str, ...],
    *,
    across: bool = False,
    special: bool = False,
) -> None:
    """Each kind over the terms of a matrix [outputs, terms], or across memory of one [terms, outputs]."""
    shape = (terms, outputs) if across else (outputs, terms)
    x = bench.give(draw_values(shape, dtype, outputs + terms, special=special), dtype)
    out, over = symbol("i0", outputs), symbol("r0", terms)
    ops = BodyBuilder()
    value = ops.load(x, over * outputs + out if across else out * terms + over, dtype)
    results, stores = [], []
    for number, kind in enumerate(kinds):
        result = ops.cast(value, "bool") if kind in ("any", "all") else value
        if kind == "prod" and dtype in ("float32", "float64", "bfloat16", "float16"):
            result = ops.call("sub", value, value)  # that no product of many overflows
            result = ops.call("add", result, ops.const(1, dtype))
        kept = "int64" if kind.startswith("arg") else "bool" if kind in ("any", "all") else dtype
        results.append(result)
        stores.append(Store(bench.make(kept, (outputs,)), out, number))
    body = ops.finish(results)
    bench.add(Reduce((Loop("i0", outputs),), (Loop("r0", terms),), kinds, body, tuple(stores)))


@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int64", "int32", "uint8", "bool"])
def test_every_kind_and_length(dtype: str, across: bool) -> None:
    bench = Statements()
    kinds = KINDS if dtype != "bool" else ("max", "min", "any", "all", "argmax")
    for length in LENGTHS if dtype in ("float32", "bfloat16") else LENGTHS[::2]:
        if not length and dtype == "bool":
            continue
        some = tuple(kind for kind in kinds if length or not kind.startswith("arg"))
        add_reduce(bench, dtype, 5, length, some, across=across, special=True)
    for outputs in (0, 1, 33, 130):
        add_reduce(bench, dtype, outputs, 37, kinds[:3], across=across)
    bench.compare()


def test_sums_of_many_terms_are_carried_in_double() -> None:
    """A sum of a million equal floats one after another would be wrong in its third digit."""
    bench = Statements()
    ops = BodyBuilder()
    value = ops.call(
        "mul", ops.const(0.1, "float32"), ops.cast(ops.index(symbol("r0", 1 << 20) // (1 << 20) + 1), "float32")
    )
    y = bench.make("float32", (1,))
    bench.add(Reduce((), (Loop("r0", 1 << 20),), ("sum",), ops.finish([value]), (Store(y, 0, 0),)))
    found = bench.compare(ulps=4)[y]
    assert abs(float(found[0]) - 0.1 * (1 << 20)) < 0.05


def test_few_long_outputs_are_cut_into_parts() -> None:
    bench = Statements()
    add_reduce(bench, "float32", 2, 70000, KINDS, special=False)
    add_reduce(bench, "float32", 3, 20011, ("sum", "max", "argmin"), across=True)
    add_reduce(bench, "int32", 1, 50000, ("sum", "argmax", "min"))
    steps = write_kernels(bench.module)[1]
    assert [len(step.kernels) for step in steps] == [2, 2, 2]
    assert all(step.kernels[0][1].grid.y != 1 for step in steps)
    bench.compare()


def test_reductions_over_several_loops_and_runtime_sizes() -> None:
    n = size_symbol("n0")
    bench = Statements({"n0": 19})
    x, y, z = bench.give(draw_values((19, 6, 19, 8), "float32"), "float32", (n, 6, n, 8)), "", ""
    y, z = bench.make("float32", (6,)), bench.make("int64", (n, 8))
    places: Size = ((symbol("a", n) * 6 + symbol("b", 6)) * n + symbol("c", n)) * 8 + symbol("d", 8)
    loops = {name: Loop(name, extent) for name, extent in (("a", n), ("b", 6), ("c", n), ("d", 8))}
    ops = BodyBuilder()
    body = ops.finish([ops.load(x, places, "float32")])
    bench.add(
        Reduce((loops["b"],), (loops["a"], loops["c"], loops["d"]), ("sum",), body, (Store(y, symbol("b", 6), 0),))
    )
    where = symbol("c", n) * 8 + symbol("d", 8)
    bench.add(Reduce((loops["c"], loops["d"]), (loops["a"], loops["b"]), ("argmax",), body, (Store(z, where, 0),)))
    bench.compare()


def add_pool(bench: Statements, dtype: str, images: int, size: int, channels: int, kinds: tuple[str, ...]) -> None:
    """Windows of 3 by 3 at every second place of images whose channels lie together; the last window is cut off."""
    x = bench.give(draw_values((images, size, size, channels), dtype, size, special=True), dtype)
    made = (size - 3) // 2 + 2
    shape = (images, made, made, channels)
    i = [symbol(f"i{number}", below) for number, below in enumerate(shape)]
    r = [symbol(f"r{number}", 3) for number in range(2)]
    row, column = (smallest(i[1 + d] * 2 + r[d], size - 1) for d in range(2))
    ops = BodyBuilder()
    value = ops.load(x, i[0] * (size * size * channels) + row * (size * channels) + column * channels + i[3], dtype)
    where = ((i[0] * made + i[1]) * made + i[2]) * channels + i[3]
    stores = tuple(
        Store(bench.make("int64" if kind.startswith("arg") else dtype, shape), where, number)
        for number, kind in enumerate(kinds)
    )
    loops = tuple(Loop(f"i{number}", below) for number, below in enumerate(shape))
    over = (Loop("r0", 3), Loop("r1", 3))
    bench.add(Reduce(loops, over, kinds, ops.finish([value] * len(kinds)), stores))


def test_threads_that_have_several_neighbouring_outputs() -> None:
    bench = Statements()
    for dtype in ("float32", "bfloat16", "uint8"):
        for images, size, channels in ((1, 5, 1), (2, 6, 3), (1, 7, 8), (3, 4, 20), (1, 33, 64)):
            add_pool(bench, dtype, images, size, channels, ("max",))
        add_pool(bench, dtype, 1, 9, 24, ("max", "argmax", "min"))
    add_reduce(bench, "bfloat16", 264, 7, KINDS[:6], across=True, special=True)
    bench.compare()


@needs_nvrtc
def test_outputs_of_a_pool_are_loaded_by_vectors() -> None:
    bench = Statements()
    add_pool(bench, "bfloat16", 8, 65, 64, ("max",))
    text = write_kernels(bench.module)[0]
    assert "ig_store_vector<uint16_t, 8>(" in text
    found = nvrtc.compile_text(text, "sm_90a", ptx=True).decode()
    assert found.count("ld.global.nc.v4.u32") == 9 and found.count("st.global.v4.u32") == 1
    assert ".local" not in found.split(".entry", 1)[1]


# ---------------------------------------------------------------------- nests


def add_softmax(bench: Statements, dtype: str, rows: Size, wide: int, *, stored: str = "") -> None:
    """y = exp(x - max) / sum: two reductions, a local row, and registers; and the place of the maximum."""
    number = int(rows) if isinstance(rows, int) else bench.sizes["n0"]
    x = bench.give(draw_values((number, wide), dtype, wide), dtype, (rows, wide))
    y, place = bench.make(dtype, (rows, wide)), bench.make("int64", (rows,))
    top, row, total = bench.make("float32", ()), bench.make(stored or "float32", (wide,)), bench.make("float32", ())
    i0, i1, r0 = symbol("i0", rows), symbol("i1", wide), symbol("r0", wide)
    outer, over, inner = Loop("i0", rows), Loop("r0", wide), Loop("i1", wide)
    ops = BodyBuilder()
    value = ops.cast(ops.load(x, i0 * wide + r0, dtype), "float32")
    first = Reduce(
        (outer,), (over,), ("max", "argmax"), ops.finish([value, value]), (Store(top, 0, 0), Store(place, i0, 1))
    )
    ops = BodyBuilder()
    value = ops.cast(ops.load(x, i0 * wide + i1, dtype), "float32")
    value = ops.call("exp", ops.call("sub", value, ops.load(top, 0, "float32")))
    second = Map((outer, inner), ops.finish([value]), (Store(row, i1, 0),))
    ops = BodyBuilder()
    third = Reduce(
        (outer,), (over,), ("sum",), ops.finish([ops.load(row, r0, stored or "float32")]), (Store(total, 0, 0),)
    )
    ops = BodyBuilder()
    value = ops.call("div", ops.load(row, i1, stored or "float32"), ops.load(total, 0, "float32"))
    fourth = Map((outer, inner), ops.finish([ops.cast(value, dtype)]), (Store(y, i0 * wide + i1, 0),))
    bench.add(LoopNest((outer,), (first, second, third, fourth), (top, row, total)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_nests(dtype: str) -> None:
    bench = Statements({"n0": 7})
    for rows, wide in ((1, 1), (3, 31), (2, 33), (5, 64), (140, 32), (133, 5), (2, 1023), (2, 1024), (0, 8)):
        add_softmax(bench, dtype, rows, wide)
    add_softmax(bench, dtype, size_symbol("n0"), 48)
    add_softmax(bench, dtype, 3, 40, stored="bfloat16")
    bench.compare()


def test_rows_too_large_for_shared_memory() -> None:
    bench = Statements()
    add_softmax(bench, "float32", 2, 40000)
    (step,) = write_kernels(bench.module)[1]
    assert step.kernels[0][1].shared == 0 and step.scratch.size == 320000
    bench.compare()


def add_wide_nest(bench: Statements, rows: int, middle: int, wide: int, *, across: bool) -> None:
    """Reductions with loops of their own inside the shared ones, a local of one element that only one thread may write,
    and a step that overwrites what it reads."""
    x = bench.give(draw_values((rows, middle, wide), "float32", 3), "float32")
    kept = bench.give(draw_values((rows,), "float32", 4), "float32")
    outputs, over = (wide, middle) if across else (middle, wide)
    sums, y, one = bench.make("float32", (outputs,)), bench.make("float32", (rows, outputs)), bench.make("float32", ())
    i0, i1, r0 = symbol("i0", rows), symbol("i1", outputs), symbol("r0", over)
    outer = Loop("i0", rows)
    ops = BodyBuilder()
    place = r0 * wide + i1 if across else i1 * wide + r0
    value = ops.load(x, i0 * (middle * wide) + place, "float32")
    first = Reduce(
        (outer, Loop("i1", outputs)), (Loop("r0", over),), ("sum",), ops.finish([value]), (Store(sums, i1, 0),)
    )
    ops = BodyBuilder()
    value = ops.call("add", ops.load(kept, i0, "float32"), ops.load(sums, outputs - 1, "float32"))
    second = Map((outer,), ops.finish([value]), (Store(kept, i0, 0), Store(one, 0, 0)))
    ops = BodyBuilder()
    value = ops.call("sub", ops.load(sums, outputs - 1 - i1, "float32"), ops.load(one, 0, "float32"))
    third = Map((outer, Loop("i1", outputs)), ops.finish([value]), (Store(y, i0 * outputs + i1, 0),))
    bench.add(LoopNest((outer,), (first, second, third), (sums, one)))


def test_nests_of_reductions_with_loops_of_their_own() -> None:
    bench = Statements()
    for across in (False, True):
        for rows, middle, wide in ((3, 5, 7), (140, 4, 9), (2, 33, 70), (2, 3, 300), (2, 300, 3)):
            add_wide_nest(bench, rows, middle, wide, across=across)
    bench.compare()


def test_a_barrier_that_is_left_out_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads of the emulator run one after another: who reads before others have written gets nan."""
    bench = Statements()
    add_wide_nest(bench, 2, 300, 3, across=False)
    monkeypatch.setattr(loop_nests._Nest, "wait_for", lambda self, step: None)
    with pytest.raises(AssertionError):
        bench.compare()


def test_all_lanes_agree_on_a_zero() -> None:
    """Of 0 and -0 each lane might keep its own: x / max(x) would then be infinite with either sign in one row."""
    bench = Statements()
    rows = np.zeros((140, 64))
    rows[:, ::3] = -0.0
    x, y, top = bench.give(rows, "float32"), bench.make("float32", (140, 64)), bench.make("float32", ())
    i0, i1, r0, outer = symbol("i0", 140), symbol("i1", 64), symbol("r0", 64), Loop("i0", 140)
    ops = BodyBuilder()
    body = ops.finish([ops.load(x, i0 * 64 + r0, "float32")])
    first = Reduce((outer,), (Loop("r0", 64),), ("max",), body, (Store(top, 0, 0),))
    ops = BodyBuilder()
    body = ops.finish([ops.call("reciprocal", ops.load(top, 0, "float32"))])
    second = Map((outer, Loop("i1", 64)), body, (Store(y, i0 * 64 + i1, 0),))
    bench.add(LoopNest((outer,), (first, second), (top,)))
    found = run_module(bench.module, bench.values)[y].reshape(140, 64)
    assert (found == found[:, :1]).all()


@needs_nvrtc
def test_reductions_compile_for_every_architecture() -> None:
    bench = Statements()
    for dtype in ("float32", "bfloat16", "int64"):
        add_reduce(bench, dtype, 5, 33, KINDS)
        add_reduce(bench, dtype, 33, 40, KINDS, across=True)
        add_reduce(bench, dtype, 2, 1025, KINDS)
    add_reduce(bench, "float32", 2, 70000, ("sum", "argmax"))
    for dtype in ("float64", "int32", "uint8"):
        add_reduce(bench, dtype, 5, 33, KINDS)
    add_softmax(bench, "bfloat16", 4, 64)
    add_softmax(bench, "float32", 140, 64)
    add_wide_nest(bench, 3, 5, 7, across=False)
    check_cubin(write_kernels(bench.module)[0])


def test_teams() -> None:
    """Who computes an output, by how many there are and how long they are."""
    choose = reductions.choose_team
    assert choose(10000, 3, across=False, splits=True) == reductions.Team(1, 128)
    assert choose(10000, 100, across=False, splits=True) == reductions.Team(32, 128)
    assert choose(1000, 4096, across=False, splits=True) == reductions.Team(256, 256)
    assert choose(1, 1 << 20, across=False, splits=True) == reductions.Team(512, 512, parts=64)
    assert choose(1, 1 << 20, across=False, splits=False).parts == 1
    assert choose(768, 4096, across=True, splits=True) == reductions.Team(8, 256, across=True, parts=4)
    assert choose(768, 16, across=True, splits=True) == reductions.Team(1, 128, across=True)
