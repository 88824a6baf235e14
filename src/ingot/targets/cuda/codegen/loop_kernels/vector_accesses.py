"""Which accesses of a body take several neighbouring elements at once, along one loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ingot.codegen.c_expressions import CBodyEmitter
from ingot.lowering.dtypes import BYTES
from ingot.lowering.index_expr import BodyValue, Expr, Size, coefficient_of, depends_on, substitute, symbol
from ingot.lowering.loop_body import reads
from ingot.lowering.loop_ir import Body, Load, Loop, Store
from ingot.targets.cuda.codegen.kernel_writer import CudaKernelWriter

# Bytes that one instruction loads or stores, and those of all elements of one access that a thread keeps.
LOAD_BYTES = 16
MOST_BYTES = 32
WIDTHS = (16, 8, 4, 2)

Place = tuple[str, Size]


@dataclass(frozen=True, slots=True)
class VectorAccesses:
    """`width` elements along a loop: the loads that are one vector each, by buffer and index. All stores are; loads at
    computed places stay scalar."""

    width: int
    loads: dict[Place, Load]


def find_vectors(
    out: CudaKernelWriter, body: Body, stores: Sequence[Store], loop: Loop, most: int = WIDTHS[0]
) -> VectorAccesses | None:
    """The widest vectors along a loop, or None where memory does not lie so: all stores and all loads that run along
    the loop must be dense there and aligned."""
    variable = loop.variable
    levels = out.statements(body, [variable]).levels
    loads: dict[Place, Load] = {}
    places: list[Place] = []
    for load in reads(body):
        by = coefficient_of(load.index, variable)
        if by == 0:
            continue
        if by != 1 or is_register(out, load.buffer):
            return None
        key = (load.buffer, load.index)
        inside = load.mask is not None and levels[load.mask] > 0
        if inside or _moves_inside(load.index, levels) or (key in loads and loads[key].mask != load.mask):
            return None
        loads[key] = load
        places.append(key)
    for store in stores:
        if is_register(out, store.buffer) or store.mode != "set" or coefficient_of(store.index, variable) != 1:
            return None
        if isinstance(store.index, Expr) and any(isinstance(s, BodyValue) for s in store.index.symbols):
            return None
        places.append((store.buffer, store.index))
    if not places:
        return None
    sizes = [BYTES[out.buffers[buffer].dtype] for buffer, _ in places]
    for width in WIDTHS:
        fits = width <= most and width * min(sizes) <= LOAD_BYTES and width * max(sizes) <= MOST_BYTES
        if fits and _divides(width, loop.extent) and all(_is_aligned(at, variable, width) for _, at in places):
            return VectorAccesses(width, loads)
    return None


def is_register(out: CudaKernelWriter, buffer: str) -> bool:
    return buffer in out.locals and not out.locals[buffer][1]


def base_variable(variable: str) -> str:
    """What the first of the elements' places along the loop is called."""
    return f"{variable}_0"


def first_place(index: Size, loop: Loop) -> Size:
    """The index of the first of the elements."""
    return substitute(index, {loop.variable: symbol(base_variable(loop.variable), below=loop.extent)})


def load_condition(code: CBodyEmitter, load: Load) -> str:
    """Under which a load may happen, or nothing."""
    given = [f"{code.prefix}{load.mask}"] if load.mask is not None else []
    return " && ".join([*given, *code.empty_dims(load.index)])


def _moves_inside(index: Size, levels: Sequence[int]) -> bool:
    """Whether the index depends on a value that is computed for each element."""
    symbols = index.symbols if isinstance(index, Expr) else ()
    return any(isinstance(s, BodyValue) and levels[s.place] > 0 for s in symbols)


def _divides(width: int, size: Size) -> bool:
    return size % width == 0 if isinstance(size, int) else all(c % width == 0 for c in size.terms.values())


def _is_aligned(index: Size, variable: str, width: int) -> bool:
    """Whether the place where the loop's variable is 0 is a multiple of the width."""
    rest = substitute(index, {variable: 0})
    return not depends_on(rest, variable) and _divides(width, rest)
