"""Products of matrices: by tiles, by warps that read few rows' other side once, and several of them in one kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ingot.codegen.c_expressions import STORED
from ingot.lowering.dtypes import BYTES, HALVES
from ingot.lowering.index_expr import Size
from ingot.lowering.loop_ir import Gemm, MatrixView, Stmt
from ingot.registry import Registry
from ingot.targets.cuda.codegen.kernel import CudaKernel, Grid
from ingot.targets.cuda.codegen.kernel_rules import KERNELS
from ingot.targets.cuda.codegen.kernel_writer import CudaKernelWriter
from ingot.targets.cuda.codegen.products.bulk_product import write_bulk_product
from ingot.targets.cuda.codegen.products.row_product import write_row_blocks
from ingot.targets.cuda.codegen.products.stream_kernel import write_chain, write_stream
from ingot.targets.cuda.codegen.products.tile_product import (
    BlockWork,
    TileOperand,
    TileProduct,
    count_terms,
    write_blocks,
    write_product,
)
from ingot.targets.cuda.schedule.alignment import MOST_BYTES, count_neighbours
from ingot.targets.cuda.schedule.bulk.paired_columns import join_pairs
from ingot.targets.cuda.schedule.layers.layer_loops import match_layers
from ingot.targets.cuda.schedule.statements import (
    PLAIN_TILE,
    GatedGemm,
    GemmTile,
    LayerLoop,
    SiblingGemms,
    StreamedChain,
    StreamedGemm,
    TiledGemm,
)
from ingot.targets.cuda.schedule.streamed_chains import list_groups
from ingot.targets.cuda.schedule.tiles import count_threads
from ingot.targets.cuda.schedule.tiling import lies_along

# Writes the work of block number `block` of a step, as a part of a kernel.
BLOCKS: Registry[type[Stmt], Callable[[CudaKernelWriter, Any, str], BlockWork]] = Registry("CUDA block writer")


@KERNELS.register(Gemm)
def write_gemm(out: CudaKernelWriter, step: Gemm) -> CudaKernel | Sequence[CudaKernel]:
    return write_product(out, _plan_product(out, step, "simt", PLAIN_TILE, 1))


@KERNELS.register(TiledGemm)
def write_tiled_gemm(out: CudaKernelWriter, step: TiledGemm) -> CudaKernel | Sequence[CudaKernel]:
    if step.algorithm == "bulk":
        return write_bulk_product(out, (step,))
    if step.algorithm == "stream":
        return write_stream(out, *list_groups((step,)))
    if step.algorithm != "rows":
        return write_product(out, _plan_product(out, step, step.algorithm, step.tile, step.split_k))
    out.line("ig_start_next();")
    work = write_row_blocks(out, step)
    return out.finish(Grid(work.blocks), work.threads, work.shared, waits=True)


@KERNELS.register(StreamedGemm)
def write_streamed_gemm(out: CudaKernelWriter, group: StreamedGemm) -> CudaKernel:
    return write_stream(out, group)


@KERNELS.register(StreamedChain)
def write_streamed_chain(out: CudaKernelWriter, chain: StreamedChain) -> CudaKernel:
    return write_chain(out, chain, ())


@KERNELS.register(LayerLoop)
def write_layer_loop(out: CudaKernelWriter, loop: LayerLoop) -> CudaKernel:
    return write_chain(out, loop.steps[0], match_layers(loop, out.buffers))


@KERNELS.register(GatedGemm)
def write_gated_gemm(out: CudaKernelWriter, group: GatedGemm) -> CudaKernel:
    joined = join_pairs(group, out.buffers)
    assert not isinstance(joined, str), joined
    return write_bulk_product(out, (group.steps[0],), pairs=joined)


@BLOCKS.register(TiledGemm)
def write_gemm_blocks(out: CudaKernelWriter, step: TiledGemm, block: str) -> BlockWork:
    if step.algorithm == "rows":
        return write_row_blocks(out, step, block)
    return write_blocks(out, _plan_product(out, step, step.algorithm, step.tile, 1), block)


@KERNELS.register(SiblingGemms)
def write_siblings(out: CudaKernelWriter, siblings: SiblingGemms) -> CudaKernel:
    """The blocks of one product after those of another; or, where one reads what another has written at its own place,
    the same blocks in turn."""
    bulk = [step for step in siblings.steps if isinstance(step, TiledGemm) and step.algorithm == "bulk"]
    if bulk:
        return write_bulk_product(out, bulk, in_turn=siblings.in_turn)
    out.line("ig_start_next();")
    works: list[BlockWork] = []
    first: Size = 0
    for number, step in enumerate(siblings.steps):
        if siblings.in_turn:
            if number:
                out.line("__syncthreads();")
            out.open("")
            works.append(BLOCKS[type(step)](out, step, "blockIdx.x"))
            out.close()
            continue
        place = len(out.lines)
        out.depth += 1
        works.append(BLOCKS[type(step)](out, step, f"blockIdx.x - (unsigned)({out.size(first)})"))
        out.depth -= 1
        first = first + works[-1].blocks
        last = number == len(siblings.steps) - 1
        condition = "{" if last else f"if (blockIdx.x < (unsigned)({out.size(first)})) {{"
        out.lines.insert(place, f"    {'} else ' if number else ''}{condition}")
    if not siblings.in_turn:
        out.line("}")
        return out.finish(Grid(first), works[0].threads, max(work.shared for work in works), waits=True)
    return out.finish(Grid(works[0].blocks), works[0].threads, max(work.shared for work in works), waits=True)


def _plan_product(out: CudaKernelWriter, step: Gemm, algorithm: str, tile: GemmTile, parts: int) -> TileProduct:
    threads = count_threads(algorithm, tile)
    dtypes = [out.buffers[view.buffer].dtype for view in (step.a, step.b)]
    terms = count_terms(tile, dtypes)
    across = algorithm == "tensor" and dtypes[0] in HALVES

    def write_operands(type_: str) -> tuple[TileOperand, TileOperand]:
        left, right = (tile.rows, terms, threads), (tile.columns, terms, threads)
        return (
            _make_operand(out, step.a, "top", "rows", step.m, step.k, left, across, True),
            _make_operand(out, step.b, "left", "columns", step.n, step.k, right, across, False),
        )

    return TileProduct(step, algorithm, tile, step.n, step.k, terms, write_operands, batch=step.batch, parts=parts)


def _make_operand(
    out: CudaKernelWriter,
    view: MatrixView,
    first: str,
    rows: str,
    count: Size,
    terms: Size,
    tile: tuple[int, int, int],
    across: bool,
    is_left: bool,
) -> TileOperand:
    """A matrix as it lies: by aligned copies along the terms, or, where `across` may be, along the rows."""
    buffer = out.buffers[view.buffer]
    row_step, term_step = (view.rows, view.columns) if is_left else (view.columns, view.rows)
    most = MOST_BYTES // BYTES[buffer.dtype]
    along = lies_along(view, count, terms, 1, rows_first=is_left)
    lies_across = across and not along and row_step == 1
    steps = (
        [view.offset, count, term_step] if lies_across else [view.offset, terms, *([] if count == 1 else [row_step])]
    )
    each = count_neighbours(steps, most) if along or lies_across else 1
    if lies_across and each == 1:
        lies_across = False
    stored = STORED[buffer.dtype]
    row_text, term_text = out.size(row_step), out.size(term_step)
    flag = "true" if lies_across else "false"
    type_ = f"ig_matrix_tile<{stored}, {tile[0]}, {tile[1]}, {each}, {flag}, {tile[2]}>"
    start = f"{out.pointer(view.buffer)} + ({out.size(view.offset)}) + (int64_t){first} * ({row_text})"
    return TileOperand(type_, f" = {{{start}, {row_text}, {term_text}, {rows}}}", buffer.dtype, buffer.kind == "weight")
