"""Operators that torch's compiler writes, in terms of those that native code has, after AOTAutograd cut the graph.

gradients              the rules of ingot.autograd
resize, as_strided     indexing of a flat tensor
_foreach_…             the operator on each tensor
all others             the table of `late_forms`
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from ingot import torch_internals as internals
from ingot.autograd.gradient_rules import Rule, gradient_rules, order_as
from ingot.dynamo.foreach import foreach_form
from ingot.dynamo.late_forms import find_late_form
from ingot.dynamo.memory_order import form_by_memory
from ingot.ir.metadata import value_of

aten = torch.ops.aten


def training_decompositions() -> dict[Any, Callable[..., Any]]:
    """What AOTAutograd takes apart before it cuts a graph in halves, so that it can choose what is computed again.

    Without attention, whose decomposition does not return what its gradient needs.
    """
    table, rules = internals.default_decompositions(), gradient_rules()
    return {target: decompose for target, decompose in table.items() if target not in rules}


def replace_operators(graph: fx.GraphModule) -> None:
    """Replaces operators that have a rule here with calls of it, which a capture looks into.

    A view is a reshape then: what rules return has other strides than torch's operators, and native code has none.
    """
    rules = gradient_rules()
    for node in graph.graph.nodes:
        _drop_generator(node)
        node.target = form_by_memory(node) or node.target
    reads_strides = any(node.target is aten.as_strided.default for node in graph.graph.nodes)
    for node in graph.graph.nodes:
        if node.op != "call_function":
            continue
        rule = find_late_form(node.target) or rules.get(node.target) or foreach_form(node.target)
        if rule is not None:
            node.target = _keep_strides(rule, value_of(node)) if reads_strides else rule
        elif node.target is aten.view.default:
            node.target = aten.reshape.default
    graph.recompile()


def _drop_generator(node: fx.Node) -> None:
    """Calls the overload without a generator where there is none."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or node.kwargs.get("generator", node) is not None:
        return
    name = target._overloadname.removesuffix("generator").removesuffix("_") or "default"
    if name != target._overloadname and name in target.overloadpacket.overloads():
        node.target = getattr(target.overloadpacket, name)
        node.kwargs = {key: value for key, value in node.kwargs.items() if key != "generator"}


def _keep_strides(rule: Rule, fakes: Any) -> Rule:
    """The rule with results in the order of memory of those that torch's operator has."""

    def restride(result: Any, fake: Any) -> Any:
        both = isinstance(result, torch.Tensor) and isinstance(fake, torch.Tensor)
        return order_as(result, fake) if both else result

    def run(*args: Any, **kwargs: Any) -> Any:
        results = rule(*args, **kwargs)
        if isinstance(results, torch.Tensor):
            return restride(results, fakes)
        return [restride(result, fake) for result, fake in zip(results, fakes, strict=True)]

    return run
