"""Runs a program node by node, branches and loops included, and checks every value against its type."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch
from torch import fx

from ingot.analysis.shape_inference import Inferred, contains

hop = torch.ops.higher_order


def run_checked(module: fx.GraphModule, inputs: Sequence[Any], types: Inferred, sizes: Mapping[str, int]) -> list[Any]:
    """The results of a graph; an assertion fails at the first node whose value is not of its type."""
    by_symbol = {sympy.Symbol(name, integer=True): size for name, size in sizes.items()}
    given = iter(inputs)
    values: dict[fx.Node, Any] = {}

    def real(argument: Any) -> Any:
        if isinstance(argument, fx.Node):
            return values[argument]
        if isinstance(argument, list | tuple):
            return type(argument)(real(item) for item in argument)
        return argument

    for node in module.graph.nodes:
        if node.op == "placeholder":
            values[node] = next(given)
        elif node.op == "get_attr":
            values[node] = getattr(module, str(node.target))
            continue
        elif node.op == "output":
            return list(real(node.args[0])) if isinstance(node.args[0], list | tuple) else [real(node.args[0])]
        else:
            args, kwargs = real(node.args), {key: real(value) for key, value in node.kwargs.items()}
            if node.target is hop.cond:
                pred, true, false, operands = args
                values[node] = tuple(run_checked(true if bool(pred) else false, operands, types, sizes))
            elif node.target is hop.while_loop:
                condition, body, carried, additional = args
                while bool(run_checked(condition, (*carried, *additional), types, sizes)[0]):
                    carried = run_checked(body, (*carried, *additional), types, sizes)
                values[node] = tuple(carried)
            elif node.target is operator.getitem:
                values[node] = args[0][args[1]]
            else:
                values[node] = node.target(*args, **kwargs)
        assert contains(types[node], values[node], by_symbol), (
            f"{node.name} is {_format(values[node])}, not {types[node]}"
        )
    raise AssertionError("a graph has an output")


def _format(value: Any) -> str:
    return f"{value.dtype}{list(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)
