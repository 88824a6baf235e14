"""Elementwise operators that a decomposition leaves behind, and those that need more than one scalar operation."""

from __future__ import annotations

import math
from typing import Any

import torch

from ingot.lowering.dtypes import FLOATS, wide
from ingot.lowering.loop_body import BodyBuilder
from ingot.lowering.lower import Lowering, lowers
from ingot.lowering.rules.pointwise import elementwise
from ingot.lowering.tensor_views import Deferred, Index, TensorValue, broadcast_place
from ingot.lowering.unsupported import LoweringUnsupported

aten, prims = torch.ops.aten, torch.ops.prims


def _register() -> None:
    """torch's primitives take operands of one dtype and return the same dtype, comparisons bool."""
    same = (
        "add sub mul div sqrt exp log neg abs pow sin cos tan tanh sinh cosh asin acos atan asinh acosh atanh erf erfc "
        "exp2 expm1 log2 log10 log1p lgamma digamma floor ceil trunc round sign reciprocal rsqrt atan2 fmod "
        "nextafter hypot"
    )
    names = {name: name for name in same.split()} | {
        "maximum": "max", "minimum": "min", "remainder": "floormod", "erf_inv": "erfinv", "bessel_i0": "i0",
        "bessel_i0e": "i0e", "bessel_i1": "i1", "bessel_i1e": "i1e", "bitwise_and": "bitand", "bitwise_or": "bitor",
        "bitwise_xor": "bitxor", "bitwise_not": "bitwise_not", "shift_left": "shl", "shift_right_arithmetic": "shr",
    }  # fmt: skip
    for target, name in names.items():
        if hasattr(prims, target):
            lowers(getattr(prims, target).default)(_elementwise(name, None))
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        lowers(getattr(prims, name).default)(_elementwise(name, "operands"))
    for target, name in {"i0": "i0", "special_i0e": "i0e", "special_i1": "i1", "special_i1e": "i1e"}.items():
        lowers(getattr(aten, target).default)(_elementwise(name, None))


def _elementwise(name: str, compare: str | None) -> Any:
    def rule(low: Lowering, *operands: Any) -> TensorValue:
        dtype = next((o.dtype for o in operands if isinstance(o, TensorValue)), "float32") if compare else low.out_dtype
        if name == "div" and dtype not in FLOATS:
            return elementwise(low, operands, lambda ops, a, b: ops.call("truncdiv", a, b), cost=8)
        return elementwise(low, operands, lambda ops, *v: ops.call(name, *v), dtype=dtype, cost=10)

    return rule


_register()


@lowers(aten.signbit.default, prims.signbit.default)
def signbit(low: Lowering, x: TensorValue) -> TensorValue:
    kind = wide(x.dtype)

    def compute(ops: BodyBuilder, v: int) -> int:
        if kind in ("float32", "float64"):  # the sign of -0.0 shows in what it is copied to
            v = ops.call("copysign", ops.const(1, kind), v)
        return ops.call("lt", v, ops.const(0, kind))

    return elementwise(low, (x,), compute, dtype=kind, result="bool")


@lowers(aten.round.decimals)
def round_decimals(low: Lowering, x: TensorValue, *, decimals: int = 0) -> TensorValue:
    kind = wide(low.out_dtype)

    def compute(ops: BodyBuilder, v: int) -> int:
        if not decimals:
            return ops.call("round", v)
        scale = ops.const(10.0 ** abs(decimals), kind)
        there, back = ("mul", "div") if decimals > 0 else ("div", "mul")
        return ops.call(back, ops.call("round", ops.call(there, v, scale)), scale)

    if x.dtype not in FLOATS and decimals < 0:
        raise LoweringUnsupported("an integer rounded to tens")
    return x if x.dtype not in FLOATS else elementwise(low, (x,), compute, cost=4)


@lowers(aten.angle.default)
def angle(low: Lowering, x: TensorValue) -> TensorValue:
    kind = wide(low.out_dtype)

    def compute(ops: BodyBuilder, v: int) -> int:
        turned = ops.where(ops.call("lt", v, ops.const(0, kind)), ops.const(math.pi, kind), ops.const(0, kind))
        return ops.where(ops.call("isnan", v), v, turned)

    return elementwise(low, (x,), compute)


@lowers(prims.convert_element_type.default)
def convert(low: Lowering, x: TensorValue, dtype: torch.dtype) -> TensorValue:
    made = low.out_dtype
    return (
        x
        if made == x.dtype
        else TensorValue(x.shape, made, Deferred(lambda ops, i: ops.cast(x.load(ops, i), made), x.cost + 1))
    )


@lowers(prims.broadcast_in_dim.default)
def broadcast_in_dim(low: Lowering, x: TensorValue, shape: Any, dims: Any) -> TensorValue:
    full = low.shape_of(low.out)

    def load(ops: BodyBuilder, index: Index) -> int:
        places = (broadcast_place(index[d], size, full[d]) for d, size in zip(dims, x.shape, strict=True))
        return x.load(ops, tuple(places))

    return TensorValue(full, x.dtype, Deferred(load, x.cost))


@lowers(prims.where.default)
def where(low: Lowering, condition: TensorValue, yes: TensorValue, no: TensorValue) -> TensorValue:
    from ingot.lowering.rules.pointwise import where as rule

    return rule(low, condition, yes, no)


@lowers(prims.frexp.default, aten.frexp.Tensor)
def frexp(low: Lowering, x: TensorValue) -> tuple[TensorValue, TensorValue]:
    """x = m · 2^e with |m| in [0.5, 1); zero, infinities and nan are their own m, with e = 0."""
    kind = wide(x.dtype)

    def parts(ops: BodyBuilder, index: Index) -> tuple[int, int]:
        v = x.load(ops, index)
        size = ops.call("abs", v)
        zero, one, half, two = (ops.const(n, kind) for n in (0, 1, 0.5, 2))
        strange = ops.call(
            "or", ops.call("eq", size, zero), ops.call("not", ops.call("lt", size, ops.const(math.inf, kind)))
        )
        # A denormal is made normal first; log2 may then be one off, which the last step corrects.
        tiny = ops.call("lt", size, ops.const(2.0**-100, kind))
        scaled = ops.where(tiny, ops.call("mul", size, ops.const(2.0**100, kind)), size)
        safe = ops.where(strange, one, scaled)
        power = ops.call("add", ops.call("floor", ops.call("log2", safe)), one)
        first = ops.call("exp2", ops.call("neg", ops.call("floor", ops.call("mul", power, half))))
        rest = ops.call("sub", power, ops.call("floor", ops.call("mul", power, half)))
        m = ops.call("mul", ops.call("mul", safe, first), ops.call("exp2", ops.call("neg", rest)))
        high, below = ops.call("ge", m, one), ops.call("lt", m, half)
        m = ops.where(high, ops.call("mul", m, half), ops.where(below, ops.call("mul", m, two), m))
        step = ops.where(high, one, ops.where(below, ops.const(-1, kind), zero))
        e = ops.call("sub", ops.call("add", power, step), ops.where(tiny, ops.const(100, kind), zero))
        m = ops.call("copysign", m, v)
        return ops.where(strange, v, m), ops.cast(ops.where(strange, zero, e), "int32")

    return (
        TensorValue(x.shape, x.dtype, Deferred(lambda ops, i: parts(ops, i)[0], x.cost + 40)),
        TensorValue(x.shape, "int32", Deferred(lambda ops, i: parts(ops, i)[1], x.cost + 40)),
    )
