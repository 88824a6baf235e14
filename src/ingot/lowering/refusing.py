"""What native code cannot do, and the one error that says all of it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from ingot.errors import UnsupportedOperator, explain
from ingot.lowering.ir import FLOATS, INTEGERS
from ingot.program.metadata import module_path_of, source_of

SUPPORTED = frozenset(["bool", *INTEGERS, *FLOATS])


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class Unsupported(Exception):
    """Raised by a rule that cannot take its arguments; `lower` collects all of them."""


def refusal(found: Sequence[tuple[fx.Node, str]]) -> UnsupportedOperator:
    """One error for everything that cannot be lowered: each operator once with a reason, and where it is used."""
    places: dict[tuple[str, str], list[str]] = {}
    for node, reason in found:
        source, path = source_of(node), module_path_of(node)
        where = ", ".join(part for part in (f"in {path}" if path else "", str(source) if source else "") if part)
        places.setdefault((str(node.target), reason), []).append(where or f"node {node.name}")
    lines = []
    for (target, reason), wheres in places.items():
        more = f" and {len(wheres) - 1} more" if len(wheres) > 1 else ""
        lines.append(f"    {target}: {reason} ({wheres[0]}{more})")
    count = len({target for target, _ in places})
    kind = "input" if all(node.op == "placeholder" for node, _ in found) else "operator"
    return UnsupportedOperator(
        explain(
            f"{count} {kind}{'s' if count > 1 else ''} cannot be compiled to native code:\n" + "\n".join(lines),
            fix="rewrite these lines with other operators, or run the program through torch: program(*args)",
        )
    )
