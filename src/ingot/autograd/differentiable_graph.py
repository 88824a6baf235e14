"""A graph as torch's autograd differentiates it: operators that torch has no gradient of run as others that have one.

    aten.copy(x, source)        x.clone().copy_(source)     functionalize writes the left one; torch's gradient is that
    aten.bernoulli.p(x, p)      x.clone().bernoulli_(p)     of the right one
    associative_scan            our own gradient

What is left without a gradient is reported at its line, before autograd comes to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import fx

from ingot import torch_internals as internals
from ingot.autograd.associative_scan import is_ours, scan_differentiable
from ingot.errors import UnsupportedOperator, format_error
from ingot.ir import metadata
from ingot.ir.clone import copy_graph_module
from ingot.ir.outlining import graph_modules
from ingot.ir.printer import operator_name
from ingot.registry import Registry

aten, hop = torch.ops.aten, torch.ops.higher_order
Rule = Callable[..., Any]
_RULES: Registry[Any, Rule] = Registry("differentiable form")
differentiates = _RULES.register


class Differentiable(fx.Interpreter):
    """A graph's own meaning, with gradients for what torch has none of. Raises UnsupportedOperator for the rest."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(_replace_operators(module))
        self._without: dict[Any, fx.Node] = {}  # by autograd's node

    def run(self, *args: Any, **options: Any) -> Any:
        self._without.clear()
        results = super().run(*args, **options)
        node = self._find_needed(metadata.tensors_in(results))
        if node is not None:
            raise UnsupportedOperator(
                format_error(
                    f"torch has no gradient of {operator_name(node.target)}, and the gradient of this model needs one.",
                    where=metadata.where(node),
                    why="a result depends on it, and its argument requires a gradient",
                    fix="use another operator there, or give it x.detach() if no gradient is to go through it",
                )
            )
        return results

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        for tensor in metadata.tensors_in(value):
            if internals.lacks_gradient(tensor):
                self._without[tensor.grad_fn] = n
        return value

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if target is hop.associative_scan and is_ours(*args[1:]):
            return scan_differentiable(*args)
        return super().call_function(target, args, kwargs)

    def _find_needed(self, results: Iterable[torch.Tensor]) -> fx.Node | None:
        """A node without a gradient that a gradient of the results goes through."""
        if not self._without:
            return None
        seen: set[Any] = set()
        waiting: list[Any] = [tensor.grad_fn for tensor in results]
        while waiting:
            step = waiting.pop()
            if step is None or step in seen:
                continue
            if step in self._without:
                return self._without[step]
            seen.add(step)
            waiting.extend(following for following, _ in step.next_functions)
        return None


def _replace_operators(module: fx.GraphModule) -> fx.GraphModule:
    """A copy in which operators that have a rule are calls of it, in branches and loops, too."""
    made = copy_graph_module(module)
    for inner in graph_modules(made):
        for node in inner.graph.nodes:
            node.target = _RULES.find(node.target) or node.target
        inner.recompile()
    return made


@differentiates(aten.copy.default)
def _copy(x: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    return x.clone().copy_(source)


@differentiates(aten.bernoulli.p)
def _bernoulli(x: torch.Tensor, p: float, generator: Any = None) -> torch.Tensor:
    return x.clone().bernoulli_(p, generator=generator)
