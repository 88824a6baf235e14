"""Sizes as the manifest writes them, "2*s0" or "max(s0, s1 + 1)": parsed, evaluated, solved. No eval().

    expression := term (("+" | "-") term)*
    term       := factor (("*" | "//" | "%") factor)*
    factor     := "-" factor | atom ("**" int)?
    atom       := int | symbol | name "(" expression ("," expression)* ")" | "(" expression ")"
    name       := max | min | Mod | FloorDiv, and sympy's spellings of them

Division and remainder round down, as Python's do.
"""

import re
from collections.abc import Callable, Mapping
from functools import reduce
from typing import NamedTuple

_TOKEN = re.compile(r"\s*(?:(\d+)|([A-Za-z_]\w*)|(\*\*|//|[-+*%(),]))", re.ASCII)
_LENGTH_LIMIT = 2000
_TOKENS_LIMIT = 400  # a tree is at most half as deep, which Python's stack can take
_DEPTH_LIMIT = 100
_EXPONENT_LIMIT = 8

Operation = Callable[[int, int], int]

_OPERATIONS: Mapping[str, Operation] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "**": lambda a, b: a**b,
    "max": max,
    "min": min,
}
# How sympy and torch write what has a sign in Python, and the sign.
_FUNCTIONS: Mapping[str, str] = {
    "max": "max",
    "Max": "max",
    "min": "min",
    "Min": "min",
    "Mod": "%",
    "PythonMod": "%",
    "FloorDiv": "//",
    "CleanDiv": "//",
}
_BINARY = frozenset({"%", "//"})


class Expression(NamedTuple):
    """A size: an int, a symbol by name, or an operation (a key of the table above) on other expressions."""

    head: int | str
    operands: tuple["Expression", ...] = ()

    @property
    def symbols(self) -> frozenset[str]:
        if self.operands:
            return frozenset().union(*(operand.symbols for operand in self.operands))
        return frozenset([self.head]) if isinstance(self.head, str) else frozenset()

    def evaluate(self, sizes: Mapping[str, int]) -> int:
        """The value, where `sizes` has every symbol. Raises ZeroDivisionError."""
        if isinstance(self.head, int):
            return self.head
        if not self.operands:
            return sizes[self.head]
        return reduce(_OPERATIONS[self.head], (operand.evaluate(sizes) for operand in self.operands))


class NotAnExpression(ValueError):
    """The text is not of the grammar; the message says why."""


def parse(text: str) -> Expression:
    """The expression that a text spells. Raises NotAnExpression."""
    if len(text) > _LENGTH_LIMIT:
        raise NotAnExpression(f"it is longer than {_LENGTH_LIMIT} characters")
    parser = _Parser(text)
    expression = parser.sum(0)
    if parser.token:
        raise NotAnExpression(f"{parser.token!r} is one too many")
    return expression


def solve(expression: Expression, size: int, sizes: Mapping[str, int]) -> dict[str, int] | None:
    """The value of the one symbol that `sizes` lacks, at which the expression has this size.

    An empty dict where no symbol or more than one is open, or where it stands in something that is not linear in it.
    None where no integer satisfies it.
    """
    open_symbols = expression.symbols - sizes.keys()
    try:
        line = _line(expression, sizes) if len(open_symbols) == 1 else None
    except ZeroDivisionError:  # in a part of it, by a size that is 0 in this call
        return {}
    if line is None or line[0] == 0:
        return {}
    slope, offset = line
    value, left = divmod(size - offset, slope)
    return None if left else {next(iter(open_symbols)): value}


def _line(expression: Expression, sizes: Mapping[str, int]) -> tuple[int, int] | None:
    """(slope, offset) of an expression linear in the symbol that `sizes` lacks; None for another one."""
    if not expression.symbols - sizes.keys():
        return 0, expression.evaluate(sizes)
    if not expression.operands:
        return 1, 0
    lines = [_line(operand, sizes) for operand in expression.operands]
    if any(line is None for line in lines) or expression.head not in ("+", "-", "*"):
        return None
    (slope, offset), *rest = [line for line in lines if line is not None]
    for other_slope, other_offset in rest:
        if expression.head == "*":
            if slope and other_slope:
                return None
            slope, offset = slope * other_offset + other_slope * offset, offset * other_offset
        else:
            sign = 1 if expression.head == "+" else -1
            slope, offset = slope + sign * other_slope, offset + sign * other_offset
    return slope, offset


class _Parser:
    """Reads tokens one ahead. `token` is "" at the end."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._count = 0
        self.token = ""
        self._advance()

    def _advance(self) -> str:
        taken = self.token
        if not self._text[self._at :].strip():
            self.token = ""
            return taken
        found = _TOKEN.match(self._text, self._at)
        if found is None:
            raise NotAnExpression(f"{self._text[self._at :].strip()[:20]!r} is not known")
        self._at = found.end()
        self._count += 1
        if self._count > _TOKENS_LIMIT:
            raise NotAnExpression("it is too long")
        self.token = found[1] or found[2] or found[3]
        return taken

    def _expect(self, token: str) -> None:
        if self._advance() != token:
            raise NotAnExpression(f"a {token!r} is missing")

    def sum(self, depth: int) -> Expression:
        if depth > _DEPTH_LIMIT:
            raise NotAnExpression("it is nested too deeply")
        left = self._term(depth)
        while self.token in ("+", "-"):
            left = Expression(self._advance(), (left, self._term(depth)))
        return left

    def _term(self, depth: int) -> Expression:
        left = self._factor(depth)
        while self.token in ("*", "//", "%"):
            left = _operation(self._advance(), (left, self._factor(depth)))
        return left

    def _factor(self, depth: int) -> Expression:
        if self.token == "-":
            if depth > _DEPTH_LIMIT:
                raise NotAnExpression("it is nested too deeply")
            self._advance()
            return Expression("-", (Expression(0), self._factor(depth + 1)))
        base = self._atom(depth)
        if self.token != "**":
            return base
        self._advance()
        exponent = self._advance()
        if not exponent.isdigit() or int(exponent) > _EXPONENT_LIMIT:
            raise NotAnExpression(f"the exponent {exponent!r} is not a number from 0 to {_EXPONENT_LIMIT}")
        return Expression("**", (base, Expression(int(exponent))))

    def _atom(self, depth: int) -> Expression:
        token = self._advance()
        if token.isdigit():
            return Expression(int(token))
        if token == "(":
            inner = self.sum(depth + 1)
            self._expect(")")
            return inner
        if not token or not (token[0].isalpha() or token[0] == "_"):
            raise NotAnExpression(f"{token!r} stands where a size should" if token else "it ends too soon")
        if self.token != "(":
            return Expression(token)
        operation = _FUNCTIONS.get(token)
        if operation is None:
            raise NotAnExpression(f"{token!r} is not a known function")
        self._advance()
        operands = [self.sum(depth + 1)]
        while self.token == ",":
            self._advance()
            operands.append(self.sum(depth + 1))
        self._expect(")")
        if operation in _BINARY and len(operands) != 2:
            raise NotAnExpression(f"{token!r} takes two sizes, not {len(operands)}")
        return _operation(operation, tuple(operands))


def _operation(head: str, operands: tuple[Expression, ...]) -> Expression:
    if head in _BINARY and operands[1] == Expression(0):
        raise NotAnExpression("it divides by zero")
    return Expression(head, operands)
