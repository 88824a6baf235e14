"""Points of loops in device text: variables of a place, the body there, and its stores."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from ingot.codegen.c_expressions import COMPUTED, STORED, CBodyEmitter
from ingot.lowering.dtypes import HALVES
from ingot.lowering.index_expr import Expr, bounds
from ingot.lowering.loop_ir import Body, Loop, Store
from ingot.targets.cuda.codegen.kernel_writer import INT_LIMIT, CudaKernelWriter
from ingot.targets.cuda.codegen.loop_kernels.common_values import CommonValue
from ingot.targets.cuda.codegen.loop_kernels.vector_accesses import (
    Place,
    VectorAccesses,
    base_variable,
    first_place,
    load_condition,
    uniform_lines,
)


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
    kept: Mapping[Place, str] | None = None,
    local: Collection[str] = (),
    common: Mapping[int, CommonValue] | None = None,
) -> None:
    """The body at the point, or at the points of the vector, of a place in the loops' row-major order. `use` writes
    what becomes of its results at one point; `stores` are written behind it. Vectors that are `kept` are in registers
    of these names, which stores fill; `local` buffers are nowhere else. Some values of the body are
    `common` with other steps."""
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
    unflatten(out, flat, type_, [*around, Loop(f"{loop.variable}_n", loop.extent // vectors.width)])
    out.line(f"const {type_} {base_variable(loop.variable)} = {loop.variable}_n * {vectors.width};")
    write_vectors(out, body, loop, type_, vectors, use, stores, kept, local, common)


def write_vectors(
    out: CudaKernelWriter,
    body: Body,
    loop: Loop,
    type_: str,
    vectors: VectorAccesses,
    use: Callable[[CBodyEmitter], None],
    stores: Sequence[Store] = (),
    kept: Mapping[Place, str] | None = None,
    local: Collection[str] = (),
    common: Mapping[int, CommonValue] | None = None,
) -> None:
    """The body at the points of one vector along a loop, where the variable of its first point is declared."""
    kept = kept or {}
    width = vectors.width
    out.library.use("vectors.cuh")
    names = {place: kept.get(place, f"x{number}") for number, place in enumerate(vectors.loads)}
    code = write_statements(out, body, loop.variable, names)
    out.declare_flags(code)
    uniform = uniform_lines(out, code, vectors, loop)
    for line in (*code.before, *uniform):
        out.line(line)
    for (buffer, index), load in vectors.loads.items():
        if (buffer, index) in kept:
            continue
        stored, name = STORED[out.buffers[buffer].dtype], names[buffer, index]
        taken = f"ig_load_vector<{stored}, {width}>(&{out.place(buffer, first_place(index, loop))})"
        given = load_condition(code, load)
        out.line(f"ig_vector<{stored}, {width}> {name}{';' if given else f' = {taken};'}")
        if given:
            out.line(f"if ({given}) {name} = {taken};")
    made = [kept.get((store.buffer, store.index), f"y{number}") for number, store in enumerate(stores)]
    dtypes = [out.buffers[store.buffer].dtype for store in stores]
    for name, dtype in zip(made, dtypes, strict=True):
        if name not in kept.values():
            out.line(f"ig_vector<{STORED[dtype]}, {width}> {name};")
    out.lines.append("#pragma unroll")
    out.open(f"for (int lane = 0; lane < {width}; ++lane)")
    out.line(f"const {type_} {loop.variable} = {base_variable(loop.variable)} + lane;")
    hoisted = {_begin(line) for line in uniform}
    shared = {f"const {COMPUTED[body.ops[at].dtype]} {code.prefix}{at} =": one for at, one in (common or {}).items()}
    for line in code.inside:
        begin = _begin(line)
        if begin in hoisted:
            continue
        register = f"{shared[begin].name}[unit][lane]" if begin in shared else ""
        if register and not shared[begin].is_first:
            out.line(f"{begin} {register};")
            continue
        out.line(line)
        if register:
            out.line(f"{register} = {begin.split()[-2]};")
    use(code)
    for name, store, dtype in zip(made, stores, dtypes, strict=True):
        out.line(f"{name}.at[lane] = {stored_result(out, code, store, dtype)};")
    out.close()
    for name, store, dtype in zip(made, stores, dtypes, strict=True):
        if store.buffer in local:
            continue
        out.written.add(store.buffer)
        place = out.place(store.buffer, first_place(store.index, loop))
        out.line(f"ig_store_vector<{STORED[dtype]}, {width}>(&{place}, {name});")
    out.report_flags(code)


def _begin(line: str) -> str:
    """What a declaration declares."""
    return line[: line.find("=") + 1]


def write_statements(out: CudaKernelWriter, body: Body, inner: str, names: dict[Place, str]) -> CBodyEmitter:
    """The body's statements, with loads of these places from vectors."""
    place = out.place
    taken = {key: f"{name}.at[lane]" for key, name in names.items()}
    return out.statements(body, [inner], place=lambda buffer, index: taken.get((buffer, index)) or place(buffer, index))


def store_results(out: CudaKernelWriter, stores: Sequence[Store], code: CBodyEmitter) -> None:
    for store in stores:
        given = code.empty_dims(store.index)
        guard = f"if ({' && '.join(given)}) " if given else ""
        out.line(f"{guard}{out.store(store, code.results[store.result])}")


def stored_result(out: CudaKernelWriter, code: CBodyEmitter, store: Store, dtype: str) -> str:
    """A result as memory has it. One that was rounded to the memory's dtype is rounded once, where it is stored."""
    body = code.body
    op = body.ops[body.results[store.result]]
    is_rounded = op.name == "cast" and op.attribute == dtype and dtype in HALVES
    before = body.ops[op.operands[0]] if is_rounded else op
    if is_rounded and before.dtype == "float32" and before.name not in ("const", "input", *code.given):
        return out.stored_value(dtype, f"{code.prefix}{op.operands[0]}")
    return out.stored_value(dtype, code.results[store.result])


def use_nothing(code: CBodyEmitter) -> None:
    """For bodies whose results are stored only."""
