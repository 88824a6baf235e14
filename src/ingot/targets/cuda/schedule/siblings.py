"""Siblings: products of the same rows become one kernel.

    before                               after
    TiledGemm  x · wq → q                SiblingGemms  x · wq → q, x · wk → k, x · wv → v
    TiledGemm  x · wk → k
    TiledGemm  x · wv → v

Queries, keys and values, the gate of a layer and what it lets through, the two branches of a block: together they fill
more of the GPU than each alone, and a kernel less is launched. A product whose epilogue reads another one's result at
its own place (the gate, the sum at the end of a block) is computed in turn by the same blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

from ingot.lowering.dependence import can_hoist_over, map_child_blocks, reads_and_writes
from ingot.lowering.dtypes import BYTES
from ingot.lowering.index_expr import Size, estimate, product, substitute, symbol
from ingot.lowering.loop_body import reads
from ingot.lowering.loop_ir import BindSymbol, For, If, Loop, Map, Stmt, While
from ingot.lowering.loop_module import Module
from ingot.targets.cuda.schedule.statements import ImplicitGemm, SiblingGemms, TiledGemm
from ingot.targets.cuda.schedule.tiles import PROCESSORS, TileAlgorithm, choose_tile, is_warpgroup_tile
from ingot.targets.cuda.schedule.tiling import find_convolution_algorithm, find_gemm_algorithm

Tiled: TypeAlias = TiledGemm | ImplicitGemm

# Steps that a product is moved over, at most.
_REACH = 4
# Blocks of a product that fills the GPU alone, a few times over.
_MANY_BLOCKS = 4 * PROCESSORS
# Algorithms between which the tile decides.
_ON_TENSOR_CORES = {"warpgroup": "tensor"}


def join_siblings(module: Module) -> Module:
    """Joins products that read the same rows; computes the same."""
    return replace(module, steps=tuple(_join(module.steps, module)))


def _join(steps: Sequence[Stmt], module: Module) -> list[Stmt]:
    done: list[Stmt] = []
    for step in steps:
        step = map_child_blocks(step, lambda inner: _join(inner, module))
        if isinstance(step, (TiledGemm, ImplicitGemm)):
            found = _find_place(step, done, module)
            if found is not None:
                place, joined = found
                done[place] = joined
                continue
        done.append(step)
    return done


def _find_place(step: Tiled, done: Sequence[Stmt], module: Module) -> tuple[int, SiblingGemms] | None:
    """Where among the last steps a product may be joined to another one, and what they become."""
    for place in range(len(done) - 1, max(len(done) - 2 - _REACH, -1), -1):
        other = done[place]
        if isinstance(other, (BindSymbol, If, While, For)) or not can_hoist_over(step, done[place + 1 :]):
            return None
        family = _members_of(other)
        if not family or not all(_are_alike(step, one) for one in family):
            continue
        if all(_rows_of(step) == _rows_of(one) and _is_apart(step, one) for one in family):
            return _make_group((*family, step), False, place, module)
        if len(family) == 1 and not _is_apart(step, family[0]) and _reads_own_place(step, family[0]):
            return _make_group((*family, step), True, place, module)
    return None


def _members_of(step: Stmt) -> tuple[Tiled, ...]:
    if isinstance(step, SiblingGemms):
        return () if step.in_turn else step.steps
    return (step,) if isinstance(step, (TiledGemm, ImplicitGemm)) else ()


def _rows_of(step: Tiled) -> tuple[str, Size, Size, tuple[Loop, ...]]:
    """What siblings have in common: the buffer of their rows, how many there are, their terms, and the batch."""
    if isinstance(step, TiledGemm):
        return step.a.buffer, step.m, step.k, step.batch
    terms = step.channels
    for taps in step.kernel:
        terms *= taps
    return step.x.buffer, step.sums_shape()[0], terms, ()


def _are_alike(step: Tiled, other: Tiled) -> bool:
    """Whether one kernel may compute both: by the same algorithm, into sums of one type."""
    groups = [one.groups for one in (step, other) if isinstance(one, ImplicitGemm)]
    same = (_ON_TENSOR_CORES.get(step.algorithm, step.algorithm), step.dtype) == (
        _ON_TENSOR_CORES.get(other.algorithm, other.algorithm),
        other.dtype,
    )
    return same and step.algorithm not in ("channels", "bulk") and all(count == 1 for count in groups)


def _is_apart(step: Tiled, other: Tiled) -> bool:
    """Whether neither uses what the other one writes."""
    (read, written), (other_read, other_written) = reads_and_writes(step), reads_and_writes(other)
    return not (read & other_written or written & (other_read | other_written))


def _reads_own_place(step: Tiled, other: Tiled) -> bool:
    """Whether a product's epilogue reads what another one writes where it is itself, and nothing else of it."""
    written, used = reads_and_writes(other)[1], reads_and_writes(step)
    if used[1] & set().union(*reads_and_writes(other)) or step.operand_buffers() & written:
        return False
    if step.sums_shape() != other.sums_shape() or step.batch_loops() != other.batch_loops():
        return False
    if step.algorithm == "rows" and _rows_of(step)[2] != _rows_of(other)[2]:
        return False  # how many warps share a line, and so which block has it, depends on its terms
    at = {store.buffer: _number_loops(store.index, other.epilogue) for store in other.epilogue.stores}
    alike = [loop.extent for loop in step.epilogue.loops] == [loop.extent for loop in other.epilogue.loops]
    read = [load for load in reads(step.epilogue.body) if load.buffer in written]
    return alike and all(_number_loops(load.index, step.epilogue) == at.get(load.buffer) for load in read)


def _number_loops(index: Size, epilogue: Map) -> Size:
    """An index with loops called by their numbers, so that those of two epilogues can be compared."""
    names: dict[str, Size] = {
        loop.variable: symbol(f"loop{number}", below=loop.extent) for number, loop in enumerate(epilogue.loops)
    }
    return substitute(index, names)


def _make_group(steps: tuple[Tiled, ...], in_turn: bool, place: int, module: Module) -> tuple[int, SiblingGemms] | None:
    """The group, with a tile for all of them; None where one alone has enough blocks."""
    origin = steps[0].origin
    if steps[0].algorithm == "rows":
        return place, SiblingGemms(steps, in_turn, origin)
    hints = module.hints
    _, m, _, batch = _rows_of(steps[0])
    rows, points = estimate(m, hints), estimate(product([loop.extent for loop in batch]), hints)
    widths = [estimate(step.sums_shape()[1], hints) for step in steps]
    depths = [estimate(_rows_of(step)[2], hints) for step in steps]
    columns, depth = (widths[0], sum(depths)) if in_turn else (sum(widths), depths[0])
    element = max(BYTES[module.buffers[name].dtype] for name in steps[0].operand_buffers())
    each = [_find_algorithm(step, module) for step in steps]
    by: TileAlgorithm = "warpgroup" if "warpgroup" in each else each[0]
    choice = choose_tile(by, points, rows, columns, depth, element, steps[0].dtype, may_split=False)
    blocks = points * -(-rows // choice.tile.rows) * -(-columns // choice.tile.columns)
    if blocks > _MANY_BLOCKS:
        return None
    fitting = is_warpgroup_tile(choice.tile)
    made = tuple(
        replace(step, tile=choice.tile, split_k=1, algorithm="tensor" if one == "warpgroup" and not fitting else one)
        for step, one in zip(steps, each, strict=True)
    )
    return place, SiblingGemms(made, in_turn, origin)


def _find_algorithm(step: Tiled, module: Module) -> TileAlgorithm:
    if isinstance(step, TiledGemm):
        return find_gemm_algorithm(step, module)
    return find_convolution_algorithm(step, module)
