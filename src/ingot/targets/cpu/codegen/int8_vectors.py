"""Maps of 8-bit integers in hand-written vectors: see c/lanes.h.

A body's operations become operations on 16 columns at a time. What has no such form (an exp, say) is computed by a
plain loop first, with all that it needs, into a line of floats; the vectors go on from there. What only decides which
of a few integers is the nearest (the erf of a GELU before it is quantized) needs fewer digits than a float has.

    for (int64_t j = left; j + 16 <= right; j += 16) {
        const ig_lanes_f32 w3 = __builtin_convertvector(w1, ig_lanes_f32) * ig_lanes_get_f32(&p2[j]);
        …
        ig_lanes_put_u8(&p5[i0*256 + j], w9);
    }
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ingot.codegen.c_expressions import CBodyEmitter, constant_text
from ingot.lowering.index_expr import coefficient_of
from ingot.lowering.loop_body import prune
from ingot.lowering.loop_ir import Body, Load, Map, Op, Store

if TYPE_CHECKING:
    from ingot.targets.cpu.codegen.kernel_writer import CKernelWriter

LANES = 16
# What a value of each dtype is in vectors, and the functions that read and write them.
_HELD = {"float32": "f32", "int32": "i32", "uint8": "i32", "int8": "i32"}
_GET = {
    "float32": "ig_lanes_get_f32",
    "int32": "ig_lanes_get_i32",
    "uint8": "ig_lanes_get_u8",
    "int8": "ig_lanes_get_i8",
}
_PUT = {
    "float32": "ig_lanes_put_f32",
    "int32": "ig_lanes_put_i32",
    "uint8": "ig_lanes_put_u8",
    "int8": "ig_lanes_put_u8",
}
_SIGNS = {"add": "+", "sub": "-", "mul": "*"}
# Operations by name and the dtype of their first operand.
_TEXT: dict[tuple[str, str], str] = {
    **{(name, "float32"): f"{{0}} {sign} {{1}}" for name, sign in _SIGNS.items()},
    **{(name, "int32"): f"{{0}} {sign} {{1}}" for name, sign in _SIGNS.items()},
    ("div", "float32"): "{0} / {1}",
    ("neg", "float32"): "-{0}",
    ("square", "float32"): "{0} * {0}",
    ("relu", "float32"): "ig_lanes_more_f32(ig_lanes_same_f32(0), {0})",
    ("round_to_int", "float32"): "ig_lanes_near_f32({0})",
    ("round_to_float", "float32"): "({0} + 0x1.8p23f) - 0x1.8p23f",
    ("truncate", "int32"): "{0}",
}  # fmt: skip
# The same where the result is rounded afterwards: at most 6e-7 off.
_ROUNDED: dict[tuple[str, str], str] = {("erf", "float32"): "ig_lanes_near_erf_f32({0})"}
# And where, besides, 0 and -0 are equivalent, which is what a small negative number is rounded to.
_UNSIGNED: dict[tuple[str, str], str] = {("round_to_float", "float32"): "ig_lanes_round_f32({0})"}
_BLIND = {*_SIGNS, "relu", "square", "round_to_float", "round_to_int", "truncate", "max", "min", "fmax", "fmin", "cast",
          "load", "const", "accumulator", "second_accumulator"}  # fmt: skip
# With a number on the right: where the left is nan the plain ones give it, the others the number.
_LIMITS = {
    "max": "ig_lanes_more_f32({1}, {0})",
    "min": "ig_lanes_less_f32({1}, {0})",
    "fmax": "ig_lanes_more_f32({0}, {1})",
    "fmin": "ig_lanes_less_f32({0}, {1})",
}
_CASTS = {
    ("i32", "float32"): "__builtin_convertvector({0}, ig_lanes_f32)",
    ("i32", "int32"): "{0}",
    ("f32", "float32"): "{0}",
}


def writes_bytes(out: CKernelWriter, map: Map) -> bool:
    return any(out.buffers[store.buffer].dtype in ("uint8", "int8") for store in map.stores)


def has_bytes(out: CKernelWriter, map: Map) -> bool:
    """Whether 8 bits come in or go out."""
    buffers = [op.attribute.buffer for op in map.body.ops if isinstance(op.attribute, Load)]
    buffers += [store.buffer for store in map.stores]
    return any(out.buffers[name].dtype in ("uint8", "int8") for name in buffers)


@dataclass
class VectorEmitter:
    """A Map's body as vectors along its last loop. `code` are its statements as a plain loop, of which those before it
    are used, and which says where what a product hands in lies."""

    out: CKernelWriter
    map: Map
    code: CBodyEmitter
    parts: dict[int, str] = field(default_factory=dict)  # values that a plain loop has put into memory
    uniform: bool = False  # whether what `write` gave takes values that stand before the loop
    _plain: set[int] = field(default_factory=set)
    _rounded: set[int] = field(default_factory=set)
    _blind: bool = False
    _limited: dict[int, int] = field(default_factory=dict)  # bytes that writing limits, and the limit that this spares

    def __post_init__(self) -> None:
        self._rounded = _find_rounded(self.map.body)
        self._blind = all(op.name in _BLIND for op in self.map.body.ops)
        self._limited = _find_clamped(self.map.body)

    @property
    def column(self) -> str:
        return self.map.loops[-1].variable

    @property
    def body(self) -> Body:
        return self.map.body

    def prepare(self) -> bool:
        """Whether the body can be done so; finds what a plain loop must do first."""
        if self.code.checks or self.code.zero_checks or not all(map(self._storable, self.map.stores)):
            return False
        plain: set[int] = set()
        for place, op in reversed(list(enumerate(self.body.ops))):
            if place in plain or (self._varies(place) and self._text(place, op) is None):
                plain.add(place)
                plain.update(o for o in op.operands if self._varies(o))
        needed = {o for place, op in enumerate(self.body.ops) if place not in plain for o in op.operands if o in plain}
        needed |= plain.intersection(self.body.results)
        # What is read or handed in costs nothing twice.
        again = {place for place in plain if self._free(place)}
        frontier = sorted(needed - again)
        if any(self.body.ops[place].dtype != "float32" for place in frontier):
            return False
        self.parts = {place: f"part{number}" for number, place in enumerate(frontier)}
        self._plain = plain - again
        return True

    def _free(self, place: int) -> bool:
        op = self.body.ops[place]
        return op.name in ("load", *self.code.given) and self._text(place, op) is not None

    def _storable(self, store: Store) -> bool:
        dtype = self.out.buffers[store.buffer].dtype
        value = self.body.ops[self.body.results[store.result]].dtype
        beside = coefficient_of(store.index, self.column) == 1
        return beside and store.mode == "set" and dtype == value and dtype in _PUT

    def _varies(self, place: int) -> bool:
        """Whether a value is another one in each column."""
        return self.code.levels[place] == 2

    def _text(self, place: int, op: Op) -> str | None:
        """An operation on vectors, with places for its operands; None where there is none."""
        if op.name in self.code.given:
            return f"{_GET[op.dtype]}(&{self.code.given[op.name]})" if op.dtype in _GET else None
        if op.name == "load":
            return self._load(op)
        if op.dtype not in _HELD or any(self.body.ops[o].dtype not in _HELD for o in op.operands if self._varies(o)):
            return None
        if op.name == "cast":
            return _CASTS.get((_HELD[self.body.ops[op.operands[0]].dtype], op.attribute))
        if not op.operands:
            return None
        first = self.body.ops[op.operands[0]].dtype
        if place in self._limited.values():
            return "{0}"
        if op.name in _LIMITS and first == "float32" and self.body.ops[op.operands[1]].name == "const":
            return _LIMITS[op.name]
        if place in self._rounded and (op.name, first) in _ROUNDED:
            return _ROUNDED[op.name, first]
        if place in self._rounded and self._blind and (op.name, first) in _UNSIGNED:
            return _UNSIGNED[op.name, first]
        return _TEXT.get((op.name, first))

    def _load(self, op: Op) -> str | None:
        access = op.attribute
        dtype = self.out.buffers[access.buffer].dtype
        if access.mask is not None or dtype not in _GET or coefficient_of(access.index, self.column) != 1:
            return None
        return f"{_GET[dtype]}(&{self.out.place(access.buffer, access.index)})"

    def plain_body(self) -> Body:
        """What a plain loop computes, in the order of `parts`."""
        return prune(Body(self.body.ops, tuple(self.parts)))

    def write(self) -> list[str]:
        """The statements of one vector of columns, stores included."""
        names: dict[int, str] = {}
        lines: list[str] = []

        def name(place: int) -> str:
            if place in self.parts:
                return f"ig_lanes_get_f32(&{self.parts[place]}[{self.column} - left])"
            if self._varies(place):
                return names[place]
            op = self.body.ops[place]
            self.uniform |= op.name != "const"
            given = constant_text(op.attribute.value, op.dtype) if op.name == "const" else f"v{place}"
            return f"ig_lanes_same_{_HELD[op.dtype]}({given})"

        used = self._find_used()
        for place, op in enumerate(self.body.ops):
            if place not in used or not self._varies(place) or place in self.parts or place in self._plain:
                continue
            text = self._text(place, op)
            assert text is not None
            names[place] = f"w{place}"
            value = text.format(*map(name, op.operands)) if op.operands else text
            lines.append(f"const ig_lanes_{_HELD[op.dtype]} w{place} = {value};")
        for store in self.map.stores:
            at, result = self.out.place(store.buffer, store.index), self.body.results[store.result]
            self.out.written.add(store.buffer)
            put = "ig_lanes_put_least_u8" if result in self._limited else _PUT[self.out.buffers[store.buffer].dtype]
            lines.append(f"{put}(&{at}, {name(result)});")
        return lines

    def _find_used(self) -> set[int]:
        """What the results need, beyond what lies in memory already."""
        found: set[int] = set()
        waiting = list(self.body.results)
        while waiting:
            place = waiting.pop()
            if place not in found:
                found.add(place)
                waiting += [] if place in self.parts else self.body.ops[place].operands
        return found


def _find_rounded(body: Body) -> set[int]:
    """The values that reach the results only through a rounding to integers."""
    found: set[int] = set(range(len(body.ops))) - set(body.results)
    for place in range(len(body.ops) - 1, -1, -1):
        op = body.ops[place]
        if op.name not in ("round_to_int", "round_to_float") and place not in found:
            found.difference_update(op.operands)
    return found


def _find_clamped(body: Body) -> dict[int, int]:
    """Results that are fit(nearest(fmin(fmax(x, -zero), 255 - zero)) + zero), and where that fmin is: writing bytes
    limits them to 255 by itself. Nothing else may read what lies between."""
    uses = Counter(operand for op in body.ops for operand in op.operands)
    uses.update(body.results)

    def operand(place: int, name: str) -> int | None:
        """The first operand of an operation of that name that is used once."""
        op = body.ops[place]
        return op.operands[0] if op.name == name and uses[place] == 1 else None

    def constant(place: int) -> float | None:
        op = body.ops[place]
        return op.attribute.value if op.name == "const" else None

    found: dict[int, int] = {}
    for result in body.results:
        if body.ops[result].dtype != "uint8" or (whole := operand(result, "truncate")) is None:
            continue
        zero: float | None = 0
        if (shifted := operand(whole, "add")) is not None:
            zero, whole = constant(body.ops[whole].operands[1]), shifted
        limit = operand(whole, "round_to_int")
        if zero is None or limit is None or (least := operand(limit, "fmin")) is None:
            continue
        ends = [constant(body.ops[place].operands[-1]) for place in (least, limit)]
        if body.ops[least].name == "fmax" and ends == [-zero, 255 - zero]:
            found[result] = limit
    return found
