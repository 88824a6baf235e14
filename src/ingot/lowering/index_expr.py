"""Sizes and indices: integer expressions in one canonical form, so that equal ones compare equal.

    expr ::= sum of terms           term ::= integer coefficient × product of atoms
    atom ::= Symbol(name)           a loop variable ("i2")
           | RuntimeSize(name)      a size known at run time ("n0")
           | BodyValue(name)        a value of a body ("v7")
           | Div(expr, expr)        floor division
           | Mod(expr, expr)        remainder of it
           | Pick("max" | "min", expr, expr)

    >>> i, n = symbol("i0"), size_symbol("n0")
    >>> str((i + 2) * n - n)
    'n0 + i0*n0'

A size is an int or an Expr; arithmetic on either returns whichever is simpler. Ranges of loop variables let division
and remainder cancel: with j in [0, 8), (8*i + j) // 8 is i.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias, Union

Size: TypeAlias = Union[int, "Expr"]
Term: TypeAlias = tuple["Atom", ...]


# The estimate of a size that the example inputs do not show, where a heuristic needs one.
UNKNOWN = 8


@dataclass(frozen=True, slots=True)
class Symbol:
    """`below` bounds a loop variable: it runs over [0, below). A symbol is never negative unless `signed`."""

    name: str
    below: Size | None = None
    signed: bool = False

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class RuntimeSize(Symbol):
    """A size that an input or a step binds, or the iteration of a loop around steps."""


@dataclass(frozen=True, slots=True)
class BodyValue(Symbol):
    """The value of operation number `place` of the body that the index is in."""

    place: int = -1


@dataclass(frozen=True, slots=True)
class Div:
    left: Expr
    right: Size

    def __str__(self) -> str:
        return f"(({self.left})//({self.right}))"


@dataclass(frozen=True, slots=True)
class Mod:
    left: Expr
    right: Size

    def __str__(self) -> str:
        return f"(({self.left})%({self.right}))"


@dataclass(frozen=True, slots=True)
class MinMax:
    which: str
    left: Size
    right: Size

    def __str__(self) -> str:
        return f"{self.which}({self.left}, {self.right})"


Atom: TypeAlias = Symbol | Div | Mod | MinMax


class Expr:
    """A polynomial over atoms; immutable. `terms` maps a sorted product of atoms to its coefficient, never 0."""

    __slots__ = ("__dict__", "_hash", "terms")

    def __init__(self, terms: dict[Term, int]) -> None:
        self.terms = terms
        self._hash = hash(frozenset(terms.items()))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expr) and self._hash == other._hash and self.terms == other.terms

    def __add__(self, other: Size) -> Size:
        terms = dict(self.terms)
        for term, coefficient in _terms(other).items():
            terms[term] = terms.get(term, 0) + coefficient
        return _simplest(terms)

    __radd__ = __add__

    def __neg__(self) -> Size:
        return self * -1

    def __sub__(self, other: Size) -> Size:
        return self + (-1 * other)

    def __rsub__(self, other: Size) -> Size:
        return (self * -1) + other

    def __mul__(self, other: Size) -> Size:
        if isinstance(other, int):
            return _simplest({term: c * other for term, c in self.terms.items()}) if other != 1 else self
        terms: dict[Term, int] = {}
        for left, a in self.terms.items():
            for right, b in other.terms.items():
                product = tuple(sorted(left + right, key=str))
                terms[product] = terms.get(product, 0) + a * b
        return _simplest(terms)

    __rmul__ = __mul__

    def __floordiv__(self, other: Size) -> Size:
        return divide(self, other)

    def __rfloordiv__(self, other: Size) -> Size:
        return divide(other, self)

    def __mod__(self, other: Size) -> Size:
        return remainder(self, other)

    def __rmod__(self, other: Size) -> Size:
        return remainder(other, self)

    def __str__(self) -> str:
        return self.text

    @cached_property
    def text(self) -> str:
        """Kept, since expressions sort by it, and a size behind many layers is deep."""
        parts = []
        for term, coefficient in sorted(self.terms.items(), key=lambda item: (len(item[0]), [str(a) for a in item[0]])):
            factors = [str(atom) for atom in term]
            if coefficient != 1 or not factors:
                factors.insert(0, str(coefficient))
            parts.append("*".join(factors))
        return " + ".join(parts).replace("+ -1*", "- ").replace("+ -", "- ")

    __repr__ = __str__

    @cached_property
    def symbols(self) -> frozenset[Symbol]:
        """Every symbol that the value depends on, inside divisions too."""
        found: set[Symbol] = set()
        for term in self.terms:
            for atom in term:
                found |= _symbols(atom)
        return frozenset(found)

    def __bool__(self) -> bool:
        raise TypeError(f"whether {self} is 0 is not known before the program runs")


def symbol(name: str, below: Size | None = None, signed: bool = False) -> Expr:
    """A loop variable."""
    return Expr({(Symbol(name, below, signed),): 1})


def size_name(number: int) -> str:
    """What the sizes of a run are called, by their place in its table of sizes."""
    return f"n{number}"


def size_number(name: str) -> int:
    """The place of a size in the run's table."""
    return int(name.removeprefix("n"))


def size_symbol(name: str, below: Size | None = None, signed: bool = False) -> Expr:
    """A run-time size."""
    return Expr({(RuntimeSize(name, below, signed),): 1})


def value_symbol(place: int, below: Size | None = None, signed: bool = False) -> Expr:
    """A value of a body, by its place; it is called `value_name(place)`."""
    return Expr({(BodyValue(value_name(place), below, signed, place),): 1})


def value_name(place: int) -> str:
    return f"v{place}"


def as_expr(size: Size) -> Expr:
    return size if isinstance(size, Expr) else Expr({(): size} if size else {})


def divide(left: Size, right: Size) -> Size:
    """Floor division. What divides evenly is taken out; what is smaller than the divisor falls away."""
    if isinstance(left, int) and isinstance(right, int):
        return left // right
    if right == 1:
        return left
    if left == right:
        return 1
    whole, rest = _split(as_expr(left), right)
    if isinstance(rest, int):
        if isinstance(right, int):
            return whole + rest // right
        if rest == 0:
            return whole
    if is_in_range(rest, right):
        return whole
    if isinstance(right, int) and right > 0 and isinstance(rest, Expr) and len(rest.terms) == 1:
        ((term, coefficient),) = rest.terms.items()
        if len(term) == 1 and coefficient == 1 and isinstance(term[0], Div) and isinstance(term[0].right, int):
            return whole + divide(term[0].left, term[0].right * right)
    return whole + Expr({(Div(as_expr(rest), right),): 1})


def remainder(left: Size, right: Size) -> Size:
    if isinstance(left, int) and isinstance(right, int):
        return left % right
    if right == 1 or left == right:
        return 0
    _, rest = _split(as_expr(left), right)
    if isinstance(rest, int):
        if isinstance(right, int):
            return rest % right
        if rest == 0:
            return 0
    if is_in_range(rest, right):
        return rest
    return Expr({(Mod(as_expr(rest), right),): 1})


def largest(left: Size, right: Size) -> Size:
    return _pick("max", max, left, right)


def smallest(left: Size, right: Size) -> Size:
    return _pick("min", min, left, right)


def estimate(size: Size, hints: Mapping[str, int]) -> int:
    """A size for the example inputs, whose symbols are `hints`: for choices, never for meaning."""
    return size if isinstance(size, int) else evaluate(size, {s.name: hints.get(s.name, UNKNOWN) for s in size.symbols})


def require_static(size: Size) -> int:
    """A size that is a number whatever the inputs are."""
    assert isinstance(size, int), f"{size} is not known before the program runs"
    return size


def product(sizes: tuple[Size, ...] | list[Size]) -> Size:
    total: Size = 1
    for size in sizes:
        total = total * size
    return total


def substitute(size: Size, mapping: Mapping[str, Size]) -> Size:
    """The expression with symbols, by name, replaced."""
    if isinstance(size, int) or not any(s.name in mapping for s in size.symbols):
        return size
    total: Size = 0
    for term, coefficient in size.terms.items():
        value: Size = coefficient
        for atom in term:
            value = value * _substitute_atom(atom, mapping)
        total = total + value
    return total


def evaluate(size: Size, values: Mapping[str, int]) -> int:
    """The number, given one for every symbol."""
    result = substitute(size, values)
    assert isinstance(result, int), f"{size} is not determined by {sorted(values)}"
    return result


def coefficient_of(size: Size, name: str) -> Size | None:
    """What the symbol is multiplied by, or None where the expression is not linear in it."""
    if isinstance(size, int):
        return 0
    found: Size = 0
    for term, coefficient in size.terms.items():
        inside = [atom for atom in term if any(s.name == name for s in _symbols(atom))]
        if not inside:
            continue
        if len(inside) > 1 or not isinstance(inside[0], Symbol):
            return None
        rest = tuple(atom for atom in term if atom is not inside[0])
        found = found + _simplest({rest: coefficient})
    return found


def depends_on(size: Size, name: str) -> bool:
    return isinstance(size, Expr) and any(s.name == name for s in size.symbols)


def bounds(size: Size) -> tuple[int | None, int | None]:
    """A lower and an upper bound (inclusive), None where there is none."""
    if isinstance(size, int):
        return size, size
    low: int | None = 0
    high: int | None = 0
    for term, coefficient in size.terms.items():
        a: int | None = 1
        b: int | None = 1
        for atom in term:
            la, lb = _atom_bounds(atom)
            if la is None or la < 0 or a is None or a < 0:
                a, b = None, None
                break
            a, b = a * la, (b * lb if b is not None and lb is not None else None)
        if coefficient < 0:
            a, b = b, a
        low = low + coefficient * a if low is not None and a is not None else None
        high = high + coefficient * b if high is not None and b is not None else None
    return low, high


def never_negative(size: Size) -> bool:
    low, _ = bounds(size)
    return low is not None and low >= 0


def _atom_bounds(atom: Atom) -> tuple[int | None, int | None]:
    if isinstance(atom, Symbol):
        if atom.signed:
            return None, None
        above = bounds(atom.below)[1] if atom.below is not None else None
        return 0, (max(above - 1, 0) if above is not None else None)
    if isinstance(atom, (Div, Mod)) and not never_negative(atom.right):
        return None, None
    if isinstance(atom, Mod):
        above = bounds(atom.right)[1]
        return 0, (above - 1 if above is not None else None)
    if isinstance(atom, Div):
        low, high = bounds(atom.left)
        if low is None or low < 0 or not isinstance(atom.right, int):
            return (0 if low is not None and low >= 0 else None), (high if low is not None and low >= 0 else None)
        return low // atom.right, (high // atom.right if high is not None else None)
    (la, lb), (ra, rb) = bounds(atom.left), bounds(atom.right)
    if atom.which == "max":
        low = max(la, ra) if la is not None and ra is not None else (la if ra is None else ra)
        return low, (max(lb, rb) if lb is not None and rb is not None else None)
    high = min(lb, rb) if lb is not None and rb is not None else (lb if rb is None else rb)
    return (min(la, ra) if la is not None and ra is not None else None), high


def _terms(size: Size) -> dict[Term, int]:
    return size.terms if isinstance(size, Expr) else ({(): size} if size else {})


def _simplest(terms: dict[Term, int]) -> Size:
    terms = {term: c for term, c in terms.items() if c}
    if not terms:
        return 0
    if len(terms) == 1 and () in terms:
        return terms[()]
    return Expr(terms)


def _split(left: Expr, right: Size) -> tuple[Size, Size]:
    """`left` as right * whole + rest, taking out every term that `right` divides."""
    whole: Size = 0
    rest: dict[Term, int] = {}
    for term, coefficient in left.terms.items():
        if isinstance(right, int):
            quotient, left_over = divmod(coefficient, right)
            if quotient:
                whole = whole + _simplest({term: quotient})
            if left_over:
                rest[term] = left_over
            continue
        divided = _divide_term(term, coefficient, right)
        if divided is None:
            rest[term] = coefficient
        else:
            whole = whole + divided
    return whole, _simplest(rest)


def _divide_term(term: Term, coefficient: int, right: Expr) -> Size | None:
    """term / right where `right` is one term that goes into it."""
    if len(right.terms) != 1:
        return None
    ((divisor, by),) = right.terms.items()
    if coefficient % by:
        return None
    left = list(term)
    for atom in divisor:
        if atom not in left:
            return None
        left.remove(atom)
    return _simplest({tuple(left): coefficient // by})


def is_in_range(size: Size, right: Size) -> bool:
    """Whether 0 <= size < right for certain."""
    low, high = bounds(size)
    if low is None or low < 0:
        return False
    if isinstance(right, int):
        return high is not None and high < right
    if isinstance(size, Expr) and len(size.terms) == 1:
        ((term, coefficient),) = size.terms.items()
        if coefficient == 1 and len(term) == 1:
            atom = term[0]
            return (isinstance(atom, Symbol) and atom.below == right) or (isinstance(atom, Mod) and atom.right == right)
    # i*n + j < m*n for i < m, j < n: every loop variable at its largest.
    return _largest(size) == right - 1 if isinstance(size, Expr) else False


def _largest(size: Expr) -> Size | None:
    total: Size = 0
    for term, coefficient in size.terms.items():
        if coefficient < 0:
            return None
        value: Size = coefficient
        for atom in term:
            if isinstance(atom, Symbol) and atom.below is not None:
                value = value * (atom.below - 1)
            elif isinstance(atom, Mod):
                value = value * (atom.right - 1)
            elif isinstance(atom, Symbol):
                value = value * Expr({(atom,): 1})
            else:
                return None
        total = total + value
    return total


def _symbols(atom: Atom) -> frozenset[Symbol]:
    if isinstance(atom, Symbol):
        return frozenset({atom})
    found: frozenset[Symbol] = frozenset()
    for part in (atom.left, atom.right):
        if isinstance(part, Expr):
            found |= part.symbols
    return found


def _substitute_atom(atom: Atom, mapping: Mapping[str, Size]) -> Size:
    if isinstance(atom, Symbol):
        return mapping.get(atom.name, Expr({(atom,): 1}))
    left, right = substitute(atom.left, mapping), substitute(atom.right, mapping)
    if isinstance(atom, Div):
        return divide(left, right)
    if isinstance(atom, Mod):
        return remainder(left, right)
    return largest(left, right) if atom.which == "max" else smallest(left, right)


def _pick(which: str, function: Callable[[int, int], int], left: Size, right: Size) -> Size:
    if isinstance(left, int) and isinstance(right, int):
        return function(left, right)
    if left == right:
        return left
    difference = left - right
    low, high = bounds(difference)
    if low is not None and low >= 0:
        return left if which == "max" else right
    if high is not None and high <= 0:
        return right if which == "max" else left
    first, second = sorted((left, right), key=str)
    return Expr({(MinMax(which, first, second),): 1})
