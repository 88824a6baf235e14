"""Random programs with loops and branches inside each other: analysis ends, and every value is of its type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ingot
from ingot.analysis.shape_inference.inference import MOST_ROUNDS
from tests.analysis.shape_inference.running import run_checked

# A statement makes one more value out of those there are; numbers choose among them.
#   ("map", k)  ("scale", k, l)  ("head", k)  ("join", k, l)
#   ("write", k)    through a view of it     ("stretch", k, size)    resized in place, with a view of it at hand
#   ("either", asked, body, k, body, l)  ("loop", rounds, k, l, body, a, b)
Statement = tuple[Any, ...]
PICK = st.integers(0, 9)
FLAT = st.one_of(
    st.tuples(st.just("map"), PICK),
    st.tuples(st.just("scale"), PICK, PICK),
)


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    bodies = st.lists(inner, max_size=2)
    return st.one_of(
        st.tuples(st.just("either"), PICK, bodies, PICK, bodies, PICK),
        st.tuples(st.just("loop"), st.integers(0, 3), PICK, PICK, bodies, PICK, PICK),
    )


STATEMENTS = st.recursive(FLAT, nested, max_leaves=4)
PROGRAMS = st.lists(
    st.one_of(
        STATEMENTS,
        st.tuples(st.just("head"), PICK),
        st.tuples(st.just("join"), PICK, PICK),
        st.tuples(st.just("write"), PICK),
        st.tuples(st.just("stretch"), PICK, PICK),
    ),
    min_size=1,
    max_size=5,
)
DIMS = st.sampled_from([("n",), ("m",), (None,), None, (4,)])


def pick(values: list[torch.Tensor], number: int) -> torch.Tensor:
    return values[number % len(values)]


def run_all(statements: list[Statement], values: list[torch.Tensor]) -> list[torch.Tensor]:
    for statement in statements:
        values = [*values, run_one(statement, values)]
    return values


def run_one(statement: Statement, values: list[torch.Tensor]) -> torch.Tensor:
    kind, *rest = statement
    if kind == "map":
        return pick(values, rest[0]).sin() + 1
    if kind == "scale":
        return pick(values, rest[0]) * pick(values, rest[1]).sum()
    if kind == "head":
        return pick(values, rest[0])[:1] * 2
    if kind == "join":
        return torch.cat([pick(values, rest[0]), pick(values, rest[1])])
    if kind == "write":
        made = pick(values, rest[0]).clone()
        made[:1].add_(1)
        return made
    if kind == "stretch":
        made = pick(values, rest[0]).clone()
        view = made[:1]
        made.resize_(rest[1])
        return view.sum() + made
    if kind == "either":
        asked, one, first, other, second = rest
        pred = pick(values, asked).sum() > 0.5
        return torch.cond(
            pred,
            lambda: pick(run_all(one, values), first) * 2,
            lambda: pick(run_all(other, values), second) - 1,
            (),
        )
    rounds, one, other, body, left, right = rest

    def step(i: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        inner = run_all(body, [*values, a, b])
        return i + 1, pick(inner[::-1], left) * 1, pick(inner[::-1], right) * 1

    start = (torch.zeros((), dtype=torch.int64), pick(values, one) * 1, pick(values, other) * 1)
    return torch.while_loop(lambda i, a, b: i < rounds, step, start)[1]


def model_of(statements: list[Statement]) -> Callable[..., Any]:
    def model(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> Any:
        values = [x, y, z]
        results = []
        for statement in statements:
            made = run_one(statement, values)
            results.append(made)
            if statement[0] not in (
                "head",
                "join",
                "stretch",
            ):  # what goes into branches and loops has one size when captured
                values = [*values, made]
        return tuple(results)

    return model


def check(statements: list[Statement], dims: tuple[Any, ...]) -> None:
    """Analysis comes to rest, and every value of runs at two sizes is of its type."""
    program = ingot.capture(model_of(statements), tuple(torch.zeros(3) for _ in range(3)))
    names = ("x", "y", "z")
    types = ingot.shapes_of(program, dict(zip(names, dims, strict=True)))
    assert types.rounds <= MOST_ROUNDS
    sizes = {"n": 2, "m": 5}
    for unknown in (1, 6):
        real = [torch.rand(sizes.get(d[0], d[0] or unknown) if d is not None else unknown) - 0.4 for d in dims]
        run_checked(program.graph_module, real, types, sizes)


CASES = (PROGRAMS, st.tuples(DIMS, DIMS, DIMS))
SETTINGS = {"deadline": None, "derandomize": True, "suppress_health_check": list(HealthCheck)}


@settings(max_examples=12, **SETTINGS)
@given(*CASES)
def test_sound_and_at_rest(statements: list[Statement], dims: tuple[Any, ...]) -> None:
    check(statements, dims)


@pytest.mark.slow
@settings(max_examples=600, **SETTINGS)
@given(*CASES)
def test_many_are_sound_and_at_rest(statements: list[Statement], dims: tuple[Any, ...]) -> None:
    check(statements, dims)
