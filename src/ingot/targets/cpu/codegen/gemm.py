"""Matrix products as C: panels of columns against rows, a tile at a time, each tile through the epilogue's body.

One task is a panel of columns by a block of rows. The tile's sums stay in registers over the whole depth; they go
through a small array into the epilogue, which runs along the columns like any loop kernel. What is not packed ahead of
time (an activation on the right, rows that are not contiguous) is packed by the task that needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

from ingot.codegen.c_expressions import STORED, SUFFIX, CBodyEmitter, constant_text
from ingot.lowering.dtypes import BYTES
from ingot.lowering.index_expr import Size, product
from ingot.lowering.loop_ir import Gemm, Map
from ingot.targets.cpu.codegen.int8_vectors import LANES, VectorEmitter, has_bytes
from ingot.targets.cpu.codegen.kernel_writer import CKernelWriter, Kernel
from ingot.targets.cpu.codegen.loop_nests import declare_flags, flag_clauses, report_flags, simd, unflatten
from ingot.targets.cpu.schedule.statements import (
    K_INTERLEAVE,
    GemmGroup,
    OperandFormat,
    PackedGemm,
    QuantizedLayout,
    Tiled,
    factors_of,
    rows_dtype,
)

# Columns of a panel that is packed while running.
PANEL = 48
# Rows of a task: enough to reuse a panel from the nearest cache, few enough to share out.
ROWS = 64
# Rows that are whole tiles, however high a tile is.
TILES = 24
# Tasks of a product of integers: one thread is never in step with another.
TASKS = 32
# Rows that are one tile for every instruction set.
LOWEST = 6
# Bytes of weights that stay in a core's own cache along with the rows.
CACHED = 1 << 18
_KINDS: dict[OperandFormat, str] = {"bfloat16": "bf16", "int8": "u8"}


# A product: with a weight that is packed, or with what is packed while it runs.
AnyGemm: TypeAlias = Gemm | PackedGemm
# Writes the sums of so many rows that an epilogue finds beside its own, as the array of that name.
Beside: TypeAlias = Callable[[int], None]


def product_kernel(out: CKernelWriter, step: AnyGemm, beside: Beside | None = None) -> Kernel:
    return _products_kernel(out, (step,), beside)


def siblings_kernel(out: CKernelWriter, siblings: GemmGroup) -> Kernel:
    return _products_kernel(out, siblings.steps)


def _products_kernel(out: CKernelWriter, steps: Sequence[AnyGemm], beside: Beside | None = None) -> Kernel:
    """One task is a panel of columns by a block of rows, of each product."""
    step = steps[0]
    width = panel_columns(step)
    m, n = out.size(step.m), out.size(step.n)
    panels = (step.n + width - 1) // width
    rows = _rows_of_a_task(step, panels)
    blocks = (step.m + rows - 1) // rows
    total = product([loop.extent for loop in step.batch]) * panels * blocks
    out.open("for (int64_t task = begin; task < end; ++task)")
    row_block, column_panel = task(out, blocks, panels, step.n * step.k * BYTES[out.buffers[step.b.buffer].dtype])
    out.line(f"const int64_t first = {row_block} * {rows}, last = ig_min(first + {rows}, {m});")
    out.line(f"const int64_t left = {column_panel} * {width}, right = {right_end(width, step.n, n)};")
    if step.batch:
        out.line(f"const int64_t o = task / ({out.size(blocks * panels)});")
        unflatten(out, "o", step.batch)
    for one in steps:
        out.open("")
        _tiles(out, one, rows, width, beside)
        out.close()
    out.close()
    return out.finish(total, 1)


def panel_columns(step: AnyGemm) -> int:
    return step.b.width if isinstance(step, PackedGemm) else PANEL


def _rows_of_a_task(step: AnyGemm, panels: Size) -> int:
    """Blocks of about the same height. Bytes are read four times as fast as floats: a panel serves more rows."""
    if factors_of(step) == "int8":
        return whole_tiles(step.m, panels, 6 * TILES)
    return min(ROWS, max(8, step.m)) if isinstance(step.m, int) else ROWS


def rows_at_a_time(step: Tiled) -> int:
    """Rows that go through all panels before the next ones do."""
    return 3 * TILES if step.factors == "int8" else ROWS


def whole_tiles(rows: Size, panels: Size, most: int) -> int:
    """The height of blocks of rows in which all tiles but those of the last block are full: as high as leaves threads
    enough tasks to end at the same time, and at most so high."""
    if not isinstance(rows, int) or not isinstance(panels, int):
        return most
    heights = range(most, TILES, -TILES)
    return next((high for high in heights if -(-rows // high) * panels >= TASKS), TILES)


def write_product_rows(out: CKernelWriter, step: PackedGemm, first: str, last: str) -> None:
    """Rows [first, last) of a product without a batch, all panels of a few of them before the next."""
    width, rows = step.b.width, rows_at_a_time(step)
    n = out.size(step.n)
    out.open(f"for (int64_t first = {first}, last; first < {last}; first = last)")
    out.line(f"last = ig_min(first + {rows}, {last});")
    out.open(f"for (int64_t left = 0; left < {n}; left += {width})")
    out.line(f"const int64_t right = {right_end(width, step.n, n)};")
    _tiles(out, step, rows, width)
    out.close()
    out.close()


def factor_kind(step: Gemm | Tiled) -> str:
    """What the library calls the kind of a step's factors."""
    return _KINDS.get(factors_of(step)) or SUFFIX[step.dtype]


def whole_terms(step: Gemm | Tiled, terms: Size) -> Size:
    """The terms of a column of a packed weight, those that are zeros behind the last included."""
    each = K_INTERLEAVE[factors_of(step)]
    return (terms + each - 1) // each * each


def _tiles(out: CKernelWriter, step: AnyGemm, rows: int, width: int, beside: Beside | None = None) -> None:
    """Rows [first, last), at most so many, of the panel of columns [left, right)."""
    declare_sums(out, "tile", step, rows, width)
    out.line("const int64_t row = first, high = last - first;")
    if isinstance(step, PackedGemm) and step.codes is not None:
        _write_coded_sums(out, step, step.codes, width)
    else:
        _write_sums(out, step, width, "tile")
    if beside is not None:
        beside(rows)
    write_epilogue(out, step.epilogue, len(step.batch), width)


def declare_sums(out: CKernelWriter, name: str, step: AnyGemm | Tiled, rows: int, width: int) -> None:
    out.line(f"_Alignas(64) {STORED[step.dtype]} {name}[{rows * width}];")


def write_product_beside(out: CKernelWriter, step: PackedGemm, rows: int) -> None:
    """The sums of rows [row, row + high) by columns [left, right), from rows and a panel as they lie."""
    declare_sums(out, "beside", step, rows, step.b.width)
    _write_sums(out, step, step.b.width, "beside")


def _write_sums(out: CKernelWriter, step: AnyGemm, width: int, sums: str) -> None:
    """Computes the sums of a task's rows by its columns into an array."""
    kind = factor_kind(step)
    function = share_product(out, "tile", step, kind, width)
    panel = _panel(out, step, kind, STORED[step.dtype])
    rows, distance = _rows(out, step, kind, STORED[step.dtype])
    out.line(f"{function}({rows}, {distance}, {panel}, {out.size(step.k)}, {sums}, high);")


def share_product(
    out: CKernelWriter, name: Literal["tile", "window"], step: AnyGemm | Tiled, kind: str, width: int
) -> str:
    """The name of the library's function that computes sums. What uses AMX calls the other one where there is none."""
    out.library.share(name, kind, width)
    if isinstance(step, Gemm) or not step.amx:
        return f"ig_{name}_{kind}_{width}"
    out.library.share("tile_amx" if name == "tile" else "window_amx", kind, width)
    return f"ig_{name}_amx_{kind}_{width}"


def _write_coded_sums(out: CKernelWriter, step: PackedGemm, codes: QuantizedLayout, width: int) -> None:
    """The same where the panel's weights are integers. For one tile they are widened in registers, for more rows
    once into memory."""
    kind = f"s{codes.bits}{'z' if codes.zeros else ''}"
    many = not isinstance(step.m, int) or step.m > LOWEST
    out.library.share("stream", kind, width)
    rows, distance = _rows(out, step, "f32", "float")
    groups, words = step.k // codes.group, -(-codes.group * codes.bits // 32)
    given = ", ".join(
        [
            f"{out.pointer(step.b.buffer)} + left * ({out.size(groups * words)})",
            _load_panel_value(out, "scales", codes.scales, groups, width),
            _load_panel_value(out, "zeros", codes.zeros, groups, width) if codes.zeros else "NULL",
            out.size(step.k),
            str(codes.group),
        ]
    )
    if many:
        out.library.share("widen", kind, width)
        out.library.share("tile", "f32", width)
        out.own("panel", "float", step.k * width * 4)
        out.open(f"if (high > IG_HIGH(float, {width}))")
        out.line(f"ig_widen_{kind}_{width}({given}, panel);")
        out.line(f"ig_tile_f32_{width}({rows}, {distance}, panel, {out.size(step.k)}, tile, high);")
        out.close()
    out.line(f"{'else ' if many else ''}ig_stream_{kind}_{width}({rows}, {distance}, {given}, tile, high);")


def _load_panel_value(out: CKernelWriter, name: str, value: str | float, groups: Size, width: int) -> str:
    """The scales or zeros of a panel: its part of a buffer, or one number for every column."""
    if isinstance(value, str):
        return f"{out.pointer(value)} + left * ({out.size(groups)})"
    out.line(f"static const float {name}[{width}] = {{[0 ... {width - 1}] = {constant_text(value, 'float32')}}};")
    return name


def task(out: CKernelWriter, blocks: Size, panels: Size, weights: Size) -> tuple[str, str]:
    """The block of rows and the panel of a task. Tasks go along the rows, so that a panel is read from memory once;
    where all panels stay in the cache they go along the panels, so that results are written one after another."""
    along_panels = isinstance(weights, int) and weights <= CACHED
    inner, outer = (panels, blocks) if along_panels else (blocks, panels)
    out.line(
        f"const int64_t inner = task % ({out.size(inner)}), outer = task / ({out.size(inner)}) % ({out.size(outer)});"
    )
    return ("outer", "inner") if along_panels else ("inner", "outer")


def right_end(width: int, columns: Size, end: str) -> str:
    """The end of a panel's columns: where all panels are full, the C compiler is to know how many there are."""
    full = isinstance(columns, int) and columns % width == 0
    return f"left + {width}" if full else f"ig_min(left + {width}, {end})"


def _panel(out: CKernelWriter, step: AnyGemm, kind: str, real: str) -> str:
    if isinstance(step, PackedGemm):
        b = step.b
        terms = whole_terms(step, step.k)
        return f"{out.pointer(b.buffer)} + ({out.size(b.offset)}) + left * ({out.size(terms)})"
    lies = step.b
    pack = out.library.pack(kind, out.buffers[lies.buffer].dtype)
    out.own("panel", real, step.k * PANEL * BYTES[step.dtype])
    out.line(
        f"{pack}(panel, {PANEL}, "
        f"{out.pointer(lies.buffer)} + ({out.size(lies.offset)}) + left * ({out.size(lies.columns)}), "
        f"{out.size(lies.rows)}, {out.size(lies.columns)}, {out.size(step.k)}, right - left);"
    )
    return "panel"


def _rows(out: CKernelWriter, step: AnyGemm, kind: str, real: str) -> tuple[str, str]:
    """Where the tile's rows begin, and the distance between rows; columns of a row are neighbours."""
    a = step.a
    base = f"{out.pointer(a.buffer)} + ({out.size(a.offset)})"
    if a.columns == 1 and out.buffers[a.buffer].dtype == rows_dtype(step):
        return f"{base} + row * ({out.size(a.rows)})", out.size(a.rows)
    pack = out.library.pack(kind, out.buffers[a.buffer].dtype)
    out.own("lines", real, step.k * ROWS * BYTES[step.dtype])
    out.line(
        f"{pack}(lines, {out.size(step.k)}, {base} + first * ({out.size(a.rows)}), {out.size(a.rows)}, "
        f"{out.size(a.columns)}, last - first, {out.size(step.k)});"
    )
    return f"lines + (row - first) * ({out.size(step.k)})", out.size(step.k)


def write_epilogue(out: CKernelWriter, epilogue: Map, lead: int, width: int, groups: int = 1) -> None:
    """The tile's rows, `row` and on, through the epilogue's body. `lead` loops are open already; the columns are those
    of `groups`, of which no tile has more than one."""
    *rows, column = epilogue.loops[lead:]
    out.open("for (int64_t line = 0; line < high; ++line)")
    if rows:
        out.line("const int64_t at = row + line;")
    unflatten(out, "at", rows)
    place = f"[line * {width} + {column.variable} - left]"
    code = out.statements(epilogue.body, [column.variable], f"tile{place}", beside=f"beside{place}")
    lanes = VectorEmitter(out, epilogue, code)
    if has_bytes(out, epilogue) and lanes.prepare():
        each = column.extent // groups
        _write_lanes(out, lanes, width, whole=isinstance(each, int) and each % LANES == 0)
    else:
        write_columns(out, epilogue, code, "left", "right")
    out.close()


def _write_lanes(out: CKernelWriter, lanes: VectorEmitter, width: int, whole: bool) -> None:
    """The columns by hand, where there are such vectors; those behind the last vector, if any, by a plain loop."""
    out.library.by_lanes = True
    first = "left"
    out.directive("#if IG_BY_LANES")
    if lanes.parts:
        _write_parts(out, lanes, width)
    if not whole:
        first = "beyond"
        out.line(f"const int64_t {first} = left + (right - left) / {LANES} * {LANES};")
    last, j = "right" if whole else first, lanes.column
    vectors = lanes.write()
    if lanes.uniform:  # in a block of their own: the plain loop behind them names them again
        out.open("")
        for line in lanes.code.before:
            out.line(line)
    out.open(f"for (int64_t {j} = left; {j} < {last}; {j} += {LANES})")
    for line in vectors:
        out.line(line)
    out.close()
    if lanes.uniform:
        out.close()
    out.directive("#else")
    if whole:
        write_columns(out, lanes.map, lanes.code, "left", "right")
        out.directive("#endif")
    else:
        out.line(f"const int64_t {first} = left;")
        out.directive("#endif")
        write_columns(out, lanes.map, lanes.code, first, "right")


def _write_parts(out: CKernelWriter, lanes: VectorEmitter, width: int) -> None:
    """What vectors have no operations for, by a plain loop, into lines of floats."""
    for name in lanes.parts.values():
        out.line(f"_Alignas(64) float {name}[{width}];")
    out.open("")
    given = lanes.code.given
    code = out.statements(lanes.plain_body(), [lanes.column], given["accumulator"], beside=given["second_accumulator"])
    for line in code.before:
        out.line(line)
    simd(out, False)
    out.open(f"for (int64_t {lanes.column} = left; {lanes.column} < right; ++{lanes.column})")
    for line in code.inside:
        out.line(line)
    for name, value in zip(lanes.parts.values(), code.results, strict=True):
        out.line(f"{name}[{lanes.column} - left] = {value};")
    out.close()
    out.close()


def write_columns(out: CKernelWriter, epilogue: Map, code: CBodyEmitter, first: str, last: str) -> None:
    """An epilogue's statements along its columns."""
    variable = epilogue.loops[-1].variable
    declare_flags(out, code)
    for line in code.before:
        out.line(line)
    simd(out, False, flag_clauses(code))
    out.open(f"for (int64_t {variable} = {first}; {variable} < {last}; ++{variable})")
    for line in code.inside:
        out.line(line)
    for store in epilogue.stores:
        out.line(out.store(store, code.results[store.result]))
    out.close()
    report_flags(out, code)
