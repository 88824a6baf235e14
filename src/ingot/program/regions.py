"""Mode switches → regions: the nodes between a switch and its end become a graph that an operator calls.

    before                                   after
    enter = enter_autocast("cpu", bfloat16)  region = get_attr[autocast_region]      # the graph x, w → (linear,)
    linear = aten.linear(x, w)               call = wrap_with_autocast("cpu", bfloat16, …, region, x, w)
    exit = exit_autocast(enter)              linear = call[0]

A value that leaves a region keeps its name, so a signature that knows it by that name stays true.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import fx, nn

from ingot import torch_internals as internals
from ingot.program import metadata
from ingot.program.naming import unique

SWITCHES = frozenset({internals.enter_autocast, internals.exit_autocast, internals.set_grad_enabled})


@dataclass(slots=True)
class _Region:
    """Nodes between switches: the operator that runs them and its settings. `depth` counts autocasts inside."""

    operator: Any
    settings: tuple[Any, ...]
    name: str
    switch: fx.Node
    grad: bool
    body: list[fx.Node] = field(default_factory=list)
    depth: int = 0


def wrap_switches(module: fx.GraphModule, grad: bool = True) -> int:
    """Makes regions of every switch, in nested graphs too, and says how many. `grad` is the mode the graph runs in.

    A region of either kind may be inside of one of the other, so only the outermost are made here; the switches inside
    of them are found when the new graph is visited in its turn.
    """
    regions: list[_Region] = []
    spent: list[fx.Node] = []
    nested: list[tuple[fx.GraphModule, bool]] = []
    current: _Region | None = None
    for node in module.graph.nodes:
        if current is not None and _ends(current, node, grad):
            spent.append(node)
            current = None
        elif node.op == "output":
            break  # a grad mode may last until the end
        elif current is not None:
            current.body.append(node)
            current.depth += (node.target is internals.enter_autocast) - (node.target is internals.exit_autocast)
        elif node.target in SWITCHES:
            spent.append(node)
            current = _begin(node, grad)
            regions.extend([] if current is None else [current])
        else:
            nested.extend((region, grad) for region in _graphs(module, node))
    for region in regions:
        if region.body:
            nested.append((_outline(module, region), region.grad))
    for node in reversed(spent):
        module.graph.erase_node(node)
    count = sum(bool(region.body) for region in regions)
    module.recompile()
    return count + sum(wrap_switches(inner, mode) for inner, mode in nested)


def _begin(switch: fx.Node, grad: bool) -> _Region | None:
    if switch.target is internals.enter_autocast:
        return _Region(internals.wrap_with_autocast, switch.args, "autocast_region", switch, grad)
    enabled = bool(switch.args[0])
    if enabled == grad:
        return None
    return _Region(internals.wrap_with_set_grad_enabled, (enabled,), "grad_region", switch, enabled)


def _ends(region: _Region, node: fx.Node, grad: bool) -> bool:
    if region.operator is internals.wrap_with_autocast:
        return node.target is internals.exit_autocast and node.args[0] is region.switch
    return node.target is internals.set_grad_enabled and not region.depth and bool(node.args[0]) == grad


def _graphs(module: fx.GraphModule, node: fx.Node) -> list[fx.GraphModule]:
    """The graphs that a node calls."""
    found = [getattr(module, str(n.target)) for n in node.all_input_nodes if n.op == "get_attr"]
    return [graph for graph in found if isinstance(graph, fx.GraphModule)]


def _outline(module: fx.GraphModule, region: _Region) -> fx.GraphModule:
    """Moves a region's nodes into a graph of their own, called where the region was."""
    inside = set(region.body)
    leaving = [node for node in region.body if any(user not in inside for user in node.users)]
    if not leaving:
        # A region that only writes. torch saves a call that returns nothing, and then cannot load it.
        leaving = [node for node in region.body if metadata.tensors_in(metadata.value_of(node))][-1:]
    inner, entering = _graph_of(module, region.body, leaving)
    name = unique(region.name, {key for key, _ in module.named_children()})
    module.add_module(name, inner)
    graph = module.graph
    with graph.inserting_before(region.body[0]):
        function = graph.get_attr(name)
        call = graph.call_function(region.operator, (*region.settings, function, *entering))
        items = [graph.call_function(operator.getitem, (call, index)) for index in range(len(leaving))]
    metadata.set_value(call, tuple(metadata.value_of(node) for node in leaving))
    for made in (function, call):
        metadata.inherit_origin(made, region.switch)
    for node, item in zip(leaving, items, strict=True):
        metadata.copy_metadata(node, item)
        node.replace_all_uses_with(item, delete_user_cb=lambda user: user not in inside)
    for node in reversed(region.body):
        graph.erase_node(node)
    for node, item in zip(leaving, items, strict=True):
        item.name = node.name
    return inner


def _graph_of(
    module: fx.GraphModule, body: Sequence[fx.Node], leaving: Sequence[fx.Node]
) -> tuple[fx.GraphModule, list[fx.Node]]:
    """The graph of some nodes, and the nodes that must be handed to it."""
    root, graph = nn.Module(), fx.Graph()
    inside = set(body)
    used = dict.fromkeys(n for node in body for n in node.all_input_nodes if n not in inside)
    copies: dict[fx.Node, fx.Node] = {}
    entering = [node for node in used if node.op != "get_attr"]
    for node in (*entering, *(node for node in used if node.op == "get_attr"), *body):
        if node.op == "get_attr":
            root.add_module(str(node.target), getattr(module, str(node.target)))
        if node in inside or node.op == "get_attr":
            args, kwargs = fx.map_arg((node.args, node.kwargs), copies.__getitem__)
            copies[node] = graph.create_node(node.op, node.target, args, kwargs)
            metadata.copy_metadata(node, copies[node])
        else:
            copies[node] = graph.placeholder(node.name)
            metadata.set_value(copies[node], metadata.value_of(node))
        copies[node].name = node.name
    output = graph.output(tuple(copies[node] for node in leaving))
    metadata.set_value(output, tuple(metadata.value_of(node) for node in leaving))
    return internals.LazyGraphModule(root, graph), entering
