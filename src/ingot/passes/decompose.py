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
from ingot.ir import effect_tokens
from ingot.ir.dialects import CORE, FUNCTIONAL, core
from ingot.ir.outlining import graph_modules
from ingot.ir.program import Program
from ingot.ir.regions import cut_grad_mode
from ingot.passes.decompositions.aten import Rules
from ingot.passes.insert_effect_tokens import strip_tokens
from ingot.passes.manager import register
from ingot.passes.retracing.retrace import Replay
from ingot.passes.retracing.tracer import Decompositions


@register(takes=FUNCTIONAL, gives=CORE, exact=False, retraces=True)
def decompose(program: Program, *, keep: Sequence[Any] = ()) -> int:
    """Replays the graph with decompositions. `keep` lists operators to leave whole: overloads, or names ("linear").

    What autocast does becomes explicit: its casts are nodes, and its regions are gone. Returns the number of operators
    that were replaced and of regions.
    """
    kept = overloads(keep)
    return replace_operators(program, kept, Rules(kept))


def replace_operators(program: Program, kept: Collection[Any], rules: Decompositions) -> int:
    """Makes the program CORE but for the operators `kept`, in one replay with these rules; none if nothing changes."""
    program.dialect = core(str(op) for op in kept)
    if not _find_replaced(program, rules):
        return 0
    with strip_tokens(program):
        wanted = _find_replaced(program, rules)
        replay = Replay(program, rules)
        replay.record_all(program.signature.graph_outputs)
    cut_grad_mode(program.graph_module)  # a replay opens regions
    return sum(node not in replay.recorder.replayed for node in wanted)


def _find_replaced(program: Program, rules: Decompositions) -> list[fx.Node]:
    """The nodes of every graph that a replay with these rules replaces, unless a rule declines."""
    nodes = (node for module in graph_modules(program.graph_module) for node in module.graph.nodes)
    return [node for node in nodes if _is_replaced(node, rules)]


def _is_replaced(node: fx.Node, rules: Decompositions) -> bool:
    target = effect_tokens.plain_target(node)
    return target is torch.ops.higher_order.wrap_with_autocast or rules.get(target) is not None


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
