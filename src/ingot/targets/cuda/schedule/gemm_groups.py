"""Products of the same rows become one kernel.

    before                     after
    tiled_gemm  x · wq → q     gemm_group  x · wq → q, x · wk → k, x · wv → v
    tiled_gemm  x · wk → k
    tiled_gemm  x · wv → v

Queries, keys and values, or the gate of a layer and what it lets through: together they fill a GPU that each alone
leaves half empty, and two launches less are waited for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from ingot.lowering.dependence import can_hoist_over
from ingot.lowering.dtypes import BYTES
from ingot.lowering.index_expr import estimate
from ingot.lowering.loop_ir import BindSymbol, Stmt
from ingot.lowering.loop_module import Module
from ingot.targets.cuda.schedule.alignment import is_multiple
from ingot.targets.cuda.schedule.statements import GemmGroup, TiledGemm
from ingot.targets.cuda.schedule.tiles import FEW_ROWS, SIMT_TILES, TENSOR_TILES, WIDE_TILES, choose_tile

# Products of a group, and how many steps one may move over.
MOST_MEMBERS = 4
FARTHEST = 6
# Columns of a right operand are a multiple of this: every member's copies are as wide.
EACH = 16


def group_gemms(module: Module) -> Module:
    """Joins products of the module's own list of steps; computes the same."""
    done: list[list[Stmt]] = []
    for step in module.steps:
        place = _find_group(step, done, module) if isinstance(step, TiledGemm) else None
        if place is None:
            done.append([step])
        else:
            done[place].append(step)
    return replace(module, steps=tuple(map(partial(_join, module), done)))


def _join(module: Module, group: Sequence[Stmt]) -> Stmt:
    if len(group) == 1:
        return group[0]
    members = [step for step in group if isinstance(step, TiledGemm)]
    first = members[0]
    if first.algorithm != "rows":
        tensor = first.algorithm == "tensor"
        tiles = TENSOR_TILES if tensor else WIDE_TILES if BYTES[first.dtype] == 8 else SIMT_TILES
        m, k = estimate(first.m, module.hints), estimate(first.k, module.hints)
        n = sum(estimate(step.n, module.hints) for step in members)
        element = max(BYTES[module.buffers[view.buffer].dtype] for view in (first.a, first.b))
        tile = choose_tile(tiles, 1, m, n, k, element, tensor=tensor, may_split=False).tile
        members = [replace(step, tile=tile, split_k=1) for step in members]
    return GemmGroup(tuple(members), first.origin)


def _find_group(step: TiledGemm, done: Sequence[Sequence[Stmt]], module: Module) -> int | None:
    """The nearest product, or group of them, of the same rows, if the step may run so early."""
    for place in range(len(done) - 1, max(-1, len(done) - 1 - FARTHEST), -1):
        group = done[place]
        if any(isinstance(other, BindSymbol) for other in group) or not can_hoist_over(step, group):
            return None
        first = group[0]
        if isinstance(first, TiledGemm) and len(group) < MOST_MEMBERS and _is_alike(step, first, module):
            return place
    return None


def _is_alike(step: TiledGemm, first: TiledGemm, module: Module) -> bool:
    """Whether two products differ in where their right operand lies, and in its columns, only."""
    return _kind(step, module) == _kind(first, module) and all(_is_plain(one) for one in (step, first))


def _kind(step: TiledGemm, module: Module) -> tuple[object, ...]:
    right = module.buffers[step.b.buffer]
    return (
        step.a, step.m, step.k, step.dtype, step.algorithm, step.b.rows, step.b.columns, right.dtype,
        right.kind == "weight",
    )  # fmt: skip


def _is_plain(step: TiledGemm) -> bool:
    wide = is_multiple(step.n, EACH) and is_multiple(step.b.offset, EACH)
    few = isinstance(step.m, int) and step.m <= FEW_ROWS
    return not step.batch and wide and (step.algorithm in ("tensor", "simt") or few)
