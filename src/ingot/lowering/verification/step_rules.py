"""What a step must hold besides its bodies: extents, loops of an epilogue, kinds of reductions, views, states.

One rule per type of step. A rule says what is wrong with the step, or nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from ingot.lowering.dtypes import wide
from ingot.lowering.index_expr import Size, product
from ingot.lowering.loop_ir import (
    Assert,
    Attention,
    AttentionBackward,
    BindSymbol,
    BlockMask,
    Body,
    ClassifyMaskBlocks,
    Convolution,
    Gemm,
    If,
    Loop,
    Reduce,
    Scan,
    Stmt,
    Store,
    While,
    WithEpilogue,
)
from ingot.lowering.verification.access_rules import Around, Facts
from ingot.registry import Registry

StepRule: TypeAlias = Callable[[Any, Facts], str | None]
_RULES: Registry[type, StepRule] = Registry("verifier rule of a step")

# What a reduction gives, where that is not the dtype of what it reduces.
_REDUCED = {"argmax": "int64", "argmin": "int64", "any": "bool", "all": "bool"}
_KINDS = ("sum", "prod", "max", "min", *_REDUCED)
_MODES = ("set", "add", "prod", "max", "min")


def find_step_fault(step: Stmt, facts: Facts) -> str | None:
    """What is wrong with the step itself, not with its bodies."""
    if isinstance(step, WithEpilogue):
        fault = _check_epilogue(step, facts)
        if fault is not None:
            return fault
    rule = next((_RULES[kind] for kind in type(step).__mro__ if kind in _RULES), None)  # a target's own kinds inherit
    return None if rule is None else rule(step, facts)


def loops_of(step: Stmt) -> tuple[Loop, ...]:
    """The loops that a step is itself, not those of the steps inside it."""
    loops: tuple[Loop, ...] = getattr(step, "loops", ())
    if isinstance(step, Reduce):
        return (*loops, *step.over)
    if isinstance(step, Scan):
        return (*loops, step.over)
    return loops


def find_extent_fault(loops: Sequence[Loop], facts: Facts) -> str | None:
    for loop in loops:
        if facts.surely_negative(loop.extent):
            return f"its loop {loop} has a negative extent"
    return None


def find_store_dtype_fault(store: Store, body: Body, kinds: Sequence[str], facts: Facts) -> str | None:
    """Whether a store writes what its buffer is computed in."""
    if store.mode not in _MODES:
        return f"it stores by {store.mode}, and the modes are {', '.join(_MODES)}"
    dtype = body.ops[body.results[store.result]].dtype
    dtype = _REDUCED.get(kinds[store.result], dtype) if kinds else dtype
    return find_written_dtype_fault(store.buffer, dtype, facts)


def find_written_dtype_fault(buffer: str, dtype: str, facts: Facts) -> str | None:
    stored = facts.buffers[buffer].dtype
    return None if dtype == wide(stored) else f"it stores {dtype} in {buffer}, which holds {stored}"


def _check_epilogue(step: WithEpilogue, facts: Facts) -> str | None:
    (rows, columns), loops = step.sums_shape(), step.epilogue.loops
    if not loops or facts.surely_differ(loops[-1].extent, columns):
        return f"the last loop of its epilogue is {loops[-1] if loops else 'missing'}, for {columns} columns"
    batch = step.batch_loops()
    if loops[: len(batch)] != batch:
        return f"the outer loops of its epilogue are not those of its batch, ({', '.join(map(str, batch))})"
    points = product([loop.extent for loop in loops[len(batch) : -1]])
    if facts.surely_differ(points, rows):
        return f"the loops of its epilogue have {points} rows, and its sums {rows}"
    return None


@_RULES.register(Gemm)
def _check_gemm(step: Gemm, facts: Facts) -> str | None:
    around = extents(step.batch)
    return facts.find_matrix_fault("a", step.a, step.m, step.k, around) or facts.find_matrix_fault(
        "b", step.b, step.k, step.n, around
    )


@_RULES.register(Convolution)
def _check_convolution(step: Convolution, facts: Facts) -> str | None:
    if step.out_channels % step.groups:
        return f"{step.out_channels} output channels are not {step.groups} groups"
    shape = (step.images, step.channels * step.groups, *step.size)
    return facts.find_strided_fault("x", step.x, shape, {}) or facts.find_strided_fault(
        "weight", step.weight, (step.out_channels, step.channels, *step.kernel), {}
    )


@_RULES.register(Attention)
def _check_attention(step: Attention, facts: Facts) -> str | None:
    around = extents(step.batch)
    for name, body, dtype in (("score", step.score, step.dtype), ("mask", step.mask, "bool")):
        fault = None if body is None else _check_results(body, (dtype,), f"the {name}")
        if fault is not None:
            return fault
    for store in (step.lse, step.top):
        if store is not None:
            fault = find_written_dtype_fault(store.buffer, step.dtype, facts)
            fault = fault or facts.find_store_fault(store, {**around, "i": step.queries})
            if fault is not None:
                return fault
    return (
        facts.find_matrix_fault("q", step.q, step.queries, step.depth, around)
        or facts.find_matrix_fault("k", step.k, step.keys, step.depth, around)
        or facts.find_matrix_fault("v", step.v, step.keys, step.values, around)
        or _check_block_mask(step.tiles, around, facts)
    )


@_RULES.register(AttentionBackward)
def _check_attention_backward(step: AttentionBackward, facts: Facts) -> str | None:
    around = extents(step.batch)
    if step.side not in ("queries", "keys"):
        return f"its side is {step.side}, and not queries or keys"
    return (
        facts.find_matrix_fault("q", step.q, step.queries, step.depth, around)
        or facts.find_matrix_fault("k", step.k, step.keys, step.depth, around)
        or facts.find_matrix_fault("v", step.v, step.keys, step.values, around)
        or facts.find_matrix_fault("gradient", step.gradient, step.queries, step.values, around)
        or _check_block_mask(step.tiles, around, facts)
    )


def _check_block_mask(tiles: BlockMask | None, around: Around, facts: Facts) -> str | None:
    if tiles is None:
        return None
    buffer = facts.buffers[tiles.buffer]
    if buffer.dtype != "uint8":
        return f"the tiles of its mask are in {tiles.buffer}, which holds {buffer.dtype} and not uint8"
    point = facts.find_outside(tiles.offset, buffer.size, around)
    return None if point is None else f"the tiles of its mask begin outside {tiles.buffer}{point}"


@_RULES.register(ClassifyMaskBlocks)
def _check_mask_blocks(step: ClassifyMaskBlocks, facts: Facts) -> str | None:
    if facts.buffers[step.buffer].dtype != "uint8":
        return f"it writes {step.buffer}, which holds {facts.buffers[step.buffer].dtype} and not uint8"
    rows, columns = (step.queries + step.high - 1) // step.high, (step.keys + step.wide - 1) // step.wide
    needed = [*(loop.extent for loop in step.batch), rows, columns]
    return facts.find_size_fault(step.buffer, needed) or _check_results(step.mask, ("bool",), "the mask")


@_RULES.register(Reduce)
def _check_reduce(step: Reduce, facts: Facts) -> str | None:
    if len(step.kinds) != len(step.body.results):
        return f"it has {len(step.kinds)} kinds, and its body {len(step.body.results)} results"
    unknown = [kind for kind in step.kinds if kind not in _KINDS]
    return f"it reduces by {unknown[0]}, and the kinds are {', '.join(_KINDS)}" if unknown else None


@_RULES.register(Scan)
def _check_scan(step: Scan, facts: Facts) -> str | None:
    state = state_dtypes(step)
    if len(step.body.results) < len(state):
        return f"its state has {len(state)} values, and its body gives {len(step.body.results)}"
    return _check_results(step.body, state, "the next state", whole=False)


def state_dtypes(step: Scan) -> tuple[str, ...]:
    return tuple(step.start.ops[result].dtype for result in step.start.results)


@_RULES.register(Assert, BindSymbol, If, While)
def _check_condition(step: Assert | BindSymbol | If | While, facts: Facts) -> str | None:
    body = step.condition if isinstance(step, (If, While)) else step.body
    return _check_results(body, ("int64" if isinstance(step, BindSymbol) else "bool",), "its value")


def _check_results(body: Body, dtypes: Sequence[str], what: str, *, whole: bool = True) -> str | None:
    found = [body.ops[result].dtype for result in body.results]
    found = found if whole else found[: len(dtypes)]
    if found == list(dtypes):
        return None
    return f"{what} is {', '.join(found) or 'nothing'}, and must be {', '.join(dtypes)}"


def extents(loops: Sequence[Loop]) -> dict[str, Size | None]:
    return {loop.variable: loop.extent for loop in loops}
