"""Puts what runs under autocast into regions.

    before                                                      after
    enter_autocast = enter_autocast("cpu", bfloat16, True, True)   autocast_region = self.autocast_region
    linear = aten.linear(x, w)                                  call = wrap_with_autocast("cpu", bfloat16, True, True,
    exit_autocast = exit_autocast(enter_autocast)                                         autocast_region, x, w)
    return (linear,)                                            return (call[0],)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from ingot import torch_internals as internals
from ingot.errors import PassError, explain
from ingot.passes.cutting import erase, idle, outline
from ingot.passes.manager import register
from ingot.program import metadata, subgraphs
from ingot.program.dialects import CAPTURED
from ingot.program.program import Program

Settings = tuple[Any, ...]
_REGION = torch.ops.higher_order.wrap_with_autocast


@register(takes=CAPTURED)
def autocast(program: Program) -> int:
    """Each outermost pair of autocast switches becomes a region, nested pairs nested regions, in every graph.

    A region whose settings are in force already is not made, and neither is one that computes nothing.
    """
    return _cut(program.graph_module, ())


def _cut(module: fx.GraphModule, in_force: tuple[Settings, ...]) -> int:
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
            _replace(module, enter, node, around[:-1])
            count += 1
        elif node.target in subgraphs.LAYOUTS:
            inside = (*around, tuple(node.args[:4])) if node.target is _REGION else around
            for attribute in subgraphs.function_attributes(node):
                count += _cut(getattr(module, str(attribute.target)), inside)
    if open_:
        raise PassError(explain(f"{open_[-1].name} is never closed.", where=metadata.where(open_[-1])))
    return count


def _check_closes(node: fx.Node, open_: Sequence[fx.Node]) -> None:
    if not open_ or node.args[0] is not open_[-1]:
        raise PassError(
            explain(
                f"{node.name} closes {node.args[0]}, but {open_[-1] if open_ else 'no autocast'} is open there.",
                where=metadata.where(node),
                why="autocast switches must be nested like with statements",
                fix="look at what moved the switch: the trace writes them nested",
            )
        )


def _settings(enter: fx.Node) -> Settings:
    return tuple(enter.args)


def _replace(module: fx.GraphModule, enter: fx.Node, exit_: fx.Node, around: Sequence[Settings]) -> None:
    nodes = _between(enter, exit_)
    settings = _settings(enter)
    module.graph.erase_node(exit_)
    module.graph.erase_node(enter)
    if idle(nodes):
        erase(module, nodes)
    elif not _in_force(settings, around):

        def call(graph: fx.Graph, attribute: fx.Node, inputs: Sequence[fx.Node]) -> fx.Node:
            return graph.create_node("call_function", _REGION, (*settings, attribute, *inputs), name="autocast")

        outline(module, nodes, "autocast_region", call)


def _between(first: fx.Node, last: fx.Node) -> list[fx.Node]:
    nodes = []
    node = first.next
    while node is not last:
        nodes.append(node)
        node = node.next
    return nodes


def _in_force(settings: Settings, around: Sequence[Settings]) -> bool:
    """Whether autocast for that device is so set already; outside of every region it is off."""
    device, dtype, enabled = settings[:3]
    for outer in reversed(around):
        if outer[0] == device:
            return outer[2] == enabled and (not enabled or outer[1] == dtype)
    return not enabled
