"""Reductions across memory where each thread computes several neighbouring outputs: its loads are vectors of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ingot.codegen.c_expressions import STORED, CBodyEmitter
from ingot.lowering.index_expr import Size, product
from ingot.lowering.loop_ir import Loop, Reduce
from ingot.targets.cuda.codegen.kernel import CudaKernel, Grid
from ingot.targets.cuda.codegen.kernel_writer import CudaKernelWriter
from ingot.targets.cuda.codegen.loop_kernels.accumulators import Accumulator, count_terms, make_accumulators
from ingot.targets.cuda.codegen.loop_kernels.loop_points import unflatten, write_vectors
from ingot.targets.cuda.codegen.loop_kernels.vector_accesses import (
    Place,
    VectorAccesses,
    base_variable,
    find_vectors,
    first_place,
)

BLOCK = 128
# Threads that keep a GPU busy: wider vectors are not worth fewer of them.
BUSY = 64 * 132
# Terms up to which all loads are in flight at once, and variables of a thread.
UNROLLED = 16
MOST_VARIABLES = 32


def most_width(step: Reduce) -> int:
    """Outputs that a thread may have at once; 0 where a sum is carried in float64."""
    accumulators = make_accumulators(step, count_terms(step))
    names = sum(len(one.variables()) for one in accumulators)
    return 0 if any(one.wide for one in accumulators) else MOST_VARIABLES // max(names, 1)


def find_output_vectors(out: CudaKernelWriter, step: Reduce) -> VectorAccesses | None:
    """Vectors along the innermost loop of the outputs, the wider the more outputs there are."""
    if not step.loops or not step.over:
        return None
    outputs = out.hint(product([loop.extent for loop in step.loops]))
    width = most_width(step)
    while width >= 2:
        found = find_vectors(out, step.body, step.stores, step.loops[-1], width)
        if found is None or (found.loads and (found.width == 2 or outputs // found.width >= BUSY)):
            return found
        width = found.width // 2
    return None


def write_vector_outputs(out: CudaKernelWriter, step: Reduce, vectors: VectorAccesses, type_: str) -> CudaKernel:
    """A thread for each vector of outputs, which runs over their terms."""
    *around, loop = step.loops
    width = vectors.width
    units: Size = product([*(other.extent for other in around), loop.extent // width])
    out.library.use("vectors.cuh")
    out.line(f"const {type_} output = ({type_})blockIdx.x * {BLOCK} + ({type_})threadIdx.x;")
    out.line(f"if (output >= {out.size(units)}) return;")
    unflatten(out, "output", type_, [*around, Loop(f"{loop.variable}_n", loop.extent // width)])
    out.line(f"const {type_} {base_variable(loop.variable)} = {loop.variable}_n * {width};")
    write_output_vectors(out, step, loop, vectors, type_, {}, ())
    return out.finish(Grid((units + BLOCK - 1) // BLOCK), BLOCK)


def write_output_vectors(
    out: CudaKernelWriter,
    step: Reduce,
    loop: Loop,
    vectors: VectorAccesses,
    type_: str,
    kept: Mapping[Place, str],
    local: Collection[str],
) -> None:
    """One vector of outputs along a loop, where the variable of the first one is declared. Stores fill the registers
    that are `kept`, and write all but `local` buffers."""
    width, terms = vectors.width, count_terms(step)
    accumulators = make_accumulators(step, terms)
    for one in accumulators:
        for kind, name, start in one.variables():
            out.line(f"{kind} all_{name}[{width}];")
            out.line(f"for (int lane = 0; lane < {width}; ++lane) all_{name}[lane] = {start};")
    if isinstance(terms, int) and terms <= UNROLLED:
        out.lines.append("#pragma unroll")
    out.open(f"for ({type_} term = 0; term < {out.size(terms)}; ++term)")
    unflatten(out, "term", type_, step.over)

    def take(code: CBodyEmitter) -> None:
        for one, value in zip(accumulators, code.results, strict=True):
            _refer(out, one)
            out.line(one.add(value, "(int64_t)term"))

    write_vectors(out, step.body, loop, type_, vectors, take, kept=kept)
    out.close()
    for number, store in enumerate(step.stores):
        dtype, one = out.buffers[store.buffer].dtype, accumulators[store.result]
        name = kept.get((store.buffer, store.index), f"y{number}")
        if name == f"y{number}":
            out.line(f"ig_vector<{STORED[dtype]}, {width}> {name};")
        out.lines.append("#pragma unroll")
        out.open(f"for (int lane = 0; lane < {width}; ++lane)")
        _refer(out, one)
        out.line(f"{name}.at[lane] = {out.stored_value(dtype, one.result())};")
        out.close()
        if store.buffer in local:
            continue
        out.written.add(store.buffer)
        place = out.place(store.buffer, first_place(store.index, loop))
        out.line(f"ig_store_vector<{STORED[dtype]}, {width}>(&{place}, {name});")


def _refer(out: CudaKernelWriter, one: Accumulator) -> None:
    """Gives the variables of a lane's output the names that the accumulator has for them."""
    for kind, name, _ in one.variables():
        out.line(f"{kind} &{name} = all_{name}[lane];")
