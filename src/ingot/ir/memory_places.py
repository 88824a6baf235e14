"""Operators that name a place in memory: their results depend on where their argument lies, not on its values alone.

An offset of `as_strided` counts from the start of the memory that its argument shows. A pass that puts another value in
an argument's place, equal and elsewhere, changes what such an operator computes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ingot import torch_internals as internals
from ingot.ir import metadata

aten = torch.ops.aten
_OPERATORS = (aten.as_strided.default, aten.as_strided_copy.default, aten.as_strided_scatter.default)


def names_place_in_memory(node: fx.Node) -> bool:
    """Whether a node counts elements from the start of its argument's memory."""
    if node.target not in _OPERATORS:
        return False
    given: Any = internals.bind_arguments(node.target, node.args, node.kwargs)
    return given.get("storage_offset") is not None


def same_place(a: fx.Node, b: fx.Node) -> bool:
    """Whether two values are known to begin at the same place of the memory that they lie in."""
    x, y = place_of(a), place_of(b)
    return x is not None and x == y


def place_of(node: fx.Node) -> int | None:
    """Where in its memory a tensor begins; None where that is not known."""
    value = metadata.value_of(node)
    place = value.storage_offset() if isinstance(value, torch.Tensor) else None
    return place if isinstance(place, int) else None
