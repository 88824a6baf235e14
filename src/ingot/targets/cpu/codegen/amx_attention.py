"""Attention's two products on AMX, between the same lines of C as without it.

Queries become a panel of pairs of bfloat16, a block's keys rows of it: their product are the block's scores. After
softmax its weights become rows, the values panels, and their product is added to the sums.
"""

from __future__ import annotations

from collections.abc import Callable

from ingot.lowering.index_expr import Size
from ingot.lowering.loop_ir import Attention, MatrixView
from ingot.targets.cpu.codegen.kernel_writer import CKernelWriter
from ingot.targets.cpu.codegen.loop_nests import simd
from ingot.targets.cpu.schedule.tiles import ATTENTION_TILE, panel_width

QUERIES, KEYS = ATTENTION_TILE
# Terms of a matrix register: depth and keys are made multiples of it by zeros.
TERMS = 32

# The C text of a number that is read, as float32.
Read = Callable[[str], str]


def pack_queries(out: CKernelWriter, step: Attention, read: Read, scale: str) -> None:
    """Queries [first, last), as a panel."""
    depth, whole = step.depth, _whole(step.depth)
    _declare_library(out, QUERIES)
    out.own("rows16", "uint16_t", max(QUERIES, KEYS) * whole * 2)
    out.own("packed16", "uint32_t", QUERIES * whole * 2)
    _write_rows(out, step.q, "first", "high", depth, lambda text: scale + read(text))
    out.line(f"memset(rows16 + high * {whole}, 0, (size_t)({QUERIES} - high) * {whole * 2});")
    out.line(f"ig_amx_pack_queries(packed16, (const uint32_t *)rows16, {whole // 2});")


def write_scores(out: CKernelWriter, step: Attention, read: Read) -> None:
    """The scores of keys [block, block + count)."""
    whole = _whole(step.depth)
    _write_rows(out, step.k, "block", "count", step.depth, read)
    out.line(f"ig_tile_amx_bf16_{QUERIES}(rows16, {whole}, (const uint16_t *)packed16, {whole}, scores, count);")


def add_values(out: CKernelWriter, step: Attention, read: Read) -> None:
    """The block's weights times its values, added to the sums."""
    wide, width = step.values, panel_width(step.values)
    _declare_library(out, width)
    panels = -(-wide // width)
    out.open("")
    out.line(f"_Alignas(64) uint32_t weights16[{QUERIES * KEYS // 2}];")
    out.line(f"_Alignas(64) float mixed[{QUERIES * width}];")
    out.own("values16", "uint32_t", panels * width * KEYS * 2)
    out.line("const int64_t terms = ig_amx_weights(weights16, scores, count);")
    out.open(f"for (int64_t left = 0; left < {wide}; left += {width})")
    out.line(f"const int64_t here = ig_min({wide} - left, {width});")
    out.line(f"uint32_t *const panel = values16 + left * {KEYS // 2};")
    out.open("for (int64_t p = 0; p < terms / 2; ++p)")
    out.line("const int64_t j = block + 2 * p;")
    first, second = (read(_place(out, step.v, row, "left + d")) for row in ("j", "(j + 1)"))
    place = f"panel[p * {width} + d]"
    _write_line(out, "if (2 * p + 1 < count)", "here", f"{place} = ig_amx_pair({first}, {second});")
    _write_line(out, "else if (2 * p < count)", "here", f"{place} = ig_amx_pair({first}, 0);")
    out.line(f"else memset(panel + p * {width}, 0, {width * 4});")
    out.line(f"for (int64_t d = here; d < {width}; ++d) {place} = 0;")
    out.close()
    out.line(
        f"ig_tile_amx_bf16_{width}((const uint16_t *)weights16, {KEYS}, (const uint16_t *)panel, terms, mixed, high);"
    )
    _write_line(
        out, "for (int64_t i = 0; i < high; ++i)", "here", f"sums[i * {wide} + left + d] += mixed[i * {width} + d];"
    )
    out.close()
    out.close()


def _declare_library(out: CKernelWriter, width: int) -> None:
    out.library.functions.add("ig_f32_to_bf16")
    out.library.amx_attention = True
    out.library.share("tile", "bf16", width)
    out.library.share("tile_amx", "bf16", width)


def _write_rows(out: CKernelWriter, matrix: MatrixView, first: str, count: str, depth: int, read: Read) -> None:
    """Rows of a matrix from `first` on, as bfloat16 with zeros behind them."""
    whole = _whole(depth)
    out.open(f"for (int64_t i = 0; i < {count}; ++i)")
    value = read(_place(out, matrix, f"({first} + i)", "d"))
    simd(out, False)
    out.line(f"for (int64_t d = 0; d < {depth}; ++d) rows16[i * {whole} + d] = ig_f32_to_bf16({value});")
    if whole != depth:
        out.line(f"for (int64_t d = {depth}; d < {whole}; ++d) rows16[i * {whole} + d] = 0;")
    out.close()


def _write_line(out: CKernelWriter, head: str, count: str, statement: str) -> None:
    """The statement for each d below a number, in vectors."""
    out.open(head)
    simd(out, False)
    out.line(f"for (int64_t d = 0; d < {count}; ++d) {statement}")
    out.close()


def _place(out: CKernelWriter, matrix: MatrixView, row: str, column: str) -> str:
    at: Size = matrix.offset
    return (
        f"{out.pointer(matrix.buffer)}[({out.size(at)}) + {row} * ({out.size(matrix.rows)}) + "
        f"({column}) * ({out.size(matrix.columns)})]"
    )


def _whole(terms: int) -> int:
    return -(-terms // TERMS) * TERMS
