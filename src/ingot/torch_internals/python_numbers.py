"""Python's functions of numbers, of sizes that are symbols."""

from __future__ import annotations

import builtins
import contextlib
import functools
import math
import sys
from collections.abc import Callable, Iterator
from operator import ge, le
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from ingot.torch_internals.patches import patched
from ingot.torch_internals.symbols import sym_log2, sym_sqrt


@contextlib.contextmanager
def math_of_sizes() -> Iterator[None]:
    """Inside, functions of `math` take sizes that are symbols, and give symbols.

    Python's own ask a symbol for its number, which holds for the example alone.
    """
    with patched(math, **{name: _of_sizes(getattr(math, name), form) for name, form in _MATH.items()}):
        yield


@contextlib.contextmanager
def extremes_of_sizes() -> Iterator[None]:
    """Inside, `min` and `max` of sizes are symbols where it is not known which it is.

    Where torch calls them they are as ever: its kernels choose by them.
    """
    with patched(builtins, max=_extreme(max, torch.sym_max, ge), min=_extreme(min, torch.sym_min, le)):
        yield


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


def _of_sizes(original: Callable[..., Any], form: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any) -> Any:
        return form(*args) if any(isinstance(x, torch.SymInt | torch.SymFloat) for x in args) else original(*args)

    return call


def _extreme(original: Callable[..., Any], either: Callable[..., Any], wins: Callable[..., Any]) -> Callable[..., Any]:
    def chosen(x: Any, y: Any) -> Any:
        """One of the two if it is known which; the first of equal ones."""
        if statically_known_true(wins(x, y)):
            return x
        return y if statically_known_true(wins(y, x)) else either(x, y)

    @functools.wraps(original)
    def call(*args: Any, **options: Any) -> Any:
        caller = sys._getframe(1).f_globals.get("__name__") or ""
        if options or caller.partition(".")[0] in ("torch", "sympy", "ingot"):
            return original(*args, **options)
        items = tuple(args[0]) if len(args) == 1 else args
        if any(isinstance(item, torch.SymInt | torch.SymFloat) for item in items):
            return functools.reduce(chosen, items)
        return original(items)

    return call
