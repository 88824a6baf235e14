"""Which nodes share memory with something that is resized in place."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from ingot import torch_internals as internals
from ingot.analysis.alias import AliasSets
from ingot.ir import subgraphs

aten = torch.ops.aten


def find_resized(graph: fx.Graph) -> set[fx.Node]:
    """Nodes whose shape may change while the program runs."""
    sets = AliasSets()
    lost: list[fx.Node] = []
    for node in graph.nodes:
        for shared in _aliased_arguments(node):
            sets.join(node, shared)
        lost.extend(_resizes(node))
    if not lost:
        return set()
    memories = {sets.find(node) for node in lost}
    return {node for node in graph.nodes if sets.find(node) in memories}


def _aliased_arguments(node: fx.Node) -> list[fx.Node]:
    """The arguments that a node's value may share memory with."""
    target: Any = node.target
    if node.op != "call_function":
        return []
    if target is operator.getitem:
        return [n for n in node.all_input_nodes if n.op != "get_attr"][:1]
    if not isinstance(target, internals.OpOverload):
        # The result of a branch or a region may be one of its inputs.
        return [n for n in node.all_input_nodes if n.op != "get_attr"] if target in subgraphs.LAYOUTS else []
    found = _nodes_at(node, internals.aliased_positions(target))
    # reshape, contiguous, to … do not declare that they may return their input.
    if not found and not internals.returns_fresh_tensor(target):
        found = [n for n in node.all_input_nodes if n.op != "get_attr"]
    return found


def _resizes(node: fx.Node) -> list[fx.Node]:
    """The tensors that a node resizes in place."""
    target: Any = node.target
    if node.op != "call_function":
        return []
    if target in subgraphs.LAYOUTS:
        return _find_resized_operands(node)
    if not isinstance(target, internals.OpOverload):
        return []
    resizes = target in _RESIZERS or (torch.Tag.inplace_view in target.tags and target not in _KEEPERS)
    schema = target._schema.arguments
    places = [place for place in internals.mutated_positions(target) if resizes or schema[place].is_out]
    return _nodes_at(node, places)


# It changes what is known of a tensor in place, but not its shape.
_KEEPERS = frozenset([aten.detach_.default])


_RESIZERS = frozenset(
    getattr(getattr(aten, name), overload)
    for name in ("resize_", "resize_as_", "set_", "_resize_output_", "resize_as_sparse_")
    for overload in getattr(aten, name).overloads()
)


def _find_resized_operands(node: fx.Node) -> list[fx.Node]:
    """Operands that a function of a branch, loop or region resizes; which one is which, the functions know by place."""
    module = node.graph.owning_module
    layout = subgraphs.LAYOUTS[node.target]
    operands = [n for n in node.all_input_nodes if n.op != "get_attr"]
    for index in layout.functions:
        function: Any = node.args[index]
        inner = getattr(module, str(function.target), None) if isinstance(function, fx.Node) else None
        if isinstance(inner, fx.GraphModule) and any(n.op == "placeholder" for n in find_resized(inner.graph)):
            return operands
    return []


def _nodes_at(node: fx.Node, positions: Sequence[int]) -> list[fx.Node]:
    """The nodes that a call has at some of its arguments, alone or in a list."""
    target: Any = node.target
    found: list[fx.Node] = []
    fx.map_arg(internals.values_at(target, positions, node.args, node.kwargs), found.append)
    return found
