"""dce, cse, remove_noops, canonicalize: what they leave, that it verifies, that numbers stay, and that it is stable."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import fx, nn

import ingot
from ingot import passes
from ingot.ir import metadata, pytree
from ingot.ir.outlining import graph_modules
from ingot.passes.canonicalize import canonicalize
from ingot.passes.constant_fold import constant_fold
from ingot.passes.cse import cse
from ingot.passes.dce import dce
from ingot.passes.decompose import decompose
from ingot.passes.functionalize import functionalize
from ingot.passes.instrumentation.differential_check import compare_values
from ingot.passes.remove_noops import remove_noops, removes, shortens
from tests.support.zoo import entry

aten, hop = torch.ops.aten, torch.ops.higher_order
REGIONS = (passes.tracepoints, passes.autocast, passes.grad_mode)
ALL = (canonicalize, remove_noops, cse, dce)


class Model(nn.Module):
    """A forward function with a linear layer and a table at hand."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("table", torch.linspace(1, 2, 4))
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, x)


def captured(
    function: Callable[..., Any], pipeline: Sequence[Any] = (*REGIONS, functionalize)
) -> tuple[Any, ingot.Program]:
    torch.manual_seed(0)
    model = Model(function).eval()
    program = ingot.capture(copy.deepcopy(model), (torch.randn(3, 4),), dynamic_shapes={"x": {0: "n"}})
    return model, ingot.transform(program, pipeline)


def checked(model: nn.Module, program: ingot.Program, run: Sequence[Any]) -> ingot.Program:
    """The program after the passes: verified, the same bits as eager at several sizes, and stable."""
    after = ingot.transform(program, run, check="numerics")
    after.verify()
    for size in (3, 2, 6):
        x = torch.randn(size, 4)
        expected, got = (torch.utils._pytree.tree_leaves(copy.deepcopy(m)(x)) for m in (model, after.module()))
        assert len(expected) == len(got)
        assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(expected, got, strict=True))
    again = ingot.transform(after, run)
    assert [step.changes for step in again.history[-len(run) :]] == [0] * len(run)
    assert str(again) == str(after)
    return after


def calls(module: fx.GraphModule) -> list[str]:
    return [n.name for n in module.graph.nodes if n.op == "call_function"]


def count(program: ingot.Program, target: Any) -> int:
    return sum(n.target is target for m in graph_modules(program.graph_module) for n in m.graph.nodes)


# ---------------------------------------------------------------------- dce


def unused(self: Model, x: torch.Tensor) -> Any:
    x.exp().sin()
    return x * 2


def unused_in_regions(self: Model, x: torch.Tensor) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, z = self.fc(x), x * self.table
    return y.float(), z.sin()


def unused_in_branches(self: Model, x: torch.Tensor) -> Any:
    def yes(x: torch.Tensor, w: torch.Tensor) -> Any:
        return x * 2, (x @ w).exp(), x + 3

    def no(x: torch.Tensor, w: torch.Tensor) -> Any:
        return x + 1, (x @ w).sin(), x - 3

    first, _, third = torch.cond(x.sum() > 0, yes, no, (x, self.fc.weight))
    return third, first


def unused_in_loops(self: Model, x: torch.Tensor) -> Any:
    def body(i: torch.Tensor, y: torch.Tensor) -> Any:
        (y @ self.fc.weight).exp()
        return i + 1, y * self.table

    _, y = torch.while_loop(lambda i, y: i < 3, body, (torch.zeros((), dtype=torch.int64), x))
    return y


def test_dce_removes_what_nobody_uses() -> None:
    model, program = captured(unused)
    after = checked(model, program, [dce])
    assert calls(after.graph_module) == ["mul"]


def test_dce_drops_outputs_and_operands_of_regions() -> None:
    model, program = captured(unused_in_regions)
    sin = next(n for n in program.graph.nodes if n.target is aten.sin.default)
    with program.graph.inserting_before(sin):
        other = program.graph.call_function(aten.sin.default, (find(program, "x"),), name="other")
    other.meta = dict(sin.meta)
    sin.replace_all_uses_with(other)  # now nobody needs the region's second result
    program.signature = program.signature.rename_nodes({sin.name: other.name})
    model.function = lambda self, x: (unused_in_regions(self, x)[0], x.sin())
    after = checked(model, program, [dce])
    (region,) = [n for n in after.graph.nodes if n.target is hop.wrap_with_autocast]
    assert len(metadata.value_of(region)) == 1
    assert calls(after.graph_module.autocast_region) == ["linear"]
    assert [str(a) for a in region.args[5:]] == ["x", "p_fc_weight", "p_fc_bias"]


def find(program: ingot.Program, name: str) -> fx.Node:
    return next(n for n in program.graph.nodes if n.name == name)


def test_dce_drops_outputs_and_operands_of_branches() -> None:
    model, program = captured(unused_in_branches)
    after = checked(model, program, [dce])
    (cond,) = [n for n in after.graph.nodes if n.target is hop.cond]
    assert len(cond.args[3]) == 1  # type: ignore[arg-type]
    assert sorted(n.args[1] for n in cond.users) == [0, 1]  # type: ignore[type-var]
    assert calls(after.graph_module.true_graph) == ["mul", "add"]


def test_dce_goes_into_loops() -> None:
    model, program = captured(unused_in_loops)
    before = count(program, aten.exp.default)
    after = checked(model, program, [dce])
    assert (before, count(after, aten.exp.default), count(after, aten.matmul.default)) == (0, 0, 0)
    (loop,) = [n for n in after.graph.nodes if n.target is hop.while_loop]
    assert [str(a) for a in loop.args[3]] == ["b_table"]  # type: ignore[union-attr]


def test_dce_removes_unused_graphs_and_keeps_what_acts() -> None:
    def acting(self: Model, x: torch.Tensor) -> Any:
        torch.nn.functional.dropout(x, 0.5, True)
        self.table.add_(1)
        return x * 2

    _, program = captured(acting, REGIONS)
    program.graph_module.add_module("stray", fx.GraphModule(nn.Module(), _empty_graph()))
    after = ingot.transform(program, [dce])
    assert not hasattr(after.graph_module, "stray")
    assert {"dropout", "add_"} <= set(calls(after.graph_module))


def _empty_graph() -> fx.Graph:
    graph = fx.Graph()
    graph.output(())
    return graph


def test_dce_keeps_statistics_that_batch_norm_updates() -> None:
    program = ingot.capture(nn.Sequential(nn.BatchNorm1d(4), nn.Flatten()).train(), (torch.randn(3, 4),))
    node = next(n for n in program.graph.nodes if n.target is aten.batch_norm.default)
    node.replace_all_uses_with(node.args[0])  # type: ignore[arg-type]
    signature = program.signature.rename_nodes({node.name: "x"})
    program.signature = signature
    assert dce(program) == 0 or node in set(program.graph.nodes)


# ---------------------------------------------------------------------- cse


def twice(self: Model, x: torch.Tensor) -> Any:
    def body(i: torch.Tensor, y: torch.Tensor) -> Any:
        return i + 1, (y * 2).sin() + (y * 2).sin() * (y * 2.0)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = self.fc(x).relu() + self.fc(x).relu()
    z = torch.cond(x.sum() > 0, lambda x: x.exp() + x.exp(), lambda x: x.sin(), (x,))
    _, w = torch.while_loop(lambda i, y: i < 2, body, (torch.zeros((), dtype=torch.int64), x))
    return y, z, w


def test_cse_in_every_graph() -> None:
    model, program = captured(twice)
    after = checked(model, program, [cse])
    found = [count(after, op) for op in (aten.linear.default, aten.relu.default, aten.exp.default)]
    assert found == [1, 1, 1]
    assert calls(after.graph_module.body_graph) == ["add", "mul", "sin", "mul_2", "mul_3", "add_1"]


def test_cse_tells_literals_apart() -> None:
    def literals(self: Model, x: torch.Tensor) -> Any:
        nan = float("nan")
        return [(x * 1).sin() + (x * 1.0).sin(), (x + nan) * (x + nan), (x / 0.0) * (x / -0.0)]

    _, program = captured(literals)
    after = ingot.transform(program, [cse])
    assert count(after, aten.sin.default) == 2
    assert count(after, aten.div.Tensor) == 2
    nans = [n for n in after.graph.nodes if n.target is aten.add.Tensor and n.args[1] != n.args[1]]
    assert len(nans) == 1


def test_cse_keeps_results_apart_and_draws_random() -> None:
    def results(self: Model, x: torch.Tensor) -> Any:
        a, b = torch.rand_like(x), torch.rand_like(x)
        return x + 1, x + 1, (x * 2).view(-1), (x * 2).view(-1), a - b

    _, program = captured(results)
    after = ingot.transform(program, [cse], check="numerics")
    assert (count(after, aten.rand_like.default), count(after, aten.add.Tensor)) == (2, 2)
    x = torch.randn(3, 4)
    out = after(x)
    out[0].zero_()
    out[2].zero_()
    assert torch.equal(out[1], x + 1)
    assert torch.equal(out[3], (x * 2).view(-1))


def test_cse_lets_the_signature_follow() -> None:
    def result(self: Model, x: torch.Tensor) -> Any:
        return {"y": x.exp().sin(), "z": x.exp().sin().relu()}

    model, program = captured(result)
    assert len(program.graph.nodes) - len(checked(model, program, [cse]).graph.nodes) == 2


# ---------------------------------------------------------------------- remove_noops


def reshapes(self: Model, x: torch.Tensor) -> Any:
    y = x.reshape(-1, 2, 2).reshape(x.shape[0], 4).relu()
    z = y.view(-1).unsqueeze(0).squeeze(0).view(x.shape[0], 2, 2)
    return z.sin(), y.unsqueeze(1).squeeze(1).cos()


def permutes(self: Model, x: torch.Tensor) -> Any:
    y = x.exp().unflatten(1, (2, 2))
    return y.transpose(1, 2).transpose(1, 2).sin(), y.permute(2, 0, 1).permute(1, 0, 2).cos()


def permuted_scalars(self: Model, x: torch.Tensor) -> Any:
    total = x.sum()
    return total.transpose(0, -1).sin(), total.t().cos(), total.permute(()).exp()


def expands(self: Model, x: torch.Tensor) -> Any:
    y = x.exp()[:, None].expand(x.shape[0], 3, 4).expand(x.shape[0], 3, 4)
    z = x.exp()[:, None].expand(-1, 2, 4)[None].expand(5, x.shape[0], 2, 4)
    return y.sin() + x.exp().expand(x.shape[0], 4)[:, None].sin(), z.cos()


def casts(self: Model, x: torch.Tensor) -> Any:
    half = x.bfloat16()
    y = half.float().to(torch.bfloat16) + half
    kept = x.bfloat16().float()
    return y, kept.sin(), x.to(torch.float32).type_as(x).sin(), x[:, 0:9].cos()


def neutral(self: Model, x: torch.Tensor) -> Any:
    y = torch.dropout(x * 1, 0.5, False).sin() - 0
    z = (x + 0.0).cos() / 1.0
    return y.relu(), z.relu(), (x.sign().int() * 1.0).sin()


def copies(self: Model, x: torch.Tensor) -> Any:
    return x.clone().contiguous().sin(), x.clone(), x.clone().view(-1), (x * 2).clone(), x.detach().cos()


def noops_in_graphs(self: Model, x: torch.Tensor) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = self.fc(torch.dropout(x, 0.1, False).view(-1, 4).view(-1, 2, 2).view(-1, 4)).float().bfloat16()
        y = y.relu()

    def body(i: torch.Tensor, y: torch.Tensor) -> Any:
        return i + 1, (y * 1).sin().clone()

    _, z = torch.while_loop(lambda i, y: i < 2, body, (torch.zeros((), dtype=torch.int64), x))
    return y, torch.cond(x.sum() > 0, lambda x: x.clone().sin(), lambda x: x.clone(), (z,))


NOOPS: dict[Callable[..., Any], dict[Any, int]] = {
    reshapes: {aten.reshape.default: 0, aten.view.default: 1, aten.unsqueeze.default: 0, aten.squeeze.dim: 0},
    permutes: {aten.transpose.int: 0, aten.permute.default: 1},
    permuted_scalars: {aten.transpose.int: 0, aten.permute.default: 0, aten.t.default: 0},
    expands: {aten.expand.default: 3},
    casts: {aten.to.dtype: 3, aten.type_as.default: 0, aten.slice.Tensor: 0},
    neutral: {aten.mul.Tensor: 1, aten.dropout.default: 0, aten.sub.Tensor: 0, aten.add.Tensor: 1, aten.div.Tensor: 0},
    copies: {aten.clone.default: 2, aten.contiguous.default: 0, aten.detach.default: 1},
    noops_in_graphs: {aten.dropout.default: 0, aten.view.default: 0, aten.to.dtype: 0, aten.clone.default: 1},
}


@pytest.mark.parametrize("function", NOOPS, ids=lambda f: f.__name__)
def test_noops(function: Callable[..., Any]) -> None:
    model, program = captured(function)
    after = checked(model, program, [remove_noops, dce])
    assert {target: count(after, target) for target in NOOPS[function]} == NOOPS[function], str(after)


@pytest.mark.parametrize("function", [*NOOPS, twice, unused_in_regions, unused_in_branches], ids=lambda f: f.__name__)
def test_all_of_them_on_core(function: Callable[..., Any]) -> None:
    _, program = captured(function, (*REGIONS, functionalize, decompose))
    after = ingot.transform(program, ALL, check="numerics")
    after.verify()
    assert [s.changes for s in ingot.transform(after, ALL).history[-len(ALL) :]] == [0, 0, 0, 0]
    assert count(after, aten.detach.default) == 0


def test_a_result_that_is_written_over_later_stays_a_copy() -> None:
    def swap(self: Model, x: torch.Tensor) -> Any:
        y = self.table.clone()
        self.table.copy_(x[0])
        x[0].copy_(y)
        return y.view(2, 2)

    model, program = captured(swap)
    after = ingot.transform(program, ALL, check="numerics")
    x = torch.randn(3, 4)
    other = x.clone()
    assert torch.equal(model(x), after(other))
    assert torch.equal(x, other)
    assert torch.equal(model.table, after.state_dict["table"])


def test_a_second_rule_for_an_operator_is_refused() -> None:
    with pytest.raises(ValueError, match="has a second"):
        removes(aten.clone.default)(lambda node: None)
    with pytest.raises(ValueError, match="has a second"):
        shortens(aten.view.default)(lambda node: False)


# ---------------------------------------------------------------------- canonicalize


def test_canonicalize_spells_one_way() -> None:
    def spelled(self: Model, x: torch.Tensor) -> Any:
        y = torch.softmax(x, dim=-1).transpose(-1, -2).unsqueeze(-1)
        z = torch.cat([x, x], dim=-1).sum((-1, -2), keepdim=False)
        return y * 2, z, torch.cond(z > 0, lambda x: x.select(-1, 0) * 3, lambda x: x.select(1, 0) * 2, (x,))

    model, program = captured(spelled)
    node = next(n for n in program.graph.nodes if n.target is aten.mul.Tensor)
    node.args = (node.args[1], node.args[0])
    node = next(n for n in program.graph.nodes if n.target is aten.sum.dim_IntList)
    node.args, node.kwargs = node.args[:1], {"keepdim": False, "dim": [-1, -2]}
    after = checked(model, program, [canonicalize])
    found = {n.name: n for n in after.graph.nodes}
    assert found["softmax"].args[1] == 1
    assert found["transpose"].args[1:] == (1, 0)
    assert found["unsqueeze"].args[1] == 2
    assert found["cat"].args[1] == 1
    assert found["mul"].args == (found["unsqueeze"], 2)
    assert (found["sum_1"].args[1:], found["sum_1"].kwargs) == (([1, 0],), {})
    assert next(n for n in after.graph_module.true_graph.graph.nodes if n.name == "select").args[1:] == (1, 0)


def test_canonicalize_asks_for_sizes_once() -> None:
    def sizes(self: Model, x: torch.Tensor) -> Any:
        return x.exp().view(x.shape[0] * 2, 2), x.sin().view(2 * x.shape[0], 2)

    model, program = captured(sizes)
    first = next(n for n in program.graph.nodes if n.target is aten.sym_size.int)
    user = next(n for n in program.graph.nodes if n.name == "view_1")
    with program.graph.inserting_before(user):
        second = program.graph.node_copy(first, lambda n: n)
        doubled = program.graph.call_function(torch.ops.aten.sym_size.int, (first.args[0], -2))
    doubled.meta = dict(first.meta)
    assert second is not first
    after = checked(model, program, [canonicalize, dce])
    assert count(after, aten.sym_size.int) == 1
    assert calls(after.graph_module)[0] == "sym_size"


# ---------------------------------------------------------------------- models


@pytest.mark.parametrize(
    "name", ["bert", "gpt2", "t5", "vit", "resnet", "mobilenet-v2", "llama", "distilbert", "clip", "swin"]
)
def test_zoo(name: str) -> None:
    item = entry(name)
    inputs = item.inputs(item.sizes)
    program = ingot.capture(item.build(), (), inputs, dynamic_shapes=item.dynamic)
    before = ingot.transform(program, [*REGIONS, functionalize, decompose], check=None)
    after = ingot.transform(before, [*ALL, constant_fold, *ALL])
    assert len(after.graph.nodes) < len(before.graph.nodes)
    with torch.no_grad():
        expected, got = (pytree.flatten(p(**inputs))[0] for p in (program, after))
    problems = [compare_values(a, b, exact=False) for a, b in zip(expected, got, strict=True)]
    assert not any(problems), problems
    again = ingot.transform(after, [*ALL, constant_fold], check=None)
    assert [step.changes for step in again.history[-5:]] == [0] * 5
