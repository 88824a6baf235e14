"""Which operations of a graph have native code: each is compiled alone, as far as its loops."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from ingot import compiler
from ingot import torch_internals as internals
from ingot.dynamo.arguments import Arguments, GraphModel, capture_graph, only_ingot_errors
from ingot.dynamo.options import BackendOptions
from ingot.errors import IngotError, UnsupportedOperator, format_error
from ingot.ir.metadata import tensors_in, value_of, where
from ingot.ir.printer import operator_name
from ingot.targets.registry import find_target

# Whose operators torch.distributed runs.
_COMMUNICATING = ("_c10d_functional", "_c10d_functional_autograd", "c10d")


class Support:
    """Answers for the operations of one graph, kept by what they depend on."""

    def __init__(self, graph: fx.GraphModule, options: BackendOptions) -> None:
        self._graph = graph
        self._options = options
        self._known: dict[Any, str | None] = {}

    def reason_against(self, node: fx.Node) -> str | None:
        """Why an operation cannot be native; None where it can."""
        if communicates(node):
            return _reason(node, "it exchanges values with other processes")
        if node.target is operator.getitem:
            given = node.args[0]
            assert isinstance(given, fx.Node)
            return self.reason_against(given)
        if is_number(node):
            return None
        if self._options.fallback_random and draws(node):
            return _reason_of_draw(node)
        values = [*tensors_in(value_of(node)), *(t for n in node.all_input_nodes for t in tensors_in(value_of(n)))]
        if any(t.layout is not torch.strided for t in values):
            return _reason(node, "native code has no sparse values")
        key = _key(node)
        if key not in self._known:
            self._known[key] = self._try(node)
        return self._known[key]

    def _try(self, node: fx.Node) -> str | None:
        graph = _alone(self._graph, node)
        arguments = Arguments(graph)
        values = arguments.example_values()
        fixed = {place: arguments.fakes[place] for place in arguments.fixed}
        fixed |= {place: 1 for place in arguments.numbers}
        target = find_target(compiler.choose_target(arguments.fakes))
        with internals.leave_torch_compile(), internals.ignore_warnings():
            try:
                with only_ingot_errors():
                    model = GraphModel(graph, arguments, {}, fixed, values)
                    program = compiler.run_cpu_pipeline(capture_graph(model, values), (), target)
                    target.lower(program, self._options.precision)
            except IngotError as error:
                return str(error)
        return None


def draws(node: fx.Node) -> bool:
    """Whether an operation draws random numbers."""
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def communicates(node: fx.Node) -> bool:
    """Whether an operation exchanges values with other processes, or waits until they are there."""
    if node.target is operator.getitem and isinstance(node.args[0], fx.Node):  # of a collective of several tensors
        return communicates(node.args[0])
    return isinstance(node.target, torch._ops.OpOverload) and node.target.namespace in _COMMUNICATING


def waits(node: fx.Node) -> bool:
    """Whether an operation waits for a collective."""
    return communicates(node) and node.target is not operator.getitem and "wait_tensor" in operator_name(node.target)


def check_draws(graph: fx.GraphModule, options: BackendOptions) -> None:
    """Raises UnsupportedOperator for a graph that draws random numbers, where eager is to draw them."""
    for node in graph.graph.nodes:
        if options.fallback_random and draws(node):
            raise UnsupportedOperator(_reason_of_draw(node))


def _reason_of_draw(node: fx.Node) -> str:
    return format_error(f"{operator_name(node.target)} draws random numbers.", why="fallback_random is set")


def is_number(node: fx.Node) -> bool:
    """Whether a node is a size, or arithmetic on sizes: known before any tensor is computed."""
    value = value_of(node)
    return isinstance(value, int | float | bool | torch.SymInt | torch.SymFloat | torch.SymBool) and (
        not isinstance(node.target, torch._ops.OpOverload) or "sym_" in operator_name(node.target)
    )


def _alone(graph: fx.GraphModule, node: fx.Node) -> fx.GraphModule:
    """A graph of one operation."""
    made = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for given in node.all_input_nodes:
        if given.op == "get_attr":
            copies[given] = made.node_copy(given)
        else:
            copies[given] = made.placeholder(given.name)
            copies[given].meta.update(given.meta)
    copy = made.node_copy(node, lambda n: copies[n])
    made.output(copy)
    return fx.GraphModule(graph, made)


def _key(node: fx.Node) -> Any:
    """What the answer depends on."""

    def describe(value: Any) -> Any:
        if not isinstance(value, fx.Node):
            return value
        found = value_of(value)
        if isinstance(found, torch.Tensor):
            return found.dtype, str(tuple(found.shape)), found.device.type
        return str(value.target) if value.op == "get_attr" else str(found)

    return node.target, str(fx.node.map_aggregate((node.args, node.kwargs), describe))


def _reason(node: fx.Node, why: str) -> str:
    return format_error(f"{operator_name(node.target)} has no native code.", where=where(node), why=why)
