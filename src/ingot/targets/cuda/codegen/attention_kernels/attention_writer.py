"""What the kernels of one attention step have in common: its functions, its results, and the parts of split keys."""

from __future__ import annotations

import math
from dataclasses import replace

from ingot.codegen.c_expressions import SUFFIX, constant_text
from ingot.lowering.dtypes import BYTES, HALVES
from ingot.lowering.index_expr import coefficient_of, product, substitute, symbol
from ingot.lowering.loop_ir import Attention, Body, MatrixView, Op, Store
from ingot.targets.cuda.codegen.attention_kernels.body_functions import BodyFunctions, computed_real
from ingot.targets.cuda.codegen.attention_kernels.score_functions import Slope, hide_by_mask
from ingot.targets.cuda.codegen.kernel_writer import CudaKernelWriter
from ingot.targets.cuda.codegen.loop_kernels.loop_points import unflatten
from ingot.targets.cuda.schedule.alignment import is_multiple
from ingot.targets.cuda.schedule.attention_tiles import split_columns
from ingot.targets.cuda.schedule.grouped_heads import pack_grouped_heads


def prepare_attention(step: Attention) -> Attention:
    """The step as kernels compute it."""
    step = hide_by_mask(pack_grouped_heads(step))
    if step.score is None and not step.scale > 0:
        # The largest product is then not the largest score.
        step = replace(step, score=Body((Op("accumulator", (), step.dtype),), (0,)))
    return step


class AttentionWriter:
    """The functions of one step, in the text of a kernel."""

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
        if any(op.name == "bounds_check" for op in epilogue.body.ops) or coefficient_of(store.index, column) != 1:
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
