"""Convolutions: implicit products, whose rows are pixels and whose terms are taps and channels, and channels alone.

Terms run over (tap…, channel). A tile of the image is copied by computed addresses, zeros where a window leaves the
image (`ig_window_tile`); where channels are neighbours and fill aligned pieces, a piece at a time. A weight that lies
[output channel, tap…, channel] is a matrix; any other is copied like an image of one pixel per output channel.
"""

from __future__ import annotations

from collections.abc import Sequence

from ingot.codegen.c_expressions import STORED
from ingot.lowering.dtypes import BYTES
from ingot.lowering.index_expr import Size, product, require_static
from ingot.lowering.loop_ir import Convolution, StridedView
from ingot.targets.cuda.codegen.gemm import BLOCKS
from ingot.targets.cuda.codegen.kernel import CudaKernel, Grid
from ingot.targets.cuda.codegen.kernel_rules import KERNELS
from ingot.targets.cuda.codegen.kernel_writer import CudaKernelWriter
from ingot.targets.cuda.codegen.products.bulk_window import write_bulk_window
from ingot.targets.cuda.codegen.products.epilogue import count_columns, index_type, write_finish
from ingot.targets.cuda.codegen.products.tile_product import (
    BlockWork,
    TileOperand,
    TileProduct,
    count_terms,
    use_headers,
    widen,
    write_blocks,
    write_product,
)
from ingot.targets.cuda.schedule.alignment import MOST_BYTES, count_neighbours
from ingot.targets.cuda.schedule.statements import PLAIN_TILE, GemmTile, ImplicitGemm
from ingot.targets.cuda.schedule.tiles import count_threads

# Threads of a block, each with a run of channels.
_THREADS = 128
# Taps that are written out rather than looped over.
_UNROLLED_TAPS = 64


@KERNELS.register(Convolution)
def write_convolution(out: CudaKernelWriter, step: Convolution) -> CudaKernel | Sequence[CudaKernel]:
    return write_product(out, _plan_product(out, step, "simt", PLAIN_TILE, 1))


@KERNELS.register(ImplicitGemm)
def write_implicit_gemm(out: CudaKernelWriter, step: ImplicitGemm) -> CudaKernel | Sequence[CudaKernel]:
    if step.algorithm == "channels":
        return _write_channels(out, step)
    if step.algorithm == "bulk":
        return write_bulk_window(out, step)
    return write_product(out, _plan_product(out, step, step.algorithm, step.tile, step.split_k))


@BLOCKS.register(ImplicitGemm)
def write_convolution_blocks(out: CudaKernelWriter, step: ImplicitGemm, block: str) -> BlockWork:
    return write_blocks(out, _plan_product(out, step, step.algorithm, step.tile, 1), block)


def _plan_product(out: CudaKernelWriter, step: Convolution, algorithm: str, tile: GemmTile, parts: int) -> TileProduct:
    threads = count_threads(algorithm, tile)
    terms = count_terms(tile, [out.buffers[view.buffer].dtype for view in (step.x, step.weight)])
    columns = step.out_channels // step.groups
    depth = step.channels * require_static(product(step.kernel))

    def write_operands(type_: str) -> tuple[TileOperand, TileOperand]:
        return (
            _image_operand(out, step, type_, (tile.rows, terms, threads)),
            _weight_operand(out, step, type_, columns, depth, (tile.columns, terms, threads)),
        )

    return TileProduct(step, algorithm, tile, columns, depth, terms, write_operands, groups=step.groups, parts=parts)


def _fill_dims(values: Sequence[Size], fill: Size) -> tuple[Size, ...]:
    """One value per spatial dim, as three."""
    return (*[fill] * (3 - len(values)), *values)


def _window_text(
    out: CudaKernelWriter,
    image: Size,
    steps: Sequence[Size],
    channel: Size,
    channels: Size,
    size: Sequence[Size],
    pixels: Sequence[Size],
    kernel: Sequence[Size],
    stride: Sequence[Size],
    padding: Sequence[Size],
    dilation: Sequence[Size],
) -> str:
    """The value of an ig_window."""

    def spell(values: Sequence[Size], fill: Size, type_: str = "(int)") -> str:
        return "{" + ", ".join(f"{type_}({out.size(value)})" for value in _fill_dims(values, fill)) + "}"

    fields = [
        out.size(image), spell(steps, 0, ""), out.size(channel), out.size(channels), spell(size, 1), spell(pixels, 1),
        spell(kernel, 1), spell(stride, 1), spell(padding, 0), spell(dilation, 1),
    ]  # fmt: skip
    return "{" + ", ".join(fields) + "}"


def _count_channels(view: StridedView, channel: int, channels: int, most: int) -> int:
    """How many neighbouring channels are aligned at every place."""
    others = [stride for dim, stride in enumerate(view.strides) if dim != channel]
    return count_neighbours([view.offset, channels, *others], most) if view.strides[channel] == 1 else 1


def _count_window_channels(step: Convolution, most: int) -> int:
    """The same of an image, wherever a window may lie: it goes by whole strides and dilations."""
    image, channel, *steps = step.x.strides
    if channel != 1:
        return 1
    places = [
        unit * step_
        for dim, step_ in enumerate(steps)
        for unit in (step.stride[dim], step.padding[dim], step.dilation[dim] if step.kernel[dim] > 1 else 0)
    ]
    return count_neighbours([step.x.offset, step.channels, image, *places], most)


def _image_operand(out: CudaKernelWriter, step: Convolution, index: str, tile: tuple[int, int, int]) -> TileOperand:
    buffer = out.buffers[step.x.buffer]
    each = _count_window_channels(step, MOST_BYTES // BYTES[buffer.dtype])
    whole = "true" if step.channels % tile[1] == 0 else "false"
    image, channel, *steps = step.x.strides
    window = _window_text(
        out, image, steps, channel, step.channels, step.size, step.out_size, step.kernel, step.stride, step.padding,
        step.dilation,
    )  # fmt: skip
    out.line(f"const ig_window window = {window};")
    start = f"{out.pointer(step.x.buffer)} + ({out.size(step.x.offset)})"
    if step.groups > 1:
        start += f" + (int64_t)group * ({out.size(channel * step.channels)})"
    type_ = f"ig_window_tile<{STORED[buffer.dtype]}, {index}, {tile[0]}, {tile[1]}, {each}, {whole}, {tile[2]}>"
    return TileOperand(type_, f"({start}, window, top, rows)", buffer.dtype, buffer.kind == "weight")


def is_tap_major(step: Convolution) -> bool:
    """Whether all terms of an output channel's weight are neighbours, in the order (tap…, channel)."""
    expected = step.channels
    strides: list[int] = []
    for taps in reversed(step.kernel):
        strides.insert(0, expected)
        expected *= taps
    _, channel, *found = step.weight.strides
    taps_lie = all(a == b or size == 1 for a, b, size in zip(found, strides, step.kernel, strict=True))
    return taps_lie and (channel == 1 or step.channels == 1)


def _weight_operand(
    out: CudaKernelWriter, step: Convolution, index: str, columns: int, depth: int, tile: tuple[int, int, int]
) -> TileOperand:
    view = step.weight
    buffer = out.buffers[view.buffer]
    most = MOST_BYTES // BYTES[buffer.dtype]
    outer, channel, *steps = view.strides
    start = f"{out.pointer(view.buffer)} + ({out.size(view.offset)})"
    start += f" + (int64_t)({'group * ' + str(columns) + ' + ' if step.groups > 1 else ''}left) * ({out.size(outer)})"
    is_weight = buffer.kind == "weight"
    if is_tap_major(step):
        each = count_neighbours([view.offset, depth, *([] if step.out_channels == 1 else [outer])], most)
        type_ = f"ig_matrix_tile<{STORED[buffer.dtype]}, {tile[0]}, {tile[1]}, {each}, false, {tile[2]}>"
        return TileOperand(type_, f" = {{{start}, {out.size(outer)}, 1, columns}}", buffer.dtype, is_weight)
    each = _count_channels(view, 1, step.channels, most)
    taps = len(step.kernel)
    window = _window_text(
        out, outer, steps, channel, step.channels, step.kernel, [1] * taps, step.kernel, [1] * taps, [0] * taps,
        [1] * taps,
    )  # fmt: skip
    out.line(f"const ig_window taps = {window};")
    type_ = f"ig_window_tile<{STORED[buffer.dtype]}, {index}, {tile[0]}, {tile[1]}, {each}, false, {tile[2]}>"
    return TileOperand(type_, f"({start}, taps, 0, columns)", buffer.dtype, is_weight)


def _write_channels(out: CudaKernelWriter, step: ImplicitGemm) -> CudaKernel:
    """Groups of one channel: a thread has a run of neighbouring output channels of a pixel, and adds up its taps."""
    use_headers(out)
    type_ = index_type(out, step)
    each = count_columns(step.epilogue)
    pixels, _ = step.sums_shape()
    runs = pixels * (step.out_channels // each)
    sum_type = STORED[step.dtype]
    out.line("ig_start_next();")
    out.line(f"const {type_} run = ({type_})blockIdx.x * {_THREADS} + ({type_})threadIdx.x;")
    out.line(f"if (run >= {out.size(runs)}) return;")
    out.line("ig_wait_for_previous();")
    out.line(f"const {type_} left = run % {step.out_channels // each} * {each};")
    out.line(f"const {type_} top = run / {step.out_channels // each};")
    write_finish(out, step, type_, each, row="top", column="left")
    image = _write_pixel(out, step, type_)
    out.line("const loaded given = fetch(0, 0);")
    out.line(f"ig_vector<{sum_type}, {each}> total = {{}};")
    taps = require_static(product(step.kernel))
    out.line("#pragma unroll" if taps <= _UNROLLED_TAPS else "#pragma unroll 1")
    out.open(f"for (int tap = 0; tap < {taps}; ++tap)")
    x_offset, weight_offset = _write_tap(out, step, type_)
    x = f"{out.pointer(step.x.buffer)} + ({out.size(step.x.offset)}) + (int64_t){image} + {x_offset}"
    weight = f"{out.pointer(step.weight.buffer)} + ({out.size(step.weight.offset)}) + {weight_offset}"
    per_group = step.out_channels // step.groups
    dense = per_group == 1 and _count_channels(step.x, 1, step.groups, each) == each
    channel = "left + w" if per_group == 1 else f"(left + w) / {per_group}"
    _write_run(out, "x", step.x, x, dense, channel, step.x.strides[1], each)
    dense = _count_channels(step.weight, 0, step.out_channels, each) == each
    _write_run(out, "weight", step.weight, weight, dense, "left + w", step.weight.strides[0], each)
    values = [
        f"({sum_type}){widen(out, out.buffers[view.buffer].dtype, f'{name}.at[w]')}"
        for name, view in (("x", step.x), ("weight", step.weight))
    ]
    out.line("#pragma unroll")
    out.line(f"for (int w = 0; w < {each}; ++w) total.at[w] = ig_multiply_add({', '.join(values)}, total.at[w]);")
    out.close()
    out.line("finish(0, 0, total.at, given);")
    return out.finish(Grid((runs + _THREADS - 1) // _THREADS), _THREADS, waits=True)


def _write_pixel(out: CudaKernelWriter, step: Convolution, type_: str) -> str:
    """Declares where the window of pixel `top` begins, `begin0` and on. Returns where its image does."""
    rest = "top"
    for dim in range(len(step.kernel) - 1, -1, -1):
        size = out.size(step.out_size[dim])
        place = f"{rest} % ({size}) * {step.stride[dim]} - ({out.size(step.padding[dim])})"
        out.line(f"const {type_} begin{dim} = ({type_})({place});")
        out.line(f"const {type_} rest{dim} = {rest} / ({type_})({size});")
        rest = f"rest{dim}"
    return f"{rest} * ({out.size(step.x.strides[0])})"


def _write_tap(out: CudaKernelWriter, step: Convolution, type_: str) -> tuple[str, str]:
    """Leaves out a tap that is outside the image. Returns where it lies in the image, and where its weight does."""
    below, inside, x, weight = 1, [], [], []
    for dim in range(len(step.kernel) - 1, -1, -1):
        out.line(f"const {type_} tap{dim} = tap / {below} % {step.kernel[dim]};")
        out.line(f"const {type_} at{dim} = begin{dim} + tap{dim} * {step.dilation[dim]};")
        below *= step.kernel[dim]
        inside.append(f"at{dim} >= 0 && at{dim} < ({type_})({out.size(step.size[dim])})")
        x.append(f"at{dim} * ({out.size(step.x.strides[2 + dim])})")
        weight.append(f"tap{dim} * ({out.size(step.weight.strides[2 + dim])})")
    out.line(f"if (!({' && '.join(inside)})) continue;")
    return " + ".join(x), " + ".join(weight)


def _write_run(
    out: CudaKernelWriter, name: str, view: StridedView, start: str, dense: bool, channel: str, step: Size, each: int
) -> None:
    """Declares the elements of a run of channels: neighbours, or `step` apart."""
    if dense and each > 1:
        out.line(f"const auto {name} = ig_load<{each}>({start} + left);")
        return
    out.line(f"const {STORED[out.buffers[view.buffer].dtype]} *const {name}_of = {start};")
    out.line(f"ig_vector<{STORED[out.buffers[view.buffer].dtype]}, {each}> {name};")
    out.line("#pragma unroll")
    out.line(f"for (int w = 0; w < {each}; ++w) {name}.at[w] = {name}_of[(int64_t)({channel}) * ({out.size(step)})];")
