"""Removes what is not used: nodes, sub-GraphModules, operands and outputs of regions and branches.

before                                                  after
exp = aten.exp(x)                                       call = wrap_with_autocast(…, region, x)
call = wrap_with_autocast(…, region, x, exp)            item = call[0]
item, item_1 = call[0], call[1]                         return (item,)
return (item,)
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from ingot.analysis.side_effects import has_side_effects
from ingot.ir import metadata, subgraphs
from ingot.ir.dialects import CAPTURED
from ingot.ir.program import Program
from ingot.ir.signature import values_of
from ingot.passes.manager import register

hop = torch.ops.higher_order

# Operators whose functions return what the operator returns, value for value: any of them may be left out.
_REGIONS = (hop.wrap_with_autocast, hop.wrap_with_set_grad_enabled)
_CHOICES = (*_REGIONS, hop.cond)


@register(takes=CAPTURED)
def dce(program: Program) -> int:
    """Removes nodes whose value is not used and that have no side effects, in every graph; inputs of the program stay.

    A value that is an argument or a result of a preserved module call counts as used.
    """
    return remove_unused(program)


def remove_unused(program: Program) -> int:
    """What `dce` does, for passes that leave something unused behind."""
    return _clean(program.graph_module, set(values_of(program.module_calls)))


def _clean(module: fx.GraphModule, named: set[str]) -> int:
    """Cleans a graph from its end: the users of a node are visited before it."""
    count = 0
    references = Counter(str(n.target) for n in module.graph.nodes if n.op == "get_attr")
    for node in reversed(module.graph.nodes):
        if node.op in ("placeholder", "output"):
            continue
        if not node.users and node.name not in named and not has_side_effects(node) and not _holds(module, node, named):
            module.graph.erase_node(node)
            count += node.op != "get_attr"  # a function goes with the node that calls it
        elif node.target in subgraphs.LAYOUTS:
            count += _clean_call(module, node, references, named)
    kept = {str(n.target) for n in module.graph.nodes if n.op in ("get_attr", "call_module")}
    for name, child in list(module.named_children()):
        if isinstance(child, fx.GraphModule) and name not in kept:
            delattr(module, name)
            count += name not in references
    if count:
        module.recompile()
    return count


def _holds(module: fx.GraphModule, node: fx.Node, named: set[str]) -> bool:
    """Whether a value that counts as used lies inside the node's functions."""
    if not named or node.target not in subgraphs.LAYOUTS:
        return False
    functions = [getattr(module, str(attribute.target)) for attribute in subgraphs.function_attributes(node)]
    return any(inner.name in named or _holds(f, inner, named) for f in functions for inner in f.graph.nodes)


def _clean_call(module: fx.GraphModule, node: fx.Node, references: Counter[str], named: set[str]) -> int:
    """Cleans the functions of a higher-order node, and drops outputs and operands that are of no use."""
    attributes = subgraphs.function_attributes(node)
    functions = [getattr(module, str(attribute.target)) for attribute in attributes]
    alone = all(references[str(a.target)] == 1 and len(a.users) == 1 for a in attributes)
    count = _drop_outputs(node, functions, named) if alone and node.target in _CHOICES else 0
    count += sum(_clean(function, named) for function in functions)
    return count + (_drop_operands(node, functions, named) if alone else 0)


def _drop_outputs(node: fx.Node, functions: Sequence[fx.GraphModule], named: set[str]) -> int:
    outputs = [next(iter(reversed(function.graph.nodes))) for function in functions]
    returned: list[Any] = [output.args[0] for output in outputs]
    items = list(node.users)
    if not all(isinstance(values, list | tuple) for values in returned) or any(
        user.target is not operator.getitem or not isinstance(user.args[1], int) for user in items
    ):
        return 0
    total = len(returned[0])
    used = {int(user.args[1]) % total for user in items}  # type: ignore[arg-type]
    used |= {i for values in returned for i, v in enumerate(values) if isinstance(v, fx.Node) and v.name in named}
    if not used and total and node.target not in _REGIONS:
        used = {0}  # a branch that only acts must return something all the same
    kept = sorted(used)
    if len(kept) == total:
        return 0
    for output, values, function in zip(outputs, returned, functions, strict=True):
        output.args = (tuple(values[i] for i in kept),)
        _keep_values(output, kept)
        function.recompile()
    _keep_values(node, kept)
    for user in items:
        user.args = (node, kept.index(int(user.args[1]) % total))  # type: ignore[arg-type]
    return total - len(kept)


def _keep_values(node: fx.Node, kept: Sequence[int]) -> None:
    value = metadata.value_of(node)
    if isinstance(value, list | tuple):
        metadata.set_value(node, tuple(value[i] for i in kept))


def _drop_operands(node: fx.Node, functions: Sequence[fx.GraphModule], named: set[str]) -> int:
    operands = subgraphs.shared_operands(node)
    placeholders = [subgraphs.shared_placeholders(node, function) for function in functions]
    if any(len(group) != len(operands) for group in placeholders):
        return 0
    idle = [not any(p.users or p.name in named for p in group) for group in zip(*placeholders, strict=True)]
    if not any(idle):
        return 0
    for function, group in zip(functions, placeholders, strict=True):
        for placeholder, unused in zip(group, idle, strict=True):
            if unused:
                function.graph.erase_node(placeholder)
        function.recompile()
    node.args = subgraphs.replace_shared(node, [o for o, unused in zip(operands, idle, strict=True) if not unused])
    return sum(idle)
