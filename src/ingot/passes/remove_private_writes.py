"""Replaces writes that nobody else can see by the operators that return a new value.

before                              after
mul = aten.mul(x, 2)                mul = aten.mul(x, 2)
add_ = aten.add_(mul, 1)            add_ = aten.add(mul, 1)
return (add_,)                      return (add_,)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ingot import torch_internals as internals
from ingot.ir import metadata
from ingot.ir.dialects import CAPTURED
from ingot.ir.outlining import graph_modules
from ingot.ir.program import Program
from ingot.passes.manager import register


@register(takes=CAPTURED)
def remove_private_writes(program: Program) -> int:
    """In every graph, a write to a value that is new and that only the write itself uses needs no memory of its own."""
    return sum(map(replace_private_writes, graph_modules(program.graph_module)))


def replace_private_writes(module: fx.GraphModule) -> int:
    """Replaces the private writes of one graph: y = x.add_(1) is x.add(1)."""
    count = 0
    kept: dict[Any, bool] = {}
    for node in module.graph.nodes:
        written = node.args[0] if node.args else None
        if not is_write(node) or not isinstance(written, fx.Node) or len(written.users) != 1:
            continue
        functional = internals.pointwise_form(node.target)
        if functional is None or not internals.computes_new_tensor(written.target):
            continue
        kind = (functional, *map(_kind, node.args), *((name, _kind(value)) for name, value in node.kwargs.items()))
        if kind not in kept:
            kept[kind] = _keeps_type(node, functional)
        if not kept[kind]:
            continue
        node.target = functional
        count += 1
    if count:
        module.recompile()
    return count


def is_write(node: fx.Node) -> bool:
    """Whether a node calls an operator that writes to an argument, whether its schema says so or not."""
    target: Any = node.target
    hidden = internals.unannotated_mutations(target, node.args)
    return isinstance(target, internals.OpOverload) and (target._schema.is_mutable or bool(hidden))


def _kind(argument: Any) -> Any:
    """What the type of a result depends on in an argument of an elementwise operator."""
    value = metadata.value_of(argument) if isinstance(argument, fx.Node) else argument
    return (value.dtype, value.dim() == 0) if isinstance(value, torch.Tensor) else type(value)


def _keeps_type(node: fx.Node, functional: Any) -> bool:
    """Whether the variant computes the type that the write keeps: x.eq_(0) has x's type, x.eq(0) is bool."""
    args, kwargs = fx.map_arg((node.args, node.kwargs), metadata.value_of)
    with internals.below_autograd():
        computed = functional(*args, **kwargs)
    return bool(computed.dtype == metadata.value_of(node).dtype)
