"""Nests whose threads keep their elements of a row in registers."""

from __future__ import annotations

import re

import pytest

from ingot.lowering.index_expr import symbol
from ingot.lowering.loop_body import BodyBuilder
from ingot.lowering.loop_ir import Loop, LoopNest, Map, Reduce, Store
from ingot.targets.cuda.build import nvrtc
from ingot.targets.cuda.codegen import reductions  # noqa: F401  # which registers its writers
from ingot.targets.cuda.codegen.loop_kernels.row_registers import choose_row_threads
from tests.support.cuda_emulation.kernels import check_cubin, write_kernels
from tests.support.cuda_emulation.statements import Statements, draw_values
from tests.support.cuda_emulation.toolkit import needs_nvrtc


def add_norm(
    bench: Statements, dtype: str, rows: int, wide: int, *, pitch: int = 0, stores: bool = False, local: bool = False
) -> None:
    """y = (x + z - mean) · weight over rows that lie `pitch` apart. The sum is computed in every step; or it is a
    buffer that the first step writes: `local`, or one that is a result too."""
    pitch = pitch or wide
    x = bench.give(draw_values((rows, pitch), dtype, wide), dtype)
    z = bench.give(draw_values((rows, wide), dtype, wide + 1), dtype)
    weight = bench.give(draw_values((wide,), dtype, wide + 2), dtype, kind="weight")
    y = bench.make(dtype, (rows, wide))
    total, mean = bench.make("float32", ()), bench.make("float32", ())
    shape = (wide,) if local else (rows, wide)
    both = bench.make(dtype, shape) if stores or local else ""
    i0, i1, r0 = symbol("i0", rows), symbol("i1", wide), symbol("r0", wide)
    outer = Loop("i0", rows)

    def add(ops: BodyBuilder, at: object) -> int:
        if both:
            return ops.load(both, at if local else i0 * wide + at, dtype)
        value = ops.call("add", ops.load(x, i0 * pitch + at, dtype), ops.load(z, i0 * wide + at, dtype))
        return ops.cast(ops.cast(value, dtype), "float32")

    steps: list[Map | Reduce] = []
    if both:
        ops = BodyBuilder()
        value = ops.call("add", ops.load(x, i0 * pitch + i1, dtype), ops.load(z, i0 * wide + i1, dtype))
        where = i1 if local else i0 * wide + i1
        steps.append(Map((outer, Loop("i1", wide)), ops.finish([ops.cast(value, dtype)]), (Store(both, where, 0),)))
    ops = BodyBuilder()
    steps.append(Reduce((outer,), (Loop("r0", wide),), ("sum",), ops.finish([add(ops, r0)]), (Store(total, 0, 0),)))
    ops = BodyBuilder()
    value = ops.call("div", ops.load(total, 0, "float32"), ops.const(float(wide), "float32"))
    steps.append(Map((outer,), ops.finish([value]), (Store(mean, 0, 0),)))
    ops = BodyBuilder()
    value = ops.call("sub", add(ops, i1), ops.load(mean, 0, "float32"))
    value = ops.call("mul", value, ops.cast(ops.load(weight, i1, dtype), "float32"))
    body = ops.finish([ops.cast(value, dtype)])
    steps.append(Map((outer, Loop("i1", wide)), body, (Store(y, i0 * wide + i1, 0),)))
    bench.add(LoopNest((outer,), tuple(steps), (total, mean, both) if local else (total, mean)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("form", [{}, {"stores": True}, {"local": True}])
def test_rows_in_registers(dtype: str, form: dict[str, bool]) -> None:
    bench = Statements()
    for rows, wide in ((1, 8), (3, 0), (3, 40), (7, 1), (5, 37), (2, 768), (140, 264), (133, 256), (2, 5000)):
        add_norm(bench, dtype, rows, wide, **form)
    add_norm(bench, dtype, 5, 96, pitch=104, **form)
    add_norm(bench, dtype, 5, 96, pitch=101, **form)
    bench.compare()


def test_many_rows_have_a_warp_each() -> None:
    bench = Statements()
    add_norm(bench, "bfloat16", 2115, 264)
    text, (step,) = write_kernels(bench.module)
    assert step.kernels[0][1].block == 128 and "kept0[2];" in text and "if (at < 33)" in text
    bench.compare()


def test_each_element_is_loaded_once() -> None:
    """Weights before the kernel waits for the one before it; a local row has no memory."""
    bench = Statements()
    add_norm(bench, "bfloat16", 128, 768)
    text = write_kernels(bench.module)[0].split("extern", 1)[1]
    assert len(re.findall("= ig_load_vector<uint16_t, 8>", text)) == 3
    before, after = text.split("ig_wait_for_previous();")
    assert before.count("= ig_load_vector<uint16_t") == 1 and after.count("= ig_load_vector<uint16_t") == 2
    assert text.count("= common0[unit][lane];") == text.count("common0[unit][lane] = v") == 1
    bench = Statements()
    add_norm(bench, "bfloat16", 128, 768, local=True)
    ((_, kernel),) = write_kernels(bench.module)[1][0].kernels
    assert kernel.shared == 0 and kernel.block == 96 and kernel.waits


@needs_nvrtc
def test_registers_and_conversions_are_single_instructions() -> None:
    bench = Statements()
    add_norm(bench, "bfloat16", 4096, 768)
    text = write_kernels(bench.module)[0]
    ptx = nvrtc.compile_text(text, "sm_90a", ptx=True).decode()
    assert ptx.count("ld.global") == 9 and ptx.count("st.global.v4") == 3
    assert len(re.findall(r"cvt\.rn\.bf16x2", ptx)) == 48  # each sum and each result is rounded once
    assert "ld.local" not in ptx and "st.local" not in ptx and not re.search(r"\bld\.v4", ptx)
    check_cubin(text)


def test_threads_of_a_row() -> None:
    assert choose_row_threads(4096, 96) == 32
    assert choose_row_threads(128, 96) == 96
    assert choose_row_threads(512, 256) == 256
    assert choose_row_threads(4096, 256) == 128
    assert choose_row_threads(1, 2000) == 512
    assert choose_row_threads(8, 20) == 32
