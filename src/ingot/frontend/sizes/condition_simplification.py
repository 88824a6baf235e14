"""Conditions on sizes in a simpler form: about fewer dims, or without min and max.

simplify_condition(...)   (4*batch*a) % (4*batch*b) == 0   →   a % b == 0, where batch is positive
resolve_extremes(...)     min(63, n)**2 % n == 0           →   n**2 % n == 0, as long as n <= 63
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import sympy

from ingot import torch_internals as internals
from ingot.ir import symbolic_dims

_f = internals.sympy_functions
_MINIMA = (_f.Min, sympy.Min)
_EXTREMES = (*_MINIMA, _f.Max, sympy.Max)
_QUOTIENTS = (_f.FloorDiv, _f.CleanDiv)
_REMAINDERS = (_f.Mod, _f.PythonMod)
_POWERS = (sympy.Pow, _f.PowByNatural)

IsPositive = Callable[[sympy.Basic], bool]


def simplify_condition(condition: sympy.Basic, ranges: dict[sympy.Symbol, Any]) -> sympy.Basic:
    """An equivalent condition, for sizes within `ranges`: factors that are positive there are cancelled.

    Of the two sides of a relation, of a quotient, where c*a // c*b is a // b, and of a remainder, where c*a % c*b is
    c * (a % b). Only integers: a product of floats is rounded.
    """
    return _simplify(condition, functools.partial(_is_positive, ranges))


def _is_positive(ranges: dict[sympy.Symbol, Any], expr: sympy.Basic) -> bool:
    return bool(internals.bound_sympy(expr, ranges).lower > 0)


def _simplify(expr: sympy.Basic, is_positive: IsPositive) -> sympy.Basic:
    if not expr.args or not expr.free_symbols:
        return expr
    args = tuple(_simplify(arg, is_positive) for arg in expr.args)
    if args != expr.args:
        expr = expr.func(*args)
    if not isinstance(expr, (*_QUOTIENTS, *_REMAINDERS, sympy.core.relational.Relational)):
        return expr
    left, right = expr.args
    if not (left.is_integer and right.is_integer):
        return expr
    if not isinstance(expr, sympy.core.relational.Relational) and not is_positive(right):
        return expr  # a condition that divides by zero does not hold, and may not lose that
    common, left, right = _cancel(left, right, is_positive)
    if isinstance(expr, _QUOTIENTS) and right == 1:
        return left
    if isinstance(expr, _REMAINDERS) and right == 1:
        return sympy.S.Zero
    if common == 1:
        return expr
    made = expr.func(left, right)
    return common * made if isinstance(expr, _REMAINDERS) else made


def _cancel(
    left: sympy.Basic, right: sympy.Basic, is_positive: IsPositive
) -> tuple[sympy.Basic, sympy.Basic, sympy.Basic]:
    """The product of the positive factors that two integers share, and what is left of either. 0 has every factor."""
    (left_number, left_powers), (right_number, right_powers) = _factors(left), _factors(right)
    if left == 0 or right == 0:
        shared = right_powers if left == 0 else left_powers
    else:
        shared = left_powers & right_powers
    powers = Counter({base: power for base, power in shared.items() if is_positive(base)})
    number = math.gcd(left_number, right_number)
    if number in (0, 1) and not powers:
        return sympy.S.One, left, right
    return (
        _multiply(number, powers),
        _multiply(left_number // number, left_powers - powers),
        _multiply(right_number // number, right_powers - powers),
    )


def _factors(expr: sympy.Basic) -> tuple[int, Counter[sympy.Basic]]:
    """An integer as a number and powers of other expressions."""
    if isinstance(expr, sympy.Integer):
        return int(expr), Counter()
    if isinstance(expr, sympy.Mul) and all(factor.is_integer for factor in expr.args):
        number, powers = 1, Counter[sympy.Basic]()
        for factor in expr.args:
            more, bases = _factors(factor)
            number *= more
            powers.update(bases)
        return number, powers
    if isinstance(expr, _POWERS) and isinstance(expr.args[1], sympy.Integer) and expr.args[1] > 0:
        base, power = expr.args[0], int(expr.args[1])
        number, powers = _factors(base)
        return number**power, Counter({base: count * power for base, count in powers.items()})
    return 1, Counter({expr: 1})


def _multiply(number: int, powers: Mapping[sympy.Basic, int]) -> sympy.Basic:
    return sympy.Mul(number, *(sympy.Pow(base, power) for base, power in powers.items()))


def resolve_extremes(
    condition: sympy.Basic, sizes: Mapping[sympy.Symbol, int], ranges: dict[sympy.Symbol, Any]
) -> tuple[sympy.Basic, tuple[sympy.Basic, ...]]:
    """The condition with each min and max replaced by the argument that it is at these sizes, and where that holds.

    One that may divide by zero within `ranges` stays as it is: sympy would forget that it does not hold there.
    """
    needs: dict[sympy.Basic, None] = {}
    if not all(_is_positive(ranges, division.args[1]) for division in condition.atoms(*_QUOTIENTS, *_REMAINDERS)):
        return condition, ()
    while extremes := [e for e in condition.atoms(*_EXTREMES) if not any(arg.has(*_EXTREMES) for arg in e.args)]:
        extreme = min(extremes, key=sympy.default_sort_key)
        value = symbolic_dims.evaluate(extreme, sizes)
        equal = [arg for arg in extreme.args if symbolic_dims.evaluate(arg, sizes) == value]
        chosen = min(equal, key=lambda arg: (not arg.free_symbols, sympy.default_sort_key(arg)))
        relation = sympy.Le if isinstance(extreme, _MINIMA) else sympy.Ge
        needs.update(dict.fromkeys(relation(chosen, other) for other in extreme.args if other != chosen))
        condition = condition.xreplace({extreme: chosen})
    needs.pop(sympy.true, None)
    return condition, tuple(needs)
