"""Tensors from nothing: constants, ranges, triangles."""

from __future__ import annotations

from typing import Any

import torch

from ingot.lowering.dtypes import INTEGERS, wide
from ingot.lowering.index_expr import Expr, Size
from ingot.lowering.loop_body import BodyBuilder
from ingot.lowering.lower import Lowering, lowers
from ingot.lowering.rules.pointwise import value_at
from ingot.lowering.tensor_views import Deferred, Index, TensorValue

aten = torch.ops.aten


def fill(low: Lowering, value: Any) -> TensorValue:
    dtype = low.out_dtype
    return TensorValue(low.shape_of(low.out), dtype, Deferred(lambda ops, index: value_at(ops, value, index, dtype), 0))


@lowers(aten.full.default, aten.full_like.default, aten.new_full.default, aten.fill.Scalar, aten.fill.Tensor)
def full(low: Lowering, _: Any, value: Any, *more: Any, **__: Any) -> TensorValue:
    return fill(low, more[0] if low.node.target is aten.new_full.default and more else value)


@lowers(aten.scalar_tensor.default)
def scalar_tensor(low: Lowering, value: Any, **_: Any) -> TensorValue:
    return fill(low, value)


@lowers(aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default, aten.empty.memory_format,
        aten.empty_like.default, aten.new_empty.default, aten.empty_strided.default, aten.empty_permuted.default,
        aten.new_empty_strided.default)  # fmt: skip
def zeros(low: Lowering, *_: Any, **__: Any) -> TensorValue:
    """An empty tensor holds anything; zeros are as good and always the same."""
    return fill(low, 0)


@lowers(aten.ones.default, aten.ones_like.default, aten.new_ones.default)
def ones(low: Lowering, *_: Any, **__: Any) -> TensorValue:
    return fill(low, 1)


@lowers(aten.arange.start_step, aten.arange.default, aten.arange.start)
def arange(low: Lowering, *args: Any, **_: Any) -> TensorValue:
    target = low.node.target
    start: Any = 0 if target is aten.arange.default else args[0]
    step: Any = args[2] if target is aten.arange.start_step and len(args) > 2 else 1
    dtype = low.out_dtype
    if dtype in INTEGERS:  # torch counts the places with the numbers it was given, and fills them with integers
        start, step = (int(v) if isinstance(v, float) else v for v in (start, step))

    def load(ops: BodyBuilder, index: Index) -> int:
        (i,) = index
        if dtype in INTEGERS and isinstance(start, (int, Expr)) and isinstance(step, (int, Expr)):
            return ops.cast(ops.index(start + i * step), dtype)
        # As torch does it: in float64, rounded once at the end.
        place = ops.call("mul", ops.index(i, "float64"), value_at(ops, step, (), "float64"))
        return ops.cast(ops.call("add", place, value_at(ops, start, (), "float64")), wide(dtype))

    return TensorValue(low.shape_of(low.out), dtype, Deferred(load, 1))


@lowers(aten.eye.default, aten.eye.m)
def eye(low: Lowering, *_: Any, **__: Any) -> TensorValue:
    dtype = low.out_dtype

    def load(ops: BodyBuilder, index: Index) -> int:
        return ops.cast(ops.call("eq", ops.index(index[0]), ops.index(index[1])), wide(dtype))

    return TensorValue(low.shape_of(low.out), dtype, Deferred(load, 2))


@lowers(aten.linspace.default)
def linspace(low: Lowering, start: Any, end: Any, steps: Size, **_: Any) -> TensorValue:
    dtype = low.out_dtype

    def load(ops: BodyBuilder, index: Index) -> int:
        a, b = value_at(ops, start, (), "float64"), value_at(ops, end, (), "float64")
        last = ops.index(steps - 1, "float64")
        step = ops.call("div", ops.call("sub", b, a), ops.call("max", last, ops.const(1, "float64")))
        # From both ends to the middle, so that the last place is `end` itself.
        i = ops.index(index[0], "float64")
        front = ops.call("add", a, ops.call("mul", i, step))
        back = ops.call("sub", b, ops.call("mul", ops.call("sub", last, i), step))
        first_half = ops.call("lt", ops.call("mul", i, ops.const(2, "float64")), ops.index(steps, "float64"))
        return ops.cast(ops.where(first_half, front, back), wide(dtype))

    return TensorValue(low.shape_of(low.out), dtype, Deferred(load, 6))


def _triangle(low: Lowering, x: TensorValue, diagonal: Size, name: str) -> TensorValue:
    def load(ops: BodyBuilder, index: Index) -> int:
        kept = ops.call(name, ops.index(index[-1] - index[-2]), ops.index(diagonal))
        return ops.where(kept, x.load(ops, index), ops.const(0, x.dtype))

    return TensorValue(x.shape, x.dtype, Deferred(load, x.cost + 2))


@lowers(aten.tril.default)
def tril(low: Lowering, x: TensorValue, diagonal: Size = 0) -> TensorValue:
    return _triangle(low, x, diagonal, "le")


@lowers(aten.triu.default)
def triu(low: Lowering, x: TensorValue, diagonal: Size = 0) -> TensorValue:
    return _triangle(low, x, diagonal, "ge")
