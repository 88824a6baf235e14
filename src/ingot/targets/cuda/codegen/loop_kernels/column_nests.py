"""Nests in which no element of a row depends on another: threads have vectors of elements, and run all steps for them.

before      max of a window → row       round(row) → y          a warp for each row, which is in shared memory
after       each thread has a few neighbouring elements of a row, in registers
"""

from __future__ import annotations

from dataclasses import dataclass

from ingot.codegen.c_expressions import STORED
from ingot.lowering.index_expr import Size, product
from ingot.lowering.loop_body import reads
from ingot.lowering.loop_ir import Loop, LoopNest, Map, Reduce
from ingot.targets.cuda.codegen.kernel import CudaKernel, Grid
from ingot.targets.cuda.codegen.kernel_writer import CudaKernelWriter
from ingot.targets.cuda.codegen.loop_kernels.accumulators import count_terms
from ingot.targets.cuda.codegen.loop_kernels.loop_points import unflatten, use_nothing, write_vectors
from ingot.targets.cuda.codegen.loop_kernels.row_registers import find_common_vectors, find_passed, general_place
from ingot.targets.cuda.codegen.loop_kernels.vector_accesses import Place, VectorAccesses, base_variable
from ingot.targets.cuda.codegen.loop_kernels.vector_outputs import BLOCK, BUSY, most_width, write_output_vectors

# Terms of a reduction that one thread adds up.
MOST_TERMS = 64
# Threads that a GPU runs at once: a kernel of no more begins before the one before it has ended.
SMALL = 2048 * 132

Step = tuple[Map | Reduce, Loop]


@dataclass(frozen=True, slots=True)
class Columns:
    """The steps with their loops over a row, the vectors of each, and the registers that pass values between them."""

    steps: list[Step]
    vectors: list[VectorAccesses]
    names: dict[Place, str]

    @property
    def width(self) -> int:
        return self.vectors[0].width


def find_columns(out: CudaKernelWriter, nest: LoopNest) -> Columns | None:
    depth = len(nest.outer)
    if not any(isinstance(step, Reduce) for step in nest.steps):
        return None
    if any(len(step.loops) != depth + 1 or not _runs_alone(out, step) for step in nest.steps):
        return None
    steps: list[Step] = [(step, step.loops[depth]) for step in nest.steps]
    if len({loop.extent for _, loop in steps}) != 1:
        return None
    points = out.hint(product([*(loop.extent for loop in nest.outer), steps[0][1].extent]))
    most = min(most_width(step) for step, _ in steps if isinstance(step, Reduce))
    vectors = find_common_vectors(out, steps, most)
    while vectors is not None and vectors[0].width > 2 and points // vectors[0].width < BUSY:
        vectors = find_common_vectors(out, steps, vectors[0].width // 2)
    if vectors is None:
        return None
    passed = find_passed(nest, steps, vectors)
    written = {store.buffer for step in nest.steps for store in step.stores}
    read = {load.buffer for step in nest.steps for load in reads(step.body)}
    if not (written & read | set(nest.local)) <= {buffer for buffer, _ in passed}:
        return None
    return Columns(steps, vectors, {place: f"kept{number}" for number, place in enumerate(passed)})


def _runs_alone(out: CudaKernelWriter, step: Map | Reduce) -> bool:
    if isinstance(step, Map):
        return not step.collides
    return bool(step.over) and most_width(step) >= 2 and out.hint(count_terms(step)) <= MOST_TERMS


def write_columns(out: CudaKernelWriter, nest: LoopNest, made: Columns, type_: str) -> CudaKernel:
    width, extent = made.width, made.steps[0][1].extent
    units: Size = product([*(loop.extent for loop in nest.outer), extent // width])
    out.library.use("vectors.cuh")
    out.line(f"const {type_} at = ({type_})blockIdx.x * {BLOCK} + ({type_})threadIdx.x;")
    out.line(f"if (at >= {out.size(units)}) return;")
    unflatten(out, "at", type_, [*nest.outer, Loop("vector", extent // width)])
    for (buffer, _), name in made.names.items():
        out.line(f"ig_vector<{STORED[out.buffers[buffer].dtype]}, {width}> {name};")
    for (step, loop), vectors in zip(made.steps, made.vectors, strict=True):
        used = [*((load.buffer, load.index) for load in reads(step.body)), *((s.buffer, s.index) for s in step.stores)]
        found = {place: made.names.get(general_place(place, loop)) for place in used}
        kept = {place: name for place, name in found.items() if name is not None}
        out.open("")
        out.line(f"const {type_} {base_variable(loop.variable)} = vector * {width};")
        if isinstance(step, Reduce):
            write_output_vectors(out, step, loop, vectors, type_, kept, nest.local)
        else:
            write_vectors(out, step.body, loop, type_, vectors, use_nothing, step.stores, kept, nest.local)
        out.close()
    return out.finish(Grid((units + BLOCK - 1) // BLOCK), BLOCK, is_small=out.hint(units) <= SMALL)
