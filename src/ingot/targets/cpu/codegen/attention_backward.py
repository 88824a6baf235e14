"""Attention's gradient as C: the blocks of the forward kernel once more, scores are recomputed, none is stored.

One kernel runs along queries (dq, and what a score function's tables gain), another along keys (dk, dv), so that each
sum has one owner and results do not depend on threads. In both, 48 rows of one side are packed as [depth][48]; blocks
of 64 rows of the other give scores and ∂out · v as [row][lane], the body turns them into the score's gradient and the
weight, and the same mixing that sums up values sums up the gradients.
"""

from __future__ import annotations

from collections.abc import Sequence

from ingot.codegen.c_expressions import STORED, SUFFIX, constant_text
from ingot.lowering.dtypes import BYTES
from ingot.lowering.index_expr import Size, product, symbol
from ingot.lowering.loop_ir import AttentionBackward, MatrixView, Scatter, Store
from ingot.targets.cpu.codegen.attention import KEYS as ROWS
from ingot.targets.cpu.codegen.attention import QUERIES as LANES
from ingot.targets.cpu.codegen.attention import emit_over_block, lines, read, tiles
from ingot.targets.cpu.codegen.kernel_writer import CKernelWriter, Kernel
from ingot.targets.cpu.codegen.loop_nests import declare_flags, report_flags, simd, unflatten


def gradient_kernel(out: CKernelWriter, step: AttentionBackward) -> Kernel:
    kind = SUFFIX[step.dtype]
    out.library.share("scores", kind)
    out.library.share("attention", kind)
    return (_emit_dq if step.side == "queries" else _emit_dk_dv)(out, step, kind)


def _emit_dq(out: CKernelWriter, step: AttentionBackward, kind: str) -> Kernel:
    real, blocks = STORED[step.dtype], (step.queries + LANES - 1) // LANES
    total = product([loop.extent for loop in step.batch]) * blocks
    if step.scatter:
        # A part of the tasks is one task, whatever the number of threads: it has tables of its own.
        out.open("for (int64_t part = begin; part < end; ++part)")
        share = f"({out.size(total)})"
        out.open(
            f"for (int64_t task = {share} * part / {step.parts}; task < {share} * (part + 1) / {step.parts}; ++task)"
        )
    else:
        out.open("for (int64_t task = begin; task < end; ++task)")
    out.line(f"const int64_t first = task % ({out.size(blocks)}) * {LANES};")
    out.line(f"const int64_t last = ig_min(first + {LANES}, {out.size(step.queries)}), high = last - first;")
    out.line(f"const int64_t o = task / ({out.size(blocks)});")
    unflatten(out, "o", step.batch)
    extras = [f"extra{number}" for number in range(len(step.scatter))]
    names = ", ".join(f"{name}[{ROWS} * {LANES}]" for name in ("scores", "slopes", *extras))
    out.line(f"_Alignas(64) {real} {names};")
    packed = _pack(out, step, step.q, "packed", real, step.depth, step.scale)
    given = _pack(out, step, step.gradient, "given", real, step.values)
    sums = _sums(out, step, "sums", real, step.depth)
    row = tiles(out, step.tiles, f"first / {LANES}") if step.tiles else ""
    out.line(f"const int64_t limit = {out.size(step.keys)};")
    _block(out, f"{row}[block / {ROWS}]" if row else "")
    k_lines, k_step = lines(out, step.k, "keys_", real, step.depth, step.dtype, kind)
    v_lines, v_step = lines(out, step.v, "values_", real, step.values, step.dtype, kind)
    out.line(f"ig_scores_{kind}({k_lines}, {k_step}, {packed}, {step.depth}, scores, count);")
    out.line(f"ig_scores_{kind}({v_lines}, {v_step}, {given}, {step.values}, slopes, count);")
    _bodies(out, step, "j", "i", ("slopes", *extras))
    out.line(f"ig_mix_{kind}(slopes, {k_lines}, {k_step}, count, {sums}, {step.depth}, high);")
    for scatter, extra in zip(step.scatter, extras, strict=True):
        _scatter(out, scatter, extra)
    out.close()
    _emit_stores(out, step, step.first, sums, step.depth, step.queries, step.scale)
    out.close()
    if step.scatter:
        out.close()
        return out.finish(step.parts, 1)
    return out.finish(total, 1)


def _emit_dk_dv(out: CKernelWriter, step: AttentionBackward, kind: str) -> Kernel:
    real, blocks = STORED[step.dtype], (step.keys + LANES - 1) // LANES
    image, head = step.batch
    images, heads = image.extent // step.images, head.extent // step.heads
    out.open("for (int64_t task = begin; task < end; ++task)")
    out.line(f"const int64_t first = task % ({out.size(blocks)}) * {LANES};")
    out.line(f"const int64_t last = ig_min(first + {LANES}, {out.size(step.keys)}), high = last - first;")
    out.line(f"const int64_t o = task / ({out.size(blocks)});")
    out.line(f"const int64_t from0 = o / ({out.size(heads)}) * ({out.size(step.images)});")
    out.line(f"const int64_t from1 = o % ({out.size(heads)}) * ({out.size(step.heads)});")
    names = ", ".join(f"{name}[{ROWS} * {LANES}]" for name in ("scores", "slopes", "weights"))
    out.line(f"_Alignas(64) {real} {names};")
    # No body writes the lanes past the last, but all are mixed.
    out.line(f"if (high < {LANES}) memset(weights, 0, sizeof weights);")
    bounds = (f"{image.variable} = from0, {head.variable} = from1",)
    packed = _pack(out, step, step.k, "packed", real, step.depth, step.scale, *bounds)
    given = _pack(out, step, step.v, "given", real, step.values, 1, *bounds)
    k_sums = _sums(out, step, "k_sums", real, step.depth)
    v_sums = _sums(out, step, "v_sums", real, step.values)
    out.line(f"const int64_t limit = {out.size(step.queries)};")
    for loop, start, count in ((image, "from0", step.images), (head, "from1", step.heads)):
        name = loop.variable
        out.open(f"for (int64_t {name} = {start}; {name} < {start} + ({out.size(count)}); ++{name})")
    column = ""
    if step.tiles:
        tiles(out, step.tiles, "0")
        column = f"tiles[block / {ROWS} * ({out.size(step.tiles.columns)}) + first / {LANES}]"
    _block(out, column)
    q_lines, q_step = lines(out, step.q, "queries_", real, step.depth, step.dtype, kind)
    g_lines, g_step = lines(out, step.gradient, "gradients_", real, step.values, step.dtype, kind)
    out.line(f"ig_scores_{kind}({q_lines}, {q_step}, {packed}, {step.depth}, scores, count);")
    out.line(f"ig_scores_{kind}({g_lines}, {g_step}, {given}, {step.values}, slopes, count);")
    _bodies(out, step, "i", "j", ("slopes", "weights"))
    out.line(f"ig_mix_{kind}(slopes, {q_lines}, {q_step}, count, {k_sums}, {step.depth}, high);")
    out.line(f"ig_mix_{kind}(weights, {g_lines}, {g_step}, count, {v_sums}, {step.values}, high);")
    for _ in range(3):
        out.close()
    _emit_stores(out, step, step.first, k_sums, step.depth, step.keys, step.scale)
    _emit_stores(out, step, step.second, v_sums, step.values, step.keys)
    out.close()
    return out.finish(images * heads * blocks, 1)


def _pack(
    out: CKernelWriter,
    step: AttentionBackward,
    matrix: MatrixView,
    name: str,
    real: str,
    depth: int,
    scale: float = 1,
    at: str = "",
) -> str:
    """A task's own rows as [depth][lane], zeros where there is none."""
    out.own(name, real, depth * LANES * BYTES[step.dtype])
    if at:
        out.open("")
        out.line(f"const int64_t {at};")
    value_of = read(out, matrix)
    place = f"{out.size(matrix.offset)} + (first + i) * ({out.size(matrix.rows)}) + d * ({out.size(matrix.columns)})"
    value = value_of(f"{out.pointer(matrix.buffer)}[{place}]")
    value = f"{constant_text(scale, step.dtype)} * {value}" if scale != 1 else value
    out.open(f"for (int64_t d = 0; d < {depth}; ++d)")
    out.line(f"for (int64_t i = 0; i < high; ++i) {name}[d * {LANES} + i] = {value};")
    out.line(f"for (int64_t i = high; i < {LANES}; ++i) {name}[d * {LANES} + i] = 0;")
    out.close()
    if at:
        out.close()
    return name


def _sums(out: CKernelWriter, step: AttentionBackward, name: str, real: str, wide: int) -> str:
    out.own(name, real, wide * LANES * BYTES[step.dtype])
    out.line(f"memset({name}, 0, sizeof({real}) * {wide} * {LANES});")
    return name


def _block(out: CKernelWriter, kind: str) -> None:
    """Opens the loop over blocks of rows, past those that the mask hides."""
    out.open(f"for (int64_t block = 0; block < limit; block += {ROWS})")
    if kind:
        out.line(f"const int kind = {kind};")
        out.line("if (!kind) continue;")
    out.line(f"const int64_t stop = ig_min(block + {ROWS}, limit), count = stop - block;")


def _bodies(out: CKernelWriter, step: AttentionBackward, row: str, lane: str, arrays: Sequence[str]) -> None:
    at = f"[({row} - block) * {LANES} + {lane} - first]"
    places = [name + at for name in arrays]
    spans = (row, ("block", "stop"), lane, ("first", "last"))
    if step.masked is not None:
        out.open("if (kind == 1)")
        emit_over_block(out, step.masked, *spans, places, accumulator=f"scores{at}", gradient=f"slopes{at}")
        out.close()
        out.open("else")
    emit_over_block(out, step.body, *spans, places, accumulator=f"scores{at}", gradient=f"slopes{at}")
    if step.masked is not None:
        out.close()


def _scatter(out: CKernelWriter, scatter: Scatter, extra: str) -> None:
    """Adds a block of values to a table: one by one, or, where all go to one place, their sum."""
    code = out.statements(scatter.body, ["i"], middle=["j"])
    value = f"{extra}[(j - block) * {LANES} + i - first]"
    out.open("")
    declare_flags(out, code)
    one = not code.inside and not code.between
    if one:
        out.line("double sum = 0;")
    else:
        for line in code.before:
            out.line(line)
    out.open("for (int64_t j = block; j < stop; ++j)")
    for line in code.between:
        out.line(line)
    if one:
        simd(out, False, "reduction(+:sum)")
    out.open("for (int64_t i = first; i < last; ++i)")
    for line in code.inside:
        out.line(line)
    out.line(f"sum += {value};" if one else out.store(scatter.store, f"(double){value}"))
    out.close()
    out.close()
    if one:
        for line in code.before:
            out.line(line)
        out.line(out.store(scatter.store, "sum"))
    report_flags(out, code)
    out.close()


def _emit_stores(
    out: CKernelWriter, step: AttentionBackward, name: str, sums: str, wide: int, rows: Size, scale: float = 1
) -> None:
    out.open("for (int64_t line = 0; line < high; ++line)")
    out.line("const int64_t at = first + line;")
    simd(out, False)
    out.open(f"for (int64_t d = 0; d < {wide}; ++d)")
    factor = f" * {constant_text(scale, step.dtype)}" if scale != 1 else ""
    index = (symbol("o") * rows + symbol("at")) * wide + symbol("d")
    out.line(out.store(Store(name, index, 0), f"({sums}[line * {wide} + d]{factor})"))
    out.close()
    out.close()
