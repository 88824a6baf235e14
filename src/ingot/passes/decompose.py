"""Replaces operators by the ones they are made of, down to torch's core ATen set.

before                                  after decompose, or decompose(keep=["linear"])
linear = aten.linear(x, w, b)           permute = aten.permute(w, [1, 0]); addmm = aten.addmm(b, x, permute)
gelu = aten.gelu(linear)                gelu = aten.gelu(addmm)
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import fx

from ingot import torch_internals as internals
from ingot.errors import PassError, format_error
from ingot.ir.dialects import CORE, FUNCTIONAL, core, is_composite
from ingot.ir.outlining import graph_modules
from ingot.ir.program import Program
from ingot.passes.decompositions.aten import Rules
from ingot.passes.grad_mode import grad_mode
from ingot.passes.insert_effect_tokens import strip_tokens
from ingot.passes.manager import register
from ingot.passes.retracing.retrace import Replay


@register(takes=FUNCTIONAL, gives=CORE, exact=False)
def decompose(program: Program, *, keep: Sequence[Any] = ()) -> int:
    """Replays the graph with decompositions. `keep` lists operators to leave whole: overloads, or names ("linear").

    What autocast does becomes explicit: its casts are nodes, and its regions are gone.
    """
    kept = overloads(keep)
    program.dialect = core(str(op) for op in kept)
    nodes = (node for module in graph_modules(program.graph_module) for node in module.graph.nodes)
    if not any(_changes(node, kept) for node in nodes):
        return 0
    before = len(program.graph.nodes)
    with strip_tokens(program):
        Replay(program, Rules(kept)).record_all(program.signature.graph_outputs)
    grad_mode(program)
    return max(1, abs(len(program.graph.nodes) - before))


def _changes(node: fx.Node, kept: Collection[Any]) -> bool:
    target: Any = node.target
    return target is torch.ops.higher_order.wrap_with_autocast or (is_composite(target) and target not in kept)


def overloads(keep: Sequence[Any]) -> set[Any]:
    found: set[Any] = set()
    for item in keep:
        if isinstance(item, internals.OpOverload):
            found.add(item)
            continue
        packet: Any = getattr(torch.ops.aten, item, None) if isinstance(item, str) else item
        if not hasattr(packet, "overloads"):
            raise PassError(
                format_error(f"decompose(keep=…): {item!r} is not an operator.", fix='give names: "linear"')
            )
        found.update(getattr(packet, overload) for overload in packet.overloads())
    return found
