"""Products of few rows whose weights are copied ahead through shared memory (cu/gemm_stream.cuh).

With a row before it, each block computes that into shared memory while its first weights are on their way; with a gate,
a block has two halves of the columns, and gives a sum of each to `finish`.
"""

from __future__ import annotations

from dataclasses import replace

from ingot.codegen.c_expressions import STORED
from ingot.lowering.dependence import reads_and_writes
from ingot.lowering.dtypes import BYTES
from ingot.lowering.index_expr import Size
from ingot.lowering.loop_ir import LoopNest, Map, MatrixView
from ingot.targets.cuda.codegen.kernel import CudaKernel, Grid
from ingot.targets.cuda.codegen.kernel_writer import CudaKernelWriter
from ingot.targets.cuda.codegen.loop_kernels.loop_nests import write_row
from ingot.targets.cuda.codegen.loop_kernels.loop_points import loop_type, store_results, unflatten
from ingot.targets.cuda.codegen.products.epilogue import index_type, write_finish
from ingot.targets.cuda.codegen.products.tile_product import use_headers
from ingot.targets.cuda.schedule.statements import StreamedGemm, TiledGemm
from ingot.targets.cuda.schedule.streamed_groups import place_of
from ingot.targets.cuda.schedule.streams import THREADS, WARPS, StreamPlan, plan_stream

_MULTIPLY = {"bfloat16": "ig_mma_bf16", "float16": "ig_mma_f16"}
# Blocks of a multiprocessor that there are registers for: of this kernel, and of the next one.
_RESIDENT = 2
# Bytes of a weight that is fetched for the row's computation.
_MOST_FETCHED = 1 << 16


def write_stream(out: CudaKernelWriter, group: StreamedGemm) -> CudaKernel:
    use_headers(out)
    out.library.use("async_copies.cuh")
    out.library.use("gemm_stream.cuh")
    step, gate = group.product, group.gate
    assert isinstance(step.m, int) and isinstance(step.n, int) and isinstance(step.k, int)
    plan = plan_stream(step.m, step.n, step.k, pairs=gate is not None)
    type_ = _find_type(out, group)
    _declare_stream(out, step, plan, type_, pairs=gate is not None)
    out.line("stream.set_up();")
    out.line("ig_start_next();")
    out.line(f"if (ig_warp() == {WARPS}) stream.ask({plan.slots});")
    if group.row is not None:
        _fetch_weights(out, group.row)
    out.line("ig_wait_for_previous();")
    place = len(out.lines)
    if group.row is None:
        row = f"{_start(out, step.a)}, {out.size(step.a.rows)}, {step.k}"
        out.line(f"ig_keep_rows<{step.m}>(x, {plan.pitch}, {row});")
    else:
        _write_row(out, group.row, step.a.buffer)
    if gate is None:
        write_finish(out, step, type_, 1, row="line", column="first + place", ahead=True)
    else:
        _write_gate(out, step, gate, type_)
    _write_sums(out, step, plan, pairs=gate is not None)
    if group.row is not None and step.a.buffer not in group.local:
        _keep_row(out, step)
    out.lines[place:place] = _follow_wait(out)
    return replace(out.finish(Grid(plan.blocks), THREADS, plan.shared, waits=True), resident=_RESIDENT)


def _find_type(out: CudaKernelWriter, group: StreamedGemm) -> str:
    types = {index_type(out, group.product)}
    if group.gate is not None:
        read, written = reads_and_writes(group.gate)
        types.add(loop_type(out, sorted(read | written), group.gate.loops, [group.gate.body]))
    return "int64_t" if "int64_t" in types else "int"


def _declare_stream(out: CudaKernelWriter, step: TiledGemm, plan: StreamPlan, type_: str, *, pairs: bool) -> None:
    """The lines of a block, and its shared memory."""
    assert isinstance(step.n, int)
    lines = step.n // 2 if pairs else step.n
    out.line(f"const {type_} first = ({type_})((int64_t)blockIdx.x * {lines} / {plan.blocks});")
    out.line(f"const int count = (int)((int64_t)(blockIdx.x + 1) * {lines} / {plan.blocks} - first);")
    line = out.size(step.b.columns)
    start = f"{_start(out, step.b)} + (int64_t)first * {line}"
    half = f"(int64_t){lines} * {line}" if pairs else "0"
    shape = f"{step.m}, {plan.slots}, {plan.terms}, {'true' if pairs else 'false'}"
    out.line(f"ig_line_stream<{shape}> stream({start}, {line}, {half}, count, {step.k});")
    out.line(f"char *const x = ig_shared() + {plan.x};")
    out.line(f"float *const sums_of = (float *)(ig_shared() + {plan.sums});")


def _write_sums(out: CudaKernelWriter, step: TiledGemm, plan: StreamPlan, *, pairs: bool) -> None:
    """The sums, each given to `finish`. What that reads is asked for before they are there."""
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
    found = [f"stream.find_sum(sums_of, line, place, {other})" for other in ("false", "true")[: 1 + pairs]]
    out.line(f"const float sums[] = {{{', '.join(found)}}};")
    out.line("finish(line, place, sums, i == own ? given : fetch(line, place));")
    out.close()


# ---------------------------------------------------------------------- the row before


def _write_row(out: CudaKernelWriter, row: LoopNest, buffer: str) -> None:
    """The one row, where the product reads it in shared memory."""
    stored = STORED[out.buffers[buffer].dtype]
    out.line(f"{stored} *const own_row = ({stored} *)x;")
    out.locals[buffer] = ("own_row", True)
    out.open("")
    write_row(out, row, THREADS)
    out.close()
    for name in (buffer, *row.local):
        del out.locals[name]
        out.written.discard(name)


def _fetch_weights(out: CudaKernelWriter, row: LoopNest) -> None:
    """They may come before the kernel before has ended, too."""
    for name in sorted(reads_and_writes(row)[0]):
        buffer = out.buffers[name]
        bytes_ = buffer.size * BYTES[buffer.dtype]
        if buffer.kind == "weight" and isinstance(bytes_, int) and bytes_ <= _MOST_FETCHED:
            out.line(f"ig_prefetch_elements({out.pointer(name)}, {bytes_});")


def _keep_row(out: CudaKernelWriter, step: TiledGemm) -> None:
    """Other steps read the row too: one block stores it."""
    out.written.add(step.a.buffer)
    to = out.pointer(step.a.buffer)
    out.open("if (blockIdx.x == 0)")
    out.open(f"for (int at = 8 * own; at < {out.size(step.k)}; at += {8 * THREADS})")
    out.line(f"ig_store<8>({to} + at, ig_load<8>((const uint16_t *)x + at));")
    out.close()
    out.close()


# ---------------------------------------------------------------------- the gate behind


def _write_gate(out: CudaKernelWriter, step: TiledGemm, gate: Map, type_: str) -> None:
    """`finish` of two sums: the epilogue of each, rounded as memory would hold it, then the gate of both."""
    (store,) = step.epilogue.stores
    *rows, column = step.epilogue.loops
    assert isinstance(step.n, int)
    half = step.n // 2
    out.line("struct loaded {};")
    out.line("const auto fetch = [](int, int) { return loaded{}; };")
    out.open("const auto finish = [&](const int line, const int place, const float *sums, loaded)")
    out.line(f"{STORED[out.buffers[store.buffer].dtype]} halves[2];")
    for number in range(2):
        out.open("")
        if rows:
            out.line(f"const {type_} at = line;")
            unflatten(out, "at", type_, rows)
        out.line(f"const {type_} {column.variable} = first + place + {number * half};")
        code = out.statements(step.epilogue.body, (), f"sums[{number}]")
        out.declare_flags(code)
        for line in (*code.before, *code.inside):
            out.line(line)
        value = out.stored_value(out.buffers[store.buffer].dtype, code.results[store.result])
        out.line(f"halves[{number}] = {value};")
        out.report_flags(code)
        out.close()
    for loop, text in zip(reversed(gate.loops), ("first + place", "line"), strict=False):
        out.line(f"const {type_} {loop.variable} = {text};")

    def find_place(buffer: str, index: Size) -> str:
        if buffer != store.buffer:
            return out.place(buffer, index)
        first = place_of(step.epilogue, store.index)
        return f"halves[{0 if place_of(gate, index) == first else 1}]"

    code = out.statements(gate.body, (), place=find_place)
    out.declare_flags(code)
    for line in (*code.before, *code.inside):
        out.line(line)
    store_results(out, gate.stores, code)
    out.report_flags(code)
    out.depth -= 1
    out.line("};")


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
