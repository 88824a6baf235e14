"""Sizes, types and bodies as C text. `CBodyEmitter` is the handler that a body is replayed on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from ingot.lowering.dtypes import FLOATS, INTEGERS
from ingot.lowering.index_expr import (
    BodyValue,
    Div,
    Expr,
    MinMax,
    Mod,
    Size,
    Symbol,
    bounds,
    never_negative,
    substitute,
)
from ingot.lowering.loop_body import OUT_OF_ANY_RANGE, find_used, replay
from ingot.lowering.loop_ir import Body, Buffer, Load, Op

STORED = {
    "bool": "uint8_t",
    "float16": "uint16_t",
    "bfloat16": "uint16_t",
    "float32": "float",
    "float64": "double",
    **{name: f"{name}_t" for name in INTEGERS},
}
# A bool is an int while it is computed with: masks as wide as floats vectorize best.
COMPUTED = {**STORED, "bool": "int", "float16": "float", "bfloat16": "float"}
SUFFIX = {
    "float32": "f32",
    "float64": "f64",
    "bool": "i32",
    **{n: n.replace("uint", "u").replace("int", "i") for n in INTEGERS},
}


def size_text(size: Size, names: Mapping[str, str] | None = None) -> str:
    """An index as C. Symbols keep their names, or take those in `names`; what is never negative is divided by C's /."""
    if names:
        size = _rename(size, names)
    if isinstance(size, int):
        return str(size)
    parts: list[str] = []
    for term, coefficient in sorted(size.terms.items(), key=lambda item: (-len(item[0]), [str(a) for a in item[0]])):
        factors = [_atom_text(atom) for atom in term]
        number = abs(coefficient)
        if number != 1 or not factors:
            factors.append(str(number))
        text = "*".join(factors)
        sign = "-" if coefficient < 0 else "+"
        parts.append(f" {sign} {text}" if parts else (f"-{text}" if coefficient < 0 else text))
    return "".join(parts) or "0"


def _atom_text(atom: Symbol | Div | Mod | MinMax) -> str:
    if isinstance(atom, Symbol):
        return atom.name
    left, right = size_text(atom.left), size_text(atom.right)
    if isinstance(atom, MinMax):
        return f"ig_{atom.which}({left}, {right})"
    name = "div" if isinstance(atom, Div) else "mod"
    if not (never_negative(atom.left) and never_negative(atom.right)):
        return f"ig_floor_{name}({left}, {right})"
    return f"({_enclose(left)} {'/' if name == 'div' else '%'} {_enclose(right)})"


def _enclose(text: str) -> str:
    return text if text.isalnum() else f"({text})"


def symbols_of(sizes: Iterable[Size]) -> set[str]:
    return {s.name for size in sizes if isinstance(size, Expr) for s in size.symbols}


def constant_text(value: int | float | bool, dtype: str) -> str:
    if dtype in FLOATS:
        value = float(value)
        if math.isnan(value):
            return "NAN_F32" if dtype == "float32" else "NAN_F64"
        if math.isinf(value):
            name = "INF_F32" if dtype == "float32" else "INF_F64"
            return name if value > 0 else f"(-{name})"
        if dtype == "float32":
            return f"{_single(value)}f"
        return value.hex() if value != int(value) or abs(value) > 1e15 else repr(value)
    if dtype == "int64":
        return "INT64_MIN" if value == -(2**63) else f"{int(value)}" if abs(value) < 2**31 else f"INT64_C({int(value)})"
    return f"(({COMPUTED[dtype]}){int(value)})" if dtype not in ("bool", "int32") else str(int(value))


def _single(value: float) -> str:
    """The shortest decimal that reads back as the same float32."""
    import numpy as np

    text = str(np.float32(value))
    return text if any(c in text for c in ".en") else f"{text}.0"


_TO_BITS = {"float16": "f32_to_f16", "bfloat16": "f32_to_bf16", "float32": "bits_f32", "float64": "bits_f64"}
_FROM_BITS = {
    "float16": "f16_to_f32",
    "bfloat16": "bf16_to_f32",
    "float32": "from_bits_f32",
    "float64": "from_bits_f64",
}
# Operations that C spells itself, for every dtype.
_INFIX = {"add": "+", "sub": "-", "mul": "*", "bitand": "&", "bitor": "|", "bitxor": "^",
          "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "and": "&", "or": "|"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class IndexCheck:
    """One check of an index, in the innermost loop or not.

    Where the text finds out which index is wrong, `worst` is the variable with the greatest place of all, as an
    unsigned number: a wrong index below 0 is greater than any size. Places are valid below `size`; if they `wrap`,
    `size` was added to negative indices. Where `size` may be 0, or nothing can be found out, the text sets `bad`
    (`has_flag`).
    """

    is_inside: bool
    has_flag: bool
    worst: str = ""
    size: str = ""
    wraps: bool = False


class CBodyEmitter:
    """Replays a body as C declarations: those that depend on `inner` variables, those that depend on `middle` ones
    only, and those that depend on neither, which go before the loops.

    `place(buffer, index)` spells the element of a buffer; `accumulator`, `gradient` and `beside` are what the kernel
    hands in; `names` has symbols that this text calls otherwise; `library` collects the functions that it calls; `seed`
    and `first_draw` are what the random draws of a call follow from. With `finds_indices`, checks
    say which index is wrong, where they can.
    """

    def __init__(
        self,
        body: Body,
        place: Callable[[str, Size], str],
        buffers: Mapping[str, Buffer],
        library: set[str],
        *,
        inner: Iterable[str] = (),
        middle: Iterable[str] = (),
        prefix: str = "v",
        accumulator: str = "acc",
        gradient: str = "gradient",
        beside: str = "beside",
        names: Mapping[str, str] | None = None,
        seed: str = "c->run->seed",
        first_draw: str = "c->run->draw",
        finds_indices: bool = False,
    ) -> None:
        self.body = body
        self.place = place
        self.buffers = buffers
        self.library = library
        self.prefix = prefix
        self.seed = seed
        self.first_draw = first_draw
        self.given = {"accumulator": accumulator, "gradient": gradient, "second_accumulator": beside}
        self.before: list[str] = []
        self.between: list[str] = []
        self.inside: list[str] = []
        self.checks: list[IndexCheck] = []
        self._finds_indices = finds_indices
        self.zero_checks = False
        self._levels: list[int] = []
        self._renamed = dict(names or {})
        if prefix != "v":
            self._renamed |= {f"v{i}": f"{prefix}{i}" for i in range(len(body.ops))}
        self._depth = {**{name: 1 for name in middle}, **{name: 2 for name in inner}}
        self._used = find_used(body)
        self.results = replay(body, self)

    def op(self, place: int, op: Op, operands: tuple[str, ...]) -> str:
        self._levels.append(self._level(op))
        lines = (self.before, self.between, self.inside)[self._levels[-1]]
        text = self._expression(op, operands, lines)
        if op.name in ("const", "input", *self.given) or place not in self._used:
            if op.name == "bounds_check" and self.checks[-1].worst and operands[0].startswith(self.prefix):
                lines.append(f"(void){operands[0]};")  # the check reads what this one was made of
            return text
        lines.append(f"const {COMPUTED[op.dtype]} {self.prefix}{place} = {text};")
        return f"{self.prefix}{place}"

    @property
    def levels(self) -> list[int]:
        """Of each operation: 0 where it stands before all loops, 1 in the middle ones, 2 in the innermost."""
        return self._levels

    def _level(self, op: Op) -> int:
        """How far inside an operation must stand: 0 before all loops, 1 in the middle ones, 2 in the innermost."""
        if op.name in ("input", "random", *self.given):
            return 2
        level = max((self._levels[operand] for operand in op.operands), default=0)
        index = op.attribute
        if isinstance(index, Load):
            if index.mask is not None:
                level = max(level, self._levels[index.mask])
            index = index.index
        if isinstance(index, Expr):
            for s in index.symbols:
                inside = self._levels[s.place] if isinstance(s, BodyValue) else self._depth.get(s.name, 0)
                level = max(level, inside)
        return level

    # ------------------------------------------------------------------ one op

    def _expression(self, op: Op, operands: tuple[str, ...], lines: list[str]) -> str:
        attribute = op.attribute
        match op.name:
            case "load":
                return self._load(attribute)
            case "const":
                return constant_text(attribute.value, op.dtype)
            case "index":
                return self._size(attribute)
            case "accumulator" | "gradient" | "second_accumulator":
                return self.given[op.name]
            case "input":
                return f"state{attribute}"
            case "cast":
                return self._cast(self.body.ops[op.operands[0]].dtype, attribute, operands[0])
            case "bitcast":
                before, after = attribute
                return self._bitcast(before, after, operands[0])
            case "bounds_check":
                return self._check(op, operands, lines)
            case "truncate":
                return f"({COMPUTED[op.dtype]}){operands[0]}"
            case "where":
                return f"{operands[0]} ? {operands[1]} : {operands[2]}"
            case "random":
                kind, number = attribute
                return f"{self._library(kind)}({self.seed}, {self.first_draw} + {number}, {', '.join(operands)})"
        return self._operation(op, operands)

    def _size(self, size: Size) -> str:
        return size_text(size, self._renamed)

    def _load(self, access: Load) -> str:
        at = self.place(access.buffer, _rename(access.index, self._renamed))
        dtype = self.buffers[access.buffer].dtype
        if dtype in ("bfloat16", "float16"):
            at = f"{self._library('bf16_to_f32' if dtype == 'bfloat16' else 'f16_to_f32')}({at})"
        given = [f"{self.prefix}{access.mask}"] if access.mask is not None else []
        given += self.empty_dims(access.index)
        return f"{' && '.join(given)} ? {at} : 0" if given else at

    def empty_dims(self, index: Size) -> list[str]:
        """Whether dims that may be empty are not: of an empty one even the place 0, which stands for a bad one, is
        outside."""
        symbols = sorted(index.symbols, key=str) if isinstance(index, Expr) else []
        checks = [self.body.ops[s.place] for s in symbols if isinstance(s, BodyValue)]
        sizes = [op.attribute for op in checks if op.name == "bounds_check" and (bounds(op.attribute)[0] or 0) < 1]
        return [f"{_enclose(self._size(size))} > 0" for size in sizes]

    def _cast(self, before: str, after: str, value: str) -> str:
        if after in ("bfloat16", "float16"):
            return f"{self._library('as_bf16_f32' if after == 'bfloat16' else 'as_f16_f32')}((float){value})"
        if after == "bool":
            return f"{value} != 0"
        if before in ("float32", "float64") and after in INTEGERS:
            return f"{self._library(f'{SUFFIX[before]}_to_{SUFFIX[after]}')}({value})"
        return f"({COMPUTED[after]}){value}"

    def _bitcast(self, before: str, after: str, value: str) -> str:
        bits = f"{self._library(_TO_BITS[before])}({value})" if before in FLOATS else f"({COMPUTED[before]}){value}"
        if after in FLOATS:
            return f"{self._library(_FROM_BITS[after])}({bits})"
        return f"({COMPUTED[after]}){bits}"

    def _check(self, op: Op, operands: tuple[str, ...], lines: list[str]) -> str:
        limit, value = self._size(op.attribute), operands[0]
        check = self._describe_check(op, limit, lines is self.inside)
        self.checks.append(check)
        wrapped = f"({value} < 0 ? {value} + ({limit}) : {value})"
        if check.worst:
            given, wraps = self._index_before_check(op, value)
            place = f"{self.prefix}_{check.worst}"
            lines.append(f"const uint64_t {place} = (uint64_t){wrapped if wraps else given};")
            if wraps:
                wrapped = f"(int64_t){place}"
            seen = place if len(operands) == 1 else f"({operands[1]} ? {place} : 0)"
            lines.append(f"{check.worst} = {seen} > {check.worst} ? {seen} : {check.worst};")
        outside = f"(uint64_t){wrapped} >= (uint64_t)({limit})"
        bad = f"(({outside}) & {operands[1]})" if len(operands) > 1 else f"({outside})"
        if check.has_flag:
            lines.append(f"bad |= {bad};")
        return f"{outside} ? 0 : {wrapped}"

    def _describe_check(self, op: Op, limit: str, is_inside: bool) -> IndexCheck:
        """How the check says which index is wrong, where its size is known outside the loops."""
        symbols = op.attribute.symbols if isinstance(op.attribute, Expr) else ()
        is_outside = not any(isinstance(s, BodyValue) or self._depth.get(s.name, 0) for s in symbols)
        if not self._finds_indices or not is_outside:
            return IndexCheck(is_inside, True)
        may_be_empty = (bounds(op.attribute)[0] or 0) < 1
        return IndexCheck(
            is_inside, may_be_empty, f"worst{len(self.checks)}", limit, self._index_before_check(op, "")[1]
        )

    def _index_before_check(self, op: Op, value: str) -> tuple[str, bool]:
        """The index as the model has it, and whether a negative one counts from the end. `check_index` makes one that
        does not so large that it is out of any range."""
        made = self.body.ops[op.operands[0]]
        if made.name == "where":
            large, index = made.operands[1:]
            source = self.body.ops[index]
            is_large = self._is_number(large) and self.body.ops[large].attribute.value == OUT_OF_ANY_RANGE
            if is_large and source.name not in ("const", "input", *self.given):
                return f"{self.prefix}{index}", False
        return value, True

    def _is_number(self, place: int) -> bool:
        op = self.body.ops[place]
        return op.name == "const" and op.attribute.value == op.attribute.value

    def _library(self, name: str) -> str:
        full = f"ig_{name}"
        self.library.add(full)
        return full

    def _operation(self, op: Op, operands: tuple[str, ...]) -> str:
        dtype = self.body.ops[op.operands[0]].dtype
        a = operands[0]
        b = operands[1] if len(operands) > 1 else ""
        if dtype == "bool" and op.name in _BOOLEAN:
            return _BOOLEAN[op.name].format(a=a, b=b)
        if op.name in _INFIX:
            return f"{a} {_INFIX[op.name]} {b}"
        floating = dtype in ("float32", "float64")
        if floating and op.name in ("max", "min") and self._is_number(op.operands[1]):
            return f"{b} {'>' if op.name == 'max' else '<'} {a} ? {b} : {a}"  # where a is nan, a
        if floating and op.name in _FLOAT_BUILTINS:
            end = "f" if dtype == "float32" else ""
            return f"__builtin_{_FLOAT_BUILTINS[op.name]}{end}({', '.join(operands)})"
        minus = f"-({a})" if a.startswith("-") else f"-{a}"  # two signs side by side would be a decrement
        simple = (_FLOAT_TEXT if floating else _INTEGER_TEXT).get(op.name) or _ANY_TEXT.get(op.name)
        if simple is not None:
            return simple.format(a=a, b=b, minus=minus, one=constant_text(1, dtype), zero=constant_text(0, dtype))
        if not floating and op.name in ("floordiv", "truncdiv", "floormod", "fmod"):
            self.zero_checks = True
            name = {"fmod": "truncmod", "floormod": "remainder"}.get(op.name, op.name)
            return f"{self._library(f'{name}_{SUFFIX[dtype]}')}({a}, {b}, &zero)"
        name = {"floordiv": "floor_divide", "floormod": "remainder"}.get(op.name, op.name)
        return f"{self._library(f'{name}_{SUFFIX[dtype]}')}({', '.join(operands)})"


_FLOAT_BUILTINS = {
    "sqrt": "sqrt",
    "floor": "floor",
    "ceil": "ceil",
    "trunc": "trunc",
    "abs": "fabs",
    "round": "rint",
    "copysign": "copysign",
}
_FLOAT_TEXT = {
    "div": "{a} / {b}",
    "reciprocal": "{one} / {a}",
    # A nan on either side is the result: torch's rule, not C's.
    "max": "(({a} > {b}) | ({a} != {a})) ? {a} : {b}",
    "min": "(({a} < {b}) | ({a} != {a})) ? {a} : {b}",
    "fmax": "(({a} > {b}) | ({b} != {b})) ? {a} : {b}",
    "fmin": "(({a} < {b}) | ({b} != {b})) ? {a} : {b}",
    "relu": "{a} < {zero} ? {zero} : {a}",
    "isnan": "{a} != {a}",
    "isinf": "({a} - {a} != {a} - {a}) & ({a} == {a})",
    "sign": "({a} > {zero}) - ({a} < {zero})",
    "sgn": "({a} > {zero}) - ({a} < {zero})",
}
_INTEGER_TEXT = {
    "max": "{a} > {b} ? {a} : {b}",
    "min": "{a} < {b} ? {a} : {b}",
    "fmax": "{a} > {b} ? {a} : {b}",
    "fmin": "{a} < {b} ? {a} : {b}",
    "relu": "{a} < {zero} ? {zero} : {a}",
    "abs": "{a} < {zero} ? {minus} : {a}",
    "bitwise_not": "~{a}",
    "shl": "(uint64_t){b} > 63 ? 0 : {a} << {b}",
    "shr": "{a} >> ((uint64_t){b} > 63 ? 63 : {b})",
    "sign": "({a} > {zero}) - ({a} < {zero})",
    "sgn": "({a} > {zero}) - ({a} < {zero})",
    **{name: "{a}" for name in ("floor", "ceil", "trunc", "round")},
}
_BOOLEAN = {"add": "{a} | {b}", "mul": "{a} & {b}", "bitwise_not": "!{a}", "max": "{a} | {b}", "min": "{a} & {b}"}
_ANY_TEXT = {"neg": "{minus}", "not": "!{a}", "square": "{a} * {a}", "positive": "{a}"}


def _rename(size: Size, names: Mapping[str, str]) -> Size:
    if not names or isinstance(size, int):
        return size
    renamed = {s.name: replace(s, name=names[s.name]) for s in size.symbols if s.name in names}
    return substitute(size, {name: Expr({(s,): 1}) for name, s in renamed.items()})
