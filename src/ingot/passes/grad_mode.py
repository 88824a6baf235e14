"""Puts what runs in another grad mode than the program's own into regions.

    before                                        after
    set_grad_enabled = set_grad_enabled(False)    grad_region = self.grad_region
    linear = aten.linear(x, w)                    call = wrap_with_set_grad_enabled(False, grad_region, x, w)
    set_grad_enabled_1 = set_grad_enabled(True)   relu = aten.relu(call[0])
    relu = aten.relu(linear)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from ingot import torch_internals as internals
from ingot.passes.cutting import erase, idle, outline
from ingot.passes.manager import register
from ingot.program import subgraphs
from ingot.program.dialects import CAPTURED
from ingot.program.program import Program

_REGION = torch.ops.higher_order.wrap_with_set_grad_enabled


@register(takes=CAPTURED)
def grad_mode(program: Program) -> int:
    """Each run of nodes between a switch away from the mode in force and the switch back becomes a region.

    The mode in force is the one that the program was captured in; inside a region it is the region's. A switch to the
    mode in force disappears, and so does a region that computes nothing.
    """
    switches = [n for n in program.graph.nodes if n.target is internals.set_grad_enabled]
    # The trace writes a switch only where the mode changes, so the first one tells what it was before.
    ambient = not switches[0].args[0] if switches else True
    count, _ = _cut(program.graph_module, ambient, ambient)
    return count


def _cut(module: fx.GraphModule, ambient: bool, mode: bool) -> tuple[int, bool]:
    """Cuts the regions of one graph whose own mode is `ambient` and that begins in `mode`; returns the mode it ends in."""
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
            inner, mode = _cut_functions(module, node, mode)
            count += inner
        if not runs or runs[-1][0] != mode:
            runs.append((mode, []))
        runs[-1][1].append(node)
    for enabled, nodes in runs:
        if enabled != ambient:
            _replace(module, enabled, nodes)
    return count, mode


def _cut_functions(module: fx.GraphModule, node: fx.Node, mode: bool) -> tuple[int, bool]:
    count, after = 0, mode
    inside = bool(node.args[0]) if node.target is _REGION else mode
    for attribute in subgraphs.function_attributes(node):
        cut, ended = _cut(getattr(module, str(attribute.target)), inside, inside)
        count += cut
        after = ended if node.target is not _REGION else mode
    return count, after


def _replace(module: fx.GraphModule, enabled: bool, nodes: Sequence[fx.Node]) -> None:
    if idle(nodes):
        erase(module, nodes)
        return

    def call(graph: fx.Graph, attribute: fx.Node, inputs: Sequence[fx.Node]) -> fx.Node:
        return graph.create_node("call_function", _REGION, (enabled, attribute, *inputs), name="grad_mode")

    outline(module, nodes, "grad_region", call)
