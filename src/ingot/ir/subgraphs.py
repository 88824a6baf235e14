"""Higher-order operators and the sub-GraphModules they take: which operand is which input of which function.

    cond(pred, true, false, operands)                     both functions take the operands
    while_loop(cond, body, carried, additional)           both take carried, then additional
    scan(combine, init, xs, additional)                   init, a slice of each x, additional
    associative_scan(combine, xs, additional)             two slices of each x, additional
    map_impl(function, xs, extra)                         a slice of each x, extra
    wrap_with_autocast(device, …, function, *operands)    the operands
    wrap_with_set_grad_enabled(enabled, function, *operands)

Operands that every function receives as they are, are `shared`: a value that a function closes over is one of them, and
so it may be added or dropped without changing what the operator means.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

hop = torch.ops.higher_order


@dataclass(frozen=True, slots=True)
class Layout:
    """Where an operator's functions stand among its arguments, and where its shared operands do.

    `shared` is the index of the argument that holds them, or None if they are the arguments behind the functions.
    `own(args)` counts the inputs of a function that come before the shared ones.
    """

    functions: tuple[int, ...]
    shared: int | None
    own: Callable[[tuple[Any, ...]], int]


LAYOUTS: dict[Any, Layout] = {
    hop.cond: Layout((1, 2), 3, lambda args: 0),
    hop.while_loop: Layout((0, 1), 3, lambda args: len(args[2])),
    hop.scan: Layout((0,), 3, lambda args: len(args[1]) + len(args[2])),
    hop.associative_scan: Layout((0,), 2, lambda args: 2 * len(args[1])),
    hop.map_impl: Layout((0,), 2, lambda args: len(args[1])),
    hop.wrap_with_autocast: Layout((4,), None, lambda args: 0),
    hop.wrap_with_set_grad_enabled: Layout((1,), None, lambda args: 0),
}


def shared_operands(node: fx.Node) -> list[Any]:
    """The operands of a node that every function receives as they are."""
    layout = LAYOUTS[node.target]
    held = node.args[layout.functions[-1] + 1 :] if layout.shared is None else node.args[layout.shared]
    return list(held)  # type: ignore[arg-type]


def replace_shared(node: fx.Node, operands: Sequence[Any]) -> tuple[Any, ...]:
    """The node's arguments with other shared operands."""
    layout = LAYOUTS[node.target]
    if layout.shared is None:
        return (*node.args[: layout.functions[-1] + 1], *operands)
    old = node.args[layout.shared]
    made = list(operands) if isinstance(old, list) else tuple(operands)
    return (*node.args[: layout.shared], made, *node.args[layout.shared + 1 :])


def function_attributes(node: fx.Node) -> list[fx.Node]:
    """The get_attr nodes of a node's functions."""
    return [node.args[index] for index in LAYOUTS[node.target].functions]  # type: ignore[misc]


def shared_placeholders(node: fx.Node, function: fx.GraphModule) -> list[fx.Node]:
    """A function's placeholders for the shared operands, in their order."""
    placeholders = [n for n in function.graph.nodes if n.op == "placeholder"]
    return placeholders[LAYOUTS[node.target].own(node.args) :]
