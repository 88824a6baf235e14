"""Which accesses of a body take several neighbouring elements at once, along one loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ingot.codegen.c_expressions import CBodyEmitter, constant_text
from ingot.lowering.dtypes import BYTES
from ingot.lowering.index_expr import BodyValue, Expr, Size, coefficient_of, depends_on, substitute, symbol
from ingot.lowering.loop_body import reads
from ingot.lowering.loop_ir import Body, Load, Loop, Op, Store
from ingot.targets.cuda.codegen.kernel_writer import CudaKernelWriter

# Bytes that one instruction loads or stores, and those of all elements of one access that a thread keeps.
LOAD_BYTES = 16
MOST_BYTES = 32
WIDTHS = (16, 8, 4, 2)

Place = tuple[str, Size]


@dataclass(frozen=True, slots=True)
class VectorAccesses:
    """`width` elements along a loop: the loads that are one vector each, by buffer and index. All stores are; loads at
    computed places stay scalar. `uniform` are the conditions of the body that are the same for all these elements,
    though they depend on the loop's variable."""

    width: int
    loads: dict[Place, Load]
    uniform: tuple[int, ...] = ()


def find_vectors(
    out: CudaKernelWriter,
    body: Body,
    stores: Sequence[Store],
    loop: Loop,
    most: int = WIDTHS[0],
    *,
    gathers: bool = False,
) -> VectorAccesses | None:
    """The widest vectors along a loop, or None where memory does not lie so: all stores and all loads that run along
    the loop must be dense there and aligned, or with `gathers` all stores."""
    levels = out.statements(body, [loop.variable]).levels
    loads = [load for load in reads(body) if coefficient_of(load.index, loop.variable) != 0]
    if not gathers and any(is_register(out, load.buffer) for load in loads):
        return None
    written = [(store.buffer, store.index) for store in stores]
    if any(is_register(out, store.buffer) or store.mode != "set" for store in stores):
        return None
    if any(_is_computed(store.index) for store in stores):
        return None
    for width in WIDTHS:
        if width > most or not _divides(width, loop.extent):
            continue
        uniform = find_uniform(body, levels, loop.variable, width)
        dense = _find_dense(loads, levels, loop.variable, width, uniform)
        if len(dense) < len({(load.buffer, load.index) for load in loads}) and not gathers:
            continue
        places = [*dense, *written]
        sizes = [BYTES[out.buffers[buffer].dtype] for buffer, _ in places]
        fits = sizes and width * min(sizes) <= LOAD_BYTES and width * max(sizes) <= MOST_BYTES
        if fits and all(_is_dense(at, loop.variable, width) for _, at in written):
            return VectorAccesses(width, dense, uniform)
    return None


def _find_dense(
    loads: Sequence[Load], levels: Sequence[int], variable: str, width: int, uniform: Sequence[int]
) -> dict[Place, Load]:
    """The loads that may be vectors: of neighbours, all of them under the same conditions."""
    found: dict[Place, Load] = {}
    others: set[Place] = set()
    for load in loads:
        key = (load.buffer, load.index)
        varies = load.mask is not None and levels[load.mask] > 0 and load.mask not in uniform
        fits = not varies and _is_dense(load.index, variable, width) and not _moves_inside(load.index, levels)
        if not fits or found.setdefault(key, load).mask != load.mask:
            others.add(key)
    return {key: load for key, load in found.items() if key not in others}


# ---------------------------------------------------------------------- conditions


def find_uniform(body: Body, levels: Sequence[int], variable: str, width: int) -> tuple[int, ...]:
    """The conditions that depend on the variable and yet are the same for all elements of each vector: comparisons with
    multiples of the width, and what is made of such ones."""
    found: list[int] = []
    for place, op in enumerate(body.ops):
        if not levels[place]:
            continue
        if op.name in ("and", "or", "not"):
            same = all(body.ops[one].dtype == "bool" and (not levels[one] or one in found) for one in op.operands)
        else:
            same = _is_step(body, levels, op, variable, width)
        if same:
            found.append(place)
    return tuple(found)


def _is_step(body: Body, levels: Sequence[int], op: Op, variable: str, width: int) -> bool:
    """Whether a comparison of the loop's place changes between vectors only."""
    if op.name not in ("lt", "ge", "le", "gt"):
        return False
    left, right = (body.ops[one] for one in op.operands)
    limit = right.attribute.value if right.name == "const" else right.attribute if right.name == "index" else None
    if left.name != "index" or limit is None or isinstance(limit, float) or levels[op.operands[1]]:
        return False
    behind = limit + 1 if op.name in ("le", "gt") else limit
    return _is_dense(left.attribute, variable, width) and not _is_computed(behind) and _divides(width, behind)


def uniform_lines(out: CudaKernelWriter, code: CBodyEmitter, vectors: VectorAccesses, loop: Loop) -> list[str]:
    """Declares the uniform conditions, at the first of the elements."""
    lines = []
    ops = code.body.ops
    for place in vectors.uniform:
        op = ops[place]
        operands = [_operand(out, code, one, loop) for one in op.operands]
        text = f"!{operands[0]}" if op.name == "not" else f" {_SIGNS[op.name]} ".join(operands)
        lines.append(f"const int {code.prefix}{place} = {text};")
    return lines


_SIGNS = {"and": "&", "or": "|", "lt": "<", "ge": ">=", "le": "<=", "gt": ">"}


def _operand(out: CudaKernelWriter, code: CBodyEmitter, place: int, loop: Loop) -> str:
    op = code.body.ops[place]
    if op.name == "const":
        return constant_text(op.attribute.value, op.dtype)
    return f"({out.size(first_place(op.attribute, loop))})" if op.name == "index" else f"{code.prefix}{place}"


# ---------------------------------------------------------------------- places


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


def _is_dense(index: Size, variable: str, width: int) -> bool:
    """Whether neighbours along the loop are neighbours, and where its variable is 0 the place is a multiple of the
    width."""
    if coefficient_of(index, variable) != 1:
        return False
    rest = substitute(index, {variable: 0})
    return not depends_on(rest, variable) and _divides(width, rest)


def _is_computed(index: Size) -> bool:
    return isinstance(index, Expr) and any(isinstance(s, BodyValue) for s in index.symbols)
