"""Interval arithmetic on sizes: between which numbers a size or an index lies, whatever the inputs are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeAlias

from ingot.lowering.index_expr import Atom, Div, MinMax, Mod, Size, Symbol

# Both ends belong to it; an end is infinite where there is none.
Interval: TypeAlias = tuple[float, float]
ANY: Interval = (-math.inf, math.inf)


def interval_of(size: Size, known: Mapping[str, Interval]) -> Interval:
    """An interval that holds every value of the size. `known` has symbols by name; others lie where they say."""
    if isinstance(size, int):
        return size, size
    low: float = 0
    high: float = 0
    for term, coefficient in size.terms.items():
        found: Interval = (coefficient, coefficient)
        for atom in term:
            found = _multiply(found, _interval_of_atom(atom, known))
        low, high = low + found[0], high + found[1]
    return low, high


def _interval_of_atom(atom: Atom, known: Mapping[str, Interval]) -> Interval:
    if isinstance(atom, Symbol):
        if atom.name in known:
            return known[atom.name]
        above = math.inf if atom.below is None else max(interval_of(atom.below, known)[1] - 1, 0)
        return (-math.inf if atom.signed else 0), above
    (a, b), (c, d) = interval_of(atom.left, known), interval_of(atom.right, known)
    if isinstance(atom, MinMax):
        return (max(a, c), max(b, d)) if atom.which == "max" else (min(a, c), min(b, d))
    if c <= 0:
        return ANY
    if isinstance(atom, Mod):
        return (a, b) if a >= 0 and b < c else (0, d - 1)
    assert isinstance(atom, Div)
    return _divide(a, d if a >= 0 else c), _divide(b, c if b >= 0 else d)


def _multiply(left: Interval, right: Interval) -> Interval:
    ends = [_times(a, b) for a in left for b in right]
    return min(ends), max(ends)


def _times(a: float, b: float) -> float:
    return 0 if a == 0 or b == 0 else a * b


def _divide(number: float, by: float) -> float:
    if math.isinf(by):
        return -1 if number < 0 else 0
    return number if math.isinf(number) else number // by
