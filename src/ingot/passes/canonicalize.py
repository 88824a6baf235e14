"""Spells every call in one way, so that equal computations look equal.

before                                                  after
softmax = aten.softmax(x, dim=-1)                       sym_size = aten.sym_size(x, 0)
add = aten.add(softmax, 1, alpha=1)                     softmax = aten.softmax(x, 1)
sym_size = aten.sym_size(x, 0)                          add = aten.add(softmax, 1)
mul = aten.mul(2, add)                                  mul = aten.mul(add, 2)
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from ingot import torch_internals as internals
from ingot.ir import metadata
from ingot.ir.dialects import CAPTURED, FUNCTIONAL
from ingot.ir.outlining import graph_modules
from ingot.ir.program import Program
from ingot.passes.cse import follow, key_of, named_values
from ingot.passes.manager import register

aten = torch.ops.aten

_COMMUTE = frozenset({aten.add.Tensor, aten.mul.Tensor, aten.eq.Tensor, aten.ne.Tensor, operator.add, operator.mul})
# Operators whose dims count those of their first argument, and those whose dims count the result's.
_OF_INPUT = frozenset(
    (
        *(
            "softmax",
            "_softmax",
            "log_softmax",
            "_log_softmax",
            "logsumexp",
            "cumsum",
            "cumprod",
            "topk",
            "sort",
            "glu",
        ),
        *("sum", "mean", "amax", "amin", "argmax", "argmin", "max", "min", "var", "std", "prod", "any", "all"),
        *("select", "slice", "narrow", "transpose", "permute", "squeeze", "flatten", "unflatten", "flip", "roll"),
        *("unbind", "split", "split_with_sizes", "chunk", "gather", "scatter", "scatter_add", "index_select"),
        *("select_scatter", "slice_scatter", "sym_size"),
    )
)
_OF_RESULT = frozenset(("unsqueeze", "cat", "stack"))
_DIMS = frozenset(("dim", "dim0", "dim1", "dims", "start_dim", "end_dim"))


@register(takes=CAPTURED)
def canonicalize(program: Program) -> int:
    """In every graph: dims from 0 up, arguments by position up to the last that is not a default, literals second.

    In a functional graph sizes of inputs are asked for once, before everything else.
    """
    names: dict[str, str] = {}
    named = named_values(program)
    count = 0
    for module in graph_modules(program.graph_module):
        for node in module.graph.nodes:
            if node.op == "call_function":
                count += _spell(node)
        if FUNCTIONAL.accepts(program.dialect):  # before, an input may change its shape
            root = module is program.graph_module
            count += _hoist_sizes(module.graph, names if root else {}, frozenset() if root else named)
        module.recompile()
    follow(program, names)
    return count


def _spell(node: fx.Node) -> bool:
    before = (key_of(node.args), key_of(dict(node.kwargs)), tuple(node.kwargs))
    if isinstance(node.target, internals.OpOverload):
        _order_arguments(node, node.target)
    if node.target in _COMMUTE and len(node.args) == 2 and not node.kwargs:
        a, b = node.args
        if isinstance(b, fx.Node) and not isinstance(a, fx.Node):
            node.args = (b, a)
    return before != (key_of(node.args), key_of(dict(node.kwargs)), tuple(node.kwargs))


def _order_arguments(node: fx.Node, target: Any) -> None:
    """Arguments as the schema orders them, without the defaults at the end, dims from 0 up."""
    declared = target._schema.arguments
    positional = [a for a in declared if not a.kwarg_only]
    given = dict(zip((a.name for a in positional), node.args, strict=False)) | node.kwargs
    for argument in declared:
        if argument.name in given and argument.name in _DIMS:
            given[argument.name] = _from_zero(node, target, given[argument.name])
    last = max(
        (i for i, a in enumerate(positional) if a.name in given and not _is_default(a, given[a.name])), default=-1
    )
    wanted = positional[: last + 1]
    if any(a.name not in given and not a.has_default_value() for a in wanted):
        return
    node.args = tuple(given.get(a.name, a.default_value) for a in wanted)
    node.kwargs = {
        a.name: given[a.name]
        for a in declared
        if a.kwarg_only and a.name in given and not _is_default(a, given[a.name])
    }


def _is_default(argument: Any, value: Any) -> bool:
    return bool(argument.has_default_value()) and key_of(argument.default_value) == key_of(value)


def _from_zero(node: fx.Node, target: Any, given: Any) -> Any:
    name = target._schema.name.removeprefix("aten::")
    if name in _OF_RESULT:
        value = metadata.value_of(node)
    elif name in _OF_INPUT and node.args and isinstance(node.args[0], fx.Node):
        value = metadata.value_of(node.args[0])
    else:
        return given
    if not isinstance(value, torch.Tensor):
        return given
    rank = max(value.dim(), 1)
    if isinstance(given, list | tuple) and all(type(d) is int for d in given):
        return [d % rank for d in given]
    return given % rank if type(given) is int else given


def _hoist_sizes(graph: fx.Graph, names: dict[str, str], fixed: frozenset[str]) -> int:
    """Asks for each size of each input once, in the order of the inputs, right after them."""
    inputs = [n for n in graph.nodes if n.op == "placeholder"]
    place = {node: index for index, node in enumerate(inputs)}
    found: dict[tuple[int, int], fx.Node] = {}
    count = 0
    for node in list(graph.nodes):
        if node.target is not aten.sym_size.int or node.args[0] not in place or type(node.args[1]) is not int:
            continue
        key = (place[node.args[0]], node.args[1])
        if key not in found or node.name in fixed:
            found.setdefault(key, node)
            continue
        node.replace_all_uses_with(found[key])
        names[node.name] = found[key].name
        graph.erase_node(node)
        count += 1
    anchor = inputs[-1] if inputs else None
    for _, node in sorted(found.items()):
        assert anchor is not None
        if anchor.next is not node:
            anchor.append(node)
            metadata.set_module_stack(node, metadata.module_stack_of(node)[:1])
            count += 1
        anchor = node
    return count
