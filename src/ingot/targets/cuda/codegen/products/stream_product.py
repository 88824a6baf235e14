"""Products of few rows whose weights are copied ahead through shared memory (cu/gemm_stream.cuh)."""

from __future__ import annotations

from dataclasses import replace

from ingot.lowering.loop_ir import MatrixView
from ingot.targets.cuda.codegen.kernel import CudaKernel, Grid
from ingot.targets.cuda.codegen.kernel_writer import CudaKernelWriter
from ingot.targets.cuda.codegen.products.epilogue import index_type, write_finish
from ingot.targets.cuda.codegen.products.tile_product import use_headers
from ingot.targets.cuda.schedule.statements import TiledGemm
from ingot.targets.cuda.schedule.streams import THREADS, WARPS, StreamPlan, plan_stream

_MULTIPLY = {"bfloat16": "ig_mma_bf16", "float16": "ig_mma_f16"}
# Blocks of a multiprocessor that there are registers for: of this kernel, and of the next one.
_RESIDENT = 2


def write_stream(out: CudaKernelWriter, step: TiledGemm) -> CudaKernel:
    use_headers(out)
    out.library.use("async_copies.cuh")
    out.library.use("gemm_stream.cuh")
    assert isinstance(step.m, int) and isinstance(step.n, int) and isinstance(step.k, int)
    plan = plan_stream(step.m, step.n, step.k)
    type_ = index_type(out, step)
    _declare_stream(out, step, plan, type_)
    out.line("stream.set_up();")
    out.line("ig_start_next();")
    out.line(f"if (ig_warp() == {WARPS}) stream.ask({plan.slots});")
    out.line("ig_wait_for_previous();")
    place = len(out.lines)
    row = f"{_start(out, step.a)}, {out.size(step.a.rows)}, {step.k}"
    out.line(f"ig_keep_rows<{step.m}>(x, {plan.pitch}, {row});")
    write_finish(out, step, type_, 1, row="line", column="first + place", ahead=True)
    _write_end(out, step, plan)
    out.lines[place:place] = _follow_wait(out)
    return replace(out.finish(Grid(plan.blocks), THREADS, plan.shared, waits=True), resident=_RESIDENT)


def _declare_stream(out: CudaKernelWriter, step: TiledGemm, plan: StreamPlan, type_: str) -> None:
    """The lines of a block, and its shared memory."""
    out.line(f"const {type_} first = ({type_})((int64_t)blockIdx.x * {step.n} / {plan.blocks});")
    out.line(f"const int count = (int)((int64_t)(blockIdx.x + 1) * {step.n} / {plan.blocks} - first);")
    line = out.size(step.b.columns)
    start = f"{_start(out, step.b)} + (int64_t)first * {line}"
    out.line(
        f"ig_line_stream<{step.m}, {plan.slots}, {plan.terms}, false> stream({start}, {line}, 0, count, {step.k});"
    )
    out.line(f"char *const x = ig_shared() + {plan.x};")
    out.line(f"float *const sums_of = (float *)(ig_shared() + {plan.sums});")


def _write_end(out: CudaKernelWriter, step: TiledGemm, plan: StreamPlan) -> None:
    """What the epilogue reads is asked for before the sums are there."""
    out.line(f"const int own = (int)threadIdx.x, total = {step.m} * count;")
    out.line("loaded given;")
    out.line("if (own < total) given = fetch(own / count, own % count);")
    out.line("__syncthreads();")
    multiply = _MULTIPLY[out.buffers[step.a.buffer].dtype]
    out.line(f"if (ig_warp() == {WARPS}) stream.ask(1 << 30);")
    out.line(f"else stream.use<{multiply}>(x, {plan.pitch}, sums_of);")
    out.line("__syncthreads();")
    out.open(f"for (int i = own; i < total; i += {THREADS})")
    out.line("const int line = i / count, place = i % count;")
    out.line("const float sum = stream.find_sum(sums_of, line, place, false);")
    out.line("finish(line, place, &sum, i == own ? given : fetch(line, place));")
    out.close()


def _follow_wait(out: CudaKernelWriter) -> list[str]:
    """Reads through pointers that promise constant memory would not stay behind the wait: only weights are."""
    lines = []
    for buffer, name in out.pointers.items():
        is_weight = buffer in out.buffers and out.buffers[buffer].kind == "weight"
        if buffer not in out.written and not is_weight:
            lines.append(f"    {name} = ig_pointer_after({name});")
    return lines


def _start(out: CudaKernelWriter, view: MatrixView) -> str:
    return f"{out.pointer(view.buffer)} + ({out.size(view.offset)})"
