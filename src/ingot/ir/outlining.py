"""Outlining consecutive nodes into a sub-GraphModule, and inlining a sub-GraphModule's nodes.

    outline    nodes → one call node and a getitem for each value that is used outside
    split      any labelling of nodes → runs of equal labels outlined, in order
    inline     a call node → the nodes of its sub-GraphModule, in its place

Names, metadata and order stay: the getitem of an outlined value takes the name of the node that computed it, so a
program's signature need not change.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import fx, nn

from ingot import torch_internals as internals
from ingot.analysis.side_effects import has_side_effects
from ingot.ir import metadata
from ingot.ir.names import unique

Caller = Callable[[fx.Graph, fx.Node, Sequence[fx.Node]], fx.Node]


def graph_modules(module: fx.GraphModule) -> Iterator[fx.GraphModule]:
    """A GraphModule and every GraphModule inside it, the outer ones first."""
    yield module
    for child in module.children():
        if isinstance(child, fx.GraphModule):
            yield from graph_modules(child)


def name_apart(root: fx.GraphModule, nodes: Iterable[fx.Node]) -> None:
    """Makes the names of these nodes theirs alone in all graphs, so that a name identifies one node.

    It is nodes of inner graphs that get other names: signatures know those of the outermost one.
    """
    owners: dict[str, list[fx.Node]] = {}
    modules = {module.graph: module for module in graph_modules(root)}
    for graph in modules:
        for node in graph.nodes:
            owners.setdefault(node.name, []).append(node)
    for node in nodes:
        others = [other for other in owners[node.name] if other is not node]
        for other in others if node.graph is root.graph else [node] if others else []:
            other.name = unique(other.name, owners)
            owners[other.name] = [other]
            modules[other.graph].recompile()
            if other.op == "placeholder":
                other.target = other.name


def call_module(graph: fx.Graph, attribute: fx.Node, inputs: Sequence[fx.Node]) -> fx.Node:
    """Calls an outlined sub-GraphModule as torch.fx does; the get_attr node is not needed then."""
    return graph.create_node("call_module", str(attribute.target), tuple(inputs))


def outline(module: fx.GraphModule, nodes: Sequence[fx.Node], name: str, caller: Caller = call_module) -> fx.Node:
    """Moves consecutive nodes of a graph into a sub-GraphModule and returns the node that calls it.

    Its inputs are the values that the nodes take from outside, in order of first use; its output is a tuple of the
    values that are used outside, in order. `caller(graph, attribute, inputs)` makes the call node.
    """
    inside = set(nodes)
    inputs = list(dict.fromkeys(n for node in nodes for n in node.all_input_nodes if n not in inside))
    outputs = [node for node in nodes if any(user not in inside for user in node.users)]
    if not outputs:  # torch saves a call that returns nothing, and then cannot load it
        nodes, outputs = _include_result(nodes)
    root, graph = nn.Module(), fx.Graph()
    values: dict[fx.Node, fx.Node] = {}
    for node in inputs:
        values[node] = graph.placeholder(node.name)
        values[node].target = values[node].name
        metadata.copy_metadata(node, values[node])
    for node in nodes:
        if node.op == "get_attr":
            root.add_module(str(node.target), getattr(module, str(node.target)))
        values[node] = _copy(graph, node, values)
    result = graph.output(tuple(values[node] for node in outputs))
    metadata.set_value(result, tuple(metadata.value_of(node) for node in outputs))
    attribute_name = unique(name, module._modules)
    module.add_module(attribute_name, internals.LazyGraphModule(root, graph))
    last = nodes[-1]
    with module.graph.inserting_after(last):
        attribute = module.graph.create_node("get_attr", attribute_name)
    metadata.inherit_origin(attribute, nodes[0])
    metadata.set_value(attribute, None)
    with module.graph.inserting_after(attribute):
        call = caller(module.graph, attribute, inputs)
    metadata.inherit_origin(call, nodes[0])
    metadata.set_value(call, tuple(metadata.value_of(node) for node in outputs))
    if not attribute.users:
        module.graph.erase_node(attribute)
    _replace(module, nodes, outputs, call)
    return call


def _include_result(nodes: Sequence[fx.Node]) -> tuple[list[fx.Node], list[fx.Node]]:
    """The nodes and, if there is any, a tensor that one of them computes; an item of a tuple becomes a node for it."""
    for node in reversed(nodes):
        value = metadata.value_of(node)
        if isinstance(value, torch.Tensor):
            return list(nodes), [node]
        tensors = [i for i, v in enumerate(value) if isinstance(v, torch.Tensor)] if isinstance(value, tuple) else []
        if tensors:
            with node.graph.inserting_after(node):
                item = node.graph.create_node("call_function", operator.getitem, (node, tensors[0]))
            metadata.inherit_origin(item, node)
            metadata.set_value(item, value[tensors[0]])
            return [n for other in nodes for n in ((other, item) if other is node else (other,))], [item]
    return list(nodes), []


def _replace(module: fx.GraphModule, nodes: Sequence[fx.Node], outputs: Sequence[fx.Node], call: fx.Node) -> None:
    """Lets everybody outside use the call's items, which take over the names, and erases the nodes."""
    items: list[tuple[fx.Node, str]] = []
    inside = set(nodes)
    anchor = call
    for index, node in enumerate(outputs):
        with module.graph.inserting_after(anchor):
            item = module.graph.create_node("call_function", operator.getitem, (call, index))
        metadata.copy_metadata(node, item)
        node.replace_all_uses_with(item, delete_user_cb=lambda user: user not in inside)
        items.append((item, node.name))
        anchor = item
    erase(module, nodes)
    for item, name in items:
        item.name = name


def idle(nodes: Sequence[fx.Node]) -> bool:
    """Whether nodes compute nothing that is used elsewhere, and do nothing else either."""
    inside = set(nodes)
    return not any(has_side_effects(node) or any(user not in inside for user in node.users) for node in nodes)


def erase(module: fx.GraphModule, nodes: Sequence[fx.Node]) -> None:
    """Erases nodes that only use each other, and the sub-GraphModules that go with them."""
    for node in reversed(nodes):
        module.graph.erase_node(node)
        if node.op == "get_attr":
            drop_unused(module, str(node.target))


def drop_unused(module: fx.GraphModule, name: str) -> None:
    """Removes a sub-GraphModule that no node of the graph refers to any more."""
    if name in module._modules and not any(
        n.op in ("get_attr", "call_module") and n.target == name for n in module.graph.nodes
    ):
        delattr(module, name)


def split(
    module: fx.GraphModule,
    label: Callable[[fx.Node], Hashable | None],
    name: str = "part",
    caller: Caller = call_module,
) -> list[fx.Node]:
    """Outlines each run of consecutive nodes with one label; nodes labelled None stay. Returns the call nodes."""
    runs: list[tuple[Hashable | None, list[fx.Node]]] = []
    for node in module.graph.nodes:
        of = None if node.op in ("placeholder", "output") else label(node)
        if not runs or runs[-1][0] != of:
            runs.append((of, []))
        runs[-1][1].append(node)
    return [outline(module, nodes, name, caller) for of, nodes in runs if of is not None]


def inline(module: fx.GraphModule, call: fx.Node, function: fx.GraphModule, inputs: Sequence[Any]) -> None:
    """Puts the nodes of `function`, called with `inputs` by `call`, in the place of `call`.

    Each getitem of the call becomes the value itself; its name goes to the node that computes it.
    """
    placeholders = [n for n in function.graph.nodes if n.op == "placeholder"]
    values: dict[fx.Node, Any] = dict(zip(placeholders, inputs, strict=True))
    output = next(iter(reversed(function.graph.nodes)))
    copied: dict[fx.Node, str] = {}
    with module.graph.inserting_before(call):
        for node in function.graph.nodes:
            if node.op in ("placeholder", "output"):
                continue
            target = None
            if node.op == "get_attr":
                target = unique(str(node.target), module._modules)
                module.add_module(target, getattr(function, str(node.target)))
            values[node] = _copy(module.graph, node, values, target)
            copied[values[node]] = node.name
    results = fx.map_arg(output.args[0], lambda n: values[n])
    for user in list(call.users):
        assert user.target is operator.getitem and isinstance(results, list | tuple)
        result = results[user.args[1]]  # type: ignore[index]
        if isinstance(result, fx.Node) and result in copied:
            copied[result] = user.name
        user.replace_all_uses_with(result)
        module.graph.erase_node(user)
    attributes = [n for n in call.all_input_nodes if n.op == "get_attr"]
    module.graph.erase_node(call)
    for attribute in attributes:
        if not attribute.users:
            module.graph.erase_node(attribute)
            drop_unused(module, str(attribute.target))
    taken = {node.name for node in module.graph.nodes if node not in copied}
    for node, name in copied.items():
        if name not in taken:
            node.name = name


def _copy(graph: fx.Graph, node: fx.Node, values: dict[fx.Node, Any], target: str | None = None) -> fx.Node:
    made = graph.create_node(
        node.op,
        target or node.target,
        fx.map_arg(node.args, lambda n: values[n]),
        fx.map_arg(node.kwargs, lambda n: values[n]),
        name=node.name,
    )
    metadata.copy_metadata(node, made)
    return made
