"""What native code cannot do, and the one error that says all of it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from ingot.errors import UnsupportedOperator, format_error
from ingot.ir.unsupported import list_operators
from ingot.lowering.dtypes import FLOATS, INTEGERS

SUPPORTED = frozenset(["bool", *INTEGERS, *FLOATS])


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class LoweringUnsupported(Exception):
    """Raised by a rule that cannot take its arguments; `lower` collects all of them."""


def unsupported_error(found: Sequence[tuple[fx.Node, str]]) -> UnsupportedOperator:
    """One error for everything that cannot be lowered: each operator once with a reason, and where it is used."""
    count, lines = list_operators(found)
    kind = "input" if all(node.op == "placeholder" for node, _ in found) else "operator"
    return UnsupportedOperator(
        format_error(
            f"{count} {kind}{'s' if count > 1 else ''} cannot be compiled to native code:\n{lines}",
            fix="rewrite these lines with other operators, or run the program through torch: program(*args)",
        )
    )
