"""The walk over a graph with one rule per operator, on which lowering and the ONNX exporter are built.

A derived class says what a value is: `evaluate` returns that of a node, `symbolic` that of a symbolic number. A node
that it cannot take raises one of `refusals`; the walk goes on with a stand-in, so that one error names all such nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import fx

from ingot.ir.metadata import value_of
from ingot.ir.outlining import graph_modules
from ingot.ir.program import Program

SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
NUMBERS = (int, float, bool, *SYMBOLIC)


class GraphInterpreter:
    """One walk over a program's graphs. `values` has the value of every node so far; `node` is the one at work."""

    refusals: ClassVar[tuple[type[Exception], ...]] = ()

    def __init__(self, program: Program) -> None:
        self.program = program
        self.node: fx.Node = next(iter(program.graph.nodes))
        self.values: dict[fx.Node, Any] = {}

    # ------------------------------------------------------------------ what a derived class gives

    def evaluate(self, node: fx.Node) -> Any:
        """The value of a node, made of those of its arguments."""
        raise NotImplementedError

    def symbolic(self, value: Any) -> Any:
        """The value of a symbolic int, float or bool."""
        raise NotImplementedError

    def stand_in(self, value: Any) -> Any:
        """Something in place of the value of a refused node, or of one of its results; `value` is its type."""
        raise NotImplementedError

    def explain_rule(self, node: fx.Node) -> str | None:
        """Why a call has no rule; None if it has one."""
        raise NotImplementedError

    def explain_tensor(self, tensor: torch.Tensor) -> str | None:
        """Why a tensor of this type cannot be a value; None if it can."""
        raise NotImplementedError

    def unsupported_error(self, found: Sequence[tuple[fx.Node, str]]) -> Exception:
        """The error that names all of these nodes."""
        raise NotImplementedError

    # ------------------------------------------------------------------ the walk

    def check_supported(self) -> None:
        """Raises the one error for every node of every graph that has no rule, or a type that cannot be a value."""
        found = []
        for module in graph_modules(self.program.graph_module):
            for node in module.graph.nodes:
                reason = self.explain(node)
                if reason is not None:
                    found.append((node, reason))
        if found:
            raise self.unsupported_error(found)

    def explain(self, node: fx.Node) -> str | None:
        """Why a call, or an argument that is used, cannot be taken; None if it can."""
        if node.op != "call_function" and not (node.op == "placeholder" and node.users):
            return None
        value = value_of(node)
        if isinstance(value, NUMBERS):
            return None
        reason = self.explain_rule(node) if node.op == "call_function" else None
        if reason is not None:
            return reason
        parts = value if isinstance(value, tuple | list) else (value,)
        reasons = (self.explain_tensor(part) for part in parts if isinstance(part, torch.Tensor))
        return next((reason for reason in reasons if reason is not None), None)

    def run(self, graph: fx.Graph) -> Any:
        """Evaluates every node of a graph whose placeholders have values; returns the value of its output."""
        failed: list[tuple[fx.Node, str]] = []
        for node in graph.nodes:
            if node.op in ("placeholder", "get_attr"):
                continue
            if node.op == "output":
                if failed:
                    raise self.unsupported_error(failed)
                return self.argument(node.args[0])
            outer, self.node = self.node, node
            try:
                self.values[node] = self.evaluate(node)
            except self.refusals as error:
                failed.append((node, str(error)))
                self.values[node] = self._stand_ins(value_of(node))
            finally:
                self.node = outer
        raise AssertionError("a graph has an output")

    def _stand_ins(self, value: Any) -> Any:
        return [self._stand_ins(part) for part in value] if isinstance(value, tuple | list) else self.stand_in(value)

    def argument(self, value: Any) -> Any:
        """An argument of a node, with nodes replaced by their values and symbolic numbers by what `symbolic` gives."""
        if isinstance(value, fx.Node):
            if value.op == "get_attr":
                return getattr(value.graph.owning_module, str(value.target))
            return self.values[value]
        if isinstance(value, SYMBOLIC):
            return self.symbolic(value)
        if isinstance(value, list | tuple):
            items = [self.argument(item) for item in value]
            return tuple(items) if type(value) is tuple else items
        if isinstance(value, dict):
            return {key: self.argument(item) for key, item in value.items()}
        return value
