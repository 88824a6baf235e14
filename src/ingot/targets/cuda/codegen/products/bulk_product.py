"""Products by tiles of a weight (cu/bulk_gemm.cuh): one kernel, whose blocks take tiles in turn, or, where those of a
cluster share terms, one tile. Several products of the same rows have their tiles side by side, or at the same places
one after another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ingot.lowering.index_expr import Size, smallest
from ingot.targets.cuda.codegen.kernel import CudaKernel, Grid, TensorMap
from ingot.targets.cuda.codegen.kernel_writer import CudaKernelWriter
from ingot.targets.cuda.codegen.products.epilogue import index_type, number_pointers, write_finish
from ingot.targets.cuda.codegen.products.paired_epilogue import write_paired_finish
from ingot.targets.cuda.codegen.products.tile_product import use_headers
from ingot.targets.cuda.schedule.bulk.paired_columns import PairedEpilogue
from ingot.targets.cuda.schedule.bulk.tiles import (
    BULK_TERMS,
    count_bulk_bytes,
    count_bulk_resident,
    count_bulk_threads,
    count_copiers,
)
from ingot.targets.cuda.schedule.statements import GemmTile, TiledGemm
from ingot.targets.cuda.schedule.tiles import PROCESSORS

# Columns of a run, as the threads have them.
_RUN = 8
# Stages of the text for other GPUs.
PLAIN_STAGES = 2
MULTIPLY = {"bfloat16": ("ig_multiply_bf16", "bf16"), "float16": ("ig_multiply_f16", "f16")}


def write_bulk_product(
    out: CudaKernelWriter,
    steps: Sequence[TiledGemm],
    *,
    in_turn: bool = False,
    pairs: Sequence[PairedEpilogue] = (),
) -> CudaKernel:
    """The kernel of a product, or of several that read the same rows. Where a product's columns lie in pairs, the
    epilogues of these are computed instead of its own."""
    first = steps[0]
    assert all(bool(step.pairs) == bool(pairs) for step in steps), "columns in pairs have a gate behind them"
    tile, parts, buffer = first.tile, first.split_k, out.buffers[first.a.buffer]
    use_bulk_headers(out, tile, buffer.dtype)
    assert isinstance(first.k, int)
    row_step = first.k if first.m == 1 else first.a.rows
    rows = TensorMap(
        first.a.buffer, first.a.offset, buffer.dtype, (first.k, first.m), (row_step,), (BULK_TERMS, tile.rows)
    )
    name = out.tensor_map(rows)
    out.line("ig_start_next();")
    units = _write_places(out, steps, in_turn)
    if pairs:
        _write_pairs(out, first, pairs)
    else:
        _write_epilogues(out, steps)
    start = f"{out.pointer(first.a.buffer)} + ({out.size(first.a.offset)})"
    together = len(steps) if in_turn else 1
    sizes = f"{out.size(row_step)}, (int)({out.size(first.m)}), (int)({out.size(units)}), {together}"
    call = call_bulk(tile, parts, buffer.dtype, each=2 if first.pairs else 1)
    out.line(f"{call}({name}, {start}, {sizes}, {first.k // BULK_TERMS}, place, finish_tile);")
    return finish_bulk(out, tile, parts, units)


def use_bulk_headers(out: CudaKernelWriter, tile: GemmTile, dtype: str) -> None:
    use_headers(out)
    out.library.use("wgmma.cuh")
    out.library.use("async_copies.cuh")
    out.library.use("bulk_gemm.cuh", write_instruction(tile.columns, *MULTIPLY[dtype]))


def call_bulk(tile: GemmTile, parts: int, dtype: str, *, each: int = 1) -> str:
    """The function that runs a block, without its arguments. `each`: sums of an element of the result."""
    groups = tile.down * tile.along * tile.turns // 4
    high = tile.rows // (16 * tile.down * tile.along)
    turns = "true" if tile.turns > 1 else "false"
    form = f"{groups}, {high}, {tile.columns}, {tile.stages}, {parts}, {turns}, {count_copiers(tile)}, {each}"
    return f"ig_run_bulk<ig_bulk_form<{form}>, {MULTIPLY[dtype][0]}>"


def finish_bulk(out: CudaKernelWriter, tile: GemmTile, parts: int, units: Size) -> CudaKernel:
    """The kernel, of so many tiles."""
    resident = count_bulk_resident(tile, parts)
    grid = Grid(units * parts) if parts > 1 else Grid(smallest(units, PROCESSORS * resident))
    kernel = out.finish(grid, count_bulk_threads(tile), count_bulk_bytes(tile, parts), waits=True)
    plain = PLAIN_STAGES * (tile.rows + tile.columns) * tile.depth
    return replace(kernel, cluster=parts, plain_shared=plain, resident=resident if parts == 1 else 1)


def _count_tiles(step: TiledGemm) -> int:
    """Tiles along the columns."""
    assert isinstance(step.n, int)
    return -(-step.n // step.tile.columns)


def _write_places(out: CudaKernelWriter, steps: Sequence[TiledGemm], in_turn: bool) -> Size:
    """Declares `place`; returns how many units of tiles there are."""
    tile = steps[0].tile
    down = (steps[0].m + tile.rows - 1) // tile.rows
    across = _count_tiles(steps[0]) if in_turn else sum(map(_count_tiles, steps))
    count = len(steps) if in_turn else 1
    out.open("const auto place = [&](const int tile)")
    out.line("unsigned row, column;")
    number = f"(unsigned)tile / {count}u" if in_turn else "(unsigned)tile"
    out.line(f"ig_place_tile({number}, (unsigned)({out.size(down)}), {across}u, &row, &column);")
    begin = 0
    for product, step in enumerate(steps):
        test = f"tile % {count} == {product}" if in_turn else f"column < {begin + _count_tiles(step)}u"
        own = "(int)column" if in_turn or not begin else f"(int)column - {begin}"
        assert isinstance(step.k, int)
        each = tile.columns * step.k  # elements of a tile's columns
        weight = f"(const char *)({out.pointer(step.b.buffer)} + (int64_t)({own}) * {each})"
        value = f"ig_bulk_tile{{(int)row * {tile.rows}, ({own}) * {tile.columns}, {product}, {weight}}}"
        guard = "" if product == len(steps) - 1 else f"if ({test}) "
        out.line(f"{guard}return {value};")
        begin += _count_tiles(step)
    out.depth -= 1
    out.line("};")
    return down * across


def _write_pairs(out: CudaKernelWriter, step: TiledGemm, pairs: Sequence[PairedEpilogue]) -> None:
    """`finish_tile` of pairs of columns, which are half as many."""
    out.open("const auto finish_tile = [&](const ig_bulk_tile &, auto visit)")
    assert isinstance(step.n, int)
    write_paired_finish(out, pairs, step.n // 2, step.dtype, _RUN)
    out.line(f"visit((int)({out.size(step.m)}), {step.n // 2}, fetch, finish);")
    out.depth -= 1
    out.line("};")


def _write_epilogues(out: CudaKernelWriter, steps: Sequence[TiledGemm]) -> None:
    """Declares `finish_tile`, which gives `visit` the epilogue of a tile's product. Epilogues that differ by their
    buffers only are written once."""
    out.open("const auto finish_tile = [&](const ig_bulk_tile &tile, auto visit)")
    begin = len(out.lines)
    alike: dict[str, list[tuple[int, list[str]]]] = {}  # by the text without pointers: products, and their pointers
    for product, step in enumerate(steps):
        write_finish(out, step, index_type(out, step), _RUN, row="line", column="place")
        out.line(f"visit((int)({out.size(step.m)}), {out.size(step.n)}, fetch, finish);")
        text = "\n".join(out.lines[begin:])
        del out.lines[begin:]
        text, names = number_pointers(text)
        alike.setdefault(text, []).append((product, names))
    for text, products in alike.items():
        if len(alike) > 1:
            out.open(f"if ({' || '.join(f'tile.product == {product}' for product, _ in products)})")
        *others, (_, last) = products
        for place in range(len(last)):
            choice = "".join(f"tile.product == {product} ? {names[place]} : " for product, names in others)
            out.line(f"const auto q{place} = {choice}{last[place]};")
        out.lines += text.split("\n")
        if len(alike) > 1:
            out.close()
    out.depth -= 1
    out.line("};")


def write_instruction(columns: int, multiply: str, type_name: str) -> str:
    """`ig_set_product` of so many columns: sums plus a product, or, unless there is `more`, the product."""
    count = columns // 2
    sums = ", ".join(f"%{number}" for number in range(count))
    outputs = ", ".join(f'"+f"(d[{number}])' for number in range(count))
    shape = f"m64n{columns}k16.f32.{type_name}.{type_name}"
    return (
        f"#if defined(IG_HOPPER) && !defined(IG_EMULATED)\n"
        f"static inline void ig_set_product({multiply}, float (&d)[{count}], uint64_t a, uint64_t b, int more)\n{{\n"
        f'    asm volatile("{{ .reg .pred p; setp.ne.b32 p, %{count + 2}, 0; wgmma.mma_async.sync.aligned.{shape} "\n'
        f'                 "{{{sums}}}, %{count}, %{count + 1}, p, 1, 1, 0, 0; }}"\n'
        f'                 : {outputs} : "l"(a), "l"(b), "r"(more) : "memory");\n}}\n#endif'
    )
