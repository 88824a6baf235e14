"""Types of values, from "exactly this" up to "anything".

    type   := tensor dtype? device? dims?       dims? None: the rank is unknown
            | number kind value?                an int, float or bool
            | tuple type*
            | literal value                     text, None, dtypes: constants
            | UNKNOWN
    dim    := int | expression of symbols | None

A type says what holds in every run. `join` is the least type that holds where one of two does; it only ever forgets,
and there is little to forget, so whatever joins again and again comes to rest soon.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import sympy
import torch

from ingot import torch_internals as internals
from ingot.ir import symbolic_dims as dims_
from ingot.ir.printer import dtype_name

Dim: TypeAlias = int | sympy.Expr | None


@dataclass(frozen=True, slots=True)
class TensorType:
    """A tensor. `dims` None: not even the rank is known."""

    dtype: torch.dtype | None = None
    device: torch.device | None = None
    dims: tuple[Dim, ...] | None = None

    @property
    def rank(self) -> int | None:
        return None if self.dims is None else len(self.dims)

    def __str__(self) -> str:
        name = "tensor" if self.dtype is None else dtype_name(self.dtype)
        if self.dims is None:
            return f"{name}[…]"
        return f"{name}[{', '.join('?' if d is None else dims_.format_dim(d) for d in self.dims)}]"


@dataclass(frozen=True, slots=True)
class NumberType:
    """An int, float or bool; its value where it is known, as a number or an expression."""

    kind: type
    value: Any = None

    def __str__(self) -> str:
        return self.kind.__name__ if self.value is None else f"{self.kind.__name__}({dims_.format_dim(self.value)})"


@dataclass(frozen=True, slots=True)
class TupleType:
    """Several values."""

    items: tuple[Type, ...]

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.items))})"


@dataclass(frozen=True, slots=True)
class LiteralType:
    """What a graph writes down and no run changes."""

    value: Any

    def __str__(self) -> str:
        return repr(self.value)


class _Unknown:
    """Anything."""

    __slots__ = ()

    def __str__(self) -> str:
        return "?"

    __repr__ = __str__


UNKNOWN = _Unknown()
Type: TypeAlias = TensorType | NumberType | TupleType | LiteralType | _Unknown


def join(a: Type, b: Type) -> Type:
    """The least type that holds where one of two does."""
    if a == b:
        return a
    if isinstance(a, TensorType) and isinstance(b, TensorType):
        dims: tuple[Dim, ...] | None = None
        if a.dims is not None and b.dims is not None and len(a.dims) == len(b.dims):
            dims = tuple(one if one == other else None for one, other in zip(a.dims, b.dims, strict=True))
        return TensorType(a.dtype if a.dtype is b.dtype else None, a.device if a.device == b.device else None, dims)
    if isinstance(a, NumberType) and isinstance(b, NumberType) and a.kind is b.kind:
        return NumberType(a.kind)
    if isinstance(a, TupleType) and isinstance(b, TupleType) and len(a.items) == len(b.items):
        return TupleType(tuple(join(one, other) for one, other in zip(a.items, b.items, strict=True)))
    return UNKNOWN


def widen(type_: Type) -> Type:
    """What is left of a type when nothing is said of sizes and values: as far up as a loop's carry can go."""
    if isinstance(type_, TensorType):
        return TensorType(type_.dtype, type_.device, None)
    if isinstance(type_, NumberType):
        return NumberType(type_.kind)
    if isinstance(type_, TupleType):
        return TupleType(tuple(map(widen, type_.items)))
    return type_


def sizeless(type_: Type) -> bool:
    """Whether a type says nothing of sizes; how many values there are may depend on a size."""
    return isinstance(type_, _Unknown) or (isinstance(type_, TensorType) and type_.dims is None)


def complete(type_: Type) -> bool:
    """Whether a type says everything: dtype, rank, each dim and number, if only as an expression."""
    if isinstance(type_, TensorType):
        return type_.dtype is not None and type_.dims is not None and None not in type_.dims
    if isinstance(type_, NumberType):
        return type_.value is not None
    return all(map(complete, type_.items)) if isinstance(type_, TupleType) else type_ is not UNKNOWN


Naming: TypeAlias = Callable[[sympy.Basic], sympy.Basic | None]


def type_of(value: Any, named: Naming | None = None) -> Type:
    """What is known of a value, real or fake.

    `named` renames symbols, or returns None for an expression to forget; by default they get the dims' names.
    """
    named = named or _canonicalize_symbols
    if isinstance(value, torch.Tensor):
        return TensorType(value.dtype, value.device, tuple(_dim(size, named) for size in value.shape))
    if isinstance(value, bool | int | float):
        return NumberType(type(value), value)
    for symbolic, kind in ((torch.SymInt, int), (torch.SymFloat, float), (torch.SymBool, bool)):
        if isinstance(value, symbolic):
            return NumberType(kind, _plain(named(internals.expr_of(value))))
    if isinstance(value, list | tuple):
        return TupleType(tuple(type_of(item, named) for item in value))
    return LiteralType(value)


def _dim(size: Any, named: Naming) -> Dim:
    expr = internals.expr_of(size)
    return int(expr) if expr.is_number else named(expr)


def _plain(expr: sympy.Basic | None) -> Any:
    if expr is None or expr in (sympy.true, sympy.false):
        return None if expr is None else bool(expr)
    if not expr.is_number:
        return expr
    return int(expr) if expr.is_integer else float(expr)


def _canonicalize_symbols(expr: sympy.Basic) -> sympy.Basic:
    """Symbols as everybody knows them: by the name of the dim, with nothing assumed but that they are whole."""
    return expr.xreplace({s: sympy.Symbol(dims_.name_of(s), integer=True) for s in expr.free_symbols})


def contains(type_: Type, value: Any, sizes: Mapping[sympy.Symbol, int] | None = None) -> bool:
    """Whether a real value is of a type; `sizes` says what its symbols stand for. A symbol not in it fits anything."""
    if isinstance(type_, _Unknown):
        return True
    if isinstance(type_, TensorType):
        if not isinstance(value, torch.Tensor):
            return False
        fits = type_.dtype in (None, value.dtype) and type_.device in (None, value.device)
        if type_.dims is None:
            return fits
        return (
            fits
            and len(type_.dims) == value.dim()
            and all(_fits(dim, size, sizes or {}) for dim, size in zip(type_.dims, value.shape, strict=True))
        )
    if isinstance(type_, NumberType):
        return type(value) is type_.kind and _fits(type_.value, value, sizes or {})
    if isinstance(type_, TupleType):
        return (
            isinstance(value, Sequence)
            and len(value) == len(type_.items)
            and all(contains(item, part, sizes) for item, part in zip(type_.items, value, strict=True))
        )
    return bool(type_.value == value) or type_.value is value


def _fits(wanted: Any, value: Any, sizes: Mapping[sympy.Symbol, int]) -> bool:
    if wanted is None:
        return True
    if isinstance(wanted, sympy.Basic):
        wanted = wanted.xreplace({symbol: sympy.sympify(size) for symbol, size in sizes.items()})
        if wanted.free_symbols:
            return True
        return bool(wanted == value) or (isinstance(value, float) and float(wanted) == value)
    return bool(wanted == value) or (wanted != wanted and value != value)


def symbols_of(type_: Type) -> frozenset[sympy.Symbol]:
    """The symbols that a type speaks of."""
    if isinstance(type_, TensorType):
        parts: Sequence[Any] = type_.dims or ()
    elif isinstance(type_, NumberType):
        parts = (type_.value,)
    elif isinstance(type_, TupleType):
        return frozenset[sympy.Symbol]().union(*map(symbols_of, type_.items))
    else:
        return frozenset()
    return frozenset(s for part in parts if isinstance(part, sympy.Basic) for s in part.free_symbols)
