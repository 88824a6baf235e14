"""The sizes of one lowering: torch's symbols and what is computed from them, as Sizes of the IR and as operations.

A symbol of the graph is named n0, n1, …; it is *bound* once an input or a step defines its value.
"""

from __future__ import annotations

from typing import Any

import sympy
import torch

from ingot import torch_internals as internals
from ingot.ir import symbolic_dims
from ingot.lowering.index_expr import (
    UNKNOWN,
    Expr,
    Size,
    divide,
    estimate,
    largest,
    remainder,
    size_name,
    size_symbol,
    smallest,
)
from ingot.lowering.loop_body import BodyBuilder
from ingot.lowering.tensor_views import Deferred, Shape, TensorValue
from ingot.lowering.unsupported import LoweringUnsupported


class SymbolTable:
    """Names of symbols, which of them have a value, and what each is for the example inputs (`hints`)."""

    def __init__(self) -> None:
        self.hints: dict[str, int] = {}
        self.numbers: dict[sympy.Symbol, TensorValue] = {}  # data-dependent floats and bools
        self._names: dict[sympy.Symbol, str] = {}
        self._bound: set[str] = set()  # symbols that an input or a step gives a value
        self._signed: dict[sympy.Symbol, bool] = {}
        self._sizes: dict[sympy.Basic, Size] = {}

    def _name(self, s: sympy.Symbol) -> str:
        if s not in self._names:
            self._names[s] = size_name(len(self._names))
        return self._names[s]

    def symbol_of(self, s: sympy.Symbol, hint: int | None = None) -> str:
        """The name of a size that an input or a step binds."""
        name = self._name(s)
        self._bound.add(name)
        self.hints.setdefault(name, UNKNOWN if hint is None else hint)
        return name

    def is_bound(self, size: Size) -> bool:
        """Whether every symbol of a size of the graph has a value when the run comes here."""
        return isinstance(size, int) or all(s.name in self._bound or s.name not in self._graphs for s in size.symbols)

    def bind_symbol(self, size: Size) -> str:
        """The name of the symbol that a size of the graph is; the caller gives it a value, here."""
        names = {s.name for s in size.symbols} if isinstance(size, Expr) else set()
        for s, name in self._names.items():
            if {name} == names and size == self._symbol(s):
                self._bound.add(name)
                self.hints.setdefault(name, UNKNOWN)
                return name
        raise LoweringUnsupported(f"its size {size} is an expression of data-dependent sizes, not a symbol")

    @property
    def _graphs(self) -> set[str]:
        """Names of symbols of the graph; others are loops of our own."""
        return {name for s, name in self._names.items() if not isinstance(s, sympy.Dummy)}

    def _symbol(self, s: sympy.Symbol) -> Expr:
        return size_symbol(self._name(s), signed=self._signed.get(s, False))

    def new_symbol(self) -> str:
        """A size of our own: a loop's count."""
        name = size_name(len(self._names))
        self._names[sympy.Dummy()] = name
        self.hints[name] = UNKNOWN
        return name

    def symbolic(self, value: Any) -> Any:
        """A symbolic number as a Size; a float or a bool as a TensorValue of rank 0."""
        if isinstance(value, torch.SymInt):
            return self.size(value)
        expr = internals.expr_to_check(value)
        if expr in (sympy.true, sympy.false) or expr.is_number:
            return float(expr) if isinstance(value, torch.SymFloat) else bool(expr)
        dtype = "float64" if isinstance(value, torch.SymFloat) else "bool"
        return TensorValue((), dtype, Deferred(lambda ops, index: self._compute(ops, expr, dtype), 2))

    def size(self, value: int | torch.SymInt) -> Size:
        if isinstance(value, int):
            return value
        expr = value.node.expr
        for s in expr.free_symbols:
            self._signed.setdefault(s, internals.may_be_negative(value, s))
        if expr not in self._sizes:
            self._sizes[expr] = self._convert(expr)
        return self._sizes[expr]

    def _convert(self, expr: sympy.Basic) -> Size:
        def apply(name: str, parts: tuple[Size, ...], _: sympy.Basic) -> Size:
            if name == "add":
                return parts[0] + parts[1]
            if name == "mul":
                return parts[0] * parts[1]
            if name == "floordiv":
                return divide(parts[0], parts[1])
            if name == "mod":
                return remainder(parts[0], parts[1])
            if name == "max":
                return largest(parts[0], parts[1])
            if name == "min":
                return smallest(parts[0], parts[1])
            if name == "pow" and isinstance(parts[1], int):
                result: Size = 1
                for _i in range(parts[1]):
                    result = result * parts[0]
                return result
            raise LoweringUnsupported(
                f"the size {symbolic_dims.format_dim(expr)} uses {name}, which has no integer form"
            )

        return symbolic_dims.fold(expr, self._symbol, lambda c: int(c), apply, self._scale)

    def _scale(self, expr: sympy.Basic) -> Size | None:
        """A size times a number, rounded down, as images by a factor have it; None of anything else."""
        found = symbolic_dims.match_scaled_size(expr)
        if found is None:
            return None
        size, times, by = found
        return divide(self._convert(size) * times, by)

    def _compute(self, ops: BodyBuilder, expr: sympy.Basic, dtype: str) -> int:
        """A symbolic float or bool as operations."""
        names = {"eq", "ne", "lt", "le", "gt", "ge"}

        def apply(name: str, parts: tuple[int, ...], whole: sympy.Basic) -> int:
            if name in ("and", "or", "not"):
                return ops.call(name, *parts)
            wide = (
                "float64"
                if any(ops.dtype(p) == "float64" for p in parts)
                or name in ("truediv", "float", "sqrt", "log2", "floattruediv", "floatpow")
                else "int64"
            )
            cast = [ops.cast(p, wide) for p in parts]
            if name in names or name in ("add", "mul", "max", "min"):
                return ops.call(name, *cast)
            if name in ("truediv", "floattruediv"):
                return ops.call("div", *cast)
            if name in ("sqrt", "log2"):
                return ops.call(name, *cast)
            if name in ("floatpow", "pow"):
                return ops.call("pow", *cast)
            if name == "float":
                return cast[0]
            if name in ("floordiv", "mod"):
                return ops.call("floordiv" if name == "floordiv" else "floormod", *cast)
            if name in ("trunc", "floor", "ceil"):
                return ops.cast(ops.call(name, ops.cast(parts[0], "float64")), "int64")
            raise LoweringUnsupported(f"{symbolic_dims.format_dim(expr)} uses {name}, which has no rule")

        def constant(c: int | float | bool) -> int:
            return ops.const(c, "bool" if isinstance(c, bool) else "float64" if isinstance(c, float) else "int64")

        def load_symbol(s: sympy.Symbol) -> int:
            if s in self.numbers:
                return self.numbers[s].load(ops, ())
            return ops.index(self._symbol(s))

        value = symbolic_dims.fold(expr, load_symbol, constant, apply)
        return ops.cast(value, dtype)

    def shape_of(self, value: torch.Tensor) -> Shape:
        return tuple(self.size(size) for size in value.shape)

    def hint(self, size: Size) -> int:
        """The size for the example inputs: for choices, never for meaning."""
        return estimate(size, self.hints)

    def order_of(self, tensor: TensorValue) -> tuple[int, ...]:
        """The physical order of a tensor's dims, outermost first."""
        data = tensor.data
        if isinstance(data, Deferred):
            return data.order or tuple(range(tensor.rank))
        strides = [self.hint(s) for s in data.strides]
        return tuple(sorted(range(tensor.rank), key=lambda d: (-strides[d], d) if strides[d] else (-(10**18), d)))
