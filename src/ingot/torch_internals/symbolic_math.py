"""Python's math functions for symbolic sizes."""

from __future__ import annotations

import builtins
import contextlib
import functools
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from operator import ge, le
from typing import Any

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv, statically_known_true
from torch.nn import functional
from torch.utils._sympy.functions import FloorDiv, IntTrueDiv, Max, Min, PythonMod
from torch.utils._sympy.value_ranges import bound_sympy

from ingot.torch_internals.isolation import Patches
from ingot.torch_internals.symbols import expr_of, sym_log2, sym_sqrt, symbolic_value, symint

_floor, _ceil, _trunc = math.floor, math.ceil, math.trunc


def symbolic_math() -> Patches:
    """Inside, functions of `math` take symbolic sizes, and return symbols.

    Python's own ask a symbol for its number, which holds for the example alone.
    """
    return Patches(
        *((math, name, functools.partial(_make_symbolic, form)) for name, form in _MATH.items()),
        (torch.SymFloat, "is_integer", _symbolic_wholeness),
        (torch, "linspace", _symbolic_steps),
        (functional, "scaled_dot_product_attention", _symbolic_causality),
    )


def symbolic_min_max() -> Patches:
    """Inside, `min` and `max` of sizes are symbols where it is not known which it is.

    Where torch calls them they are as ever: its kernels choose by them.
    """
    return Patches(
        (builtins, "max", functools.partial(_extreme, torch.sym_max, ge)),
        (builtins, "min", functools.partial(_extreme, torch.sym_min, le)),
    )


def _root(x: Any) -> Any:
    return sym_sqrt(torch.sym_float(x))


def _logarithm(x: Any, base: Any = math.e) -> Any:
    made = sym_log2(torch.sym_float(x))
    return made if base == 2 else made / math.log2(base)


def _quotient(x: Any) -> tuple[ShapeEnv, sympy.Expr, sympy.Expr] | None:
    """A symbolic float as the quotient of two sizes, neither negative; None of anything else."""
    expr = x.node.expr if isinstance(x, torch.SymFloat) else None
    if not isinstance(expr, IntTrueDiv):
        return None
    env: ShapeEnv = x.node.shape_env
    least = [bound_sympy(part, env.var_to_range).lower for part in expr.args]
    return (env, *expr.args) if least[0] >= 0 and least[1] >= 1 else None


def _whole(x: Any, rounded: Callable[[Any], Any]) -> Any:
    """The floor, ceiling or truncation of a number: of a quotient of sizes, a division of integers."""
    found = _quotient(x)
    if found is None:
        return x if isinstance(x, torch.SymInt) else rounded(x)
    env, top, bottom = found
    return symint(env, FloorDiv(top + bottom - 1 if rounded is _ceil else top, bottom))


_MATH: dict[str, Callable[..., Any]] = {
    "floor": functools.partial(_whole, rounded=_floor),
    "ceil": functools.partial(_whole, rounded=_ceil),
    "trunc": functools.partial(_whole, rounded=_trunc),
    "sqrt": _root,
    "pow": lambda x, y: torch.sym_float(x) ** torch.sym_float(y),
    "exp": lambda x: math.e ** torch.sym_float(x),
    "log": _logarithm,
    "log2": lambda x: _logarithm(x, 2),
    "log10": lambda x: _logarithm(x, 10),
}


def _symbolic_wholeness(original: Callable[..., Any]) -> Callable[..., Any]:
    def is_integer(self: torch.SymFloat) -> Any:
        found = _quotient(self)
        if found is None:
            return original(self)
        env, top, bottom = found
        return symbolic_value(env, sympy.Eq(PythonMod(top, bottom), 0))

    return is_integer


def _symbolic_steps(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(original)
    def linspace(start: Any, end: Any, steps: Any = None, *args: Any, **options: Any) -> torch.Tensor:
        """torch's takes a plain number of steps only."""
        dtype = options.get("dtype") or torch.get_default_dtype()
        plain = not isinstance(steps, torch.SymInt) or args or options.keys() - {"dtype", "device", "requires_grad"}
        if plain or not dtype.is_floating_point:
            return original(start, end, steps, *args, **options)
        places = torch.arange(steps, device=options.get("device"))
        step = (end - start) / torch.sym_max(steps - 1, 1)
        from_start = places.to(dtype) * step + start
        from_end = end - (steps - 1 - places).to(dtype) * step
        values = torch.where(places < torch.sym_max(steps // 2, 1), from_start, from_end).to(dtype)
        return values.requires_grad_() if options.get("requires_grad") else values

    return linspace


def _symbolic_causality(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(original)
    def attention(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: Any = None, dropout_p: float = 0.0,
        is_causal: Any = False, **options: Any,
    ) -> torch.Tensor:  # fmt: skip
        """torch's takes a plain truth only: attention of one query to one key is causal, too."""
        if isinstance(is_causal, torch.SymBool) and attn_mask is None:
            rows, columns = query.shape[-2], key.shape[-2]
            if rows is columns or statically_known_true(rows == columns):
                expr, size = is_causal.node.expr, expr_of(rows)
                if expr in (sympy.Gt(size, 1), sympy.Ge(size, 2), sympy.Ne(size, 1)):
                    is_causal = True
            if isinstance(is_causal, torch.SymBool) and (truth := _as_number(is_causal.node.expr)) is not None:
                mask = torch.ones(rows, columns, dtype=torch.bool, device=query.device)
                above = symint(is_causal.node.shape_env, expr_of(columns) * (1 - truth))
                attn_mask, is_causal = mask.tril(above), False
        return original(query, key, value, attn_mask, dropout_p, is_causal, **options)

    return attention


def _as_number(condition: sympy.Basic) -> sympy.Expr | None:
    """A comparison of integers as 1 where it holds and 0 where it does not; None of anything else."""
    if not isinstance(condition, sympy.Gt | sympy.Ge | sympy.Lt | sympy.Le):
        return None
    more = condition.gts - condition.lts + (0 if isinstance(condition, sympy.Gt | sympy.Lt) else 1)
    return Min(1, Max(0, more))


@contextlib.contextmanager
def symbolic_builtins(modules: Iterable[str]) -> Iterator[None]:
    """Inside, `len`, `int` and `float` in the code of these modules take symbolic sizes, and return symbols.

    Python's own must return plain numbers. `int` and `float` are classes here, too, that count as Python's own.
    """
    tables = [vars(sys.modules[name]) for name in modules if name in sys.modules]
    placed = [(table, name) for table in tables for name in _BUILTINS if name not in table]
    for table, name in placed:
        table[name] = _BUILTINS[name]
    try:
        yield
    finally:
        for table, name in placed:
            table.pop(name, None)


def _length(x: Any) -> Any:
    return x.shape[0] if isinstance(x, torch.Tensor) and x.dim() else len(x)


class _NumberClass(type):
    """The class of a stand-in for a class of numbers."""

    original: type
    convert: Callable[[Any], Any]

    def __call__(cls, *args: Any, **options: Any) -> Any:
        if len(args) == 1 and isinstance(args[0], torch.SymInt | torch.SymFloat):
            return cls.convert(args[0])
        return cls.original(*args, **options)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.original)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, cls.original)

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is cls.original

    def __hash__(cls) -> int:
        return hash(cls.original)


class _Int(int, metaclass=_NumberClass):
    original = int
    convert = functools.partial(_whole, rounded=_trunc)


class _Float(float, metaclass=_NumberClass):
    original = float
    convert = staticmethod(torch.sym_float)


_BUILTINS: dict[str, Any] = {"len": _length, "int": _Int, "float": _Float}


def _make_symbolic(form: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any) -> Any:
        return form(*args) if any(isinstance(x, torch.SymInt | torch.SymFloat) for x in args) else original(*args)

    return call


def _extreme(either: Callable[..., Any], wins: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    def choose(x: Any, y: Any) -> Any:
        """One of the two if it is known which; the first of equal ones."""
        if statically_known_true(wins(x, y)):
            return x
        return y if statically_known_true(wins(y, x)) else either(x, y)

    @functools.wraps(original)
    def call(*args: Any, **options: Any) -> Any:
        # The frame in between is that of the function that finds out which thread it is.
        caller = sys._getframe(2).f_globals.get("__name__") or ""
        if options or caller.partition(".")[0] in ("torch", "sympy", "ingot"):
            return original(*args, **options)
        items = tuple(args[0]) if len(args) == 1 else args
        if any(isinstance(item, torch.SymInt | torch.SymFloat) for item in items):
            return functools.reduce(choose, items)
        return original(items)

    return call
