"""Subgraphs of scalars become bodies, as SPEC's "lowering subgraphs to bodies" has it."""

from __future__ import annotations

import inspect
import math
from typing import Any

import pytest
import torch

import ingot
from ingot.compiler import run_cpu_pipeline
from ingot.errors import UnsupportedOperator
from ingot.lowering.index_expr import evaluate, symbol
from ingot.lowering.loop_body import BodyBuilder, replay, rewrite
from ingot.lowering.loop_ir import Body, Load, Op
from ingot.lowering.lower import Lowering
from ingot.lowering.subgraph_lowering import Given, lower_body
from ingot.lowering.tensor_views import Strided, TensorValue
from ingot.registry import Registry

aten = torch.ops.aten

FUNCTIONS: dict[str, Any] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "exp": math.exp,
    "tanh": math.tanh,
    "le": lambda a, b: a <= b,
    "where": lambda c, a, b: a if c else b,
    "max": max,
}


class Numbers:
    """A handler of plain numbers: `given` by position, `memory` by buffer, `sizes` by symbol."""

    def __init__(self, given: list[Any], memory: dict[str, list[Any]] | None = None, **sizes: int) -> None:
        self.given, self.memory, self.sizes, self.names = given, memory or {}, sizes, []

    def op(self, place: int, op: Op, operands: tuple[Any, ...]) -> Any:
        self.names.append(op.name)
        value = self.value(op, operands)
        self.sizes[f"v{place}"] = value if isinstance(value, int) else 0
        return value

    def value(self, op: Op, operands: tuple[Any, ...]) -> Any:
        if op.name == "input":
            return self.given[op.attribute]
        if op.name == "const":
            return op.attribute.value
        if op.name in ("cast", "bounds_check"):
            return operands[0]
        if op.name == "index":
            return evaluate(op.attribute, self.sizes)
        if isinstance(op.attribute, Load):
            return self.memory[op.attribute.buffer][evaluate(op.attribute.index, self.sizes)]
        return FUNCTIONS[op.name](*operands)


def subgraph(f: Any, *args: Any) -> tuple[Any, Lowering]:
    """A function's graph as lowering takes it, and a lowering to stand around it."""
    program = run_cpu_pipeline(ingot.capture(f, args))
    return program.graph_module, Lowering(program)


def scalar(value: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(value, dtype=dtype)


def body_of(f: Any, args: list[Any], inputs: list[Any], **options: Any) -> Body:
    graph_module, around = subgraph(f, *args)
    return lower_body(graph_module, inputs, around=around, **options)


def test_inputs_by_position_and_shared_subexpressions() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        both = torch.exp(x - y)
        return both * 2, both + torch.exp(x - y)

    body = body_of(f, [scalar(1.0), scalar(2.0)], [Given("float32"), Given("float32")])
    numbers = Numbers([1.0, 0.5])
    assert replay(body, numbers) == pytest.approx([2 * math.exp(0.5), 2 * math.exp(0.5)])
    assert numbers.names.count("exp") == 1


def test_integers_and_symbolic_integers_are_numbers_of_the_body() -> None:
    def causal(score: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
        return torch.where(j <= i, score, -1.0)

    args = [scalar(0.5), scalar(3, torch.int64), scalar(2, torch.int64)]
    body = body_of(causal, args, [Given("float32"), Given("int64"), Given("int64")])
    assert replay(body, Numbers([0.5, 3, 2])) == [0.5]
    assert replay(body, Numbers([0.5, 1, 2])) == [-1.0]


def test_a_whole_tensor_that_is_closed_over_is_read_at_a_computed_place() -> None:
    def biased(score: torch.Tensor, head: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return score + torch.ops.aten.index.Tensor(table, [head])

    args = [scalar(0.5), scalar(1, torch.int64), torch.arange(4.0)]
    table = TensorValue((4,), "float32", Strided("table", 0, (1,)))
    body = body_of(biased, args, [Given("float32"), Given("int64"), table])
    assert replay(body, Numbers([0.5, 2], {"table": [1.0, 2.0, 3.0, 4.0]})) == [3.5]
    assert [op.attribute for op in body.ops if op.name == "bounds_check"] == [4]


def test_rules_of_the_caller_win() -> None:
    own: Registry[Any, Any] = Registry("rule")

    @own.register(aten.tanh.default)
    def _shift(low: Lowering, x: TensorValue) -> TensorValue:
        return low.full((), 7.0, "float32")

    body = body_of(lambda x: torch.tanh(x) * 2, [scalar(1.0)], [Given("float32")], extra=own)
    assert replay(body, Numbers([1.0])) == [14.0]


def test_an_operator_without_a_rule_is_named_itself_with_the_users_line() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = torch.exp(x)
        return torch.linalg.eigvals(y.reshape(1, 1)).real.sum()

    with pytest.raises(UnsupportedOperator, match="linalg_eig") as caught:
        body_of(f, [scalar(1.0)], [Given("float32")])
    assert f"test_subgraph_lowering.py:{inspect.getsourcelines(f)[1] + 2}" in str(caught.value)
    assert "not supported in a body" in str(caught.value)


def summed(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    return x + table.sum()


def test_memory_of_its_own_is_refused_by_the_operator_that_needs_it() -> None:
    table = TensorValue((4,), "float32", Strided("table", 0, (1,)))
    with pytest.raises(UnsupportedOperator, match=r"aten\.sum") as caught:
        body_of(summed, [scalar(1.0), torch.ones(4)], [Given("float32"), table])
    assert "memory of its own" in str(caught.value)


def test_memory_is_the_surrounding_lowerings_where_the_caller_allows_it() -> None:
    table = TensorValue((4,), "float32", Strided("table", 0, (1,)))
    graph_module, around = subgraph(summed, scalar(1.0), torch.ones(4))
    target = next(node.target for node in graph_module.graph.nodes if "sum" in str(node.target))
    body = lower_body(graph_module, [Given("float32"), table], around=around, writers=[target])
    assert len(around.steps) == 1
    (made,) = around.steps[0].stores
    assert replay(body, Numbers([1.0], {made.buffer: [10.0]})) == [11.0]


def test_a_result_with_a_shape_is_refused() -> None:
    with pytest.raises(UnsupportedOperator, match="a body returns scalars"):
        body_of(lambda x: x.reshape(1) * 2, [scalar(1.0)], [Given("float32")])


def test_a_body_of_a_subgraph_goes_into_another_body() -> None:
    """As an epilogue does: inputs are replaced by values of the kernel."""
    body = body_of(lambda x, y: x * y + x, [scalar(1.0), scalar(2.0)], [Given("float32"), Given("float32")])
    ops = BodyBuilder()
    x = ops.load("a", symbol("i0"), "float32")
    values = [x, ops.const(3.0, "float32")]
    made, results = rewrite(
        body, into=ops, replace=lambda op, o, r: values[op.attribute] if op.name == "input" else None
    )
    assert replay(made.finish(results), Numbers([], {"a": [5.0, 6.0]}, i0=1)) == [24.0]
