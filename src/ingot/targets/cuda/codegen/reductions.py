"""Reductions: how many threads, and which, compute one output.

along memory     neighbouring threads take neighbouring terms of one output: a group of lanes, or a block
across memory    neighbouring threads take neighbouring outputs, and rows of threads take terms
in parts         blocks of their own take parts of an output's terms; a second kernel puts them together
"""

from __future__ import annotations

from dataclasses import dataclass

from ingot.codegen.c_expressions import CBodyEmitter
from ingot.lowering.dependence import reads_and_writes
from ingot.lowering.index_expr import Size, product
from ingot.lowering.loop_ir import LoopNest, Reduce
from ingot.targets.cuda.codegen.kernel import WARP, CudaKernel, Grid
from ingot.targets.cuda.codegen.kernel_rules import KERNELS
from ingot.targets.cuda.codegen.kernel_writer import CudaKernelWriter
from ingot.targets.cuda.codegen.loop_kernels.accumulators import (
    Accumulator,
    close_terms,
    count_terms,
    declare,
    make_accumulators,
    merge_block,
    merge_lanes,
    merge_rows,
    open_terms,
)
from ingot.targets.cuda.codegen.loop_kernels.loop_nests import write_nest
from ingot.targets.cuda.codegen.loop_kernels.loop_points import loop_type, unflatten, write_points
from ingot.targets.cuda.codegen.loop_kernels.vector_accesses import VectorAccesses, find_vectors
from ingot.targets.cuda.codegen.loop_kernels.vector_outputs import find_output_vectors, write_vector_outputs
from ingot.targets.cuda.schedule.limits import reduces_across

# Threads of a block that several outputs share.
THREADS = 128
# Terms from which on an output has a block of its own.
LONG = 1024
# Blocks that keep a GPU busy, and terms that a part has at least.
BUSY_BLOCKS = 132
PART = 4096
# Neighbouring outputs of a block that reduces across memory, and results of a step up to which its rows of threads have
# shared memory enough.
COLUMNS = 32
MOST_RESULTS = 8


KERNELS.register(LoopNest)(write_nest)


@dataclass(frozen=True, slots=True)
class Team:
    """Who computes an output: `threads` of a block of `block` threads, which lie along its terms unless `across`, in
    each of `parts` blocks."""

    threads: int
    block: int
    across: bool = False
    parts: int = 1

    @property
    def outputs(self) -> int:
        """Outputs of a block."""
        return self.block // self.threads


@KERNELS.register(Reduce)
def write_reduce(out: CudaKernelWriter, step: Reduce) -> list[CudaKernel]:
    outputs, terms = product([loop.extent for loop in step.loops]), count_terms(step)
    read, written = reads_and_writes(step)
    in_place = bool(read & written)
    team = choose_team(out.hint(outputs), out.hint(terms), across=reduces_across(step), splits=not in_place)
    if team.across and len(step.kinds) > MOST_RESULTS:
        team = Team(1, THREADS, across=True)
    type_ = loop_type(out, sorted(read | written), (*step.loops, *step.over), [step.body])
    several = find_output_vectors(out, step) if team.across and team.threads == 1 and not in_place else None
    if several is not None:
        return [write_vector_outputs(out, step, several, type_)]
    vectors = None
    if not team.across and step.over:
        vectors = find_vectors(out, step.body, (), step.over[-1])
    width = vectors.width if vectors else 1
    each = (terms + team.threads * team.parts - 1) // (team.threads * team.parts)
    accumulators = make_accumulators(step, each)
    _declare_output(out, step, team, type_, outputs)
    declare(out, accumulators)
    units: Size = terms // width
    first, end = "0", out.size(units)
    if team.parts > 1:
        chunk = (units + team.parts - 1) // team.parts
        out.line(f"const {type_} begin = ({type_})blockIdx.y * ({out.size(chunk)});")
        out.line(f"const {type_} end = ig_min(begin + {out.size(chunk)}, {out.size(units)});")
        first, end = "begin", "end"
    if team.threads > 1:
        first = f"{first} + rank"
    _write_terms(out, step, accumulators, vectors, type_, first, end, team.threads)
    _merge(out, accumulators, team)
    leader = "live && rank == 0" if team.threads > 1 else "live"
    grid = Grid((outputs + team.outputs - 1) // team.outputs, team.parts)
    if team.parts > 1:
        memory = _store_parts(out, accumulators, team, outputs, leader)
        return [out.finish(grid, team.block), _write_last(out.next_kernel(), step, accumulators, team, outputs, memory)]
    out.open(f"if ({leader})")
    for store in step.stores:
        out.line(out.store(store, accumulators[store.result].result()))
    out.close()
    return [out.finish(grid, team.block)]


def choose_team(outputs: int, terms: int, *, across: bool, splits: bool) -> Team:
    """By the sizes of the example."""
    if across and outputs > 1:
        rows = 1 if terms < 32 or outputs >= BUSY_BLOCKS * 1024 else 8
        blocks = -(-outputs // (COLUMNS if rows > 1 else THREADS))
        parts = _count_parts(blocks, terms, PART // 4) if splits and rows > 1 else 1
        return Team(rows, COLUMNS * rows if rows > 1 else THREADS, across=True, parts=parts)
    if terms >= LONG and outputs < BUSY_BLOCKS * 64:
        threads = 512 if terms >= 4 * PART or outputs < BUSY_BLOCKS else 256
        return Team(threads, threads, parts=_count_parts(outputs, terms, 4 * PART) if splits else 1)
    lanes = 1
    while lanes < WARP and lanes * 4 < terms:
        lanes *= 2
    return Team(lanes, THREADS)


def _count_parts(blocks: int, terms: int, least: int) -> int:
    """Into how many parts the terms of each output are cut so that there are blocks enough."""
    wanted = -(-2 * BUSY_BLOCKS // max(blocks, 1))
    return max(1, min(wanted, terms // least, 256)) if blocks < BUSY_BLOCKS else 1


def _declare_output(out: CudaKernelWriter, step: Reduce, team: Team, type_: str, outputs: Size) -> None:
    """Declares the output's loop variables, the thread's `rank` in its team, and whether the output is `live`: threads
    behind the last one compute it again, since all must take part in what a warp or a block does."""
    size = out.size(outputs)
    if team.outputs == 1:
        out.line(f"const {type_} output = ({type_})blockIdx.x;")
        out.line("const bool live = true;")
        out.line("const int rank = (int)threadIdx.x;")
    else:
        inner, rank = f"threadIdx.x / {team.threads}", f"threadIdx.x % {team.threads}"
        if team.across:
            inner, rank = f"threadIdx.x % {team.outputs}", f"threadIdx.x / {team.outputs}"
        out.line(f"const {type_} slot = ({type_})blockIdx.x * {team.outputs} + ({type_})({inner});")
        out.line(f"const bool live = slot < {size};")
        out.line(f"const {type_} output = live ? slot : {size} - 1;")
        if team.threads > 1:
            out.line(f"const int rank = (int)({rank});")
    unflatten(out, "output", type_, step.loops)


def _write_terms(
    out: CudaKernelWriter,
    step: Reduce,
    accumulators: list[Accumulator],
    vectors: VectorAccesses | None,
    type_: str,
    first: str,
    end: str,
    by: int,
) -> None:
    width = vectors.width if vectors else 1

    def take(code: CBodyEmitter) -> None:
        place = "(int64_t)term" if vectors is None else f"(int64_t)term * {width} + lane"
        for one, value in zip(accumulators, code.results, strict=True):
            out.line(one.add(value, place))

    open_terms(out, accumulators, type_, first, end, str(by), width)
    write_points(out, step.body, step.over, "term", type_, vectors, take)
    close_terms(out, accumulators)


def _merge(out: CudaKernelWriter, accumulators: list[Accumulator], team: Team) -> None:
    if team.threads == 1:
        return
    if team.across:
        merge_rows(out, accumulators, team.outputs, team.threads)
    elif team.outputs == 1:
        merge_block(out, accumulators, team.threads)
    else:
        merge_lanes(out, accumulators, team.threads)


# ---------------------------------------------------------------------- parts


_VARIABLE_BYTES = {"double": 8, "int64_t": 8, "uint64_t": 8}


def _store_parts(
    out: CudaKernelWriter, accumulators: list[Accumulator], team: Team, outputs: Size, leader: str
) -> dict[str, str]:
    """Stores the variables of each part; returns the names of their memory."""
    memory: dict[str, str] = {}
    out.open(f"if ({leader})")
    for one in accumulators:
        for type_, name, _ in one.variables():
            size = _VARIABLE_BYTES.get(type_, 4 if type_ in ("float", "int", "int32_t", "uint32_t") else 2)
            memory[name] = out.scratch.reserve(outputs * team.parts * size)
            pointer = out.scratch_pointer(memory[name], type_, written=True)
            out.line(f"{pointer}[(int64_t)output * {team.parts} + blockIdx.y] = {name};")
    out.close()
    return memory


def _write_last(
    out: CudaKernelWriter,
    step: Reduce,
    accumulators: list[Accumulator],
    team: Team,
    outputs: Size,
    memory: dict[str, str],
) -> CudaKernel:
    """Puts the parts of each output together: a warp for each."""
    last = Team(WARP, THREADS)
    type_ = out.index_type(sorted(reads_and_writes(step)[1]), [loop.extent for loop in step.loops])
    _declare_output(out, step, last, type_, outputs)
    declare(out, accumulators)
    out.open(f"for (int piece = rank; piece < {team.parts}; piece += {WARP})")
    for one in accumulators:
        for kind, name, _ in one.variables():
            pointer = out.scratch_pointer(memory[name], kind)
            out.line(f"const {kind} their_{name} = {pointer}[(int64_t)output * {team.parts} + piece];")
        for line in one.merge(lambda name: f"their_{name}"):
            out.line(line)
    out.close()
    merge_lanes(out, accumulators, WARP)
    out.open("if (live && rank == 0)")
    for store in step.stores:
        out.line(out.store(store, accumulators[store.result].result()))
    out.close()
    return out.finish(Grid((outputs + last.outputs - 1) // last.outputs), THREADS)
