"""Products in which one side has a few rows: decoding, vectors. Warps read the other side once (cu/gemm_rows.cuh)."""

from __future__ import annotations

from ingot.codegen.c_expressions import STORED
from ingot.lowering.dtypes import BYTES
from ingot.lowering.index_expr import Size, product
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


def write_row_blocks(out: CudaKernelWriter, step: TiledGemm, number: str = "blockIdx.x") -> BlockWork:
    """The work of block `number`: the side with fewer rows is x; each warp has a few lines of the other one."""
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
    together = WARPS // parts  # groups of lines of a block
    blocks = (groups + together - 1) // together
    type_ = index_type(out, step)
    block = f"(int64_t)({number})"
    if step.batch:
        out.line(f"const {type_} o = ({type_})({block} / ({out.size(blocks)}));")
        unflatten(out, "o", type_, step.batch)
        block = f"{block} % ({out.size(blocks)})"
    out.line(f"const int part = ig_warp() % {parts}, group = ig_warp() / {parts};")
    out.line(f"const {type_} first = ({type_})((({block}) * {together} + group) * {wide});")
    out.line(f"const int valid = (int)ig_clamp({out.size(many)} - first, {wide});")
    out.line(f"float sums_of[{few}][{wide}];")
    early = "true" if out.buffers[lines.buffer].kind == "weight" else "false"
    out.line(f"const auto widen = []({STORED[dtype]} value) {{ return {widen(out, dtype, 'value')}; }};")
    out.line(
        f"ig_add_lines<{few}, {wide}, {_READS // wide}, {each}, {early}>("
        f"sums_of, {_start(out, x)}, {out.size(x_step)}, "
        f"{_start(out, lines)} + (int64_t)first * ({out.size(line_step)}), {out.size(line_step)}, valid, "
        f"((int64_t)part * {WARP} + ig_lane()) * {each}, {parts * WARP * each}, {out.size(step.k)}, widen);"
    )
    row, column = ("first + place", "line") if swapped else ("line", "first + place")
    write_finish(out, step, type_, 1, row=row, column=column)
    out.line(f"ig_finish_lines<{few}, {wide}, {parts}>(sums_of, group, part, valid, fetch, finish);")
    shared = WARPS * few * wide * 4 if parts > 1 else 0
    return BlockWork(points * blocks, WARPS * WARP, shared)


def _count_parts(out: CudaKernelWriter, groups: Size, k: Size, each: int) -> int:
    """How many warps share the terms of a line: enough for all multiprocessors, each with some terms."""
    parts, count, terms = 1, max(out.hint(groups), 1), out.hint(k)
    while parts < WARPS and count * parts < _MOST_WARPS and terms > parts * WARP * each:
        parts *= 2
    return parts


def _start(out: CudaKernelWriter, view: MatrixView) -> str:
    return f"{out.pointer(view.buffer)} + ({out.size(view.offset)})"
