"""Replaces unbacked symbols by constants that shape inference proves.

before                                                  after
while_loop: (int(u2), int(u3)) = while_loop(…, (0, 4))  while_loop: (int(u2), int(u3)) = while_loop(…, (0, 4))
getitem: int(u3) = while_loop[1]                        zeros: f32[4] = aten.zeros([4])
zeros: f32[u3] = aten.zeros([getitem])
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sympy
import torch
from torch import fx

from ingot import torch_internals as internals
from ingot.analysis.shape_inference import Inferred, NumberType, shapes_of
from ingot.ir import metadata, symbolic_dims
from ingot.ir.dialects import CAPTURED
from ingot.ir.outlining import graph_modules
from ingot.ir.program import Program
from ingot.ir.regions import wrap_switches
from ingot.passes.manager import register
from ingot.passes.retracing.retrace import Replay

aten = torch.ops.aten


@register(takes=CAPTURED, retraces=True)
def propagate_known_sizes(program: Program) -> int:
    """Replaces what branches agree on and what a loop leaves as it was, so that everything behind has known sizes.

    torch gives a new symbol to every number that a branch or a loop returns. Inside branches and loops only plain
    numbers are written down: a dim has no node there. Returns how many nodes were replaced.
    """
    open_ = list(_open_numbers(program))
    if not open_:
        return 0
    inferred = shapes_of(program)
    writer = _Writer(program)
    changes = 0
    for node in open_:
        known = _known_value(node, inferred)
        users = [user for user in node.users if user.op != "output"]
        if known is None or not users or (isinstance(known, sympy.Basic) and not writer.can_write(node, known)):
            continue
        number = writer.number(known)
        for user in users:
            user.args, user.kwargs = (_substitute(part, node, number) for part in (user.args, user.kwargs))
        changes += 1
    if changes:
        _retrace_types(program)
    return changes


def _substitute(arguments: Any, node: fx.Node, number: Any) -> Any:
    """Arguments with a number in a node's place."""

    def replaced(argument: fx.Node) -> Any:
        return number if argument is node else argument

    return fx.map_arg(arguments, replaced)


def _open_numbers(program: Program) -> Iterator[fx.Node]:
    """Integers that come out of a branch or a loop, or go into one, under a symbol of their own."""
    names = {dim.name for dim in program.dims}
    for module in graph_modules(program.graph_module):
        for node in module.graph.nodes:
            value = metadata.value_of(node)
            if not isinstance(value, torch.SymInt) or not (node.op == "placeholder" or _comes_out(node)):
                continue
            expr = internals.expr_of(value)
            if expr.is_number or not {symbolic_dims.name_of(symbol) for symbol in expr.free_symbols} <= names:
                yield node


def _comes_out(node: fx.Node) -> bool:
    source = node.args[0] if node.args else None
    return isinstance(source, fx.Node) and isinstance(source.target, internals.HigherOrderOperator)


def _known_value(node: fx.Node, inferred: Inferred) -> int | sympy.Basic | None:
    found = inferred.types.get(node)
    return found.value if isinstance(found, NumberType) and found.kind is int else None


class _Writer:
    """Writes an expression of a program's dims as nodes of its outermost graph."""

    def __init__(self, program: Program) -> None:
        self._graph = program.graph
        self._names = {dim.name for dim in program.dims}
        self._sizes: dict[str, tuple[fx.Node, int]] = {}
        self._last: fx.Node | None = None
        for node in program.graph.nodes:
            if node.op != "placeholder":
                continue
            self._last = node
            value = metadata.value_of(node)
            for dim, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
                expr = internals.expr_of(size)
                if isinstance(expr, sympy.Symbol):
                    self._sizes.setdefault(symbolic_dims.name_of(expr), (node, dim))

    def can_write(self, node: fx.Node, expr: sympy.Basic) -> bool:
        return node.graph is self._graph and all(symbol.name in self._sizes for symbol in expr.free_symbols)

    def number(self, known: int | sympy.Basic) -> Any:
        return (
            symbolic_dims.fold(known, self._size, lambda c: c, self._apply) if isinstance(known, sympy.Basic) else known
        )

    def _size(self, symbol: sympy.Symbol) -> Any:
        return self._call(aten.sym_size.int, self._sizes[symbol.name])

    def _apply(self, name: str, parts: tuple[Any, ...], expr: sympy.Basic) -> Any:
        return self._call(symbolic_dims.OPERATIONS[name].function, parts)

    def _call(self, function: Any, args: tuple[Any, ...]) -> fx.Node:
        assert self._last is not None
        with self._graph.inserting_after(self._last):
            self._last = self._graph.call_function(function, args)
        return self._last


def _retrace_types(program: Program) -> None:
    """Runs the graph on fakes again: what lies behind a number has other sizes now."""
    outputs = list(program.signature.graph_outputs)
    wrap_switches(program.graph_module)
    Replay(program).record_all(outputs)
    wrap_switches(program.graph_module)
