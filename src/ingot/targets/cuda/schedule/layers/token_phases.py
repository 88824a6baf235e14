"""Attention of one token as the first phase of a kernel of streamed products, whose blocks wait for each other.

Heads that share their keys are queries of one of its points. Points and parts of the keys are shared out over blocks;
behind a barrier every block combines the parts of all heads into its own copy of the product's row.
"""

from __future__ import annotations

from collections.abc import Mapping

from ingot.lowering.dependence import body_reads, reads_and_writes
from ingot.lowering.dtypes import HALVES
from ingot.lowering.index_expr import product
from ingot.lowering.loop_ir import Attention, Buffer, Stmt
from ingot.targets.cuda.schedule.alignment import lies_in_pieces
from ingot.targets.cuda.schedule.attention_tiles import TokenTile, find_phase_tile
from ingot.targets.cuda.schedule.grouped_heads import pack_grouped_heads
from ingot.targets.cuda.schedule.statements import StreamedGemm, TiledGemm


def count_points(step: Attention) -> int | None:
    """Points of the batch, where their number is known."""
    points = product([loop.extent for loop in step.batch])
    return points if isinstance(points, int) else None


def plan_phase(step: Attention) -> TokenTile | None:
    """How blocks share attention of one token; None where they cannot."""
    packed = pack_grouped_heads(step)
    points, queries, keys = count_points(packed), packed.queries, packed.keys
    if points is None or not isinstance(queries, int) or not isinstance(keys, int):
        return None
    if packed.causal or packed.tiles is not None or packed.values != packed.depth:
        return None
    if not all(lies_in_pieces(matrix, packed.depth) for matrix in (packed.q, packed.k, packed.v)):
        return None
    return find_phase_tile(packed.depth, points, queries, keys)


def find_phase_fault(step: Attention, behind: Stmt, buffers: Mapping[str, Buffer]) -> str | None:
    """Why attention cannot be in the kernel of a product that multiplies its result; None where it can."""
    dtypes = {buffers[matrix.buffer].dtype for matrix in (step.q, step.k, step.v)}
    if plan_phase(step) is None or len(dtypes) > 1 or not dtypes <= set(HALVES):
        return "its attention is not that of one token"
    gemm = behind.product if isinstance(behind, StreamedGemm) else behind
    assert isinstance(gemm, TiledGemm)
    if isinstance(behind, StreamedGemm) and behind.row is not None:
        return "the product behind its attention has a row of its own"
    stores = step.epilogue.stores
    if step.lse is not None or step.top is not None or len(stores) != 1 or stores[0].mode != "set":
        return "its attention has other results than a row"
    row, view = buffers[stores[0].buffer], gemm.a
    dense = view.buffer == row.name and view.offset == 0 and view.columns == 1 and row.size == gemm.k
    if gemm.m != 1 or not dense or row.kind != "temporary":
        return "the product behind its attention does not read its result as one row"
    # Blocks combine parts while others already store results of the product.
    if body_reads(step.epilogue.body) & reads_and_writes(behind)[1]:
        return "the product behind its attention writes what its epilogue reads"
    return None
