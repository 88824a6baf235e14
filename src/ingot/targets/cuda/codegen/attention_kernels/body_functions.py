"""What the headers of attention take from a step: its matrices and its bodies, as functions of the kernel's text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ingot.codegen.c_expressions import COMPUTED, STORED, CBodyEmitter
from ingot.lowering.dtypes import HALVES
from ingot.lowering.loop_ir import Attention, BlockMask, Body, MatrixView
from ingot.targets.cuda.codegen.attention_kernels.score_functions import ScoreEmitter, Slope
from ingot.targets.cuda.codegen.kernel_writer import CudaKernelWriter
from ingot.targets.cuda.schedule.alignment import lies_in_pieces


@dataclass
class BodyFunctions:
    """Declares functions of the kernel's text, and collects what their bodies may report. `type_` is that of indices,
    `real` that of scores."""

    out: CudaKernelWriter
    type_: str
    real: str
    checks: bool = False
    zero_checks: bool = False

    def declare_flags(self) -> None:
        """What bodies set, declared ahead of all functions: none is unused, since compilers drop what is."""
        self.out.line("int bad = 0, zero = 0;")

    def report_flags(self) -> None:
        if self.checks:
            self.out.line("if (bad) ig_fail(context, INGOT_INDEX);")
        if self.zero_checks:
            self.out.line("if (zero) ig_fail(context, INGOT_ZERO_DIVISION);")

    def note(self, code: CBodyEmitter) -> CBodyEmitter:
        self.checks |= bool(code.checks)
        self.zero_checks |= code.zero_checks
        return code

    def declare_body(self, name: str, body: Body | None, given: Sequence[str], result: str, prefix: str) -> str:
        """A function of a query, a key and what is given besides ("acc"): the body's first result. What depends on
        neither is computed ahead of it."""
        if body is None:
            return "ig_unused()"
        code = self.note(self.out.statements(body, ["i", "j"], prefix=prefix))
        for line in code.before:
            self.out.line(line)
        parameters = [f"const {self.type_} i", f"const {self.type_} j", *(f"const {self.real} {one}" for one in given)]
        self.out.open(f"const auto {name} = [&]({', '.join(parameters)}) -> {result}")
        for line in (*code.between, *code.inside):
            self.out.line(line)
        self.out.line(f"return {code.results[0]};")
        self.end()
        return name

    def declare_score(self, step: Attention, slope: Slope | None) -> str:
        """The score as a function of two places, each a base and an offset."""
        code = self.note(ScoreEmitter(self.out, step, slope))
        for line in code.before:
            self.out.line(line)
        parameters = [f"const {self.type_} from_i, const int by_i, const {self.type_} from_j, const int by_j"]
        self.out.open(f"const auto score = [&]({', '.join(parameters)}, const {self.real} acc) -> {self.real}")
        self.out.line(f"const {self.type_} i = from_i + by_i, j = from_j + by_j;")
        for line in (*code.between, *code.inside):
            self.out.line(line)
        self.out.line(f"return {code.results[0]};")
        self.end()
        return "score"

    def declare_kinds(self, tiles: BlockMask | None) -> str:
        """A function of a block of queries and one of keys: what the table says of them."""
        if tiles is None:
            return "ig_unused()"
        out = self.out
        place = f"({out.size(tiles.offset)}) + row * ({out.size(tiles.columns)}) + column"
        out.open(f"const auto kind = [&](const {self.type_} row, const {self.type_} column) -> int")
        out.line(f"return {out.pointer(tiles.buffer)}[{place}];")
        self.end()
        return "kind"

    def declare_matrix(self, name: str, matrix: MatrixView) -> str:
        """A matrix of 16-bit elements."""
        out = self.out
        base = f"{out.pointer(matrix.buffer)} + ({out.size(matrix.offset)})"
        steps = f"({self.type_})({out.size(matrix.rows)}), ({self.type_})({out.size(matrix.columns)})"
        out.line(f"const ig_matrix16<{self.type_}> {name} = {{{base}, {steps}}};")
        return name

    def declare_elements(self, name: str, matrix: MatrixView) -> str:
        """A function of a row and a column: the element as a number to compute with."""
        out = self.out
        dtype = out.buffers[matrix.buffer].dtype
        out.line(
            f"const {STORED[dtype]} *const {name}_at = {out.pointer(matrix.buffer)} + ({out.size(matrix.offset)});"
        )
        out.open(f"const auto {name} = [&](const {self.type_} row, const {self.type_} column) -> {self.real}")
        element = f"{name}_at[row * ({out.size(matrix.rows)}) + column * ({out.size(matrix.columns)})]"
        if dtype in HALVES:
            function = "ig_bf16_to_f32" if dtype == "bfloat16" else "ig_f16_to_f32"
            out.library.functions.add(function)
            element = f"{function}({element})"
        out.line(f"return {element};")
        self.end()
        return name

    def end(self) -> None:
        """Closes a function."""
        self.out.close()
        self.out.lines[-1] += ";"


def load_mode(matrix: MatrixView, width: int) -> str:
    """How a tile of a matrix of 16-bit elements is loaded: in pieces of 16 bytes, where all begin at a multiple."""
    if lies_in_pieces(matrix, width):
        return "IG_PIECES"
    return "IG_ACROSS_ROWS" if matrix.rows == 1 and matrix.columns != 1 else "IG_ALONG_ROW"


def half_dtype(out: CudaKernelWriter, matrices: Sequence[MatrixView]) -> str | None:
    """The half dtype that all the matrices have."""
    (dtype, *others) = {out.buffers[matrix.buffer].dtype for matrix in matrices}
    return dtype if dtype in HALVES and not others else None


def computed_real(dtype: str) -> str:
    return COMPUTED[dtype]
