"""The pass that gives every product and convolution an algorithm and a tile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from ingot.lowering.dependence import map_steps
from ingot.lowering.dtypes import BYTES, HALVES
from ingot.lowering.index_expr import Size, estimate, product
from ingot.lowering.loop_ir import Convolution, Gemm, MatrixView, Stmt
from ingot.lowering.loop_module import Module, Precision
from ingot.targets.cuda.schedule.alignment import is_multiple
from ingot.targets.cuda.schedule.statements import ImplicitGemm, TiledGemm
from ingot.targets.cuda.schedule.tiles import FEW_ROWS, TileAlgorithm, choose_tile


def choose_tiles(module: Module) -> Module:
    """Every Gemm as a TiledGemm, every Convolution as an ImplicitGemm."""

    def choose(step: Stmt) -> Stmt:
        if type(step) is Gemm:
            return _tile_gemm(step, module)
        return _tile_convolution(step, module) if type(step) is Convolution else step

    return replace(module, steps=map_steps(module.steps, choose))


def find_algorithm(first: str, second: str, sums: str, precision: Precision, *, along: bool) -> TileAlgorithm:
    """What computes products of elements of these two types into such sums: exactly as they are but for floats in a
    module of the precision "tf32". `along`: both operands lie along the terms, as groups of warps read them."""
    if first == second and first in HALVES and sums == "float32":
        return "warpgroup" if along else "tensor"
    if first == second == sums == "float32" and precision == "tf32":
        return "tensor"
    return "tensor" if first == second == "int8" and sums == "int32" else "simt"


def _tile_gemm(step: Gemm, module: Module) -> TiledGemm:
    dtypes = (module.buffers[step.a.buffer].dtype, module.buffers[step.b.buffer].dtype)
    made = TiledGemm(**_fields_of(step))
    if _reads_rows_once(step, dtypes):
        return replace(made, algorithm="rows")
    hints: Mapping[str, int] = module.hints
    m, n, k = (estimate(size, hints) for size in (step.m, step.n, step.k))
    points = estimate(product([loop.extent for loop in step.batch]), hints)
    element = max(BYTES[dtype] for dtype in dtypes)
    choice = choose_tile(find_gemm_algorithm(step, module), points, m, n, k, element, step.dtype)
    return replace(made, algorithm=choice.algorithm, tile=choice.tile, split_k=choice.split_k)


def find_gemm_algorithm(step: Gemm, module: Module) -> TileAlgorithm:
    dtypes = (module.buffers[step.a.buffer].dtype, module.buffers[step.b.buffer].dtype)
    along = lies_along(step.a, step.m, step.k, 1, rows_first=True)
    along = along and lies_along(step.b, step.n, step.k, 1, rows_first=False)
    return find_algorithm(*dtypes, step.dtype, module.precision, along=along)


def find_convolution_algorithm(step: Convolution, module: Module) -> TileAlgorithm:
    dtypes = (module.buffers[step.x.buffer].dtype, module.buffers[step.weight.buffer].dtype)
    return find_algorithm(*dtypes, step.dtype, module.precision, along=True)


def _reads_rows_once(step: Gemm, dtypes: tuple[str, str]) -> bool:
    """Whether one side has a few rows only, and both lie along the terms so that 16 bytes of them are read at once."""
    few = [side for side in (step.m, step.n) if isinstance(side, int) and side <= FEW_ROWS]
    alike = dtypes[0] == dtypes[1] and (
        (dtypes[0] in HALVES and step.dtype == "float32") or dtypes[0] == step.dtype == "float32"
    )
    each = 16 // BYTES[dtypes[0]]
    along = lies_along(step.a, step.m, step.k, each, rows_first=True)
    return bool(few) and alike and along and lies_along(step.b, step.n, step.k, each, rows_first=False)


def lies_along(view: MatrixView, rows: Size, terms: Size, each: int, *, rows_first: bool) -> bool:
    """Whether terms of a row (of a column, for the right operand) are neighbours, `each` of them aligned."""
    row_step, term_step = (view.rows, view.columns) if rows_first else (view.columns, view.rows)
    steps = [view.offset, terms, *([] if rows == 1 else [row_step])]
    return term_step == 1 and all(is_multiple(size, each) for size in steps)


def _tile_convolution(step: Convolution, module: Module) -> ImplicitGemm:
    dtypes = (module.buffers[step.x.buffer].dtype, module.buffers[step.weight.buffer].dtype)
    made = ImplicitGemm(**_fields_of(step))
    if step.channels == 1 and step.groups > 1:
        return replace(made, algorithm="channels")
    hints: Mapping[str, int] = module.hints
    m = estimate(product((step.images, *step.out_size)), hints)
    n = step.out_channels // step.groups
    k = step.channels * estimate(product(step.kernel), hints)
    element = max(BYTES[dtype] for dtype in dtypes)
    choice = choose_tile(find_convolution_algorithm(step, module), step.groups, m, n, k, element, step.dtype)
    return replace(made, algorithm=choice.algorithm, tile=choice.tile, split_k=choice.split_k)


def _fields_of(step: Gemm | Convolution) -> dict[str, Any]:
    return {field.name: getattr(step, field.name) for field in fields(step)}
