"""Products on the CUDA target: every algorithm and tile, matrices that lie anyhow, against float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ingot.errors import ScheduleError
from ingot.lowering.loop_ir import Gemm, Stmt
from ingot.lowering.loop_module import Module
from ingot.targets.cuda.codegen import gemm as _gemm  # registers its writers
from ingot.targets.cuda.schedule.statements import GemmTile, TiledGemm
from ingot.targets.cuda.schedule.tiles import SIMT_TILES, TENSOR_TILES, WIDE_TILES, is_warpgroup_tile
from ingot.targets.cuda.schedule.tiling import choose_tiles
from ingot.targets.cuda.schedule.verifier import verify_schedule
from tests.support.cuda_emulation.products import Case, Operand, check_cases, join_cases

assert _gemm.KERNELS

EDGES = (1, 2, 7, 16, 31, 63, 64, 65, 127, 128, 129)


def tiled(algorithm: str, tile: GemmTile | None = None, split_k: int = 1) -> Callable[[Any], Stmt]:
    """The change of a Gemm to one with an algorithm."""

    def change(step: Gemm) -> TiledGemm:
        more = {} if tile is None else {"tile": tile}
        given = {name: getattr(step, name) for name in Gemm.__dataclass_fields__}
        return TiledGemm(**given, algorithm=algorithm, split_k=split_k, **more)

    return change


def small(tile: GemmTile, stages: int = 3) -> GemmTile:
    return replace(tile, stages=min(tile.stages, stages))


def pair(m: int, n: int, k: int, dtype: str, left: bool = False, right: bool = True) -> tuple[Operand, Operand]:
    return Operand((m, k), dtype, transposed=left), Operand((k, n), dtype, transposed=right)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_tensor_tiles(dtype: str) -> None:
    """Every tile, in both orders of both operands, with borders in all directions."""
    cases = []
    for number, tile in enumerate(TENSOR_TILES[dtype == "float16" :: 1 + (dtype == "float16")]):
        orders = [(False, True), (True, False), (False, False), (True, True)]
        m, n = tile.rows + 8, tile.columns + 8
        a, b = pair(m, n, 136, dtype, *orders[number % 4 if dtype == "float16" else (number + 1) % 4])
        cases.append(Case(a, b, tiled("tensor", tile)))
    check_cases(cases)


def test_groups_of_warps() -> None:
    """Every tile that four warps together can compute, with as many terms as stages, fewer and more."""
    cases = []
    for number, tile in enumerate(tile for tile in TENSOR_TILES if is_warpgroup_tile(tile)):
        dtype = "bfloat16" if number % 2 else "float16"
        for k in (40, 64 * tile.stages + 24):
            a, b = pair(tile.rows + 3, tile.columns + 8, k, dtype)
            cases.append(Case(a, b, tiled("warpgroup", tile, 1 if k == 40 else 2)))
    assert len(cases) == 10
    check_cases(cases)


SMALL = GemmTile(32, 32, 128, 3, 2, 2)
SIMT = GemmTile(32, 32, 64, 3, 4, 2)


def test_tensor_edges() -> None:
    """Sizes around every border, rows that are aligned to 16, 8, 4 and 2 bytes, and offsets."""
    cases = []
    sizes = list(zip(EDGES, EDGES[3:] + EDGES[:3], EDGES[5:] + EDGES[:5], strict=True))
    for number, (m, n, k) in enumerate(sizes):
        a, b = pair(m, n, k, "bfloat16", left=number % 2 == 1, right=number % 3 != 0)
        cases.append(Case(a, b, tiled("tensor", SMALL)))
    for pad, offset in ((4, 0), (2, 2), (8, 4), (0, 1)):
        a = Operand((33, 40), "bfloat16", pad=pad, offset=offset)
        b = Operand((40, 36), "bfloat16", transposed=pad == 2, pad=pad, offset=offset)
        cases.append(Case(a, b, tiled("tensor", SMALL)))
    check_cases(cases)


def test_integers_on_tensor_cores() -> None:
    cases = []
    for m, n, k, left, right in ((33, 40, 64, False, True), (16, 31, 100, False, True), (65, 8, 48, True, False)):
        a, b = pair(m, n, k, "int8", left, right)
        cases.append(Case(a, b, tiled("tensor", SMALL), "int32"))
    check_cases(cases)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_simt(dtype: str) -> None:
    """Every tile of plain multiply-adds, and sizes around borders of a small one."""
    tiles = WIDE_TILES if dtype.endswith("64") else SIMT_TILES
    cases = []
    for number, tile in enumerate(tiles):
        a, b = pair(tile.rows + 5, tile.columns + 4, 70, dtype, number % 2 == 1, number % 2 == 0)
        cases.append(Case(a, b, tiled("simt", small(tile))))
    for m, n, k in ((1, 1, 1), (2, 7, 129), (31, 65, 16), (33, 16, 31)):
        a, b = pair(m, n, k, dtype)
        cases.append(Case(a, b, tiled("simt", small(tiles[-1]))))
    check_cases(cases)


def test_mixed_types_and_any_strides() -> None:
    cases = []
    for left, right, out in (
        ("bfloat16", "float32", "float32"),
        ("float16", "float16", "float32"),
        ("int8", "int64", "int64"),
    ):
        a, b = Operand((20, 37), left, transposed=True, pad=3), Operand((37, 18), right, pad=1, offset=5)
        cases.append(Case(a, b, tiled("simt", SIMT), out))
        cases.append(Case(a, b, lambda step: step, out))  # a Gemm that no pass has seen
    check_cases(cases)


def test_batches() -> None:
    """Two loops around the product, one of which one operand does not have."""
    cases = []
    for algorithm, dtype, tile in (("tensor", "bfloat16", SMALL), ("simt", "float32", SIMT)):
        a = Operand((2, 3, 17, 40), dtype)
        for b in (
            Operand((2, 3, 40, 24), dtype, broadcast=(0,)),
            Operand((2, 3, 40, 24), dtype, True, broadcast=(0, 1)),
        ):
            cases.append(Case(a, b, tiled(algorithm, tile)))
            cases.append(Case(a, b, tiled(algorithm, tile, split_k=2)))
    a, b = Operand((2, 3, 40), "bfloat16"), Operand((2, 40, 24), "bfloat16", True)
    cases.append(Case(a, b, tiled("rows")))
    check_cases(cases)


def test_split_k() -> None:
    """Blocks that share terms, some of which have none."""
    cases = []
    for k, parts in ((200, 3), (64, 4), (640, 5)):
        for n in (40, 33):
            a, b = pair(35, n, k, "bfloat16")
            cases.append(Case(a, b, tiled("tensor", SMALL, parts)))
    a, b = pair(35, 40, 100, "float32")
    cases.append(Case(a, b, tiled("simt", SIMT, 3)))
    check_cases(cases)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_few_rows(dtype: str) -> None:
    """Each number of rows, on either side; lines and terms that fill no warp; terms that several warps share."""
    cases = []
    for few, many, k in ((1, 33, 8), (2, 5, 264), (3, 64, 1040), (5, 31, 4096), (8, 9, 72), (1, 2, 8192), (1, 1, 16)):
        for m, n in ((few, many), (many, few)):
            a, b = pair(m, n, k, dtype)
            cases.append(Case(a, b, tiled("rows")))
    check_cases(cases)


def test_lines_in_several_turns() -> None:
    """More lines than blocks have at a time; of one warp each, and of warps that share terms."""
    a, b = pair(2, 9001, 16, "bfloat16")
    batched = Operand((40, 1, 2048), "float32"), Operand((40, 2048, 21), "float32", transposed=True)
    check_cases([Case(a, b, tiled("rows")), Case(*batched, tiled("rows"))])


def scheduled(cases: list[Case]) -> Module:
    return choose_tiles(join_cases(cases))


def test_refused_tiles() -> None:
    a, b = pair(70, 72, 264, "bfloat16")
    module = join_cases([Case(a, b, tiled("tensor", SMALL))])

    def refuse(why: str, **changed: Any) -> None:
        (step,) = module.steps
        assert isinstance(step, TiledGemm)
        with pytest.raises(ScheduleError, match=why):
            verify_schedule(replace(module, steps=(replace(step, **changed),)), "tiles")

    verify_schedule(module, "tiles")
    refuse("two and one at least", split_k=0)
    refuse("two and one at least", tile=replace(SMALL, stages=1))
    refuse("whole pieces", tile=replace(SMALL, depth=120))
    refuse("cannot be shared out", tile=replace(SMALL, down=3))
    refuse("whole fragments", tile=replace(SMALL, along=4))
    refuse("groups of four warps", algorithm="warpgroup")
    refuse("threads", algorithm="simt", tile=replace(SMALL, down=1, along=1, rows=64, columns=64))
    refuse("all its terms in one block", algorithm="rows", split_k=2)
    refuse("outside", k=265)


def test_choice_of_algorithms() -> None:
    def choose(
        m: int, n: int, k: int, dtype: str = "bfloat16", out: str | None = None, right: bool = True
    ) -> TiledGemm:
        a, b = pair(m, n, k, dtype, right=right)
        (step,) = scheduled([Case(a, b, lambda step: step, out)]).steps
        assert isinstance(step, TiledGemm)
        return step

    def blocks(step: TiledGemm) -> int:
        assert isinstance(step.m, int) and isinstance(step.n, int)
        return -(-step.m // step.tile.rows) * -(-step.n // step.tile.columns) * step.split_k

    assert choose(1, 2048, 2048).algorithm == "rows"
    assert choose(1, 2048, 2048, "float32").algorithm == "rows"
    assert choose(4096, 1, 2048).algorithm == "rows"
    assert choose(1, 2048, 2047).algorithm == "tensor"  # rows that are not aligned
    assert choose(1, 2048, 2048, right=False).algorithm == "tensor"  # the weight lies along its columns
    assert choose(128, 768, 768, "float32").algorithm == "simt"
    assert choose(128, 768, 768, "float64").tile.depth == 128
    assert choose(512, 64, 64).tile.stages == 2  # one step of terms: the other blocks get the shared memory
    assert choose(128, 768, 768, "int8", "int32").algorithm == "tensor"
    assert choose(128, 768, 768, "int64").algorithm == "simt"
    for m, n, k in ((128, 768, 768), (128, 3072, 768), (128, 768, 3072), (512, 2048, 2048)):
        step = choose(m, n, k)
        assert step.algorithm in ("tensor", "warpgroup") and blocks(step) >= 70, (m, n, k, step.tile, step.split_k)
    large = choose(4096, 3072, 768)
    assert large.algorithm == "warpgroup" and choose(4096, 3072, 768, right=False).algorithm == "tensor"
    assert large.tile.rows * large.tile.columns >= 128 * 128 and large.split_k == 1
