"""Products of the same rows: one grid, in which each product has blocks, a right operand and an epilogue of its own."""

from __future__ import annotations

from collections.abc import Sequence

from ingot.codegen.c_expressions import STORED
from ingot.lowering.dtypes import BYTES, HALVES
from ingot.lowering.index_expr import Size
from ingot.targets.cuda.codegen.epilogue import count_columns, index_type, runs_down, write_finish
from ingot.targets.cuda.codegen.gemm import HEADER, count_terms, declare_sums, make_matrix_operand
from ingot.targets.cuda.codegen.gemm_rows import READS, WARPS, count_parts, widen_element
from ingot.targets.cuda.codegen.kernel import WARP, CudaKernel, Grid
from ingot.targets.cuda.codegen.kernel_rules import KERNELS
from ingot.targets.cuda.codegen.kernel_writer import CudaKernelWriter
from ingot.targets.cuda.schedule.statements import GemmGroup, TiledGemm
from ingot.targets.cuda.schedule.verifier import count_threads


@KERNELS.register(GemmGroup)
def write_gemm_group(out: CudaKernelWriter, step: GemmGroup) -> CudaKernel:
    out.library.use("vectors.cuh")
    out.library.use(HEADER)
    return _write_rows(out, step) if step.steps[0].algorithm == "rows" else _write_tiles(out, step)


def _index_type(out: CudaKernelWriter, members: Sequence[TiledGemm]) -> str:
    types = {index_type(out, one) for one in members}
    return "int64_t" if "int64_t" in types else "int"


def _pick_member(out: CudaKernelWriter, type_: str, members: Sequence[TiledGemm], blocks: Sequence[Size]) -> None:
    """Declares `member`, `rest`, the number of a block among those of its product, its columns `n`, and `right`, where
    its right operand begins."""
    stored = STORED[out.buffers[members[0].b.buffer].dtype]
    out.line("unsigned rest = blockIdx.x;")
    out.line("int member = 0;")
    out.line(f"{type_} n = {out.size(members[0].n)};")
    for number, one in enumerate(members):
        start = f"{out.pointer(one.b.buffer)} + ({out.size(one.b.offset)})"
        if number == 0:
            out.line(f"const {stored} *right = {start};")
            continue
        out.open(f"if (member == {number - 1} && rest >= (unsigned)({out.size(blocks[number - 1])}))")
        out.line(f"rest -= (unsigned)({out.size(blocks[number - 1])});")
        out.line(f"member = {number};")
        out.line(f"n = {out.size(one.n)};")
        out.line(f"right = {start};")
        out.close()


def _write_tiles(out: CudaKernelWriter, step: GemmGroup) -> CudaKernel:
    members, first = step.steps, step.steps[0]
    tile, algorithm, m = first.tile, first.algorithm, first.m
    threads = count_threads(algorithm, tile)
    dtypes = [out.buffers[view.buffer].dtype for view in (first.a, first.b)]
    terms = count_terms(tile, dtypes)
    type_ = _index_type(out, members)
    down = (m + tile.rows - 1) // tile.rows
    blocks = [down * ((one.n + tile.columns - 1) // tile.columns) for one in members]
    out.line("ig_start_next();")
    _pick_member(out, type_, members, blocks)
    out.line("unsigned tile_row, tile_column;")
    out.line(f"const unsigned along = (unsigned)((n + {tile.columns - 1}) / {tile.columns});")
    out.line(f"ig_place_tile(rest, {out.size(down)}, along, &tile_row, &tile_column);")
    out.line(f"const {type_} top = ({type_})tile_row * {tile.rows}, left = ({type_})tile_column * {tile.columns};")
    out.line(f"const int rows = (int)ig_min({tile.rows}, {out.size(m)} - top);")
    out.line(f"const int columns = (int)ig_min({tile.columns}, n - left);")
    across = algorithm == "tensor" and dtypes[0] in HALVES
    a = make_matrix_operand(out, first.a, "top", "rows", m, first.k, (tile.rows, terms, threads), across, True)
    size = (tile.columns, terms, threads)
    made = [
        make_matrix_operand(out, one.b, "left", "columns", one.n, one.k, size, across, False, start="right")
        for one in members
    ]
    assert len({(one.type, one.value) for one in made}) == 1, "members whose tiles are copied in different ways"
    b = made[0]
    out.line(f"typedef {a.type} tile_a;")
    out.line(f"typedef {b.type} tile_b;")
    out.line(f"const tile_a a{a.value};")
    out.line(f"const tile_b b{b.value};")
    sum_type = STORED[first.dtype]
    declare_sums(out, algorithm, tile, sum_type, a, b)
    out.line(f"ig_run_pipeline<{tile.stages}, {a.weight + 2 * b.weight}>(sums_of, a, b, 0, {out.size(first.k)});")
    out.line(f"{sum_type} *const tile = ({sum_type} *)ig_shared();")
    out.line("sums_of.spread(tile);")
    out.line("__syncthreads();")
    for number, one in enumerate(members):
        each = count_columns(one.epilogue)
        out.open(f"if (member == {number})")
        write_finish(out, one, type_, each)
        flag = "true" if each == 1 and runs_down(one.epilogue, 0) else "false"
        shape = f"{tile.rows}, {tile.columns}, {each}, {threads}, {flag}"
        out.line(f"ig_finish_tile<{shape}>(tile, rows, columns, finish);")
        out.close()
    stage = (tile.rows * BYTES[a.dtype] + tile.columns * BYTES[b.dtype]) * terms
    shared = max(stage * tile.stages, tile.rows * (tile.columns + 8) * BYTES[first.dtype])
    return out.finish(Grid(_sum(blocks)), threads, shared, waits=True)


def _write_rows(out: CudaKernelWriter, step: GemmGroup) -> CudaKernel:
    """As one such product alone: each warp has a few lines of its product's right operand."""
    out.library.use("gemm_rows.cuh")
    members, first = step.steps, step.steps[0]
    few = first.m
    assert isinstance(few, int)
    dtype = out.buffers[first.a.buffer].dtype
    each = 16 // BYTES[dtype]
    wide = 4 if few > 4 else 2
    groups = [(one.n + wide - 1) // wide for one in members]
    parts = count_parts(out, _sum(groups), first.k, each)
    together = WARPS // parts
    blocks = [(count + together - 1) // together for count in groups]
    type_ = _index_type(out, members)
    out.line("ig_start_next();")
    _pick_member(out, type_, members, blocks)
    line_step = out.size(first.b.columns)
    out.line(f"const int part = ig_warp() % {parts}, group = ig_warp() / {parts};")
    out.line(f"const {type_} first = ({type_})(((int64_t)rest * {together} + group) * {wide});")
    out.line(f"const int valid = (int)ig_clamp(n - first, {wide});")
    out.line(f"float sums_of[{few}][{wide}];")
    early = "true" if out.buffers[first.b.buffer].kind == "weight" else "false"
    out.line(f"const auto widen = []({STORED[dtype]} value) {{ return {widen_element(out, dtype)}; }};")
    out.line(
        f"ig_add_lines<{few}, {wide}, {READS // wide}, {each}, {early}>("
        f"sums_of, {out.pointer(first.a.buffer)} + ({out.size(first.a.offset)}), {out.size(first.a.rows)}, "
        f"right + (int64_t)first * ({line_step}), {line_step}, valid, "
        f"((int64_t)part * {WARP} + ig_lane()) * {each}, {parts * WARP * each}, {out.size(first.k)}, widen);"
    )
    for number, one in enumerate(members):
        out.open(f"if (member == {number})")
        write_finish(out, one, type_, 1, row="line", column="first + place")
        out.line(f"ig_finish_lines<{few}, {wide}, {parts}>(sums_of, group, part, valid, finish);")
        out.close()
    shared = WARPS * few * wide * 4 if parts > 1 else 0
    return out.finish(Grid(_sum(blocks)), WARPS * WARP, shared, waits=True)


def _sum(sizes: Sequence[Size]) -> Size:
    total: Size = 0
    for size in sizes:
        total = total + size
    return total
