"""Attention: tiles of queries against tiles of keys, softmax as they come, never the whole matrix of scores.

Halves run on tensor cores, float32 in tiles of a thread's own sums, and float64, or what is too wide for either, a
query to each warp: all by the same functions of the step. Where there are too few queries to fill the GPU, keys are
split: each part leaves its maximum, total and sums, which a second kernel combines in order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ingot.codegen.c_expressions import constant_text
from ingot.lowering.dtypes import BYTES
from ingot.lowering.loop_ir import Attention, Body, Op
from ingot.targets.cuda.codegen.attention_kernels.attention_writer import AttentionWriter, prepare_attention
from ingot.targets.cuda.codegen.attention_kernels.body_functions import BodyFunctions, half_dtype, load_mode
from ingot.targets.cuda.codegen.attention_kernels.box_copies import BoxCopy, find_box_copy
from ingot.targets.cuda.codegen.attention_kernels.score_functions import find_slope, is_free
from ingot.targets.cuda.codegen.attention_kernels.shapes import bulk_shape_text, shape_text, token_shape_text
from ingot.targets.cuda.codegen.kernel import WARP, CudaKernel, Grid
from ingot.targets.cuda.codegen.kernel_rules import KERNELS
from ingot.targets.cuda.codegen.kernel_writer import CudaKernelWriter
from ingot.targets.cuda.codegen.loop_kernels.loop_points import unflatten
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
)

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
    return _KernelForms(out, prepare_attention(step)).write()


class _KernelForms(AttentionWriter):
    """The kernels of one step."""

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
            gathers = any(op.name == "bounds_check" for op in operations)
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
        if step.tiles is not None or step.values != step.depth or any(op.name == "bounds_check" for op in operations):
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
