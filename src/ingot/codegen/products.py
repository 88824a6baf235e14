"""Matrix products as C: panels of columns against rows, a tile at a time, each tile through the epilogue's body.

One task is a panel of columns by a block of rows. The tile's sums stay in registers over the whole depth; they go
through a small array into the epilogue, which runs along the columns like any loop kernel. What is not packed ahead of
time (an activation on the right, rows that are not contiguous) is packed by the task that needs it.
"""

from __future__ import annotations

from ingot.codegen.kernels import Kernel, Writer, unflatten
from ingot.lowering.expr import Size, product
from ingot.lowering.ir import BYTES, Buffer, Convolution, Map, Product

# Columns of a panel that is packed while running.
PANEL = 48
# Rows of a task: enough to reuse a panel from the nearest cache, few enough to share out.
ROWS = 64
# Bytes of weights that stay in a core's own cache beside the rows.
CACHED = 1 << 18
# A depthwise convolution: channels at a time, multiplications that are worth another thread, and lines that are enough
# to keep all threads at work.
CHANNELS = 64
DEPTHWISE_GRAIN = 1 << 17
LINES = 28
# Tiles of a task of a convolution by Winograd: enough to use a panel often, few enough that their sums stay in cache.
TILES = 24


def product_kernel(step: Product, buffers: dict[str, Buffer], used: set[str], hints: dict[str, int]) -> Kernel:
    out = Writer(buffers, used, hints)
    kind = "f32" if step.dtype == "float32" else "f64"
    real = "float" if kind == "f32" else "double"
    width = step.b.packed or PANEL
    used.add(f"tile {kind} {width}")
    m, n, k = out.size(step.m), out.size(step.n), out.size(step.k)
    rows = min(ROWS, max(8, out.hint(step.m))) if isinstance(step.m, int) else ROWS
    blocks = (step.m + rows - 1) // rows
    panels = (step.n + width - 1) // width
    total = product([loop.extent for loop in step.batch]) * panels * blocks
    out.open("for (int64_t task = begin; task < end; ++task)")
    row_block, column_panel = _task(out, blocks, panels, step.n * step.k * BYTES[step.dtype])
    out.line(f"const int64_t first = {row_block} * {rows}, last = ig_min(first + {rows}, {m});")
    out.line(f"const int64_t left = {column_panel} * {width}, right = {_right(width, step.n, n)};")
    if step.batch:
        out.line(f"const int64_t o = task / ({out.size(blocks * panels)});")
        unflatten(out, "o", step.batch)
    panel = _panel(out, step, kind, real)
    a_rows, a_step = _rows(out, step, kind, real)
    out.open(f"for (int64_t row = first; row < last; row += IG_HIGH({real}, {width}))")
    out.line(f"_Alignas(64) {real} tile[IG_HIGHEST * {width}];")
    out.line(f"const int64_t high = ig_min(last - row, IG_HIGH({real}, {width}));")
    out.line(f"ig_tile_{kind}_{width}({a_rows}, {a_step}, {panel}, {k}, tile, high);")
    _epilogue(out, step.epilogue, len(step.batch), width)
    out.close()
    out.close()
    return out.finish(total, 1)


def _task(out: Writer, blocks: Size, panels: Size, weights: Size) -> tuple[str, str]:
    """The block of rows and the panel of a task. Tasks go along the rows, so that a panel is read from memory once;
    where all panels stay in the cache they go along the panels, so that results are written one after another."""
    along_panels = isinstance(weights, int) and weights <= CACHED
    inner, outer = (panels, blocks) if along_panels else (blocks, panels)
    out.line(
        f"const int64_t inner = task % ({out.size(inner)}), outer = task / ({out.size(inner)}) % ({out.size(outer)});"
    )
    return ("outer", "inner") if along_panels else ("inner", "outer")


def _right(width: int, columns: Size, end: str) -> str:
    """The end of a panel's columns: where all panels are full, the C compiler is to know how many there are."""
    full = isinstance(columns, int) and columns % width == 0
    return f"left + {width}" if full else f"ig_min(left + {width}, {end})"


def _panel(out: Writer, step: Product, kind: str, real: str) -> str:
    b = step.b
    if b.packed:
        return f"{out.pointer(b.buffer)} + ({out.size(b.offset)}) + left * ({out.size(step.k)})"
    used = f"ig_pack_{kind}_from_{out.buffers[b.buffer].dtype}"
    out.used.add(used)
    out.line(f"{real} *const panel = ({real} *)(ig_scratch(c, worker) + {out.size(out.scratch)});")
    out.scratch = out.scratch + _padded(step.k * PANEL * BYTES[step.dtype])
    out.line(
        f"{used}(panel, {PANEL}, {out.pointer(b.buffer)} + ({out.size(b.offset)}) + left * ({out.size(b.columns)}), "
        f"{out.size(b.rows)}, {out.size(b.columns)}, {out.size(step.k)}, right - left);"
    )
    return "panel"


def _rows(out: Writer, step: Product, kind: str, real: str) -> tuple[str, str]:
    """Where the tile's rows begin, and the distance between rows; columns of a row are neighbours."""
    a = step.a
    base = f"{out.pointer(a.buffer)} + ({out.size(a.offset)})"
    if a.columns == 1 and out.buffers[a.buffer].dtype == step.dtype:
        return f"{base} + row * ({out.size(a.rows)})", out.size(a.rows)
    used = f"ig_pack_{kind}_from_{out.buffers[a.buffer].dtype}"
    out.used.add(used)
    out.line(f"{real} *const lines = ({real} *)(ig_scratch(c, worker) + {out.size(out.scratch)});")
    out.scratch = out.scratch + _padded(step.k * ROWS * BYTES[step.dtype])
    out.line(
        f"{used}(lines, {out.size(step.k)}, {base} + first * ({out.size(a.rows)}), {out.size(a.rows)}, "
        f"{out.size(a.columns)}, last - first, {out.size(step.k)});"
    )
    return f"lines + (row - first) * ({out.size(step.k)})", out.size(step.k)


def _padded(size: Size) -> Size:
    return (size + 63) // 64 * 64


def _epilogue(out: Writer, epilogue: Map, lead: int, width: int) -> None:
    """The tile's rows, `row` and on, through the epilogue's body. `lead` loops are open already."""
    *rows, column = epilogue.loops[lead:]
    out.open("for (int64_t line = 0; line < high; ++line)")
    if rows:
        out.line("const int64_t at = row + line;")
    unflatten(out, "at", rows)
    code = out.statements(epilogue.body, [column.variable], f"tile[line * {width} + {column.variable} - left]")
    if code.checks:
        out.line("int bad = 0;")
    if code.zero_checks:
        out.line("int zero = 0;")
    for line in code.before:
        out.line(line)
    out.lines.append("    " * out.depth + "#pragma omp simd" + (" reduction(|:bad)" if code.checks else ""))
    out.open(f"for (int64_t {column.variable} = left; {column.variable} < right; ++{column.variable})")
    for line in code.inside:
        out.line(line)
    for store in epilogue.stores:
        out.line(out.store(store, code.results[store.result]))
    out.close()
    if code.checks:
        out.line("if (bad) ig_fail(c, INGOT_INDEX);")
    if code.zero_checks:
        out.line("if (zero) ig_fail(c, INGOT_ZERO_DIVISION);")
    out.close()


def convolution_kernel(step: Convolution, buffers: dict[str, Buffer], used: set[str], hints: dict[str, int]) -> Kernel:
    if step.depthwise:
        return _depthwise_kernel(step, buffers, used, hints)
    if step.winograd:
        return _winograd_kernel(step, buffers, used, hints)
    out = Writer(buffers, used, hints)
    kind = "f32" if step.dtype == "float32" else "f64"
    real = "float" if kind == "f32" else "double"
    width = step.panel
    used.update({f"window {kind} {width}", f"zeros {step.channels}"})
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
        out.line(f"const int64_t left = panel * {width}, right = {_right(width, per_group, str(per_group))};")
    else:
        out.line(f"const int64_t group = panel / {panels};")
        out.line(f"const int64_t left = group * {per_group} + panel % {panels} * {width};")
        out.line(f"const int64_t right = {_right(width, per_group, f'(group + 1) * {per_group}')};")
        image = f"{image} + group * {step.channels}"
    out.open(f"for (int64_t row = first; row < last; row += IG_HIGH({real}, {width}))")
    out.line(f"_Alignas(64) {real} tile[IG_HIGHEST * {width}];")
    out.line(f"const int64_t high = ig_min(last - row, IG_HIGH({real}, {width}));")
    out.line(f"ig_windows_{kind}(rows, &window, {image}, ig_zeros_{kind}, row, high);")
    out.line(
        f"ig_window_{kind}_{width}(rows, {taps}, {step.channels}, "
        f"{out.pointer(step.weight)} + panel * {taps * step.channels * width}, tile, high);"
    )
    _epilogue(out, step.epilogue, 0, width)
    out.close()
    out.close()
    return out.finish(blocks * panels * step.groups, 1)


def _window(out: Writer, step: Convolution) -> None:
    fields = (*step.size, step.pixel, *step.out_size, *step.kernel, *step.stride, *step.padding, *step.dilation)
    out.line(f"const ig_window window = {{{', '.join(out.size(f) for f in fields)}}};")


def _depthwise_kernel(step: Convolution, buffers: dict[str, Buffer], used: set[str], hints: dict[str, int]) -> Kernel:
    """One task is a line of outputs, or a block of channels of one."""
    out = Writer(buffers, used, hints)
    kind = "f32" if step.dtype == "float32" else "f64"
    real = "float" if kind == "f32" else "double"
    used.add(f"depth {kind}")
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
    out.line(f"const int64_t right = {_right(width, step.pixel, 'to')};")
    out.line(f"_Alignas(64) {real} tile[IG_SIDE * {width}];")
    out.line(
        f"ig_depth_{kind}(image + (x * {step.stride[1]} - {step.padding[1]}) * {step.pixel} + left, "
        f"{out.pointer(step.weight)} + left, &window, &span, tile, {width}, high, right - left);"
    )
    _epilogue(out, step.epilogue, 0, width)
    out.close()
    out.close()
    out.close()
    work = out.hint(step.out_size[1]) * step.kernel[0] * step.kernel[1] * each
    return out.finish(lines * groups, max(1, DEPTHWISE_GRAIN // max(work, 1)))


def _winograd_kernel(step: Convolution, buffers: dict[str, Buffer], used: set[str], hints: dict[str, int]) -> Kernel:
    """One task is a panel of output channels by a block of tiles: 16 products, then four outputs of each tile."""
    out = Writer(buffers, used, hints)
    kind = "f32" if step.dtype == "float32" else "f64"
    real = "float" if kind == "f32" else "double"
    width = step.panel
    used.update({f"tile {kind} {width}", f"winograd {kind}"})
    down, across = step.tiles
    tiles = step.images * down * across
    most = _tiles_of_a_task(tiles)
    blocks = (tiles + most - 1) // most
    panels = -(-step.out_channels // width)
    high, wide = (out.size(size) for size in step.out_size)
    depth = step.channels
    out.open("for (int64_t task = begin; task < end; ++task)")
    out.line(f"const int64_t panel = task / ({out.size(blocks)}), first = task % ({out.size(blocks)}) * {most};")
    out.line(f"const int64_t count = ig_min({most}, {out.size(tiles)} - first);")
    right = _right(width, step.out_channels, str(step.out_channels))
    out.line(f"const int64_t left = panel * {width}, right = {right};")
    out.line(f"{real} *const sums = ({real} *)(ig_scratch(c, worker) + {out.size(out.scratch)});")
    out.scratch = out.scratch + _padded(16 * most * width * BYTES[step.dtype])
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
    _epilogue(out, step.epilogue, 0, width)
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
