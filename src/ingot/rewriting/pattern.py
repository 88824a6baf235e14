"""A pattern: the graph of a function, with its inputs and its literals as variables.

    def before(x, weight, bias=None):
        return torch.relu(F.conv2d(x, weight, bias))

    pattern = trace(before, (torch.randn(1, 3, 8, 8), torch.randn(4, 3, 3, 3), torch.randn(4)))

Example inputs give ranks and types; sizes do not matter. An input whose default is None may be missing in a match.
Every literal that an operator is given (a stride, an eps, a dtype) is a variable: it is whatever the match has there. A
number among the example inputs is a variable with a name: it stands where the pattern's operators are given just that
number.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from ingot import torch_internals as internals
from ingot.errors import PatternError, format_error
from ingot.frontend.trace import trace as capture
from ingot.ir import metadata
from ingot.ir.program import Program
from ingot.ir.signature import InputKind

_NUMBERS = (bool, int, float, complex, str, torch.dtype)


@dataclass(frozen=True, eq=False)
class Pattern:
    """`inputs` names the placeholders, `optional` those of them that a match may lack, `numbers` the inputs that are
    literals, with their example values."""

    name: str
    graph: fx.Graph
    inputs: Mapping[fx.Node, str]
    optional: frozenset[str]
    numbers: Mapping[str, Any]
    parameters: tuple[str, ...]
    calls: tuple[fx.Node, ...] = field(init=False)
    results: tuple[fx.Node, ...] = field(init=False)

    def __post_init__(self) -> None:
        calls = tuple(node for node in self.graph.nodes if node.op == "call_function")
        object.__setattr__(self, "calls", calls)
        object.__setattr__(self, "results", _results(self.graph, self.name))

    def number(self, value: Any) -> str | None:
        """The input that a literal stands for, or None where it is a literal of the pattern's own."""
        for name, example in self.numbers.items():
            if type(value) is type(example) and value == example:
                return name
        return None

    def __str__(self) -> str:
        return f"{self.name}: {len(self.calls)} operators\n{self.graph}"


def trace(function: Callable[..., Any], example_inputs: Sequence[Any], cuda: bool = False) -> Pattern:
    """The function as a pattern of the operators that a captured program holds. `cuda` moves the examples there first.

    Raises PatternError for what cannot be a pattern: a function that owns tensors, or computes nothing.
    """
    return pattern_of(trace_pattern(function, example_inputs, cuda=cuda), function, example_inputs)


def trace_pattern(function: Callable[..., Any], example_inputs: Sequence[Any], *, cuda: bool = False) -> Program:
    """The function as a program."""
    check_examples(function, example_inputs)
    if cuda:
        example_inputs = [x.cuda() if isinstance(x, torch.Tensor) else x for x in example_inputs]
    return capture(function, tuple(example_inputs))


def check_examples(function: Callable[..., Any], example_inputs: Sequence[Any]) -> None:
    """Raises PatternError unless there is one example for each input, of a kind that a match can have."""
    if isinstance(example_inputs, torch.Tensor) or not isinstance(example_inputs, Sequence):
        raise PatternError(
            format_error("Example inputs are a sequence, one for each input of the pattern.", fix="give a tuple: (x,)")
        )
    _parameters(function, len(example_inputs))
    for value in example_inputs:
        if value is not None and not isinstance(value, (torch.Tensor, *_NUMBERS)):
            raise PatternError(
                format_error(
                    f"An example input of {_name(function)} is a {type(value).__name__}.",
                    why="inputs of a pattern are tensors, numbers, dtypes, or None",
                    fix="give each tensor as an input of its own",
                )
            )


def pattern_of(program: Program, function: Callable[..., Any], example_inputs: Sequence[Any]) -> Pattern:
    """A traced function, perhaps after passes, as a pattern."""
    graph = program.graph
    _eliminate_dead_code(graph)
    name = _name(function)
    for spec in program.signature.placeholders:
        if spec.kind is not InputKind.ARGUMENT:
            raise PatternError(
                format_error(
                    f"The pattern {name} owns the tensor {spec.target}.",
                    why="a match could only be a model that owns the very same one",
                    fix="make it an input of the pattern",
                )
            )
    parameters = _parameters(function, len(example_inputs))
    tensors = [p.name for p, value in zip(parameters, example_inputs, strict=True) if isinstance(value, torch.Tensor)]
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    numbers = {
        p.name: value for p, value in zip(parameters, example_inputs, strict=True) if isinstance(value, _NUMBERS)
    }
    if len({(type(value), value) for value in numbers.values()}) < len(numbers):
        raise PatternError(
            format_error(
                f"Two numbers among the example inputs of {name} are the same.",
                why="each stands where the pattern's operators are given just that number",
                fix="give numbers that differ, and that the pattern has nowhere else",
            )
        )
    return Pattern(
        name,
        graph,
        dict(zip(placeholders, tensors, strict=True)),
        frozenset(p.name for p in parameters if p.default is None),
        numbers,
        tuple(p.name for p in parameters),
    )


def arguments_of(node: fx.Node) -> dict[str, Any]:
    """What an operator is given by name, defaults included, however it was written."""
    target: Any = node.target
    if not isinstance(target, internals.OpOverload):
        return {**{str(place): value for place, value in enumerate(node.args)}, **node.kwargs}
    return internals.fill_arguments(target, node.args, node.kwargs)


def _parameters(function: Callable[..., Any], count: int) -> list[inspect.Parameter]:
    call = function.forward if isinstance(function, torch.nn.Module) else function
    try:
        found = [p for p in inspect.signature(call).parameters.values() if p.kind is not p.VAR_KEYWORD]
    except ValueError:  # torch.relu and the like do not say
        return [inspect.Parameter(f"input{n}", inspect.Parameter.POSITIONAL_ONLY) for n in range(count)]
    if any(p.kind is p.VAR_POSITIONAL for p in found):
        raise PatternError(format_error(f"The pattern {_name(function)} takes *args.", fix="give its inputs names"))
    required = [p for p in found if p.default is p.empty]
    if not len(required) <= count <= len(found):
        raise PatternError(
            format_error(f"The pattern {_name(function)} takes {len(found)} inputs, but there are {count} examples.")
        )
    return found[:count]


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _eliminate_dead_code(graph: fx.Graph) -> None:
    """Without unused nodes; a copy back to an input that torch recorded is not part of the pattern."""
    for node in reversed(list(graph.nodes)):
        target: Any = node.target
        if node.op in ("placeholder", "output") or node.users:
            continue
        writes = isinstance(target, internals.OpOverload) and target._schema.is_mutable
        if not writes or target is torch.ops.aten.copy_.default:
            graph.erase_node(node)


def _results(graph: fx.Graph, name: str) -> tuple[fx.Node, ...]:
    (output,) = (node for node in graph.nodes if node.op == "output")
    found: list[fx.Node] = []
    fx.map_arg(output.args[0], found.append)
    if not found or any(node.op != "call_function" for node in found):
        raise PatternError(
            format_error(
                f"The pattern {name} returns what it was given, or nothing.",
                why="a match is found by the operators that compute the results",
                fix="return what the pattern computes, and nothing else",
            )
        )
    if any(node.op == "get_attr" for node in graph.nodes):
        where = next(metadata.where(n) for n in graph.nodes if n.op == "get_attr")
        raise PatternError(format_error(f"The pattern {name} has branches or loops inside.", where=where))
    return tuple(found)
