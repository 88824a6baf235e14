"""Nests whose threads run all steps for a few neighbouring elements."""

from __future__ import annotations

import pytest

from ingot.lowering.index_expr import smallest, symbol
from ingot.lowering.loop_body import BodyBuilder
from ingot.lowering.loop_ir import Loop, LoopNest, Map, Reduce, Store
from ingot.targets.cuda.build import nvrtc
from ingot.targets.cuda.codegen import reductions  # noqa: F401  # which registers its writers
from tests.support.cuda_emulation.kernels import write_kernels
from tests.support.cuda_emulation.statements import Statements, draw_values
from tests.support.cuda_emulation.toolkit import needs_nvrtc


def add_pool(
    bench: Statements, dtype: str, size: int, channels: int, *, pitch: int = 0, reach: int = 3, turned: bool = False
) -> None:
    """The greatest of each window of an image whose channels lie together and whose pixels lie `pitch` apart, and its
    mean, as rows of their own that the last step joins. With `turned`, it takes the other end's channel."""
    pitch = pitch or channels
    x = bench.give(draw_values((size, size, pitch), dtype, size + channels), dtype)
    bias = bench.give(draw_values((channels,), dtype, 7), dtype)
    made = (size + 1) // 2
    y, tops = bench.make(dtype, (made, made, channels)), bench.make(dtype, (made, made, channels))
    row, mean = bench.make("float32", (channels,)), bench.make("float32", (channels,))
    i0, i1, i2 = symbol("i0", made), symbol("i1", made), symbol("i2", channels)
    r = [symbol(f"r{number}", reach) for number in range(2)]
    outer = (Loop("i0", made), Loop("i1", made))
    inner, over = Loop("i2", channels), tuple(Loop(f"r{number}", reach) for number in range(2))
    ops = BodyBuilder()
    down, right = (smallest(i * 2 + s, size - 1) for i, s in zip((i0, i1), r, strict=True))
    value = ops.cast(ops.load(x, down * (size * pitch) + right * pitch + i2, dtype), "float32")
    first = Reduce(
        (*outer, inner), over, ("max", "sum"), ops.finish([value, value]), (Store(row, i2, 0), Store(mean, i2, 1))
    )
    where = (i0 * made + i1) * channels + i2
    ops = BodyBuilder()
    value = ops.cast(ops.load(row, channels - 1 - i2 if turned else i2, "float32"), dtype)
    second = Map((*outer, inner), ops.finish([value]), (Store(tops, where, 0),))
    ops = BodyBuilder()
    value = ops.call("mul", ops.load(mean, i2, "float32"), ops.const(1 / reach**2, "float32"))
    value = ops.call("add", value, ops.cast(ops.load(tops, where, dtype), "float32"))
    value = ops.call("add", value, ops.cast(ops.load(bias, i2, dtype), "float32"))
    third = Map((*outer, inner), ops.finish([ops.cast(value, dtype)]), (Store(y, where, 0),))
    bench.add(LoopNest(outer, (first, second, third), (row, mean)))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_windows_of_channels(dtype: str) -> None:
    bench = Statements()
    for size, channels in ((1, 1), (5, 8), (4, 3), (7, 64), (3, 24), (6, 37), (2, 130), (65, 64)):
        add_pool(bench, dtype, size, channels)
    add_pool(bench, dtype, 5, 16, pitch=24)
    add_pool(bench, dtype, 5, 16, pitch=17)
    add_pool(bench, dtype, 9, 16, reach=9)
    add_pool(bench, dtype, 5, 16, turned=True)
    bench.compare()


@needs_nvrtc
def test_windows_are_loaded_by_vectors() -> None:
    bench = Statements()
    add_pool(bench, "bfloat16", 65, 64)
    text, (step,) = write_kernels(bench.module)
    assert step.kernels[0][1].shared == 0
    ptx = nvrtc.compile_text(text, "sm_90a", ptx=True).decode()
    assert ptx.count("ld.global.v4.u32") == 10 and ptx.count("st.global.v4.u32") == 2
    assert ".local" not in ptx.split(".entry", 1)[1]


def test_what_elements_depend_on_each_other_for_stays_in_shared_memory() -> None:
    bench = Statements()
    add_pool(bench, "bfloat16", 65, 64, turned=True)
    assert write_kernels(bench.module)[1][0].kernels[0][1].shared > 0
