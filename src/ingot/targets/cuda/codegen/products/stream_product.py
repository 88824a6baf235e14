"""Products of few rows whose weights are copied ahead through shared memory (cu/gemm_stream.cuh).

With a row before it, each block computes that into shared memory while its first weights are on their way; with Maps of
pairs of columns behind it, a block has both columns of a pair, and `finish` gets their sums. stream_kernel.py writes
the kernel around them.
"""

from __future__ import annotations

from dataclasses import dataclass

from ingot.codegen.c_expressions import STORED
from ingot.lowering.dependence import reads_and_writes
from ingot.lowering.dtypes import BYTES
from ingot.lowering.index_expr import BodyValue, Expr, Size
from ingot.lowering.loop_body import reads
from ingot.lowering.loop_ir import LoopNest, MatrixView
from ingot.targets.cuda.codegen.attention_kernels.token_phase import TokenPhase
from ingot.targets.cuda.codegen.kernel_writer import CudaKernelWriter
from ingot.targets.cuda.codegen.loop_kernels.loop_nests import write_row
from ingot.targets.cuda.codegen.loop_kernels.loop_points import loop_type, store_results, unflatten
from ingot.targets.cuda.codegen.products.epilogue import index_type, write_finish
from ingot.targets.cuda.schedule.column_pairs import ColumnPairs, PairMap, find_pairs, is_own_column
from ingot.targets.cuda.schedule.statements import StreamedGemm, TiledGemm
from ingot.targets.cuda.schedule.streamed_groups import plan_group
from ingot.targets.cuda.schedule.streams import CONSUMERS, StreamPlan

_MULTIPLY = {"bfloat16": "ig_mma_bf16", "float16": "ig_mma_f16"}
# Bytes of a buffer that is fetched for the row's computation.
_MOST_FETCHED = 1 << 16


@dataclass(frozen=True, slots=True)
class StreamProduct:
    """One product of a kernel: its number, how it is shared out, and its pairs of columns."""

    number: int
    group: StreamedGemm
    plan: StreamPlan
    pairs: ColumnPairs | None
    type_: str

    @property
    def step(self) -> TiledGemm:
        return self.group.product

    @property
    def stream(self) -> str:
        return f"stream{self.number}"

    @property
    def lines(self) -> int:
        """What blocks share: lines, or the first ones of pairs."""
        assert isinstance(self.step.n, int)
        return self.step.n // 2 if self.pairs is not None else self.step.n


def plan_product(out: CudaKernelWriter, number: int, group: StreamedGemm) -> StreamProduct:
    pairs = find_pairs(group.gate_maps, group.product) if group.gate_maps else None
    assert not isinstance(pairs, str), pairs
    return StreamProduct(number, group, plan_group(group), pairs, _find_type(out, group))


def write_product(out: CudaKernelWriter, product: StreamProduct, flight: int, phase: TokenPhase | None = None) -> None:
    """All of a product that this block has, by the threads that do not copy; `flight` slots may be on their way behind
    its row, which may be what attention has computed."""
    group, step = product.group, product.step
    if phase is not None:
        phase.write_row("x")
    elif group.row is None:
        row = f"{_start(out, step.a)}, {out.size(step.a.rows)}, {step.k}"
        out.line(f"ig_keep_rows<{step.m}>(x, {product.plan.pitch}, {row});")
    else:
        fetch_row(out, group.row, weights=False)
        _write_row(out, group.row, step.a.buffer)
    out.line(f"ring.allow({flight});")
    open_blocks(out, product)
    out.line(f"const int first = {product.stream}.first, count = {product.stream}.count;")
    if product.pairs is None:
        write_finish(out, step, product.type_, 1, row="line", column="first + place", ahead=True)
    else:
        _write_pairs(out, step, product.pairs, product.type_)
    _write_sums(out, product)
    out.close()
    out.locals.clear()
    if group.row is not None and step.a.buffer not in group.local:
        _keep_row(out, step)


def _find_type(out: CudaKernelWriter, group: StreamedGemm) -> str:
    types = {index_type(out, group.product)}
    for one in group.gate_maps:
        read, written = reads_and_writes(one)
        types.add(loop_type(out, sorted(read | written), one.loops, [one.body]))
    return "int64_t" if "int64_t" in types else "int"


def declare_stream(out: CudaKernelWriter, product: StreamProduct) -> None:
    """A product's weights."""
    step = product.step
    half = 0 if product.pairs is None else product.pairs.half
    weights = f"{_start(out, step.b)}, {out.size(step.b.columns)}"
    out.line(f"ig_line_stream<{step.m}, {half}, {step.k}, ring_type> {product.stream}(ring, {weights});")


def open_blocks(out: CudaKernelWriter, product: StreamProduct) -> None:
    """A loop over those of the product's blocks that this block is for."""
    blocks = product.plan.blocks
    out.open(f"for (int block = (int)blockIdx.x; block < {blocks}; block += (int)gridDim.x)")
    out.line(f"{product.stream}.take(block, {blocks}, {product.lines});")


def _write_sums(out: CudaKernelWriter, product: StreamProduct) -> None:
    """The sums, one or a pair given to `finish`. What that reads is asked for before they are there."""
    step, stream = product.step, product.stream
    out.line(f"const int own = (int)threadIdx.x, total = {step.m} * count;")
    out.line("loaded given;")
    out.line("if (own < total) given = fetch(own / count, own % count);")
    out.line(out.wait_for_block)
    multiply = _MULTIPLY[out.buffers[step.a.buffer].dtype]
    out.line(f"{stream}.use<{multiply}>(x, {product.plan.pitch}, sums_of);")
    out.line(out.wait_for_block)
    out.open(f"for (int i = own; i < total; i += {CONSUMERS})")
    out.line("const int line = i / count, place = i % count;")
    each = 1 if product.pairs is None else 2
    found = [f"{stream}.find_sum(sums_of, line, place, {other})" for other in ("false", "true")[:each]]
    out.line(f"const float sums[] = {{{', '.join(found)}}};")
    out.line("finish(line, place, sums, i == own ? given : fetch(line, place));")
    out.close()


# ---------------------------------------------------------------------- the row before


def _write_row(out: CudaKernelWriter, row: LoopNest, buffer: str) -> None:
    """The one row, where the product, and what is behind it, reads it in shared memory."""
    stored = STORED[out.buffers[buffer].dtype]
    out.line(f"{stored} *const own_row = ({stored} *)x;")
    out.locals[buffer] = ("own_row", True)
    out.open("")
    write_row(out, row, CONSUMERS)
    out.close()
    out.written -= {buffer, *row.local}


def fetch_row(out: CudaKernelWriter, row: LoopNest, *, weights: bool) -> None:
    """What the row is computed of: weights may come before the kernel before has ended, the rest at once behind it."""
    for name in sorted(reads_and_writes(row)[0] - set(row.local)):
        buffer = out.buffers[name]
        bytes_ = buffer.size * BYTES[buffer.dtype]
        if (buffer.kind == "weight") == weights and isinstance(bytes_, int) and bytes_ <= _MOST_FETCHED:
            out.line(f"ig_prefetch_elements({out.pointer(name)}, {bytes_});")


def _keep_row(out: CudaKernelWriter, step: TiledGemm) -> None:
    """Other steps read the row too: one block stores it."""
    out.written.add(step.a.buffer)
    to = out.pointer(step.a.buffer)
    out.open("if (blockIdx.x == 0)")
    out.open(f"for (int at = 8 * (int)threadIdx.x; at < {out.size(step.k)}; at += {8 * CONSUMERS})")
    out.line(f"ig_store<8>({to} + at, ig_load<8>((const uint16_t *)x + at));")
    out.close()
    out.close()


# ---------------------------------------------------------------------- pairs of columns behind


def _write_pairs(out: CudaKernelWriter, step: TiledGemm, pairs: ColumnPairs, type_: str) -> None:
    """`finish` of two sums: the epilogue of each, rounded as memory would hold it, then the Maps of both."""
    (store,) = step.epilogue.stores
    *rows, column = step.epilogue.loops
    dtype = out.buffers[store.buffer].dtype
    begin = f"const {type_} begin = ig_find_line<{pairs.half}>(first + place);"
    out.line("struct loaded {};")
    out.open("const auto fetch = [&](const int line, const int place)")
    out.line(begin)
    for pair in pairs.maps:
        _prefetch(out, pair, store.buffer, type_)
    out.line("return loaded{};")
    out.depth -= 1
    out.line("};")
    out.open("const auto finish = [&](const int line, const int place, const float *sums, loaded)")
    out.line(begin)
    out.line(f"{STORED[dtype]} halves[2];")
    out.line("#pragma unroll")
    out.open("for (int w = 0; w < 2; ++w)")
    if rows:
        out.line(f"const {type_} at = line;")
        unflatten(out, "at", type_, rows)
    out.line(f"const {type_} {column.variable} = begin + w * {pairs.half};")
    code = out.statements(step.epilogue.body, (), "sums[w]")
    out.declare_flags(code)
    for line in (*code.before, *code.inside):
        out.line(line)
    out.line(f"halves[w] = {out.stored_value(dtype, code.results[store.result])};")
    out.report_flags(code)
    out.close()
    for pair in pairs.maps:
        _write_pair_map(out, pair, step, pairs.half, type_)
    out.depth -= 1
    out.line("};")


def _write_pair_map(out: CudaKernelWriter, pair: PairMap, step: TiledGemm, half: int, type_: str) -> None:
    """The points of a Map at a pair: its one, or those of its two columns."""
    (store,) = step.epilogue.stores

    def find_place(buffer: str, index: Size) -> str:
        if buffer != store.buffer:
            return out.place(buffer, index)
        own = is_own_column(pair, step, index)
        return f"halves[{'w' if own else '1 - w'}]"

    if pair.points == 2:
        out.open(f"if (begin >= {pair.first} && begin < {pair.first + pair.count})")
        out.line("#pragma unroll")
    out.open(f"for (int w = 0; w < {pair.points}; ++w)")
    _declare_point(out, pair, type_, f" + w * {half}")
    code = out.statements(pair.step.body, (), place=find_place)
    out.declare_flags(code)
    for line in (*code.before, *code.inside):
        out.line(line)
    store_results(out, pair.step.stores, code)
    out.report_flags(code)
    out.close()
    if pair.points == 2:
        out.close()


def _declare_point(out: CudaKernelWriter, pair: PairMap, type_: str, further: str) -> None:
    """The variables of a Map's loops at the pair."""
    loops = pair.step.loops
    if pair.points == 2:
        out.line(f"const {type_} point = begin - {pair.first}{further};")
        unflatten(out, "point", type_, loops)
        return
    for loop, text in zip(reversed(loops), ("begin", "line"), strict=False):
        out.line(f"const {type_} {loop.variable} = {text};")


def _prefetch(out: CudaKernelWriter, pair: PairMap, result: str, type_: str) -> None:
    """What a Map reads beside the product is asked for before the sums are there."""
    found = [
        out.place(load.buffer, load.index)
        for load in reads(pair.step.body)
        if load.mask is None and load.buffer not in (result, *out.locals) and not _is_computed(load.index)
    ]
    if not found:
        return
    out.open(f"if (begin >= {pair.first} && begin < {pair.first + pair.count * (2 // pair.points)})")
    _declare_point(out, pair, type_, "")
    for text in dict.fromkeys(found):
        out.line(f"ig_prefetch(&{text});")
    out.close()


def _is_computed(index: Size) -> bool:
    return isinstance(index, Expr) and any(isinstance(one, BodyValue) for one in index.symbols)


def _start(out: CudaKernelWriter, view: MatrixView) -> str:
    return f"{out.pointer(view.buffer)} + ({out.size(view.offset)})"
