"""Symbolic sizes: a program's named dims, and expressions over them.

    Dim         a name with a range: batch in [1, 64]
    Constraint  a boolean expression that every call must satisfy, with the user's line that needs it
    expression  a sympy expression over dims; in a file a number, a name, or ["floordiv", expression, expression]

One table, `OPERATIONS`, says how each operation is spelled in sympy, in an FX graph and in a file; `fold` walks an
expression for all three.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeVar

import sympy
import torch

from ingot import torch_internals as internals

T = TypeVar("T")
Json = Any

_f = internals.sympy_functions


@dataclass(frozen=True, slots=True)
class Dim:
    """A dynamic size, unbounded if `high` is None. `auto` dims were inferred and may be tied to others."""

    name: str
    low: int
    high: int | None
    auto: bool = False

    def __str__(self) -> str:
        return f"{self.name} in [{self.low}, {'∞' if self.high is None else self.high}]"


@dataclass(frozen=True, slots=True)
class Constraint:
    """What a call's sizes must satisfy, and the line of the user's code that it comes from."""

    condition: sympy.Basic
    source: str

    def __str__(self) -> str:
        return f"{format_dim(self.condition)}" + (f"  # {self.source}" if self.source else "")


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation on sizes: the function an FX node calls, and how sympy builds it."""

    function: Callable[..., Any]
    build: Callable[..., sympy.Basic]


def _round(number: float, digits: int | None = None) -> Any:
    return round(number, digits) if digits is not None else round(number)


OPERATIONS: dict[str, Operation] = {
    "add": Operation(operator.add, sympy.Add),
    "mul": Operation(operator.mul, sympy.Mul),
    "pow": Operation(operator.pow, _f.PowByNatural),
    "floatpow": Operation(operator.pow, _f.FloatPow),
    "floordiv": Operation(operator.floordiv, _f.FloorDiv),
    "mod": Operation(operator.mod, _f.PythonMod),
    "truediv": Operation(operator.truediv, _f.IntTrueDiv),
    "floattruediv": Operation(operator.truediv, _f.FloatTrueDiv),
    "lshift": Operation(operator.lshift, _f.LShift),
    "rshift": Operation(operator.rshift, _f.RShift),
    "max": Operation(torch.sym_max, _f.Max),
    "min": Operation(torch.sym_min, _f.Min),
    "float": Operation(torch.sym_float, _f.ToFloat),
    "trunc": Operation(torch.sym_int, _f.TruncToInt),
    "floor": Operation(math.floor, _f.FloorToInt),
    "ceil": Operation(math.ceil, _f.CeilToInt),
    "round": Operation(round, _f.RoundToInt),
    "rounddecimal": Operation(round, _f.RoundDecimal),
    "where": Operation(torch.sym_ite, _f.Where),
    "eq": Operation(operator.eq, sympy.Eq),
    "ne": Operation(operator.ne, sympy.Ne),
    "lt": Operation(operator.lt, sympy.Lt),
    "le": Operation(operator.le, sympy.Le),
    "gt": Operation(operator.gt, sympy.Gt),
    "ge": Operation(operator.ge, sympy.Ge),
    "and": Operation(operator.and_, sympy.And),
    "or": Operation(operator.or_, sympy.Or),
    "not": Operation(torch.sym_not, sympy.Not),
    "sqrt": Operation(internals.sym_sqrt, _f.OpaqueUnaryFn_sqrt),
    "log2": Operation(internals.sym_log2, _f.OpaqueUnaryFn_log2),
}

# sympy has several classes for what is one operation at run time.
_NAMES: dict[type, str] = {
    **{op.build: name for name, op in OPERATIONS.items() if isinstance(op.build, type)},
    sympy.Pow: "pow",
    _f.CleanDiv: "floordiv",
    _f.Mod: "mod",
    sympy.Max: "max",
    sympy.Min: "min",
    sympy.floor: "floor",
    sympy.ceiling: "ceil",
}
_ASSOCIATIVE = frozenset({"add", "mul", "max", "min", "and", "or"})


class UnknownOperation(Exception):
    """An expression uses an operation that is not in the table."""


def fold(
    expr: sympy.Basic,
    symbol: Callable[[sympy.Symbol], T],
    constant: Callable[[int | float | bool], T],
    apply: Callable[[str, tuple[T, ...], sympy.Basic], T],
    known: Callable[[sympy.Basic], T | None] = lambda expr: None,
) -> T:
    """Evaluates an expression bottom up in any domain; `known` may answer for a whole subexpression at once."""
    found = known(expr)
    if found is not None:
        return found
    if isinstance(expr, sympy.Symbol):
        return symbol(expr)
    if expr in (sympy.true, sympy.false):
        return constant(bool(expr))
    if expr.is_number:
        return constant(int(expr) if expr.is_integer else float(expr))
    if isinstance(expr, sympy.Mul):
        expr = _remove_fractions(expr)
    if isinstance(expr, sympy.Piecewise):
        (value, condition), *rest = expr.args
        other = sympy.Piecewise(*rest) if rest and rest[0][1] is not sympy.true else rest[0][0]
        expr = _f.Where(condition, value, other)
    name = _NAMES.get(type(expr))
    if name is None:
        raise UnknownOperation(f"{type(expr).__name__} in {expr}")
    parts = [fold(arg, symbol, constant, apply, known) for arg in expr.args]
    if name in _ASSOCIATIVE and len(parts) > 2:
        exprs = list(expr.args)
        build = OPERATIONS[name].build
        value, whole = parts[0], exprs[0]
        for part, arg in zip(parts[1:], exprs[1:], strict=True):
            whole = build(whole, arg)
            value = apply(name, (value, part), whole)
        return value
    return apply(name, tuple(parts), expr)


def line_of(expr: sympy.Basic) -> tuple[sympy.Symbol, int, int] | None:
    """A size as slope · symbol + offset; None where it is something else."""
    if len(expr.free_symbols) != 1:
        return None
    (symbol,) = expr.free_symbols
    slope = expr.coeff(symbol, 1) if expr.is_polynomial(symbol) else sympy.Integer(0)
    offset = sympy.expand(expr - slope * symbol)
    if not (slope.is_Integer and slope != 0 and offset.is_Integer):
        return None
    return symbol, int(slope), int(offset)


def match_scaled_size(expr: sympy.Basic) -> tuple[sympy.Basic, int, int] | None:
    """trunc(factor * float(size)) as size, a and b, where it is (size * a) // b whatever the size; None elsewhere.

    The product is rounded to a double. With a/b the fraction that the factor stands for, what could go wrong are sizes
    where size * a / b is whole: with a factor that is too small by more than half a unit in its last place the product
    would be less. Sizes are taken to be below 2**40.
    """
    if not isinstance(expr, _f.TruncToInt | _f.FloorToInt) or not isinstance(expr.args[0], sympy.Mul):
        return None
    factor, *rest = expr.args[0].args
    if not isinstance(factor, sympy.Float) or len(rest) != 1 or not isinstance(rest[0], _f.ToFloat) or factor < 0:
        return None
    exact = Fraction(float(factor))
    meant = exact.limit_denominator(1000)
    if not meant or (meant - exact) / meant > Fraction(1, 2**54) or (exact - meant) / meant > Fraction(1, 2**53):
        return None
    return rest[0].args[0], meant.numerator, meant.denominator


def _remove_fractions(expr: sympy.Basic) -> sympy.Basic:
    """sympy writes exact division as a fraction: s/2 becomes a floor division that is known to be exact."""
    top, bottom = expr.as_numer_denom()
    return expr if bottom == 1 else _f.FloorDiv(top, bottom)


def from_json(data: Json, symbols: Mapping[str, sympy.Symbol]) -> sympy.Basic:
    """The expression of nested lists [operation, parts…], symbols by name. KeyError or TypeError on anything else."""
    if isinstance(data, bool):
        return sympy.true if data else sympy.false
    if isinstance(data, int | float):
        return sympy.sympify(data)
    if isinstance(data, str):
        return symbols[data]
    name, *parts = data
    return OPERATIONS[name].build(*(from_json(part, symbols) for part in parts))


def evaluate(expr: sympy.Basic, sizes: Mapping[sympy.Symbol, int]) -> int | float | bool:
    """The number an expression stands for when its dims have these sizes."""
    value: int | float | bool = _compile(expr)(sizes)
    return value


@functools.lru_cache(maxsize=4096)
def _compile(expr: sympy.Basic) -> Callable[[Mapping[sympy.Symbol, int]], Any]:
    """An expression as a closure: a call checks many of these, and walking sympy each time is slow."""

    def symbol(s: sympy.Symbol) -> Callable[[Mapping[sympy.Symbol, int]], Any]:
        return lambda sizes: sizes[s]

    def constant(c: int | float | bool) -> Callable[[Mapping[sympy.Symbol, int]], Any]:
        return lambda sizes: c

    def apply(
        name: str, parts: tuple[Callable[[Mapping[sympy.Symbol, int]], Any], ...], _: sympy.Basic
    ) -> Callable[[Mapping[sympy.Symbol, int]], Any]:
        function = OPERATIONS[name].function
        return lambda sizes: function(*(part(sizes) for part in parts))

    return fold(expr, symbol, constant, apply)


def name_of(symbol: sympy.Symbol) -> str:
    """A symbol's name as the user gave it: torch wants size symbols to begin with "s"."""
    name: str = symbol.name
    return name.removeprefix("s_")


_SPELLING = {
    "add": "{} + {}",
    "mul": "{}*{}",
    "pow": "{}**{}",
    "floordiv": "{}//{}",
    "mod": "{} % {}",
    "truediv": "{}/{}",
    "eq": "{} == {}",
    "ne": "{} != {}",
    "lt": "{} < {}",
    "le": "{} <= {}",
    "gt": "{} > {}",
    "ge": "{} >= {}",
    "and": "{} and {}",
    "or": "{} or {}",
    "not": "not {}",
}
_BINDING = {"mul": 3, "floordiv": 3, "mod": 3, "truediv": 3, "pow": 4, "add": 2}


def format_dim(expr: Any) -> str:
    """An expression as the user would write it."""
    if not isinstance(expr, sympy.Basic):
        expr = internals.expr_of(expr)

    def apply(name: str, parts: tuple[tuple[str, int], ...], _: sympy.Basic) -> tuple[str, int]:
        rank = _BINDING.get(name, 1)
        if name not in _SPELLING:
            return f"{name}({', '.join(text for text, _ in parts)})", 9
        texts = [f"({text})" if inner < rank or (inner == rank and name != "add") else text for text, inner in parts]
        return _SPELLING[name].format(*texts), rank

    try:
        return fold(expr, lambda s: (name_of(s), 9), lambda c: (str(c), 9), apply)[0]
    except UnknownOperation:
        return str(expr)
