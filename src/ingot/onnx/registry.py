"""The table of rules: which operator is exported by which function, and how they say no."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from torch import fx

from ingot.errors import UnsupportedByOnnx, format_error
from ingot.ir.metadata import touches_complex
from ingot.ir.unsupported import list_operators
from ingot.registry import Registry

Rule = Callable[..., Any]
R = TypeVar("R", bound=Rule)
RULES: Registry[Any, Rule] = Registry("ONNX rule")
# Whether the rule of an operator that is made of others can take a node; without an entry it takes all.
TAKES: Registry[Any, Callable[[Any], bool]] = Registry("condition")

OLDEST_OPSET = 18


def exports(
    *targets: Any, takes: Callable[[Any], bool] | None = None, moves_data: bool = False, pairs: bool = False
) -> Callable[[R], R]:
    """Registers the rule for these operators; a second registration raises.

    `takes` is for an operator that is made of others: nodes that it says no to are decomposed. A rule that `moves_data`
    moves elements, holds graphs, or minds the type itself: it is given bfloat16 as it is, and others get float32. ONNX
    has no complex numbers: only a rule with `pairs` is given them, as pairs of real numbers along a last dim.
    """

    def register(rule: R) -> R:
        if takes is not None:
            TAKES.register(*targets)(takes)
        tags = [tag for tag, wanted in (("moves_data", moves_data), ("pairs", pairs)) if wanted]
        return RULES.register(*targets, tags=tags)(rule)

    return register


def rule_for(node: fx.Node) -> Rule | None:
    """The rule that a node needs."""
    return None if touches_complex(node) and not RULES.has_tag(node.target, "pairs") else rule_of(node.target)


def moves_data(node: fx.Node) -> bool:
    """Whether the rule that a node needs computes nothing: then its arguments stay in their own types."""
    return RULES.has_tag(node.target, "moves_data")


# The rule of an operator; that of a library which may not be installed is registered by the operator's name.
rule_of = RULES.find


class OnnxUnsupported(Exception):
    """Raised by a rule that cannot take its arguments; all of them are reported at once."""


def unsupported_error(found: Sequence[tuple[fx.Node, str]]) -> UnsupportedByOnnx:
    """One error for everything that ONNX cannot say: each operator once with a reason, and where it is used."""
    count, lines = list_operators(found)
    return UnsupportedByOnnx(
        format_error(
            f"{count} operator{'s' if count > 1 else ''} cannot be exported to ONNX:\n{lines}",
            fix="rewrite these lines with other operators, or register a rule with ingot.onnx.registry.exports",
        )
    )
