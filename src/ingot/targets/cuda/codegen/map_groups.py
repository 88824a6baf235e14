"""Groups of Maps: one grid, in which each Map has blocks of its own."""

from __future__ import annotations

from ingot.lowering.dependence import reads_and_writes
from ingot.lowering.index_expr import Size, product
from ingot.lowering.loop_ir import Map
from ingot.targets.cuda.codegen.kernel import CudaKernel, Grid
from ingot.targets.cuda.codegen.kernel_rules import KERNELS
from ingot.targets.cuda.codegen.kernel_writer import CudaKernelWriter
from ingot.targets.cuda.codegen.loop_kernels.loop_points import loop_type, use_nothing, write_points
from ingot.targets.cuda.codegen.loops import count_apart, find_map_vectors, order_loops, write_scatter_points
from ingot.targets.cuda.schedule.statements import MapGroup

BLOCK = 128


@KERNELS.register(MapGroup)
def write_map_group(out: CudaKernelWriter, step: MapGroup) -> CudaKernel:
    blocks: Size = 0
    for member in step.steps:
        own = (_count_threads(out, member) + BLOCK - 1) // BLOCK
        out.open(f"if (blockIdx.x < (unsigned)({out.size(blocks + own)}))")
        _write_member(out, member, f"(blockIdx.x - (unsigned)({out.size(blocks)})) * {BLOCK} + threadIdx.x")
        out.line("return;")
        out.close()
        blocks = blocks + own
    return out.finish(Grid(blocks), BLOCK)


def _count_threads(out: CudaKernelWriter, step: Map) -> Size:
    if step.collides:
        apart = count_apart(out, step)
        return 1 if apart is None else apart
    ordered = order_loops(step)
    vectors = find_map_vectors(out, ordered) if ordered.loops else None
    total = product([loop.extent for loop in ordered.loops])
    return total // vectors.width if vectors else total


def _write_member(out: CudaKernelWriter, step: Map, thread: str) -> None:
    if step.collides:
        write_scatter_points(out, step, thread)
        return
    step = order_loops(step)
    read, written = reads_and_writes(step)
    type_ = loop_type(out, sorted(read | written), step.loops, [step.body])
    vectors = find_map_vectors(out, step) if step.loops else None
    out.line(f"const {type_} at = ({type_})({thread});")
    out.line(f"if (at >= {out.size(_count_threads(out, step))}) return;")
    write_points(out, step.body, step.loops, "at", type_, vectors, use_nothing, step.stores)
