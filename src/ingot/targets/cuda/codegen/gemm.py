"""Products of matrices: blocks of tiles, on tensor cores or not, and warps that read few rows' other side once.

A block copies tiles of both operands to shared memory, a few ahead of the one that it multiplies (cu/gemm.cuh), then
gives the sums to the epilogue. Where blocks share the terms of a tile, they write their sums to memory, and a second
kernel adds them in order and has the epilogue.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ingot.codegen.c_expressions import STORED
from ingot.lowering.dtypes import BYTES, HALVES
from ingot.lowering.index_expr import Size, product
from ingot.lowering.loop_ir import Gemm, Loop, MatrixView, WithEpilogue
from ingot.targets.cuda.codegen.epilogue import count_columns, index_type, runs_down, write_finish
from ingot.targets.cuda.codegen.gemm_rows import write_rows
from ingot.targets.cuda.codegen.kernel import CudaKernel, Grid
from ingot.targets.cuda.codegen.kernel_rules import KERNELS
from ingot.targets.cuda.codegen.kernel_writer import CudaKernelWriter
from ingot.targets.cuda.codegen.loops import unflatten
from ingot.targets.cuda.schedule.alignment import MOST_BYTES, count_neighbours
from ingot.targets.cuda.schedule.statements import PLAIN_TILE, GemmTile, TiledGemm
from ingot.targets.cuda.schedule.tiling import lies_along
from ingot.targets.cuda.schedule.verifier import count_threads

HEADER = "gemm.cuh"
# Threads of a block that adds up parts of sums.
_ADDERS = 128
# What tensor cores multiply, by the type of the elements.
_MULTIPLY = {"bfloat16": "ig_multiply_bf16", "float16": "ig_multiply_f16", "int8": "ig_multiply_s8"}


@dataclass(frozen=True, slots=True)
class TileOperand:
    """One side of a product: the type of its tile, the text that makes it, and the dtype of its elements."""

    type: str
    value: str
    dtype: str
    weight: bool


@KERNELS.register(Gemm)
def write_gemm(out: CudaKernelWriter, step: Gemm) -> CudaKernel | Sequence[CudaKernel]:
    return _write_tiles(out, step, "simt", PLAIN_TILE, 1)


@KERNELS.register(TiledGemm)
def write_tiled_gemm(out: CudaKernelWriter, step: TiledGemm) -> CudaKernel | Sequence[CudaKernel]:
    if step.algorithm == "rows":
        return write_rows(out, step)
    return _write_tiles(out, step, step.algorithm, step.tile, step.split_k)


def _write_tiles(
    out: CudaKernelWriter, step: Gemm, algorithm: str, tile: GemmTile, parts: int
) -> CudaKernel | Sequence[CudaKernel]:
    threads = count_threads(algorithm, tile)
    dtypes = [out.buffers[view.buffer].dtype for view in (step.a, step.b)]
    terms = count_terms(tile, dtypes)

    def write_operands(type_: str) -> tuple[TileOperand, TileOperand]:
        across = algorithm == "tensor" and dtypes[0] in HALVES
        return (
            _matrix_operand(out, step.a, "top", "rows", step.m, step.k, (tile.rows, terms, threads), across, True),
            _matrix_operand(
                out, step.b, "left", "columns", step.n, step.k, (tile.columns, terms, threads), across, False
            ),
        )

    return write_product(out, step, algorithm, tile, parts, step.batch, step.n, step.k, terms, write_operands)


def count_terms(tile: GemmTile, dtypes: Sequence[str]) -> int:
    """The terms of a tile: as many bytes as it says, of the larger elements, and whole pieces of the smaller ones."""
    sizes = [BYTES[dtype] for dtype in dtypes]
    return max(tile.depth // max(sizes), MOST_BYTES // min(sizes))


def write_product(
    out: CudaKernelWriter,
    step: WithEpilogue,
    algorithm: str,
    tile: GemmTile,
    parts: int,
    batch: Sequence[Loop],
    n: Size,
    k: Size,
    terms: int,
    write_operands: Callable[[str], tuple[TileOperand, TileOperand]],
    groups: int = 1,
) -> CudaKernel | Sequence[CudaKernel]:
    """The kernels of a product whose operands `write_operands` makes, where `top`, `left`, `rows` and `columns` say
    which tile it is, and the batch's variables, or `group`, have values. `n` are the columns of a group."""
    out.library.use("vectors.cuh")
    out.library.use(HEADER)
    type_ = index_type(out, step)
    threads = count_threads(algorithm, tile)
    m, _ = step.sums_shape()
    down, along = (m + tile.rows - 1) // tile.rows, (n + tile.columns - 1) // tile.columns
    points = product([loop.extent for loop in batch]) * groups
    sum_type = STORED[step.dtype]
    partial = out.scratch.reserve(points * m * n * (parts * BYTES[step.dtype])) if parts > 1 else ""
    out.line("ig_start_next();")
    _place_block(out, type_, down, along, tile, m, n, batch, parts, groups)
    a, b = write_operands(type_)
    out.line(f"typedef {a.type} tile_a;")
    out.line(f"typedef {b.type} tile_b;")
    out.line(f"const tile_a a{a.value};")
    out.line(f"const tile_b b{b.value};")
    _declare_sums(out, algorithm, tile, sum_type, a, b)
    first, last = _write_range(out, k, terms, parts)
    weights = a.weight + 2 * b.weight
    out.line(f"ig_run_pipeline<{tile.stages}, {weights}>(sums_of, a, b, {first}, {last});")
    out.line(f"{sum_type} *const tile = ({sum_type} *)ig_shared();")
    out.line("sums_of.spread(tile);")
    out.line("__syncthreads();")
    column = "left + place" if groups == 1 else f"group * {out.size(n)} + left + place"
    each = count_columns(step.epilogue, groups)
    across = "false"
    if parts == 1:
        write_finish(out, step, type_, each, column=column)
        across = "true" if each == 1 and runs_down(step.epilogue, len(batch)) else "false"
    else:
        _write_partial(out, partial, sum_type, m, n, points, each, bool(batch), groups)
    out.line(f"ig_finish_tile<{tile.rows}, {tile.columns}, {each}, {threads}, {across}>(tile, rows, columns, finish);")
    stage = (tile.rows * BYTES[a.dtype] + tile.columns * BYTES[b.dtype]) * terms
    shared = max(stage * tile.stages, tile.rows * (tile.columns + 8) * BYTES[step.dtype])
    made = out.finish(Grid(points * down * along * parts), threads, shared, waits=True)
    if parts == 1:
        return made
    return made, _write_adder(out.next_kernel(), step, partial, batch, n, parts, groups, each)


def _place_block(
    out: CudaKernelWriter,
    type_: str,
    down: Size,
    along: Size,
    tile: GemmTile,
    m: Size,
    n: Size,
    batch: Sequence[Loop],
    parts: int,
    groups: int,
) -> None:
    """Which tile of which product a block has, and which part of its terms."""
    out.line("unsigned rest = blockIdx.x;")
    if parts > 1:
        out.line(f"const int part = (int)(rest % {parts});")
        out.line(f"rest /= {parts};")
    tiles = f"(unsigned)({out.size(down * along)})"
    out.line("unsigned tile_row, tile_column;")
    out.line(f"ig_place_tile(rest % {tiles}, {out.size(down)}, {out.size(along)}, &tile_row, &tile_column);")
    if groups > 1:
        out.line(f"const {type_} group = ({type_})(rest / {tiles});")
    elif batch:
        out.line(f"const {type_} o = ({type_})(rest / {tiles});")
        unflatten(out, "o", type_, batch)
    out.line(f"const {type_} top = ({type_})tile_row * {tile.rows}, left = ({type_})tile_column * {tile.columns};")
    out.line(f"const int rows = (int)ig_min({tile.rows}, {out.size(m)} - top);")
    out.line(f"const int columns = (int)ig_min({tile.columns}, {out.size(n)} - left);")


def _matrix_operand(
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


def _declare_sums(
    out: CudaKernelWriter, algorithm: str, tile: GemmTile, sum_type: str, a: TileOperand, b: TileOperand
) -> None:
    if algorithm == "tensor":
        out.line(f"ig_tensor_sums<{_MULTIPLY[a.dtype]}, tile_a, tile_b, {tile.down}, {tile.along}> sums_of;")
        return
    for name, operand in (("a", a), ("b", b)):
        out.line(
            f"const auto widen_{name} = []({STORED[operand.dtype]} x) {{ return {widen(out, operand.dtype, 'x')}; }};"
        )
    out.line(
        f"ig_simt_sums<{sum_type}, tile_a, tile_b, {tile.down}, {tile.along}, decltype(widen_a), decltype(widen_b)> "
        "sums_of(widen_a, widen_b);"
    )


def widen(out: CudaKernelWriter, dtype: str, value: str) -> str:
    """A stored element as a number."""
    if dtype not in ("bfloat16", "float16"):
        return value
    name = "ig_bf16_to_f32" if dtype == "bfloat16" else "ig_f16_to_f32"
    out.library.functions.add(name)
    return f"{name}({value})"


def _write_range(out: CudaKernelWriter, k: Size, terms: int, parts: int) -> tuple[str, str]:
    """The terms of a block, whole tiles of them."""
    if parts == 1:
        return "0", out.size(k)
    steps = (k + terms - 1) // terms
    each = (steps + parts - 1) // parts * terms
    out.line(f"const int64_t first = (int64_t)part * ({out.size(each)});")
    out.line(f"const int64_t last = ig_min(first + ({out.size(each)}), {out.size(k)});")
    return "first", "last"


def _write_partial(
    out: CudaKernelWriter,
    partial: str,
    sum_type: str,
    m: Size,
    n: Size,
    points: Size,
    each: int,
    batched: bool,
    groups: int,
) -> None:
    """`finish` that writes sums to memory: [part][point][row][column]."""
    pointer = out.scratch_pointer(partial, sum_type, written=True)
    point = "group" if groups > 1 else "o" if batched else "0"
    out.open(f"const auto finish = [&](const int line, const int place, const {sum_type} *sums)")
    out.line(f"const int64_t at = ((int64_t)part * ({out.size(points)}) + {point}) * ({out.size(m)}) + top + line;")
    out.line(f"const auto run = ig_load<{each}>(sums);")
    out.line(f"ig_store<{each}>({pointer} + at * ({out.size(n)}) + left + place, run);")
    out.depth -= 1
    out.line("};")


def _write_adder(
    out: CudaKernelWriter,
    step: WithEpilogue,
    partial: str,
    batch: Sequence[Loop],
    n: Size,
    parts: int,
    groups: int,
    each: int,
) -> CudaKernel:
    """Adds the parts of every sum, in order, for the epilogue."""
    type_ = index_type(out, step)
    sum_type = STORED[step.dtype]
    m, _ = step.sums_shape()
    points = product([loop.extent for loop in batch]) * groups
    runs = points * m * (n // each)
    pointer = out.scratch_pointer(partial, sum_type)
    out.line("ig_start_next();")
    out.line(f"const {type_} run = ({type_})blockIdx.x * {_ADDERS} + ({type_})threadIdx.x;")
    out.line(f"if (run >= {out.size(runs)}) return;")
    out.line("ig_wait_for_previous();")
    out.line(f"const {type_} left = ({type_})(run % ({out.size(n // each)})) * {each};")
    out.line(f"const {type_} top = ({type_})(run / ({out.size(n // each)}) % ({out.size(m)}));")
    if groups > 1:
        out.line(f"const {type_} group = ({type_})(run / ({out.size(m * (n // each))}));")
    elif batch:
        out.line(f"const {type_} o = ({type_})(run / ({out.size(m * (n // each))}));")
        unflatten(out, "o", type_, batch)
    column = "left" if groups == 1 else f"group * {out.size(n)} + left"
    write_finish(out, step, type_, each, row="top", column=column)
    out.line(f"auto total = ig_load<{each}>({pointer} + (int64_t)run * {each});")
    out.line("#pragma unroll")
    out.open(f"for (int part = 1; part < {parts}; ++part)")
    out.line(f"const auto more = ig_load<{each}>({pointer} + ((int64_t)part * ({out.size(runs)}) + run) * {each});")
    out.line("#pragma unroll")
    out.line(f"for (int w = 0; w < {each}; ++w) total.at[w] += more.at[w];")
    out.close()
    out.line("finish(0, 0, total.at);")
    return out.finish(Grid((runs + _ADDERS - 1) // _ADDERS), _ADDERS, waits=True)
