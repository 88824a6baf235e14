"""A graph that native code cannot do alone, in pieces: some are native, the others run in eager.

Operations are given to stages, see `stages`. What the graph writes to its arguments is written after the last stage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from ingot.dynamo.native_graph import NativeGraph
from ingot.dynamo.options import BackendOptions
from ingot.dynamo.stages import choose_stages
from ingot.dynamo.support import Support
from ingot.errors import IngotError

aten = torch.ops.aten


@dataclass(frozen=True)
class _Piece:
    """A stage: what it takes and gives are nodes of the whole graph. `frees` is what no later stage needs."""

    run: Callable[[list[Any]], Sequence[Any]]
    takes: tuple[fx.Node, ...]
    gives: tuple[fx.Node, ...]
    frees: tuple[fx.Node, ...]


class SplitGraph:
    """A graph in pieces, called with a list, which it empties."""

    def __init__(self, graph: fx.GraphModule, state: Mapping[int, torch.Tensor], options: BackendOptions) -> None:
        self._boxed_call = True
        self.reasons: dict[str, None] = {}
        self.native = 0
        self.native_pieces = 0
        self.kernels = 0
        self.communications = 0
        self._graph = graph
        self._options = options
        self._arguments = [node for node in graph.graph.nodes if node.op == "placeholder"]
        self._state = {self._arguments[place]: tensor for place, tensor in state.items()}
        self._outputs: Any = graph.graph.output_node().args[0]
        self._writes = _find_writes(graph, self._arguments)
        self.writes = len(self._writes or ())
        self._pieces: list[_Piece] = []
        if self._writes is not None:
            self._cut()

    def __call__(self, arguments: list[Any]) -> list[Any]:
        if not self._pieces or self._writes is None:
            args = list(arguments)
            arguments.clear()
            return list(self._graph(*args))
        values: dict[Any, Any] = dict(zip(self._arguments, arguments, strict=True))
        arguments.clear()
        for piece in self._pieces:
            values.update(zip(piece.gives, piece.run([values[node] for node in piece.takes]), strict=True))
            for node in piece.frees:
                del values[node]
        for target, source in self._writes:
            values[target].copy_(values[source])
        return [values[item] if isinstance(item, fx.Node) else item for item in self._outputs]

    def _cut(self) -> None:
        written = {node: None for node in self._graph.graph.nodes if _is_write(node)}
        chosen = choose_stages(self._graph, Support(self._graph, self._options), written, self._options.overlap)
        stages, self.communications = chosen.of, chosen.communications
        self.reasons |= chosen.reasons
        order = {node: place for place, node in enumerate(self._graph.graph.nodes)}
        kept = {node for node in self._outputs if isinstance(node, fx.Node)}
        kept |= {node for write in self._writes or () for node in write}
        members: dict[int, list[fx.Node]] = {}
        for node, stage in stages.items():
            members.setdefault(stage, []).append(node)
        last: dict[fx.Node, int] = {}
        for node, stage in stages.items():
            for given in node.all_input_nodes:
                last[given] = max(last.get(given, 0), stage)
        for stage in sorted(members):
            inside = set(members[stage])
            takes = {given: None for node in members[stage] for given in node.all_input_nodes if given.op != "get_attr"}
            takes = {node: None for node in sorted(takes, key=order.__getitem__) if node not in inside}
            gives = [n for n in members[stage] if n in kept or any(stages.get(user, -1) != stage for user in n.users)]
            gives = [node for node in gives if node in kept or any(user in stages for user in node.users)]
            known = {*self._arguments, *(node for piece in self._pieces for node in piece.gives), *gives}
            frees = tuple(node for node in known if last.get(node, -1) == stage and node not in kept)
            graph = _part(self._graph, members[stage], tuple(takes), gives)
            run = self._compile(graph, tuple(takes), members[stage]) if stage % 2 == 0 else _run_eager(graph)
            self._pieces.append(_Piece(run, tuple(takes), tuple(gives), frees))

    def _compile(
        self, graph: fx.GraphModule, takes: Sequence[fx.Node], members: Sequence[fx.Node]
    ) -> Callable[[list[Any]], Sequence[Any]]:
        state = {place: self._state[node] for place, node in enumerate(takes) if node in self._state}
        try:
            made = NativeGraph(graph, state, self._options)
        except IngotError as error:
            self.reasons[str(error)] = None
            return _run_eager(graph)
        self.native += len(members)
        self.native_pieces += 1
        self.kernels += made.kernels
        return made


def _run_eager(graph: fx.GraphModule) -> Callable[[list[Any]], Sequence[Any]]:
    return lambda values: graph(*values)


def _is_write(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return node.op == "call_function" and schema is not None and schema.is_mutable


def _find_writes(graph: fx.GraphModule, arguments: Sequence[fx.Node]) -> list[tuple[fx.Node, fx.Node]] | None:
    """What is copied to which argument in the end; None where the graph writes in another way."""
    found: list[tuple[fx.Node, fx.Node]] = []
    for node in graph.graph.nodes:
        if _is_write(node):
            if node.target is not aten.copy_.default or node.args[0] not in arguments or node.users:
                return None
            target, source = node.args[0], node.args[1]
            assert isinstance(target, fx.Node) and isinstance(source, fx.Node)
            found.append((target, source))
    return found


def _part(
    graph: fx.GraphModule, nodes: Sequence[fx.Node], takes: Sequence[fx.Node], gives: Sequence[fx.Node]
) -> fx.GraphModule:
    """A part of a graph as a graph."""
    made = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in takes:
        copies[node] = made.placeholder(node.name)
        copies[node].meta.update(node.meta)
    for node in nodes:
        for given in node.all_input_nodes:
            if given.op == "get_attr" and given not in copies:
                copies[given] = made.node_copy(given)
        copies[node] = made.node_copy(node, lambda n: copies[n])
    made.output(tuple(copies[node] for node in gives))
    return fx.GraphModule(graph, made)
