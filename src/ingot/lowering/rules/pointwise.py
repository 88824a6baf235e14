"""Elementwise operators: a table of scalar operations, and the few that need more than one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ingot.analysis.type_promotion import dtype_of_number, promote_operands
from ingot.lowering.dtypes import INTEGERS, wide
from ingot.lowering.index_expr import Expr, Size
from ingot.lowering.loop_body import BodyBuilder
from ingot.lowering.lower import Lowering, lowers
from ingot.lowering.tensor_views import Deferred, Index, Strided, TensorValue, broadcast
from ingot.lowering.unsupported import LoweringUnsupported, dtype_name

aten = torch.ops.aten

HEAVY = frozenset(
    (
        *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos"),
        *("tan", "sinh", "cosh", "tanh", "asin", "acos", "atan", "atan2", "asinh"),
        *("acosh", "atanh", "erf", "erfc", "erfinv", "sigmoid", "pow", "sqrt", "rsqrt"),
        *("div", "lgamma", "digamma", "floordiv", "floormod", "fmod", "i0", "i1", "i0e"),
        *("i1e", "hypot"),
    )
)

# Combined with a half, torch keeps a number in float32 as the second operand of these and of the divisions below; all
# others round it to the half first.
WIDE_NUMBER = frozenset({"mul", "floordiv"})

Scalar = int | float | bool


# ---------------------------------------------------------------------- the way every elementwise rule goes


def promote(operands: Sequence[Any]) -> str:
    """The dtype that torch computes these operands in."""
    kinds: list[tuple[torch.dtype, int | None]] = []
    for operand in operands:
        if isinstance(operand, TensorValue):
            kinds.append((getattr(torch, operand.dtype), operand.rank))
        elif isinstance(operand, (int, float, Expr)):
            kinds.append((dtype_of_number(operand), None))
    return dtype_name(promote_operands(kinds))


def value_at(ops: BodyBuilder, operand: Any, index: Index, dtype: str) -> int:
    """An operand's element as a value of this dtype: rounded to it, where it is a half."""
    if isinstance(operand, TensorValue):
        return ops.cast(operand.load(ops, broadcast(index, operand.shape)), dtype)
    if isinstance(operand, Expr):
        return ops.cast(ops.index(operand), dtype)
    return ops.const(_number(operand, dtype), dtype)


def _number(value: Scalar, dtype: str) -> Scalar:
    if dtype in INTEGERS and isinstance(value, float) and not math.isfinite(value):
        raise LoweringUnsupported(f"{value} as {dtype} has no meaning")
    return value


def elementwise(
    low: Lowering,
    operands: Sequence[Any],
    compute: Callable[..., int],
    *,
    dtype: str | None = None,
    result: str | None = None,
    cost: int = 1,
    wide_number: bool = False,
) -> TensorValue:
    """`compute(ops, *elements)` at every place of the broadcast operands.

    `dtype` is what operands are cast to first (default: the result's), `result` the dtype of the value. With
    `wide_number` a second operand that is a number or of rank 0 is not rounded to a half dtype, as some kernels of
    torch have it.
    """
    result = result or low.out_dtype
    dtype = dtype or result
    shape = low.shape_of(low.out)
    for operand in operands:
        _keep_expensive(low, operand, shape)
    operands = [low.align(operand, shape) if isinstance(operand, TensorValue) else operand for operand in operands]

    dtypes = [dtype] * len(operands)
    if wide_number and not (isinstance(operands[1], TensorValue) and operands[1].rank):
        dtypes[1] = wide(dtype)

    def load(ops: BodyBuilder, index: Index) -> int:
        return compute(ops, *(value_at(ops, operand, index, d) for operand, d in zip(operands, dtypes, strict=True)))

    total = cost + sum(operand.cost for operand in operands if isinstance(operand, TensorValue))
    return TensorValue(shape, result, Deferred(load, total, order_for(low, operands, len(shape))))


def _keep_expensive(low: Lowering, operand: Any, shape: tuple[Size, ...]) -> None:
    """What is costly and about to be repeated by a broadcast is computed once, before."""
    if isinstance(operand, TensorValue) and isinstance(operand.data, Deferred) and operand.cost > 8:
        repeats = low.hint(_count(shape)) > 2 * low.hint(operand.numel)
        if repeats:
            low.realize(operand)


def _count(shape: tuple[Size, ...]) -> Size:
    total: Size = 1
    for size in shape:
        total = total * size
    return total


def order_for(low: Lowering, operands: Sequence[Any], rank: int) -> tuple[int, ...] | None:
    """The physical order that most of the data is read in already."""
    best: tuple[int, tuple[int, ...] | None] = (0, None)
    for operand in operands:
        if not isinstance(operand, TensorValue) or operand.rank != rank or rank < 2:
            continue
        data = operand.data
        if isinstance(data, Strided):
            if any(low.hint(s) == 0 and size != 1 for s, size in zip(data.strides, operand.shape, strict=True)):
                continue
            order: tuple[int, ...] | None = low.order_of(operand)
        else:
            order = data.order
        size = low.hint(operand.numel)
        if size > best[0]:
            best = (size, order)
    return best[1]


# ---------------------------------------------------------------------- one scalar operation


def _register(table: dict[str, str], how: Callable[[str], Callable[..., TensorValue]]) -> None:
    for target, name in table.items():
        packet, _, overload = target.partition(".")
        lowers(getattr(getattr(aten, packet), overload or "default"))(how(name))


def _same(name: str) -> Callable[..., TensorValue]:
    """Operands are cast to the result's dtype."""
    cost, wide_number = 10 if name in HEAVY else 1, name in WIDE_NUMBER

    def rule(low: Lowering, *operands: Any) -> TensorValue:
        if name in ("floormod", "fmod", "floordiv") and low.out_dtype in INTEGERS:
            low.check_divisor(operands[1])
        return elementwise(low, operands, lambda ops, *v: ops.call(name, *v), cost=cost, wide_number=wide_number)

    return rule


def _compare(name: str) -> Callable[..., TensorValue]:
    """Operands are cast to what torch promotes them to; the result is bool."""

    def rule(low: Lowering, *operands: Any) -> TensorValue:
        return elementwise(low, operands, lambda ops, *v: ops.call(name, *v), dtype=promote(operands), result="bool")

    return rule


def _logical(name: str) -> Callable[..., TensorValue]:
    """Operands are cast to what torch promotes them to, then to bool; the result is bool."""

    def compute(ops: BodyBuilder, *elements: int) -> int:
        return ops.call(name, *(ops.cast(element, "bool") for element in elements))

    def rule(low: Lowering, *operands: Any) -> TensorValue:
        return elementwise(low, operands, compute, dtype=promote(operands), result="bool")

    return rule


_register(
    {
        **{
            name: name
            for name in [
                "exp",
                "exp2",
                "expm1",
                "log",
                "log2",
                "log10",
                "log1p",
                "sin",
                "cos",
                "tan",
                "sinh",
                "cosh",
                "tanh",
                "asin",
                "acos",
                "atan",
                "asinh",
                "acosh",
                "atanh",
                "erf",
                "erfc",
                "erfinv",
                "sigmoid",
                "sqrt",
                "rsqrt",
                "neg",
                "abs",
                "lgamma",
                "digamma",
                "ceil",
                "floor",
                "trunc",
                "round",
                "reciprocal",
                "sign",
                "sgn",
                "square",
                "bitwise_not",
                "relu",
                "positive",
            ]
        },
        "_neg_view": "neg",
        "atan2": "atan2",
        "hypot": "hypot",
        "nextafter": "nextafter",
        "copysign.Tensor": "copysign",
        "mul.Tensor": "mul",
        "mul.Scalar": "mul",
        "maximum": "max",
        "minimum": "min",
        "fmax": "fmax",
        "fmin": "fmin",
        "fmod.Tensor": "fmod",
        "fmod.Scalar": "fmod",
        "remainder.Tensor": "floormod",
        "remainder.Scalar": "floormod",
        "remainder.Scalar_Tensor": "floormod",
        "floor_divide": "floordiv",
        "pow.Tensor_Tensor": "pow",
        "pow.Scalar": "pow",
        "bitwise_and.Tensor": "bitand",
        "bitwise_or.Tensor": "bitor",
        "bitwise_xor.Tensor": "bitxor",
        "bitwise_and.Scalar": "bitand",
        "bitwise_or.Scalar": "bitor",
        "bitwise_xor.Scalar": "bitxor",
        "bitwise_left_shift.Tensor": "shl",
        "bitwise_right_shift.Tensor": "shr",
        "__lshift__.Tensor": "shl",
        "__rshift__.Tensor": "shr",
        "__lshift__.Scalar": "shl",
        "__rshift__.Scalar": "shr",
    },
    _same,
)
_register(
    {
        **{f"{name}.{kind}": name for name in ["eq", "ne", "lt", "le", "gt", "ge"] for kind in ("Tensor", "Scalar")},
        "isnan": "isnan",
        "isinf": "isinf",
    },
    _compare,
)
_register({"logical_and": "and", "logical_or": "or", "logical_xor": "ne", "logical_not": "not"}, _logical)


@lowers(aten.add.Tensor, aten.add.Scalar)
def add(low: Lowering, x: Any, y: Any, alpha: Scalar = 1) -> TensorValue:
    return _scale(low, "add", x, y, alpha)


@lowers(aten.sub.Tensor, aten.sub.Scalar)
def sub(low: Lowering, x: Any, y: Any, alpha: Scalar = 1) -> TensorValue:
    return _scale(low, "sub", x, y, alpha)


@lowers(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(low: Lowering, x: Any, y: Any, alpha: Scalar = 1) -> TensorValue:
    return _scale(low, "sub", y, x, alpha)


def _scale(low: Lowering, name: str, x: Any, y: Any, alpha: Any) -> TensorValue:
    if not isinstance(alpha, (int, float)) or alpha != 1:
        return elementwise(low, (x, y, alpha), lambda ops, a, b, c: ops.call(name, a, ops.call("mul", b, c)))
    return elementwise(low, (x, y), lambda ops, a, b: ops.call(name, a, b))


@lowers(aten.div.Tensor, aten.div.Scalar)
def div(low: Lowering, x: Any, y: Any) -> TensorValue:
    return elementwise(low, (x, y), lambda ops, a, b: ops.call("div", a, b), cost=2, wide_number=True)


@lowers(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_mode(low: Lowering, x: Any, y: Any, rounding_mode: str | None = None) -> TensorValue:
    if rounding_mode is None:
        return div(low, x, y)
    integral = low.out_dtype in INTEGERS
    if integral:
        low.check_divisor(y)

    def compute(ops: BodyBuilder, a: int, b: int) -> int:
        if rounding_mode == "floor":
            return ops.call("floordiv", a, b)
        return ops.call("truncdiv", a, b) if integral else ops.call("trunc", ops.call("div", a, b))

    return elementwise(low, (x, y), compute, cost=8, wide_number=True)


@lowers(aten.pow.Tensor_Scalar)
def pow_scalar(low: Lowering, x: TensorValue, exponent: Any) -> TensorValue:
    """Small whole exponents are products; a half is a root."""

    def compute(ops: BodyBuilder, a: int) -> int:
        if exponent == 2:
            return ops.call("mul", a, a)
        if exponent == 3:
            return ops.call("mul", ops.call("mul", a, a), a)
        if exponent == 1:
            return a
        if exponent == 0.5:
            return ops.call("sqrt", a)
        if exponent == -1:
            return ops.call("reciprocal", a)
        if exponent == -0.5:
            return ops.call("rsqrt", a)
        return ops.call("pow", a, value_at(ops, exponent, (), dtype))

    dtype = low.out_dtype
    if isinstance(exponent, int) and exponent < 0 and low.out_dtype in INTEGERS:
        raise LoweringUnsupported("an integer to a negative power")
    cost = 1 if exponent in (1, 2, 3) else 10
    return elementwise(low, (x,), compute, cost=cost)


@lowers(aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.where.Scalar)
def where(low: Lowering, condition: TensorValue, yes: Any, no: Any) -> TensorValue:
    dtype = low.out_dtype
    shape = low.shape_of(low.out)
    condition = low.align(condition, shape)
    yes, no = (low.align(choice, shape) if isinstance(choice, TensorValue) else choice for choice in (yes, no))

    def load(ops: BodyBuilder, index: Index) -> int:
        c = value_at(ops, condition, index, "bool")
        return ops.where(c, value_at(ops, yes, index, dtype), value_at(ops, no, index, dtype))

    operands = [operand for operand in (condition, yes, no) if isinstance(operand, TensorValue)]
    return TensorValue(
        shape, dtype, Deferred(load, 1 + sum(o.cost for o in operands), order_for(low, operands, len(shape)))
    )


@lowers(aten.clamp.default, aten.clamp.Tensor, aten.clamp_min.default, aten.clamp_min.Tensor, aten.hardtanh.default)
def clamp(low: Lowering, x: TensorValue, minimum: Any = None, maximum: Any = None) -> TensorValue:
    if low.node.target is aten.hardtanh.default:
        minimum, maximum = -1 if minimum is None else minimum, 1 if maximum is None else maximum
    limits = [(name, limit) for name, limit in (("max", minimum), ("min", maximum)) if limit is not None]

    def compute(ops: BodyBuilder, value: int, *bounds: int) -> int:
        for (name, _), bound in zip(limits, bounds, strict=True):
            value = ops.call(name, value, bound)
        return value

    return elementwise(low, (x, *(limit for _, limit in limits)), compute)


@lowers(aten.clamp_max.default, aten.clamp_max.Tensor)
def clamp_max(low: Lowering, x: TensorValue, maximum: Any) -> TensorValue:
    return clamp(low, x, None, maximum)


@lowers(whole=[aten.gelu.default])
def gelu(low: Lowering, x: TensorValue, approximate: str = "none") -> TensorValue:
    dtype = wide(low.out_dtype)

    def compute(ops: BodyBuilder, v: int) -> int:
        half = ops.call("mul", v, ops.const(0.5, dtype))
        if approximate == "tanh":
            cube = ops.call("mul", ops.call("mul", v, v), v)
            inner = ops.call("add", v, ops.call("mul", cube, ops.const(0.044715, dtype)))
            gate = ops.call("tanh", ops.call("mul", inner, ops.const(math.sqrt(2 / math.pi), dtype)))
        else:
            gate = ops.call("erf", ops.call("mul", v, ops.const(math.sqrt(0.5), dtype)))
        return ops.call("mul", half, ops.call("add", gate, ops.const(1, dtype)))

    return elementwise(low, (x,), compute, cost=14)


@lowers(whole=[aten.silu.default])
def silu(low: Lowering, x: TensorValue) -> TensorValue:
    return elementwise(low, (x,), lambda ops, v: ops.call("mul", v, ops.call("sigmoid", v)), cost=11)


@lowers(aten.leaky_relu.default)
def leaky_relu(low: Lowering, x: TensorValue, slope: float = 0.01) -> TensorValue:
    dtype = wide(low.out_dtype)

    def compute(ops: BodyBuilder, v: int) -> int:
        return ops.where(ops.call("gt", v, ops.const(0, dtype)), v, ops.call("mul", v, ops.const(slope, dtype)))

    return elementwise(low, (x,), compute)


@lowers(aten.elu.default)
def elu(low: Lowering, x: TensorValue, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> TensorValue:
    dtype = wide(low.out_dtype)

    def compute(ops: BodyBuilder, v: int) -> int:
        inner = ops.call("mul", v, ops.const(input_scale, dtype))
        negative = ops.call("mul", ops.call("expm1", inner), ops.const(alpha * scale, dtype))
        positive = ops.call("mul", v, ops.const(scale, dtype))
        return ops.where(ops.call("gt", v, ops.const(0, dtype)), positive, negative)

    return elementwise(low, (x,), compute, cost=11)


# ---------------------------------------------------------------------- casts and copies


@lowers(
    aten._to_copy.default,
    aten.to.dtype,
    aten.to.device,
    aten.to.dtype_layout,
    aten.to.other,
    aten.type_as.default,
)
def cast(low: Lowering, x: TensorValue, *_: Any, **__: Any) -> TensorValue:
    dtype = low.out_dtype
    if dtype == x.dtype:
        return x

    def load(ops: BodyBuilder, index: Index) -> int:
        return ops.cast(x.load(ops, index), dtype)

    return TensorValue(x.shape, dtype, Deferred(load, x.cost + 1, low.order_of(x)))


@lowers(
    aten.clone.default,
    aten.contiguous.default,
    aten.lift_fresh_copy.default,
    aten.alias.default,
    aten.detach.default,
    aten.detach_.default,
    aten.alias_copy.default,
    aten.lift_fresh.default,
    aten.resolve_conj.default,
    aten.resolve_neg.default,
)
def same(low: Lowering, x: TensorValue, *_: Any, **__: Any) -> TensorValue:
    return x


@lowers(aten.copy.default)
def copy(low: Lowering, target: TensorValue, source: TensorValue, non_blocking: bool = False) -> TensorValue:
    return elementwise(low, (source,), lambda ops, v: v)
