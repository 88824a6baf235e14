"""Maps: threads over points, several neighbouring points each where memory is dense there."""

from __future__ import annotations

from dataclasses import replace

from ingot.codegen.c_expressions import STORED, CBodyEmitter
from ingot.lowering.dependence import body_reads, reads_and_writes
from ingot.lowering.index_expr import Expr, Size, bounds, coefficient_of, product
from ingot.lowering.loop_body import reads
from ingot.lowering.loop_ir import Loop, Map, Store
from ingot.targets.cuda.codegen.kernel import CudaKernel, Grid
from ingot.targets.cuda.codegen.kernel_rules import KERNELS
from ingot.targets.cuda.codegen.kernel_writer import CudaKernelWriter
from ingot.targets.cuda.codegen.loop_kernels.loop_points import (
    loop_type,
    store_results,
    unflatten,
    use_nothing,
    write_points,
)
from ingot.targets.cuda.codegen.loop_kernels.transposed_maps import find_transposition, write_transposed
from ingot.targets.cuda.codegen.loop_kernels.vector_accesses import VectorAccesses, find_vectors

BLOCK = 256
# Threads that keep a GPU busy: wider vectors are not worth fewer of them.
BUSY = 132 * 256
# Threads that a GPU runs at once: a kernel of no more begins before the one before it has ended.
SMALL = 132 * 2048
# A loop that is run along instead of the last one is at least this long.
WIDE = 16


# ---------------------------------------------------------------------- maps


@KERNELS.register(Map)
def write_map(out: CudaKernelWriter, step: Map) -> CudaKernel:
    if step.collides:
        return _write_scatter(out, step)
    step = order_loops(step)
    loops = step.loops
    read, written = reads_and_writes(step)
    total: Size = product([loop.extent for loop in loops])
    type_ = loop_type(out, sorted(read | written), loops, [step.body])
    vectors = find_map_vectors(out, step) if loops else None
    transposition = find_transposition(out, step) if loops and vectors is None else None
    if transposition is not None:
        return write_transposed(out, step, transposition)
    units = total // vectors.width if vectors else total
    block = BLOCK if out.hint(units) >= BUSY else BLOCK // 2
    out.line(f"const {type_} at = ({type_})blockIdx.x * {block} + ({type_})threadIdx.x;")
    out.line(f"if (at >= {out.size(units)}) return;")
    write_points(out, step.body, loops, "at", type_, vectors, use_nothing, step.stores)
    return out.finish(Grid((units + block - 1) // block), block, is_small=out.hint(units) <= SMALL)


def find_map_vectors(out: CudaKernelWriter, step: Map) -> VectorAccesses | None:
    """Vectors along the innermost loop, the wider the more points there are. Where that loop is short, neighbouring
    threads are neighbours along the one around it: loads may run along that one."""
    inner = step.loops[-1]
    found = find_vectors(out, step.body, step.stores, inner)
    gathers = found is None and isinstance(inner.extent, int) and inner.extent < WIDE
    if gathers:
        found = find_vectors(out, step.body, step.stores, inner, gathers=True)
    total = out.hint(product([loop.extent for loop in step.loops]))
    while found is not None and found.width > 2 and total // found.width < BUSY // 2:
        found = find_vectors(out, step.body, step.stores, inner, found.width // 2, gathers=gathers)
    return found


def order_loops(step: Map) -> Map:
    """The same points in another order: innermost the loop along which memory is dense, stores before loads."""
    if len(step.loops) < 2:
        return step

    def dense(loop: Loop) -> tuple[int, int]:
        stores = sum(coefficient_of(store.index, loop.variable) == 1 for store in step.stores)
        return stores, sum(coefficient_of(load.index, loop.variable) == 1 for load in reads(step.body))

    *_, last = step.loops
    long = [loop for loop in step.loops if not isinstance(loop.extent, int) or loop.extent >= WIDE]
    best = max(long, key=dense, default=last)
    if dense(best) <= dense(last):
        return step
    return replace(step, loops=(*(loop for loop in step.loops if loop is not best), best))


# ---------------------------------------------------------------------- scatters


def _write_scatter(out: CudaKernelWriter, step: Map) -> CudaKernel:
    block = 1 if count_apart(out, step) is None else BLOCK // 2
    total = write_scatter_points(out, step, f"blockIdx.x * {block} + threadIdx.x" if block > 1 else "")
    return out.finish(Grid((total + block - 1) // block), block, is_small=out.hint(total) <= SMALL)


def count_apart(out: CudaKernelWriter, step: Map) -> Size | None:
    """How many threads a scatter has; None if its points all run in one."""
    apart, _ = _split_loops(out, step)
    return product([loop.extent for loop in apart]) if apart else None


def _split_loops(out: CudaKernelWriter, step: Map) -> tuple[tuple[Loop, ...], bool]:
    """The loops that threads go over, and whether all points may run in any order."""
    targets = {store.buffer for store in step.stores}
    is_plain = len(targets) == len(step.stores) and not body_reads(step.body) & targets
    if is_plain and all(_is_unordered(out, store) for store in step.stores):
        return step.loops, True
    apart = [loop for loop in step.loops if all(_tells_apart(store.index, loop) for store in step.stores)]
    return tuple(apart) if is_plain else (), False


def write_scatter_points(out: CudaKernelWriter, step: Map, thread: str) -> Size:
    """Points in row-major order, where several may write the same element. Those that never meet run beside each
    other: points with different values of a loop that separates the addresses of all stores. So do all points where
    the order does not matter. Returns how many threads it takes; `thread` is the number of one, where there are
    several."""
    read, written = reads_and_writes(step)
    apart, in_any_order = _split_loops(out, step)
    along = tuple(loop for loop in step.loops if loop not in apart)
    type_ = loop_type(out, sorted(read | written), step.loops, [step.body])
    total: Size = product([loop.extent for loop in apart])
    if thread:
        out.line(f"const {type_} at = ({type_})({thread});")
        out.line(f"if (at >= {out.size(total)}) return;")
    if apart:
        unflatten(out, "at", type_, apart)
    for loop in along:
        out.open(f"for ({type_} {loop.variable} = 0; {loop.variable} < {out.size(loop.extent)}; ++{loop.variable})")
    code = out.statements(step.body, ())
    out.declare_flags(code)
    for line in (*code.before, *code.inside):
        out.line(line)
    for store in step.stores:
        if in_any_order:
            _accumulate(out, store, code)
        else:
            store_results(out, (store,), code)
    out.report_flags(code)
    for _ in along:
        out.close()
    return total


def _is_unordered(out: CudaKernelWriter, store: Store) -> bool:
    """Whether a store gives the same in any order of points: sums and extremes of integers, and bools that become
    true."""
    dtype = out.buffers[store.buffer].dtype
    if dtype == "bool":
        return store.mode in ("add", "max")
    return dtype in ("int32", "int64") and store.mode in ("add", "max", "min")


def _accumulate(out: CudaKernelWriter, store: Store, code: CBodyEmitter) -> None:
    """A store that many threads may do to one element at once."""
    out.written.add(store.buffer)
    dtype, value = out.buffers[store.buffer].dtype, code.results[store.result]
    place = out.place(store.buffer, store.index)
    given = code.empty_dims(store.index)
    if dtype == "bool":
        out.line(f"if ({' && '.join([*given, f'({value}) != 0'])}) {place} = 1;")
        return
    out.library.use("atomics.cuh")
    guard = f"if ({' && '.join(given)}) " if given else ""
    out.line(f"{guard}ig_atomic_{store.mode}(&{place}, ({STORED[dtype]})({value}));")


def _tells_apart(index: Size, loop: Loop) -> bool:
    """Whether two points with different values of the loop's variable always have different indices: what it is
    multiplied by steps over all smaller terms, and the others are multiples of what it runs over."""
    by = coefficient_of(index, loop.variable)
    if not isinstance(index, Expr) or not isinstance(by, int) or by < 1:
        return False
    whole = by * loop.extent if isinstance(loop.extent, int) else 0
    small: Size = 0
    for term, coefficient in index.terms.items():
        if any(getattr(atom, "name", None) == loop.variable for atom in term):
            continue
        if not whole or coefficient % whole:
            small = small + Expr({term: coefficient})
    low, high = bounds(small)
    return low is not None and high is not None and low >= 0 and high < by
