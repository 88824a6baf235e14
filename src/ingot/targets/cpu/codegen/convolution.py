"""Convolutions as C, three ways: windows under the product's tile, one channel at a time, and Winograd tiles.

The epilogue of each is the one of products: rows are pixels, columns are output channels.
"""

from __future__ import annotations

from collections.abc import Callable

from ingot.codegen.c_expressions import STORED, SUFFIX
from ingot.lowering.dtypes import BYTES
from ingot.lowering.index_expr import Size, require_static
from ingot.registry import Registry
from ingot.targets.cpu.codegen.gemm import (
    Beside,
    declare_sums,
    factor_kind,
    right_end,
    rows_at_a_time,
    share_product,
    task,
    whole_terms,
    whole_tiles,
    write_epilogue,
)
from ingot.targets.cpu.codegen.kernel_writer import CKernelWriter, Kernel
from ingot.targets.cpu.schedule.statements import ConvAlgorithm, TiledConvolution, rows_dtype
from ingot.targets.cpu.schedule.tiles import LANES

# A depthwise convolution: channels at a time, multiplications that are worth another thread, and lines that are enough
# to keep all threads at work.
CHANNELS = 96
DEPTHWISE_GRAIN = 1 << 17
LINES = 28
# Columns of taps and steps of depthwise convolutions that are unrolled.
KNOWN_TAPS, KNOWN_STEPS = (3, 5, 7), (1, 2)
# Terms of a run of taps, at most, where it is more than one tap: 512, or as many as take as much memory. Bytes of a
# pointer.
TERMS, POINTER = {"u8": 2048}, 8
# Tiles of a task of a convolution by Winograd: enough to use a panel often, few enough that their sums stay in cache.
TILES = 24


def convolution_kernel(out: CKernelWriter, step: TiledConvolution) -> Kernel:
    """The kernel of a convolution by the algorithm that was chosen."""
    return _KERNELS[step.algorithm](out, step)


def write_lines(out: CKernelWriter, step: TiledConvolution, first: str, last: str) -> None:
    """Lines [first, last) of all that a convolution computes, counted through all images."""
    _LINES[step.algorithm](out, step, first, last)


_KERNELS: Registry[ConvAlgorithm, Callable[[CKernelWriter, TiledConvolution], Kernel]] = Registry(
    "writer of a convolution"
)


@_KERNELS.register("windows")
def windows_kernel(out: CKernelWriter, step: TiledConvolution, beside: Beside | None = None) -> Kernel:
    """One task is a panel of output channels by a block of pixels, as in a product."""
    pixels = step.images * step.out_size[0] * step.out_size[1]
    rows = rows_at_a_time(step)
    if step.factors == "int8":
        rows = whole_tiles(pixels, _panels(step), rows)
    blocks = (pixels + rows - 1) // rows
    weight = out.buffers[step.weight]
    out.open("for (int64_t task = begin; task < end; ++task)")
    block, panel = task(out, blocks, _panels(step), weight.size * BYTES[weight.dtype])
    out.line(f"const int64_t panel = {panel}, first = {block} * {rows};")
    out.line(f"const int64_t last = ig_min(first + {rows}, {out.size(pixels)});")
    _tiles(out, step, rows, beside)
    out.close()
    return out.finish(blocks * _panels(step), 1)


_LINES: Registry[ConvAlgorithm, Callable[[CKernelWriter, TiledConvolution, str, str], None]] = Registry(
    "writer of lines of a convolution"
)


@_LINES.register("windows")
def _windows_lines(out: CKernelWriter, step: TiledConvolution, first: str, last: str) -> None:
    pixels, rows = out.size(step.out_size[1]), rows_at_a_time(step)
    out.open(f"for (int64_t first = ({first}) * ({pixels}), last; first < ({last}) * ({pixels}); first = last)")
    out.line(f"last = ig_min(first + {rows}, ({last}) * ({pixels}));")
    out.open(f"for (int64_t panel = 0; panel < {_panels(step)}; ++panel)")
    _tiles(out, step, rows)
    out.close()
    out.close()


def _panels(step: TiledConvolution) -> int:
    return -(-(step.out_channels // step.groups) // step.panel) * step.groups


def _tiles(out: CKernelWriter, step: TiledConvolution, rows: int, beside: Beside | None = None) -> None:
    """Pixels [first, last), at most so many, of panel number `panel`."""
    width = step.panel
    each = step.out_channels // step.groups
    panels = -(-each // width)
    image = out.pointer(step.x)
    if step.groups == 1:
        out.line(f"const int64_t left = panel * {width}, right = {right_end(width, each, str(each))};")
    else:
        out.line(f"const int64_t group = panel / {panels};")
        out.line(f"const int64_t left = group * {each} + panel % {panels} * {width};")
        out.line(f"const int64_t right = {right_end(width, each, f'(group + 1) * {each}')};")
        image = f"{image} + group * {step.channels}"
    out.line("const int64_t row = first, high = last - first;")
    _write_sums(out, step, rows, image, "panel", "tile")
    if beside is not None:
        beside(rows)
    write_epilogue(out, step.epilogue, 0, width, step.groups)


def write_windows_beside(out: CKernelWriter, step: TiledConvolution, rows: int) -> None:
    """The sums of pixels [row, row + high) by channels [left, right) of one group."""
    _write_sums(out, step, rows, out.pointer(step.x), f"(left / {step.panel})", "beside")


def _write_sums(out: CKernelWriter, step: TiledConvolution, rows: int, image: str, panel: str, sums: str) -> None:
    """Computes the sums of the pixels [row, row + high) into an array."""
    kind, width = factor_kind(step), step.panel
    terms = _taps(step) * require_static(whole_terms(step, step.channels))
    run = min(_taps(step), max(TERMS.get(kind, 512) // step.channels, 1))
    function = share_product(out, "window", step, kind, width)
    outside = out.library.padding_array(kind, step.outside, step.channels)
    declare_sums(out, sums, step, rows, width)
    out.open("")
    _window(out, step)
    out.own("rows", f"const {STORED[out.buffers[step.x].dtype]} *", run * rows * POINTER)
    out.line(
        f"{function}(rows, {rows}, &window, {image}, {outside}, {run}, {step.channels}, "
        f"{out.pointer(step.weight)} + {panel} * {terms * width}, {sums}, row, high);"
    )
    out.close()


def _taps(step: TiledConvolution) -> int:
    return step.kernel[0] * step.kernel[1]


def _window(out: CKernelWriter, step: TiledConvolution) -> None:
    fields = (*step.size, step.pixel, *step.out_size, *step.kernel, *step.stride, *step.padding, *step.dilation)
    out.line(f"const ig_window window = {{{', '.join(out.size(f) for f in fields)}}};")


@_KERNELS.register("depthwise")
def _depthwise_kernel(out: CKernelWriter, step: TiledConvolution) -> Kernel:
    """One task is a line of outputs, or a block of channels of one where there are too few lines for all threads."""
    width = _width(step.pixel)
    lines = step.images * step.out_size[0]
    each = step.pixel if out.hint(lines) >= LINES else width
    groups = step.pixel // each
    _window(out, step)
    if groups == 1:
        _depthwise_channels(out, step, "begin", "end", "0", str(step.pixel))
    else:
        out.open("for (int64_t task = begin; task < end; ++task)")
        out.line(f"const int64_t at = task / {groups}, from = task % {groups} * {each};")
        _depthwise_channels(out, step, "at", "at + 1", "from", f"from + {each}")
        out.close()
    work = out.hint(step.out_size[1]) * step.kernel[0] * step.kernel[1] * each
    return out.finish(lines * groups, max(1, DEPTHWISE_GRAIN // max(work, 1)))


def _width(channels: int) -> int:
    """Channels at a time: vectors of which all blocks are full, so that the C compiler knows how many there are."""
    return max(width for width in range(LANES, CHANNELS + 1, LANES) if channels % width == 0)


@_LINES.register("depthwise")
def _depthwise_lines(out: CKernelWriter, step: TiledConvolution, first: str, last: str) -> None:
    _window(out, step)
    _depthwise_channels(out, step, first, last, "0", str(step.pixel))


def _depthwise_channels(
    out: CKernelWriter, step: TiledConvolution, first: str, last: str, begin: str, end: str
) -> None:
    """Channels [begin, end) of lines [first, last)."""
    kind, real = factor_kind(step), STORED[step.dtype]
    out.library.share("depth", kind)
    function = f"ig_depth_{kind}"
    if step.kernel[1] in KNOWN_TAPS and step.stride[1] in KNOWN_STEPS and step.dilation[1] == 1:
        out.library.share("depths", kind, step.kernel[1], step.stride[1])
        function = f"ig_depths_{kind}_{step.kernel[1]}_{step.stride[1]}"
    width = _width(step.pixel)
    high, wide = (out.size(size) for size in step.size)
    out_high, out_wide = (out.size(size) for size in step.out_size)
    out.open(f"for (int64_t at_line = {first}; at_line < {last}; ++at_line)")
    out.line("ig_span span;")
    out.line(f"const int64_t top = at_line % ({out_high}) * {step.stride[0]} - {step.padding[0]};")
    out.line(f"ig_taps(top, {high}, {step.dilation[0]}, {step.kernel[0]}, &span.top, &span.bottom);")
    out.line(
        f"const {STORED[rows_dtype(step)]} *const image = {out.pointer(step.x)} + "
        f"(at_line / ({out_high}) * ({high}) + top) * ({wide}) * {step.pixel};"
    )
    out.open(f"for (int64_t x = 0, high; x < {out_wide}; x += high)")
    out.line("high = ig_side_by_side(&window, x, &span);")
    out.line(f"const int64_t row = at_line * ({out_wide}) + x;")
    out.open(f"for (int64_t left = {begin}; left < {end}; left += {width})")
    out.line(f"const int64_t right = left + {width};")
    out.line(f"_Alignas(64) {real} tile[IG_SIDE * {width}];")
    out.line(
        f"{function}(image + (x * {step.stride[1]} - {step.padding[1]}) * {step.pixel} + left, "
        f"{out.pointer(step.weight)} + left, &window, &span, tile, {width}, high, {width}, {step.outside});"
    )
    write_epilogue(out, step.epilogue, 0, width)
    for _ in range(3):
        out.close()


@_KERNELS.register("winograd")
def _winograd_kernel(out: CKernelWriter, step: TiledConvolution) -> Kernel:
    """One task is a panel of output channels by a block of tiles: 16 products, then four outputs of each tile."""
    kind, real = SUFFIX[step.dtype], STORED[step.dtype]
    width = step.panel
    out.library.share("tile", kind, width)
    out.library.share("winograd", kind)
    down, across = ((size + 1) // 2 for size in step.out_size)
    tiles = step.images * down * across
    most = _tiles_of_a_task(tiles)
    blocks = (tiles + most - 1) // most
    panels = -(-step.out_channels // width)
    high, wide = (out.size(size) for size in step.out_size)
    depth = step.channels
    out.open("for (int64_t task = begin; task < end; ++task)")
    out.line(f"const int64_t panel = task / ({out.size(blocks)}), first = task % ({out.size(blocks)}) * {most};")
    out.line(f"const int64_t count = ig_min({most}, {out.size(tiles)} - first);")
    right = right_end(width, step.out_channels, str(step.out_channels))
    out.line(f"const int64_t left = panel * {width}, right = {right};")
    out.own("sums", real, 16 * most * width * BYTES[step.dtype])
    out.open("for (int64_t p = 0; p < 16; ++p)")
    out.line(
        f"ig_tile_{kind}_{width}({out.pointer(step.x)} + (p * ({out.size(tiles)}) + first) * {depth}, {depth}, "
        f"{out.pointer(step.weight)} + (p * {panels} + panel) * {depth * width}, {depth}, "
        f"sums + p * {most * width}, count);"
    )
    out.close()
    out.open("for (int64_t i = 0; i < count; ++i)")
    out.line(f"_Alignas(64) {real} outputs[4 * {width}];")
    out.line(f"ig_gather_{kind}(sums + i * {width}, {most * width}, outputs, {width});")
    out.line(f"const int64_t tx = (first + i) % ({out.size(across)}), rest = (first + i) / ({out.size(across)});")
    out.line(f"const int64_t ty = rest % ({out.size(down)}), n = rest / ({out.size(down)});")
    out.open("for (int64_t q = 0; q < 4; ++q)")
    out.line("const int64_t y = ty * 2 + q / 2, x = tx * 2 + q % 2, high = 1;")
    out.line(f"if (y >= {high} || x >= {wide}) continue;")
    out.line(f"const int64_t row = (n * ({high}) + y) * ({wide}) + x;")
    out.line(f"const {real} *const tile = outputs + q * {width};")
    write_epilogue(out, step.epilogue, 0, width)
    out.close()
    out.close()
    out.close()
    return out.finish(blocks * panels, 1)


def _tiles_of_a_task(tiles: Size) -> int:
    """Blocks of about the same number of tiles, whole rows of the product's tile."""
    if not isinstance(tiles, int):
        return TILES
    blocks = (tiles + TILES - 1) // TILES
    each = (tiles + blocks - 1) // blocks
    return min(TILES, (each + 5) // 6 * 6)
