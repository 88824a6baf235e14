"""Maps whose stores are vectors while some loads depend on conditions along them, or lie elsewhere."""

from __future__ import annotations

import re

import pytest

from ingot.lowering.index_expr import symbol
from ingot.lowering.loop_body import BodyBuilder
from ingot.lowering.loop_ir import Loop, Map, Store
from ingot.targets.cuda.build import nvrtc
from ingot.targets.cuda.codegen import loops  # noqa: F401  # which registers its writers
from tests.support.cuda_emulation.kernels import check_cubin, write_kernels
from tests.support.cuda_emulation.statements import Statements, draw_values
from tests.support.cuda_emulation.toolkit import needs_nvrtc


def add_rotation(bench: Statements, dtype: str, rows: int, wide: int, half: int, *, last: bool = False) -> None:
    """y = x · c + rotated x · s: the elements of a row from `half` on, with another sign, before the others. With
    `last`, the limits are the last places before and not the first ones behind."""
    x = bench.give(draw_values((rows, wide), dtype, wide, special=True), dtype)
    c, s = (bench.give(draw_values((wide,), dtype, wide + n), dtype) for n in (1, 2))
    y = bench.make(dtype, (rows, wide))
    i0, i1 = symbol("i0", rows), symbol("i1", wide)
    at = i0 * wide + i1
    ops = BodyBuilder()
    place = ops.index(i1)
    split = wide - half
    if last:
        before, behind = (ops.call(name, place, ops.const(split - 1, "int64")) for name in ("le", "gt"))
    else:
        before, behind = (ops.call(name, place, ops.const(split, "int64")) for name in ("lt", "ge"))
    before = ops.call("and", before, ops.call("ge", place, ops.const(0, "int64")))
    with ops.mask(behind):
        low = ops.load(x, at - split, dtype)
    with ops.mask(before):
        high = ops.load(x, at + half, dtype)
    turned = ops.where(before, ops.call("neg", high), low)
    one = ops.call("mul", ops.load(x, at, dtype), ops.load(c, i1, dtype))
    other = ops.call("mul", turned, ops.load(s, i1, dtype))
    body = ops.finish([ops.cast(ops.call("add", ops.cast(one, dtype), ops.cast(other, dtype)), dtype)])
    bench.add(Map((Loop("i0", rows), Loop("i1", wide)), body, (Store(y, at, 0),)))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_conditions_that_change_between_vectors(dtype: str) -> None:
    bench = Statements()
    for rows, wide, half in ((1, 2, 1), (3, 8, 4), (5, 64, 32), (7, 64, 24), (2, 64, 31), (3, 7, 3), (600, 256, 128)):
        add_rotation(bench, dtype, rows, wide, half)
        add_rotation(bench, dtype, rows, wide, half, last=True)
    bench.compare()


@needs_nvrtc
@pytest.mark.parametrize("last", [False, True])
def test_masked_halves_are_vectors(last: bool) -> None:
    bench = Statements()
    add_rotation(bench, "bfloat16", 16384, 64, 32, last=last)
    text = write_kernels(bench.module)[0]
    assert len(re.findall(r"= ig_load_vector<uint16_t, 8>", text)) == 5
    ptx = nvrtc.compile_text(text, "sm_90a", ptx=True).decode()
    assert not re.search(r"ld\.global[.\w]*\.u16", ptx)
    check_cubin(text)


def test_a_limit_inside_of_a_vector_makes_it_shorter() -> None:
    bench = Statements()
    add_rotation(bench, "bfloat16", 16384, 64, 28)
    assert "ig_store_vector<uint16_t, 4>(" in write_kernels(bench.module)[0]
    bench = Statements()
    add_rotation(bench, "bfloat16", 16384, 64, 31)
    assert "ig_store_vector<uint16_t, " not in write_kernels(bench.module)[0].split("extern", 1)[1].split("k0(")[1]


def add_channels_last(bench: Statements, dtype: str, shape: tuple[int, int, int], padded: int, border: int) -> None:
    """[channels, rows, columns] as [rows, columns, channels], with zeros for channels and places that it lacks."""
    channels, rows, columns = shape
    x = bench.give(draw_values(shape, dtype, columns, special=True), dtype)
    high, wide = rows + 2 * border, columns + 2 * border
    y = bench.make(dtype, (high, wide, padded))
    i0, i1, i2 = symbol("i0", high), symbol("i1", wide), symbol("i2", padded)
    ops = BodyBuilder()
    inside = ops.call("lt", ops.index(i2), ops.const(channels, "int64"))
    for place, below in ((i0 - border, rows), (i1 - border, columns)):
        at = ops.index(place)
        inside = ops.call("and", inside, ops.call("ge", at, ops.const(0, "int64")))
        inside = ops.call("and", inside, ops.call("lt", at, ops.const(below, "int64")))
    with ops.mask(inside):
        value = ops.load(x, i2 * (rows * columns) + (i0 - border) * columns + i1 - border, dtype)
    loops_ = (Loop("i0", high), Loop("i1", wide), Loop("i2", padded))
    where = (i0 * wide + i1) * padded + i2
    bench.add(Map(loops_, ops.finish([value]), (Store(y, where, 0),)))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "uint8"])
def test_short_loops_store_vectors_of_gathered_elements(dtype: str) -> None:
    bench = Statements()
    for shape, padded, border in (
        ((3, 5, 7), 4, 1), ((1, 1, 1), 2, 0), ((3, 6, 5), 3, 2), ((7, 3, 11), 8, 3), ((12, 4, 4), 12, 0),
    ):  # fmt: skip
        add_channels_last(bench, dtype, shape, padded, border)
    bench.compare()


def test_a_pixel_is_one_store() -> None:
    bench = Statements()
    add_channels_last(bench, "bfloat16", (3, 224, 224), 4, 3)
    text = write_kernels(bench.module)[0]
    assert "ig_store_vector<uint16_t, 4>(&" in text and "= ig_load_vector" not in text.split(" k0(")[1]
