"""Mode switches → regions: the nodes between a switch and its end become a graph that an operator calls.

    before                                   after
    enter = enter_autocast("cpu", bfloat16)  region = get_attr[autocast_region]      # the graph x, w → (linear,)
    linear = aten.linear(x, w)               call = wrap_with_autocast("cpu", bfloat16, …, region, x, w)
    exit = exit_autocast(enter)              linear = call[0]

A value that leaves a region keeps its name, so a signature that knows it by that name stays true.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from ingot import torch_internals as internals
from ingot.errors import PassError, format_error
from ingot.ir import metadata, subgraphs
from ingot.ir.outlining import erase, idle, outline

Settings = tuple[Any, ...]
_AUTOCAST = torch.ops.higher_order.wrap_with_autocast
_GRAD = torch.ops.higher_order.wrap_with_set_grad_enabled


def wrap_switches(module: fx.GraphModule) -> int:
    """Makes regions of every switch, in nested graphs too, and says how many switches it replaced."""
    return cut_autocast(module) + cut_grad_mode(module)


# ---------------------------------------------------------------------- autocast


def cut_autocast(module: fx.GraphModule, in_force: tuple[Settings, ...] = ()) -> int:
    """Cuts the regions of a graph that runs under these settings, the inner ones first; returns how many pairs."""
    count = 0
    open_: list[fx.Node] = []
    for node in list(module.graph.nodes):
        around = (*in_force, *(_settings(enter) for enter in open_))
        if node.target is internals.enter_autocast:
            open_.append(node)
        elif node.target is internals.exit_autocast:
            _check_closes(node, open_)
            enter = open_.pop()
            _replace_autocast(module, enter, node, around[:-1])
            count += 1
        elif node.target in subgraphs.LAYOUTS:
            inside = (*around, tuple(node.args[:4])) if node.target is _AUTOCAST else around
            for attribute in subgraphs.function_attributes(node):
                count += cut_autocast(getattr(module, str(attribute.target)), inside)
    if open_:
        raise PassError(format_error(f"{open_[-1].name} is never closed.", where=metadata.where(open_[-1])))
    if count:
        module.recompile()
    return count


def _check_closes(node: fx.Node, open_: Sequence[fx.Node]) -> None:
    if not open_ or node.args[0] is not open_[-1]:
        raise PassError(
            format_error(
                f"{node.name} closes {node.args[0]}, but {open_[-1] if open_ else 'no autocast'} is open there.",
                where=metadata.where(node),
                why="autocast switches must be nested like with statements",
                fix="look at what moved the switch: the trace writes them nested",
            )
        )


def _settings(enter: fx.Node) -> Settings:
    return tuple(enter.args)


def _replace_autocast(module: fx.GraphModule, enter: fx.Node, exit_: fx.Node, around: Sequence[Settings]) -> None:
    nodes = _nodes_between(enter, exit_)
    settings = _settings(enter)
    module.graph.erase_node(exit_)
    module.graph.erase_node(enter)
    if idle(nodes):
        erase(module, nodes)
    elif not _is_in_force(settings, around):

        def call(graph: fx.Graph, attribute: fx.Node, inputs: Sequence[fx.Node]) -> fx.Node:
            return graph.create_node("call_function", _AUTOCAST, (*settings, attribute, *inputs), name="autocast")

        outline(module, nodes, "autocast_region", call)


def _nodes_between(first: fx.Node, last: fx.Node) -> list[fx.Node]:
    nodes = []
    node = first.next
    while node is not last:
        nodes.append(node)
        node = node.next
    return nodes


def _is_in_force(settings: Settings, around: Sequence[Settings]) -> bool:
    """Whether autocast for that device is so set already; outside every region it is off."""
    device, dtype, enabled = settings[:3]
    for outer in reversed(around):
        if outer[0] == device:
            return outer[2] == enabled and (not enabled or outer[1] == dtype)
    return not enabled


# ---------------------------------------------------------------------- grad mode


def cut_grad_mode(module: fx.GraphModule) -> int:
    """Cuts the regions of a whole program's graph; returns how many switches it replaced."""
    switches = [n for n in module.graph.nodes if n.target is internals.set_grad_enabled]
    # The trace writes a switch only where the mode changes, so the first one shows what it was before.
    ambient = not switches[0].args[0] if switches else True
    count, _ = _cut_grad(module, ambient, ambient)
    return count


def _cut_grad(module: fx.GraphModule, ambient: bool, mode: bool) -> tuple[int, bool]:
    """Outlines the regions of a graph whose own mode is `ambient` and that begins in `mode`; returns its last mode."""
    count = 0
    runs: list[tuple[bool, list[fx.Node]]] = []
    for node in list(module.graph.nodes):
        if node.op in ("placeholder", "output"):
            continue
        if node.target is internals.set_grad_enabled:
            mode = bool(node.args[0])
            module.graph.erase_node(node)
            count += 1
            continue
        if node.target in subgraphs.LAYOUTS:
            inner, mode = _cut_grad_functions(module, node, mode)
            count += inner
        if not runs or runs[-1][0] != mode:
            runs.append((mode, []))
        runs[-1][1].append(node)
    for enabled, nodes in runs:
        if enabled != ambient:
            _replace_grad(module, enabled, nodes)
    if count:
        module.recompile()
    return count, mode


def _cut_grad_functions(module: fx.GraphModule, node: fx.Node, mode: bool) -> tuple[int, bool]:
    count, after = 0, mode
    inside = bool(node.args[0]) if node.target is _GRAD else mode
    for attribute in subgraphs.function_attributes(node):
        cut, ended = _cut_grad(getattr(module, str(attribute.target)), inside, inside)
        count += cut
        after = ended if node.target is not _GRAD else mode
    return count, after


def _replace_grad(module: fx.GraphModule, enabled: bool, nodes: Sequence[fx.Node]) -> None:
    if idle(nodes):
        erase(module, nodes)
        return

    def call(graph: fx.Graph, attribute: fx.Node, inputs: Sequence[fx.Node]) -> fx.Node:
        return graph.create_node("call_function", _GRAD, (enabled, attribute, *inputs), name="grad_mode")

    outline(module, nodes, "grad_region", call)
