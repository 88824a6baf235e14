"""Results of a reduction while threads compute them: a thread's own, then those of several threads as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ingot.codegen.c_expressions import COMPUTED, constant_text
from ingot.lowering.dtypes import BYTES, FLOATS
from ingot.lowering.index_expr import Size, product
from ingot.lowering.loop_ir import Reduce
from ingot.targets.cuda.codegen.kernel import WARP
from ingot.targets.cuda.codegen.kernel_writer import CudaKernelWriter

# Terms of a float32 sum that a thread adds before the sum moves on to float64.
RUN = 64

_SIGNS = {"sum": "+", "prod": "*", "any": "|", "all": "&"}


@dataclass(frozen=True, slots=True)
class Accumulator:
    """One result. `wide`: a sum of float32 that is carried in float64, run by run."""

    kind: str
    dtype: str
    name: str
    wide: bool

    @property
    def is_place(self) -> bool:
        return self.kind.startswith("arg")

    def variables(self) -> tuple[tuple[str, str, str], ...]:
        """Type, name and first value of each variable."""
        if self.is_place:
            return (COMPUTED[self.dtype], f"{self.name}_best", "0"), ("int64_t", f"{self.name}_at", "-1")
        if self.wide:
            return (("double", self.name, "0"),)
        type_ = COMPUTED["int32" if self.kind in ("any", "all") else self.dtype]
        return ((type_, self.name, start_text(self.kind, self.dtype)),)

    def add(self, value: str, place: str) -> str:
        """The statement that takes a value in."""
        if self.is_place:
            best, at = f"{self.name}_best", f"{self.name}_at"
            return f"if ({at} < 0 || {self._beats(value, best)}) {{ {best} = {value}; {at} = {place}; }}"
        if self.kind in ("any", "all"):
            return f"{self.name} {_SIGNS[self.kind]}= ({value}) != 0;"
        return self._combine(f"{self.name}_run" if self.wide else self.name, value)

    def merge(self, other: Callable[[str], str]) -> list[str]:
        """Statements that take another thread's variables in, which `other` spells."""
        if not self.is_place:
            return [self._combine(self.name, other(self.name))]
        best, at = f"{self.name}_best", f"{self.name}_at"
        their_best, their_at = other(best), other(at)
        same = f"{their_best} == {best}"
        if self.dtype in FLOATS:
            same = f"({same} || ({their_best} != {their_best} && {best} != {best}))"
        wins = f"{at} < 0 || {self._beats(their_best, best)} || ({same} && {their_at} < {at})"
        return [f"if ({their_at} >= 0 && ({wins})) {{ {best} = {their_best}; {at} = {their_at}; }}"]

    def result(self) -> str:
        if self.is_place:
            return f"({self.name}_at < 0 ? 0 : {self.name}_at)"
        return f"(float){self.name}" if self.wide else self.name

    def _beats(self, value: str, best: str) -> str:
        sign = ">" if self.kind == "argmax" else "<"
        if self.dtype in FLOATS:
            return f"({best} == {best} && ({value} {sign} {best} || {value} != {value}))"
        return f"{value} {sign} {best}"

    def _combine(self, name: str, value: str) -> str:
        if self.kind not in ("max", "min"):
            return f"{name} {_SIGNS[self.kind]}= {value};"
        beats = f"{value} {'>' if self.kind == 'max' else '<'} {name}"
        if self.dtype in FLOATS:
            beats = f"({beats}) | ({value} != {value})"
        return f"{name} = ({beats}) ? {value} : {name};"


def start_text(kind: str, dtype: str) -> str:
    """What a result is before its first term."""
    if kind not in ("max", "min"):
        return "1" if kind in ("prod", "all") else "0"
    if dtype in FLOATS:
        return f"{'-' if kind == 'max' else ''}INF_{'F64' if dtype == 'float64' else 'F32'}"
    if dtype == "bool":
        return "0" if kind == "max" else "1"
    bits = 8 * BYTES[dtype]
    low, high = (0, 2**bits - 1) if dtype[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    if dtype == "uint64":
        return "0" if kind == "max" else "UINT64_MAX"
    return constant_text(low if kind == "max" else high, dtype)


def make_accumulators(step: Reduce, terms: Size, prefix: str = "acc") -> list[Accumulator]:
    """One for each result, where a thread adds so many terms."""
    long = not isinstance(terms, int) or terms > RUN
    dtypes = [step.body.ops[result].dtype for result in step.body.results]
    return [
        Accumulator(kind, dtype, f"{prefix}{number}", long and kind == "sum" and dtype == "float32")
        for number, (kind, dtype) in enumerate(zip(step.kinds, dtypes, strict=True))
    ]


def count_terms(step: Reduce) -> Size:
    return product([loop.extent for loop in step.over])


# ---------------------------------------------------------------------- text


def declare(out: CudaKernelWriter, accumulators: Sequence[Accumulator]) -> None:
    for one in accumulators:
        for type_, name, start in one.variables():
            out.line(f"{type_} {name} = {start};")


def open_terms(
    out: CudaKernelWriter,
    accumulators: Sequence[Accumulator],
    type_: str,
    first: str,
    end: str,
    by: str,
    width: int = 1,
) -> None:
    """Opens the loop of a thread's terms `term` in units of `width`, where sums that are carried in float64 go by
    runs; `close_terms` closes it."""
    wide = [one for one in accumulators if one.wide]
    if not wide:
        out.open(f"for ({type_} term = {first}; term < {end}; term += {by})")
        return
    run = f"({type_}){max(1, RUN // width)} * ({by})"
    out.open(f"for ({type_} run = {first}; run < {end}; run += {run})")
    out.line(f"const {type_} stop = {end} - run < {run} ? {end} : run + {run};")
    for one in wide:
        out.line(f"float {one.name}_run = 0;")
    out.open(f"for ({type_} term = run; term < stop; term += {by})")


def close_terms(out: CudaKernelWriter, accumulators: Sequence[Accumulator]) -> None:
    out.close()
    wide = [one for one in accumulators if one.wide]
    if wide:
        for one in wide:
            out.line(f"{one.name} += {one.name}_run;")
        out.close()


def merge_lanes(out: CudaKernelWriter, accumulators: Sequence[Accumulator], lanes: int) -> None:
    """Makes the variables of a group of neighbouring lanes one: all of them then hold the same."""
    if lanes == 1:
        return
    out.open(f"for (int mask = {lanes // 2}; mask; mask >>= 1)")
    for one in accumulators:
        for type_, name, _ in one.variables():
            out.line(f"const {type_} their_{name} = ig_shuffle_xor({name}, mask);")
        for line in one.merge(lambda name: f"their_{name}"):
            out.line(line)
    out.close()


def merge_block(out: CudaKernelWriter, accumulators: Sequence[Accumulator], threads: int, number: int = 0) -> None:
    """Makes the variables of all threads of a block one. `number` keeps apart the memory of several calls."""
    merge_lanes(out, accumulators, WARP)
    if threads == WARP:
        for one in accumulators:
            if (
                one.kind in ("max", "min") and one.dtype in FLOATS
            ):  # of 0 and -0, and of two nan, each lane keeps its own
                out.line(f"{one.name} = ig_shuffle({one.name}, 0);")
        return
    warps = threads // WARP
    memory = {name: f"warps{number}_{name}" for one in accumulators for _, name, _ in one.variables()}
    for one in accumulators:
        for type_, name, _ in one.variables():
            out.line(f"__shared__ {type_} {memory[name]}[{warps}];")
            out.line(f"if (ig_lane() == 0) {memory[name]}[ig_warp()] = {name};")
    out.line(out.wait_for_block)
    for one in accumulators:
        for _, name, start in one.variables():
            out.line(f"{name} = {start};")
    out.open(f"for (int w = 0; w < {warps}; ++w)")
    for one in accumulators:
        for line in one.merge(lambda name: f"{memory[name]}[w]"):
            out.line(line)
    out.close()


def merge_rows(out: CudaKernelWriter, accumulators: Sequence[Accumulator], columns: int, rows: int) -> None:
    """Makes the variables of the threads of a column one, where thread number row · columns + column is in it: those of
    its first row then hold it."""
    out.line(f"const int stack = (int)threadIdx.x % {columns};")
    for one in accumulators:
        for type_, name, _ in one.variables():
            out.line(f"__shared__ {type_} rows_{name}[{rows * columns}];")
            out.line(f"rows_{name}[threadIdx.x] = {name};")
    out.line(out.wait_for_block)
    out.open(f"for (int r = 1; r < {rows}; ++r)")
    for one in accumulators:
        for line in one.merge(lambda name: f"rows_{name}[r * {columns} + stack]"):
            out.line(line)
    out.close()
