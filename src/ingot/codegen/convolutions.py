"""Convolutions as C, three ways: windows under the product's tile, one channel at a time, and Winograd's tiles.

The epilogue of each is the one of products: rows are pixels, columns are output channels.
"""

from __future__ import annotations

from collections.abc import Callable

from ingot.codegen.ctext import STORED, SUFFIX
from ingot.codegen.kernels import Kernel, Writer
from ingot.codegen.products import ROWS, right_end, write_epilogue
from ingot.lowering.expr import Size
from ingot.lowering.ir import BYTES, Convolution, Way

# A depthwise convolution: channels at a time, multiplications that are worth another thread, and lines that are enough
# to keep all threads at work.
CHANNELS = 64
DEPTHWISE_GRAIN = 1 << 17
LINES = 28
# Tiles of a task of a convolution by Winograd: enough to use a panel often, few enough that their sums stay in cache.
TILES = 24


def convolution_kernel(out: Writer, step: Convolution) -> Kernel:
    """The kernel of a convolution in the way that lowering chose."""
    return _KERNELS[step.way](out, step)


def _windows_kernel(out: Writer, step: Convolution) -> Kernel:
    """One task is a panel of output channels by a block of pixels, as in a product."""
    kind, real = SUFFIX[step.dtype], STORED[step.dtype]
    width = step.panel
    out.library.share("window", kind, width)
    out.library.read_zeros(step.channels)
    pixels = step.images * step.out_size[0] * step.out_size[1]
    blocks = (pixels + ROWS - 1) // ROWS
    per_group = step.out_channels // step.groups
    panels = -(-per_group // width)
    taps = step.kernel[0] * step.kernel[1]
    _window(out, step)
    out.line(f"const {real} *rows[{taps} * IG_HIGHEST];")
    out.open("for (int64_t task = begin; task < end; ++task)")
    out.line(f"const int64_t panel = task / ({out.size(blocks)});")
    out.line(
        f"const int64_t first = task % ({out.size(blocks)}) * {ROWS}, "
        f"last = ig_min(first + {ROWS}, {out.size(pixels)});"
    )
    image = out.pointer(step.x)
    if step.groups == 1:
        out.line(f"const int64_t left = panel * {width}, right = {right_end(width, per_group, str(per_group))};")
    else:
        out.line(f"const int64_t group = panel / {panels};")
        out.line(f"const int64_t left = group * {per_group} + panel % {panels} * {width};")
        out.line(f"const int64_t right = {right_end(width, per_group, f'(group + 1) * {per_group}')};")
        image = f"{image} + group * {step.channels}"
    out.open(f"for (int64_t row = first; row < last; row += IG_HIGH({real}, {width}))")
    out.line(f"_Alignas(64) {real} tile[IG_HIGHEST * {width}];")
    out.line(f"const int64_t high = ig_min(last - row, IG_HIGH({real}, {width}));")
    out.line(f"ig_windows_{kind}(rows, &window, {image}, ig_zeros_{kind}, row, high);")
    out.line(
        f"ig_window_{kind}_{width}(rows, {taps}, {step.channels}, "
        f"{out.pointer(step.weight)} + panel * {taps * step.channels * width}, tile, high);"
    )
    write_epilogue(out, step.epilogue, 0, width)
    out.close()
    out.close()
    return out.finish(blocks * panels * step.groups, 1)


def _window(out: Writer, step: Convolution) -> None:
    fields = (*step.size, step.pixel, *step.out_size, *step.kernel, *step.stride, *step.padding, *step.dilation)
    out.line(f"const ig_window window = {{{', '.join(out.size(f) for f in fields)}}};")


def _depthwise_kernel(out: Writer, step: Convolution) -> Kernel:
    """One task is a line of outputs, or a block of channels of one."""
    kind, real = SUFFIX[step.dtype], STORED[step.dtype]
    out.library.share("depth", kind)
    width = min(CHANNELS, step.pixel)
    lines = step.images * step.out_size[0]
    # Memory is read as it lies where there are lines enough for all threads; else channels are shared out as well.
    each = step.pixel if out.hint(lines) >= LINES else width
    groups = -(-step.pixel // each)
    high, wide = (out.size(size) for size in step.size)
    out_high, out_wide = (out.size(size) for size in step.out_size)
    _window(out, step)
    out.open("for (int64_t task = begin; task < end; ++task)")
    out.line("ig_span span;")
    out.line(f"const int64_t line_ = task / {groups}, y = line_ % ({out_high}), n = line_ / ({out_high});")
    out.line(f"const int64_t from = task % {groups} * {each}, to = ig_min(from + {each}, {step.pixel});")
    out.line(f"const int64_t top = y * {step.stride[0]} - {step.padding[0]};")
    out.line(f"ig_taps(top, {high}, {step.dilation[0]}, {step.kernel[0]}, &span.top, &span.bottom);")
    out.line(f"const {real} *const image = {out.pointer(step.x)} + (n * ({high}) + top) * ({wide}) * {step.pixel};")
    out.open(f"for (int64_t x = 0, high; x < {out_wide}; x += high)")
    out.line("high = ig_side_by_side(&window, x, &span);")
    out.line(f"const int64_t row = line_ * ({out_wide}) + x;")
    out.open(f"for (int64_t left = from; left < to; left += {width})")
    out.line(f"const int64_t right = {right_end(width, step.pixel, 'to')};")
    out.line(f"_Alignas(64) {real} tile[IG_SIDE * {width}];")
    out.line(
        f"ig_depth_{kind}(image + (x * {step.stride[1]} - {step.padding[1]}) * {step.pixel} + left, "
        f"{out.pointer(step.weight)} + left, &window, &span, tile, {width}, high, right - left);"
    )
    write_epilogue(out, step.epilogue, 0, width)
    out.close()
    out.close()
    out.close()
    work = out.hint(step.out_size[1]) * step.kernel[0] * step.kernel[1] * each
    return out.finish(lines * groups, max(1, DEPTHWISE_GRAIN // max(work, 1)))


def _winograd_kernel(out: Writer, step: Convolution) -> Kernel:
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


_KERNELS: dict[Way, Callable[[Writer, Convolution], Kernel]] = {
    "windows": _windows_kernel,
    "depthwise": _depthwise_kernel,
    "winograd": _winograd_kernel,
}
