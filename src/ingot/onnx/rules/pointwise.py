"""Elementwise operators: tables of those that ONNX has, and the few that take more than one node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from ingot.onnx.dtypes import name_of
from ingot.onnx.exporter import Exporter
from ingot.onnx.registry import OnnxUnsupported, exports
from ingot.onnx.values import OnnxValue, promote

aten = torch.ops.aten


def _register(table: dict[str, str], how: Callable[[str], Callable[..., OnnxValue]]) -> None:
    for target, kind in table.items():
        packet, _, overload = target.partition(".")
        exports(getattr(getattr(aten, packet), overload or "default"))(how(kind))


def binary(ex: Exporter, kind: str, x: Any, y: Any, dtype: torch.dtype | None = None, **attributes: Any) -> OnnxValue:
    """A node on two operands, both in `dtype` (default: the result's)."""
    dtype = dtype or ex.dtype
    return ex.op(kind, ex.operand(x, dtype), ex.operand(y, dtype), **attributes)


# ---------------------------------------------------------------------- one node


def _unary(kind: str) -> Callable[..., OnnxValue]:
    return lambda ex, x: ex.op(kind, ex.cast(x, ex.dtype))


def _binary(kind: str) -> Callable[..., OnnxValue]:
    """Operands are cast to the result's type."""
    return lambda ex, x, y: binary(ex, kind, x, y)


def _compare(kind: str) -> Callable[..., OnnxValue]:
    """Operands are cast to what torch promotes them to; the result is bool."""
    return lambda ex, x, y: binary(ex, kind, x, y, promote((x, y)))


def _logical(kind: str) -> Callable[..., OnnxValue]:
    return lambda ex, *operands: ex.op(kind, *(truth(ex, x) for x in operands))


def truth(ex: Exporter, x: Any) -> OnnxValue:
    """Whether an operand is not zero."""
    return ex.operand(x, torch.bool)


_register(
    {
        **{"exp": "Exp", "log": "Log", "sqrt": "Sqrt", "sin": "Sin", "cos": "Cos", "tanh": "Tanh"},
        **{"sigmoid": "Sigmoid", "reciprocal": "Reciprocal"},
        **{"asin": "Asin", "acos": "Acos", "atan": "Atan", "neg": "Neg", "abs": "Abs", "positive": "Identity"},
    },
    _unary,
)

_register(
    {
        **{"eq.Tensor": "Equal", "eq.Scalar": "Equal", "lt.Tensor": "Less", "lt.Scalar": "Less"},
        **{"le.Tensor": "LessOrEqual", "le.Scalar": "LessOrEqual", "gt.Tensor": "Greater", "gt.Scalar": "Greater"},
        **{"ge.Tensor": "GreaterOrEqual", "ge.Scalar": "GreaterOrEqual"},
    },
    _compare,
)
_register({"logical_and": "And", "logical_or": "Or", "logical_xor": "Xor", "logical_not": "Not"}, _logical)


@exports(aten.ne.Tensor, aten.ne.Scalar)
def not_equal(ex: Exporter, x: OnnxValue, y: Any) -> OnnxValue:
    return ex.op("Not", binary(ex, "Equal", x, y, promote((x, y))))


@exports(aten.mul.Tensor, aten.mul.Scalar)
def mul(ex: Exporter, x: Any, y: Any) -> OnnxValue:
    """By an inverse root it is a quotient by the root, the way in which ONNX Runtime knows RMS norms."""
    for place, other in ((0, y), (1, x)):
        root = _root_of(ex, ex.node.args[place])
        if root is not None and isinstance(other, OnnxValue) and other.dtype is root.dtype is ex.dtype:
            return ex.op("Div", other, root)
    return _product(ex, x, y)


def _root_of(ex: Exporter, node: Any) -> OnnxValue | None:
    """sqrt(x) where the node is rsqrt(x)."""
    if not isinstance(node, fx.Node) or node.target is not aten.rsqrt.default:
        return None
    x = ex.argument(node.args[0])
    return ex.once(("sqrt", x.value), lambda: ex.op("Sqrt", x)) if x.is_float else None


def _product(ex: Exporter, x: Any, y: Any) -> OnnxValue:
    if ex.dtype is torch.bool:
        return binary(ex, "And", x, y)
    return ex.op("Mul", *(ex.factor(part, ex.dtype, ex.shape) for part in (x, y)))


# ---------------------------------------------------------------------- arithmetic


@exports(aten.add.Tensor, aten.add.Scalar)
def add(ex: Exporter, x: Any, y: Any, alpha: Any = 1) -> OnnxValue:
    if ex.dtype is torch.bool:
        return binary(ex, "Or", x, _scale(ex, y, alpha))
    return binary(ex, "Add", x, _scale(ex, y, alpha))


@exports(aten.sub.Tensor, aten.sub.Scalar)
def sub(ex: Exporter, x: Any, y: Any, alpha: Any = 1) -> OnnxValue:
    return binary(ex, "Sub", x, _scale(ex, y, alpha))


@exports(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(ex: Exporter, x: Any, y: Any, alpha: Any = 1) -> OnnxValue:
    return binary(ex, "Sub", y, _scale(ex, x, alpha))


def _scale(ex: Exporter, y: Any, alpha: Any) -> Any:
    return y if isinstance(alpha, int | float) and alpha == 1 else _product(ex, y, alpha)


@exports(aten.div.Tensor, aten.div.Scalar, aten.true_divide.Tensor)
def div(ex: Exporter, x: Any, y: Any) -> OnnxValue:
    return ex.op("Div", ex.operand(x, ex.dtype), ex.factor(y, ex.dtype, ex.shape))


@exports(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_mode(ex: Exporter, x: Any, y: Any, rounding_mode: str | None = None) -> OnnxValue:
    if rounding_mode is None:
        return div(ex, x, y)
    return floor_divide(ex, x, y) if rounding_mode == "floor" else _truncate(ex, x, y)


def _truncate(ex: Exporter, x: Any, y: Any) -> OnnxValue:
    quotient = binary(ex, "Div", x, y)
    return trunc(ex, quotient) if ex.dtype.is_floating_point else quotient


@exports(aten.floor_divide.default, aten.floor_divide.Scalar)
def floor_divide(ex: Exporter, x: Any, y: Any) -> OnnxValue:
    over, under = ex.operand(x, ex.dtype), ex.operand(y, ex.dtype)
    if not ex.dtype.is_floating_point:
        quotient = ex.op("Div", over, under)  # towards zero: one too much where signs differ and something is left
        left = ex.op("Sub", over, ex.op("Mul", quotient, under))
        zero = ex.number(0, ex.dtype)
        signs = ex.op("Xor", ex.op("Less", over, zero), ex.op("Less", under, zero))
        above = ex.op("And", signs, ex.op("Not", ex.op("Equal", left, zero)))
        return ex.op("Sub", quotient, ex.cast(above, ex.dtype))
    # As torch does: from the remainder, so that no rounding of the quotient crosses an integer.
    quotient = ex.op("Div", over, under)
    left = ex.op("Mod", over, under, fmod=1)
    exact = ex.op("Div", ex.op("Sub", over, left), under)
    zero, one = ex.number(0.0, ex.dtype), ex.number(1.0, ex.dtype)
    below = ex.op("And", ex.op("Not", ex.op("Equal", left, zero)), _signs_differ(ex, left, under))
    exact = ex.op("Sub", exact, ex.op("Where", below, one, zero))
    floored = ex.op("Floor", exact)
    floored = ex.op("Add", floored, ex.op("Where", _is_above_half(ex, exact, floored), one, zero))
    none = ex.op("Mul", quotient, zero)
    made = ex.op("Where", ex.op("Equal", exact, zero), none, floored)
    return ex.op("Where", ex.op("Equal", under, zero), quotient, made)


def _is_above_half(ex: Exporter, x: OnnxValue, floored: OnnxValue) -> OnnxValue:
    return ex.op("Greater", ex.op("Sub", x, floored), ex.number(0.5, x.dtype))


def _signs_differ(ex: Exporter, x: OnnxValue, y: OnnxValue) -> OnnxValue:
    zero = ex.number(0, x.dtype)
    return ex.op("Xor", ex.op("Less", x, zero), ex.op("Less", y, zero))


@exports(aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor)
def remainder(ex: Exporter, x: Any, y: Any) -> OnnxValue:
    over, under = ex.operand(x, ex.dtype), ex.operand(y, ex.dtype)
    if not ex.dtype.is_floating_point:
        return ex.op("Mod", over, under)
    left = ex.op("Mod", over, under, fmod=1)
    zero = ex.number(0.0, ex.dtype)
    other = ex.op("And", ex.op("Not", ex.op("Equal", left, zero)), _signs_differ(ex, left, under))
    return ex.op("Where", other, ex.op("Add", left, under), left)


@exports(aten.fmod.Tensor, aten.fmod.Scalar)
def fmod(ex: Exporter, x: Any, y: Any) -> OnnxValue:
    return binary(ex, "Mod", x, y, fmod=1)


@exports(aten.pow.Tensor_Scalar)
def pow_number(ex: Exporter, x: OnnxValue, exponent: Any) -> OnnxValue:
    """Small whole exponents are products by what kernels do; a half is a root."""
    base = ex.cast(x, ex.dtype)
    if not isinstance(exponent, int | float):
        return binary(ex, "Pow", base, exponent)
    if exponent == 1:
        return base
    if exponent in (2, 3) and ex.dtype.is_floating_point:
        # A node of its own name: kernels multiply, and ONNX Runtime finds norms and tanh's GELU by it.
        return ex.op("Pow", base, ex.number(float(exponent), ex.dtype))
    if exponent == 2 and ex.dtype is not torch.bool:
        return ex.op("Mul", base, base)
    if exponent == 0.5:
        return ex.op("Sqrt", base)
    if exponent == -0.5:
        return ex.op("Reciprocal", ex.op("Sqrt", base))
    if exponent == -1:
        return ex.op("Reciprocal", base)
    return _power(ex, base, exponent)


@exports(aten.pow.Tensor_Tensor, aten.pow.Scalar)
def _power(ex: Exporter, x: Any, exponent: Any) -> OnnxValue:
    if not ex.dtype.is_floating_point:
        if isinstance(exponent, int) and exponent < 0:
            raise OnnxUnsupported("an integer to a negative power")
        if ex.dtype in (torch.int64, torch.int32, torch.bool):
            return _integer_power(ex, x, exponent)
    return binary(ex, "Pow", x, exponent)


def _integer_power(ex: Exporter, x: Any, exponent: Any) -> OnnxValue:
    """By squaring, since kernels go through doubles, which hold 53 bits: exact, and it wraps as torch's does."""
    dtype = torch.int64
    base, rest = ex.operand(x, dtype), ex.operand(exponent, dtype)
    given, inverse = base, ex.op("Less", rest, ex.number(0, dtype))
    rest = ex.op("Abs", rest)
    one, two = ex.number(1, dtype), ex.number(2, dtype)
    steps = 6 if not isinstance(exponent, int) else max(exponent.bit_length(), 1)
    made = one
    for step in range(steps):
        odd = ex.op("Equal", ex.op("Mod", rest, two), one)
        made = ex.op("Mul", made, ex.op("Where", odd, base, one))
        if step + 1 < steps:
            base = ex.op("Mul", base, base)
            rest = ex.op("Div", rest, two)
    # To a negative power, only 1 and -1 are more than nothing.
    unit = ex.op("Equal", ex.op("Abs", given), one)
    return ex.op("Where", ex.op("And", inverse, ex.op("Not", unit)), ex.number(0, dtype), made)


@exports(aten.square.default)
def square(ex: Exporter, x: OnnxValue) -> OnnxValue:
    return _product(ex, x, x)


@exports(aten.trunc.default, aten.fix.default)
def trunc(ex: Exporter, x: OnnxValue) -> OnnxValue:
    if not x.is_float:
        return x
    return ex.op("Mul", ex.op("Sign", x), ex.op("Floor", ex.op("Abs", x)))


# ---------------------------------------------------------------------- bits


def _bitwise(kind: str, logical: str) -> Callable[..., OnnxValue]:
    def rule(ex: Exporter, x: Any, y: Any) -> OnnxValue:
        return binary(ex, logical if ex.dtype is torch.bool else kind, x, y)

    return rule


for _name, _kind, _logical_kind in (
    ("and", "BitwiseAnd", "And"),
    ("or", "BitwiseOr", "Or"),
    ("xor", "BitwiseXor", "Xor"),
):
    for _overload in ("Tensor", "Scalar", "Scalar_Tensor"):
        exports(getattr(getattr(aten, f"bitwise_{_name}"), _overload))(_bitwise(_kind, _logical_kind))
    for _overload in ("Tensor", "Scalar"):
        exports(getattr(getattr(aten, f"__{_name}__"), _overload))(_bitwise(_kind, _logical_kind))


@exports(aten.bitwise_not.default)
def bitwise_not(ex: Exporter, x: OnnxValue) -> OnnxValue:
    return ex.op("Not" if x.dtype is torch.bool else "BitwiseNot", x)


@exports(aten.bitwise_left_shift.Tensor, aten.bitwise_left_shift.Tensor_Scalar, aten.__lshift__.Scalar)
def shift_left(ex: Exporter, x: OnnxValue, count: Any) -> OnnxValue:
    return _shift(ex, x, count, left=True)


@exports(aten.bitwise_right_shift.Tensor, aten.bitwise_right_shift.Tensor_Scalar, aten.__rshift__.Scalar)
def shift_right(ex: Exporter, x: OnnxValue, count: Any) -> OnnxValue:
    return _shift(ex, x, count, left=False)


def _shift(ex: Exporter, x: Any, count: Any, *, left: bool) -> OnnxValue:
    """As a product or a rounded-down quotient with a power of two: ONNX shifts unsigned numbers alone."""
    if ex.dtype.is_floating_point:
        raise OnnxUnsupported(f"a shift of {name_of(ex.dtype)}")
    bits = torch.iinfo(ex.dtype).bits if ex.dtype is not torch.bool else 8
    dtype = torch.int64
    value, by = ex.operand(x, dtype), ex.operand(count, dtype)
    none, most = ex.number(0, dtype), ex.number(bits - 1, dtype)
    outside = ex.op("Or", ex.op("Less", by, none), ex.op("Greater", by, most))
    powers = ex.constant(torch.tensor([1 << k if k < 63 else -(1 << 63) for k in range(64)], dtype=dtype))
    power = ex.op("Gather", powers, ex.op("Where", outside, none, by))
    if left:
        return ex.op("Where", outside, none, ex.op("Mul", value, power))
    # 2**63 is negative as an int64; by it only the sign is left, as for counts outside.
    sign = ex.op("Where", ex.op("Less", value, none), ex.number(-1, dtype), none)
    outside = ex.op("Or", outside, ex.op("Less", power, none))
    power = ex.op("Where", outside, ex.number(1, dtype), power)
    down = ex.op("Div", ex.op("Sub", value, ex.op("Mod", value, power)), power)
    return ex.op("Where", outside, sign, down)


# ---------------------------------------------------------------------- casts and copies


def _keeps(node: fx.Node) -> bool:
    return True


@exports(
    *(aten.clone.default, aten.contiguous.default, aten.alias.default, aten.detach.default, aten.lift_fresh.default),
    *(aten.lift_fresh_copy.default, aten._to_copy.default, aten.to.dtype, aten.to.device, aten.to.dtype_layout),
    *(aten.to.other, aten.type_as.default, aten.copy.default, aten._conj.default, aten.conj.default, aten.lift.default),
    *(aten.resolve_conj.default, aten.resolve_neg.default, aten.conj_physical.default, aten.float.default)
    if hasattr(aten, "float")
    else (),
)
def copy(ex: Exporter, x: OnnxValue, other: Any = None, *_: Any, **__: Any) -> OnnxValue:
    """The same elements in the result's type; of `copy`, those of the second, in the shape of the first."""
    if ex.node.target is aten.copy.default:
        return ex.expand(ex.cast(other, ex.dtype), ex.shape)
    return ex.cast(x, ex.dtype)
