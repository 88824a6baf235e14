"""Which operations of a graph in pieces run together: its stages.

Operations of an even stage are native code together, those of an odd one run in eager. An operation comes as early as
what it needs allows, so the pieces are few and large, and stages in their order depend on earlier ones only.

Collectives are operations of eager: torch.distributed exchanges the values, in the order of the graph, as every process
expects it of the others. With `overlap`, native code that needs no result of a collective runs between its start and
its wait:

    0  native   h = a @ b
    1  eager    s = all_reduce(h)
    2  native   g = c @ d          needs no result of the collective
    3  eager    w = wait_tensor(s)
    4  native   w + g
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import fx

from ingot.dynamo.support import Support, communicates, draws, is_number, waits
from ingot.ir.metadata import tensors_in, value_of

# Operations that read and write fewer values are done before messages are on their way.
_WORTHWHILE = 1 << 15


@dataclass
class StagePlan:
    """The stages of a graph's operations, in an order in which they can run; and why some of them are not native."""

    support: Support
    overlap: bool = True
    of: dict[fx.Node, int] = field(default_factory=dict)
    reasons: dict[str, None] = field(default_factory=dict)
    communications: int = 0
    _begun: dict[fx.Node, int] = field(default_factory=dict)  # collectives on their way, with their stage
    _in_order: int = 1  # draws of random numbers, collectives and other effects stay in their order
    _busy: int = 0  # the last stage with operations that are worth to run meanwhile

    def place(self, node: fx.Node) -> None:
        """Gives an operation its stage. Those that it needs have theirs."""
        earliest = max((self.of.get(given, 0) for given in node.all_input_nodes), default=0)
        reason = self.support.reason_against(node)
        if reason is None:
            self.of[node] = earliest if is_number(node) else self._place_native(node, earliest + earliest % 2)
            return
        stage = earliest + 1 - earliest % 2
        if waits(node):
            stage = self._place_wait(node, stage)
        elif communicates(node):
            stage = self._in_order = max(self._in_order, stage)
            self._begun[node] = stage
        elif node.is_impure() or draws(node):
            stage = self._in_order = max(self._in_order, stage)
        if communicates(node):
            self.communications += 1
        else:
            self.reasons[reason] = None
        self.of[node] = stage

    def _place_native(self, node: fx.Node, stage: int) -> int:
        if self.overlap and _is_worthwhile(node):
            stage = max(stage, max(self._begun.values(), default=-1) + 1)
            self._busy = max(self._busy, stage)
        return stage

    def _place_wait(self, node: fx.Node, stage: int) -> int:
        collectives = [given for given in _collect_makers(node) if given in self._begun]
        if self.overlap and any(self._busy > self._begun[given] for given in collectives):
            stage = max(stage, self._busy + 1)
        for given in collectives:
            del self._begun[given]
        return stage


def choose_stages(graph: fx.GraphModule, support: Support, written: Mapping[fx.Node, None], overlap: bool) -> StagePlan:
    """Stages of all operations but those that are written in the end."""
    found = StagePlan(support, overlap)
    late: dict[fx.Node, None] = {}  # waits whose result nothing has needed yet
    for node in graph.graph.nodes:
        if node.op == "output":
            break
        if node.op != "call_function" or node in written:
            continue
        if overlap and waits(node):
            late[node] = None
            continue
        for given in [given for given in node.all_input_nodes if given in late]:
            found.place(given)
            del late[given]
        found.place(node)
    for node in late:
        found.place(node)
    return found


def _collect_makers(node: fx.Node) -> list[fx.Node]:
    """What a node takes, and of an element of a list the list."""
    given = node.all_input_nodes
    return [*given, *(inner for one in given for inner in one.all_input_nodes)]


def _is_worthwhile(node: fx.Node) -> bool:
    values = [*tensors_in(value_of(node)), *(t for given in node.all_input_nodes for t in tensors_in(value_of(given)))]
    return sum(_size(value) for value in values) >= _WORTHWHILE


def _size(tensor: torch.Tensor) -> int:
    return _WORTHWHILE if any(isinstance(size, torch.SymInt) for size in tensor.shape) else tensor.numel()
