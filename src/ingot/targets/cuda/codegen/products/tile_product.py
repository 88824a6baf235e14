"""A product by tiles: blocks that copy tiles of both operands to shared memory, a few ahead of the one that they
multiply (cu/gemm.cuh), and give the sums to the epilogue.

Where blocks share the terms of a tile, they write their sums to memory, and a second kernel adds them in order and has
the epilogue.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ingot.codegen.c_expressions import STORED
from ingot.lowering.dtypes import BYTES
from ingot.lowering.index_expr import Size, product
from ingot.lowering.loop_ir import Loop, WithEpilogue
from ingot.targets.cuda.codegen.kernel import CudaKernel, Grid
from ingot.targets.cuda.codegen.kernel_writer import CudaKernelWriter
from ingot.targets.cuda.codegen.loop_kernels.loop_points import unflatten
from ingot.targets.cuda.codegen.products.epilogue import count_columns, index_type, runs_down, write_finish
from ingot.targets.cuda.schedule.alignment import MOST_BYTES
from ingot.targets.cuda.schedule.statements import GemmTile
from ingot.targets.cuda.schedule.tiles import count_threads

# Threads of a block that adds up parts of sums.
_ADDERS = 128
# What tensor cores multiply, by the type of the elements.
_MULTIPLY = {
    "bfloat16": "ig_multiply_bf16",
    "float16": "ig_multiply_f16",
    "int8": "ig_multiply_s8",
    "float32": "ig_multiply_tf32",  # of fewer bits: in modules of the precision "tf32" only
}


@dataclass(frozen=True, slots=True)
class BlockWork:
    """What a kernel does of one product: how many blocks, of how many threads, with how many bytes of shared memory."""

    blocks: Size
    threads: int
    shared: int


@dataclass(frozen=True, slots=True)
class TileOperand:
    """One side of a product: the type of its tile, the text that makes it, and the dtype of its elements."""

    type: str
    value: str
    dtype: str
    weight: bool


@dataclass(frozen=True, slots=True)
class TileProduct:
    """A product of m × `columns` sums of `depth` terms, at each point of a batch, or of each of `groups` of columns.

    `write_operands` makes its operands where `top`, `left`, `rows` and `columns` say which tile it is, and the batch's
    variables, or `group`, have values; it takes the type of these.
    """

    step: WithEpilogue
    algorithm: str
    tile: GemmTile
    columns: Size
    depth: Size
    terms: int
    write_operands: Callable[[str], tuple[TileOperand, TileOperand]]
    batch: tuple[Loop, ...] = ()
    groups: int = 1
    parts: int = 1

    @property
    def rows(self) -> Size:
        return self.step.sums_shape()[0]

    @property
    def points(self) -> Size:
        return product([loop.extent for loop in self.batch]) * self.groups

    @property
    def run(self) -> int:
        """The columns of a run."""
        return count_columns(self.step.epilogue, self.groups)

    @property
    def sum_type(self) -> str:
        return STORED[self.step.dtype]


def count_terms(tile: GemmTile, dtypes: Sequence[str]) -> int:
    """The terms of a tile: as many bytes as it says, of the larger elements, and whole pieces of the smaller ones."""
    sizes = [BYTES[dtype] for dtype in dtypes]
    return max(tile.depth // max(sizes), MOST_BYTES // min(sizes))


def use_headers(out: CudaKernelWriter) -> None:
    out.library.use("vectors.cuh")
    out.library.use("gemm.cuh")


def write_product(out: CudaKernelWriter, made: TileProduct) -> CudaKernel | Sequence[CudaKernel]:
    """The kernels of a product: one, or two where blocks share terms."""
    partial = ""
    if made.parts > 1:
        sums = made.points * made.rows * made.columns
        partial = out.scratch.reserve(sums * (made.parts * BYTES[made.step.dtype]))
    out.line("ig_start_next();")
    work = write_blocks(out, made, partial=partial)
    kernel = out.finish(Grid(work.blocks), work.threads, work.shared, waits=True)
    return kernel if made.parts == 1 else (kernel, _write_adder(out.next_kernel(), made, partial))


def write_blocks(out: CudaKernelWriter, made: TileProduct, block: str = "blockIdx.x", partial: str = "") -> BlockWork:
    """The work of a block, `block` being its number."""
    use_headers(out)
    step, tile = made.step, made.tile
    type_ = index_type(out, step)
    threads = count_threads(made.algorithm, tile)
    down, along = (made.rows + tile.rows - 1) // tile.rows, (made.columns + tile.columns - 1) // tile.columns
    _place_block(out, made, block, type_, down, along)
    a, b = made.write_operands(type_)
    out.line(f"typedef {a.type} tile_a;")
    out.line(f"typedef {b.type} tile_b;")
    out.line(f"const tile_a a{a.value};")
    out.line(f"const tile_b b{b.value};")
    _declare_sums(out, made, a, b)
    first, last = _write_range(out, made)
    weights = a.weight + 2 * b.weight
    out.line(f"ig_run_pipeline<{tile.stages}, {weights}>(sums_of, a, b, {first}, {last});")
    out.line(f"{made.sum_type} *const tile = ({made.sum_type} *)ig_shared();")
    out.line("sums_of.spread(tile);")
    out.line("__syncthreads();")
    across = "false"
    if made.parts == 1:
        column = "left + place" if made.groups == 1 else f"group * {out.size(made.columns)} + left + place"
        write_finish(out, step, type_, made.run, column=column)
        across = "true" if made.run == 1 and runs_down(step.epilogue, len(made.batch)) else "false"
    else:
        _write_partial(out, made, partial)
    shape = f"{tile.rows}, {tile.columns}, {made.run}, {threads}, {across}"
    out.line(f"ig_finish_tile<{shape}>(tile, rows, columns, fetch, finish);")
    stage = (tile.rows * BYTES[a.dtype] + tile.columns * BYTES[b.dtype]) * made.terms
    shared = max(stage * tile.stages, tile.rows * (tile.columns + 8) * BYTES[step.dtype])
    return BlockWork(made.points * down * along * made.parts, threads, shared)


def _place_block(out: CudaKernelWriter, made: TileProduct, block: str, type_: str, down: Size, along: Size) -> None:
    """Which tile of which product a block has, and which part of its terms."""
    tile = made.tile
    out.line(f"unsigned rest = {block};")
    if made.parts > 1:
        out.line(f"const int part = (int)(rest % {made.parts});")
        out.line(f"rest /= {made.parts};")
    tiles = f"(unsigned)({out.size(down * along)})"
    out.line("unsigned tile_row, tile_column;")
    out.line(f"ig_place_tile(rest % {tiles}, {out.size(down)}, {out.size(along)}, &tile_row, &tile_column);")
    if made.groups > 1:
        out.line(f"const {type_} group = ({type_})(rest / {tiles});")
    elif made.batch:
        out.line(f"const {type_} o = ({type_})(rest / {tiles});")
        unflatten(out, "o", type_, made.batch)
    out.line(f"const {type_} top = ({type_})tile_row * {tile.rows}, left = ({type_})tile_column * {tile.columns};")
    out.line(f"const int rows = (int)ig_min({tile.rows}, {out.size(made.rows)} - top);")
    out.line(f"const int columns = (int)ig_min({tile.columns}, {out.size(made.columns)} - left);")


def _declare_sums(out: CudaKernelWriter, made: TileProduct, a: TileOperand, b: TileOperand) -> None:
    tile = made.tile
    if made.algorithm == "tensor":
        out.line(f"ig_tensor_sums<{_MULTIPLY[a.dtype]}, tile_a, tile_b, {tile.down}, {tile.along}> sums_of;")
        return
    if made.algorithm == "warpgroup":
        out.library.use("wgmma.cuh")
        types = f"{_MULTIPLY[a.dtype]}, tile_a, tile_b, {tile.down}, {tile.along}, {tile.stages}"
        out.line(f"ig_warpgroup_sums<{types}> sums_of;")
        return
    for name, operand in (("a", a), ("b", b)):
        value = widen(out, operand.dtype, "x")
        out.line(f"const auto widen_{name} = []({STORED[operand.dtype]} x) {{ return {value}; }};")
    types = f"{made.sum_type}, tile_a, tile_b, {tile.down}, {tile.along}, decltype(widen_a), decltype(widen_b)"
    out.line(f"ig_simt_sums<{types}> sums_of(widen_a, widen_b);")


def widen(out: CudaKernelWriter, dtype: str, value: str) -> str:
    """A stored element as a number."""
    if dtype not in ("bfloat16", "float16"):
        return value
    name = "ig_bf16_to_f32" if dtype == "bfloat16" else "ig_f16_to_f32"
    out.library.functions.add(name)
    return f"{name}({value})"


def _write_range(out: CudaKernelWriter, made: TileProduct) -> tuple[str, str]:
    """The terms of a block, whole tiles of them."""
    if made.parts == 1:
        return "0", out.size(made.depth)
    steps = (made.depth + made.terms - 1) // made.terms
    each = out.size((steps + made.parts - 1) // made.parts * made.terms)
    out.line(f"const int64_t first = (int64_t)part * ({each});")
    out.line(f"const int64_t last = ig_min(first + ({each}), {out.size(made.depth)});")
    return "first", "last"


def _write_partial(out: CudaKernelWriter, made: TileProduct, partial: str) -> None:
    """`finish` that writes sums to memory: [part][point][row][column]."""
    pointer = out.scratch_pointer(partial, made.sum_type, written=True)
    point = "group" if made.groups > 1 else "o" if made.batch else "0"
    points, m, n = (out.size(size) for size in (made.points, made.rows, made.columns))
    out.line("struct loaded {};")
    out.line("const auto fetch = [](int, int) { return loaded{}; };")
    out.open(f"const auto finish = [&](const int line, const int place, const {made.sum_type} *sums, loaded)")
    out.line(f"const int64_t at = ((int64_t)part * ({points}) + {point}) * ({m}) + top + line;")
    out.line(f"const auto run = ig_load<{made.run}>(sums);")
    out.line(f"ig_store<{made.run}>({pointer} + at * ({n}) + left + place, run);")
    out.depth -= 1
    out.line("};")


def _write_adder(out: CudaKernelWriter, made: TileProduct, partial: str) -> CudaKernel:
    """Adds the parts of every sum, in order, for the epilogue."""
    step, each = made.step, made.run
    type_ = index_type(out, step)
    across = made.columns // each  # runs of a row
    runs = made.points * made.rows * across
    pointer = out.scratch_pointer(partial, made.sum_type)
    out.line("ig_start_next();")
    out.line(f"const {type_} run = ({type_})blockIdx.x * {_ADDERS} + ({type_})threadIdx.x;")
    out.line(f"if (run >= {out.size(runs)}) return;")
    out.line("ig_wait_for_previous();")
    out.line(f"const {type_} left = ({type_})(run % ({out.size(across)})) * {each};")
    out.line(f"const {type_} top = ({type_})(run / ({out.size(across)}) % ({out.size(made.rows)}));")
    point = f"({type_})(run / ({out.size(made.rows * across)}))"
    column = "left"
    if made.groups > 1:
        out.line(f"const {type_} group = {point};")
        column = f"group * {out.size(made.columns)} + left"
    elif made.batch:
        out.line(f"const {type_} o = {point};")
        unflatten(out, "o", type_, made.batch)
    write_finish(out, step, type_, each, row="top", column=column)
    out.line("const loaded given = fetch(0, 0);")
    out.line(f"auto total = ig_load<{each}>({pointer} + (int64_t)run * {each});")
    out.line("#pragma unroll")
    out.open(f"for (int part = 1; part < {made.parts}; ++part)")
    out.line(f"const auto more = ig_load<{each}>({pointer} + ((int64_t)part * ({out.size(runs)}) + run) * {each});")
    out.line("#pragma unroll")
    out.line(f"for (int w = 0; w < {each}; ++w) total.at[w] += more.at[w];")
    out.close()
    out.line("finish(0, 0, total.at, given);")
    return out.finish(Grid((runs + _ADDERS - 1) // _ADDERS), _ADDERS, waits=True)
