"""Bodies: scalar functions traced once and replayed on any handler.

    ops = Recorder()
    x = ops.load("x", i)
    body = ops.finish([ops.call("exp", ops.call("neg", x))])

A handler is whatever has the methods of `Handler`; `replay(body, handler)` calls them in order with the handler's own
values: C text (codegen), the reads of a body (`reads`), Python numbers for tests, or another BodyBuilder, which is how
bodies are inlined, renamed and joined.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Generic, Protocol, TypeVar

from ingot.lowering.dtypes import FLOATS, HALVES, INTEGERS, round_number, wide
from ingot.lowering.index_expr import BodyValue, Expr, Size, substitute, value_name, value_symbol
from ingot.lowering.loop_ir import Body, Load, Op

T = TypeVar("T")
C = TypeVar("C", bound=Hashable)

COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "and", "or", "not", "isnan", "isinf"})
# Operations whose result is one of their operands, or one with another sign: they round nothing.
SELECTIONS = frozenset({"neg", "abs", "max", "min", "fmax", "fmin", "relu", "where", "copysign", "positive"})

OUT_OF_ANY_RANGE = 2**63 - 1  # what `check_index` makes of a negative index that does not count from the end


class Handler(Protocol, Generic[T]):
    """What a body is replayed on: one call per op, its operands already values of the handler."""

    def op(self, place: int, op: Op, operands: tuple[T, ...]) -> T: ...


def replay(body: Body, handler: Handler[T]) -> list[T]:
    """The handler's values of the body's results."""
    values: list[T] = []
    for place, op in enumerate(body.ops):
        values.append(handler.op(place, op, tuple(values[operand] for operand in op.operands)))
    return [values[result] for result in body.results]


class BodyBuilder:
    """Writes a body. Equal operations are one; a value is its place."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self._known: dict[Op, int] = {}
        self._mask: int | None = None
        self._cached: dict[tuple[Hashable, int | None], Any] = {}
        self._halves: dict[int, str] = {}  # loads of memory that holds a half dtype, and which

    # ------------------------------------------------------------------ writing

    def emit(self, name: str, operands: Sequence[int], dtype: str, attribute: Any = None) -> int:
        shorter = self._shorter(name, operands, attribute)
        if shorter is not None:
            return shorter
        op = Op(name, tuple(operands), dtype, attribute)
        place = self._known.get(op)
        if place is None:
            place = self._known[op] = len(self.ops)
            self.ops.append(op)
        return place

    def _shorter(self, name: str, operands: Sequence[int], attribute: Any) -> int | None:
        """Numbers that were rounded to a few bits and come back as floats never need be integers:
        (float)((uint8)(round_to_int(x) + zero)) - zero is the integer nearest to x. What is at least 0 times something
        is at least 0."""
        if not operands:
            return None
        first = self.ops[operands[0]]
        if name == "cast" and first.name == "truncate":
            whole = self.ops[first.operands[0]]
            if whole.dtype == attribute:
                return first.operands[0]
            return self.emit("cast", first.operands, wide(attribute), attribute)
        if name == "fmax" and first.name == "mul" and self._is(operands[1], lambda value: value == 0):
            before = self.ops[first.operands[0]]
            if before.name == "relu" and self._is(first.operands[1], lambda value: value > 0):
                product = self.emit("mul", (before.operands[0], first.operands[1]), first.dtype)
                return self.emit("fmax", (product, operands[1]), first.dtype)
        if name == "cast" and first.name == "round_to_int" and attribute == "float32":
            return self.emit("round_to_float", first.operands, "float32")
        if name == "sub" and first.name == "cast" and first.dtype == "float32":
            total, taken = self.ops[first.operands[0]], self.ops[operands[1]]
            if total.name == "add" and self.ops[total.operands[0]].name == "round_to_int" and taken.name == "const":
                more = self.ops[total.operands[1]]
                if more.name == "const" and more.attribute.value == taken.attribute.value:
                    return self.emit("cast", total.operands[:1], "float32", "float32")
        return None

    def _is(self, place: int, holds: Callable[[Any], bool]) -> bool:
        op = self.ops[place]
        return op.name == "const" and holds(op.attribute.value)

    def load(self, buffer: str, index: Size, dtype: str) -> int:
        """An element of memory of this dtype, as a value of its computing type."""
        place = self.emit("load", (), wide(dtype), Load(buffer, index, self._mask))
        if dtype in HALVES:
            self._halves[place] = dtype
        return place

    def const(self, value: int | float | bool, dtype: str) -> int:
        """A number of this dtype: that of a half dtype is rounded to it."""
        value = bool(value) if dtype == "bool" else float(value) if dtype in FLOATS else int(value)
        if dtype in HALVES:
            value = round_number(value, dtype)
        # -0.0 equals 0.0 and nan equals nothing: the text keeps them apart.
        return self.emit("const", (), wide(dtype), _Constant(value))

    def index(self, index: Size, dtype: str = "int64") -> int:
        """An index as a value."""
        if isinstance(index, int):
            return self.const(index, dtype)
        place = self.emit("index", (), "int64", index)
        return place if dtype == "int64" else self.cast(place, dtype)

    def cast(self, value: int, dtype: str) -> int:
        """The value as this dtype; a half rounds, though it is computed in float32."""
        before = self.ops[value]
        if before.dtype == dtype:
            return value
        if dtype in HALVES and before.dtype == wide(dtype) and self._is_rounded(value, dtype):
            return value
        if before.name == "const" and dtype not in ("float16", "bfloat16") and _fits(before.attribute.value, dtype):
            return self.const(before.attribute.value, dtype)
        if before.name == "cast" and before.dtype in ("int32", "int64") and dtype in FLOATS:
            (source,) = before.operands
            if self.dtype(source) == wide(dtype):
                # One operation: of two casts gcc makes one that keeps the sign of -0.0, which no integer has.
                through = self.emit(f"through_i{before.dtype[3:]}", (source,), wide(dtype))
                return self.cast(through, dtype) if dtype in HALVES else through
        return self.emit("cast", (value,), wide(dtype), dtype)

    def bitcast(self, value: int, before: str, after: str) -> int:
        """The bits of a value of a dtype as a value of another one of the same width."""
        if before == "bool":
            return self.bitcast(self.cast(value, "uint8"), "uint8", after)
        if after == "bool":
            return self.cast(self.bitcast(value, before, "uint8"), "bool")
        source = self.ops[value]
        if (
            source.name == "bitcast" and source.attribute[1] == before
        ):  # a half rounded to itself may lose bits of a nan
            return self.bitcast(source.operands[0], source.attribute[0], after)
        if before == after:
            return value
        if before in INTEGERS and after in INTEGERS:
            return self.cast(value, after)
        return self.emit("bitcast", (value,), wide(after), (before, after))

    def _is_rounded(self, value: int, dtype: str) -> bool:
        """Whether rounding the value to this half dtype is known to change nothing."""
        op = self.ops[value]
        if op.name == "const":
            number = float(op.attribute.value)
            return number != number or round_number(number, dtype) == number
        if op.name == "bitcast":
            return bool(op.attribute[1] == dtype)
        if op.name == "cast":
            return bool(op.attribute == dtype) or self.dtype(op.operands[0]) == "bool"
        if op.name in SELECTIONS:
            return all(self._is_rounded(o, dtype) for o in op.operands[op.name == "where" :])
        return self._halves.get(value) == dtype

    def call(self, name: str, *operands: int) -> int:
        """An operation whose operands have one dtype already; a comparison returns bool."""
        dtype = "bool" if name in COMPARISONS else self.dtype(operands[0])
        known = self._known_result(name, operands)
        return self.emit(name, operands, dtype) if known is None else known

    def _known_result(self, name: str, operands: tuple[int, ...]) -> int | None:
        """Folds what is known: an integer is never nan, an unsigned one never negative. Compilers warn of these."""
        of = self.dtype(operands[0])
        if name in ("isnan", "isinf") and of not in FLOATS:
            return self.const(False, "bool")
        if of[0] != "u":
            return None
        if name in ("abs", "relu"):
            return operands[0]
        zero = [self.ops[o].name == "const" and self.ops[o].attribute.value == 0 for o in operands]
        if (name == "lt" and zero[1]) or (name == "gt" and zero[0]):
            return self.const(False, "bool")
        if (name == "ge" and zero[1]) or (name == "le" and zero[0]):
            return self.const(True, "bool")
        if name in ("sign", "sgn"):
            return self.cast(self.emit("ne", (operands[0], self.const(0, of)), "bool"), of)
        return None

    def where(self, condition: int, yes: int, no: int) -> int:
        return yes if yes == no else self.emit("where", (condition, yes, no), self.dtype(yes))

    def check_index(self, value: int, size: Size, *, wraps: bool = True) -> Size:
        """A value as an index into `size` places: if it `wraps`, negatives count from the end. Others fail the run."""
        value = self.cast(value, "int64")
        if not wraps:
            outside = self.const(OUT_OF_ANY_RANGE, "int64")
            value = self.where(self.call("lt", value, self.const(0, "int64")), outside, value)
        operands = (value,) if self._mask is None else (value, self._mask)
        place = self.emit("bounds_check", operands, "int64", size)
        return value_symbol(place, below=size)

    def as_index(self, value: int, below: Size | None = None) -> Size:
        """A value as part of an index, unchecked."""
        op = self.ops[value]
        if op.name == "index":
            return op.attribute  # type: ignore[no-any-return]
        if op.name == "const":
            return int(op.attribute.value)
        return value_symbol(value, below=below, signed=below is None)

    # ------------------------------------------------------------------ asking

    def dtype(self, value: int) -> str:
        return self.ops[value].dtype

    @contextmanager
    def mask(self, condition: int) -> Iterator[None]:
        """Loads inside happen only where the condition holds; elsewhere they return 0."""
        outer = self._mask
        self._mask = condition if outer is None else self.call("and", outer, condition)
        try:
            yield
        finally:
            self._mask = outer

    def zero_outside(self, condition: int, load: Callable[[], int]) -> int:
        """What `load` returns where the condition holds, and 0 elsewhere. A masked load alone does not say so much:
        what is computed from it, x + 1, is not 0 where x is."""
        with self.mask(condition):
            value = load()
        source = self.ops[value]
        while source.name == "cast":
            source = self.ops[source.operands[0]]
        return value if source.name == "load" else self.where(condition, value, self.const(0, self.dtype(value)))

    def once(self, key: C, compute: Callable[[], T]) -> T:
        """What `compute` returns for this key, computed once per mask."""
        full = (key, self._mask)
        if full not in self._cached:
            self._cached[full] = compute()
        return self._cached[full]  # type: ignore[no-any-return]

    def finish(self, results: Sequence[int]) -> Body:
        """The body without what no result needs."""
        return prune(Body(tuple(self.ops), tuple(results)))

    # ------------------------------------------------------------------ as a handler

    def op(self, place: int, op: Op, operands: tuple[int, ...]) -> int:
        return self.emit(op.name, operands, op.dtype, op.attribute)


class _Constant:
    """A number that compares by its bits' text."""

    __slots__ = ("text", "value")

    def __init__(self, value: int | float | bool) -> None:
        self.value = value
        self.text = f"{type(value).__name__} {value!r}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Constant) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __str__(self) -> str:
        return repr(self.value)


def _fits(value: int | float | bool, dtype: str) -> bool:
    if dtype in FLOATS or dtype == "bool":
        return dtype != "float32" or not isinstance(value, float)
    return isinstance(value, int) and dtype == "int64"


def rewrite(
    body: Body,
    *,
    symbols: Mapping[str, Size] | None = None,
    into: BodyBuilder | None = None,
    replace: Callable[[Op, tuple[int, ...], BodyBuilder], int | None] = lambda op, operands, ops: None,
) -> tuple[BodyBuilder, list[int]]:
    """The body written again into `into`: symbols renamed in every index, `replace` answering for ops of its choice."""
    ops = into if into is not None else BodyBuilder()
    values: list[int] = []
    mapping: dict[str, Size] = dict(symbols or {})
    for place, op in enumerate(body.ops):
        operands = tuple(values[operand] for operand in op.operands)
        attribute = op.attribute
        if isinstance(attribute, Load):
            mask = values[attribute.mask] if attribute.mask is not None else None
            attribute = Load(attribute.buffer, substitute(attribute.index, mapping), mask)
        elif isinstance(attribute, Expr):
            attribute = substitute(attribute, mapping)
        renamed = Op(op.name, operands, op.dtype, attribute)
        found = replace(renamed, operands, ops)
        if found is None:
            if op.name == "index" and isinstance(attribute, int):
                found = ops.const(attribute, "int64")
            else:
                found = ops.emit(op.name, operands, op.dtype, attribute)
        values.append(found)
        if op.dtype == "int64":
            below = attribute if op.name == "bounds_check" else None
            mapping[value_name(place)] = ops.as_index(found) if below is None else value_symbol(found, below=below)
    return ops, [values[result] for result in body.results]


def prune(body: Body) -> Body:
    """Without operations that no result needs, in the same order."""
    needed: set[int] = set(body.results)
    for place in range(len(body.ops) - 1, -1, -1):
        op = body.ops[place]
        if place not in needed and op.name != "bounds_check":
            continue
        needed.add(place)
        needed.update(op.operands)
        needed.update(_places(op.attribute))
    if len(needed) == len(body.ops):
        return body
    kept = [place for place in range(len(body.ops)) if place in needed]
    moved = {old: new for new, old in enumerate(kept)}
    names: dict[str, Size] = {}
    ops = []
    for old in kept:
        op = body.ops[old]
        attribute = op.attribute
        if isinstance(attribute, Load):
            mask = moved[attribute.mask] if attribute.mask is not None else None
            attribute = Load(attribute.buffer, substitute(attribute.index, names), mask)
        elif isinstance(attribute, Expr):
            attribute = substitute(attribute, names)
        ops.append(Op(op.name, tuple(moved[o] for o in op.operands), op.dtype, attribute))
        if op.dtype == "int64" and moved[old] != old:
            below = op.attribute if op.name == "bounds_check" else None
            names[value_name(old)] = value_symbol(moved[old], below=below, signed=below is None)
    return Body(tuple(ops), tuple(moved[r] for r in body.results))


def find_used(body: Body) -> set[int]:
    """The places that a result, an operand, an index or a mask names. A check may be there for its own sake."""
    found = set(body.results)
    for op in body.ops:
        found.update(op.operands)
        found.update(_places(op.attribute))
    return found


def reads(body: Body) -> list[Load]:
    """Every load, in order."""
    return [op.attribute for op in body.ops if isinstance(op.attribute, Load)]


def _places(attribute: Any) -> set[int]:
    """The values that an index or a mask depends on."""
    found: set[int] = set()
    index: Any = attribute
    if isinstance(attribute, Load):
        index = attribute.index
        if attribute.mask is not None:
            found.add(attribute.mask)
    if isinstance(index, Expr):
        found.update(s.place for s in index.symbols if isinstance(s, BodyValue))
    return found
