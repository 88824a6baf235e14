"""Loop nests: a block, or a warp, for each point of the shared outer loops.

Its threads go over the inner loops of one step after another. Buffers that live for one outer point are registers,
where all threads compute their one element, or lie in shared memory; where they are too large for that, in global
memory. Threads wait for each other only where one may touch what another has touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ingot.codegen.c_expressions import STORED, CBodyEmitter
from ingot.lowering.dependence import reads_and_writes
from ingot.lowering.dtypes import BYTES
from ingot.lowering.index_expr import Size, product
from ingot.lowering.loop_ir import Loop, LoopNest, Map, Reduce
from ingot.targets.cuda.codegen.kernel import WARP, CudaKernel, Grid
from ingot.targets.cuda.codegen.kernel_writer import CudaKernelWriter
from ingot.targets.cuda.codegen.loop_kernels.accumulators import (
    Accumulator,
    close_terms,
    count_terms,
    declare,
    make_accumulators,
    merge_block,
    merge_lanes,
    open_terms,
)
from ingot.targets.cuda.codegen.loop_kernels.column_nests import find_columns, write_columns
from ingot.targets.cuda.codegen.loop_kernels.common_values import CommonValue, find_common_values
from ingot.targets.cuda.codegen.loop_kernels.loop_points import (
    loop_type,
    store_results,
    unflatten,
    use_nothing,
    write_points,
)
from ingot.targets.cuda.codegen.loop_kernels.row_registers import (
    RowRegisters,
    close_units,
    declare_row_registers,
    find_row_registers,
    find_row_vectors,
    open_units,
)
from ingot.targets.cuda.codegen.loop_kernels.vector_accesses import VectorAccesses, find_vectors, is_register
from ingot.targets.cuda.schedule.limits import reduces_across

# Bytes of shared memory that the local buffers of a block may have. Every GPU since sm_80 has 99 KB; partial results of
# reductions need some of it.
SHARED = 80 << 10
# Warps of a block whose outer points have a warp each, and inner points up to which one warp is enough: more of them
# where there are warps enough to fill a GPU.
WARPS = 4
SHORT = 256
SHORT_OF_MANY = 1024
# Threads of a block that has one outer point, by how many outer points there are.
MOST_THREADS = 512
BUSY_BLOCKS = 132
BUSY_WARPS = 16 * BUSY_BLOCKS
# Threads that a GPU runs at once: a kernel of no more begins before the one before it has ended.
SMALL = 2048 * BUSY_BLOCKS


@dataclass
class _Nest:
    """A nest being written: its threads, and what they have touched since they last waited for each other."""

    out: CudaKernelWriter
    nest: LoopNest
    threads: int
    type_: str
    read: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)
    merges: int = 0
    number: int = 0
    rows: RowRegisters | None = None
    common: dict[int, dict[int, CommonValue]] = field(default_factory=dict)  # by the number of a step

    @property
    def rank(self) -> str:
        return "ig_lane()" if self.threads == WARP else "(int)threadIdx.x"

    def wait(self) -> None:
        self.out.line("ig_syncwarp();" if self.threads == WARP else self.out.wait_for_block)
        self.read.clear()
        self.written.clear()

    def wait_for(self, step: Map | Reduce) -> None:
        """Waits where the step touches what threads may have touched that are not the same."""
        read, written = reads_and_writes(step)
        read, written = ({n for n in names if not self._is_own(n)} for names in (read, written))
        if read & self.written or written & (self.read | self.written):
            self.wait()
        self.read |= read
        self.written |= written

    def _is_own(self, name: str) -> bool:
        """Whether each thread uses what it has written itself."""
        passed = self.rows.passed if self.rows else {}
        return is_register(self.out, name) or any(name == buffer for buffer, _ in passed)


def write_nest(out: CudaKernelWriter, step: LoopNest) -> CudaKernel:
    columns = find_columns(out, step)
    if columns is not None:
        return write_columns(out, step, columns, _find_type(out, step))
    total = product([loop.extent for loop in step.outer])
    depth = len(step.outer)
    inner = max(out.hint(_inner_points(one, depth)) for one in step.steps)
    rows = find_row_registers(out, step)
    threads = rows.threads if rows else choose_threads(out.hint(total), inner)
    made = _Nest(out, step, threads, _find_type(out, step), rows=rows)
    type_ = made.type_
    warps = WARPS if threads == WARP and out.hint(total) >= BUSY_BLOCKS else 1
    if threads == WARP:
        out.line(f"const {type_} point = ({type_})blockIdx.x * {warps} + ig_warp();")
        out.line(f"if (point >= {out.size(total)}) return;")
    else:
        out.line(f"const {type_} point = ({type_})blockIdx.x;")
    out.line(f"const int rank = {made.rank};")
    unflatten(out, "point", type_, step.outer)
    shared = _declare_locals(made, total, warps)
    if rows is not None:
        declare_row_registers(out, rows, type_)
        made.common = find_common_values(out, rows, step)
    _write_steps(made)
    is_small = out.hint(total) * threads <= SMALL
    return out.finish(Grid((total + warps - 1) // warps), threads * warps, shared, is_small=is_small)


def write_row(out: CudaKernelWriter, step: LoopNest, threads: int) -> None:
    """A nest without outer loops, as a part of a kernel: every block of so many threads computes it. Its own buffers
    have one element each."""
    rows = find_row_registers(out, step, threads)
    made = _Nest(out, step, threads, _find_type(out, step), rows=rows)
    out.line(f"const int rank = {made.rank};")
    _declare_locals(made, 1, 1)
    if rows is not None:
        declare_row_registers(out, rows, made.type_)
        made.common = find_common_values(out, rows, step)
    _write_steps(made)


def _find_type(out: CudaKernelWriter, step: LoopNest) -> str:
    """The type of all loops' variables."""
    read, written = reads_and_writes(step)
    loops = [loop for one in step.steps for loop in _all_loops(one)]
    types = (
        {loop_type(out, sorted(read | written), _all_loops(one), [one.body]) for one in step.steps}
        if loops
        else {"int"}
    )
    return "int64_t" if "int64_t" in types else "int"


def _write_steps(made: _Nest) -> None:
    out, depth = made.out, len(made.nest.outer)
    for number, one in enumerate(made.nest.steps):
        made.wait_for(one)
        out.open("")
        made.number = number
        if isinstance(one, Map):
            _write_map(made, one, one.loops[depth:])
        else:
            _write_reduce(made, one, one.loops[depth:])
        out.close()


def choose_threads(points: int, inner: int) -> int:
    """A warp for a short point; else about four inner points for each thread, and more of them where points are few."""
    if points >= BUSY_BLOCKS and inner <= (SHORT_OF_MANY if points >= BUSY_WARPS else SHORT):
        return WARP
    threads = 2 * WARP
    most = MOST_THREADS if points >= BUSY_BLOCKS else 2 * MOST_THREADS
    while threads < most and threads * 4 < inner:
        threads *= 2
    return threads


def _all_loops(step: Map | Reduce) -> tuple[Loop, ...]:
    return (*step.loops, *step.over) if isinstance(step, Reduce) else step.loops


def _inner_points(step: Map | Reduce, depth: int) -> Size:
    return product([loop.extent for loop in _all_loops(step)[depth:]])


# ---------------------------------------------------------------------- local buffers


def _declare_locals(made: _Nest, total: Size, warps: int) -> Size:
    """Declares the buffers that live for one outer point; returns the bytes of shared memory."""
    out, nest = made.out, made.nest
    places: list[tuple[str, str, int]] = []
    shared = 0
    for number, buffer_name in enumerate(nest.local):
        if made.rows is not None and buffer_name in made.rows.local:
            continue
        buffer, name = out.buffers[buffer_name], f"row{number}"
        stored, size = STORED[buffer.dtype], buffer.size
        out.locals[buffer_name] = (name, True)
        bytes_ = size * BYTES[buffer.dtype]
        if size == 1 and _is_uniform(nest, buffer_name):
            out.locals[buffer_name] = (name, False)
            out.line(f"{stored} {name};")
        elif isinstance(bytes_, int) and (shared + bytes_ + 16) * warps <= SHARED:
            places.append((stored, name, shared))
            shared += (bytes_ + 15) // 16 * 16
        else:
            memory = out.scratch_pointer(out.scratch.reserve(total * _round_up(bytes_)), stored, written=True)
            step = _round_up(bytes_) // BYTES[buffer.dtype]
            out.line(f"{stored} *const {name} = {memory} + (int64_t)point * ({out.size(step)});")
    for stored, name, place in places:
        first = f"ig_warp() * {shared} + {place}" if warps > 1 else str(place)
        out.line(f"{stored} *const {name} = ({stored} *)(ig_shared() + {first});")
    return shared * warps


def _round_up(bytes_: Size) -> Size:
    return (bytes_ + 15) // 16 * 16


def _is_uniform(nest: LoopNest, name: str) -> bool:
    """Whether all threads may compute the one element of a buffer: that needs no other thread, and its writer does not
    overwrite what others still read."""
    depth = len(nest.outer)
    for step in nest.steps:
        if all(store.buffer != name for store in step.stores):
            continue
        if len(step.loops) > depth or (isinstance(step, Map) and not _is_repeatable(step)):
            return False
    return True


def _is_repeatable(step: Map) -> bool:
    """Whether several threads may run the step's one point each, all but one without its stores."""
    read, written = reads_and_writes(step)
    return not read & written and not step.collides


# ---------------------------------------------------------------------- steps


def _write_map(made: _Nest, step: Map, loops: Sequence[Loop]) -> None:
    out = made.out
    if not loops:
        _write_point(made, step)
        return
    if step.collides:
        out.open("if (rank == 0)")
        for loop in loops:
            name = loop.variable
            out.open(f"for ({made.type_} {name} = 0; {name} < {out.size(loop.extent)}; ++{name})")
        write_points(out, step.body, (), "0", made.type_, None, use_nothing, step.stores)
        for _ in loops:
            out.close()
        out.close()
        return
    if made.rows is not None:
        _write_kept_map(made, made.rows, step, loops[0])
        return
    vectors = _find_vectors(made, step, loops)
    count = product([loop.extent for loop in loops])
    width = vectors.width if vectors else 1
    out.open(f"for ({made.type_} at = rank; at < {out.size(count // width)}; at += {made.threads})")
    write_points(out, step.body, loops, "at", made.type_, vectors, use_nothing, step.stores)
    out.close()


def _write_kept_map(made: _Nest, rows: RowRegisters, step: Map, loop: Loop) -> None:
    out, names = made.out, rows.names(step, loop)
    vectors = find_row_vectors(out, rows, step, loop)
    common = made.common.get(made.number)
    open_units(out, rows, made.type_, "at")
    write_points(
        out, step.body, (loop,), "at", made.type_, vectors, use_nothing, step.stores, names, rows.local, common
    )
    close_units(out, rows)


def _find_vectors(made: _Nest, step: Map | Reduce, loops: Sequence[Loop]) -> VectorAccesses | None:
    """Vectors along the innermost loop, as wide as leaves work for more than half of the threads."""
    out = made.out
    stores = step.stores if isinstance(step, Map) else ()
    points = out.hint(product([loop.extent for loop in loops]))
    found = find_vectors(out, step.body, stores, loops[-1])
    while found is not None and points // found.width * 2 <= made.threads:
        found = find_vectors(out, step.body, stores, loops[-1], found.width // 2)
    return found


def _write_point(made: _Nest, step: Map) -> None:
    """A step with no inner loop: all threads compute it for themselves, and one stores it to memory."""
    out = made.out
    alone = not _is_repeatable(step)
    if alone:
        out.open("if (rank == 0)")
    code = out.statements(step.body, ())
    out.declare_flags(code)
    for line in (*code.before, *code.inside):
        out.line(line)
    for store in step.stores:
        if alone or is_register(out, store.buffer):
            store_results(out, (store,), code)
    to_memory = [store for store in step.stores if not alone and not is_register(out, store.buffer)]
    if to_memory:
        out.open("if (rank == 0)")
        store_results(out, to_memory, code)
        out.close()
    out.report_flags(code)
    if alone:
        out.close()


def _write_reduce(made: _Nest, step: Reduce, loops: Sequence[Loop]) -> None:
    out, terms = made.out, count_terms(step)
    outputs = product([loop.extent for loop in loops])
    if not loops:
        vectors = _find_vectors(made, step, step.over) if step.over and made.rows is None else None
        each = (terms + made.threads - 1) // made.threads
        accumulators = make_accumulators(step, each)
        declare(out, accumulators)
        _write_terms(made, step, accumulators, vectors, "rank", made.threads)
        merge_block(out, accumulators, made.threads, made.merges)
        made.merges += 1
        _store(made, step, accumulators, "rank == 0")
        return
    if out.hint(outputs) * 2 >= made.threads or reduces_across(step) or out.hint(terms) < 8:
        accumulators = make_accumulators(step, terms)
        out.open(f"for ({made.type_} output = rank; output < {out.size(outputs)}; output += {made.threads})")
        unflatten(out, "output", made.type_, loops)
        declare(out, accumulators)
        _write_terms(made, step, accumulators, None, "0", 1)
        _store(made, step, accumulators, "")
        out.close()
        return
    accumulators = make_accumulators(step, (terms + WARP - 1) // WARP)
    warps = made.threads // WARP
    first = "0" if warps == 1 else "ig_warp()"
    out.open(f"for ({made.type_} output = {first}; output < {out.size(outputs)}; output += {warps})")
    unflatten(out, "output", made.type_, loops)
    declare(out, accumulators)
    _write_terms(made, step, accumulators, find_vectors(out, step.body, (), step.over[-1]), "ig_lane()", WARP)
    merge_lanes(out, accumulators, WARP)
    _store(made, step, accumulators, "ig_lane() == 0")
    out.close()


def _write_terms(
    made: _Nest,
    step: Reduce,
    accumulators: list[Accumulator],
    vectors: VectorAccesses | None,
    first: str,
    by: int,
) -> None:
    out, width = made.out, vectors.width if vectors else 1

    def take(code: CBodyEmitter) -> None:
        place = "(int64_t)term" if vectors is None else f"(int64_t)term * {width} + lane"
        for one, value in zip(accumulators, code.results, strict=True):
            out.line(one.add(value, place))

    if made.rows is not None and step.over:
        rows, (loop,) = made.rows, step.over
        vectors, width = find_row_vectors(out, rows, step, loop), rows.width
        names, common = rows.names(step, loop), made.common.get(made.number)
        open_units(out, rows, made.type_, "term")
        write_points(out, step.body, (loop,), "term", made.type_, vectors, take, kept=names, common=common)
        close_units(out, rows)
        return
    open_terms(out, accumulators, made.type_, first, out.size(count_terms(step) // width), str(by), width)
    write_points(out, step.body, step.over, "term", made.type_, vectors, take)
    close_terms(out, accumulators)


def _store(made: _Nest, step: Reduce, accumulators: list[Accumulator], leader: str) -> None:
    """Registers take the results in every thread, memory from one."""
    out = made.out
    for store in step.stores:
        line = out.store(store, accumulators[store.result].result())
        out.line(line if is_register(out, store.buffer) or not leader else f"if ({leader}) {line}")
