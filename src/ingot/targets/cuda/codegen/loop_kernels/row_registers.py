"""Rows of a nest that threads keep in registers: each thread has the same elements in every step.

    before      max of x    exp(x) → row    sum of row    row / sum → y      x is read twice, row is in shared memory
    after       the thread's elements of x are loaded once, and those of row never leave the thread

Each thread has `count` vectors of `width` neighbouring elements, one in every `threads`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ingot.codegen.c_expressions import STORED
from ingot.lowering.dtypes import BYTES
from ingot.lowering.index_expr import BodyValue, Expr, Size, substitute, symbol
from ingot.lowering.loop_body import reads
from ingot.lowering.loop_ir import Loop, LoopNest, Map, Reduce
from ingot.targets.cuda.codegen.device_library import DeviceLibrary
from ingot.targets.cuda.codegen.kernel import WARP
from ingot.targets.cuda.codegen.kernel_writer import CudaKernelWriter
from ingot.targets.cuda.codegen.loop_kernels.accumulators import RUN
from ingot.targets.cuda.codegen.loop_kernels.vector_accesses import (
    WIDTHS,
    Place,
    VectorAccesses,
    find_vectors,
)

# Bytes of elements that a thread keeps: 48 of its registers.
MOST_BYTES = 192
# Threads of a row at most; vectors of a thread where a row has a warp, and where it has a block and rows are many.
MOST_THREADS = 512
WARP_VECTORS = 4
BLOCK_VECTORS = 2
# Rows that keep a GPU busy with a warp each, with a block each, and with blocks of several warps.
BUSY_ROWS = 16 * 132
BUSY_BLOCKS = 132
MANY_BLOCKS = 8 * 132

_ALONG = "along"


@dataclass(frozen=True, slots=True)
class RowRegisters:
    """The arrays of registers of each thread, by the place of the row's elements that they hold: `loads` are filled
    before the first step, `passed` by the step that computes them. `local` buffers have no other memory."""

    width: int
    units: int
    threads: int
    loads: dict[Place, str]
    passed: dict[Place, str]
    local: frozenset[str]

    @property
    def count(self) -> int:
        return -(-self.units // self.threads)

    def names(self, step: Map | Reduce, loop: Loop) -> dict[Place, str]:
        """The registers of the places that a step uses, in the loop over `unit`."""
        known = self.loads | self.passed
        used = [*((load.buffer, load.index) for load in reads(step.body)), *((s.buffer, s.index) for s in step.stores)]
        found = {place: known.get(general_place(place, loop)) for place in used}
        return {place: f"{name}[unit]" for place, name in found.items() if name is not None}


def row_loops(nest: LoopNest) -> Iterator[tuple[int, Map | Reduce, Loop]]:
    """The steps that go over a row, with their numbers and loops."""
    for number, (step, loop) in enumerate(_row_steps(nest)):
        if step is not None and loop is not None:
            yield number, step, loop


def find_row_registers(out: CudaKernelWriter, nest: LoopNest, threads: int = 0) -> RowRegisters | None:
    """None unless all steps go over the same row in vectors, or have one point. `threads` are those of a row, where
    that is given."""
    steps = list(_row_steps(nest))
    extents = {loop.extent for _, loop in steps if loop is not None}
    if len(extents) != 1 or any(step is None for step, _ in steps):
        return None
    (extent,) = extents
    rows = [(step, loop) for _, step, loop in row_loops(nest)]
    if not isinstance(extent, int) or not extent:
        return None
    vectors = find_common_vectors(out, rows)
    if vectors is None:
        return None
    width = vectors[0].width
    points = 1
    for outer in nest.outer:
        points *= out.hint(outer.extent)
    units = extent // width
    threads = threads or choose_row_threads(points, units)
    count = -(-units // threads)
    if count * width > RUN:
        return None
    passed = find_passed(nest, rows, vectors)
    written = {store.buffer for step in nest.steps for store in step.stores}
    uses: dict[Place, int] = {}
    for (_, loop), found in zip(rows, vectors, strict=True):
        for place, load in found.loads.items():
            is_fixed = place[0] not in written and place[0] not in nest.local
            if is_fixed and load.mask is None and not _is_computed(place[1]):
                key = general_place(place, loop)
                uses[key] = uses.get(key, 0) + 1
    chosen: dict[Place, str] = {}
    left = MOST_BYTES
    for place in (*passed, *sorted(uses, key=lambda place: -uses[place])):
        bytes_ = BYTES[out.buffers[place[0]].dtype] * width * count
        if bytes_ <= left:
            left -= bytes_
            chosen[place] = f"kept{len(chosen)}"
    if not chosen:
        return None
    loads = {place: name for place, name in chosen.items() if place in uses}
    computed = {place: name for place, name in chosen.items() if place not in uses}
    local = frozenset(buffer for buffer, _ in computed if buffer in nest.local)
    return RowRegisters(width, units, threads, loads, computed, local)


def find_row_vectors(
    out: CudaKernelWriter, made: RowRegisters, step: Map | Reduce, loop: Loop
) -> VectorAccesses | None:
    """The vectors of one step."""
    return find_vectors(_probe(out), step.body, step.stores if isinstance(step, Map) else (), loop, made.width)


def _probe(out: CudaKernelWriter) -> CudaKernelWriter:
    """A writer to ask: the kernel's pointers are those that its own text uses."""
    return CudaKernelWriter(out.buffers, DeviceLibrary(), out.hints)


def choose_row_threads(points: int, units: int) -> int:
    """A warp for a short row; else a vector for each thread, or a few where there are blocks enough."""
    if units <= WARP or (points >= BUSY_ROWS and units <= WARP * WARP_VECTORS):
        return WARP
    each = 1 if points < MANY_BLOCKS else BLOCK_VECTORS
    while -(-units // each) > MOST_THREADS:
        each += 1
    return (-(-units // each) + WARP - 1) // WARP * WARP


def declare_row_registers(out: CudaKernelWriter, made: RowRegisters, type_: str) -> None:
    """Declares the registers and fills those of `loads`. Weights come first: they may be read before the kernel waits
    for the one before it."""
    out.library.use("vectors.cuh")
    for (buffer, _), name in (made.loads | made.passed).items():
        out.line(f"ig_vector<{STORED[out.buffers[buffer].dtype]}, {made.width}> {name}[{made.count}];")
    weights = {place: name for place, name in made.loads.items() if out.buffers[place[0]].kind == "weight"}
    others = {place: name for place, name in made.loads.items() if place not in weights}
    _load(out, made, weights, type_)
    out.wait_at = len(out.lines)
    _load(out, made, others, type_)


def _load(out: CudaKernelWriter, made: RowRegisters, loads: dict[Place, str], type_: str) -> None:
    if not loads:
        return
    open_units(out, made, type_, "at")
    out.line(f"const {type_} {_ALONG} = at * {made.width};")
    for (buffer, index), name in loads.items():
        stored = STORED[out.buffers[buffer].dtype]
        out.line(f"{name}[unit] = ig_load_vector<{stored}, {made.width}>(&{out.place(buffer, index)});")
    close_units(out, made)


def open_units(out: CudaKernelWriter, made: RowRegisters, type_: str, name: str) -> None:
    """Opens the loop over the thread's vectors; `name` is the number of one in its row."""
    out.lines.append("#pragma unroll")
    out.open(f"for (int unit = 0; unit < {made.count}; ++unit)")
    out.line(f"const {type_} {name} = rank + unit * {made.threads};")
    if made.units % made.threads:
        out.open(f"if ({name} < {made.units})")


def close_units(out: CudaKernelWriter, made: RowRegisters) -> None:
    if made.units % made.threads:
        out.close()
    out.close()


# ---------------------------------------------------------------------- which


def _row_steps(nest: LoopNest) -> Iterator[tuple[Map | Reduce | None, Loop | None]]:
    """Each step with its loop over the row, if it has one; None for a step of another kind."""
    depth = len(nest.outer)
    for step in nest.steps:
        own = step.loops[depth:]
        loops = (*own, *step.over) if isinstance(step, Reduce) else own
        is_scatter = isinstance(step, Map) and step.collides
        if len(loops) > 1 or is_scatter or (isinstance(step, Reduce) and own):
            yield None, None
        else:
            yield step, loops[0] if loops else None


def find_common_vectors(
    out: CudaKernelWriter, rows: Sequence[tuple[Map | Reduce, Loop]], most: int = WIDTHS[0]
) -> list[VectorAccesses] | None:
    """Vectors of one width in all steps. Those of a reduction that has outputs along the loop include its stores."""
    probe = _probe(out)
    while True:
        found = []
        for step, loop in rows:
            stores = step.stores if loop in step.loops else ()
            vectors = find_vectors(probe, step.body, stores, loop, most)
            if vectors is None:
                return None
            found.append(vectors)
        least = min(one.width for one in found)
        if all(one.width == least for one in found):
            return found
        most = least


def find_passed(
    nest: LoopNest, rows: Sequence[tuple[Map | Reduce, Loop]], vectors: Sequence[VectorAccesses]
) -> dict[Place, None]:
    """Places that steps write and read, and whose buffers are used nowhere else in the nest."""
    uses: dict[str, int] = {}
    for step in nest.steps:
        for name in (*(load.buffer for load in reads(step.body)), *(store.buffer for store in step.stores)):
            uses[name] = uses.get(name, 0) + 1
    alike: dict[Place, int] = {}
    stored: set[Place] = set()
    passed: set[Place] = set()
    for (step, loop), found in zip(rows, vectors, strict=True):
        for load in reads(step.body):
            key = general_place((load.buffer, load.index), loop)
            is_plain = (load.buffer, load.index) in found.loads and load.mask is None and not _is_computed(load.index)
            if is_plain and key in stored:
                alike[key] += 1
                passed.add(key)
        for store in step.stores:
            key = general_place((store.buffer, store.index), loop)
            alike[key] = alike.get(key, 0) + 1
            stored.add(key)
    return {place: None for place in alike if place in passed and alike[place] == uses[place[0]]}


def general_place(place: Place, loop: Loop) -> Place:
    """A place with the one variable that stands for all steps' loops over the row."""
    return place[0], substitute(place[1], {loop.variable: symbol(_ALONG, below=loop.extent)})


def _is_computed(index: Size) -> bool:
    return isinstance(index, Expr) and any(isinstance(s, BodyValue) for s in index.symbols)
