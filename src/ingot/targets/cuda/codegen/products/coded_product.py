"""Products of few rows with weights of integers: a block has 16 lines, and its warps share their terms
(cu/gemm_codes.cuh)."""

from __future__ import annotations

import math

from ingot.codegen.c_expressions import STORED
from ingot.targets.cuda.codegen.kernel import WARP, CudaKernel, Grid
from ingot.targets.cuda.codegen.kernel_rules import KERNELS
from ingot.targets.cuda.codegen.kernel_writer import CudaKernelWriter
from ingot.targets.cuda.codegen.products.epilogue import index_type, write_finish
from ingot.targets.cuda.codegen.products.tile_product import use_headers, widen
from ingot.targets.cuda.schedule.quantized.gates import GatedCodes, join_coded_gate
from ingot.targets.cuda.schedule.quantized.layouts import TILE
from ingot.targets.cuda.schedule.quantized.products import PIECES, CodedGemm, count_columns
from ingot.targets.cuda.schedule.tiles import PROCESSORS
from ingot.targets.cuda.schedule.tiling import lies_along

# Warps of a block; more where there are too few blocks for all multiprocessors.
_WARPS = 8
_MOST_WARPS = 16
# Chunks that a warp has asked for at a time.
_AHEAD = 4


@KERNELS.register(CodedGemm)
def write_coded_gemm(out: CudaKernelWriter, step: CodedGemm) -> CudaKernel:
    assert not step.pairs, "a product with pairs of columns has a Map behind it"
    return _write_product(out, step, step)


@KERNELS.register(GatedCodes)
def write_gated_codes(out: CudaKernelWriter, group: GatedCodes) -> CudaKernel:
    return _write_product(out, group.steps[0], join_coded_gate(group, out.buffers))


def _write_product(out: CudaKernelWriter, step: CodedGemm, finished: CodedGemm) -> CudaKernel:
    """The kernel of a product. `finished` has its epilogue and, where that is of pairs, half its columns."""
    use_headers(out)
    out.library.use("gemm_codes.cuh")
    form, dtype, view = step.form, out.buffers[step.a.buffer].dtype, step.a
    type_ = index_type(out, finished)
    tiles, chunks, groups = -(-step.n // TILE), form.count_chunks(step.k), step.k // form.group
    warps = _count_warps(tiles, chunks)
    fragments = form.padded // TILE if groups > 1 else 0
    runs = form.chunk // TILE // math.gcd(form.chunk // TILE, fragments)  # of a chunk, with scales of their own
    ahead = min(_AHEAD if runs <= 2 else _AHEAD // 2, -(-chunks // warps))
    out.line("ig_start_next();")
    out.line(f"const {type_} first = ({type_})blockIdx.x * {TILE // 2 if step.pairs else TILE};")
    write_finish(out, finished, type_, 1, row="line", column="first + place")
    out.open("const auto give = [&](int line, int place, const float *sums)")
    out.line(f"if (first + place < {finished.n}) finish(line, place, sums, fetch(line, place));")
    out.depth -= 1
    out.line("};")
    stored = STORED[dtype]
    value = "(float)value" if dtype == "bfloat16" else widen(out, dtype, "value")  # not called where it is bfloat16
    out.line(f"const auto widen = []({stored} value) {{ return {value}; }};")
    vectors = lies_along(view, step.m, step.k, form.unit // 4, rows_first=True)
    vectors = vectors and (groups == 1 or form.group == form.padded)
    shape = f"{stored}, {form.group}, {form.padded}, {PIECES[dtype]}, {'true' if vectors else 'false'}, decltype(widen)"
    places = ", ".join(out.size(size) for size in (view.rows, view.columns))
    start = f"{out.pointer(view.buffer)} + ({out.size(view.offset)})"
    out.line(f"const ig_code_rows<{shape}> x = {{{start}, {places}, {step.m}, {step.k}, widen}};")
    numbers = [form.bits, form.unit, fragments, step.m, PIECES[dtype], warps, ahead]
    given = [_point(out, one, f"blockIdx.x * {groups * TILE}") for one in (step.scales, step.zeros)]
    has = (isinstance(step.scales, str), isinstance(step.zeros, str), step.pairs)
    flags = ", ".join("true" if one else "false" for one in has)
    constants = ", ".join(_number(one) for one in (step.scales, step.zeros))
    codes = f"{out.pointer(step.codes)} + (int64_t)blockIdx.x * {chunks * 128}"
    out.line(
        f"ig_multiply_codes<ig_code_form<{', '.join(map(str, numbers))}>, {flags}>({codes}, {', '.join(given)}, "
        f"{constants}, {chunks}, {groups}, x, give);"
    )
    columns = -(-count_columns(dtype, step.m) // 8) * 8
    return out.finish(Grid(tiles), warps * WARP, warps * TILE * columns * 4, waits=True)


def _count_warps(tiles: int, chunks: int) -> int:
    most, warps = _MOST_WARPS if tiles <= PROCESSORS else _WARPS, 1
    while warps < most and warps < chunks:
        warps *= 2
    return warps


def _point(out: CudaKernelWriter, given: str | float, offset: str) -> str:
    return f"{out.pointer(given)} + {offset}" if isinstance(given, str) else "nullptr"


def _number(given: str | float) -> str:
    return "0.0f" if isinstance(given, str) else f"{float(given).hex()}f"
