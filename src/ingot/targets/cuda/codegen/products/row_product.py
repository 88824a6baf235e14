"""Products in which one side has a few rows: decoding, vectors. Warps read the other side once (cu/gemm_rows.cuh)."""

from __future__ import annotations

from ingot.codegen.c_expressions import STORED
from ingot.lowering.dtypes import BYTES
from ingot.lowering.index_expr import Size, product, smallest
from ingot.lowering.loop_ir import MatrixView
from ingot.targets.cuda.codegen.kernel import WARP
from ingot.targets.cuda.codegen.kernel_writer import CudaKernelWriter
from ingot.targets.cuda.codegen.loop_kernels.loop_points import unflatten
from ingot.targets.cuda.codegen.products.epilogue import index_type, write_finish
from ingot.targets.cuda.codegen.products.tile_product import BlockWork, use_headers, widen
from ingot.targets.cuda.schedule.statements import TiledGemm
from ingot.targets.cuda.schedule.tiles import FEW_ROWS, PROCESSORS

# Warps of a block, and those that all multiprocessors should have at least.
WARPS = 8
_MOST_WARPS = 16 * PROCESSORS
# Reads of a lane that are under way at a time.
_READS = 8
# Blocks of a multiprocessor that run at a time.
_RESIDENT = 2


def write_row_blocks(out: CudaKernelWriter, step: TiledGemm, number: str = "blockIdx.x") -> BlockWork:
    """The work of block `number`: the side with fewer rows is x; each warp has a few lines of the other at a time."""
    use_headers(out)
    out.library.use("gemm_rows.cuh")
    swapped = not (isinstance(step.m, int) and step.m <= FEW_ROWS)
    few, many = (step.n, step.m) if swapped else (step.m, step.n)
    assert isinstance(few, int)
    x, lines = (step.b, step.a) if swapped else (step.a, step.b)
    x_step, line_step = (x.columns, lines.rows) if swapped else (x.rows, lines.columns)
    dtype = out.buffers[x.buffer].dtype
    each = 16 // BYTES[dtype]
    wide = 4 if few > 4 else 2
    points = product([loop.extent for loop in step.batch])
    groups = (many + wide - 1) // wide
    parts = _count_parts(out, points * groups, step.k, each)
    together = WARPS // parts  # groups of lines of a block at a time
    blocks = _count_blocks(out, (groups + together - 1) // together, points)
    type_ = index_type(out, step)
    out.line(f"const int64_t block = (int64_t)({number}) % ({out.size(blocks)});")
    if step.batch:
        out.line(f"const {type_} o = ({type_})((int64_t)({number}) / ({out.size(blocks)}));")
        unflatten(out, "o", type_, step.batch)
    out.line(f"const {type_} first = ({type_})(block * {together * wide});")
    row, column = ("first + place", "line") if swapped else ("line", "first + place")
    write_finish(out, step, type_, 1, row=row, column=column)
    out.line(f"const auto widen = []({STORED[dtype]} value) {{ return {widen(out, dtype, 'value')}; }};")
    out.open("const auto give = [&](int line, int place, float sum)")
    out.line("finish(line, place, &sum, fetch(line, place));")
    out.depth -= 1
    out.line("};")
    early = "true" if out.buffers[lines.buffer].kind == "weight" else "false"
    shape = f"{few}, {wide}, {_READS // wide}, {each}, {parts}, {together}, {early}"
    sizes = ", ".join(out.size(size) for size in (line_step, many, step.k))
    out.line(
        f"ig_stream_lines<{shape}>({_start(out, x)}, {out.size(x_step)}, {_start(out, lines)}, {sizes}, "
        f"(int64_t)first, (int64_t)({out.size(blocks * (together * wide))}), widen, give);"
    )
    return BlockWork(points * blocks, WARPS * WARP, 2 * WARPS * few * wide * 4)


def _count_blocks(out: CudaKernelWriter, needed: Size, points: Size) -> Size:
    """Blocks that stream lines: no more than run at a time, and each with as many turns."""
    most = max(_RESIDENT * PROCESSORS // max(out.hint(points), 1), 1)
    if not isinstance(needed, int):
        return smallest(needed, most)
    turns = max(-(-needed // most), 1)
    return -(-needed // turns)


def _count_parts(out: CudaKernelWriter, groups: Size, k: Size, each: int) -> int:
    """How many warps share the terms of a line: enough for all multiprocessors, each with some terms."""
    parts, count, terms = 1, max(out.hint(groups), 1), out.hint(k)
    while parts < WARPS and count * parts < _MOST_WARPS and terms > parts * WARP * each:
        parts *= 2
    return parts


def _start(out: CudaKernelWriter, view: MatrixView) -> str:
    return f"{out.pointer(view.buffer)} + ({out.size(view.offset)})"
