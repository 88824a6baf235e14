"""Sizes as nodes: where the value of each symbol comes from, and arithmetic on them in int64.

A symbol comes from a dim of a tensor (an input's, or a result's whose size is data-dependent) or from a scalar. Its
nodes are written when they are first needed, once in each scope that can see them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sympy
import torch

from ingot.ir import symbolic_dims
from ingot.onnx.values import OnnxValue, Size

if TYPE_CHECKING:
    from ingot.onnx.graph_builder import OnnxGraphBuilder


@dataclass(frozen=True, slots=True)
class SymbolOrigin:
    """Where a symbol's value is read: dim `dim` of `tensor` is `slope * symbol + offset`; the scalar itself if None."""

    tensor: OnnxValue
    dim: int | None
    slope: int = 1
    offset: int = 0


class SizeNotComputed(Exception):
    """Nothing that ran so far binds a size."""


Operation = Callable[["OnnxGraphBuilder", Sequence[OnnxValue]], OnnxValue]


def _plain(kind: str) -> Operation:
    return lambda ex, parts: ex.op(kind, *parts)


def _floats(kind: str) -> Operation:
    return lambda ex, parts: ex.op(kind, *(ex.cast(part, torch.float64) for part in parts))


def _whole(kind: str) -> Operation:
    return lambda ex, parts: ex.cast(ex.op(kind, ex.cast(parts[0], torch.float64)), torch.int64)


def _floor_divide(ex: OnnxGraphBuilder, parts: Sequence[OnnxValue]) -> OnnxValue:
    """Of integers, rounded down: what is left over by Mod is taken off first."""
    over, under = parts
    return ex.op("Div", ex.op("Sub", over, ex.op("Mod", over, under)), under)


def _power(ex: OnnxGraphBuilder, parts: Sequence[OnnxValue]) -> OnnxValue:
    return ex.op("Pow", *parts)


def _log2(ex: OnnxGraphBuilder, parts: Sequence[OnnxValue]) -> OnnxValue:
    natural = ex.op("Log", ex.cast(parts[0], torch.float64))
    return ex.op("Div", natural, ex.number(math.log(2), torch.float64))


def _differ(ex: OnnxGraphBuilder, parts: Sequence[OnnxValue]) -> OnnxValue:
    return ex.op("Not", ex.op("Equal", *parts))


# How each operation on sizes (`dims.OPERATIONS`) is said in ONNX. Operands have one type: int64, or float64 where one
# of them is.
OPERATIONS: dict[str, Operation] = {
    "add": _plain("Add"),
    "mul": _plain("Mul"),
    "pow": _power,
    "floatpow": _floats("Pow"),
    "floordiv": _floor_divide,
    "mod": _plain("Mod"),
    "truediv": _floats("Div"),
    "floattruediv": _floats("Div"),
    "max": _plain("Max"),
    "min": _plain("Min"),
    "float": lambda ex, parts: ex.cast(parts[0], torch.float64),
    "trunc": lambda ex, parts: ex.cast(parts[0], torch.int64),
    "floor": _whole("Floor"),
    "ceil": _whole("Ceil"),
    "round": _whole("Round"),
    "where": lambda ex, parts: ex.op("Where", *parts),
    "eq": _plain("Equal"),
    "ne": _differ,
    "lt": _plain("Less"),
    "le": _plain("LessOrEqual"),
    "gt": _plain("Greater"),
    "ge": _plain("GreaterOrEqual"),
    "and": _plain("And"),
    "or": _plain("Or"),
    "not": _plain("Not"),
    "sqrt": _floats("Sqrt"),
    "log2": _log2,
}


def _speaks_of(key: Any, symbol: sympy.Symbol) -> bool:
    parts = key if isinstance(key, tuple) else (key,)
    return any(
        _speaks_of(part, symbol) if isinstance(part, tuple) else symbol in getattr(part, "free_symbols", ())
        for part in parts
    )


class SymbolicSizes:
    """The sizes of one export. `exporter.memo` keeps what a scope has computed already."""

    def __init__(self, exporter: OnnxGraphBuilder) -> None:
        self._exporter = exporter
        self._origins: dict[sympy.Symbol, SymbolOrigin] = {}

    def learn(self, expr: Any, tensor: OnnxValue, dim: int | None) -> None:
        """Binds an unknown symbol by a size: the size is the symbol, or linear in it with integer factors."""
        line = symbolic_dims.line_of(expr) if isinstance(expr, sympy.Basic) else None
        if line is None:
            return
        symbol, slope, offset = line
        known = self._origins.get(symbol)
        if known is None or ((slope, offset) == (1, 0) and (known.slope, known.offset) != (1, 0)):
            self._origins[symbol] = SymbolOrigin(tensor, dim, slope, offset)

    def bind(self, expr: sympy.Basic, tensor: OnnxValue) -> None:
        """A symbol of a graph inside takes the value of this scalar, whatever it was in another scope."""
        if not expr.is_Symbol:
            raise SizeNotComputed(f"a nested graph takes the number {symbolic_dims.format_dim(expr)}")
        self._origins[expr] = SymbolOrigin(tensor, None)
        memo = self._exporter.memo
        for key in [key for key in memo if _speaks_of(key, expr)]:
            del memo[key]

    def vector(self, sizes: Sequence[Size]) -> OnnxValue:
        """Sizes as a tensor of int64, a constant where they are numbers."""
        ex = self._exporter
        if all(isinstance(size, int) for size in sizes):
            return ex.ints([int(size) for size in sizes])
        key = ("vector", *sizes)
        found = ex.memo.get(key)
        if found is None:
            parts: list[OnnxValue] = []
            numbers: list[int] = []
            for size in (*sizes, None):
                if isinstance(size, int):
                    numbers.append(size)
                    continue
                if numbers:
                    parts.append(ex.ints(numbers))
                    numbers = []
                if size is not None:
                    parts.append(self.one(size))
            found = parts[0] if len(parts) == 1 else ex.op("Concat", *parts, axis=0)
            ex.memo[key] = found
        return found

    def one(self, size: Size) -> OnnxValue:
        """A size as an int64 tensor of one element."""
        if isinstance(size, int):
            return self._exporter.ints([size])
        return self._compute(size, torch.int64, flat=False)

    def scalar(self, size: Size) -> OnnxValue:
        """A size as an int64 tensor of rank 0."""
        ex = self._exporter
        if isinstance(size, int):
            return ex.number(size, torch.int64)
        return self._squeeze(self.one(size), size)

    def compute_scalar(self, expr: sympy.Basic, dtype: torch.dtype) -> OnnxValue:
        """A symbolic float or bool as a tensor of rank 0."""
        return self._squeeze(self._compute(expr, dtype, flat=True), (expr, dtype))

    def _squeeze(self, one: OnnxValue, what: Any) -> OnnxValue:
        ex = self._exporter
        key = ("scalar", what)
        if key not in ex.memo:
            ex.memo[key] = ex.op("Squeeze", one, ex.ints([0]))
        return ex.memo[key]

    def _compute(self, expr: sympy.Basic, dtype: torch.dtype, *, flat: bool) -> OnnxValue:
        ex = self._exporter
        key = ("size", expr, dtype)
        if key not in ex.memo:
            made = symbolic_dims.fold(expr, self._symbol, self._constant, self._apply, self._find_computed)
            ex.memo[key] = ex.cast(made, dtype)
        return ex.memo[key]

    def _find_computed(self, expr: sympy.Basic) -> OnnxValue | None:
        return self._exporter.memo.get(("size", expr, torch.int64))

    def _constant(self, value: int | float | bool) -> OnnxValue:
        dtype = torch.bool if isinstance(value, bool) else torch.float64 if isinstance(value, float) else torch.int64
        return self._exporter.constant(torch.tensor([value], dtype=dtype))

    def _apply(self, name: str, parts: tuple[OnnxValue, ...], whole: sympy.Basic) -> OnnxValue:
        ex = self._exporter
        operation = OPERATIONS.get(name)
        if operation is None:
            raise SizeNotComputed(f"{symbolic_dims.format_dim(whole)} uses {name}, which ONNX does not have")
        first, values = (parts[:1], parts[1:]) if name == "where" else ((), parts)
        if any(part.dtype is torch.float64 for part in values):
            values = tuple(ex.cast(part, torch.float64) for part in values)
        made = operation(ex, (*first, *values))
        if made.dtype is torch.int64:
            ex.memo["size", whole, torch.int64] = made
        return made

    def _symbol(self, symbol: sympy.Symbol) -> OnnxValue:
        ex = self._exporter
        origin = self._origins.get(symbol)
        if origin is None:
            raise SizeNotComputed(
                f"the size {symbolic_dims.name_of(symbol)} is data-dependent, and nothing computed so far binds it"
            )
        key = ("size", symbol, torch.int64)
        if key not in ex.memo:
            if origin.dim is None:
                made = ex.op("Unsqueeze", origin.tensor, ex.ints([0])) if not origin.tensor.shape else origin.tensor
            else:
                made = ex.op("Shape", origin.tensor, start=origin.dim, end=origin.dim + 1)
            if origin.offset:
                made = ex.op("Sub", made, ex.ints([origin.offset]))
            if origin.slope != 1:
                made = ex.op("Div", made, ex.ints([origin.slope]))
            ex.memo[key] = made
        return ex.memo[key]
