"""Operators that copy at most sizes and return a view at a few: `x.t().contiguous()` is x itself where x has one row.

A write to either is then a write to both at those sizes, and at no others. A program without writes says so by a
selection: `where(rows == 1, what the write makes of it, what it was)`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import sympy
import torch

from ingot import torch_internals as internals
from ingot.ir.pytree import flatten

# Dims that may be 1 at the same time; of more, only so many are tried together.
_MOST = 6


def find_condition(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.SymInt | None:
    """A number that is 0 at the sizes at which the call returns a view of its first argument, and at no others.

    None where there are no such sizes. Only sizes of 1 matter: the stride of such a dim may be any. A tensor without
    elements shares nothing.
    """
    x = args[0]
    env = _environment(x)
    if env is None:
        return None
    numbers = _example_sizes(env, (args, kwargs))
    able = sorted((s for s in numbers if env.var_to_range[s].lower <= 1), key=str)
    found: list[frozenset[sympy.Symbol]] = []
    for ones in _subsets(able):
        if not any(known <= ones for known in found) and _returns_view(
            func, args, kwargs, numbers | dict.fromkeys(ones, 1)
        ):
            found.append(ones)
    if not found:
        return None
    expr = math.prod(math.prod(ones) - 1 for ones in found)
    condition = internals.symint(env, sympy.expand(expr))
    assert isinstance(condition, torch.SymInt)
    return condition


def _environment(x: torch.Tensor) -> Any:
    sizes = [size for size in (*x.shape, *x.stride()) if isinstance(size, torch.SymInt)]
    return sizes[0].node.shape_env if sizes else None


def _example_sizes(env: Any, values: Any) -> dict[sympy.Symbol, int]:
    """A number for each symbol of a call, none of them 1: the example's."""
    symbols: set[sympy.Symbol] = set()
    for value in flatten(values)[0]:
        parts = (*value.shape, *value.stride()) if isinstance(value, torch.Tensor) else (value,)
        for part in parts:
            if isinstance(part, torch.SymInt):
                symbols |= internals.expr_of(part).free_symbols
    return {symbol: max(int(env.backed_var_to_val.get(symbol, 2)), 2) for symbol in symbols}


def _subsets(symbols: list[sympy.Symbol]) -> Iterator[frozenset[sympy.Symbol]]:
    """Small ones first."""
    for count in range(1, min(len(symbols), _MOST) + 1):
        yield from map(frozenset, itertools.combinations(symbols, count))


def _returns_view(func: Any, args: Any, kwargs: Any, numbers: Mapping[sympy.Symbol, int]) -> bool:
    """Whether the call returns a view at these sizes."""
    with internals.without_dispatch():
        given, named = _concretize(args, numbers), _concretize(kwargs, numbers)
        made = func(*given, **named)
        return internals.storage_id(made) == internals.storage_id(given[0])


def _concretize(value: Any, numbers: Mapping[sympy.Symbol, int]) -> Any:
    if isinstance(value, torch.Tensor):
        shape, strides = _concretize(list(value.shape), numbers), _concretize(list(value.stride()), numbers)
        return torch.empty_strided(shape, strides, dtype=value.dtype, device="meta")
    if isinstance(value, torch.SymInt):
        return int(internals.expr_of(value).xreplace(numbers))
    if isinstance(value, list | tuple):
        return type(value)(_concretize(item, numbers) for item in value)
    if isinstance(value, dict):
        return {key: _concretize(item, numbers) for key, item in value.items()}
    return value
