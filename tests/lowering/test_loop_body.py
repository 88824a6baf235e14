"""Bodies: recorded once, equal operations shared, pruned, rewritten, replayed; and subgraphs of scalars become them."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ingot.errors import UnsupportedOperator
from ingot.lowering.index_expr import symbol
from ingot.lowering.loop_body import BodyBuilder, find_used, prune, reads, rewrite
from ingot.lowering.loop_ir import Body, Load, Map, Op
from ingot.lowering.loop_ir_printer import print_body
from tests.lowering.python_handler import OPERATIONS, run
from tests.support.pipeline_fixtures import lowered

I = symbol("i0", below=8)  # noqa: E741
MEMORY = {"x": [3.0, -1.0, 4.0, 1.0, -5.0, 9.0, 2.0, 6.0], "places": [7, -1, 0, 3, 2, 2, -8, 5]}


def test_equal_operations_are_one() -> None:
    ops = BodyBuilder()
    x = ops.load("x", I, "float32")
    again = ops.load("x", I, "float32")
    assert x == again
    assert ops.call("exp", ops.call("neg", x)) == ops.call("exp", ops.call("neg", again))
    assert ops.load("x", I + 1, "float32") != x
    assert len(ops.ops) == 4


def test_zeros_of_both_signs_and_nans_are_kept_apart() -> None:
    ops = BodyBuilder()
    assert ops.const(0.0, "float32") != ops.const(-0.0, "float32")
    assert ops.const(float("nan"), "float32") == ops.const(float("nan"), "float32")
    assert ops.const(1, "int64") != ops.const(1.0, "float64")
    assert ops.const(True, "bool") != ops.const(1, "int64")


def test_a_cast_to_the_same_dtype_is_nothing_and_to_a_half_rounds() -> None:
    ops = BodyBuilder()
    x = ops.load("x", I, "float32")
    assert ops.cast(x, "float32") == x
    half = ops.cast(x, "bfloat16")
    assert ops.ops[half] == Op("cast", (x,), "float32", "bfloat16")


def test_what_no_result_needs_is_pruned_and_checks_stay() -> None:
    ops = BodyBuilder()
    unused = ops.call("exp", ops.load("x", I + 1, "float32"))
    place = ops.check_index(ops.load("places", I, "int64"), 8)
    lost = ops.check_index(ops.load("places", I + 1, "int64"), 5)
    body = ops.finish([ops.load("x", place, "float32")])
    assert unused < len(ops.ops) and lost is not None
    assert print_body(body) == (
        "%0 = load places[i0]: int64\n"
        "%1 = bounds_check %0, below 8: int64\n"
        "%2 = load places[i0 + 1]: int64\n"
        "%3 = bounds_check %2, below 5: int64\n"
        "%4 = load x[%1]: float32\n"
        "yield %4\n"
    )
    assert prune(body) is body
    assert find_used(body) == {0, 1, 2, 4}


def test_a_checked_place_counts_from_the_end_and_fails_outside() -> None:
    ops = BodyBuilder()
    body = ops.finish([ops.load("x", ops.check_index(ops.load("places", I, "int64"), 8), "float32")])
    assert [run(body, MEMORY, {"i0": i})[0] for i in range(8)] == [MEMORY["x"][p] for p in MEMORY["places"]]
    with pytest.raises(IndexError):
        run(body, {**MEMORY, "places": [8]}, {"i0": 0})


def test_masks_nest_and_hide_what_lies_outside() -> None:
    ops = BodyBuilder()
    low = ops.call("lt", ops.const(1, "int64"), ops.index(I))
    with ops.mask(low):
        high = ops.call("lt", ops.index(I), ops.const(4, "int64"))
        with ops.mask(high):
            inner = ops.load("x", I - 2, "float32")
        outer = ops.load("x", I - 2, "float32")
    assert inner != outer
    body = ops.finish([inner, outer])
    x = MEMORY["x"]
    for i in range(8):
        expected = [x[i - 2] if 1 < i < 4 else 0, x[i - 2] if i > 1 else 0]
        assert run(body, MEMORY, {"i0": i}) == expected


def test_integers_are_never_nan_and_unsigned_ones_never_negative() -> None:
    ops = BodyBuilder()
    whole, byte = ops.load("n", I, "int32"), ops.load("b", I, "uint8")
    zero = ops.const(0, "uint8")
    assert ops.call("isnan", whole) == ops.const(False, "bool")
    assert ops.call("lt", byte, zero) == ops.call("gt", zero, byte) == ops.const(False, "bool")
    assert ops.call("ge", byte, zero) == ops.call("le", zero, byte) == ops.const(True, "bool")
    assert ops.call("abs", byte) == byte
    assert ops.ops[ops.call("abs", whole)].name == "abs"
    assert ops.ops[ops.call("lt", whole, ops.const(0, "int32"))].name == "lt"


def test_rewriting_renames_symbols_and_answers_loads() -> None:
    ops = BodyBuilder()
    place = ops.check_index(ops.load("places", I, "int64"), 8)
    body = ops.finish([ops.call("neg", ops.load("x", place, "float32")), ops.load("y", I, "float32")])

    def y_is_two(op: Op, operands: tuple[int, ...], into: BodyBuilder) -> int | None:
        return into.const(2.0, "float32") if isinstance(op.attribute, Load) and op.attribute.buffer == "y" else None

    into = BodyBuilder()
    into.load("before", 0, "float32")  # so that places move
    made, results = rewrite(body, symbols={"i0": symbol("j") + 1}, into=into, replace=y_is_two)
    found = made.finish(results)
    assert [access.buffer for access in reads(found)] == ["places", "x"]
    for j in range(7):
        assert run(found, MEMORY, {"j": j}) == [-MEMORY["x"][MEMORY["places"][j + 1]], 2.0]


@st.composite
def bodies(draw: st.DrawFn) -> Body:
    ops = BodyBuilder()
    values = [ops.load("x", I, "float64"), ops.load("x", 7 - I, "float64"), ops.const(2.0, "float64")]
    for _ in range(draw(st.integers(0, 12))):
        name = draw(st.sampled_from(["add", "sub", "mul", "neg", "max", "where"]))
        picks = [draw(st.sampled_from(values)) for _ in range(2)]
        if name == "where":
            values.append(ops.where(ops.call("lt", *picks), picks[1], values[0]))
        elif name == "neg":
            values.append(ops.call(name, picks[0]))
        else:
            values.append(ops.call(name, *picks))
    chosen = draw(st.lists(st.sampled_from(values), min_size=1, max_size=3))
    return Body(tuple(ops.ops), tuple(chosen))


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(bodies(), st.integers(0, 7))
def test_pruning_and_rewriting_keep_every_result(body: Body, i: int) -> None:
    expected = run(body, MEMORY, {"i0": i})
    small = prune(body)
    assert run(small, MEMORY, {"i0": i}) == expected
    assert len(small.ops) <= len(body.ops)
    made, results = rewrite(body, symbols={"i0": 7 - symbol("j")})
    assert run(made.finish(results), MEMORY, {"j": 7 - i}) == expected


# ---------------------------------------------------------------------- subgraphs of scalars


def scalars(*values: float) -> list[torch.Tensor]:
    return [torch.tensor(value) for value in values]


def only_map(f: Any, args: list[Any], **options: Any) -> Map:
    _, module = lowered(f, args, **options)
    (step,) = module.steps
    assert isinstance(step, Map)
    return step


def test_a_subgraph_of_scalars_is_one_body_with_shared_subexpressions() -> None:
    def f(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        both = torch.exp(x - y)
        return both * z, torch.maximum(both, z)

    step = only_map(f, scalars(0.5, 0.25, 2.0))
    assert step.loops == ()
    assert [op.name for op in step.body.ops].count("exp") == 1
    buffers = [access.buffer for access in reads(step.body)]
    memory = dict(zip(buffers, [[0.5], [0.25], [2.0]], strict=True))
    assert run(step.body, memory) == pytest.approx([2 * 2.718281828459045**0.25, 2.0])


def test_symbolic_integers_are_values_of_a_body() -> None:
    def f(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        return x * n.shape[0] - n.shape[0]

    step = only_map(f, [torch.tensor(3.0), torch.zeros(5)], dynamic_shapes={"x": None, "n": {0: "n"}})
    (x,) = [access.buffer for access in reads(step.body)]
    assert run(step.body, {x: [3.0]}, {"n0": 7}) == [14.0]


def test_replaying_names_every_operation_that_ran() -> None:
    step = only_map(lambda x: torch.exp(-x) * torch.exp(-x), scalars(0.5))
    assert print_body(step.body) == (
        "%0 = load i0[0]: float32\n%1 = neg %0: float32\n%2 = exp %1: float32\n%3 = mul %2, %2: float32\nyield %3\n"
    )
    assert set(OPERATIONS) >= {"neg", "exp", "mul"}


def test_an_operator_without_a_rule_is_named_with_the_users_line() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = torch.exp(x)
        return torch.view_as_complex(torch.stack([y, y], -1)).abs() + torch.linalg.eigvals(y.reshape(1, 1)).real.sum()

    line = inspect.getsourcelines(f)[1] + 2
    with pytest.raises(UnsupportedOperator) as caught:
        lowered(f, scalars(0.5))
    text = str(caught.value)
    assert "eigvals" in text or "view_as_complex" in text
    assert f"test_loop_body.py:{line}" in text
    assert "aten.exp" not in text
