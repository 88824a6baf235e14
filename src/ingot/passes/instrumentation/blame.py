"""Which node is to blame: two programs are run node by node, and the first that differs on equal inputs is named."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from ingot import torch_internals as internals
from ingot.analysis.side_effects import has_side_effects
from ingot.errors import format_error
from ingot.ir import metadata
from ingot.ir.program import Program
from ingot.ir.signature import InputKind
from ingot.passes.instrumentation.state_copies import SEED, clone_tensors, copy_state
from ingot.passes.instrumentation.value_comparison import compare_values
from ingot.passes.manager import PassInfo


class _Recording(fx.Interpreter):
    """Runs a graph and keeps a copy of each node's value as it was when the node ran."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.seen: dict[str, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        self.seen[n.name] = _copy(value)
        return value


def _copy(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    return type(value)(_copy(v) for v in value) if type(value) in (list, tuple) else value


def _values_by_node(program: Program, leaves: list[Any]) -> dict[str, Any]:
    running, given = copy_state(program), clone_tensors(leaves)
    tensors = [x for x, i in zip(given, program.signature.user_inputs, strict=True) if i.kind is InputKind.ARGUMENT]
    state = [running.state_of(i) for i in running.signature.state_inputs]
    recording = _Recording(program.graph_module)
    with torch.random.fork_rng(devices=[]), torch.no_grad(), internals.restore_modes():
        torch.manual_seed(SEED)
        recording.run(*state, *tensors)
    return recording.seen


def blame_node(before: Program, after: Program, leaves: list[Any], info: PassInfo, problem: str) -> str:
    old, new = _values_by_node(before, leaves), _values_by_node(after, leaves)
    node = _culprit(before, after, old, new, info.exact)
    where = metadata.where(node) if node is not None else "no single node could be found"
    detail = compare_values(old.get(node.name), new.get(node.name), info.exact) if node is not None else None
    return format_error(
        f"The pass {info.name} changed what the program computes: {problem}.",
        where=where,
        why=f"{node.format_node()}" + (f"; its value {detail}" if detail and node.name in old else "")
        if node is not None
        else None,
        fix="the program is as it was before the pass; look at what the pass did to that node",
    )


def _culprit(
    before: Program, after: Program, old: Mapping[str, Any], new: Mapping[str, Any], exact: bool
) -> fx.Node | None:
    """The first node that differs although its inputs agree; a node that the pass made or changed comes first."""
    known: dict[str, fx.Node] = {n.name: n for n in before.graph.nodes}
    node: fx.Node
    for node in after.graph.nodes:
        if node.op in ("placeholder", "output") or node.name not in old:
            continue
        if compare_values(old[node.name], new[node.name], exact) is None:
            continue
        made = [n for n in _ancestors(node) if n.name not in known and n.op == "call_function"]
        if made:
            return made[0]
        if _same_call(known[node.name], node) and (lost := _lost_write(before, after, node)) is not None:
            return lost
        return node
    changed = (n for n in after.graph.nodes if n.name not in known or not _same_call(known[n.name], n))
    first: fx.Node | None = next(changed, None)
    return first


def _lost_write(before: Program, after: Program, node: fx.Node) -> fx.Node | None:
    """The last node before `node` that wrote to a tensor and that the pass removed."""
    left = {n.name for n in after.graph.nodes}
    earlier = itertools.takewhile(lambda n: n.name != node.name, before.graph.nodes)
    lost = [n for n in earlier if n.name not in left and n.op == "call_function" and has_side_effects(n)]
    return lost[-1] if lost else None


def _ancestors(node: fx.Node) -> list[fx.Node]:
    """What a node is computed from, in program order."""
    seen: set[fx.Node] = set()
    waiting = list(node.all_input_nodes)
    while waiting:
        current = waiting.pop()
        if current not in seen:
            seen.add(current)
            waiting.extend(current.all_input_nodes)
    return [n for n in node.graph.nodes if n in seen]


def _same_call(a: fx.Node, b: fx.Node) -> bool:
    return a.target == b.target and str(a.args) == str(b.args) and str(a.kwargs) == str(b.kwargs)
