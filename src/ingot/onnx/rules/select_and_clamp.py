"""One of several, element by element: extremes, limits, masks, and questions that masks are made of."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from ingot.onnx.exporter import Exporter
from ingot.onnx.registry import exports
from ingot.onnx.rules.math import infinite, is_negative
from ingot.onnx.rules.pointwise import binary, truth
from ingot.onnx.values import OnnxValue

aten = torch.ops.aten


def _extreme(kind: str) -> Callable[..., OnnxValue]:
    def rule(ex: Exporter, x: Any, y: Any) -> OnnxValue:
        if ex.dtype is torch.bool:
            return binary(ex, "Or" if kind == "Max" else "And", x, y)
        return extreme(ex, kind, ex.operand(x, ex.dtype), ex.operand(y, ex.dtype))

    return rule


def extreme(ex: Exporter, kind: str, x: OnnxValue, y: OnnxValue) -> OnnxValue:
    """The larger or smaller of two; nan if one is nan."""
    return ex.op(kind, x, y)


exports(aten.maximum.default)(_extreme("Max"))
exports(aten.minimum.default)(_extreme("Min"))


def _extreme_of_numbers(kind: str) -> Callable[..., OnnxValue]:
    """The larger or smaller of two, of which one may be nan and then does not count."""

    def rule(ex: Exporter, x: Any, y: Any) -> OnnxValue:
        if not ex.dtype.is_floating_point:
            return _extreme(kind)(ex, x, y)
        x, y = ex.operand(x, ex.dtype), ex.operand(y, ex.dtype)
        best = ex.op("Where", ex.op("IsNaN", x), y, ex.op(kind, x, y))
        return ex.op("Where", ex.op("IsNaN", y), x, best)

    return rule


exports(aten.fmax.default)(_extreme_of_numbers("Max"))
exports(aten.fmin.default)(_extreme_of_numbers("Min"))


@exports(aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.where.Scalar)
def where(ex: Exporter, condition: OnnxValue, yes: Any, no: Any) -> OnnxValue:
    return ex.op("Where", truth(ex, condition), ex.operand(yes, ex.dtype), ex.operand(no, ex.dtype))


@exports(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(ex: Exporter, x: OnnxValue, mask: OnnxValue, value: Any) -> OnnxValue:
    return ex.op("Where", truth(ex, mask), ex.operand(value, ex.dtype), ex.cast(x, ex.dtype))


@exports(aten.clamp.default, aten.clamp.Tensor, aten.clip.default, aten.clip.Tensor)
def clamp(
    ex: Exporter, x: OnnxValue, minimum: Any = None, maximum: Any = None, dtype: torch.dtype | None = None
) -> OnnxValue:
    """`dtype` is the result's if it is not the node's."""
    x = ex.cast(x, dtype or ex.dtype)
    numbers = all(limit is None or isinstance(limit, int | float) for limit in (minimum, maximum))
    if numbers and x.is_float and all(limit != limit for limit in (minimum, maximum) if limit is not None):
        return ex.op("Add", x, ex.number(math.nan, x.dtype))
    if numbers and x.is_float and (minimum is None or maximum is None or minimum <= maximum):
        # The order of ONNX's Clip matters only where the limits cross.
        bounds = [None if limit is None else ex.number(float(limit), x.dtype) for limit in (minimum, maximum)]
        return ex.op("Clip", x, *(bounds if bounds[1] is not None else bounds[:1]))
    for kind, limit in (("Max", minimum), ("Min", maximum)):
        if limit is not None:
            x = ex.op(kind, x, ex.operand(limit, x.dtype))
    return x


@exports(aten.clamp_min.default, aten.clamp_min.Tensor)
def clamp_min(ex: Exporter, x: OnnxValue, minimum: Any) -> OnnxValue:
    return clamp(ex, x, minimum, None)


@exports(aten.clamp_max.default, aten.clamp_max.Tensor)
def clamp_max(ex: Exporter, x: OnnxValue, maximum: Any) -> OnnxValue:
    return clamp(ex, x, None, maximum)


# ---------------------------------------------------------------------- questions


@exports(aten.isnan.default)
def isnan(ex: Exporter, x: OnnxValue) -> OnnxValue:
    if not x.is_float:
        return ex.full(ex.shape, False, torch.bool)
    return ex.op("IsNaN", ex.cast(x, torch.float32) if x.dtype is torch.bfloat16 else x)


@exports(aten.isinf.default)
def isinf(ex: Exporter, x: OnnxValue) -> OnnxValue:
    return infinite(ex, x) if x.is_float else ex.full(ex.shape, False, torch.bool)


@exports(aten.isfinite.default)
def isfinite(ex: Exporter, x: OnnxValue) -> OnnxValue:
    if not x.is_float:
        return ex.full(ex.shape, True, torch.bool)
    return ex.op("Not", ex.op("Or", isnan(ex, x), infinite(ex, x)))


@exports(aten.signbit.default)
def signbit(ex: Exporter, x: OnnxValue) -> OnnxValue:
    if x.is_float:
        return is_negative(ex, x)
    return ex.op("Less", x, ex.number(0, x.dtype)) if x.dtype is not torch.bool else ex.full(ex.shape, False, x.dtype)


@exports(aten.nan_to_num.default)
def nan_to_num(
    ex: Exporter, x: OnnxValue, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> OnnxValue:
    if not x.is_float:
        return x
    limits = torch.finfo(x.dtype)
    high = ex.number(limits.max if posinf is None else posinf, x.dtype)
    low = ex.number(limits.min if neginf is None else neginf, x.dtype)
    made = ex.op("Where", ex.op("IsNaN", x), ex.number(nan or 0.0, x.dtype), x)
    made = ex.op("Where", ex.op("Equal", x, ex.number(math.inf, x.dtype)), high, made)
    return ex.op("Where", ex.op("Equal", x, ex.number(-math.inf, x.dtype)), low, made)
