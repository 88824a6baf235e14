"""Maps: threads over points, several neighbouring points each where memory is dense there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ingot.codegen.c_expressions import STORED, CBodyEmitter
from ingot.lowering.dependence import body_reads, reads_and_writes
from ingot.lowering.index_expr import Expr, Size, bounds, coefficient_of, product
from ingot.lowering.loop_body import reads
from ingot.lowering.loop_ir import Body, Loop, Map, Store
from ingot.targets.cuda.codegen.kernel import CudaKernel, Grid
from ingot.targets.cuda.codegen.kernel_rules import KERNELS
from ingot.targets.cuda.codegen.kernel_writer import INT_LIMIT, CudaKernelWriter
from ingot.targets.cuda.codegen.vector_accesses import (
    Place,
    VectorAccesses,
    base_variable,
    find_vectors,
    first_place,
    load_condition,
)

BLOCK = 256
# Threads that keep a GPU busy: wider vectors are not worth fewer of them.
BUSY = 132 * 256
# A loop that is run along instead of the last one is at least this long.
WIDE = 16


def unflatten(out: CudaKernelWriter, name: str, type_: str, loops: Sequence[Loop]) -> None:
    """Declares the loops' variables for a place in their row-major order."""
    rest = name
    for number in range(len(loops) - 1, 0, -1):
        loop = loops[number]
        extent = f"({type_})({out.size(loop.extent)})"
        out.line(f"const {type_} {loop.variable} = {rest} % {extent};")
        after = loops[0].variable if number == 1 else f"{name}{number}"
        out.line(f"const {type_} {after} = {rest} / {extent};")
        rest = after
    if len(loops) == 1:
        out.line(f"const {type_} {loops[0].variable} = {rest};")


def loop_type(out: CudaKernelWriter, buffers: Sequence[str], loops: Sequence[Loop], bodies: Sequence[Body]) -> str:
    """The type of loop variables: int where every index and extent is known to fit."""
    type_ = out.index_type(buffers, [loop.extent for loop in loops])
    for body in bodies:
        for op in body.ops:
            if isinstance(op.attribute, Expr) and op.name == "index":
                low, high = bounds(op.attribute)
                if low is None or high is None or low <= -INT_LIMIT or high >= INT_LIMIT:
                    return "int64_t"
    return type_


def write_points(
    out: CudaKernelWriter,
    body: Body,
    loops: Sequence[Loop],
    flat: str,
    type_: str,
    vectors: VectorAccesses | None,
    use: Callable[[CBodyEmitter], None],
    stores: Sequence[Store] = (),
) -> None:
    """The body at the point, or at the points of the vector, of a place in the loops' row-major order. `use` writes
    what becomes of its results at one point; `stores` are written behind it."""
    if vectors is None:
        unflatten(out, flat, type_, loops)
        code = out.statements(body, ())
        out.declare_flags(code)
        for line in (*code.before, *code.inside):
            out.line(line)
        use(code)
        store_results(out, stores, code)
        out.report_flags(code)
        return
    *around, loop = loops
    width, base = vectors.width, base_variable(loop.variable)
    out.library.use("vectors.cuh")
    unflatten(out, flat, type_, [*around, Loop(f"{loop.variable}_n", loop.extent // width)])
    out.line(f"const {type_} {base} = {loop.variable}_n * {width};")
    names = {place: f"x{number}" for number, place in enumerate(vectors.loads)}
    code = write_statements(out, body, loop.variable, names)
    out.declare_flags(code)
    for line in code.before:
        out.line(line)
    for (buffer, index), load in vectors.loads.items():
        stored, name = STORED[out.buffers[buffer].dtype], names[buffer, index]
        taken = f"ig_load_vector<{stored}, {width}>(&{out.place(buffer, first_place(index, loop))})"
        given = load_condition(code, load)
        out.line(f"ig_vector<{stored}, {width}> {name}{';' if given else f' = {taken};'}")
        if given:
            out.line(f"if ({given}) {name} = {taken};")
    kept = [out.buffers[store.buffer].dtype for store in stores]
    for number, dtype in enumerate(kept):
        out.line(f"ig_vector<{STORED[dtype]}, {width}> y{number};")
    out.lines.append("#pragma unroll")
    out.open(f"for (int lane = 0; lane < {width}; ++lane)")
    out.line(f"const {type_} {loop.variable} = {base} + lane;")
    for line in code.inside:
        out.line(line)
    use(code)
    for number, (store, dtype) in enumerate(zip(stores, kept, strict=True)):
        out.line(f"y{number}.at[lane] = {out.stored_value(dtype, code.results[store.result])};")
    out.close()
    for number, (store, dtype) in enumerate(zip(stores, kept, strict=True)):
        out.written.add(store.buffer)
        place = out.place(store.buffer, first_place(store.index, loop))
        out.line(f"ig_store_vector<{STORED[dtype]}, {width}>(&{place}, y{number});")
    out.report_flags(code)


def write_statements(out: CudaKernelWriter, body: Body, inner: str, names: dict[Place, str]) -> CBodyEmitter:
    """The body's statements, with loads of these places from vectors."""
    place = out.place
    taken = {key: f"{name}.at[lane]" for key, name in names.items()}
    return out.statements(
        body, [inner], place=lambda buffer, index: taken.get((buffer, index)) or place(buffer, index)
    )


def store_results(out: CudaKernelWriter, stores: Sequence[Store], code: CBodyEmitter) -> None:
    for store in stores:
        given = code.empty_dims(store.index)
        guard = f"if ({' && '.join(given)}) " if given else ""
        out.line(f"{guard}{out.store(store, code.results[store.result])}")


def use_nothing(code: CBodyEmitter) -> None:
    """For bodies whose results are stored only."""


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
    units = total // vectors.width if vectors else total
    block = BLOCK if out.hint(units) >= BUSY else BLOCK // 2
    out.line(f"const {type_} at = ({type_})blockIdx.x * {block} + ({type_})threadIdx.x;")
    out.line(f"if (at >= {out.size(units)}) return;")
    write_points(out, step.body, loops, "at", type_, vectors, use_nothing, step.stores)
    return out.finish(Grid((units + block - 1) // block), block)


def find_map_vectors(out: CudaKernelWriter, step: Map) -> VectorAccesses | None:
    """Vectors along the innermost loop, the wider the more points there are."""
    found = find_vectors(out, step.body, step.stores, step.loops[-1])
    total = out.hint(product([loop.extent for loop in step.loops]))
    while found is not None and found.width > 2 and total // found.width < BUSY // 2:
        found = find_vectors(out, step.body, step.stores, step.loops[-1], found.width // 2)
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
    """Points in row-major order, where several may write the same element. Those that never meet run beside each
    other: points with different values of a loop that tells the places of all stores apart."""
    read, written = reads_and_writes(step)
    apart: tuple[Loop, ...] = ()
    targets = {store.buffer for store in step.stores}
    if len(targets) == len(step.stores) and not body_reads(step.body) & targets:
        apart = tuple(loop for loop in step.loops if all(_tells_apart(store.index, loop) for store in step.stores))
    along = tuple(loop for loop in step.loops if loop not in apart)
    type_ = loop_type(out, sorted(read | written), step.loops, [step.body])
    total: Size = product([loop.extent for loop in apart])
    block = 1
    if apart:
        block = BLOCK // 2
        out.line(f"const {type_} at = ({type_})blockIdx.x * {block} + ({type_})threadIdx.x;")
        out.line(f"if (at >= {out.size(total)}) return;")
        unflatten(out, "at", type_, apart)
    for loop in along:
        out.open(
            f"for ({type_} {loop.variable} = 0; {loop.variable} < {out.size(loop.extent)}; ++{loop.variable})"
        )
    code = out.statements(step.body, ())
    out.declare_flags(code)
    for line in (*code.before, *code.inside):
        out.line(line)
    store_results(out, step.stores, code)
    out.report_flags(code)
    for _ in along:
        out.close()
    return out.finish(Grid((total + block - 1) // block), block)


def _tells_apart(index: Size, loop: Loop) -> bool:
    """Whether two points with different values of the loop's variable always have different indices: what it is
    multiplied by steps over all smaller terms, and the others are multiples of what it runs over."""
    by = coefficient_of(index, loop.variable)
    if not isinstance(index, Expr) or not isinstance(by, int) or by < 1 or not isinstance(loop.extent, int):
        return False
    whole = by * loop.extent
    small: Size = 0
    for term, coefficient in index.terms.items():
        if any(getattr(atom, "name", None) == loop.variable for atom in term):
            continue
        if coefficient % whole:
            small = small + Expr({term: coefficient})
    low, high = bounds(small)
    return low is not None and high is not None and low >= 0 and high < by
