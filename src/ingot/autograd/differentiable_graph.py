"""A graph as torch's autograd differentiates it: operators that torch has no gradient of run as others that have one.

    aten.copy(x, source)        x.clone().copy_(source)     functionalize writes the left one; torch's gradient is that
    aten.bernoulli.p(x, p)      x.clone().bernoulli_(p)     of the right one
    associative_scan            our own gradient

What is left without a gradient is reported at its line, before autograd comes to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from ingot.autograd.associative_scan import is_ours, scan_differentiable
from ingot.autograd.missing_gradients import MissingGradients
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
        self._missing = MissingGradients()

    def run(self, *args: Any, **options: Any) -> Any:
        self._missing.clear()
        results = super().run(*args, **options)
        self._missing.check(metadata.tensors_in(results))
        return results

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        self._missing.note(metadata.tensors_in(value), operator_name(n.target), metadata.where(n))
        return value

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if target is hop.associative_scan and is_ours(*args[1:]):
            return scan_differentiable(*args)
        return super().call_function(target, args, kwargs)


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
