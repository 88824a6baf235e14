"""Elementary functions, element by element, and rounding."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from ingot.onnx.exporter import Exporter
from ingot.onnx.registry import exports
from ingot.onnx.rules.pointwise import trunc
from ingot.onnx.values import OnnxValue

aten = torch.ops.aten


@exports(aten.rsqrt.default)
def rsqrt(ex: Exporter, x: OnnxValue) -> OnnxValue:
    """The reciprocal of a square root, which is one node for all its uses."""
    x = ex.cast(x, ex.dtype)
    return ex.op("Reciprocal", ex.once(("sqrt", x.value), lambda: ex.op("Sqrt", x)))


@exports(aten.exp2.default)
def exp2(ex: Exporter, x: OnnxValue) -> OnnxValue:
    return ex.op("Pow", ex.number(2.0, ex.dtype), ex.cast(x, ex.dtype))


def wide(ex: Exporter, x: OnnxValue) -> OnnxValue:
    """In float64, for formulas that lose digits; the result is cast back."""
    return ex.cast(x, torch.float64)


def _has_room(x: OnnxValue) -> bool:
    """Whether float64 has digits to lose."""
    return x.dtype is not torch.float64


@exports(aten.expm1.default)
def expm1(ex: Exporter, x: OnnxValue) -> OnnxValue:
    """Without room: what exp(x) - 1 loses, log(exp(x)) has lost as well, so that the two go together."""
    one = ex.number(1.0, torch.float64)
    power = ex.op("Exp", wide(ex, x))
    less = ex.op("Sub", power, one)
    if _has_room(x):
        return less
    far = ex.op("Or", ex.op("Equal", less, ex.number(-1.0, torch.float64)), ex.op("IsInf", power))
    near = ex.op("Equal", less, ex.number(0.0, torch.float64))
    refined = ex.op("Mul", less, ex.op("Div", x, ex.op("Log", power)))
    return ex.op("Where", near, x, ex.op("Where", far, less, refined))


@exports(aten.log1p.default)
def log1p(ex: Exporter, x: OnnxValue) -> OnnxValue:
    """Without room: what 1 + x has rounded off is known, and put back as a factor."""
    one = ex.number(1.0, torch.float64)
    more = ex.op("Add", wide(ex, x), one)
    made = ex.op("Log", more)
    if _has_room(x):
        return made
    gained = ex.op("Sub", more, one)
    same = ex.op("Or", ex.op("Equal", gained, ex.number(0.0, torch.float64)), ex.op("IsInf", x, detect_negative=0))
    return ex.op("Where", same, x, ex.op("Mul", made, ex.op("Div", x, gained)))


@exports(aten.tan.default)
def tan(ex: Exporter, x: OnnxValue) -> OnnxValue:
    """Spelled out in float64, for which ONNX Runtime has no kernel."""
    x = ex.cast(x, ex.dtype)
    return ex.op("Tan", x) if _has_room(x) else ex.op("Div", ex.op("Sin", x), ex.op("Cos", x))


def _logarithm(base: float) -> Callable[..., OnnxValue]:
    def rule(ex: Exporter, x: OnnxValue) -> OnnxValue:
        return ex.op("Div", ex.op("Log", wide(ex, x)), ex.number(math.log(base), torch.float64))

    return rule


exports(aten.log2.default)(_logarithm(2))
exports(aten.log10.default)(_logarithm(10))


def _exponentials(ex: Exporter, x: OnnxValue) -> tuple[OnnxValue, OnnxValue]:
    """Half of exp(x) and of exp(-x), in float64, by their roots: exp(x) runs over before its half does."""
    half = ex.number(0.5, torch.float64)
    up = ex.op("Exp", ex.op("Mul", wide(ex, x), half))
    down = ex.op("Reciprocal", up)
    return ex.op("Mul", ex.op("Mul", up, half), up), ex.op("Mul", ex.op("Mul", down, half), down)


@exports(aten.sinh.default)
def sinh(ex: Exporter, x: OnnxValue) -> OnnxValue:
    up, down = _exponentials(ex, x)
    made = ex.op("Sub", up, down)
    if _has_room(x):
        return made
    grown, half = expm1(ex, x), ex.number(0.5, torch.float64)  # near 0 the exponentials cancel
    ratio = ex.op("Div", grown, ex.op("Add", grown, ex.number(1.0, torch.float64)))
    near = ex.op("Less", ex.op("Abs", x), ex.number(1.0, torch.float64))
    return ex.op("Where", near, ex.op("Mul", ex.op("Add", grown, ratio), half), made)


@exports(aten.cosh.default)
def cosh(ex: Exporter, x: OnnxValue) -> OnnxValue:
    return ex.op("Add", *_exponentials(ex, x))


@exports(aten.asinh.default)
def asinh(ex: Exporter, x: OnnxValue) -> OnnxValue:
    """By the absolute value, so that nothing cancels: sign(x) · log(|x| + sqrt(x² + 1))"""
    one = ex.number(1.0, torch.float64)
    size = ex.op("Abs", wide(ex, x))
    square = ex.op("Mul", size, size)
    root = ex.op("Sqrt", ex.op("Add", square, one))
    if _has_room(x):
        made = ex.op("Log", ex.op("Add", size, root))
    else:
        made = log1p(ex, ex.op("Add", size, ex.op("Div", square, ex.op("Add", root, one))))
        twice = ex.op("Add", ex.op("Log", size), ex.number(math.log(2), torch.float64))
        made = ex.op("Where", ex.op("Greater", size, ex.number(2.0**30, torch.float64)), twice, made)
    return ex.op("Mul", ex.op("Sign", wide(ex, x)), made)


@exports(aten.acosh.default)
def acosh(ex: Exporter, x: OnnxValue) -> OnnxValue:
    one = ex.number(1.0, torch.float64)
    less = ex.op("Sub", wide(ex, x), one)
    root = ex.op("Mul", ex.op("Sqrt", less), ex.op("Sqrt", ex.op("Add", wide(ex, x), one)))
    if _has_room(x):
        return ex.op("Log", ex.op("Add", wide(ex, x), root))
    return log1p(ex, ex.op("Add", less, root))


@exports(aten.atanh.default)
def atanh(ex: Exporter, x: OnnxValue) -> OnnxValue:
    one, half = ex.number(1.0, torch.float64), ex.number(0.5, torch.float64)
    if _has_room(x):
        x = wide(ex, x)
        return ex.op("Mul", ex.op("Log", ex.op("Div", ex.op("Add", one, x), ex.op("Sub", one, x))), half)
    size = ex.op("Abs", x)
    ratio = ex.op("Div", ex.op("Add", size, size), ex.op("Sub", one, size))
    return ex.op("Mul", ex.op("Sign", x), ex.op("Mul", log1p(ex, ratio), half))


@exports(aten.atan2.default)
def atan2(ex: Exporter, y: OnnxValue, x: OnnxValue) -> OnnxValue:
    """The angle of the ratio, and half a turn more on the left; zeros and infinities as the standard has them."""
    dtype = ex.dtype if ex.dtype.is_floating_point else torch.float32
    y, x = ex.cast(y, dtype), ex.cast(x, dtype)
    zero, pi = ex.number(0.0, dtype), ex.number(math.pi, dtype)
    below = is_negative(ex, y)
    left = is_negative(ex, x)
    both = ex.op("And", infinite(ex, x), infinite(ex, y))
    one = ex.number(1.0, dtype)
    level = ex.op("And", ex.op("Equal", x, zero), ex.op("Equal", y, zero))
    over = ex.op("Where", both, ex.op("Sign", y), y)
    under = ex.op("Where", both, ex.op("Sign", x), ex.op("Where", level, one, x))
    angle = ex.op("Atan", ex.op("Abs", ex.op("Div", over, under)))
    angle = ex.op("Where", left, ex.op("Sub", pi, angle), angle)
    return ex.op("Where", below, ex.op("Neg", angle), angle)


def is_negative(ex: Exporter, x: OnnxValue) -> OnnxValue:
    """Whether a float's sign is minus, that of -0.0 as well."""
    zero = ex.number(0.0, x.dtype)
    inverse = ex.op("Reciprocal", x)
    return ex.op("Or", ex.op("Less", x, zero), ex.op("And", ex.op("Equal", x, zero), ex.op("Less", inverse, zero)))


@exports(aten.copysign.Tensor, aten.copysign.Scalar)
def copysign(ex: Exporter, x: OnnxValue, sign: Any) -> OnnxValue:
    size = ex.op("Abs", ex.cast(x, ex.dtype))
    given = ex.operand(sign, ex.dtype)
    return ex.op("Where", is_negative(ex, given), ex.op("Neg", size), size)


def infinite(ex: Exporter, x: OnnxValue) -> OnnxValue:
    return ex.op("IsInf", x if x.dtype in (torch.float32, torch.float64) else ex.cast(x, torch.float32))


@exports(aten.hypot.default)
def hypot(ex: Exporter, x: OnnxValue, y: OnnxValue) -> OnnxValue:
    endless = ex.op("Or", infinite(ex, x), infinite(ex, y))
    if _has_room(x):
        x, y = wide(ex, x), wide(ex, y)
        root = ex.op("Sqrt", ex.op("Add", ex.op("Mul", x, x), ex.op("Mul", y, y)))
    else:  # squares may be too large
        sizes = ex.op("Abs", x), ex.op("Abs", y)
        large, small = ex.op("Max", *sizes), ex.op("Min", *sizes)
        zero, one = ex.number(0.0, torch.float64), ex.number(1.0, torch.float64)
        ratio = ex.op("Where", ex.op("Equal", large, zero), zero, ex.op("Div", small, large))
        root = ex.op("Mul", large, ex.op("Sqrt", ex.op("Add", ex.op("Mul", ratio, ratio), one)))
    return ex.op("Where", endless, ex.number(math.inf, torch.float64), root)


@exports(aten.sign.default, aten.sgn.default)
def sign(ex: Exporter, x: OnnxValue) -> OnnxValue:
    if x.dtype is torch.bool:
        return x
    if not x.is_float:
        return ex.op("Sign", x)
    zero = ex.number(0.0, x.dtype)  # of nan, torch says 0
    return ex.op("Where", ex.op("IsNaN", x), zero, ex.op("Sign", x))


def _round(kind: str) -> Callable[..., OnnxValue]:
    return lambda ex, x: ex.op(kind, x) if x.is_float else x


exports(aten.ceil.default)(_round("Ceil"))
exports(aten.floor.default)(_round("Floor"))
round_ = exports(aten.round.default)(_round("Round"))


@exports(aten.round.decimals)
def round_decimals(ex: Exporter, x: OnnxValue, *, decimals: int) -> OnnxValue:
    if decimals == 0 or not x.is_float:
        return round_(ex, x)
    factor = ex.number(10.0 ** abs(decimals), x.dtype)
    first, second = ("Mul", "Div") if decimals > 0 else ("Div", "Mul")
    return ex.op(second, ex.op("Round", ex.op(first, x, factor)), factor)


@exports(aten.frac.default)
def frac(ex: Exporter, x: OnnxValue) -> OnnxValue:
    return ex.op("Sub", x, trunc(ex, x))
