"""Alias analysis: which values of a program may share memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ingot import torch_internals as internals
from ingot.ir.outlining import graph_modules
from ingot.ir.program import Program


def returned_nodes(graph: fx.Graph) -> set[fx.Node]:
    return set(next(iter(reversed(graph.nodes))).all_input_nodes)


def escaping(graph: fx.Graph) -> set[fx.Node]:
    """The nodes that a value which the graph returns may share memory with."""
    found: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if node.op == "output" or (node in found and may_alias(node)):
            found.update(node.all_input_nodes)
    return found


def may_alias(node: fx.Node) -> bool:
    """Whether the node's value may be a view of, or the same as, one of its arguments."""
    target = node.target
    if node.op != "call_function" or not isinstance(target, internals.OpOverload):
        return True
    return internals.declares_aliases(target) or _is_composite(target)


# Composite operators, whose schemas say nothing of aliases, that always compute a tensor of their own.
_FRESH = frozenset(
    (
        *("aten::matmul", "aten::linear", "aten::conv1d", "aten::conv2d", "aten::conv3d", "aten::layer_norm"),
        *("aten::conv_transpose1d", "aten::conv_transpose2d", "aten::conv_transpose3d", "aten::batch_norm"),
        *("aten::softmax", "aten::log_softmax", "aten::scaled_dot_product_attention", "aten::group_norm"),
    )
)


def _is_composite(target: Any) -> bool:
    return target._schema.name not in _FRESH and bool(target._can_decompose())


def written_dropouts(program: Program) -> set[fx.Node]:
    """The dropouts that are their argument, since they do nothing, where that memory is written sooner or later.

    A functional graph cannot hold such a one: a write to either tensor is a write to both.
    """
    idle = [n for m in graph_modules(program.graph_module) for n in m.graph.nodes if _does_nothing(n)]
    if not idle:
        return set()
    groups = _Groups(program)
    return {node for node in idle if groups.find(node) in groups.written}


def _does_nothing(node: fx.Node) -> bool:
    if node.target is not torch.ops.aten.dropout.default:
        return False
    _, rate, train = node.args
    return train is False or (isinstance(rate, float | int) and rate == 0)


class AliasSets:
    """Union-find over nodes: those in one set may lie in the same memory."""

    def __init__(self) -> None:
        self._parent: dict[fx.Node, fx.Node] = {}

    def find(self, node: fx.Node) -> fx.Node:
        """The node that stands for the whole set."""
        while (above := self._parent.get(node, node)) is not node:
            self._parent[node] = self._parent.get(above, above)
            node = above
        return node

    def join(self, a: fx.Node, b: fx.Node) -> None:
        self._parent[self.find(a)] = self.find(b)


class _Groups(AliasSets):
    """The sets of all graphs; a region's values are one set with its operands, to be safe."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        writes: list[fx.Node] = []
        for module in graph_modules(program.graph_module):
            for node in module.graph.nodes:
                target: Any = node.target
                if node.op == "call_function" and may_alias(node):
                    for argument in node.all_input_nodes:
                        self.join(argument, node)
                functions = [n for n in node.all_input_nodes if n.op == "get_attr"]
                for function in functions:
                    for inner in getattr(module, str(function.target)).graph.nodes:
                        if inner.op in ("placeholder", "output"):
                            self.join(inner, node)
                if node.op == "output":
                    for value in node.all_input_nodes if module is not program.graph_module else ():
                        self.join(value, node)
                if isinstance(target, internals.OpOverload):
                    writes.extend(_mutated_arguments(node))
        self.written = {self.find(node) for node in writes}


def _mutated_arguments(node: fx.Node) -> list[fx.Node]:
    """The arguments that a node writes."""
    target: Any = node.target
    found: list[fx.Node] = []
    fx.map_arg(internals.mutated_values(target, node.args, node.kwargs), found.append)
    return found
