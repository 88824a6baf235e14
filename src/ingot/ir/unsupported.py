"""Everything in a program that a target does not support, reported at once."""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from ingot import torch_internals as internals
from ingot.errors import format_error
from ingot.ir.metadata import module_path_of, source_of
from ingot.ir.program import Program


def explain_missing_values(program: Program) -> str | None:
    """Why a program cannot become a file of numbers: a weight is a fake or meta tensor. None where each has values."""
    for name, tensor in (*program.state_dict.items(), *program.constants.items()):
        if isinstance(tensor, internals.FakeTensor) or tensor.device.type == "meta":
            kind = "a meta tensor" if not isinstance(tensor, internals.FakeTensor) else "a fake tensor"
            return format_error(
                f"The weight {name} has no values: it is {kind}.",
                why="the model was made under a FakeTensorMode or on the meta device",
                fix="make the model with real tensors, load its weights, and capture it again",
            )
    return None


def list_operators(found: Sequence[tuple[fx.Node, str]]) -> tuple[int, str]:
    """How many different operators there are, and a line for each with each reason and where it is used."""
    places: dict[tuple[str, str], list[str]] = {}
    for node, reason in found:
        source, path = source_of(node), module_path_of(node)
        where = ", ".join(part for part in (f"in {path}" if path else "", str(source) if source else "") if part)
        places.setdefault((str(node.target), reason), []).append(where or f"node {node.name}")
    lines = []
    for (target, reason), wheres in places.items():
        more = f" and {len(wheres) - 1} more" if len(wheres) > 1 else ""
        lines.append(f"    {target}: {reason} ({wheres[0]}{more})")
    return len({target for target, _ in places}), "\n".join(lines)
