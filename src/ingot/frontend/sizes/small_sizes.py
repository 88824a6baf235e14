"""Conditions on sizes that exclude no size of two or more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sympy

from ingot import torch_internals as internals

_EXTREMES = (internals.sympy_functions.Min, internals.sympy_functions.Max)


def spares_sizes_from_two(condition: sympy.Basic) -> bool:
    """Whether a condition holds wherever the sizes that it speaks of, the factors of each side, are two or more.

    A condition that two things differ counts as such too: it excludes single sizes, at which an operator may do
    something special but returns the same shape.
    """
    if isinstance(condition, sympy.Ne):
        return True
    if isinstance(condition, sympy.Eq) and condition.has(*_EXTREMES) and len(condition.free_symbols) == 1:
        return True  # whether a slice such as x[1:2] has one element: torch learns nothing from it
    if isinstance(condition, sympy.And | sympy.Or):
        return all(spares_sizes_from_two(part) for part in condition.args)
    if not isinstance(condition, sympy.core.relational.Relational) or isinstance(condition, sympy.Eq):
        return False
    stand_ins: dict[sympy.Basic, sympy.Symbol] = {}

    def stand_in(side: sympy.Basic) -> sympy.Basic:
        if not side.free_symbols:
            return side
        if isinstance(side, sympy.Mul):
            return sympy.Mul(*(stand_in(factor) for factor in side.args))
        if isinstance(side, sympy.Pow) and side.exp.is_Integer:
            return sympy.Pow(stand_in(side.base), side.exp)
        if len(side.free_symbols) > 1 and isinstance(side, sympy.Add):
            return side  # a difference of two dims is not a size
        return stand_ins.setdefault(side, sympy.Symbol(f"t{len(stand_ins)}", integer=True, positive=True))

    left, right = (stand_in(side) for side in condition.args)
    if (left.free_symbols | right.free_symbols) - set(stand_ins.values()):
        return False
    if not right.free_symbols or not left.free_symbols:
        bound = internals.bound_sympy(
            condition.func(left, right),
            {symbol: internals.ValueRanges(2, internals.int_oo) for symbol in stand_ins.values()},
        )
        return bool(bound.is_singleton() and bound.lower == sympy.true)
    return _compares_products(condition.func, left, right)


def _compares_products(relation: Callable[..., Any], left: Any, right: Any) -> bool:
    """Whether a relation between two products of sizes (strides, as a rule) holds for all sizes from two on."""
    ratio = (left / right).as_powers_dict()
    sizes = {base: power for base, power in ratio.items() if base.free_symbols}
    if not all(base.is_Symbol and power.is_Integer for base, power in sizes.items()):
        return False
    edge = (left / right).xreplace(dict.fromkeys(sizes, sympy.Integer(2)))
    growing = all(power > 0 for power in sizes.values()) and relation in (sympy.Gt, sympy.Ge)
    shrinking = all(power < 0 for power in sizes.values()) and relation in (sympy.Lt, sympy.Le)
    return (growing or shrinking) and bool(relation(edge, 1))
