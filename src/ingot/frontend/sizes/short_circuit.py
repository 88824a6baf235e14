"""Conditions on sizes that decide nothing, since the rest of their expression is known.

In `causal = n > 1 and mask is None`, where there is a mask, both answers to `n > 1` make `causal` False. And in
`if n != x.shape[0]: x = x.expand(n, -1)` the body changes nothing where the sizes are equal.
"""

from __future__ import annotations

import ast
import dis
import functools
import inspect
import textwrap
from types import CodeType, FrameType
from typing import Any

# What an operand may be made of, so that evaluating it early changes nothing.
_PLAIN = (
    ast.Name, ast.Load, ast.Constant, ast.Attribute, ast.Compare, ast.Is, ast.IsNot, ast.Eq, ast.NotEq, ast.UnaryOp,
    ast.Not, ast.Call,
)  # fmt: skip
_FUNCTIONS = ("getattr", "hasattr", "isinstance", "callable")
_Place = tuple[int, int, int, int]


def is_operand(frame: FrameType) -> bool:
    """Whether a frame asks for the truth of a comparison that others follow in an `and` or `or`."""
    return frame.f_lasti in _operands(frame.f_code)


def decides_nothing(frame: FrameType, answer: bool) -> bool:
    """Whether the truth that a frame asks for makes no difference: its `and` is False, or its `or` True, without it."""
    found = _operands(frame.f_code).get(frame.f_lasti)
    if found is None:
        return False
    is_and, rest = found
    if answer is not is_and:
        return False
    for operand in rest:
        if operand is None:
            return False
        try:
            value = eval(operand, frame.f_globals, frame.f_locals)
        except Exception:  # whatever the user's expression raises, where it stands
            return False
        if value is not is_and:
            return value is (not is_and)
    return False


@functools.lru_cache(maxsize=1024)
def _operands(code: CodeType) -> dict[int, tuple[bool, tuple[Any, ...]]]:
    """For each offset where a function asks for the truth of a comparison in an `and` or `or`: which it is, and the
    operands after it, compiled; one that must not be evaluated early is None."""
    places = _asking_places(code)
    if not places:
        return {}
    try:
        lines, first = inspect.getsourcelines(code)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, SyntaxError, TypeError, ValueError):
        return {}
    indent = len(lines[0]) - len(lines[0].lstrip())
    found: dict[_Place, tuple[bool, tuple[Any, ...]]] = {}

    def place_of(operand: ast.Compare) -> _Place:
        lines = operand.lineno + first - 1, (operand.end_lineno or 0) + first - 1
        return (*lines, operand.col_offset + indent, (operand.end_col_offset or 0) + indent)

    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Compare) and _only_expands(node, node.test):
            found[place_of(node.test)] = True, (compile("False", "<condition>", "eval"),)
        for index, operand in enumerate(node.values[:-1] if isinstance(node, ast.BoolOp) else ()):
            if isinstance(operand, ast.Compare) and isinstance(node, ast.BoolOp):
                rest = tuple(map(_compile, node.values[index + 1 :]))
                found[place_of(operand)] = isinstance(node.op, ast.And), rest
    return {offset: found[place] for offset, place in places.items() if place in found}


def _only_expands(node: ast.If, test: ast.Compare) -> bool:
    """Whether an `if` compares a dim of a tensor with a size, and then expands the tensor to that size in that dim."""
    if not (len(test.ops) == 1 and isinstance(test.ops[0], ast.NotEq) and len(node.body) == 1 and not node.orelse):
        return False
    body = node.body[0]
    if not (isinstance(body, ast.Assign) and len(body.targets) == 1 and isinstance(body.value, ast.Call)):
        return False
    call, sides = body.value, (test.left, test.comparators[0])
    function = call.func
    if not (isinstance(function, ast.Attribute) and function.attr == "expand" and not call.keywords):
        return False
    name = ast.unparse(function.value)
    if not isinstance(function.value, ast.Name) or ast.unparse(body.targets[0]) != name:
        return False
    given = [ast.unparse(argument) for argument in call.args]
    for size, dim in (sides, sides[::-1]):
        for index, argument in enumerate(given):
            others = [*given[:index], *given[index + 1 :]]
            if argument == ast.unparse(size) and ast.unparse(dim) == f"{name}.shape[{index}]":
                return all(other == "-1" for other in others)
    return False


def _asking_places(code: CodeType) -> dict[int, _Place]:
    """For each instruction that asks a comparison's result for its truth, where the comparison is in the source."""
    found: dict[int, _Place] = {}
    compared: _Place | None = None
    for instruction in dis.get_instructions(code):
        name, place = instruction.opname, instruction.positions
        if name == "COMPARE_OP":
            known = place is not None and None not in place
            compared = (place.lineno, place.end_lineno, place.col_offset, place.end_col_offset) if known else None  # type: ignore[union-attr,assignment]
        asks = name in ("COMPARE_OP", "TO_BOOL") or ("JUMP" in name and ("IF_TRUE" in name or "IF_FALSE" in name))
        if compared is not None and asks:
            found[instruction.offset] = compared
        elif name not in ("COMPARE_OP", "COPY"):
            compared = None
    return found


def _compile(operand: ast.expr) -> Any:
    for node in ast.walk(operand):
        if not isinstance(node, _PLAIN):
            return None
        if isinstance(node, ast.Call) and not (
            isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS and not node.keywords
        ):
            return None
    return compile(ast.Expression(operand), "<condition>", "eval")
