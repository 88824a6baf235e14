"""A half of a model that trains, forward or backward, as native code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from ingot import torch_internals as internals
from ingot.artifacts.compiled_model import CompiledModel
from ingot.frontend.source_locations import SourceLocationInterpreter
from ingot.ir import effect_tokens
from ingot.ir.metadata import value_of

aten = torch.ops.aten

# A graph on example arguments, as native code.
Build = Callable[[nn.Module, Sequence[torch.Tensor]], CompiledModel]
_VIEWS = (aten.permute.default, aten.transpose.int, aten.t.default, aten.view.default, aten.unsqueeze.default)


@dataclass(frozen=True)
class CompiledGraph:
    """One half as native code. What it would only hand through, a saved argument or a view of one, never enters it."""

    compiled: CompiledModel | None
    # Of each result: ("argument", place), ("view", (place, calls)), ("result", (place, strides)) or ("value", itself).
    sources: tuple[tuple[str, Any], ...]
    taken: tuple[int, ...] = ()  # the arguments that it computes with

    @staticmethod
    def build(graph: fx.GraphModule, inputs: Sequence[Any], build: Build) -> CompiledGraph:
        internals.call_without_tokens(graph.graph)
        places = {n: i for i, n in enumerate(n for n in graph.graph.nodes if n.op == "placeholder")}
        output = graph.graph.output_node()
        computed: dict[fx.Node, int] = {}
        sources: list[tuple[str, Any]] = []
        results: Any = output.args[0]
        for result in results:
            node, views = _origin(result)
            if not isinstance(node, fx.Node):
                sources.append(("value", node))
            elif effect_tokens.is_token(node):  # native code has none: its effects are in order
                sources.append(("value", effect_tokens.new_token()))
            elif node in places:
                sources.append(("view", (places[node], views)) if views else ("argument", places[node]))
            else:
                place = computed.setdefault(result, len(computed))
                sources.append(("result", (place, _strides(result))))
        output.args = (tuple(computed),)
        graph.graph.eliminate_dead_code(is_impure_node=_is_kept)
        graph.recompile()
        if not computed and not any(_is_effect(node) for node in graph.graph.nodes):
            return CompiledGraph(None, tuple(sources))
        taken = tuple(place for node, place in places.items() if node.users)
        for node in [node for node in places if not node.users]:
            graph.graph.erase_node(node)
        graph.recompile()
        with internals.detach_from_dynamo():
            examples = [_example(inputs[place]) for place in taken]
            return CompiledGraph(build(GraphAsModule(graph), examples), tuple(sources), taken)

    def __call__(self, arguments: list[Any]) -> list[Any]:
        """The results. autograd frees what it hands over in a list as soon as the list is emptied."""
        given = list(arguments)
        arguments.clear()
        made = self._run(given)
        answers: Mapping[str, Callable[[Any], Any]] = {
            "argument": lambda place: given[place],
            "view": lambda view: _apply_views(given[view[0]], view[1]),
            "result": lambda result: _lay_out(made[result[0]], result[1]),
            "value": lambda value: value,
        }
        return [answers[kind](place) for kind, place in self.sources]

    def _run(self, given: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        if self.compiled is None:
            return ()
        if isinstance(self.compiled, CompiledModel) and self.compiled.draws:
            # torch's generator decides about our draws too: a new number for each call.
            self.compiled.seed(int(torch.randint(0, 2**62, ())))
        made: Sequence[torch.Tensor] = self.compiled(*(given[place].detach().contiguous() for place in self.taken))
        return made

    def close(self) -> None:
        if self.compiled is not None:
            self.compiled.close()


class GraphAsModule(nn.Module):
    """A graph that closes over nothing, as a model of its arguments."""

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__()
        self.graph = graph

    def forward(self, *arguments: torch.Tensor) -> Any:
        return SourceLocationInterpreter(self.graph).run(*arguments)


def _origin(result: Any) -> tuple[Any, tuple[Any, ...]]:
    """What a result is another name or a view of, and the calls that make the view of it."""
    node, calls = result, []
    while isinstance(node, fx.Node) and node.target in (aten.alias.default, aten.detach.default, *_VIEWS):
        if node.target in _VIEWS:
            calls.append((node.target, node.args[1:]))
        node = node.args[0]
    return node, tuple(reversed(calls))


def _apply_views(tensor: torch.Tensor, calls: Sequence[tuple[Any, Any]]) -> torch.Tensor:
    for view, args in calls:
        tensor = view(tensor, *args)
    return tensor


def _strides(node: fx.Node) -> tuple[int, ...] | None:
    """The strides that a result must have; None where its values lie in order, as those of native code do."""
    value = value_of(node)
    return None if not isinstance(value, torch.Tensor) or value.is_contiguous() else tuple(map(int, value.stride()))


def _lay_out(result: torch.Tensor, strides: tuple[int, ...] | None) -> torch.Tensor:
    if strides is None:
        return result
    shape = result.shape
    for dim, step in enumerate(strides):
        if step == 0 and shape[dim] > 1:  # the same value along that dim
            result = result.narrow(dim, 0, 1)
    made = torch.empty_strided(result.shape, strides, dtype=result.dtype, device=result.device)
    return result if internals.overlaps_itself(made) else made.copy_(result).expand(shape)


def _is_effect(node: fx.Node) -> bool:
    is_check = node.target is aten._linalg_check_errors.default
    return node.op == "call_function" and (is_check or "_assert" in str(node.target))


def _is_kept(node: fx.Node) -> bool:
    return node.op in ("placeholder", "output") or _is_effect(node)


def _example(value: torch.Tensor) -> torch.Tensor:
    """A tensor like the one that the graph was traced with; its values are not read."""
    shape, strides = tuple(map(int, value.shape)), tuple(map(int, value.stride()))
    if any(step == 0 and size > 1 for step, size in zip(strides, shape, strict=True)):
        return torch.zeros(shape, dtype=value.dtype, device=value.device)
    return torch.empty_strided(shape, strides, dtype=value.dtype, device=value.device).zero_()
