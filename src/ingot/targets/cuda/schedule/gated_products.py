"""A product whose columns are a gate and what it lets through becomes two.

    before                            after
    gemm  x · w → t       [m, 2n]     gemm  x · w[:n] → a            [m, n]
    map   f(t[:, :n], t[:, n:]) → y   gemm  x · w[n:], f(a, ·) → y   [m, n]

The halves meet in one epilogue then, which `siblings` computes by the same blocks, one half after the other: what the
Map would read again, and its launch, are saved.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from ingot.lowering.dependence import count_readers, is_temporary, reads_and_writes
from ingot.lowering.index_expr import Expr, Size, coefficient_of, substitute, symbol
from ingot.lowering.loop_body import BodyBuilder, reads, rewrite
from ingot.lowering.loop_ir import Buffer, Gemm, Load, Loop, Map, Op, Stmt
from ingot.lowering.loop_module import Module


def split_gated_products(module: Module) -> Module:
    """Splits products of the module's own list of steps, each with the Map that alone reads it; computes the same."""
    counts = count_readers(module.steps, {})
    gates: dict[str, Gemm] = {}
    for step in module.steps:
        name = _find_result(step, module.buffers, counts)
        if name is not None and isinstance(step, Gemm):
            gates[name] = step
    halves = {
        name: step
        for step in module.steps
        for name in sorted(reads_and_writes(step)[0])
        if name in gates and isinstance(step, Map) and _reads_halves(step, name, gates[name].n)
    }
    writers = Counter(name for step in module.steps for name in reads_and_writes(step)[1])
    chosen = {name for name in halves if writers[name] == 1}
    if not chosen:
        return module
    buffers = dict(module.buffers)
    done: list[Stmt] = []
    for step in module.steps:
        name = _find_result(step, module.buffers, counts)
        if name in chosen and isinstance(step, Gemm):
            done += _split(step, name, buffers)
            continue
        for name in sorted(reads_and_writes(step)[0] & chosen):
            assert isinstance(step, Map)
            step = _read_apart(step, name, gates[name].n)
        done.append(step)
    return replace(module, steps=tuple(done), buffers=buffers)


def _find_result(step: Stmt, buffers: dict[str, Buffer], counts: Counter[str]) -> str | None:
    """The temporary that a product fills, row by row, if it does nothing else and one step alone reads it."""
    if (
        type(step) is not Gemm
        or step.batch
        or not isinstance(step.n, int)
        or step.n % 2
        or len(step.epilogue.stores) != 1
    ):
        return None
    store, (*rows, column) = step.epilogue.stores[0], step.epilogue.loops
    dense: Size = 0
    for loop in rows:
        dense = dense * loop.extent + symbol(loop.variable, below=loop.extent)
    dense = dense * step.n + symbol(column.variable, below=column.extent)
    name = store.buffer
    plain = store.mode == "set" and store.index == dense and not step.epilogue.collides
    alone = is_temporary(name, buffers) and counts[name] == 1 and buffers[name].size == step.m * step.n
    return name if plain and alone and name not in reads_and_writes(step)[0] else None


def _reads_halves(step: Map, name: str, columns: Size) -> bool:
    """Whether a Map reads both halves of a matrix's rows, each at its own column."""
    if not isinstance(columns, int) or not step.loops or step.collides or step.loops[-1].extent != columns // 2:
        return False
    loads = [load for load in reads(step.body) if load.buffer == name]
    found = [_find_half(load, step.loops[-1], columns) for load in loads]
    return all(load.mask is None for load in loads) and set(found) == {0, 1}


def _find_half(load: Load, column: Loop, columns: int) -> int | None:
    """Which half of a row is read: its index is row · columns + column, and for the second half as much more."""
    if coefficient_of(load.index, column.variable) != 1:
        return None
    rest = substitute(load.index, {column.variable: 0})
    terms = rest.terms if isinstance(rest, Expr) else {(): rest}
    offset = terms.get((), 0)
    whole = all(by % columns == 0 for term, by in terms.items() if term)
    half, left = divmod(offset % columns, columns // 2)
    return half if whole and not left else None


def _split(step: Gemm, name: str, buffers: dict[str, Buffer]) -> list[Gemm]:
    made = []
    assert isinstance(step.n, int)
    half = step.n // 2
    # Without loops of one turn: so have Maps, and the two epilogues are compared.
    *rows, column = step.epilogue.loops
    ones: dict[str, Size] = {loop.variable: 0 for loop in rows if loop.extent == 1}
    for number in range(2):
        buffer = Buffer(_half_name(name, number), buffers[name].dtype, (step.m, half))
        buffers[buffer.name] = buffer
        first = half * number
        moved: dict[str, Size] = {**ones, column.variable: symbol(column.variable, below=half) + first}
        ops, results = rewrite(step.epilogue.body, symbols=moved)
        index = _halve(substitute(step.epilogue.stores[0].index, {**ones, column.variable: 0}), step.n)
        store = replace(step.epilogue.stores[0], buffer=buffer.name, index=index + symbol(column.variable, below=half))
        loops = (*(loop for loop in rows if loop.extent != 1), Loop(column.variable, half))
        epilogue = replace(step.epilogue, loops=loops, body=ops.finish(results), stores=(store,))
        right = replace(step.b, offset=step.b.offset + first * step.b.columns)
        made.append(replace(step, n=half, b=right, epilogue=epilogue))
    return made


def _read_apart(step: Map, name: str, columns: Size) -> Map:
    """The Map, reading the halves where they lie now."""
    column = step.loops[-1]
    assert isinstance(columns, int)

    def read_half(op: Op, operands: tuple[int, ...], ops: BodyBuilder) -> int | None:
        load = op.attribute
        if not isinstance(load, Load) or load.buffer != name:
            return None
        half = _find_half(load, column, columns)
        assert half is not None
        start = substitute(load.index, {column.variable: 0}) - half * (columns // 2)
        index = _halve(start, columns) + symbol(column.variable, below=column.extent)
        return ops.emit("load", (), op.dtype, Load(_half_name(name, half), index))

    ops, results = rewrite(step.body, replace=read_half)
    return replace(step, body=ops.finish(results))


def _halve(index: Size, columns: int) -> Size:
    """The start of a row of a matrix as that of a matrix with half as many columns."""
    if isinstance(index, int):
        return index // 2
    made: Size = 0
    for term, by in index.terms.items():
        assert by % columns == 0
        made = made + Expr({term: by // 2})
    return made


def _half_name(name: str, half: int) -> str:
    return f"{name}_{'ab'[half]}"
