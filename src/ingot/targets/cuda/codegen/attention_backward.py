"""Attention's gradient: the tiles of the forward kernel once more, scores are recomputed, none is stored.

One kernel runs along queries (dq), another along keys (dk, dv), so that each sum has one owner. Halves run on tensor
cores, float32 in tiles of a thread's own sums, all else with a row to each warp. What a score function's tables gain
is added by a kernel of its own: each part of the work is a block, whose first warp adds what all warps have computed,
in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ingot.codegen.c_expressions import constant_text
from ingot.lowering.dtypes import BYTES, HALVES
from ingot.lowering.index_expr import Size, product, symbol
from ingot.lowering.loop_ir import AttentionBackward, Body, MatrixView, Scatter, Store
from ingot.targets.cuda.codegen.attention_kernels.body_functions import (
    BodyFunctions,
    computed_real,
    half_dtype,
    load_mode,
)
from ingot.targets.cuda.codegen.kernel import WARP, CudaKernel, Grid
from ingot.targets.cuda.codegen.kernel_rules import KERNELS
from ingot.targets.cuda.codegen.kernel_writer import CudaKernelWriter
from ingot.targets.cuda.codegen.loop_kernels.loop_points import unflatten
from ingot.targets.cuda.schedule.attention_tiles import (
    SHARED_LIMIT,
    SIMT_THREADS,
    WIDEST_SUMS,
    GradientTile,
    choose_gradient_simt_tile,
    choose_gradient_tile,
)

# Warps of a block that has a row to each.
_WARPS = 8


@KERNELS.register(AttentionBackward)
def write_attention_backward(out: CudaKernelWriter, step: AttentionBackward) -> Sequence[CudaKernel]:
    half = half_dtype(out, (step.q, step.k, step.v, step.gradient))
    fits = min(step.depth, step.values) > 0 and max(step.depth, step.values) <= WIDEST_SUMS
    if half is not None and fits:
        kernels: list[CudaKernel] = []
        tile = choose_gradient_tile(step.depth, step.values, step.side)
        for results in tile.passes:
            writer = out if not kernels else out.next_kernel()
            kernels.append(_GradientWriter(writer, step).write_mma(half, tile, results))
    elif step.dtype == "float32" and fits:
        kernels = [_GradientWriter(out, step).write_simt()]
    else:
        kernels = [_GradientWriter(out, step).write_rows()]
    if step.scatter:
        kernels.append(_GradientWriter(out.next_kernel(), step).write_scatter())
    return kernels


@dataclass(frozen=True, slots=True)
class _Side:
    """The step as its kernels see it: matrices of own rows and of the others', and which results there are."""

    own: str  # the name of an own row in bodies
    other: str
    x: MatrixView
    y: MatrixView
    u: MatrixView
    w: MatrixView
    rows: Size
    others: Size


class _GradientWriter:
    """One kernel of the step."""

    def __init__(self, out: CudaKernelWriter, step: AttentionBackward) -> None:
        self.out, self.step = out, step
        if step.side == "queries":
            self.side = _Side("i", "j", step.q, step.gradient, step.k, step.v, step.queries, step.keys)
        else:
            self.side = _Side("j", "i", step.k, step.v, step.q, step.gradient, step.keys, step.queries)
        views = (step.q, step.k, step.v, step.gradient)
        buffers = {view.buffer for view in views} | {step.first, *filter(None, [step.second])}
        extents = [*(loop.extent for loop in step.batch), step.queries, step.keys]
        self.type_ = out.index_type(sorted(buffers), extents)
        self.real = computed_real(step.dtype)
        self.functions = BodyFunctions(out, self.type_, self.real)

    # ------------------------------------------------------------------ the forms

    def write_mma(self, half: str, tile: GradientTile, results: tuple[bool, bool]) -> CudaKernel:
        step, out, side, type_ = self.step, self.out, self.side, self.type_
        for header in ("attention_tile.cuh", "attention.cuh", "attention_backward.cuh"):
            out.library.use(header)
        points = self._open_block(tile.rows)
        own = ((side.x, step.depth), (side.y, step.values))
        others = ((side.u, step.depth), (side.w, step.values))
        modes = ", ".join(load_mode(matrix, width) for matrix, width in (*own, *others))
        flags = ", ".join("true" if holds else "false" for holds in (half == "bfloat16", *results))
        brain, first, second = flags.split(", ")
        numbers = f"{tile.warps}, {tile.others}, {step.depth}, {step.values}"
        out.line(f"using shape = ig_gradient_shape<{brain}, {numbers}, {first}, {second}, {modes}>;")
        out.line("shape sums;")
        out.open("")
        self._enter_group()
        names = [self.functions.declare_matrix(name, m) for name, (m, _) in zip(("x", "y"), own, strict=True)]
        out.line(f"ig_load_own<shape>({', '.join(names)}, first, rows);")
        out.close()
        self._open_points()
        names = [self.functions.declare_matrix(name, m) for name, (m, _) in zip(("u", "w"), others, strict=True)]
        functions = self._declare_functions()
        out.line(
            f"ig_differentiate<shape, {self._flags()}>(sums, {', '.join(names)}, rows, first, others, {self._scale()},"
        )
        out.line(f"    {', '.join(functions)});")
        self._close_points()
        out.line("ig_start_next();")
        widths = (("first", step.first, step.depth, step.scale), ("second", step.second, step.values, 1.0))
        for (name, buffer, width, scale), wanted in zip(widths, results, strict=True):
            if wanted:
                self._declare_cells(name, buffer, width, scale)
                out.line(f"ig_store_sums<{width}, {type_}>(sums.{name}[0], first, rows, store_{name});")
        self.functions.report_flags()
        return out.finish(points, tile.threads, tile.memory_size(step.depth, step.values), waits=True)

    def write_simt(self) -> CudaKernel:
        step, out, side, type_ = self.step, self.out, self.side, self.type_
        for header in ("attention_tile.cuh", "attention_simt.cuh", "attention_backward_simt.cuh"):
            out.library.use(header)
        tile = choose_gradient_simt_tile(step.depth, step.values)
        grid = self._open_block(tile.rows)
        second = step.side == "keys"
        numbers = f"{tile.rows}, {tile.keys}, {step.depth}, {step.values}, {'true' if second else 'false'}"
        out.line(f"using shape = ig_gradient_simt_shape<{numbers}>;")
        out.line("shape sums;")
        out.open("")
        self._enter_group()
        own = [self.functions.declare_elements(name, m) for name, m in (("x", side.x), ("y", side.y))]
        out.line(f"ig_load_own_elements<shape>({', '.join(own)}, first, rows);")
        out.close()
        self._open_points()
        others = [self.functions.declare_elements(name, m) for name, m in (("u", side.u), ("w", side.w))]
        functions = self._declare_functions()
        out.line(
            f"ig_differentiate_simt<shape, {self._flags()}>(sums, {', '.join(others)}, rows, first, others, "
            f"{self._scale()},"
        )
        out.line(f"    {', '.join(functions)});")
        self._close_points()
        out.line("ig_start_next();")
        widths = (("first", step.first, step.depth, "depth"), ("second", step.second, step.values, "values"))
        for name, buffer, width, columns in widths[: 2 if second else 1]:
            value = f"(sum * {self._scale()})" if name == "first" else "sum"
            out.open(f"const auto store_{name} = [&](const {type_} own, const {type_} d, const float sum)")
            out.line(self._store(buffer, width, value))
            self.functions.end()
            shape = f"shape::high, shape::{columns}_columns, {type_}"
            out.line(f"ig_store_elements<{shape}>(sums.{name}, first, rows, {width}, store_{name});")
        self.functions.report_flags()
        return out.finish(grid, SIMT_THREADS, tile.gradient_memory_size(step.depth, step.values), waits=True)

    def write_rows(self) -> CudaKernel:
        step, out, side, type_ = self.step, self.out, self.side, self.type_
        for header in ("attention_tile.cuh", "attention_backward_rows.cuh"):
            out.library.use(header)
        second = step.side == "keys"
        each = step.depth + (step.values if second else 0) + 2 * WARP
        warps = _WARPS if each * _WARPS * BYTES[step.dtype] <= SHARED_LIMIT else 1
        grid = self._open_block(warps)
        out.line(f"const {type_} own = first + ig_warp();")
        out.open("if (own < rows)")
        out.line(f"{self.real} *const sums = ({self.real} *)ig_shared() + ig_warp() * {each};")
        out.line(f"for (int n = ig_lane(); n < {each}; n += 32) sums[n] = 0;")
        out.line("ig_syncwarp();")
        self._open_points()
        named = (("x", side.x), ("y", side.y), ("u", side.u), ("w", side.w))
        elements = [self.functions.declare_elements(name, matrix) for name, matrix in named]
        functions = self._declare_functions()
        out.line(
            f"ig_differentiate_rows<{self.real}, {self._flags()}, {'true' if second else 'false'}>(sums, "
            f"{', '.join(elements)}, {step.depth}, {step.values}, own, others, {self._scale()},"
        )
        out.line(f"    {', '.join(functions)});")
        self._close_points()
        out.line("ig_start_next();")
        out.open(f"for (int d = ig_lane(); d < {step.depth}; d += 32)")
        out.line(self._store(step.first, step.depth, f"(sums[d] * {self._scale()})"))
        out.close()
        if second:
            out.open(f"for (int d = ig_lane(); d < {step.values}; d += 32)")
            out.line(self._store(step.second, step.values, f"sums[{step.depth} + d]"))
            out.close()
        out.close()
        self.functions.report_flags()
        return out.finish(grid, warps * WARP, each * warps * BYTES[step.dtype], waits=True)

    def write_scatter(self) -> CudaKernel:
        """A part of all queries to each block: warps compute what pairs add, the first warp adds it."""
        step, out, side, type_ = self.step, self.out, self.side, self.type_
        for header in ("attention_tile.cuh", "attention_backward_rows.cuh"):
            out.library.use(header)
        total = product([loop.extent for loop in step.batch]) * step.queries
        count, parts = len(step.scatter), step.parts
        out.line("ig_wait_for_previous();")
        out.line(f"const {type_} part = ({type_})blockIdx.x, rows = {out.size(step.queries)};")
        out.line(f"const {type_} others = {out.size(step.keys)};")
        out.line(f"const int64_t last = (int64_t)({out.size(total)}) * (part + 1) / {parts};")
        out.line(f"{self.real} *const gains = ({self.real} *)ig_shared();")
        self.functions.declare_flags()
        out.open(f"for (int64_t base = (int64_t)({out.size(total)}) * part / {parts}; base < last; base += {_WARPS})")
        out.open(f"for ({type_} at = 0; at < others; at += {WARP})")
        out.open("")
        out.line("const int64_t task = base + ig_warp();")
        out.line(f"{self.real} *const mine = gains + ig_warp() * {count * WARP} + ig_lane();")
        out.line(f"const {type_} o = ({type_})((task < last ? task : last - 1) / rows);")
        out.line(f"const {type_} i = ({type_})((task < last ? task : last - 1) % rows), j = at + ig_lane();")
        unflatten(out, "o", type_, step.batch)
        kinds = self.functions.declare_kinds(step.tiles)
        shown = f"{kinds}(i / IG_BLOCK, at / IG_BLOCK)" if step.tiles else "1"
        out.line(f"const int shown = {shown};")
        out.open("if (task < last && j < others && shown)")
        named = (("x", side.x), ("y", side.y), ("u", side.u), ("w", side.w))
        x, y, u, w = (self.functions.declare_elements(name, matrix) for name, matrix in named)
        multiply = f"ig_multiply_elements<{self.real}>"
        out.line(f"const {self.real} acc = {multiply}({x}, {u}, i, j, {step.depth}) * {self._scale()};")
        out.line(f"const {self.real} gradient = {multiply}({y}, {w}, i, j, {step.values});")
        if step.masked is not None:
            out.open("if (shown == 1)")
            self._keep_gains(step.masked)
            out.close()
            out.open("else")
        self._keep_gains(step.body)
        if step.masked is not None:
            out.close()
        out.close()
        out.open("else")
        out.line(f"for (int n = 0; n < {count}; ++n) mine[n * {WARP}] = 0;")
        out.close()
        out.close()
        out.line("__syncthreads();")
        out.open("if (ig_warp() == 0)")
        out.open(f"for (int row = 0; row < {_WARPS} && base + row < last; ++row)")
        out.line(f"const {type_} o = ({type_})((base + row) / rows), i = ({type_})((base + row) % rows);")
        out.line("const bool counts = at + ig_lane() < others;")
        out.line(f"const {type_} j = counts ? at + ig_lane() : others - 1;")
        unflatten(out, "o", type_, step.batch)
        for number, scatter in enumerate(step.scatter):
            self._add_gains(scatter, f"gains[(row * {count} + {number}) * {WARP} + ig_lane()]")
        out.close()
        out.close()
        out.line("__syncthreads();")
        out.close()
        out.close()
        self.functions.report_flags()
        return out.finish(Grid(parts), _WARPS * WARP, _WARPS * WARP * count * BYTES[step.dtype], waits=True)

    # ------------------------------------------------------------------ their parts

    def _open_block(self, high: int) -> Grid:
        """Declares a block's own rows, `first` on, and `o`, its point of the results' batch."""
        step, out, type_, side = self.step, self.out, self.type_, self.side
        blocks = (side.rows + high - 1) // high
        image, head = step.batch
        heads: Size = head.extent
        points = product([loop.extent for loop in step.batch])
        if step.side == "keys":
            heads = head.extent // step.heads
            points = image.extent // step.images * heads
        out.line("ig_wait_for_previous();")
        out.line(f"const {type_} rows = {out.size(side.rows)}, others = {out.size(side.others)};")
        out.line(f"const {type_} blocks = {out.size(blocks)}, o = ({type_})blockIdx.x / blocks;")
        out.line(f"const {type_} first = ({type_})blockIdx.x % blocks * {high};")
        images, heads_each = ("1", "1") if step.side == "queries" else (out.size(step.images), out.size(step.heads))
        out.line(f"const {type_} images = {images}, heads = {heads_each};")
        out.line(f"const {type_} from0 = o / ({out.size(heads)}) * images, from1 = o % ({out.size(heads)}) * heads;")
        self.functions.declare_flags()
        return Grid(points * blocks)

    def _enter_group(self) -> None:
        """Declares the batch's variables at the first point that the own rows serve."""
        image, head = self.step.batch
        self.out.line(f"const {self.type_} {image.variable} = from0, {head.variable} = from1;")

    def _open_points(self) -> None:
        """Opens loops over the points of the batch that the own rows serve."""
        for loop, start, count in zip(self.step.batch, ("from0", "from1"), ("images", "heads"), strict=True):
            name = loop.variable
            self.out.open(f"for ({self.type_} {name} = {start}; {name} < {start} + {count}; ++{name})")

    def _close_points(self) -> None:
        for _ in self.step.batch:
            self.out.close()

    def _flags(self) -> str:
        named = (("IG_MASK", self.step.masked), ("IG_BLOCKS", self.step.tiles))
        return " | ".join(name for name, one in named if one is not None) or "0"

    def _scale(self) -> str:
        return constant_text(self.step.scale, self.step.dtype)

    def _declare_functions(self) -> list[str]:
        step, out = self.step, self.out
        names = [self._declare_pair("pair", step.body, "s"), self._declare_pair("masked", step.masked, "m")]
        table = self.functions.declare_kinds(step.tiles)
        if step.tiles is not None and step.side == "keys":
            out.line(f"const auto swapped = [&](const {self.type_} own, const {self.type_} other) -> int")
            out.line("{ return kind(other, own); };")
            table = "swapped"
        return [*names, table]

    def _declare_pair(self, name: str, body: Body | None, prefix: str) -> str:
        """The body as a function of two rows, that gives the product's gradient and the pair's weight."""
        if body is None:
            return "ig_unused()"
        out, side, type_, real = self.out, self.side, self.type_, self.real
        shown = Body(body.ops, body.results[: 1 if self.step.side == "queries" else 2])
        code = self.functions.note(out.statements(shown, ["i", "j"], prefix=prefix))
        for line in code.before:
            out.line(line)
        given = f"const {real} acc, const {real} gradient, {real} &slope, {real} &weight"
        out.open(f"const auto {name} = [&](const {type_} {side.own}, const {type_} {side.other}, {given})")
        for line in (*code.between, *code.inside):
            out.line(line)
        for target, result in zip(("slope", "weight"), code.results, strict=False):
            out.line(f"{target} = {result};")
        self.functions.end()
        return name

    # ------------------------------------------------------------------ results

    def _store(self, buffer: str, width: int, value: str) -> str:
        index = (symbol("o") * self.side.rows + symbol("own")) * width + symbol("d")
        return self.out.store(Store(buffer, index, 0), value)

    def _declare_cells(self, name: str, buffer: str, width: int, scale: float) -> None:
        """Stores two sums of a row: 16-bit elements as one word, where rows begin at words."""
        out, type_ = self.out, self.type_
        factor = f" * {constant_text(scale, self.step.dtype)}" if scale != 1 else ""
        parameters = f"const {type_} own, const {type_} d0, const float a, const float b"
        out.open(f"const auto store_{name} = [&]({parameters})")
        pointer, dtype = out.pointer(buffer), out.buffers[buffer].dtype
        out.written.add(buffer)
        if dtype in HALVES and width % 2 == 0:
            pack = "ig_pack_bf16" if dtype == "bfloat16" else "ig_pack_f16"
            place = f"{pointer} + ((o * ({out.size(self.side.rows)}) + own) * {width} + d0)"
            out.line(f"*(uint32_t *)({place}) = {pack}(a{factor}, b{factor});")
            self.functions.end()
            return
        for number, value in enumerate(("a", "b")):
            out.open(f"if (d0 + {number} < {width})")
            out.line(f"const {type_} d = d0 + {number};")
            out.line(self._store(buffer, width, f"({value}{factor})"))
            out.close()
        self.functions.end()

    # ------------------------------------------------------------------ tables

    def _keep_gains(self, body: Body) -> None:
        """What a pair adds to each table, to shared memory."""
        gains = Body(body.ops, body.results[1:])
        code = self.functions.note(self.out.statements(gains, ["i", "j"]))
        for line in (*code.before, *code.between, *code.inside):
            self.out.line(line)
        for number, result in enumerate(code.results):
            self.out.line(f"mine[{number * WARP}] = {result};")

    def _add_gains(self, scatter: Scatter, value: str) -> None:
        out, store = self.out, scatter.store
        out.written.add(store.buffer)
        code = self.functions.note(out.statements(scatter.body, ["i", "j"]))
        out.open("")
        for line in (*code.before, *code.between, *code.inside):
            out.line(line)
        guard = "".join(f" && {size}" for size in code.empty_dims(store.index))
        place = (
            f"ig_add_in_order({out.pointer(store.buffer)}, {out.size(store.index)}, (double){value}, counts{guard});"
        )
        out.line(place)
        out.close()
