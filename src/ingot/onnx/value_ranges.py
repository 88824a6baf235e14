"""Between which numbers the elements of a tensor lie, as far as the nodes that compute it show.

    bounds(ex, mask)     # (0.0, 0.0): a mask that hides nothing, whatever its sizes turn out to be

A rule asks this to leave out what only some other values would need. Bounds may be infinite, and then there may be
infinities among the elements; where nothing is known, or an element may be nan, there are none.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import onnx_ir as ir
import torch

from ingot.onnx.dtypes import TO_ONNX
from ingot.registry import Registry

if TYPE_CHECKING:
    from ingot.onnx.exporter import Exporter
    from ingot.onnx.values import OnnxValue

Bounds: TypeAlias = "tuple[float, float]"
Rule: TypeAlias = "Callable[[list[Bounds], torch.dtype], Bounds | None]"

DEPTH = 40  # of nodes above one another that are looked at
_FROM_ONNX = {theirs: ours for ours, theirs in TO_ONNX.items()}


def bounds(ex: Exporter, x: OnnxValue) -> Bounds | None:
    """The smallest and the largest number that an element of `x` can be."""
    return _lookup_bounds(ex, x.value, DEPTH)


def _lookup_bounds(ex: Exporter, value: ir.Value, depth: int) -> Bounds | None:
    if value not in ex.bounds:
        found = _find_bounds(ex, value, depth) if depth else None
        truth = value.dtype is ir.DataType.BOOL
        ex.bounds[value] = (0.0, 1.0) if found is None and truth else found
    return ex.bounds[value]


def _find_bounds(ex: Exporter, value: ir.Value, depth: int) -> Bounds | None:
    stored = ex.stored(value)
    if stored is not None:
        return _constant_bounds(stored)
    node = value.producer()
    found = None if node is None else _RULES.get(node.op_type)
    if node is None or found is None or value.dtype not in _FROM_ONNX:
        return None
    places, rule = found
    inputs = [given for given in node.inputs[places] if given is not None]
    parts = [_lookup_bounds(ex, given, depth - 1) for given in inputs]
    known = [part for part in parts if part is not None]
    return rule(known, _FROM_ONNX[value.dtype]) if known and len(known) == len(parts) else None


def _constant_bounds(stored: torch.Tensor) -> Bounds | None:
    if not stored.numel() or stored.is_complex():
        return None
    low, high = (float(end) for end in torch.aminmax(stored.detach().to(torch.float64)))
    return None if math.isnan(low) or math.isnan(high) else (low, high)


# ---------------------------------------------------------------------- one rule per operator

# By ONNX's operator: which inputs count, and what their bounds make of the result's.
_FIRST, _ALL = slice(0, 1), slice(None)
_RULES: Registry[str, tuple[slice, Rule]] = Registry("bounds rule")


def _hull(parts: list[Bounds], dtype: torch.dtype) -> Bounds | None:
    """Elements of the first input, or of any."""
    return min(low for low, _ in parts), max(high for _, high in parts)


def _cast(parts: list[Bounds], dtype: torch.dtype) -> Bounds | None:
    ((low, high),) = parts
    if dtype is torch.bool:
        return float(low > 0 or high < 0), float(low != 0 or high != 0)
    if dtype.is_floating_point:
        low, high = (float(torch.tensor(end, dtype=torch.float64).to(dtype)) for end in (low, high))
        return low, high
    inside = torch.iinfo(dtype).min <= low and high <= torch.iinfo(dtype).max
    return (math.trunc(low), math.trunc(high)) if inside else None


def _compute(function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Rule:
    """Of two floats, by a function that has its extremes where its operands have theirs. Rounding keeps the order."""

    def rule(parts: list[Bounds], dtype: torch.dtype) -> Bounds | None:
        if not dtype.is_floating_point:
            return None
        one, other = (torch.tensor(part, dtype=torch.float64).to(dtype) for part in parts)
        corners = function(one[:, None], other[None, :])
        return _constant_bounds(corners) if bool(corners.isfinite().all()) else None

    return rule


for _kind in (
    *("Identity", "Reshape", "Transpose", "Unsqueeze", "Squeeze", "Expand", "Slice", "Tile"),
    *("Gather", "GatherElements", "GatherND"),
):
    _RULES.add(_kind, (_FIRST, _hull))
_RULES.add("Where", (slice(1, 3), _hull))
_RULES.add("Concat", (_ALL, _hull))
_RULES.add("Cast", (_FIRST, _cast))
_RULES.add("Not", (_FIRST, lambda parts, _: (1 - parts[0][1], 1 - parts[0][0])))
_RULES.add("And", (_ALL, lambda parts, _: (min(low for low, _ in parts), min(high for _, high in parts))))
_RULES.add("Or", (_ALL, lambda parts, _: (max(low for low, _ in parts), max(high for _, high in parts))))
_RULES.add("Add", (_ALL, _compute(torch.add)))
_RULES.add("Sub", (_ALL, _compute(torch.sub)))
_RULES.add("Mul", (_ALL, _compute(torch.mul)))
