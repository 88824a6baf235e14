"""Integer expressions: whatever is simplified, the number stays the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ingot.lowering import index_expr
from ingot.lowering.index_expr import Expr, Size, symbol

# Sizes, loop variables with bounds that are numbers, sizes or products of sizes, and a value that may be negative.
SIZES = {"n0": symbol("n0"), "n1": symbol("n1")}
LOOPS: dict[str, Size] = {"i0": 4, "i1": 7, "i2": SIZES["n0"], "i3": SIZES["n0"] * SIZES["n1"]}
SYMBOLS = {
    **SIZES,
    **{name: symbol(name, below=below) for name, below in LOOPS.items()},
    "v0": symbol("v0", signed=True),
}
BINARY: dict[str, tuple[Callable[[Size, Size], Size], Callable[[int, int], int]]] = {
    "+": (lambda a, b: a + b, lambda a, b: a + b),
    "-": (lambda a, b: a - b, lambda a, b: a - b),
    "*": (lambda a, b: a * b, lambda a, b: a * b),
    "//": (lambda a, b: a // b, lambda a, b: a // b),
    "%": (lambda a, b: a % b, lambda a, b: a % b),
    "max": (index_expr.largest, max),
    "min": (index_expr.smallest, min),
}


@dataclass(frozen=True)
class Tree:
    """An expression as it was written, to be worked out by Python and by Expr."""

    op: str
    left: Tree | int | str
    right: Tree | int | str

    def __str__(self) -> str:
        return f"({self.left} {self.op} {self.right})"


def value(tree: Tree | int | str, values: dict[str, int]) -> int:
    if isinstance(tree, int):
        return tree
    if isinstance(tree, str):
        return values[tree]
    return BINARY[tree.op][1](value(tree.left, values), value(tree.right, values))


def build(tree: Tree | int | str) -> Size:
    if isinstance(tree, int):
        return tree
    if isinstance(tree, str):
        return SYMBOLS[tree]
    return BINARY[tree.op][0](build(tree.left), build(tree.right))


leaves = st.one_of(st.integers(-9, 9), st.sampled_from(sorted(SYMBOLS)))
divisors = st.one_of(st.integers(1, 9), st.sampled_from(["n0", "n1"]), st.just(Tree("*", "n0", "n1")))
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(Tree, st.sampled_from(["+", "-", "*", "max", "min"]), inner, inner),
        st.builds(Tree, st.sampled_from(["//", "%"]), inner, divisors),
        # What index arithmetic is made of: i * n + j, taken apart again.
        st.builds(lambda i, j, d: Tree("+", Tree("*", i, d), j), inner, inner, divisors),
    ),
    max_leaves=8,
)


@st.composite
def assignments(draw: st.DrawFn) -> dict[str, int]:
    values = {name: draw(st.integers(1, 6)) for name in SIZES}
    for name, below in LOOPS.items():
        values[name] = draw(st.integers(0, index_expr.evaluate(below, values) - 1))
    return {**values, "v0": draw(st.integers(-20, 20))}


@settings(max_examples=600, deadline=None, derandomize=True, database=None)
@given(trees, assignments())
def test_simplified_expressions_have_the_value_of_plain_integers(
    tree: Tree | int | str, values: dict[str, int]
) -> None:
    made, expected = build(tree), value(tree, values)
    assert index_expr.evaluate(made, values) == expected
    low, high = index_expr.bounds(made)
    assert (low is None or low <= expected) and (high is None or expected <= high)


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(trees, assignments())
def test_text_reads_back_as_the_same_number(tree: Tree | int | str, values: dict[str, int]) -> None:
    """The manifest of a compiled file holds this text: 2*(n//2) is not (2*n)//2."""
    text = str(build(tree))
    assert eval(text, {"max": max, "min": min}, dict(values)) == value(tree, values)


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(trees, trees, st.sampled_from(sorted(SYMBOLS)), assignments())
def test_substitution_is_evaluation_in_two_steps(
    tree: Tree | int | str, other: Tree | int | str, name: str, values: dict[str, int]
) -> None:
    replaced = value(other, values)
    # A loop variable or a size may only become something in its own range.
    if name != "v0":
        below = LOOPS.get(name)
        assume(replaced >= 0 if below is None else 0 <= replaced < index_expr.evaluate(below, values))
    if name in SIZES:
        assume(replaced == values[name])
    made = index_expr.substitute(build(tree), {name: build(other)})
    assert index_expr.evaluate(made, values) == value(tree, {**values, name: replaced})


@settings(max_examples=400, deadline=None, derandomize=True, database=None)
@given(trees, trees, assignments())
def test_within_is_never_promised_in_vain(
    tree: Tree | int | str, limit: Tree | int | str, values: dict[str, int]
) -> None:
    if index_expr.is_in_range(build(tree), build(limit)):
        assert 0 <= value(tree, values) < value(limit, values)


@settings(max_examples=400, deadline=None, derandomize=True, database=None)
@given(trees, st.sampled_from(sorted(LOOPS)), assignments())
def test_a_coefficient_is_what_one_step_adds(tree: Tree | int | str, name: str, values: dict[str, int]) -> None:
    factor = index_expr.coefficient_of(build(tree), name)
    if factor is None:
        assert index_expr.depends_on(build(tree), name)
        return
    assert not index_expr.depends_on(factor, name)
    step = value(tree, {**values, name: values[name] + 1}) - value(tree, values)
    if not isinstance(build(tree), int):
        step = index_expr.evaluate(build(tree), {**values, name: values[name] + 1}) - index_expr.evaluate(
            build(tree), values
        )
    assert index_expr.evaluate(factor, values) == step


def test_what_indices_are_made_of_cancels() -> None:
    n, m = SIZES["n0"], SIZES["n1"]
    i, j = symbol("i", below=m), symbol("j", below=n)
    assert (i * n + j) // n == i
    assert (i * n + j) % n == j
    assert (i * 8 + symbol("k", below=8)) // 8 == i
    assert ((i * n + j) // n) * n + (i * n + j) % n == i * n + j
    assert (n + 1) * m - m == n * m
    assert n // 1 == n and n % 1 == 0 and n // n == 1 and (4 * n) // 2 == 2 * n
    assert index_expr.largest(n, n + 1) == n + 1 and index_expr.smallest(n, n + 1) == n


def test_equal_forms_compare_equal_and_hash_alike() -> None:
    n, m = SIZES["n0"], SIZES["n1"]
    assert n * m + 2 == 2 + m * n
    assert hash(n * m + 2) == hash(2 + m * n)
    assert n * m != n * m + 1
    assert isinstance(n - n, int)


def test_text_is_short() -> None:
    n, i = SIZES["n0"], symbol("i0")
    assert str((i + 2) * n - n) == "n0 + i0*n0"
    assert str(n - 1) == "-1 + n0"
    assert str(2 * (n // 2)) == "2*((n0)//(2))"


def test_a_divisor_may_be_negative() -> None:
    """-(n // -2) rounds up."""
    n = SIZES["n0"]
    for number in range(8):
        for divisor in (-1, -2, -3):
            assert index_expr.evaluate(n // divisor, {"n0": number}) == number // divisor
            assert index_expr.evaluate(n % divisor, {"n0": number}) == number % divisor
            assert index_expr.evaluate((n // 3) // divisor, {"n0": number}) == (number // 3) // divisor
            low, high = index_expr.bounds(n % divisor)
            assert (low is None or low <= number % divisor) and (high is None or number % divisor <= high)


def test_expression_has_no_truth_value() -> None:
    with pytest.raises(TypeError, match="whether n0 is 0 is not known"):
        bool(SIZES["n0"])


def test_an_unknown_symbol_cannot_be_evaluated() -> None:
    assert isinstance(SIZES["n0"], Expr)
    with pytest.raises(AssertionError, match="n0 is not determined by"):
        index_expr.evaluate(SIZES["n0"], {"n1": 3})
