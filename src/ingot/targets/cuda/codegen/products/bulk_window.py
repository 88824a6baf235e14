"""Convolutions by tiles of their weights (cu/bulk_window.cuh): the kernel of bulk_product.py, whose rows are boxes of
pixels."""

from __future__ import annotations

from collections.abc import Sequence

from ingot.lowering.index_expr import Size
from ingot.targets.cuda.codegen.kernel import CudaKernel, TensorMap
from ingot.targets.cuda.codegen.kernel_writer import CudaKernelWriter
from ingot.targets.cuda.codegen.products.bulk_product import call_bulk, finish_bulk, use_bulk_headers
from ingot.targets.cuda.codegen.products.epilogue import index_type, write_finish
from ingot.targets.cuda.schedule.bulk.tiles import BULK_TERMS
from ingot.targets.cuda.schedule.bulk.windows import count_window_terms
from ingot.targets.cuda.schedule.statements import ImplicitGemm

# Columns of a run, as the threads have them.
_RUN = 8


def write_bulk_window(out: CudaKernelWriter, step: ImplicitGemm) -> CudaKernel:
    tile, parts, buffer = step.tile, step.split_k, out.buffers[step.x.buffer]
    use_bulk_headers(out, tile, buffer.dtype)
    out.library.use("bulk_window.cuh")
    name = out.tensor_map(_map_image(step, buffer.dtype))
    out.line("ig_start_next();")
    _write_rows(out, step, name)
    units = _write_places(out, step)
    _write_epilogue(out, step)
    start = f"{out.pointer(step.x.buffer)} + ({out.size(step.x.offset)})"
    steps = count_window_terms(step) // BULK_TERMS
    call = call_bulk(tile, parts, buffer.dtype)
    out.line(f"{call}(source, {start}, 0, 0, (int)({out.size(units)}), 1, {steps}, place, finish_tile);")
    return finish_bulk(out, tile, parts, units)


def _fill(values: Sequence[Size], fill: Size) -> tuple[Size, Size]:
    """One value per spatial dim, as two."""
    lines, columns = (fill, *values)[-2:]
    return lines, columns


def _steps_of(step: ImplicitGemm) -> tuple[Size, Size, Size]:
    """From an image, a line and a column to the next."""
    image, _, *steps = step.x.strides
    return (image, *_fill(steps, image))


def _map_image(step: ImplicitGemm, dtype: str) -> TensorMap:
    image, line, column = _steps_of(step)
    lines, columns = _fill(step.size, 1)
    images, *pixels = step.box
    box = (BULK_TERMS, *reversed(_as_ints(pixels)), images)
    every = (1, *reversed(_as_ints(step.stride)), 1)
    sizes = (step.channels, columns, lines, step.images)
    return TensorMap(step.x.buffer, step.x.offset, dtype, sizes, (column, line, image), box, every)


def _as_ints(values: Sequence[int]) -> tuple[int, int]:
    lines, columns = (1, *values)[-2:]
    return lines, columns


def _write_rows(out: CudaKernelWriter, step: ImplicitGemm, name: str) -> None:
    """Declares `source`, the rows of tiles."""

    def spell(values: Sequence[Size], type_: str = "(int)") -> str:
        return "{" + ", ".join(f"{type_}({out.size(value)})" for value in values) + "}"

    lines, columns = _fill(step.out_size, 1)
    images, *pixels = step.box
    fields = [
        name, str(step.tile.rows), *(f"(int)({out.size(size)})" for size in (step.images, lines, columns)),
        spell((images, *_fill(pixels, 1))), str(step.channels // BULK_TERMS), str(step.kernel[-1]),
        spell(_fill(step.stride, 1)), spell(_fill(step.padding, 0)), spell(_fill(step.dilation, 1)),
        spell(_fill(step.size, 1)), spell(_steps_of(step), "(int64_t)"),
    ]  # fmt: skip
    out.line(f"const ig_window_rows source = {{{', '.join(fields)}}};")


def _write_places(out: CudaKernelWriter, step: ImplicitGemm) -> Size:
    """Declares `place`; returns how many tiles there are."""
    tile = step.tile
    down: Size = 1
    for size, each in zip((step.images, *step.out_size), step.box, strict=True):
        down = down * ((size + each - 1) // each)
    across = -(-step.out_channels // tile.columns)
    out.open("const auto place = [&](const int tile)")
    out.line("unsigned row, column;")
    out.line(f"ig_place_tile((unsigned)tile, (unsigned)({out.size(down)}), {across}u, &row, &column);")
    each = tile.columns * count_window_terms(step)  # elements of a tile's columns
    weight = f"(const char *)({out.pointer(step.weight.buffer)} + (int64_t)column * {each})"
    out.line(f"return ig_bulk_tile{{(int)row * {tile.rows}, (int)column * {tile.columns}, 0, {weight}}};")
    out.depth -= 1
    out.line("};")
    return down * across


def _write_epilogue(out: CudaKernelWriter, step: ImplicitGemm) -> None:
    """Declares `finish_tile`: the epilogue of those rows that are pixels."""
    out.open("const auto finish_tile = [&](const ig_bulk_tile &tile, auto visit)")
    write_finish(out, step, index_type(out, step), _RUN, row="line", column="place")
    out.open("const auto fetch_row = [&](const int row, const int place)")
    out.line("const int line = source.number(row);")
    out.line("return fetch(line < 0 ? 0 : line, place);")  # rows without a pixel read some other one's
    out.depth -= 1
    out.line("};")
    out.open("const auto finish_row = [&](const int row, const int place, const float *sums, const loaded &given)")
    out.line("const int line = source.number(row);")
    out.line("if (line >= 0) finish(line, place, sums, given);")
    out.depth -= 1
    out.line("};")
    out.line(f"visit(tile.row + {step.tile.rows}, {out.size(step.out_channels)}, fetch_row, finish_row);")
    out.depth -= 1
    out.line("};")
