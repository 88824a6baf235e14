"""Epilogues: what becomes of sums, as a function of a run of neighbouring columns.

    struct loaded { … };
    const auto fetch = [&](const int line, const int place) { … return found; };
    const auto finish = [&](const int line, const int place, const float *sums, const loaded &given) { … };

Columns of a run are `each` neighbours; sums beside those of a run, where there are some, follow them. What lies side
by side in memory along them, aligned, is read and written as one vector; what does not depend on the column is computed
once. Vectors are read by `fetch`, so that those of several runs are under way before the first is used.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ingot.codegen.c_expressions import STORED, CBodyEmitter
from ingot.lowering.dependence import reads_and_writes
from ingot.lowering.dtypes import BYTES, HALVES
from ingot.lowering.index_expr import BodyValue, Expr, Size, coefficient_of, substitute
from ingot.lowering.loop_body import reads
from ingot.lowering.loop_ir import Body, Loop, Map, Store, WithEpilogue
from ingot.targets.cuda.codegen.kernel_writer import CudaKernelWriter
from ingot.targets.cuda.codegen.loop_kernels.loop_points import unflatten
from ingot.targets.cuda.schedule.alignment import count_neighbours, is_multiple

# Columns of a run, and bytes that a run may have in one buffer.
MOST_COLUMNS = 8
MOST_RUN_BYTES = 32
# What stores a run of floats as halves.
_ERF = re.compile(r"const float v(?P<number>\d+) = ig_erf_f32\(\w+\);")
_SIGMOID = re.compile(r"const float v(?P<number>\d+) = ig_sigmoid_f32\(\w+\);")
_POINTER = re.compile(r"\bp\d+\b")
_STORES = {"bfloat16": "ig_store_bf16", "float16": "ig_store_f16"}


def index_type(out: CudaKernelWriter, step: WithEpilogue) -> str:
    """The type of a step's loop variables."""
    read, written = reads_and_writes(step)
    return out.index_type(sorted(read | written), [loop.extent for loop in step.epilogue.loops])


def count_columns(epilogue: Map, groups: int = 1) -> int:
    """How many neighbouring columns a run has: of all that there are, or of one group of them."""
    return count_neighbours([epilogue.loops[-1].extent // groups], MOST_COLUMNS)


def runs_down(epilogue: Map, lead: int) -> bool:
    """Whether what is stored lies along the rows and not along the columns."""
    rows, column = epilogue.loops[lead:-1], epilogue.loops[-1].variable
    if not rows or not epilogue.stores:
        return False
    return all(
        coefficient_of(store.index, column) != 1 and coefficient_of(store.index, rows[-1].variable) == 1
        for store in epilogue.stores
    )


@dataclass
class EpilogueRuns:
    """Runs of columns that a body reads and writes as vectors, by buffer and index."""

    out: CudaKernelWriter
    epilogue: Map
    each: int
    ahead: bool = False  # whether single columns are read by `fetch` too
    loads: dict[tuple[str, Size], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.column = self.epilogue.loops[-1].variable
        # A masked load may be of a place that is not there.
        self.certain = {(load.buffer, load.index) for load in reads(self.epilogue.body) if load.mask is None}

    def place(self, buffer: str, index: Size) -> str:
        if (buffer, index) not in self.certain or not self.is_run(buffer, index):
            return self.out.place(buffer, index)
        return f"given.{self.loads.setdefault((buffer, index), f'in{len(self.loads)}')}.at[w]"

    def is_run(self, buffer: str, index: Size) -> bool:
        """Whether a run of columns is neighbours in memory, aligned."""
        fits = self.each * BYTES[self.out.buffers[buffer].dtype] <= MOST_RUN_BYTES and buffer not in self.out.locals
        if (self.each == 1 and not self.ahead) or not fits or coefficient_of(index, self.column) != 1:
            return False
        assert isinstance(index, Expr)
        known = not any(isinstance(symbol, BodyValue) for symbol in index.symbols)
        return known and is_multiple(substitute(index, {self.column: 0}), self.each)

    def begin(self, index: Size) -> str:
        """The place of a run's first column."""
        return self.out.size(substitute(index, {self.column: 0}))

    # ------------------------------------------------------------------ text

    def write_statements(self) -> CBodyEmitter:
        """The body at one column; afterwards it is known what a run loads."""
        body, each = _show_unrounded(self.out, self.epilogue), self.each
        return self.out.statements(body, [self.column], "sums[w]", beside=f"sums[w + {each}]", place=self.place)

    def declare_loads(self) -> None:
        for (buffer, _), name in self.loads.items():
            self.out.line(f"ig_vector<{STORED[self.out.buffers[buffer].dtype]}, {self.each}> {name};")

    def write_loads(self) -> None:
        """Fills `found`. The rows' variables and `begin` have values."""
        for (buffer, index), name in self.loads.items():
            place = f"{self.out.pointer(buffer)} + begin + ({self.begin(index)})"
            self.out.line(f"found.{name} = ig_load<{self.each}>({place});")

    def write_results(self, code: CBodyEmitter, type_: str) -> None:
        """The body at each column of a run, and its stores."""
        out, epilogue, each = self.out, self.epilogue, self.each
        vectors = _find_vector_stores(epilogue, self)
        out.declare_flags(code)
        for line in code.before:
            out.line(line)
        for number, store in vectors.items():
            dtype = out.buffers[store.buffer].dtype
            out.line(f"ig_vector<{'float' if dtype in HALVES else STORED[dtype]}, {each}> out{number};")
        if each > 1:
            out.line("#pragma unroll")
        out.open(f"for (int w = 0; w < {each}; ++w)")
        out.line(f"const {type_} {self.column} = begin + w;")
        for line in _shorten_functions(out, epilogue.body, code.inside):
            out.line(line)
        for number, store in enumerate(epilogue.stores):
            value = code.results[store.result]
            if number in vectors:
                dtype = out.buffers[store.buffer].dtype
                halves = code.results[len(epilogue.body.results) + store.result]
                out.line(f"out{number}.at[w] = {halves if dtype in HALVES else out.stored_value(dtype, value)};")
                continue
            given = code.empty_dims(store.index)
            guard = f"if ({' && '.join(given)}) " if given else ""
            out.line(f"{guard}{out.store(store, value)}")
        out.close()
        for number, store in vectors.items():
            out.written.add(store.buffer)
            name = _STORES.get(out.buffers[store.buffer].dtype, "ig_store")
            out.line(f"{name}<{each}>({out.pointer(store.buffer)} + begin + ({self.begin(store.index)}), out{number});")
        out.report_flags(code)


def write_finish(
    out: CudaKernelWriter,
    step: WithEpilogue,
    type_: str,
    each: int,
    row: str = "top + line",
    column: str = "left + place",
    *,
    ahead: bool = False,
) -> None:
    """Declares `fetch` and `finish`. `row` and `column` are the place of a run's first sum, over `line` and `place`.
    The batch's variables have values already. With `ahead`, `fetch` reads what it can where runs are one column too."""
    epilogue, lead = step.epilogue, len(step.batch_loops())
    rows = epilogue.loops[lead:-1]
    runs = EpilogueRuns(out, epilogue, each, ahead)
    statements = runs.write_statements()
    out.open("struct loaded")
    runs.declare_loads()
    out.depth -= 1
    out.line("};")
    out.open("const auto fetch = [&](const int line, const int place)")
    out.line("loaded found;")
    if runs.loads:
        _write_place(out, rows, type_, row, column)
    runs.write_loads()
    out.line("return found;")
    out.depth -= 1
    out.line("};")
    sums = f"const {STORED[step.dtype]} *sums"
    out.open(f"const auto finish = [&](const int line, const int place, {sums}, const loaded &given)")
    _write_place(out, rows, type_, row, column)
    runs.write_results(statements, type_)
    out.depth -= 1
    out.line("};")


def _write_place(out: CudaKernelWriter, rows: Sequence[Loop], type_: str, row: str, column: str) -> None:
    """Declares the variables of the rows, and `begin`, the first column of a run."""
    if rows:
        out.line(f"const {type_} at = ({type_})({row});")
        unflatten(out, "at", type_, rows)
    out.line(f"const {type_} begin = ({type_})({column});")


def _show_unrounded(out: CudaKernelWriter, epilogue: Map) -> Body:
    """The body, with each result a second time, before it was rounded to the half that is stored: a run of those is
    rounded two at a time."""
    body = epilogue.body
    more = list(body.results)
    for place, result in enumerate(body.results):
        op = body.ops[result]
        stored = {out.buffers[store.buffer].dtype for store in epilogue.stores if store.result == place}
        if op.name == "cast" and stored <= {op.attribute} and body.ops[op.operands[0]].dtype == "float32":
            more[place] = op.operands[0]
    return replace(body, results=(*body.results, *more))


def _shorten_functions(out: CudaKernelWriter, body: Body, lines: Sequence[str]) -> list[str]:
    """The statements, with shorter functions for 1 + erf(x) and for the sigmoid where all that is computed of it is
    rounded to bfloat16."""
    made = list(lines)
    for place, line in enumerate(lines):
        sigmoid = _SIGMOID.fullmatch(line)
        if sigmoid is not None and _is_rounded(body, int(sigmoid["number"])):
            out.library.use("bfloat16_functions.cuh")
            made[place] = line.replace("ig_sigmoid_f32(", "ig_sigmoid_near(")
        found = _ERF.fullmatch(line)
        if found is None or not _is_rounded(body, int(found["number"])):
            continue
        name = f"v{found['number']}"
        uses = [other for other, text in enumerate(lines) if other != place and re.search(rf"\b{name}\b", text)]
        if len(uses) == 1 and lines[uses[0]].endswith(f" = {name} + 1.0f;"):
            out.library.use("bfloat16_functions.cuh")
            made[place] = line.replace("ig_erf_f32(", "ig_erf_plus_one(")
            made[uses[0]] = made[uses[0]].replace(f"{name} + 1.0f", name)
    return made


def _is_rounded(body: Body, number: int) -> bool:
    """Whether no result depends on an op but through its rounding to bfloat16."""
    exact = {number}
    for place, op in enumerate(body.ops):
        if exact & set(op.operands) and (op.name, op.attribute) != ("cast", "bfloat16"):
            exact.add(place)
    return not exact & set(body.results)


def _find_vector_stores(epilogue: Map, runs: EpilogueRuns) -> dict[int, Store]:
    """Stores of whole runs, by their number. Where runs of a buffer meet, the order of columns matters."""
    if runs.each == 1:
        return {}
    stores = epilogue.stores
    return {
        number: store
        for number, store in enumerate(stores)
        if store.mode == "set"
        and runs.is_run(store.buffer, store.index)
        and all(_are_apart(store, other, runs.each) for place, other in enumerate(stores) if place != number)
    }


def _are_apart(store: Store, other: Store, each: int) -> bool:
    """Whether runs of two stores never meet."""
    distance = store.index - other.index
    return store.buffer != other.buffer or (isinstance(distance, int) and abs(distance) >= each)


def number_pointers(text: str) -> tuple[str, list[str]]:
    """A text whose pointers are called by numbers of its own, and which ones they are."""
    names = list(dict.fromkeys(_POINTER.findall(text)))
    for place, name in enumerate(names):
        text = re.sub(rf"\b{name}\b", f"q{place}", text)
    return text, names
