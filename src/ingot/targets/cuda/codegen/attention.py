"""Attention: tiles of queries against tiles of keys, softmax as they come, never the whole matrix of scores.

Halves run on tensor cores, float32 in tiles of a thread's own sums, and float64, or what is too wide for either, a
query to each warp: all by the same functions of the step. Where there are too few queries to fill the GPU, keys are
split: each part leaves its maximum, total and sums, which a second kernel combines in order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ingot.codegen.c_expressions import SUFFIX, constant_text
from ingot.lowering.dtypes import BYTES, HALVES
from ingot.lowering.index_expr import coefficient_of, product, substitute, symbol
from ingot.lowering.loop_ir import Attention, Body, MatrixView, Op, Store
from ingot.targets.cuda.codegen.attention_kernels.body_functions import (
    BodyFunctions,
    computed_real,
    half_dtype,
    load_mode,
)
from ingot.targets.cuda.codegen.attention_kernels.box_copies import BoxCopy, find_box_copy
from ingot.targets.cuda.codegen.attention_kernels.score_functions import Slope, find_slope, hide_by_mask, is_free
from ingot.targets.cuda.codegen.attention_kernels.shapes import bulk_shape_text, shape_text, token_shape_text
from ingot.targets.cuda.codegen.kernel import WARP, CudaKernel, Grid
from ingot.targets.cuda.codegen.kernel_rules import KERNELS
from ingot.targets.cuda.codegen.kernel_writer import CudaKernelWriter
from ingot.targets.cuda.codegen.loop_kernels.loop_points import unflatten
from ingot.targets.cuda.schedule.alignment import is_multiple
from ingot.targets.cuda.schedule.attention_tiles import (
    SHARED_LIMIT,
    SIMT_THREADS,
    TOKEN_PARTS,
    WIDEST,
    WIDEST_SUMS,
    BulkTile,
    GroupTile,
    MmaTile,
    TokenTile,
    choose_mma_tile,
    choose_producer_tile,
    choose_simt_tile,
    choose_split,
    find_group_tile,
    find_token_tile,
    split_columns,
)
from ingot.targets.cuda.schedule.grouped_heads import pack_grouped_heads

# Warps of a block that has a query to each.
_WARPS = 4
# Threads of the kernel that combines parts.
_COMBINING = 128
# Operations of bodies that groups of warps have room for.
_GROUP_OPERATIONS = 64
# Operations of a score's body that need no registers of their own.
_LIGHT = frozenset({"accumulator", "index", "cast", "add", "sub", "mul", "neg"})


@KERNELS.register(Attention)
def write_attention(out: CudaKernelWriter, step: Attention) -> Sequence[CudaKernel]:
    step = hide_by_mask(pack_grouped_heads(step))
    if step.score is None and not step.scale > 0:
        # The largest product is then not the largest score.
        step = replace(step, score=Body((Op("accumulator", (), step.dtype),), (0,)))
    return _AttentionWriter(out, step).write()


class _AttentionWriter:
    """The kernels of one step."""

    def __init__(self, out: CudaKernelWriter, step: Attention) -> None:
        self.out, self.step = out, step
        extents = [*(loop.extent for loop in step.batch), step.queries]
        buffers = step.operand_buffers() | {store.buffer for store in step.epilogue.stores}
        self.type_ = out.index_type(sorted(buffers), [*extents, step.keys])
        self.real = computed_real(step.dtype)
        self.kind = SUFFIX[step.dtype]
        self.points = product([loop.extent for loop in step.batch])
        self.functions = BodyFunctions(out, self.type_, self.real)
        self.splits = 1
        # Bodies that tiles compute for places past the last one, and the slope of scores in tiles.
        self.free: frozenset[str] = frozenset()
        self.slope: Slope | None = None
        # Columns of the values that a block has sums for, and how many such parts there are.
        self.columns = split_columns(step.values) or step.values
        self.chunks = step.values // self.columns if self.columns else 1

    def write(self) -> list[CudaKernel]:
        step, out = self.step, self.out
        half = half_dtype(out, (step.q, step.k, step.v))
        narrow = 0 < step.depth <= WIDEST and self.columns <= WIDEST_SUMS
        token = self._find_token() if narrow and half is not None else None
        if half is not None and token is not None:
            return [self._write_token(half, token)]
        if narrow and half is not None:
            first = self._write_mma(half)
        elif narrow and step.dtype == "float32":
            first = self._write_simt()
        else:
            self.columns, self.chunks = step.values, 1
            return [self._write_rows()]
        return [first] if self.splits == 1 else [first, self._write_combination()]

    # ------------------------------------------------------------------ the forms

    def _write_mma(self, half: str) -> CudaKernel:
        step, out = self.step, self.out
        matrices = (("q", step.q, step.depth), ("k", step.k, step.depth), ("v", self._values(), self.columns))
        modes = [load_mode(matrix, width) for _, matrix, width in matrices]
        points, queries = out.hint(self.points * self.chunks), out.hint(step.queries)
        operations = [*self._list_operations(step.score), *self._list_operations(step.mask)]
        in_pieces = set(modes) == {"IG_PIECES"}
        bulk = self._find_bulk(half, operations) if in_pieces else None
        tile: MmaTile | GroupTile | BulkTile | None = bulk[0] if bulk is not None else None
        if tile is None and in_pieces and len(operations) <= _GROUP_OPERATIONS:
            tile = find_group_tile(step.depth, self.columns, points, queries)
        if tile is None:
            light = not step.causal and step.mask is None and all(op.name in _LIGHT for op in operations)
            gathers = any(op.name == "check" for op in operations)
            sizes = (step.depth, self.columns, points, queries, len(operations))
            tile = choose_mma_tile(*sizes, light=light, gathers=gathers)
        for header in ("attention_tile.cuh", "attention.cuh", "attention_group.cuh"):
            out.library.use(header)
        bodies = (("IG_FREE_SCORE", step.score), ("IG_FREE_MASK", step.mask))
        self.free = frozenset(name for name, body in bodies if is_free(out, body))
        self.slope = find_slope(out, step) if "IG_FREE_SCORE" in self.free else None
        # A body may read memory where it is declared; without one, the block waits where it begins to copy.
        waits_later = bulk is not None and step.score is None and step.mask is None
        grid = self._open_block(tile.rows, tile.keys, split=bulk is None, waits=not waits_later)
        names = [self.functions.declare_matrix(name, matrix) for name, matrix, _ in matrices]
        functions = self._declare_functions(pairs=True)
        scales = ", ".join(self._scales())
        if bulk is not None:
            self._call_bulk(*bulk, half, functions, scales)
            if waits_later:
                out.line("ig_wait_for_previous();")
        out.line(f"using shape = {shape_text(tile, half, step.depth, self.columns, modes)};")
        out.line(f"ig_attend<shape, {self._flags()}>({', '.join(names)}, {self._range()}, {scales},")
        out.line(f"    {', '.join(functions)});")
        if bulk is not None:
            out.line("#endif")
        self.functions.report_flags()
        plain = None
        if isinstance(tile, BulkTile):
            memory, plain = tile.memory_size(step.depth), tile.plain_memory_size(step.depth)
        else:
            memory = tile.memory_size(step.depth, self.columns)
        made = out.finish(grid, tile.threads, memory, waits=True)
        return replace(made, resident=tile.resident, plain_shared=plain)

    def _find_bulk(self, half: str, operations: Sequence[Op]) -> tuple[BulkTile, list[BoxCopy]] | None:
        """The tile for copies by maps of tensors, and these copies."""
        step, points = self.step, self.points
        queries, keys = step.queries, step.keys
        if not (isinstance(points, int) and isinstance(queries, int) and isinstance(keys, int)):
            return None
        if step.tiles is not None or step.values != step.depth or any(op.name == "check" for op in operations):
            return None
        tile = choose_producer_tile(step.depth, points, queries, keys, len(operations), causal=step.causal)
        if tile is None:
            return None
        rows = ((step.q, queries, tile.rows), (step.k, keys, tile.keys), (step.v, keys, tile.keys))
        copies = [find_box_copy(one, half, step.batch, (length, step.depth), box) for one, length, box in rows]
        found = [copy for copy in copies if copy is not None]
        return (tile, found) if len(found) == len(rows) else None

    def _call_bulk(
        self, tile: BulkTile, copies: Sequence[BoxCopy], half: str, functions: Sequence[str], scales: str
    ) -> None:
        """The text for GPUs that have such copies; that for others follows it."""
        step, out = self.step, self.out
        for header in ("async_copies.cuh", "attention_bulk.cuh"):
            out.library.use(header)
        score, mask, _kind, *results = functions
        out.line("#ifdef IG_HOPPER")
        names = [copy.declare(out, f"copy_{name}") for copy, name in zip(copies, "qkv", strict=True)]
        out.line(f"using shape = {bulk_shape_text(tile, half, step.depth)};")
        sizes = f"({self.type_})({out.size(step.queries)}), first, end"
        out.line(f"ig_attend_bulk<shape, {self._flags()}>({', '.join(names)}, {sizes}, {scales},")
        out.line(f"    {', '.join([score, mask, *results])});")
        out.line("#else")

    def _find_token(self) -> TokenTile | None:
        """The tile for few queries, whose keys a cluster of blocks shares."""
        step, out = self.step, self.out
        modes = {load_mode(matrix, step.depth) for matrix in (step.q, step.k, step.v)}
        if step.causal or step.tiles is not None or step.values != step.depth or modes != {"IG_PIECES"}:
            return None
        if not isinstance(step.queries, int):
            return None
        sizes = (step.depth, out.hint(self.points), step.queries, out.hint(step.keys))
        return find_token_tile(*sizes, is_static=isinstance(step.keys, int))

    def _write_token(self, half: str, tile: TokenTile) -> CudaKernel:
        step, out, type_ = self.step, self.out, self.type_
        for header in ("vectors.cuh", "attention_tile.cuh", "async_copies.cuh", "attention_token.cuh"):
            out.library.use(header)
        out.line("ig_start_next();")  # the product behind it asks for its weights meanwhile
        out.line("ig_wait_for_previous();")
        out.line(f"const {type_} o = ({type_})blockIdx.x / {TOKEN_PARTS};")
        out.line(f"const int part = (int)(blockIdx.x % {TOKEN_PARTS});")
        unflatten(out, "o", type_, step.batch)
        self.functions.declare_flags()
        matrices = (("q", step.q), ("k", step.k), ("v", step.v))
        names = [self.functions.declare_matrix(name, matrix) for name, matrix in matrices]
        score, mask, _kind, *results = self._declare_functions()
        scale, factor, _unit = self._scales()
        out.line(f"using shape = {token_shape_text(tile, half, step.depth)};")
        out.open("if (part < shape::parts)")
        keys = f"({type_})({out.size(step.keys)}), part"
        out.line(f"ig_attend_token<shape, {self._flags()}>({', '.join(names)}, {keys}, {scale}, {factor},")
        out.line(f"    {', '.join([score, mask, *results])});")
        out.close()
        self.functions.report_flags()
        made = out.finish(Grid(self.points * TOKEN_PARTS), tile.threads, tile.memory_size(step.depth), waits=True)
        return replace(made, cluster=TOKEN_PARTS)

    def _list_operations(self, body: Body | None) -> list[Op]:
        """What a body computes for each pair."""
        if body is None:
            return []
        levels = self.out.statements(body, ["i", "j"]).levels
        return [op for op, level in zip(body.ops, levels, strict=True) if level]

    def _write_simt(self) -> CudaKernel:
        step, out = self.step, self.out
        tile = choose_simt_tile(step.depth, self.columns)
        for header in ("attention_tile.cuh", "attention_simt.cuh"):
            out.library.use(header)
        grid = self._open_block(tile.rows, tile.keys)
        elements, functions = self._declare_elements(), self._declare_functions()
        out.line(f"using shape = ig_simt_shape<{tile.rows}, {tile.keys}, {step.depth}, {self.columns}>;")
        out.line(
            f"ig_attend_simt<shape, {self._flags()}>({', '.join(elements)}, {self._range()}, {self._scale()}, exp,"
        )
        out.line(f"    {', '.join(functions)});")
        self.functions.report_flags()
        return out.finish(grid, SIMT_THREADS, tile.memory_size(step.depth, self.columns), waits=True)

    def _write_rows(self) -> CudaKernel:
        step, out = self.step, self.out
        for header in ("attention_tile.cuh", "attention_simt.cuh"):
            out.library.use(header)
        each = (step.values + WARP) * BYTES[step.dtype]
        warps = _WARPS if each * _WARPS <= SHARED_LIMIT else 1
        grid = self._open_block(warps, WARP, split=False)
        elements, functions = self._declare_elements(), self._declare_functions()
        out.line(f"const {self.type_} own = first + ig_warp();")
        limit = "(own + 1 < end ? own + 1 : end)" if step.causal else "end"
        infinity = constant_text(math.inf, step.dtype)
        out.open(f"if (own < ({self.type_})({out.size(step.queries)}))")
        out.line(
            f"ig_attend_rows<{self.real}, {self._flags()}>({', '.join(elements)}, {step.depth}, {step.values}, own, "
            f"begin, {limit}, {self._scale()}, {infinity}, exp,"
        )
        out.line(f"    {', '.join(functions)});")
        out.close()
        self.functions.report_flags()
        return out.finish(grid, warps * WARP, each * warps, waits=True)

    # ------------------------------------------------------------------ their parts

    def _open_block(self, rows: int, keys: int, *, split: bool = True, waits: bool = True) -> Grid:
        """Declares a block's queries, `first` on, and keys, `begin` to `end`, and its point of the batch, `o`."""
        step, out, type_ = self.step, self.out, self.type_
        if split:
            sizes = out.hint(self.points * self.chunks), out.hint(step.queries)
            self.splits = choose_split(*sizes, rows, out.hint(step.keys))
        blocks = (step.queries + rows - 1) // rows
        if waits:
            out.line("ig_wait_for_previous();")
        out.line(f"const {type_} blocks = {out.size(blocks)}, task = ({type_})blockIdx.x / blocks / {self.chunks};")
        if self.chunks > 1:
            out.line(f"const {type_} base = ({type_})blockIdx.x / blocks % {self.chunks} * {self.columns};")
        # The last queries have the most keys to see, where later ones are hidden: they begin first.
        number = f"({type_})blockIdx.x % blocks"
        out.line(f"const {type_} first = ({f'blocks - 1 - {number}' if step.causal else number}) * {rows};")
        out.line(f"const {type_} o = task / {self.splits};")
        unflatten(out, "o", type_, step.batch)
        limit = f"({type_})({out.size(step.keys)})"
        if step.causal:
            limit = f"(first + {rows} < {limit} ? first + {rows} : {limit})"
        out.line(f"const {type_} limit = {limit};")
        if self.splits == 1:
            out.line(f"const {type_} begin = 0, end = limit;")
        else:
            share = f"(limit + {keys * self.splits - 1}) / {keys * self.splits} * {keys}"
            out.line(f"const {type_} part = task % {self.splits}, share = {share};")
            out.line(f"const {type_} begin = part * share < limit ? part * share : limit;")
            out.line(f"const {type_} end = begin + share < limit ? begin + share : limit;")
        self.functions.declare_flags()
        return Grid(self.points * blocks * self.splits * self.chunks)

    def _range(self) -> str:
        return f"({self.type_})({self.out.size(self.step.queries)}), first, begin, end"

    def _flags(self) -> str:
        step = self.step
        named = (("IG_SCORE", step.score), ("IG_MASK", step.mask), ("IG_BLOCKS", step.tiles))
        flags = [name for name, one in named if one is not None] + ["IG_CAUSAL"] * step.causal + sorted(self.free)
        return " | ".join(flags) or "0"

    def _scale(self) -> str:
        return constant_text(self.step.scale, self.step.dtype)

    def _scales(self) -> tuple[str, str, str]:
        """What products are multiplied with to be scores; what these are, to be exponents of 2; and what a maximum of
        them is multiplied with to be a score."""
        step = self.step
        log2e = 1 / math.log(2)
        if step.score is None or self.slope is not None:
            return "1.0f", constant_text(step.scale * log2e, "float32"), self._scale()
        return self._scale(), constant_text(log2e, "float32"), "1.0f"

    def _declare_elements(self) -> list[str]:
        step, out = self.step, self.out
        exp = f"ig_exp_{self.kind}"
        out.library.functions.add(exp)
        out.line(f"const auto exp = [](const {self.real} x) -> {self.real} {{ return {exp}(x); }};")
        matrices = (("load_q", step.q), ("load_k", step.k), ("load_v", self._values()))
        return [self.functions.declare_elements(name, matrix) for name, matrix in matrices]

    def _declare_functions(self, *, pairs: bool = False) -> list[str]:
        step, made = self.step, self.functions
        names = [
            made.declare_score(step, self.slope)
            if "IG_FREE_SCORE" in self.free
            else made.declare_body("score", step.score, ["acc"], self.real, "s"),
            made.declare_body("mask", step.mask, [], "int", "m"),
            made.declare_kinds(step.tiles),
        ]
        if self.splits > 1:
            self._declare_parts()
        else:
            self._declare_results()
        if pairs:
            self._declare_pairs()
        results = ["row", "cells" if pairs else "cell"]
        return [*names, *(self._declare_chunk(*results) if self.chunks > 1 else results)]

    def _values(self) -> MatrixView:
        """The values' columns that a block has sums for."""
        v = self.step.v
        return v if self.chunks == 1 else replace(v, offset=v.offset + symbol("base") * v.columns)

    def _declare_chunk(self, row: str, cells: str) -> list[str]:
        """The functions of results for a part of the columns, of which the first stores what there is once per row."""
        out, type_, real = self.out, self.type_, self.real
        numbers = f"const {real} top, const {real} total, const bool leads"
        out.open(f"const auto chunk_row = [&](const {type_} i, {numbers}) -> {real}")
        out.line(f"return {row}(i, top, total, leads && base == 0);")
        self.functions.end()
        given = ["a", "b"] if cells == "cells" else ["a"]
        declared = ", ".join(f"const {real} {name}" for name in given)
        out.open(f"const auto chunk_cells = [&](const {type_} i, const {type_} column, {declared})")
        out.line(f"{cells}(i, column + base, {', '.join(given)});")
        self.functions.end()
        return ["chunk_row", "chunk_cells"]

    # ------------------------------------------------------------------ results

    def _declare_results(self) -> None:
        """What a query's maximum and total are stored as, and the epilogue at one element."""
        step, out, type_, real = self.step, self.out, self.type_, self.real
        out.open(
            f"const auto row = [&](const {type_} i, const {real} top, const {real} total, const bool leads) -> {real}"
        )
        if step.lse is not None:
            out.library.functions.add(f"ig_log_{self.kind}")
        for store, text in ((step.lse, f"top + ig_log_{self.kind}(total)"), (step.top, "top")):
            if store is not None:
                # Of no key at all: log 0.
                out.line(f"if (leads) {{ {out.store(store, f'(total == 0 ? top : {text})')} }}")
        # A query whose keys are all hidden has a total of 0: its result is 0, as torch has it.
        out.line("return total == 0 ? 0 : 1 / total;")
        self.functions.end()
        epilogue = step.epilogue
        *rows, column = epilogue.loops[len(step.batch) :]
        parameters = f"const {type_} at, const {type_} {column.variable}"
        code = self.functions.note(out.statements(epilogue.body, ["at", column.variable], prefix="e"))
        out.open(f"const auto cell = [&]({parameters}, const {real} acc)")
        unflatten(out, "at", type_, rows)
        for line in (*code.before, *code.between, *code.inside):
            out.line(line)
        for store in epilogue.stores:
            given = code.empty_dims(store.index)
            guard = f"if ({' && '.join(given)}) " if given else ""
            out.line(f"{guard}{out.store(store, code.results[store.result])}")
        self.functions.end()

    def _declare_pairs(self) -> None:
        """Two sums of a row: stored as one word, where the epilogue stores 16-bit elements side by side."""
        out, type_, values = self.out, self.type_, self.step.values
        parameters = f"const {type_} at, const {type_} column, const float a, const float b"
        store = self._word_store() if self.splits == 1 else None
        if store is not None:
            self._declare_value(store)
        out.open(f"const auto cells = [&]({parameters})")
        if store is not None:
            dtype = out.buffers[store.buffer].dtype
            pack = "ig_pack_bf16" if dtype == "bfloat16" else "ig_pack_f16"
            *rows, last = self.step.epilogue.loops[len(self.step.batch) :]
            unflatten(out, "at", type_, rows)
            out.line(f"const {type_} {last.variable} = column;")
            out.line(f"uint32_t *const word = (uint32_t *)({out.pointer(store.buffer)} + ({out.size(store.index)}));")
            out.line(f"*word = {pack}(value(at, column, a), value(at, column + 1, b));")
        else:
            out.line("cell(at, column, a);")
            out.line(f"{f'if (column + 1 < {values}) ' if values % 2 else ''}cell(at, column + 1, b);")
        self.functions.end()

    def _word_store(self) -> Store | None:
        """The epilogue's one store, if two columns of it are one word."""
        epilogue = self.step.epilogue
        column = epilogue.loops[-1].variable
        if len(epilogue.stores) != 1 or self.step.values % 2:
            return None
        (store,) = epilogue.stores
        if store.mode != "set" or self.out.buffers[store.buffer].dtype not in HALVES:
            return None
        if any(op.name == "check" for op in epilogue.body.ops) or coefficient_of(store.index, column) != 1:
            return None
        return store if is_multiple(substitute(store.index, {column: 0}), 2) else None

    def _declare_value(self, store: Store) -> None:
        """The epilogue's result. What is rounded where it is stored need not be rounded before."""
        out, type_, epilogue = self.out, self.type_, self.step.epilogue
        *rows, column = epilogue.loops[len(self.step.batch) :]
        body, result = epilogue.body, epilogue.body.results[store.result]
        last = body.ops[result]
        if last.name == "cast" and last.attribute == out.buffers[store.buffer].dtype:
            (operand,) = last.operands
            result = operand if body.ops[operand].dtype == "float32" else result
        code = self.functions.note(
            out.statements(Body(body.ops, (result,)), ["at", column.variable], accumulator="acc", prefix="e")
        )
        out.open(f"const auto value = [&](const {type_} at, const {type_} {column.variable}, const float acc) -> float")
        unflatten(out, "at", type_, rows)
        for line in (*code.before, *code.between, *code.inside):
            out.line(line)
        out.line(f"return {code.results[0]};")
        self.functions.end()

    # ------------------------------------------------------------------ parts

    def _declare_parts(self) -> None:
        """Where a part leaves its maximum, total and sums: by part, point and query."""
        step, out, type_ = self.step, self.out, self.type_
        slots = self.points * step.queries
        numbers = [out.scratch.reserve(slots * self.splits * BYTES["float32"]) for _ in range(2)]
        sums = out.scratch.reserve(slots * self.splits * step.values * BYTES["float32"])
        self.parts = (*numbers, sums)
        tops, totals, at = (out.scratch_pointer(name, "float", written=True) for name in self.parts)
        out.line(f"const int64_t slot = ((int64_t)part * ({out.size(self.points)}) + o) * ({out.size(step.queries)});")
        out.open(
            f"const auto row = [&](const {type_} i, const float top, const float total, const bool leads) -> float"
        )
        out.line(f"if (leads) {tops}[slot + i] = top, {totals}[slot + i] = total;")
        out.line("return 1;")
        self.functions.end()
        out.open(f"const auto cell = [&](const {type_} i, const {type_} column, const float sum)")
        out.line(f"{at}[(slot + i) * {step.values} + column] = sum;")
        self.functions.end()

    def _write_combination(self) -> CudaKernel:
        """A query to each block: its parts in order, then what follows."""
        step, out, type_, splits = self.step, self.out.next_kernel(), self.type_, self.splits
        self.out, self.functions, self.splits = out, BodyFunctions(out, type_, self.real), 1
        out.library.functions.add("ig_exp_f32")
        tops, totals, at = (out.scratch_pointer(name, "float") for name in self.parts)
        out.line("ig_wait_for_previous();")
        out.line(f"const {type_} task = ({type_})blockIdx.x, query = task % ({out.size(step.queries)});")
        out.line(f"const {type_} o = task / ({out.size(step.queries)});")
        out.line(f"const int64_t slots = (int64_t)({out.size(self.points)}) * ({out.size(step.queries)});")
        unflatten(out, "o", type_, step.batch)
        self.functions.declare_flags()
        self._declare_results()
        out.line("float top = -INF_F32, total = 0;")
        out.line(f"for (int part = 0; part < {splits}; ++part) top = ig_max_nan(top, {tops}[part * slots + task]);")
        out.line("const float from = top == -INF_F32 ? 0.0f : top;")
        out.line("float *const weights = (float *)ig_shared();")
        part = "(int)threadIdx.x"
        out.line(f"if ({part} < {splits}) weights[{part}] = ig_exp_f32({tops}[{part} * slots + task] - from);")
        out.line("__syncthreads();")
        out.line(f"for (int part = 0; part < {splits}; ++part) total += weights[part] * {totals}[part * slots + task];")
        out.line("ig_start_next();")
        out.line("const float share = row(query, top, total, threadIdx.x == 0);")
        out.open(f"for (int column = (int)threadIdx.x; column < {step.values}; column += {_COMBINING})")
        out.line("float sum = 0;")
        out.line(
            f"for (int part = 0; part < {splits}; ++part) "
            f"sum += weights[part] * {at}[(part * slots + task) * {step.values} + column];"
        )
        out.line(f"cell(query, ({type_})column, sum * share);")
        out.close()
        self.functions.report_flags()
        return out.finish(Grid(self.points * step.queries), _COMBINING, splits * BYTES["float32"], waits=True)
