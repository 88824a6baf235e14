"""The sizes of a call, bound to the model's symbols and checked."""

from collections.abc import Mapping, Sequence

from .container.manifest import Spec
from .errors import InputError, format_error
from .expressions import Expression, solve

_RECOMPILE = "capture and compile the model again"


def bind(spec: Spec, shapes: Sequence[tuple[int, ...]], values: Mapping[int, int], places: Sequence[str]) -> None:
    """Checks the inputs' shapes, and the values of those that are sizes themselves, against what was compiled.

    `values` is by number of input. Ranks are checked already. Raises InputError, naming the input by its place.
    """
    sizes: dict[str, int] = {}
    first: dict[str, str] = {}
    open_ones: list[tuple[Expression, int, str]] = []
    for number, (asked, shape) in enumerate(zip(spec.inputs, shapes, strict=True)):
        wanted = [(f"dim {n} of {places[number]}", size, asked.shape[n]) for n, size in enumerate(shape)]
        if asked.symbol is not None:
            wanted.append((places[number], values[number], Expression(asked.symbol)))
        for where, size, expected in wanted:
            if isinstance(expected, int):
                if size != expected:
                    raise InputError(
                        format_error(
                            f"{where} is {size}, but the model was compiled for {expected}.",
                            why=f"it takes {asked.spelled}",
                            fix=f"pass that size, or {_RECOMPILE} with a dynamic dim there",
                        )
                    )
            elif expected.operands or isinstance(expected.head, int):
                open_ones.append((expected, size, where))
            else:
                symbol = expected.head
                if sizes.setdefault(symbol, size) != size:
                    raise InputError(
                        format_error(
                            f"{where} is {size}, but {first[symbol]} is {sizes[symbol]}.",
                            why=f"both are {spec.symbols[symbol].name}",
                            fix="pass sizes that agree",
                        )
                    )
                first.setdefault(symbol, where)
    _bind_expressions(spec, open_ones, sizes, first)
    for symbol, size in sizes.items():
        limits = spec.symbols[symbol]
        if size < limits.low or (limits.high is not None and size > limits.high):
            raise InputError(
                format_error(
                    f"{first[symbol]} is {size}, outside the range that the model was compiled for.",
                    why=f"it is {limits}",
                    fix=f"use a size in the range, or {_RECOMPILE} with a wider one",
                )
            )


def _bind_expressions(
    spec: Spec, wanted: Sequence[tuple[Expression, int, str]], sizes: dict[str, int], first: dict[str, str]
) -> None:
    """Solves for symbols that no dim has alone, as far as that goes, then checks what can be checked."""
    left = list(wanted)
    before = -1
    while len(sizes) != before:
        before = len(sizes)
        for expression, size, where in left:
            solved = _solve_or_raise(spec, expression, size, where, sizes)
            for symbol, value in solved.items():
                sizes[symbol] = value
                first[symbol] = f"{spec.symbols[symbol].name}, by {where},"
    for expression, size, where in left:
        if expression.symbols <= sizes.keys():
            _check(spec, expression, size, where, sizes)
        # An expression in several symbols that nothing binds is for the library to check: it knows what it needs.


def _solve_or_raise(
    spec: Spec, expression: Expression, size: int, where: str, sizes: Mapping[str, int]
) -> Mapping[str, int]:
    solved = solve(expression, size, sizes)
    if solved is None:
        raise InputError(
            format_error(
                f"{where} is {size}, which is not of the form {format_expression(spec, expression)}.",
                fix=f"pass another size, or {_RECOMPILE} with this one",
            )
        )
    return solved


def _check(spec: Spec, expression: Expression, size: int, where: str, sizes: Mapping[str, int]) -> None:
    try:
        expected: int | str = expression.evaluate(sizes)
    except ZeroDivisionError:
        expected = "a size, and divides by zero"
    if expected != size:
        known = ", ".join(f"{spec.symbols[symbol].name} = {sizes[symbol]}" for symbol in sorted(expression.symbols))
        raise InputError(
            format_error(
                f"{where} is {size}, but must be {expected}.",
                why=f"it is {format_expression(spec, expression)}" + (f" with {known}" if known else ""),
                fix="pass sizes that agree",
            )
        )


def format_expression(spec: Spec, expression: Expression) -> str:
    """An expression with the names that the user gave to its symbols."""
    if isinstance(expression.head, int):
        return str(expression.head)
    if not expression.operands:
        return spec.symbols[expression.head].name
    parts = [format_expression(spec, operand) for operand in expression.operands]
    if expression.head in ("max", "min"):
        return f"{expression.head}({', '.join(parts)})"
    return "(" + f" {expression.head} ".join(parts) + ")"
