"""The table of rules: which operator is exported by which function, and how they say no."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from torch import fx

from ingot import torch_internals as internals
from ingot.errors import UnsupportedByOnnx, format_error
from ingot.ir.metadata import tensors_in, value_of
from ingot.ir.unsupported import list_operators

Rule = Callable[..., Any]
R = TypeVar("R", bound=Rule)
RULES: dict[Any, Rule] = {}
# Rules for nodes that take or give complex numbers: ONNX has none, so these are all that they are given to.
PAIR_RULES: dict[Any, Rule] = {}
# Whether the rule of an operator that is made of others can take a node; without an entry it takes all.
TAKES: dict[Any, Callable[[Any], bool]] = {}

OLDEST_OPSET = 18


def exports(*targets: Any, takes: Callable[[Any], bool] | None = None) -> Callable[[R], R]:
    """Registers the rule for these operators; a second registration is a bug.

    `takes` is for an operator that is made of others: nodes that it says no to are decomposed.
    """

    def register(rule: R) -> R:
        for target in targets:
            if target in RULES:
                raise ValueError(f"there is a rule for {target} already: {RULES[target].__name__}")
            RULES[target] = rule
            if takes is not None:
                TAKES[target] = takes
        return rule

    return register


def exports_pairs(*targets: Any) -> Callable[[R], R]:
    """Registers the rule for these operators on complex numbers, which are pairs along a last dim."""

    def register(rule: R) -> R:
        for target in targets:
            if target in PAIR_RULES:
                raise ValueError(f"there is a rule for {target} on complex numbers already")
            PAIR_RULES[target] = rule
        return rule

    return register


def rule_for(node: fx.Node) -> Rule | None:
    """The rule that a node needs."""
    if not isinstance(node.target, internals.OpOverload):  # a graph inside, or a part of several results
        return rule_of(node.target)
    values = [value_of(node), *(value_of(given) for given in node.all_input_nodes)]
    complex_ = any(tensor.dtype.is_complex for value in values for tensor in tensors_in(value))
    return PAIR_RULES.get(node.target) if complex_ else rule_of(node.target)


def rule_of(target: Any) -> Rule | None:
    """The rule of an operator; that of a library which may not be installed is registered by the operator's name."""
    return RULES.get(target) or RULES.get(str(target))


class OnnxUnsupported(Exception):
    """Raised by a rule that cannot take its arguments; all of them are told at once."""


def unsupported_error(found: Sequence[tuple[fx.Node, str]]) -> UnsupportedByOnnx:
    """One error for everything that ONNX cannot say: each operator once with a reason, and where it is used."""
    count, lines = list_operators(found)
    return UnsupportedByOnnx(
        format_error(
            f"{count} operator{'s' if count > 1 else ''} cannot be exported to ONNX:\n{lines}",
            fix="rewrite these lines with other operators, or register a rule with ingot.onnx.registry.exports",
        )
    )
