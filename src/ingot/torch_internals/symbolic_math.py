"""Python's math functions for symbolic sizes."""

from __future__ import annotations

import builtins
import functools
import math
import sys
from collections.abc import Callable
from operator import ge, le
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from ingot.torch_internals.isolation import Patches
from ingot.torch_internals.symbols import sym_log2, sym_sqrt


def symbolic_math() -> Patches:
    """Inside, functions of `math` take symbolic sizes, and return symbols.

    Python's own ask a symbol for its number, which holds for the example alone.
    """
    return Patches(*((math, name, functools.partial(_make_symbolic, form)) for name, form in _MATH.items()))


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


_MATH: dict[str, Callable[..., Any]] = {
    "sqrt": _root,
    "pow": lambda x, y: torch.sym_float(x) ** torch.sym_float(y),
    "exp": lambda x: math.e ** torch.sym_float(x),
    "log": _logarithm,
    "log2": lambda x: _logarithm(x, 2),
    "log10": lambda x: _logarithm(x, 10),
}


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
