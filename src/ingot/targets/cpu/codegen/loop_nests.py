"""Loop kernels as C: a LoopNest is one function; its steps follow one another inside the shared outer loops.

    IG_KERNEL void k3(void *context, int64_t begin, int64_t end, int worker)
    {
        const ig_call *const c = context;
        const float *const p0 = c->p[0];  float *const p1 = c->p[1];
        for (int64_t o = begin; o < end; ++o) {                 a chunk of the outer points, in row-major order
            const int64_t i0 = o / 12, i1 = o % 12;
            { … one step … }
        }
    }

The innermost loop of a step runs under `#pragma omp simd`. A reduction runs along its own innermost loop, or, where
memory runs along an output's loop instead, over a block of outputs at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ingot.codegen.c_expressions import COMPUTED, STORED, CBodyEmitter, constant_text
from ingot.lowering.dtypes import BYTES
from ingot.lowering.index_expr import Size, product
from ingot.lowering.loop_ir import Loop, LoopNest, Map, Reduce
from ingot.targets.cpu.codegen.int8_vectors import LANES, VectorEmitter, writes_bytes
from ingot.targets.cpu.codegen.kernel_writer import CKernelWriter, Kernel
from ingot.targets.cpu.schedule.loop_order import is_outer_reduction

# Outputs that a reduction across memory keeps at a time.
BLOCK = 64
# Terms of a float32 sum that are added before the sum moves on to float64: along memory, where every lane of a vector
# has a sum of its own, and across it, where one sum takes all of them. Few, since equal terms all round the same way.
RUN = 256
RUN_ACROSS = 16
# Bytes of a local array that may lie on the stack.
STACK = 16384
# Elements of work that are worth another thread.
GRAIN = 16384


# ---------------------------------------------------------------------- nests


def as_nest(step: Map | Reduce | LoopNest) -> LoopNest:
    """A lone step as a nest: all loops but the one that is best run along."""
    if isinstance(step, LoopNest):
        return step
    if isinstance(step, Reduce) and not is_outer_reduction(step):
        return LoopNest(step.loops, (step,), (), step.origin)
    return LoopNest(step.loops[:-1], (step,), (), step.origin)


def loop_kernel(out: CKernelWriter, step: Map | Reduce | LoopNest) -> Kernel:
    nest = as_nest(step)
    serial = isinstance(step, Map) and step.collides
    if isinstance(step, Map) and len(step.loops) == 1 and not serial:
        (loop,) = step.loops
        _map(out, step, (loop,), "begin", "end")
        return out.finish(loop.extent, GRAIN)
    total = product([loop.extent for loop in nest.outer])
    work = max(1, max((out.hint(_inner_work(s, len(nest.outer))) for s in nest.steps), default=1))
    if not nest.outer:
        out.line("(void)begin; (void)end;")
        for inner in nest.steps:
            _step(out, inner, 0)
        return out.finish(1, 1)
    out.open("for (int64_t o = begin; o < end; ++o)")
    unflatten(out, "o", nest.outer)
    _locals(out, nest)
    for inner in nest.steps:
        _step(out, inner, len(nest.outer))
    out.close()
    grain: Size = total if serial else max(1, GRAIN // work)
    return out.finish(total, grain)


def _inner_work(step: Map | Reduce, outer: int) -> Size:
    loops = step.loops[outer:] + (step.over if isinstance(step, Reduce) else ())
    return product([loop.extent for loop in loops]) * (1 + len(step.body.ops) // 8)


def unflatten(out: CKernelWriter, name: str, loops: Sequence[Loop]) -> None:
    """Declares the loops' variables for a place in their row-major order."""
    rest = name
    for number in range(len(loops) - 1, 0, -1):
        loop = loops[number]
        extent = out.size(loop.extent)
        out.line(f"const int64_t {loop.variable} = {rest} % ({extent});")
        if number == 1:
            out.line(f"const int64_t {loops[0].variable} = {rest} / ({extent});")
        else:
            out.line(f"const int64_t {name}{number} = {rest} / ({extent});")
            rest = f"{name}{number}"
    if len(loops) == 1:
        out.line(f"const int64_t {loops[0].variable} = {rest};")


def _locals(out: CKernelWriter, nest: LoopNest) -> None:
    """Declares the buffers that live for one outer point: a variable, an array, or a piece of the worker's scratch."""
    on_stack = 0
    for number, buffer_name in enumerate(nest.local):
        buffer, name = out.buffers[buffer_name], f"row{number}"
        stored, size = STORED[buffer.dtype], buffer.size
        out.locals[buffer_name] = (name, size != 1)
        if size == 1:
            out.line(f"{stored} {name};")
        elif isinstance(size, int) and on_stack + size * BYTES[buffer.dtype] <= STACK:
            on_stack += size * BYTES[buffer.dtype]
            out.line(f"_Alignas(64) {stored} {name}[{size}];")
        else:
            out.own(name, stored, size * BYTES[buffer.dtype])


def _step(out: CKernelWriter, step: Map | Reduce, outer: int) -> None:
    out.open("")
    if isinstance(step, Map):
        _map(out, step, step.loops[outer:], "0", None)
    elif len(step.loops) > outer:
        _reduce_across(out, step, step.loops[outer:])
    else:
        _reduce_along(out, step)
    out.close()


# ---------------------------------------------------------------------- maps


def _store_results(out: CKernelWriter, step: Map, code: CBodyEmitter) -> None:
    for store in step.stores:
        given = code.empty_dims(store.index)
        guard = f"if ({' && '.join(given)}) " if given else ""
        out.line(f"{guard}{out.store(store, code.results[store.result])}")


def _map(out: CKernelWriter, step: Map, loops: Sequence[Loop], begin: str, end: str | None) -> None:
    if not loops:
        code = out.statements(step.body, ())
        declare_flags(out, code)
        for line in (*code.before, *code.inside):
            out.line(line)
        _store_results(out, step, code)
        report_flags(out, code)
        return
    *around, inner = loops
    code = out.statements(step.body, [inner.variable])
    declare_flags(out, code)
    for loop in around:
        out.open(f"for (int64_t {loop.variable} = 0; {loop.variable} < {out.size(loop.extent)}; ++{loop.variable})")
    for line in code.before:
        out.line(line)
    limit = end if end is not None else out.size(inner.extent)
    if not step.collides:
        begin = _map_by_lanes(out, VectorEmitter(out, replace(step, loops=(inner,)), code), begin, limit)
    simd(out, step.collides, flag_clauses(code))
    out.open(f"for (int64_t {inner.variable} = {begin}; {inner.variable} < {limit}; ++{inner.variable})")
    for line in code.inside:
        out.line(line)
    _store_results(out, step, code)
    out.close()
    for _ in around:
        out.close()
    report_flags(out, code)


def _map_by_lanes(out: CKernelWriter, lanes: VectorEmitter, begin: str, end: str) -> str:
    """As many columns as vectors by hand can do, where bytes are written; returns where the others begin."""
    if not writes_bytes(out, lanes.map) or not lanes.prepare() or lanes.parts:
        return begin
    out.library.by_lanes = True
    j = lanes.column
    out.directive("#if IG_BY_LANES")
    out.line(f"const int64_t beyond = {begin} + ({end} - {begin}) / {LANES} * {LANES};")
    out.open(f"for (int64_t {j} = {begin}; {j} < beyond; {j} += {LANES})")
    for line in lanes.write():
        out.line(line)
    out.close()
    out.directive("#else")
    out.line(f"const int64_t beyond = {begin};")
    out.directive("#endif")
    return "beyond"


def simd(out: CKernelWriter, serial: bool, clause: str = "") -> None:
    """The next loop runs along vectors, unless its order matters."""
    if not serial:
        out.lines.append("    " * out.depth + f"#pragma omp simd {clause}".rstrip())


def declare_flags(out: CKernelWriter, code: CBodyEmitter) -> None:
    """What the statements set where an index or a divisor is bad; `report_flags` goes behind them."""
    for line in flag_declarations(code):
        out.line(line)


def flag_declarations(code: CBodyEmitter) -> list[str]:
    lines = ["int bad = 0;"] if any(check.has_flag for check in code.checks) else []
    lines += [f"uint64_t {check.worst} = 0;" for check in code.checks if check.worst]
    return lines + (["int zero = 0;"] if code.zero_checks else [])


def flag_clauses(code: CBodyEmitter) -> str:
    """What a loop along vectors says of the flags that are set in it."""
    inside = [check for check in code.checks if check.is_inside]
    clauses = ["reduction(|:bad)"] if any(check.has_flag for check in inside) else []
    worst = ", ".join(check.worst for check in inside if check.worst)
    return " ".join([*clauses, f"reduction(max:{worst})"] if worst else clauses)


def index_reports(code: CBodyEmitter, run: str, site: str) -> list[str]:
    """The statements that fail the run where an index is wrong, and say which."""
    lines = []
    for check in code.checks:
        if check.worst:
            wrong = f"{check.worst} >= (uint64_t)({check.size})"
            if check.has_flag:
                wrong = f"bad && {wrong}"
            arguments = f"{run}, {site}, {check.worst}, {check.size}, {int(check.wraps)}"
            lines.append(f"if ({wrong}) ig_fail_index({arguments});")
    if any(check.has_flag for check in code.checks):
        lines.append(f"if (bad) ig_fail_run({run}, INGOT_INDEX, {site});")
    return lines


def report_flags(out: CKernelWriter, code: CBodyEmitter) -> None:
    for line in index_reports(code, "c->run", "c->site"):
        out.line(line)
    if code.zero_checks:
        out.line("if (zero) ig_fail(c, INGOT_ZERO_DIVISION);")


# ---------------------------------------------------------------------- reductions

_OPERATORS = {"sum": "+", "prod": "*", "any": "|", "all": "&", "max": "max", "min": "min"}


def _start(kind: str, dtype: str) -> str:
    if kind in ("max", "min"):
        sign = "-" if kind == "max" else ""
        if dtype in ("float32", "float64"):
            return f"{sign}INF_{'F32' if dtype == 'float32' else 'F64'}"
        if dtype == "bool":
            return "0" if kind == "max" else "1"
        low, high = (
            (0, 2 ** (8 * BYTES[dtype]) - 1)
            if dtype[0] == "u"
            else (-(2 ** (8 * BYTES[dtype] - 1)), 2 ** (8 * BYTES[dtype] - 1) - 1)
        )
        return (
            constant_text(low if kind == "max" else high, dtype)
            if dtype != "uint64"
            else ("0" if kind == "max" else "UINT64_MAX")
        )
    return "1" if kind in ("prod", "all") else "0"


def _combine(kind: str, accumulator: str, value: str) -> str:
    if kind in ("max", "min"):
        return f"{accumulator} = {value} {'>' if kind == 'max' else '<'} {accumulator} ? {value} : {accumulator};"
    if kind in ("any", "all"):
        return f"{accumulator} {_OPERATORS[kind]}= {value} != 0;"
    return f"{accumulator} {_OPERATORS[kind]}= {value};"


def _is_float(dtype: str) -> bool:
    return dtype in ("float32", "float64")


def _reduce_along(out: CKernelWriter, step: Reduce) -> None:
    """One output at a time, along the innermost reduced loop."""
    if any(kind.startswith("arg") for kind in step.kinds):
        _find_place(out, step)
        return
    dtypes = [step.body.ops[result].dtype for result in step.body.results]
    inner = step.over[-1] if step.over else None
    code = out.statements(step.body, [inner.variable] if inner else ())
    declare_flags(out, code)
    count = product([loop.extent for loop in step.over])
    small = isinstance(count, int) and count <= RUN
    split = [kind == "sum" and dtype == "float32" and not small for kind, dtype in zip(step.kinds, dtypes, strict=True)]
    clauses = []
    for number, (kind, dtype) in enumerate(zip(step.kinds, dtypes, strict=True)):
        wide = COMPUTED["int32" if kind in ("any", "all") else dtype]
        if split[number]:
            out.line(f"double total{number} = 0;")
        else:
            out.line(f"{wide} acc{number} = {_start(kind, dtype)};")
        if kind in ("max", "min") and _is_float(dtype):
            out.line(f"int nan{number} = 0;")
            clauses.append(f"reduction(|:nan{number})")
        clauses.append(f"reduction({_OPERATORS[kind]}:acc{number})")
    clauses.append(flag_clauses(code))
    for loop in step.over[:-1]:
        out.open(f"for (int64_t {loop.variable} = 0; {loop.variable} < {out.size(loop.extent)}; ++{loop.variable})")
    for line in code.before:
        out.line(line)
    if inner is not None:
        first, limit = "0", out.size(inner.extent)
        blocked = any(split) and not (isinstance(inner.extent, int) and inner.extent <= RUN)
        if blocked:
            out.open(f"for (int64_t block = 0; block < {limit}; block += {RUN})")
            out.line(f"const int64_t stop = ig_min(block + {RUN}, {limit});")
            first, limit = "block", "stop"
        for number, is_split in enumerate(split):
            if is_split:
                out.line(f"float acc{number} = 0;")
        simd(out, False, " ".join(clauses))
        out.open(f"for (int64_t {inner.variable} = {first}; {inner.variable} < {limit}; ++{inner.variable})")
    for line in code.inside:
        out.line(line)
    for number, (kind, dtype) in enumerate(zip(step.kinds, dtypes, strict=True)):
        value = code.results[number]
        out.line(_combine(kind, f"acc{number}", value))
        if kind in ("max", "min") and _is_float(dtype):
            out.line(f"nan{number} |= {value} != {value};")
    if inner is not None:
        out.close()
        for number, is_split in enumerate(split):
            if is_split:
                out.line(f"total{number} += acc{number};")
        if blocked:
            out.close()
    for _ in step.over[:-1]:
        out.close()
    for store in step.stores:
        number = store.result
        value = f"(float)total{number}" if split[number] else f"acc{number}"
        if step.kinds[number] in ("max", "min") and _is_float(dtypes[number]):
            value = f"nan{number} ? NAN_{'F32' if dtypes[number] == 'float32' else 'F64'} : {value}"
        out.line(out.store(store, value))
    report_flags(out, code)


def _find_place(out: CKernelWriter, step: Reduce) -> None:
    """argmax and argmin: the first place of the extreme; a nan is more extreme than anything."""
    kind, dtype = step.kinds[0], step.body.ops[step.body.results[0]].dtype
    code = out.statements(step.body, [loop.variable for loop in step.over])
    declare_flags(out, code)
    for line in code.before:
        out.line(line)
    out.line(f"{COMPUTED[dtype]} best = 0; int64_t where = -1, at = 0;")
    for loop in step.over:
        out.open(f"for (int64_t {loop.variable} = 0; {loop.variable} < {out.size(loop.extent)}; ++{loop.variable})")
    for line in code.inside:
        out.line(line)
    value, sign = code.results[0], ">" if kind == "argmax" else "<"
    beats = f"where < 0 || {value} {sign} best"
    if _is_float(dtype):
        beats = f"where < 0 || (best == best && ({value} {sign} best || {value} != {value}))"
    out.line(f"if ({beats}) {{ best = {value}; where = at; }}")
    out.line("++at;")
    for _ in step.over:
        out.close()
    out.line(out.store(step.stores[0], "where < 0 ? 0 : where"))
    report_flags(out, code)


def _reduce_across(out: CKernelWriter, step: Reduce, loops: Sequence[Loop]) -> None:
    """A block of neighbouring outputs at a time: memory runs along them."""
    *around, inner = loops
    dtypes = [step.body.ops[result].dtype for result in step.body.results]
    count = product([loop.extent for loop in step.over])
    long = not isinstance(count, int) or count > RUN_ACROSS
    code = out.statements(step.body, [inner.variable], middle=[loop.variable for loop in step.over])
    declare_flags(out, code)
    for loop in around:
        out.open(f"for (int64_t {loop.variable} = 0; {loop.variable} < {out.size(loop.extent)}; ++{loop.variable})")
    for line in code.before:
        out.line(line)
    extent = out.size(inner.extent)
    narrow = inner.extent if isinstance(inner.extent, int) and inner.extent < BLOCK else BLOCK
    out.open(f"for (int64_t block = 0; block < {extent}; block += {narrow})")
    out.line(f"const int64_t stop = ig_min(block + {narrow}, {extent});")
    split = [kind == "sum" and dtype == "float32" and long for kind, dtype in zip(step.kinds, dtypes, strict=True)]
    for number, (kind, dtype) in enumerate(zip(step.kinds, dtypes, strict=True)):
        type_ = "double" if split[number] else COMPUTED["int32" if kind in ("any", "all") else dtype]
        out.line(f"_Alignas(64) {type_} acc{number}[{narrow}];")
        out.line(f"for (int64_t x = 0; x < {narrow}; ++x) acc{number}[x] = {_start(kind, dtype)};")
    last = step.over[-1].extent if step.over else 0
    worth = not isinstance(last, int) or last >= RUN_ACROSS // 4  # else the sums are of float64 all along
    runs = [number for number, is_split in enumerate(split) if is_split and worth]
    for loop in step.over:
        start, end = "0", out.size(loop.extent)
        if loop is step.over[-1] and runs:
            out.open(f"for (int64_t run = 0; run < {end}; run += {RUN_ACROSS})")
            start, end = "run", f"ig_min(run + {RUN_ACROSS}, {end})"
            for number in runs:
                out.line(f"_Alignas(64) float part{number}[{narrow}] = {{0}};")
        out.open(f"for (int64_t {loop.variable} = {start}; {loop.variable} < {end}; ++{loop.variable})")
    if not any(map(_is_float, dtypes)):
        out.line("IG_TURN();")
    for line in code.between:
        out.line(line)
    simd(out, False, flag_clauses(code))
    out.open(f"for (int64_t {inner.variable} = block; {inner.variable} < stop; ++{inner.variable})")
    for line in code.inside:
        out.line(line)
    for number, (kind, dtype) in enumerate(zip(step.kinds, dtypes, strict=True)):
        name = "part" if number in runs else "acc"
        value, accumulator = code.results[number], f"{name}{number}[{inner.variable} - block]"
        if kind in ("max", "min") and _is_float(dtype):
            sign = ">" if kind == "max" else "<"
            # | and not ||: both sides are cheap, and a branch would keep the loop from vectorizing.
            beats = f"({value} {sign} {accumulator}) | ({value} != {value})"
            out.line(f"{accumulator} = ({beats}) ? {value} : {accumulator};")
        else:
            out.line(_combine(kind, accumulator, value))
    out.close()
    for loop in reversed(step.over):
        out.close()
        if loop is step.over[-1] and runs:
            for number in runs:
                out.line(f"for (int64_t x = 0; x < {narrow}; ++x) acc{number}[x] += part{number}[x];")
            out.close()
    simd(out, False)
    out.open(f"for (int64_t {inner.variable} = block; {inner.variable} < stop; ++{inner.variable})")
    for store in step.stores:
        cast = "(float)" if split[store.result] else ""
        out.line(out.store(store, f"{cast}acc{store.result}[{inner.variable} - block]"))
    out.close()
    out.close()
    for _ in around:
        out.close()
    report_flags(out, code)
