"""Scores as functions of places that are a base and an offset: in a tile, bases are one for all pairs of a thread, and
offsets constants. Distances of a query and a key are then converted to float32 once for each tile."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ingot.codegen.c_expressions import CBodyEmitter, constant_text, size_text
from ingot.lowering.index_expr import Expr, Size, bounds, substitute, symbol
from ingot.lowering.loop_ir import Attention, Body, Op
from ingot.targets.cuda.codegen.kernel_writer import CudaKernelWriter

# Integers below this are exact in float32.
_EXACT = 1 << 24
# Queries, and keys, of a tile that may lie past the last one.
_PAST = 1024
# Operations that read memory, or report what is bad: they are not for places past the last one.
_GUARDED = frozenset({"load", "bounds_check", "random", "floordiv", "truncdiv", "floormod", "fmod"})
# Slopes are divided by scales that are not far from 1.
_SCALES = (2.0**-20, 2.0**20)


def hide_by_mask(step: Attention) -> Attention:
    """A score that is -inf where a condition does not hold, and nothing else, as a mask: products then need no scale of
    their own."""
    body = step.score
    if body is None or step.mask is not None or step.tiles is not None:
        return step
    (result,) = body.results
    last = body.ops[result]
    if last.name != "where":
        return step
    condition, shown, hidden = last.operands
    if body.ops[shown].name != "accumulator" or body.ops[hidden].name != "const" or body.ops[condition].dtype != "bool":
        return step
    depends = [False] * len(body.ops)
    for place, op in enumerate(body.ops):
        depends[place] = op.name == "accumulator" or any(depends[operand] for operand in op.operands)
    if body.ops[hidden].attribute.value != -math.inf or depends[condition]:
        return step
    return replace(step, score=None, mask=Body(body.ops, (condition,)))


def is_free(out: CudaKernelWriter, body: Body | None) -> bool:
    """Whether a body may be computed for places past the last query and key."""
    if body is None:
        return False
    levels = out.statements(body, ["i", "j"]).levels
    return not any(op.name in _GUARDED for op, level in zip(body.ops, levels, strict=True) if level)


def find_affine(body: Body, queries: Size, keys: Size) -> dict[int, Expr]:
    """The operations whose values are sums of multiples of the query and the key that float32 holds."""
    highest = [bounds(size)[1] for size in (queries, keys)]
    if any(number is None for number in highest):
        return {}
    limits = {name: (number or 0) + _PAST for name, number in zip("ij", highest, strict=True)}
    found: dict[int, Size] = {}
    for place, op in enumerate(body.ops):
        value = _find_value(op, found)
        if value is not None and _is_exact(value, limits):
            found[place] = value
    return {place: value for place, value in found.items() if isinstance(value, Expr)}


def _find_value(op: Op, found: Mapping[int, Size]) -> Size | None:
    if op.name == "index":
        assert isinstance(op.attribute, int | Expr)
        return op.attribute
    if op.name == "const" and op.dtype in ("int32", "int64"):
        return int(op.attribute.value)
    operands = [found.get(operand) for operand in op.operands]
    if op.dtype not in ("int32", "int64") or any(operand is None for operand in operands):
        return None
    match op.name, operands:
        case "cast", [value]:
            return value
        case "neg", [value] if value is not None:
            return value * -1
        case "add", [a, b] if a is not None and b is not None:
            return a + b
        case "sub", [a, b] if a is not None and b is not None:
            return a + b * -1
        case "mul", [a, b] if a is not None and b is not None and (isinstance(a, int) or isinstance(b, int)):
            return a * b
    return None


def _is_exact(value: Size, limits: Mapping[str, int]) -> bool:
    if isinstance(value, int):
        return abs(value) < _EXACT
    most = 0
    for term, coefficient in value.terms.items():
        if len(term) > 1 or any(str(atom) not in limits for atom in term):
            return False
        most += abs(coefficient) * (limits[str(term[0])] if term else 1)
    return most < _EXACT


@dataclass(frozen=True, slots=True)
class Slope:
    """A score that is a product of query and key, and a distance times a slope: operations of its body."""

    distance: int
    slope: int
    negative: bool


def find_slope(out: CudaKernelWriter, step: Attention) -> Slope | None:
    """What is added to products, where it is a distance times what is one for all pairs."""
    body = step.score
    if body is None or step.dtype != "float32" or not _SCALES[0] <= step.scale <= _SCALES[1]:
        return None
    (result,) = body.results
    last = body.ops[result]
    if last.name not in ("add", "sub") or last.dtype != "float32":
        return None
    product, bias = last.operands
    if last.name == "add" and body.ops[product].name != "accumulator":
        product, bias = bias, product
    if body.ops[product].name != "accumulator" or body.ops[bias].name != "mul" or body.ops[bias].dtype != "float32":
        return None
    levels = out.statements(body, ["i", "j"]).levels
    affine = find_affine(body, step.queries, step.keys)
    for distance, slope in (body.ops[bias].operands, body.ops[bias].operands[::-1]):
        cast = body.ops[distance]
        if cast.name == "cast" and cast.attribute == "float32" and cast.operands[0] in affine and levels[slope] == 0:
            return Slope(distance, slope, last.name == "sub")
    return None


class ScoreEmitter(CBodyEmitter):
    """A score's body as statements about the places i = from_i + by_i and j = from_j + by_j. With a slope, what is
    given and the result are not scaled yet."""

    def __init__(self, out: CudaKernelWriter, step: Attention, slope: Slope | None) -> None:
        body = step.score
        assert body is not None
        self._affine = find_affine(body, step.queries, step.keys)
        self._slope, self._scale = slope, step.scale
        super().__init__(
            body, out.place, out.buffers, out.library.functions, inner=["i", "j"], prefix="s",
            seed=out.seed, first_draw=out.first_draw,
        )  # fmt: skip
        for op in body.ops:
            if isinstance(op.attribute, Expr):
                out.size(op.attribute)

    def _expression(self, op: Op, operands: tuple[str, ...], lines: list[str]) -> str:
        place = len(self._levels) - 1
        if op.name == "cast" and op.attribute == "float32" and op.operands[0] in self._affine:
            return _distance_text(self._affine[op.operands[0]])
        if self._slope is not None and place == self.body.results[0]:
            slope, distance = f"{self.prefix}{self._slope.slope}", f"{self.prefix}{self._slope.distance}"
            value = self.body.ops[self._slope.slope]
            if value.name == "const":
                slope = constant_text(value.attribute.value, value.dtype)
            scale = constant_text(-self._scale if self._slope.negative else self._scale, "float32")
            self.before.append(f"const float {self.prefix}_slope = {slope} / {scale};")
            return f"__builtin_fmaf({distance}, {self.prefix}_slope, {self.given['accumulator']})"
        return super()._expression(op, operands, lines)


def _distance_text(value: Expr) -> str:
    """Both parts, and their sum, are exact."""
    base = substitute(value, {"i": symbol("from_i"), "j": symbol("from_j")})
    by = substitute(value, {"i": symbol("by_i"), "j": symbol("by_j")})
    constant = substitute(value, {"i": 0, "j": 0})
    return f"(float)(int)({size_text(base)}) + (float)({size_text(by - constant)})"
