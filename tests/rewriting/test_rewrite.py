"""Patterns found and replaced: literals, optional inputs, order of arguments, guards, regions, metadata, errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ingot
from ingot import passes
from ingot.errors import NumericsError, PatternError
from ingot.ir import metadata
from ingot.ir.outlining import graph_modules
from ingot.rewriting import Match, matches, trace
from ingot.rewriting import rewrite as rewriting

X = torch.Tensor
IMAGE, KERNEL, VECTOR, MATRIX = torch.randn(1, 3, 8, 8), torch.randn(4, 3, 3, 3), torch.randn(4), torch.randn(4, 4)


def targets(program: ingot.Program) -> list[str]:
    return [
        str(node.target).removeprefix("aten.")
        for module in graph_modules(program.graph_module)
        for node in module.graph.nodes
        if node.op == "call_function"
    ]


def check(
    model: Any,
    args: tuple[Any, ...],
    before: Callable[..., Any],
    after: Callable[..., Any],
    examples: tuple[Any, ...],
    count: int,
    where: Any = None,
    pipeline: tuple[Any, ...] = (),
    **how: Any,
) -> ingot.Program:
    """So many matches, numbers as they were, the caller's program as it was, and a file that has it all."""
    program = ingot.transform(ingot.capture(model, args, **how), list(pipeline))
    text = str(program)
    made, found = ingot.rewrite(program, before, after, examples, where, check="numerics")
    assert found == count and str(program) == text
    torch.testing.assert_close(made(*args), program(*args))
    return made


class Net(nn.Module):
    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, stride=2, padding=1, bias=bias)
        self.norm = nn.BatchNorm2d(4, eps=1e-3, momentum=0.03)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: X) -> X:
        return self.drop(F.relu(self.norm(self.conv(x))))


# ---------------------------------------------------------------------- literals


def test_literals_are_the_matches_own() -> None:
    def before(x: X, w: X, b: X) -> X:
        return F.relu(F.conv2d(x, w, b))

    def after(x: X, w: X, b: X) -> X:
        return F.conv2d(x, w, b).clamp(min=0)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(4, 6, 3, stride=2, padding=(1, 0), dilation=2, groups=2)

        def forward(self, x: X) -> X:
            return F.relu(self.conv(x))

    made = check(Model(), (torch.randn(2, 4, 17, 19),), before, after, (IMAGE, KERNEL, VECTOR), 1)
    assert "relu.default" not in targets(made)
    (conv,) = (node for node in made.graph.nodes if str(node.target) == "aten.conv2d.default")
    assert list(conv.args[3:]) == [[2, 2], [1, 0], [2, 2], 2]


@pytest.mark.parametrize("training", [False, True])
def test_eps_and_momentum_survive(training: bool) -> None:
    def before(x: X, w: X, b: X, mean: X, var: X) -> X:
        return F.relu(F.batch_norm(x, mean, var, w, b, training=training))

    def after(x: X, w: X, b: X, mean: X, var: X) -> X:
        return F.batch_norm(x, mean, var, w, b, training=training).relu() * 1

    program = ingot.capture(Net().train(training), (torch.randn(2, 3, 9, 9),))
    made, count = ingot.rewrite(program, before, after, (torch.randn(1, 4, 2, 2), VECTOR, VECTOR, VECTOR, VECTOR))
    (norm,) = (node for node in made.graph.nodes if str(node.target) == "aten.batch_norm.default")
    assert count == 1 and norm.args[5:8] == (training, 0.03, 1e-3)


def test_a_replacement_that_names_another_literal_has_it() -> None:
    def before(x: X) -> X:
        return F.softmax(x, -1)

    def after(x: X) -> X:
        return F.softmax(x, 1)

    program = ingot.capture(lambda x: F.softmax(x, 0), (torch.randn(3, 4),))
    made, count = ingot.rewrite(program, before, after, (MATRIX,))
    assert count == 1 and "softmax.int(x, 1)" in str(made).replace("aten.", "")


def test_a_number_among_the_inputs_is_a_variable_to_compute_with() -> None:
    def before(x: X, w: X, b: X, eps: float) -> X:
        return F.layer_norm(x, (4,), w, b, eps)

    def after(x: X, w: X, b: X, eps: float) -> X:
        centered = x - x.mean(-1, keepdim=True)
        return centered * torch.rsqrt(centered.square().mean(-1, keepdim=True) + eps) * w + b

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.LayerNorm(4, eps=1e-2), nn.LayerNorm(4, eps=0.3)

        def forward(self, x: X) -> X:
            return self.b(self.a(x))

    made = check(Model(), (torch.randn(5, 4),), before, after, (MATRIX, VECTOR, VECTOR, 0.123), 2)
    assert "0.3" in str(made) and "0.123" not in str(made)


def test_a_guard_sees_literals_and_nodes() -> None:
    def before(x: X) -> X:
        return F.leaky_relu(x, 0.2)

    def model(x: X) -> X:
        return F.leaky_relu(F.leaky_relu(x, 0.5), 0.2)

    def only(match: Match) -> bool:
        assert match.value("x").shape == (4, 4) and match.results[0].op == "call_function"
        return bool(match.literals["leaky_relu.negative_slope"] == 0.5)

    check(model, (MATRIX,), before, lambda x: torch.where(x > 0, x, x * 0.5), (MATRIX,), 1, only)
    check(model, (MATRIX,), before, lambda x: torch.where(x > 0, x, x * 0.2), (MATRIX,), 1, lambda m: m.as_written)


# ---------------------------------------------------------------------- inputs


@pytest.mark.parametrize("bias", [True, False])
def test_an_optional_input_needs_no_second_pattern(bias: bool) -> None:
    def before(x: X, w: X, b: X | None = None) -> X:
        return F.relu(F.linear(x, w, b))

    def after(x: X, w: X, b: X | None = None) -> X:
        made = x @ w.T
        return F.relu(made if b is None else made + b)

    model = nn.Sequential(nn.Linear(4, 6, bias=bias), nn.ReLU())
    made = check(model, (MATRIX,), before, after, (MATRIX, MATRIX, VECTOR), 1)
    assert "linear.default" not in targets(made) and ("add.Tensor" in targets(made)) == bias


def test_without_a_default_it_must_be_there() -> None:
    model = nn.Sequential(nn.Linear(4, 6, bias=False), nn.ReLU())
    same = lambda x, w, b: F.relu(F.linear(x, w, b))  # noqa: E731
    check(model, (MATRIX,), same, same, (MATRIX, MATRIX, VECTOR), 0)


def test_one_input_is_one_value() -> None:
    def before(x: X, y: X) -> X:
        return torch.sigmoid(x) * x + y

    def model(x: X, y: X) -> tuple[X, X]:
        return torch.sigmoid(x) * x + y, torch.sigmoid(x) * y + y

    made = check(model, (MATRIX, MATRIX + 1), before, lambda x, y: F.silu(x) + y, (MATRIX, MATRIX), 1)
    assert targets(made).count("sigmoid.default") == 1


def test_ranks_and_types_matter_and_sizes_do_not() -> None:
    def model(a: X, b: X, c: X) -> tuple[X, X, X]:
        return a.relu(), b.relu(), c.relu()

    args = (torch.randn(7, 9), torch.randn(2, 3, 4), torch.randn(3, 3).double())
    check(model, args, torch.relu, lambda x: x.clamp(min=0), (MATRIX,), 1)


@pytest.mark.parametrize("model", [lambda a, b: (a + b).relu() * a, lambda a, b: a * (b + a).relu()])
def test_the_order_of_arguments_does_not_matter_where_it_does_not(model: Any) -> None:
    def before(x: X, y: X) -> X:
        return x * torch.relu(y + x)

    check(model, (MATRIX, MATRIX + 1), before, lambda x, y: F.threshold(x + y, 0, 0) * x, (MATRIX, MATRIX), 1)
    check(lambda a, b: a - b, (MATRIX, MATRIX), lambda x, y: y - x, lambda x, y: y + -x, (MATRIX, MATRIX), 1)


def test_a_sum_with_a_factor_does_not_commute() -> None:
    def before(x: X, y: X) -> X:
        return torch.add(torch.relu(x), y, alpha=3)

    check(lambda a, b: torch.add(b, a.relu(), alpha=3), (MATRIX, MATRIX), before, before, (MATRIX, MATRIX), 0)


# ---------------------------------------------------------------------- structure


def test_matches_share_no_node() -> None:
    def model(x: X) -> X:
        for _ in range(5):
            x = torch.sin(x)
        return x

    made = check(model, (MATRIX,), lambda x: x.sin().sin(), lambda x: torch.sin(torch.sin(x) + 0), (MATRIX,), 2)
    assert targets(made).count("add.Tensor") == 2


def test_what_others_use_stays() -> None:
    def model(x: X) -> tuple[X, X]:
        y = x.exp()
        return y.log(), y

    check(model, (MATRIX,), lambda x: x.exp().log(), lambda x: x * 1, (MATRIX,), 0)


def test_several_results() -> None:
    def before(x: X) -> tuple[X, X]:
        values, places = torch.topk(x, 2)
        return values, places

    def after(x: X) -> tuple[X, X]:
        values, places = torch.sort(x, descending=True)
        return values[..., :2], places[..., :2]

    def model(x: X) -> X:
        values, places = torch.topk(x * 2, 2)
        return values + places

    made = check(model, (MATRIX,), before, after, (MATRIX,), 1)
    assert "topk.default" not in targets(made)


def test_two_results_that_share_an_input() -> None:
    def before(x: X, a: X, b: X) -> tuple[X, X]:
        return F.linear(x, a), F.linear(x, b)

    def after(x: X, a: X, b: X) -> tuple[X, X]:
        both = F.linear(x, torch.cat([a, b]))
        return both[..., : a.shape[0]], both[..., a.shape[0] :]

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k = nn.Linear(4, 6, bias=False), nn.Linear(4, 5, bias=False)

        def forward(self, x: X) -> X:
            q = self.q(x).relu()
            return q.sum(-1) + self.k(x).sum(-1)

    made = check(
        Model(), (MATRIX,), before, after, (MATRIX, MATRIX, MATRIX), 1, lambda m: m.inputs["a"] is not m.inputs["b"]
    )
    assert targets(made).count("linear.default") == 1


def test_into_branches_and_regions() -> None:
    def model(x: X) -> X:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = torch.sigmoid(x) * x
        return torch.cond(x.sum() > 0, lambda y: torch.sigmoid(y) * y, lambda y: y * 2, (x,))

    for pipeline in ((), (passes.autocast,), (passes.functionalize,)):
        made = check(model, (MATRIX,), lambda x: torch.sigmoid(x) * x, F.silu, (MATRIX,), 2, pipeline=pipeline)
        assert "sigmoid.default" not in targets(made) and targets(made).count("silu.default") == 2


@pytest.mark.parametrize("pipeline", [(), (passes.functionalize,), (passes.functionalize, passes.decompose)])
def test_in_every_dialect(pipeline: tuple[Any, ...]) -> None:
    def before(x: X, w: X, b: X) -> X:
        return F.gelu(F.linear(x, w, b))

    def after(x: X, w: X, b: X) -> X:
        y = F.linear(x, w, b)
        y += 0
        return F.gelu(y)

    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4), nn.GELU())
    check(model, (MATRIX,), before, after, (MATRIX, MATRIX, VECTOR), 2, pipeline=pipeline)


def test_a_write_in_between_is_respected() -> None:
    def model(x: X) -> X:
        y = x * 1
        a = torch.sigmoid(y)
        y.add_(1)
        return a * y

    check(model, (MATRIX,), lambda x: torch.sigmoid(x) * x, F.silu, (MATRIX,), 0)


def test_dynamic_sizes_stay_dynamic() -> None:
    def after(x: X) -> X:
        return x.reshape(x.shape[0] * x.shape[1]).relu().reshape(x.shape[0], x.shape[1])

    made = check(nn.ReLU(), (MATRIX,), torch.relu, after, (MATRIX,), 1, dynamic_shapes={"input": {0: "batch"}})
    assert made(torch.randn(9, 4)).shape == (9, 4)


def test_origin_and_history() -> None:
    program = ingot.capture(Net().eval(), (torch.randn(2, 3, 9, 9),), preserve_module_call_signature=("conv",))
    made, count = ingot.rewrite(
        program, lambda x: F.relu(x), lambda x: x.clamp(min=0), (torch.randn(1, 1, 1, 1),), check="numerics"
    )
    (clamp,) = (node for node in made.graph.nodes if "clamp" in str(node.target))
    source = metadata.source_of(clamp)
    assert source is not None and source.text == "return self.drop(F.relu(self.norm(self.conv(x))))"
    assert count == 1 and made.history[-1].name == "rewrite" and made.history[-1].changes == 1
    assert made.unflatten()(torch.ones(2, 3, 9, 9)).shape == (2, 4, 5, 5)


def test_a_value_that_a_preserved_call_names_stays() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    program = ingot.capture(model, (MATRIX,), preserve_module_call_signature=("0",))
    assert ingot.rewrite(program, lambda x, w, b: F.relu(F.linear(x, w, b)), lambda x, w, b: F.relu(F.linear(x, w, b)),
                         (MATRIX, MATRIX, VECTOR))[1] == 0  # fmt: skip


# ---------------------------------------------------------------------- tracing


def test_a_pattern_is_traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def before(x: X) -> X:
        seen.append(1)
        return torch.relu(x)

    program = ingot.capture(nn.Sequential(nn.ReLU(), nn.Linear(4, 4), nn.ReLU()), (MATRIX,))
    for _ in range(3):
        assert ingot.rewrite(program, before, lambda x: x.clamp(min=0), (MATRIX,))[1] == 2
    once = len(seen)
    ingot.rewrite(program, before, lambda x: x.clamp(min=0), (MATRIX.double(),))
    assert len(seen) == 2 * once


def test_trace_leaves_out_what_nobody_uses() -> None:
    def before(x: X, y: X) -> X:
        torch.sin(x)
        y.copy_(x)
        return x + 1

    pattern = trace(before, (MATRIX, MATRIX))
    assert [str(node.target) for node in pattern.calls] == ["aten.add.Tensor"] and "add" in str(pattern)
    program = ingot.capture(lambda a: a + 5, (MATRIX,))
    assert len(matches(trace(lambda x: x + 1, (MATRIX,)), program.graph_module)) == 1


# ---------------------------------------------------------------------- errors


def refused(before: Any, after: Any, examples: Any, text: str, model: Any = torch.relu) -> None:
    program = ingot.capture(model, (MATRIX,))
    shown = str(program)
    with pytest.raises(PatternError, match=text):
        ingot.rewrite(program, before, after, examples)
    assert str(program) == shown


def test_invalid_pattern() -> None:
    own = torch.randn(4, 4)
    relu = torch.relu
    refused(lambda x: x + own, relu, (MATRIX,), "owns the tensor")
    refused(lambda x: x, relu, (MATRIX,), "returns what it was given")
    refused(lambda *xs: xs[0].relu(), relu, (MATRIX,), r"takes \*args")
    refused(lambda x, y: x.relu(), relu, (MATRIX,), "takes 2 inputs, but there are 1")
    refused(relu, relu, MATRIX, "a sequence")
    refused(lambda x: x[0].relu(), relu, ([MATRIX],), "is a list")
    refused(lambda x, a, b: x * a + b, relu, (MATRIX, 2.0, 2.0), "are the same")
    refused(lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)), relu, (MATRIX,), "branches")


def test_invalid_replacement() -> None:
    relu = torch.relu
    own = torch.randn(4, 4)
    refused(relu, lambda x: (x, x), (MATRIX,), "returns 2 results")
    refused(relu, lambda x: x.relu().double(), (MATRIX,), "returns f64")
    refused(relu, lambda x: x.relu().sum(), (MATRIX,), "where the pattern returns")
    refused(relu, lambda x: 3, (MATRIX,), "not a tensor")
    refused(relu, lambda x: x @ torch.ones(3), (MATRIX,), "fails|tensor of its own")
    program = ingot.capture(relu, (MATRIX,))
    with pytest.raises(ingot.IngotError, match="tensor of its own"):
        ingot.rewrite(program, relu, lambda x: x + own, (MATRIX,))


def test_numbers_are_checked_on_request() -> None:
    program = ingot.capture(torch.relu, (MATRIX,))
    with pytest.raises(NumericsError, match="rewrite"):
        ingot.rewrite(program, torch.relu, lambda x: x + 1, (MATRIX,), check="numerics")
    assert ingot.rewrite(program, torch.relu, lambda x: x + 1, (MATRIX,))[1] == 1
    made = ingot.transform(program, [rewriting.Rewriting(torch.relu, lambda x: x.clamp(min=0), (MATRIX,))], "numerics")
    assert made.history[-1].changes == 1
