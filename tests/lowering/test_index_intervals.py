"""Intervals of index expressions: they hold every value, and are as narrow as they can be."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from ingot.lowering.index_expr import (
    Size,
    evaluate,
    largest,
    size_symbol,
    smallest,
    symbol,
)
from ingot.lowering.verification.intervals import interval_of

N = size_symbol("n0")
I0, I1 = symbol("i0", below=4), symbol("i1", below=8)
FLAT = I0 * 8 + I1
SIGNED = size_symbol("n1", signed=True)


@st.composite
def sizes(draw: st.DrawFn, depth: int = 3) -> Size:
    if depth == 0:
        return draw(st.one_of(st.integers(-9, 9), st.sampled_from([N, I0, I1, SIGNED])))
    left, right = draw(sizes(depth - 1)), draw(sizes(depth - 1))
    match draw(st.sampled_from(["add", "sub", "mul", "div", "mod", "max", "min"])):
        case "add":
            return left + right
        case "sub":
            return left - right
        case "mul":
            return left * right
        case "div":
            return left // draw(st.integers(1, 7))
        case "mod":
            return left % draw(st.integers(1, 7))
        case "max":
            return largest(left, right)
        case _:
            return smallest(left, right)


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(sizes(), st.integers(2, 10), st.integers(0, 3), st.integers(0, 7), st.integers(-20, 20))
def test_intervals_hold_every_value(size: Size, n: int, i: int, j: int, signed: int) -> None:
    low, high = interval_of(size, {"n0": (2, 10)})
    assert low <= evaluate(size, {"n0": n, "i0": i, "i1": j, "n1": signed}) <= high


def test_intervals_are_as_narrow_as_they_can_be() -> None:
    ranges = {"n0": (2.0, 10.0)}
    assert interval_of(FLAT, ranges) == (0, 31)
    assert interval_of(N - 3 * I0, ranges) == (-7, 10)
    assert interval_of((FLAT + 5) // 4, ranges) == (1, 9)
    assert interval_of((N + I1) % 5, ranges) == (0, 4)
    assert interval_of(smallest(N, 4) * 2, ranges) == (4, 8)
