"""Kernels of maps and scatters against the interpreter, run in emulation and compiled by NVRTC."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest

from ingot.lowering.index_expr import Size, product, size_symbol, symbol
from ingot.lowering.loop_body import BodyBuilder
from ingot.lowering.loop_ir import Loop, Map, Store
from ingot.targets.cuda.build.nvrtc import compile_text
from ingot.targets.cuda.codegen import loops  # noqa: F401  # which registers its writers
from tests.support.cuda_emulation.kernels import check_cubin, write_kernels
from tests.support.cuda_emulation.statements import Statements, draw_values
from tests.support.cuda_emulation.toolkit import needs_nvrtc

DTYPES = ("float32", "float64", "bfloat16", "float16", "int64", "int32", "int8", "uint8", "bool")
LENGTHS = (0, 1, 2, 3, 8, 31, 32, 33, 127, 1023, 1024, 1025)


def i(number: int, below: Size) -> Size:
    return symbol(f"i{number}", below)


def add_map(bench: Statements, dtype: str, shape: tuple[int, ...], other: str, order: tuple[int, ...] = ()) -> str:
    """y = f(x, z) over a shape, where x is read through a permutation and z along the last dim."""
    order = order or tuple(range(len(shape)))
    x = bench.give(draw_values(tuple(shape[d] for d in order), dtype, len(bench.steps), special=True), dtype)
    z = bench.give(draw_values(shape[-1:], other, len(bench.steps) + 1), other)
    y = bench.make(dtype, shape)
    steps: list[Size] = [product([shape[e] for e in order[order.index(d) + 1 :]]) for d in range(len(shape))]
    dense: list[Size] = [product(list(shape[d + 1 :])) for d in range(len(shape))]
    variables = [i(d, extent) for d, extent in enumerate(shape)]
    ops = BodyBuilder()
    one = ops.load(x, sum((v * s for v, s in zip(variables, steps, strict=True)), 0), dtype)
    two = ops.cast(ops.load(z, variables[-1], other), dtype)
    made = ops.call("max", one, two) if dtype != "bool" else ops.call("or", one, two)
    where = sum((v * s for v, s in zip(variables, dense, strict=True)), 0)
    body = ops.finish([made])
    bench.add(Map(tuple(Loop(f"i{d}", n) for d, n in enumerate(shape)), body, (Store(y, where, 0),)))
    return y


@pytest.mark.parametrize("dtype", DTYPES)
def test_maps_of_every_dtype_and_length(dtype: str) -> None:
    bench = Statements()
    for length in LENGTHS if dtype in ("float32", "bfloat16") else LENGTHS[::2]:
        add_map(bench, dtype, (length,), "float32" if dtype != "bool" else "bool")
        add_map(bench, dtype, (3, length), dtype)
    bench.compare()


def test_permuted_maps() -> None:
    bench = Statements()
    for shape in ((5, 7), (33, 65), (64, 32), (1, 40), (40, 1)):
        add_map(bench, "float32", shape, "float32", (1, 0))
    assert "__shared__ float staged0[32][33];" in write_kernels(bench.module)[0]
    for order in ((0, 2, 1), (2, 1, 0), (1, 2, 0), (2, 0, 1), (1, 0, 2)):
        add_map(bench, "bfloat16", (3, 34, 32), "bfloat16", order)
        add_map(bench, "uint8", (2, 17, 64), "uint8", order)
    bench.compare()


def test_a_map_that_has_no_loops_and_one_of_runtime_sizes() -> None:
    n = size_symbol("n0")
    bench = Statements({"n0": 21})
    x, y, z = bench.give(draw_values((21, 8), "float32"), "float32", (n, 8)), bench.make("float32", (n, 8)), ""
    z = bench.make("float32", ())
    ops = BodyBuilder()
    value = ops.load(x, i(0, n) * 8 + i(1, 8), "float32")
    body = ops.finish([ops.call("exp", value)])
    bench.add(Map((Loop("i0", n), Loop("i1", 8)), body, (Store(y, i(0, n) * 8 + i(1, 8), 0),)))
    ops = BodyBuilder()
    body = ops.finish([ops.load(x, 5, "float32")])
    bench.add(Map((), body, (Store(z, 0, 0),)))
    bench.compare()


def test_neighbouring_elements_are_loaded_at_once() -> None:
    """Where memory is dense and aligned, by 16 bytes; elsewhere one by one."""
    bench = Statements()
    add_map(bench, "float32", (1024, 256), "bfloat16")
    text = write_kernels(bench.module)[0].split("extern", 1)[1]
    assert re.findall(r"ig_load_vector<(\w+), (\d+)>", text) == [("float", "8"), ("uint16_t", "8")]
    assert "ig_store_vector<float, 8>" in text
    bench = Statements()
    add_map(bench, "float32", (512, 255), "float32")
    assert "ig_load_vector" not in write_kernels(bench.module)[0]


@needs_nvrtc
def test_vectors_are_one_instruction() -> None:
    bench = Statements()
    add_map(bench, "bfloat16", (4096, 2048), "float32")
    text = compile_text(write_kernels(bench.module)[0], "sm_90a", ptx=True).decode()
    found = Counter(re.findall(r"(?:ld|st)\.global[\w.]*", text))
    assert found == {"ld.global.nc.v4.u32": 1, "ld.global.nc.v4.f32": 2, "st.global.v4.u32": 1}


def test_vectors_of_gathered_rows_and_masked_ones() -> None:
    bench = Statements()
    rows = bench.give(np.array([3, 0, 2, 2, -1, 4]), "int64")
    table = bench.give(draw_values((5, 64), "float32"), "float32")
    y, z = bench.make("float32", (6, 64)), bench.make("float32", (6, 64))
    ops = BodyBuilder()
    row = ops.check_index(ops.load(rows, i(0, 6), "int64"), 5)
    value = ops.load(table, row * 64 + i(1, 64), "float32")
    where = i(0, 6) * 64 + i(1, 64)
    shape = (Loop("i0", 6), Loop("i1", 64))
    bench.add(Map(shape, ops.finish([value]), (Store(y, where, 0),)))
    ops = BodyBuilder()
    inside = ops.call("lt", ops.index(i(0, 6)), ops.const(5, "int64"))
    with ops.mask(inside):
        value = ops.load(table, where, "float32")
    bench.add(Map(shape, ops.finish([value]), (Store(z, where, 0),)))
    assert write_kernels(bench.module)[0].count("ig_load_vector<float, ") == 2
    bench.compare()


def test_an_index_out_of_range_is_reported() -> None:
    bench = Statements()
    rows = bench.give(np.array([0, 5]), "int64")
    table, y = bench.give(draw_values((5,), "float32"), "float32"), bench.make("float32", (2,))
    ops = BodyBuilder()
    value = ops.load(table, ops.check_index(ops.load(rows, i(0, 2), "int64"), 5), "float32")
    bench.add(Map((Loop("i0", 2),), ops.finish([value]), (Store(y, i(0, 2), 0),)))
    from ingot_runtime.errors import IndexOutOfRange
    from tests.support.cuda_emulation.kernels import run_module

    with pytest.raises(IndexOutOfRange):
        run_module(bench.module, bench.values)


# ---------------------------------------------------------------------- scatters


def add_scatter(bench: Statements, dtype: str, rows: int, wide: int, mode: str) -> None:
    """target[index[i], j] (mode)= x[i, j]: several rows of x go to one of the target."""
    targets = 4
    index = bench.give(np.random.default_rng(rows).integers(0, targets, rows), "int64")
    x = bench.give(draw_values((rows, wide), dtype, rows, special=mode in ("max", "min")), dtype)
    target = bench.give(draw_values((targets, wide), dtype, 1), dtype)
    ops = BodyBuilder()
    row = ops.check_index(ops.load(index, i(0, rows), "int64"), targets)
    checked = len(ops.ops) - 1
    value = ops.load(x, i(0, rows) * wide + i(1, wide), dtype)
    stores = (Store(target, row * wide + i(1, wide), 0, mode),)
    body = ops.finish([value, checked])
    bench.add(Map((Loop("i0", rows), Loop("i1", wide)), body, stores, collides=True))


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int32", "bool"])
def test_scatters_keep_the_order_of_points(dtype: str) -> None:
    bench = Statements()
    for mode in ("set", "add", "prod", "max", "min"):
        for rows, wide in ((1, 1), (13, 1), (9, 33), (0, 5)):
            add_scatter(bench, dtype, rows, wide, mode)
    bench.compare(ulps=0)


def test_scatters_run_beside_each_other_where_they_never_meet() -> None:
    bench = Statements()
    add_scatter(bench, "float32", 9, 33, "add")
    assert "const int i1 = at;" in write_kernels(bench.module)[0]
    assert "ig_atomic" not in write_kernels(bench.module)[0]
    bench = Statements()
    add_scatter(bench, "int64", 9, 1, "add")
    assert "ig_atomic_add(&" in write_kernels(bench.module)[0]
    # A store that steps over less than the loop runs over meets its neighbour.
    bench = Statements()
    x, y = bench.give(draw_values((6, 8), "float32"), "float32"), bench.give(draw_values((20,), "float32"), "float32")
    ops = BodyBuilder()
    value = ops.load(x, i(0, 6) * 8 + i(1, 8), "float32")
    loops_ = (Loop("i0", 6), Loop("i1", 8))
    bench.add(Map(loops_, ops.finish([value]), (Store(y, i(0, 6) * 2 + i(1, 8), 0, "add"),), collides=True))
    assert "blockIdx" not in write_kernels(bench.module)[0].split("extern")[-1]
    bench.compare(ulps=0)


def test_transpositions_of_runtime_sizes() -> None:
    n = size_symbol("n0")
    bench = Statements({"n0": 45})
    x, y = bench.give(draw_values((45, 70), "float32"), "float32", (n, 70)), bench.make("float32", (70, n))
    ops = BodyBuilder()
    value = ops.call("neg", ops.load(x, i(1, n) * 70 + i(0, 70), "float32"))
    body = ops.finish([ops.call("add", value, ops.load(x, i(0, 70), "float32"))])
    bench.add(Map((Loop("i0", 70), Loop("i1", n)), body, (Store(y, i(0, 70) * n + i(1, n), 0),)))
    assert "staged0[x][r]" in write_kernels(bench.module)[0]
    bench.compare()


def test_transpositions_of_several_tensors() -> None:
    bench = Statements()
    given = [bench.give(draw_values((2, 3, 40, 33), "float32", seed), "float32") for seed in range(5)]
    y = bench.make("float32", (2, 3, 33, 40))
    a, b, c, d = i(0, 2), i(1, 3), i(2, 33), i(3, 40)
    ops = BodyBuilder()
    value = ops.const(0, "float32")
    for x in given:
        value = ops.call("add", value, ops.load(x, ((a * 3 + b) * 40 + d) * 33 + c, "float32"))
    where = ((a * 3 + b) * 33 + c) * 40 + d
    extents = (Loop("i0", 2), Loop("i1", 3), Loop("i2", 33), Loop("i3", 40))
    bench.add(Map(extents, ops.finish([value]), (Store(y, where, 0),)))
    assert write_kernels(bench.module)[0].count("__shared__ float staged") == 4
    bench.compare()


@needs_nvrtc
def test_maps_compile_for_every_architecture() -> None:
    bench = Statements()
    for dtype in DTYPES:
        add_map(bench, dtype, (3, 32), dtype)
        add_map(bench, dtype, (33, 5), dtype, (1, 0))
    add_scatter(bench, "float32", 9, 33, "add")
    for mode in ("add", "max", "min"):
        add_scatter(bench, "int64", 9, 3, mode)
        add_scatter(bench, "int32", 9, 3, mode)
    check_cubin(write_kernels(bench.module)[0])
