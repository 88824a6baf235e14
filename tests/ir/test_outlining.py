"""outline, split and inline on their own: names, order, values, nested sub-GraphModules."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import fx

import ingot
from ingot.ir import metadata
from ingot.ir.outlining import graph_modules, inline, outline, split


def example() -> ingot.Program:
    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a = x + y
        b = a.sin()
        c = b * a
        return c.cos(), b

    return ingot.capture(f, (torch.ones(3), torch.ones(3)))


def names(graph: fx.Graph) -> list[str]:
    return [node.name for node in graph.nodes]


def test_outlined_nodes_keep_names_values_and_order() -> None:
    program = example()
    module = program.graph_module
    nodes = [n for n in module.graph.nodes if n.name in ("sin", "mul")]
    call = outline(module, nodes, "part")
    assert names(module.graph) == ["x", "y", "add", call.name, "sin", "mul", "cos", "output"]
    inner = getattr(module, str(call.target))
    assert names(inner.graph) == ["add", "sin", "mul", "output"]
    assert [n.target for n in module.graph.nodes if n.name in ("sin", "mul")] == [operator.getitem] * 2
    for node in (*module.graph.nodes, *inner.graph.nodes):
        assert metadata.has_value(node), node
    x, y = torch.randn(3), torch.randn(3)
    assert torch.equal(module(x, y)[0], ((x + y).sin() * (x + y)).cos())


def test_inline_undoes_outline() -> None:
    program = example()
    module = program.graph_module
    before = str(module.graph)
    call = outline(module, [n for n in module.graph.nodes if n.name in ("add", "sin", "mul")], "part")
    inline(module, call, getattr(module, str(call.target)), call.args)
    assert str(module.graph) == before


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_split_by_any_label(parts: int) -> None:
    program = example()
    module = program.graph_module
    position = {n.name: i for i, n in enumerate(module.graph.nodes)}
    calls = split(module, lambda node: position[node.name] % parts)
    x, y = torch.randn(3), torch.randn(3)
    assert torch.equal(module(x, y)[1], (x + y).sin())
    assert len(calls) == (1 if parts == 1 else 4)
    assert all(len(list(m.graph.nodes)) > 1 for m in graph_modules(module))


def test_nodes_labelled_none_stay() -> None:
    module = example().graph_module
    assert split(module, lambda node: None) == []
    assert names(module.graph) == ["x", "y", "add", "sin", "mul", "cos", "output"]


def test_a_cut_through_control_flow_takes_its_branches_along() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))
        return y + 1

    program = ingot.capture(f, (torch.ones(3),))
    module = program.graph_module
    nodes = [n for n in module.graph.nodes if n.op not in ("placeholder", "output") and n.name != "add"]
    call = outline(module, nodes, "part")
    assert [name for name, _ in module.named_children()] == [str(call.target)]
    for x in (torch.ones(3), -torch.ones(3)):
        assert torch.equal(module(x)[0], (x.sin() if x.sum() > 0 else x.cos()) + 1)
    inline(module, call, getattr(module, str(call.target)), call.args)
    for x in (torch.ones(3), -torch.ones(3)):
        assert torch.equal(module(x)[0], (x.sin() if x.sum() > 0 else x.cos()) + 1)
