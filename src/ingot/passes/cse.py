"""Computes once what a graph computes twice.

before                              after
exp = aten.exp(x)                   exp = aten.exp(x)
exp_1 = aten.exp(x)                 add = aten.add(exp, exp)
add = aten.add(exp, exp_1)
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import torch
from torch import fx

from ingot import torch_internals as internals
from ingot.analysis.alias import escaping, may_alias, returned_nodes
from ingot.analysis.side_effects import has_side_effects
from ingot.ir import metadata
from ingot.ir.dialects import FUNCTIONAL
from ingot.ir.outlining import graph_modules
from ingot.ir.program import Program
from ingot.ir.signature import rename_calls, values_of
from ingot.passes.manager import register


@register(takes=FUNCTIONAL)
def cse(program: Program) -> int:
    """Equal pure nodes of one graph become the first of them. Two results stay two tensors, as they were in eager."""
    names: dict[str, str] = {}
    named = named_values(program)
    count = 0
    for module in graph_modules(program.graph_module):
        root = module is program.graph_module
        count += _merge(module, names if root else {}, frozenset() if root else named)
    follow(program, names)
    return count


def _merge(module: fx.GraphModule, names: dict[str, str], fixed: frozenset[str]) -> int:
    """Merges in one graph and writes down what became what; nodes whose names are `fixed` stay."""
    returned, escapes = returned_nodes(module.graph), escaping(module.graph)
    first: dict[Hashable, list[fx.Node]] = {}
    count = 0
    for node in list(module.graph.nodes):
        if node.op != "call_function" or not _pure(node):
            continue
        group = first.setdefault((node.target, key_of(node.args), key_of(dict(node.kwargs))), [])
        twin = next((n for n in group if not _both_leave(n, node, returned, escapes)), None)
        if twin is None or node.name in fixed:
            group.append(node)
            continue
        node.replace_all_uses_with(twin)
        if node in escapes:
            escapes.add(twin)
        if node in returned:
            returned.add(twin)
        names[node.name] = twin.name
        module.graph.erase_node(node)
        count += 1
    if count:
        module.recompile()
    return count


def _pure(node: fx.Node) -> bool:
    """Whether the node's value depends on nothing but its arguments. A size known only at run time has one node."""
    if isinstance(node.target, internals.HigherOrderOperator) or metadata.bindings_of(node):
        return False
    tags = node.target.tags if isinstance(node.target, internals.OpOverload) else ()
    return not has_side_effects(node) and torch.Tag.nondeterministic_seeded not in tags


def _both_leave(a: fx.Node, b: fx.Node, returned: set[fx.Node], escapes: set[fx.Node]) -> bool:
    """Whether merging would let two results share memory that they did not share before."""
    return (a in returned and b in returned) or (a in escapes and b in escapes and not may_alias(a))


def key_of(argument: Any) -> Hashable:
    """An argument as something to compare: literals differ by type, by the sign of zero, and nan is nan."""
    if isinstance(argument, list | tuple):
        return ("list", *(key_of(item) for item in argument))
    if isinstance(argument, dict):
        return ("dict", *sorted((key, key_of(item)) for key, item in argument.items()))
    if isinstance(argument, slice):
        return ("slice", key_of(argument.start), key_of(argument.stop), key_of(argument.step))
    if isinstance(argument, float | complex):
        return (type(argument).__name__, repr(argument))
    return (type(argument).__name__, argument)


# ---------------------------------------------------------------------- what results share memory with


# ---------------------------------------------------------------------- names


def named_values(program: Program) -> frozenset[str]:
    """The nodes that module calls name as their arguments and results."""
    return values_of(program.module_calls)


def follow(program: Program, names: Mapping[str, str]) -> None:
    """Lets the program's signature and module calls name the nodes that took the place of others."""
    if names:
        program.signature = program.signature.rename_nodes(names)
        program.module_calls = rename_calls(program.module_calls, names)
