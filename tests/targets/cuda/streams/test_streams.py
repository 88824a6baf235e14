"""Products of few rows whose weights are copied ahead: numbers of their kernels, which products they are for, and what
is in one kernel with them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ingot.errors import ScheduleError
from ingot.lowering.loop_module import Module
from ingot.targets.cuda.codegen import gemm as _gemm  # registers its writers
from ingot.targets.cuda.schedule.statements import TiledGemm
from ingot.targets.cuda.schedule.streams import plan_ring, plan_stream, stream_weights
from ingot.targets.cuda.schedule.verifier import verify_schedule
from tests.support.cuda_emulation import kernels
from tests.support.cuda_emulation.kernels import check_cubin, write_kernels
from tests.support.cuda_emulation.products import Case, Operand, check_cases, join_cases
from tests.support.cuda_emulation.toolkit import count, disassemble, needs_nvrtc
from tests.targets.cuda.test_gemm import pair, scheduled, tiled

assert _gemm.KERNELS

# Rows, lines and terms: fewer lines than a slot has, terms that fill no slot, no warp's piece and several slots, more
# lines than blocks have at a time.
SIZES = ((1, 33, 8), (2, 5, 264), (3, 64, 1040), (5, 31, 4096), (8, 9, 72), (1, 2, 8192), (1, 1, 16), (7, 2203, 96),
         (4, 41, 2056), (6, 17, 2304))  # fmt: skip


def make_cases(dtype: str) -> list[Case]:
    cases = [Case(*pair(m, n, k, dtype), tiled("stream")) for m, n, k in SIZES]
    padded = Operand((2, 280), dtype, pad=8, offset=16), Operand((280, 19), dtype, transposed=True, pad=24, offset=8)
    return [*cases, Case(*padded, tiled("stream"))]


def without_weights(module: Module) -> Module:
    buffers = {
        name: replace(one, kind="input") if one.kind == "weight" else one for name, one in module.buffers.items()
    }
    return replace(module, buffers=buffers)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sums(dtype: str) -> None:
    check_cases(make_cases(dtype))


def test_sums_without_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on GPUs that have no copies that barriers count."""

    def write(module: Any) -> tuple[str, Any]:
        text, steps = write_kernels(module)
        return f"#define IG_EMULATED_PLAIN\n{text}", steps

    monkeypatch.setattr(kernels, "write_kernels", write)
    check_cases(make_cases("bfloat16")[::2])


def test_which_products_are_streamed() -> None:
    def choose(m: int, n: int, k: int, dtype: str = "bfloat16", **operand: Any) -> str:
        a, b = pair(m, n, k, dtype)
        (step,) = stream_weights(scheduled([Case(a, replace(b, **operand), lambda step: step)])).steps
        assert isinstance(step, TiledGemm)
        return step.algorithm

    for m in range(1, 9):
        assert choose(m, 2048, 2048) == "stream"
    assert choose(1, 32000, 2048, "float16") == "stream" and choose(8, 2048, 5632) == "stream"
    assert choose(1, 2053, 2048) == "stream"  # a prime number of lines
    assert choose(1, 2048, 2048, "float32") == "rows"
    assert choose(1, 64, 2048) == "rows"  # too few to be worth it
    assert choose(8, 2048, 16384) == "rows"  # its rows fill the shared memory
    assert choose(9, 2048, 2048) == "tensor" and choose(2048, 1, 2048) == "rows"
    assert choose(1, 2048, 2052) == "tensor"  # lines that are not aligned
    a, b = pair(1, 2048, 2048, "bfloat16")
    module = scheduled([Case(a, b, lambda step: step)])
    assert stream_weights(without_weights(module)).steps == module.steps


def test_plans() -> None:
    """Two kernels' blocks fit into a multiprocessor, and a vocabulary's sums into a block."""
    for n, k in ((3072, 2048), (2048, 2048), (11264, 2048), (2048, 5632), (32000, 2048)):
        plan = plan_stream(1, n, k)
        ring = plan_ring([plan])
        assert plan.blocks == 132 and ring.slots == 2 and ring.shared * 2 <= 227 << 10
    large = plan_stream(8, 128256, 2048)
    assert plan_ring([large]).shared <= 160 << 10
    assert large.blocks % 132 == 0 and large.blocks * large.lines >= 128256
    assert plan_ring([plan_stream(1, 3072, 768)]).slots == 3  # as many as its lines need
    assert plan_ring([plan_stream(1, 11264, 768)]).slots == 5


def test_refused_streams() -> None:
    a, b = pair(2, 72, 264, "bfloat16")
    module = join_cases([Case(a, b, tiled("stream"))])

    def refuse(why: str, **changed: Any) -> None:
        (step,) = module.steps
        assert isinstance(step, TiledGemm)
        with pytest.raises(ScheduleError, match=why):
            verify_schedule(replace(module, steps=(replace(step, **changed),)), "streams")

    verify_schedule(module, "streams")
    refuse("all its terms in one block", split_k=2)
    refuse("aligned", k=260)
    with pytest.raises(ScheduleError, match="is a weight"):
        verify_schedule(without_weights(module), "streams")


@needs_nvrtc
def test_kernels_copy_ahead_and_spill_nothing(tmp_path: Path) -> None:
    cases = [Case(*pair(m, 2048, 2048, "bfloat16"), tiled("stream")) for m in (1, 8)]
    cubins = check_cubin(write_kernels(join_cases(cases))[0])
    for name, found in disassemble(cubins["sm_90a"], tmp_path).items():
        assert count(found, "UBLKCP") > 0 and count(found, "HMMA") >= 16 and count(found, "LDS") >= 8, name
        assert count(found, "STL", "LDL") == 0, f"{name} spills registers"
    for name, found in disassemble(cubins["sm_80"], tmp_path).items():
        assert count(found, "HMMA") >= 16 and count(found, "STL", "LDL") == 0, name
