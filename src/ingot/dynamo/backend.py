"""What torch.compile calls: from its graph to functional graphs, and each of those to native code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import fx

from ingot import compiler
from ingot import torch_internals as internals
from ingot.autograd.second_derivative import OnceDifferentiable
from ingot.dynamo.memory_order import anchor_strided_views
from ingot.dynamo.native_graph import NativeGraph
from ingot.dynamo.operator_rules import training_decompositions
from ingot.dynamo.options import BackendOptions, read_options
from ingot.dynamo.pieces import SplitGraph
from ingot.dynamo.report import GraphReport, Half, publish
from ingot.dynamo.support import check_draws
from ingot.errors import IngotError

Graph = Callable[..., Any]


def compile_graph(graph: fx.GraphModule, inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None) -> Graph:
    """What torch.compile calls with each graph: native code for it, for its gradient too where it needs one.

    What cannot be native code runs in eager. A graph of tensors on a GPU runs there, on torch's current stream.
    `options` are those of BackendOptions.
    """
    chosen = read_options(options, compiler.choose_target(inputs))
    needs_gradients = torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in inputs)
    state = {place: x for place, x in enumerate(inputs) if isinstance(x, torch.Tensor) and internals.is_static_input(x)}
    try:
        return internals.compile_functional(
            graph,
            inputs,
            inference=partial(compile_half, "inference", state, chosen),
            forward=partial(compile_half, "forward", {}, chosen),
            backward=partial(_compile_backward, chosen),
            decompositions=training_decompositions() if needs_gradients else {},
        )
    except Exception as error:
        if internals.is_for_dynamo(error):
            raise
        why = f"{type(error).__name__}: {error}"
        publish(GraphReport("inference", _operations(graph), 0, 0, 0, (why,)), chosen.on_graph)
        return graph.forward


def _compile_backward(options: BackendOptions, graph: fx.GraphModule, inputs: Sequence[Any]) -> OnceDifferentiable:
    return OnceDifferentiable(compile_half("backward", {}, options, graph, inputs))


def _operations(graph: fx.GraphModule) -> int:
    return sum(node.op.startswith("call_") for node in graph.graph.nodes)


def compile_half(
    half: Half, state: Mapping[int, torch.Tensor], options: BackendOptions, graph: fx.GraphModule, inputs: Sequence[Any]
) -> Callable[[list[Any]], Sequence[Any]]:
    kept = {}
    for place, node in enumerate(node for node in graph.graph.nodes if node.op == "placeholder"):
        number = internals.argument_number(node)
        if number is not None and number in state:
            kept[place] = state[number]
    internals.call_without_tokens(graph.graph)
    operations = _operations(graph)
    try:
        anchor_strided_views(graph)
        return _compile_native(half, kept, options, graph, operations)
    except Exception as error:  # of one half only: the other one, and the user's program, go on
        if internals.is_for_dynamo(error):
            raise
        why = f"{type(error).__name__}: {error}"
        publish(GraphReport(half, operations, 0, 0, 0, (why,)), options.on_graph)
        return Interpreted(graph)


def _compile_native(
    half: Half,
    state: Mapping[int, torch.Tensor],
    options: BackendOptions,
    graph: fx.GraphModule,
    operations: int,
) -> Callable[[list[Any]], Sequence[Any]]:
    try:
        check_draws(graph, options)
        made = NativeGraph(graph, state, options)
    except IngotError as error:
        split = SplitGraph(graph, state, options)
        operations -= split.writes
        rest = operations - split.native - split.communications
        reasons = tuple(split.reasons) or ((str(error),) if rest else ())
        report = GraphReport(
            half, operations, split.native, split.native_pieces, split.kernels, reasons, split.communications
        )
        publish(report, options.on_graph)
        return split
    publish(GraphReport(half, operations, operations, 1, made.kernels), options.on_graph)
    return made


class Interpreted:
    """A graph in eager, called with a list, which it empties."""

    def __init__(self, graph: fx.GraphModule) -> None:
        self._boxed_call = True  # of this object: torch copies its attributes to a wrapper
        self._graph = graph

    def __call__(self, arguments: list[Any]) -> list[Any]:
        args = list(arguments)
        arguments.clear()
        return list(self._graph(*args))
