"""Products on the CUDA target: every algorithm and tile, matrices that lie anyhow, against float64."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ingot.lowering.loop_ir import Gemm, Stmt
from ingot.targets.cuda.codegen import gemm as _gemm  # registers its writers
from ingot.targets.cuda.schedule.statements import GemmTile, TiledGemm
from ingot.targets.cuda.schedule.tiles import SIMT_TILES, TENSOR_TILES, WIDE_TILES
from ingot.targets.cuda.schedule.tiling import choose_tiles
from ingot.lowering.loop_module import Module
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


def chosen(step: Gemm) -> Stmt:
    """The change of a Gemm to what the schedule makes of it: sizes are all that it looks at, and dtypes."""
    return step


def small(tile: GemmTile, stages: int = 3) -> GemmTile:
    return replace(tile, stages=min(tile.stages, stages))


def pair(m: int, n: int, k: int, dtype: str, left: bool = False, right: bool = True) -> tuple[Operand, Operand]:
    return Operand((m, k), dtype, transposed=left), Operand((k, n), dtype, transposed=right)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_tensor_tiles(dtype: str) -> None:
    """Every tile, in both orders of both operands, with borders in all directions."""
    cases = []
    for number, tile in enumerate(TENSOR_TILES):
        orders = [(False, True), (True, False), (False, False), (True, True)]
        m, n = tile.rows + 8, tile.columns + 8
        a, b = pair(m, n, 136, dtype, *orders[number % 4 if dtype == "float16" else (number + 1) % 4])
        cases.append(Case(a, b, tiled("tensor", tile)))
    check_cases(cases)
