"""Sizes as text: the same numbers as Python's, and nothing but sizes."""

import contextlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ingot_runtime.expressions import Expression, NotAnExpression, parse, solve

SIZES = {"s0": 7, "s1": 3, "batch_size": 20}


def texts() -> st.SearchStrategy[str]:
    atoms = st.sampled_from(["s0", "s1", "batch_size", "0", "1", "2", "13"])
    return st.recursive(
        atoms,
        lambda inner: st.one_of(
            st.tuples(inner, st.sampled_from(["+", "-", "*", "//", "%", " + "]), inner).map("".join),
            st.tuples(inner, inner).map(lambda pair: f"({pair[0]})*({pair[1]})"),
            st.tuples(st.sampled_from(["max", "min"]), inner, inner).map(lambda t: f"{t[0]}({t[1]}, {t[2]})"),
            inner.map(lambda text: f"-({text})"),
            inner.map(lambda text: f"({text})**2"),
        ),
        max_leaves=8,
    )


@given(texts())
@example("s0//0")
@example("s0 % (s1-3)")
def test_it_gives_what_python_gives(text: str) -> None:
    try:
        expected = eval(text, {"max": max, "min": min}, dict(SIZES))
    except ZeroDivisionError:
        # A divisor that is written as 0 is refused on reading, one that comes out as 0 on evaluation.
        with pytest.raises((NotAnExpression, ZeroDivisionError)):
            parse(text).evaluate(SIZES)
        return
    assert parse(text).evaluate(SIZES) == expected


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Max(1, s0, 9)", 9), ("Min(s0, s1)", 3), ("Mod(s0, 4)", 3), ("FloorDiv(s0, 2)", 3), ("PythonMod(-s0, 4)", 1),
        ("CleanDiv(batch_size, 4)", 5), (" s0 ", 7), ("-s0 + 10", 3), ("-2*s0", -14), ("2*s0 - 3*s1", 5),
        ("s0 - s1 - 1", 3), ("s0//2//2", 1), ("s0**0", 1), ("((((s0))))", 7), ("- - s0", 7), ("max(s0)", 7),
    ],
)  # fmt: skip
def test_spellings(text: str, value: int) -> None:
    assert parse(text).evaluate(SIZES) == value


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "s0 +", "+ s0", "s0 s1", "2 3", "(s0", "s0)", "()", "max()", "max(s0", "max(s0,)", "Mod(s0)",
        "Mod(1, 2, 3)", "exec(s0)", "__import__('os')", "s0.real", "s0 / 2", "s0 ** s1", "s0**99", "s0**", "1.5",
        "s0;s1", pytest.param("1" + "+1" * 300, id="many"),
        "s0 if s1 else 2", "lambda: 0", "ünï", "s0\n+", "s0 == 1", "*s0", "s0 & 1", "٣",
        pytest.param("(" * 500 + "1" + ")" * 500, id="nested"), pytest.param("-" * 500 + "1", id="minuses"),
        pytest.param("1" + "+1" * 5000, id="long"),
    ],
)  # fmt: skip
def test_non_size_expression_rejected(text: str) -> None:
    with pytest.raises(NotAnExpression):
        parse(text)


def test_the_longest_can_be_evaluated() -> None:
    assert parse("1" + "+s1" * 199).evaluate(SIZES) == 1 + 3 * 199
    assert solve(parse("1" + "+s1" * 199), 1 + 4 * 199, {}) == {"s1": 4}


@given(st.text(max_size=30))
def test_noise_is_refused_or_read_but_never_crashes(text: str) -> None:
    with contextlib.suppress(NotAnExpression):
        assert isinstance(parse(text), Expression)


@pytest.mark.parametrize(
    ("text", "size", "known", "found"),
    [
        ("2*s0", 8, {}, {"s0": 4}), ("2*s0", 7, {}, None), ("s0 + 1", 5, {}, {"s0": 4}), ("3 - s0", 1, {}, {"s0": 2}),
        ("2*s0 + s1", 11, {"s1": 3}, {"s0": 4}), ("s0*s1", 12, {"s1": 3}, {"s0": 4}), ("s0*s1", 12, {}, {}),
        ("s0 + s0 + 1", 9, {}, {"s0": 4}), ("s0 - s0", 0, {}, {}), ("s0//2", 4, {}, {}), ("s0*s0", 16, {}, {}),
        ("max(s0, 2)", 4, {}, {}), ("s0", 4, {"s0": 4}, {}), ("7", 7, {}, {}), ("s0**2", 4, {}, {}),
        ("-(2*s0 - 10)", 4, {}, {"s0": 3}), ("(s0 + 1)*(s1 + 1)", 20, {"s1": 3}, {"s0": 4}),
        ("s0 + s1//2", 5, {"s1": 3}, {"s0": 4}),
    ],
)  # fmt: skip
def test_solving(text: str, size: int, known: dict[str, int], found: dict[str, int] | None) -> None:
    assert solve(parse(text), size, known) == found


@given(st.integers(-5, 5), st.integers(-20, 20), st.integers(0, 50))
def test_a_solution_solves(slope: int, offset: int, value: int) -> None:
    expression = parse(f"({slope})*s0 + ({offset})")
    found = solve(expression, slope * value + offset, {})
    assert found == ({"s0": value} if slope else {})
