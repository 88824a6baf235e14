"""Sizes to try an operator with: those at which it may begin to behave differently.

A call has symbols: the program's own, by their names, and one for each dim and integer that is unknown. Operators
compare sizes with each other and with numbers, so what is worth trying is 0, 1, the numbers among the arguments, where
the answer to a question of a run changes, the neighbours of these, and a few arbitrary ones.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import sympy

Sizes = Mapping[str, int]
Limits = tuple[int, int | None]

MEANINGLESS = (5, 7, 11, 13, 17, 19, 23, 29, 31, 37)
OTHER = 41
SMALL = range(-1, 3)
MOST_OF_A_GROUP = 100
MOST_USUAL = 6
HUGE = 2**20


def is_within(value: int, limits: Limits) -> bool:
    low, high = limits
    return low <= value and (high is None or value <= high)


def _clamp(value: int, limits: Limits) -> int:
    low, high = limits
    return max(low, value if high is None else min(value, high))


def first_sizes(symbols: Mapping[str, Limits], numbers: Sequence[int]) -> Iterator[dict[str, int]]:
    """Sizes in which an operator may work: meaningless ones, and all alike, as those that other arguments have.

    Kernels do not compare sizes of 1 with each other but with 1, which shows less.
    """
    yield {name: _clamp(MEANINGLESS[i % len(MEANINGLESS)], symbols[name]) for i, name in enumerate(symbols)}
    for size in [MEANINGLESS[0], 1, *[k for k in numbers if 1 < k < HUGE][:MOST_USUAL]]:
        yield {name: _clamp(size, limits) for name, limits in symbols.items()}


def sizes_otherwise(
    sizes: Sizes, symbols: Mapping[str, Limits], asked: Sequence[sympy.Basic]
) -> tuple[list[Sizes], bool]:
    """Sizes with the same answers up to a question and another one to it; the last question first.

    And whether each question has such sizes or can have none. What was tried is all there is to a question about a
    single symbol that is free; one that an earlier answer ties to others, as in Eq(n, m), changes together with them.
    """
    found: list[Sizes] = []
    every = True
    for place in reversed(range(len(asked))):
        before, question = asked[:place], asked[place]
        ties = [
            group for group in _group_compared_symbols(before) if any(s.name in group for s in question.free_symbols)
        ]
        names = sorted(s.name for s in question.free_symbols)
        known = len(found)
        for name in names:
            tied = {n for group in ties if name in group for n in group if sizes[n] == sizes[name]}
            for value in sorted({t + d for t in (0, 1, *_turns(name, sizes, [question])) for d in (-1, 0, 1)}):
                for changed in [{name}, {name, *tied}] if tied - {name} else [{name}]:
                    other = {**sizes, **dict.fromkeys(sorted(changed), value)}
                    usable = all(_usable(value, symbols[n]) for n in changed)
                    if usable and not value_of(question, other) and holds(before, other):
                        found.append(other)
        every = every and (len(found) > known or (len(names) == 1 and not ties))
    return found, every


def _iterate_grid(lengths: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """All places in a grid, those near the first corner first."""

    def choose_at(distance: int, left: Sequence[int]) -> Iterator[tuple[int, ...]]:
        if not left:
            if distance == 0:
                yield ()
            return
        for place in range(min(distance, left[0] - 1) + 1):
            for rest in choose_at(distance - place, left[1:]):
                yield (place, *rest)

    for distance in range(sum(length - 1 for length in lengths) + 1):
        yield from choose_at(distance, lengths)


def sizes_near(
    base: Sizes, symbols: Mapping[str, Limits], numbers: Sequence[int], conditions: Sequence[sympy.Basic]
) -> Iterator[dict[str, int]]:
    """`base`, each symbol of it varied by itself, and those that a condition compares varied together.

    So are those that were found to be a number each: they may have to be the same one.
    """
    yield dict(base)
    turns = {name: _turns(name, base, conditions) for name in symbols}
    few = {*SMALL, 3, 4} if len(symbols) == 1 else {*SMALL}
    for name, limits in symbols.items():
        ordinary = {*few, OTHER, base[name] + 1, 2 * base[name], *numbers}
        ordinary |= {turn + beside for turn in turns[name] for beside in (-1, 0, 1)}
        for value in sorted(ordinary):
            if _usable(value, limits):
                yield {**base, name: value}
    fixed = [name for name in symbols if _is_fixed(name, conditions)]
    for size in (1, 2, OTHER) if len(fixed) > 1 else ():
        if all(_usable(size, symbols[name]) for name in fixed):
            yield {**base, **dict.fromkeys(fixed, size)}
    for group in _group_compared_symbols(conditions):
        shared = [1, *(base[name] for name in group), 0, 2, OTHER, *(numbers if len(group) == 2 else ())]
        choices = [
            [v for v in dict.fromkeys([base[name], *sorted(turns[name]), *shared]) if _usable(v, symbols[name])]
            for name in group
        ]
        for places in itertools.islice(_iterate_grid([len(c) for c in choices]), MOST_OF_A_GROUP):
            yield {**base, **{n: c[place] for n, c, place in zip(group, choices, places, strict=True)}}


def _is_fixed(name: str, conditions: Sequence[sympy.Basic]) -> bool:
    equalities = [equal for condition in conditions for equal in condition.atoms(sympy.Eq)]
    return any([s.name for s in equal.free_symbols] == [name] for equal in equalities)


def _usable(value: int, limits: Limits) -> bool:
    return abs(value) < HUGE and is_within(value, limits)


def _group_compared_symbols(conditions: Sequence[sympy.Basic]) -> list[list[str]]:
    """Groups of two symbols or more that conditions have in common."""
    groups: list[set[str]] = []
    for condition in conditions:
        merged = {s.name for s in condition.free_symbols}
        for group in [g for g in groups if g & merged]:
            merged |= group
            groups.remove(group)
        groups.append(merged)
    return [sorted(group) for group in groups if len(group) > 1]


def _turns(name: str, base: Sizes, conditions: Sequence[sympy.Basic]) -> set[int]:
    """Values of one symbol, the others as in `base`, at which a comparison in the conditions is an equality."""
    found: set[int] = set()
    for condition in conditions:
        for relation in condition.atoms(sympy.core.relational.Relational):
            if not any(s.name == name for s in relation.free_symbols):
                continue
            gap = relation.lhs - relation.rhs
            found.update(abs(int(k)) for k in gap.atoms(sympy.Integer))
            at = [value_of(gap, {**base, name: x}) for x in (0, 1, 2)]
            if None in at:
                continue
            slope = at[1] - at[0]
            if slope and at[2] - at[1] == slope:  # a line, so it is zero at one place
                found.update((int(-at[0] // slope), int(-(at[0] // slope))))
    return found


# ---------------------------------------------------------------------- expressions


def holds(conditions: Sequence[sympy.Basic], sizes: Sizes) -> bool:
    return all(value_of(condition, sizes) for condition in conditions)


def value_of(expr: Any, sizes: Sizes) -> Any:
    """The number that an expression is at these sizes; None where it divides by zero, or torch defines none."""
    if not isinstance(expr, sympy.Basic):
        return expr
    if isinstance(expr, sympy.Symbol):
        return sizes[expr.name]
    names, function = _compile(expr)
    if function is not None:
        return function(*(sizes[name] for name in names))
    try:
        said = expr.xreplace({s: sympy.Integer(sizes[s.name]) for s in expr.free_symbols})
    except (ZeroDivisionError, AssertionError):  # torch asserts that no remainder is taken of a negative number
        return None
    if said in (sympy.true, sympy.false):
        return bool(said)
    if not said.is_finite:
        return None
    return int(said) if said.is_integer else float(said)


@functools.lru_cache(maxsize=4096)
def _compile(expr: sympy.Basic) -> tuple[list[str], Callable[..., Any] | None]:
    """An expression as a function of its sizes; None where only sympy itself can say what it is."""
    symbols = sorted(expr.free_symbols, key=lambda s: s.name)
    names = [s.name for s in symbols]
    # torch has divisions of its own, and sympy would print a quotient as one of floats.
    inexact = any(not (power.exp.is_Integer and power.exp > 0) for power in expr.atoms(sympy.Pow))
    if inexact or expr.atoms(sympy.Function, sympy.Mod):
        return names, None
    function = sympy.lambdify(symbols, expr, "math")
    return names, function
