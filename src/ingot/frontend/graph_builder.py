"""One graph being built: its nodes, and which of them computed the live values."""

from __future__ import annotations

from typing import Any

import sympy
import torch
from torch import fx

from ingot import torch_internals as internals
from ingot.ir import metadata


class Frame:
    """One graph being written, with what it knows of the values alive in it."""

    def __init__(self, parent: Frame | None = None) -> None:
        self.graph = fx.Graph()
        self.root = torch.nn.Module()
        self.parent = parent
        self.nodes: dict[int, fx.Node] = {}
        self.expressions: dict[sympy.Basic, fx.Node] = {}
        self.lifted: list[Any] = []
        self.alive: list[Any] = []
        self._last_placeholder: fx.Node | None = None

    def placeholder(self, name: str, value: Any, before: fx.Node | None = None, fake: Any = None) -> fx.Node:
        """A new input of the graph, after those it has or before one of them. `fake` describes a real `value`."""
        graph = self.graph
        if before is not None:
            with graph.inserting_before(before):
                node = graph.placeholder(name)
        elif self._last_placeholder is not None:
            with graph.inserting_after(self._last_placeholder):
                node = graph.placeholder(name)
        else:
            with graph.inserting_before(next(iter(graph.nodes), None)):
                node = graph.placeholder(name)
        node.target = node.name
        if before is None:
            self._last_placeholder = node
        metadata.set_value(node, value if fake is None else fake)
        self.bind(value, node)
        return node

    def bind(self, value: Any, node: fx.Node) -> None:
        """From now on `value` is what `node` computes."""
        if isinstance(value, torch.Tensor):
            internals.trace_indices(value)
            self.nodes[id(value)] = node
            self.alive.append(value)
        elif internals.is_symbolic(value):
            self.expressions.setdefault(internals.expr_to_check(value), node)

    def find(self, tensor: torch.Tensor) -> fx.Node | None:
        node = self.nodes.get(id(tensor))
        if node is not None or self.parent is None or self.parent.find(tensor) is None:
            return node
        return self.lift(tensor, "lifted")

    def lift(self, value: Any, name: str) -> fx.Node:
        """An extra input for a value that belongs to a graph around this one."""
        self.lifted.append(value)
        assert self.parent is not None
        fake = metadata.value_of(self.parent.nodes[id(value)]) if id(value) in self.parent.nodes else None
        node = self.placeholder(name, value, fake=fake)
        if internals.is_symbolic(value):
            self.expressions[internals.expr_to_check(value)] = node
        return node

    def submodule(self, module: torch.nn.Module, name: str) -> fx.Node:
        """A get_attr node for a sub-GraphModule that this graph owns."""
        unique, count = name, 0
        while hasattr(self.root, unique):
            count += 1
            unique = f"{name}_{count}"
        self.root.add_module(unique, module)
        return self.graph.create_node("get_attr", unique)
