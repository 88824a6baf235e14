"""Attention as C: 48 queries against blocks of keys, the scores of one block at a time and never more.

A task packs its queries as [depth][48]. A block of keys then gives scores [key][query]: keys are the rows of a tile as
products have it, read where they lie. The bodies of score and mask run over the block, softmax keeps a running
maximum and total for each query, and the block's weights mix the values into sums that stay in the nearest cache. A
block that the mask hides whole costs one look at a byte; one that it shows whole is not asked about it again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ingot.codegen.c_expressions import STORED, SUFFIX, constant_text
from ingot.lowering.dtypes import BYTES
from ingot.lowering.index_expr import product
from ingot.lowering.loop_body import BodyBuilder, rewrite
from ingot.lowering.loop_ir import Attention, BlockMask, Body, ClassifyMaskBlocks, MatrixView
from ingot.targets.cpu.codegen import amx_attention as amx
from ingot.targets.cpu.codegen.gemm import write_columns
from ingot.targets.cpu.codegen.kernel_writer import CKernelWriter, Kernel
from ingot.targets.cpu.codegen.loop_nests import declare_flags, flag_clauses, report_flags, simd, unflatten
from ingot.targets.cpu.schedule.statements import AmxAttention
from ingot.targets.cpu.schedule.tiles import ATTENTION_TILE

QUERIES, KEYS = ATTENTION_TILE


def attention_kernel(out: CKernelWriter, step: Attention) -> Kernel:
    kind, real = SUFFIX[step.dtype], STORED[step.dtype]
    infinity = f"INF_{kind.upper()}"
    out.library.share("scores", kind)
    out.library.share("attention", kind)
    queries, keys = out.size(step.queries), out.size(step.keys)
    depth, wide = step.depth, step.values
    blocks = (step.queries + QUERIES - 1) // QUERIES
    out.open("for (int64_t task = begin; task < end; ++task)")
    out.line(f"const int64_t first = task % ({out.size(blocks)}) * {QUERIES};")
    out.line(f"const int64_t last = ig_min(first + {QUERIES}, {queries}), high = last - first;")
    if step.batch:
        out.line(f"const int64_t o = task / ({out.size(blocks)});")
        unflatten(out, "o", step.batch)
    out.line(f"_Alignas(64) {real} scores[{KEYS} * {QUERIES}], top[{QUERIES}], total[{QUERIES}];")
    out.own("sums", real, wide * QUERIES * BYTES[step.dtype])
    with _instead(out, step, lambda: amx.pack_queries(out, step, read(out, step.q), _scale(step))):
        _pack_queries(out, step, real)
    out.line(f"for (int i = 0; i < {QUERIES}; ++i) top[i] = -{infinity}, total[i] = 0;")
    out.line(f"memset(sums, 0, sizeof({real}) * {wide} * {QUERIES});")
    limit = f"ig_min({keys}, last)" if step.causal else keys
    out.line(f"const int64_t limit = {limit};")
    row = tiles(out, step.tiles, f"first / {QUERIES}") if step.tiles else ""
    out.open(f"for (int64_t block = 0; block < limit; block += {KEYS})")
    if row:
        out.line(f"const int kind = {row}[block / {KEYS}];")
        out.line("if (!kind) continue;")
    out.line(f"const int64_t stop = ig_min(block + {KEYS}, limit), count = stop - block;")
    with _instead(out, step, lambda: amx.write_scores(out, step, read(out, step.k))):
        k_lines, k_step = lines(out, step.k, "keys_", real, depth, step.dtype, kind)
        out.line(f"ig_scores_{kind}({k_lines}, {k_step}, packed, {depth}, scores, count);")
    _mask(out, step, infinity)
    out.line(f"ig_soften_{kind}(scores, count, top, total, sums, {wide}, high);")
    with _instead(out, step, lambda: amx.add_values(out, step, read(out, step.v))):
        v_lines, v_step = lines(out, step.v, "values_", real, wide, step.dtype, kind)
        out.line(f"ig_mix_{kind}(scores, {v_lines}, {v_step}, count, sums, {wide}, high);")
    out.close()
    _epilogue(out, step, wide)
    out.close()
    return out.finish(product([loop.extent for loop in step.batch]) * blocks, 1)


@contextmanager
def _instead(out: CKernelWriter, step: Attention, write_amx: Callable[[], None]) -> Iterator[None]:
    """Lines for machines without AMX, and others for those with it, where the step is one for AMX."""
    if isinstance(step, AmxAttention):
        out.directive("#ifdef IG_AMX")
        write_amx()
        out.directive("#else")
    yield
    if isinstance(step, AmxAttention):
        out.directive("#endif")


def _pack_queries(out: CKernelWriter, step: Attention, real: str) -> None:
    """Queries [first, last) as a panel [depth][48]."""
    out.own("packed", real, step.depth * QUERIES * BYTES[step.dtype])
    q = step.q
    value_of = read(out, q)
    out.open(f"for (int64_t d = 0; d < {step.depth}; ++d)")
    place = f"{out.size(q.offset)} + (first + i) * ({out.size(q.rows)}) + d * ({out.size(q.columns)})"
    value = _scale(step) + value_of(f"{out.pointer(q.buffer)}[{place}]")
    out.line(f"for (int64_t i = 0; i < high; ++i) packed[d * {QUERIES} + i] = {value};")
    out.line(f"for (int64_t i = high; i < {QUERIES}; ++i) packed[d * {QUERIES} + i] = 0;")
    out.close()


def _log(out: CKernelWriter, step: Attention) -> str:
    name = f"ig_log_{SUFFIX[step.dtype]}"
    if step.lse is not None:
        out.library.functions.add(name)
    return name


def _scale(step: Attention) -> str:
    return f"{constant_text(step.scale, step.dtype)} * " if step.scale != 1 else ""


def read(out: CKernelWriter, matrix: MatrixView) -> Callable[[str], str]:
    dtype = out.buffers[matrix.buffer].dtype
    name = {"bfloat16": "ig_bf16_to_f32", "float16": "ig_f16_to_f32"}.get(dtype)
    if name:
        out.library.functions.add(name)
    return (lambda text: f"{name}({text})") if name else (lambda text: text)


def lines(
    out: CKernelWriter, matrix: MatrixView, name: str, real: str, wide: int, dtype: str, kind: str
) -> tuple[str, str]:
    """The block's rows, one value after another: where they lie, or copied."""
    base = f"{out.pointer(matrix.buffer)} + ({out.size(matrix.offset)}) + block * ({out.size(matrix.rows)})"
    stored = out.buffers[matrix.buffer].dtype
    if matrix.columns == 1 and stored == dtype:
        return f"({base})", out.size(matrix.rows)
    pack = out.library.pack(kind, stored)
    out.own(name, real, wide * KEYS * BYTES[dtype])
    out.line(f"{pack}({name}, {wide}, {base}, {out.size(matrix.rows)}, {out.size(matrix.columns)}, count, {wide});")
    return name, str(wide)


def tiles(out: CKernelWriter, tiles: BlockMask, row: str) -> str:
    """Declares where a row of tiles begins."""
    out.line(
        f"const uint8_t *const tiles = {out.pointer(tiles.buffer)} + ({out.size(tiles.offset)}) + "
        f"({row}) * ({out.size(tiles.columns)});"
    )
    return "tiles"


def _mask(out: CKernelWriter, step: Attention, infinity: str) -> None:
    """The score's and the mask's body over the block: i and j are the query and the key, the accumulator is the score.

    What the mask hides gets the weight of -inf."""
    if step.causal:
        out.open("if (stop > first)")
        out.open("for (int64_t j = ig_max(block, first); j < stop; ++j)")
        out.line(
            "for (int64_t i = first; i < ig_min(j, last); ++i) "
            f"scores[(j - block) * {QUERIES} + i - first] = -{infinity};"
        )
        out.close()
        out.close()
    place = f"scores[(j - block) * {QUERIES} + i - first]"
    whole = apply_mask(step.score, step.mask, step.dtype)
    if step.mask is not None and step.tiles is not None:
        out.open("if (kind == 1)")
        emit_over_block(out, whole, "j", ("block", "stop"), "i", ("first", "last"), [place])
        out.close()
        if step.score is not None:
            out.open("else")
            emit_over_block(out, step.score, "j", ("block", "stop"), "i", ("first", "last"), [place])
            out.close()
    elif whole is not None:
        emit_over_block(out, whole, "j", ("block", "stop"), "i", ("first", "last"), [place])


def apply_mask(score: Body | None, mask: Body | None, dtype: str) -> Body | None:
    """The score where the mask holds, -inf elsewhere, as one body."""
    if mask is None:
        return score
    ops = BodyBuilder()
    value = rewrite(score, into=ops)[1][0] if score is not None else ops.emit("accumulator", (), dtype)
    (holds,) = rewrite(mask, into=ops)[1]
    return ops.finish([ops.where(holds, value, ops.const(-math.inf, dtype))])


def emit_over_block(
    out: CKernelWriter,
    body: Body | None,
    row: str,
    rows: tuple[str, str],
    lane: str,
    lanes: tuple[str, str],
    places: Sequence[str],
    accumulator: str = "",
    gradient: str = "",
) -> None:
    """The body at every pair of a block, in vectors along `lane`; its results go to `places`. What it reads as the
    accumulator is the first of these, if nothing else is named."""
    assert body is not None
    code = out.statements(body, [lane], accumulator or places[0], gradient=gradient)
    out.open(f"for (int64_t {row} = {rows[0]}; {row} < {rows[1]}; ++{row})")
    declare_flags(out, code)
    for line in code.before:
        out.line(line)
    simd(out, False, flag_clauses(code))
    out.open(f"for (int64_t {lane} = {lanes[0]}; {lane} < {lanes[1]}; ++{lane})")
    for line in code.inside:
        out.line(line)
    for place, result in zip(places, code.results, strict=True):
        out.line(f"{place} = {result};")
    out.close()
    report_flags(out, code)
    out.close()


def _epilogue(out: CKernelWriter, step: Attention, wide: int) -> None:
    epilogue = step.epilogue
    *rows, column = epilogue.loops[len(step.batch) :]
    out.open("for (int64_t line = 0; line < high; ++line)")
    if rows:
        out.line("const int64_t at = first + line;")
    unflatten(out, "at", rows)
    if step.lse or step.top:
        out.line("const int64_t i = first + line;")
    # A query whose keys are all masked away has a total of 0: its result is 0, as torch has it.
    out.line(f"const {STORED[step.dtype]} share = total[line] == 0 ? 0 : 1 / total[line];")
    for store, text in ((step.lse, "top[line] + " + _log(out, step) + "(total[line])"), (step.top, "top[line]")):
        if store is not None:
            # Of no key at all: log 0.
            out.line(out.store(store, f"(total[line] == 0 ? top[line] : {text})"))
    code = out.statements(epilogue.body, [column.variable], f"(sums[line * {wide} + {column.variable}] * share)")
    write_columns(out, epilogue, code, "0", str(wide))
    out.close()


def tiles_kernel(out: CKernelWriter, step: ClassifyMaskBlocks) -> Kernel:
    """One row of tiles a task: the mask at every pair, until a tile is known to have both kinds."""
    rows, columns = (step.queries + step.high - 1) // step.high, (step.keys + step.wide - 1) // step.wide
    table = out.pointer(step.buffer)
    out.written.add(step.buffer)
    out.open("for (int64_t task = begin; task < end; ++task)")
    out.line(f"const int64_t first = task % ({out.size(rows)}) * {step.high};")
    out.line(f"const int64_t last = ig_min(first + {step.high}, {out.size(step.queries)});")
    if step.batch:
        out.line(f"const int64_t o = task / ({out.size(rows)});")
        unflatten(out, "o", step.batch)
    out.open(f"for (int64_t tile = 0; tile < {out.size(columns)}; ++tile)")
    out.line(f"const int64_t from = tile * {step.wide}, to = ig_min(from + {step.wide}, {out.size(step.keys)});")
    out.line("int some = 0, all = 1;")
    code = out.statements(step.mask, ["i"])
    out.open("for (int64_t j = from; j < to && (all || !some); ++j)")
    declare_flags(out, code)
    out.line("int any = 0, none = 0;")
    for line in code.before:
        out.line(line)
    simd(out, False, f"reduction(|:any, none) {flag_clauses(code)}")
    out.open("for (int64_t i = first; i < last; ++i)")
    for line in code.inside:
        out.line(line)
    out.line(f"any |= {code.results[0]}, none |= !({code.results[0]});")
    out.close()
    report_flags(out, code)
    out.line("some |= any, all &= !none;")
    out.close()
    out.line(f"{table}[task * ({out.size(columns)}) + tile] = (uint8_t)(some ? 1 + all : 0);")
    out.close()
    out.close()
    return out.finish(product([loop.extent for loop in step.batch]) * rows, 1)
