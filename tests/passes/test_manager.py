"""transform(): copies, checks, records; and check="numerics" names the node that a wrong pass changed."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx, nn

import ingot
from ingot import passes
from ingot.errors import NumericsError, PassError, VerifyError
from ingot.ir import metadata
from ingot.ir.dialects import CAPTURED, CORE
from ingot.passes.instrumentation import differential_check
from ingot.passes.manager import register

aten = torch.ops.aten


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 6)
        self.norm = nn.LayerNorm(6, eps=1e-3)
        self.register_buffer("scale", torch.linspace(1, 2, 6))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.norm(self.fc(x))
        z = torch.sub(y * self.scale, y.relu())
        self.count.add_(1)
        w = z.transpose(0, 1)
        z.mul_(2)
        parts = torch.cat([w, w.exp()])
        return parts.softmax(0), z.clamp(-1.0, 1.0) + self.count


@pytest.fixture
def program() -> ingot.Program:
    torch.manual_seed(0)
    return ingot.capture(Net().eval(), (torch.randn(3, 4),), dynamic_shapes={"x": {0: "n"}})


def find(program: ingot.Program, target: Any) -> fx.Node:
    return next(n for n in program.graph.nodes if n.target is target)


def set_argument(target: Any, index: int, value: Any) -> Callable[[ingot.Program], int]:
    def wrong(program: ingot.Program) -> int:
        node = find(program, target)
        node.args = (*node.args[:index], value, *node.args[index + 1 :])
        return 1

    return wrong


def swap_arguments(program: ingot.Program) -> int:
    node = find(program, aten.sub.Tensor)
    node.args = (node.args[1], node.args[0])
    return 1


def drop_an_alias(program: ingot.Program) -> int:
    """The transposed view must see the later write; a copy does not."""
    node = find(program, aten.transpose.int)
    with program.graph.inserting_after(node):
        copied = program.graph.create_node("call_function", aten.clone.default, (node,), name="copied")
    copied.meta = dict(node.meta)
    node.replace_all_uses_with(copied, delete_user_cb=lambda user: user is not copied)
    return 1


def drop_a_write(program: ingot.Program) -> int:
    node = find(program, aten.mul_.Tensor)
    node.replace_all_uses_with(node.args[0])
    program.graph.erase_node(node)
    return 1


def another_operator(program: ingot.Program) -> int:
    find(program, aten.exp.default).target = aten.expm1.default
    return 1


def skip_a_node(program: ingot.Program) -> int:
    node = find(program, aten.relu.default)
    node.replace_all_uses_with(node.args[0])
    program.graph.erase_node(node)
    return 1


def reorder_a_list(program: ingot.Program) -> int:
    node = find(program, aten.cat.default)
    node.args = (list(reversed(node.args[0])),)  # type: ignore[call-overload]
    return 1


MUTANTS: list[tuple[Callable[[ingot.Program], int], str]] = [
    (set_argument(aten.layer_norm.default, 4, 1e-5), "layer_norm"),
    (set_argument(aten.softmax.int, 1, 1), "softmax"),
    (set_argument(aten.clamp.default, 1, -0.5), "clamp"),
    (set_argument(aten.mul_.Tensor, 1, 2.0001), "mul_"),
    (set_argument(aten.add_.Tensor, 1, 2), "add_"),
    (swap_arguments, "sub"),
    (drop_an_alias, "copied"),
    (drop_a_write, "mul_"),
    (another_operator, "exp"),
    (skip_a_node, "sub"),
    (reorder_a_list, "cat"),
]


@pytest.mark.parametrize(("wrong", "blamed"), MUTANTS, ids=[f"{i} {m[1]}" for i, m in enumerate(MUTANTS)])
def test_a_wrong_pass_is_caught_and_the_node_is_named(
    program: ingot.Program, wrong: Callable[[ingot.Program], int], blamed: str
) -> None:
    with pytest.raises(NumericsError) as caught:
        ingot.transform(program, [wrong], check="numerics")
    message = str(caught.value)
    assert f"node {blamed}" in message, message
    assert "test_manager.py:" in message, "the user's line"
    assert wrong.__name__ in message, "the pass"


def test_a_right_pass_is_not_blamed(program: ingot.Program) -> None:
    def reassociate(program: ingot.Program) -> int:
        node = find(program, aten.relu.default)
        node.target, node.args = aten.clamp_min.default, (node.args[0], 0)
        return 1

    ingot.transform(program, [reassociate], check="numerics")


class Rows(nn.Module):
    """Takes the number of a row from the first column of what else are plain numbers; `most` rows at a time."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.table, self.most = nn.Embedding(5, 3), most

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        table = self.table(x[:, 0].long()) * x[:, 1:]
        return table + torch.nn.functional.embedding(x.new_zeros(1).long() + x.shape[0] - 1, torch.ones(self.most, 1))


@pytest.mark.parametrize(("most", "sizes"), [(100, [4, 1, 8]), (4, [4, 1])])
def test_made_up_inputs_are_such_as_the_program_takes(most: int, sizes: list[int]) -> None:
    """A number that is an index must not be drawn: the example's own serves. A size that is refused is left out."""
    x = torch.cat([torch.tensor([[2.0], [4.0], [1.0], [3.0]]), torch.randn(4, 3)], 1)
    program = ingot.capture(Rows(most), (x,), dynamic_shapes={"x": {0: "n"}})
    inputs = [leaves[0] for leaves in differential_check.Reference(program).inputs]
    assert [len(given) for given in inputs] == sizes
    assert all(torch.equal(given, x[torch.arange(len(given)) % 4]) for given in inputs)


def test_an_example_that_the_program_refuses_is_an_error() -> None:
    program = ingot.capture(Rows(3), (torch.full((4, 4), 1.0),))
    with pytest.raises(IndexError):
        ingot.transform(program, [skip_a_node], check="numerics")


def test_a_pass_that_raises_leaves_the_caller_s_program(program: ingot.Program) -> None:
    text = str(program)

    def breaks(program: ingot.Program) -> int:
        skip_a_node(program)
        raise RuntimeError("half done")

    with pytest.raises(RuntimeError, match="half done"):
        ingot.transform(program, [breaks])
    assert str(program) == text
    program.verify()


def test_structure_is_checked(program: ingot.Program) -> None:
    def dangling(program: ingot.Program) -> int:
        program.signature = program.signature.rename_nodes({"softmax": "gone"})
        return 1

    with pytest.raises(VerifyError):
        ingot.transform(program, [dangling])
    ingot.transform(program, [dangling], check=None)


def test_structure_means_what_schemas_and_fake_kernels_take(program: ingot.Program) -> None:
    def change(target: Any, *args: Any) -> Callable[[ingot.Program], int]:
        def pass_(program: ingot.Program) -> int:
            find(program, target).args = args
            return 1

        return pass_

    x = find(program, aten.relu.default).args[0]
    schema = change(aten.relu.default, 1, 2, 3)
    with pytest.raises(VerifyError, match="it takes 1 positional argument, and is given 3"):
        ingot.transform(program, [schema])

    def wrong_rank(program: ingot.Program) -> int:
        node = find(program, aten.relu.default)
        node.target, node.args = aten.permute.default, (node.args[0], [0, 1, 2])
        return 1

    with pytest.raises(VerifyError, match="relu cannot be run on what its arguments claim to be"):
        ingot.transform(program, [wrong_rank])
    ingot.transform(program, [wrong_rank], check=None)
    assert x is find(program, aten.relu.default).args[0], "the caller's program is as it was"


def test_structure_runs_what_uses_a_changed_value(program: ingot.Program) -> None:
    """The node whose claim a pass changes is wrong, and so may be those that use it; others are not run again."""

    def widen(program: ingot.Program) -> int:
        node = find(program, aten.linear.default)
        metadata.set_value(node, metadata.value_of(node).double())
        return 1

    with pytest.raises(VerifyError, match="linear claims to be f64"):
        ingot.transform(program, [widen])


def test_history_records_each_pass(program: ingot.Program) -> None:
    def named(program: ingot.Program, *, limit: int = 1) -> int:
        return 0

    seen: list[str] = []
    out = ingot.transform(program, [named, (named, {"limit": 3})], snapshots=lambda name, p: seen.append(name))
    assert [step.name for step in out.history] == ["tracepoints", *seen] == ["tracepoints", "named", "named"]
    assert out.history[2].options == (("limit", 3),)
    assert out.history[1].nodes_before == out.history[1].nodes_after == len(program.graph.nodes)
    assert [step.name for step in program.history] == ["tracepoints"]


def test_options_and_results_are_checked(program: ingot.Program) -> None:
    with pytest.raises(PassError, match="no option 'depth'"):
        ingot.transform(program, [(passes.autocast, {"depth": 1})])
    with pytest.raises(PassError, match="number of its changes"):
        ingot.transform(program, [lambda program: None])


def test_a_pass_is_given_only_its_dialect(program: ingot.Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes.REGISTRY, "_rules", dict(passes.REGISTRY))
    program.dialect = CAPTURED

    @register(takes=CORE)
    def needs_core(program: ingot.Program) -> int:
        return 0

    with pytest.raises(PassError, match="takes a CORE program, but this one is CAPTURED"):
        ingot.transform(program, [needs_core])
    with pytest.raises(ValueError, match="needs_core has a second pass"):
        register(takes=CORE)(needs_core)


def test_plain_fx_passes_work(program: ingot.Program) -> None:
    def drop_getitems(program: ingot.Program) -> int:
        return sum(n.target is operator.getitem for n in program.graph.nodes)

    assert ingot.transform(program, [drop_getitems]).history[-1].changes == 0
