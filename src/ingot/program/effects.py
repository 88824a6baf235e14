"""Which nodes do something besides computing their value."""

from __future__ import annotations

import torch
from torch import fx

from ingot import torch_internals as internals
from ingot.program import subgraphs

_SWITCHES = (internals.enter_autocast, internals.exit_autocast, internals.set_grad_enabled)


def acts(node: fx.Node) -> bool:
    """Whether a node must stay even if nobody uses its value: it writes, draws, asserts, switches, or may do so."""
    target = node.target
    if node.op in ("placeholder", "output"):
        return True
    if node.op == "get_attr":
        return False
    if isinstance(target, internals.OpOverload):
        return (
            target.namespace not in ("aten", "prims")
            or target._schema.is_mutable
            or not target._schema.returns
            or torch.Tag.nondeterministic_seeded in target.tags
        )
    if target in subgraphs.LAYOUTS:
        return any(acts(inner) for function in _functions(node) for inner in _inner_nodes(function))
    if isinstance(target, internals.HigherOrderOperator):
        return True
    return target in _SWITCHES


def _functions(node: fx.Node) -> list[fx.GraphModule]:
    owner = node.graph.owning_module
    assert owner is not None
    return [getattr(owner, str(attribute.target)) for attribute in subgraphs.function_attributes(node)]


def _inner_nodes(module: fx.GraphModule) -> list[fx.Node]:
    return [n for n in module.graph.nodes if n.op not in ("placeholder", "output")]
