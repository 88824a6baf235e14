"""Reductions over dims: sums, extremes, counts, places."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ingot.lowering import tensor_views
from ingot.lowering.dtypes import wide
from ingot.lowering.index_expr import Expr, Size, product
from ingot.lowering.loop_body import BodyBuilder
from ingot.lowering.lower import Lowering, lowers
from ingot.lowering.rules.views import dims_of
from ingot.lowering.tensor_views import Deferred, Index, TensorValue

aten = torch.ops.aten

Transform = Callable[[BodyBuilder, int, Index], Sequence[int]]


def as_is(ops: BodyBuilder, value: int, index: Index) -> Sequence[int]:
    return (value,)


def restore(x: TensorValue, dims: Sequence[int], keep: bool) -> TensorValue:
    """The dims that a reduction took away, back as size 1."""
    if keep:
        for d in sorted(dims):
            x = tensor_views.insert(x, d)
    return x


def reduce(
    low: Lowering, x: TensorValue, dims: Any, keep: bool, kind: str, dtype: str, accumulate: str | None = None
) -> TensorValue:
    """x cast to `accumulate` (default: the computing type of `dtype`), combined over dims, as `dtype`."""
    over = dims_of(x, dims)
    inner = accumulate or wide(dtype)
    (made,) = low.reduce(x, over, (kind,), lambda ops, v, index: (ops.cast(v, inner),), (dtype,))
    return restore(made, over, keep)


@lowers(aten.sum.default, aten.sum.dim_IntList)
def sum_(low: Lowering, x: TensorValue, dims: Any = None, keepdim: bool = False, *, dtype: Any = None) -> TensorValue:
    return reduce(low, x, dims, keepdim, "sum", low.out_dtype)


@lowers(aten.mean.default, aten.mean.dim)
def mean(low: Lowering, x: TensorValue, dims: Any = None, keepdim: bool = False, *, dtype: Any = None) -> TensorValue:
    over = dims_of(x, dims)
    total = reduce(low, x, dims, keepdim, "sum", wide(low.out_dtype))
    return divide(low, total, product([x.shape[d] for d in over]), low.out_dtype)


def divide(low: Lowering, x: TensorValue, count: Size, dtype: str) -> TensorValue:
    def load(ops: BodyBuilder, index: Index) -> int:
        return ops.call("div", x.load(ops, index), ops.index(count, wide(dtype)))

    return TensorValue(x.shape, dtype, Deferred(load, x.cost + 1))


@lowers(aten.prod.default, aten.prod.dim_int)
def prod(low: Lowering, x: TensorValue, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> TensorValue:
    return reduce(low, x, dim, keepdim, "prod", low.out_dtype)


@lowers(aten.amax.default)
def amax(low: Lowering, x: TensorValue, dims: Any = (), keepdim: bool = False) -> TensorValue:
    return reduce(low, x, dims, keepdim, "max", x.dtype)


@lowers(aten.amin.default)
def amin(low: Lowering, x: TensorValue, dims: Any = (), keepdim: bool = False) -> TensorValue:
    return reduce(low, x, dims, keepdim, "min", x.dtype)


@lowers(aten.max.default)
def max_all(low: Lowering, x: TensorValue) -> TensorValue:
    return reduce(low, x, None, False, "max", x.dtype)


@lowers(aten.min.default)
def min_all(low: Lowering, x: TensorValue) -> TensorValue:
    return reduce(low, x, None, False, "min", x.dtype)


def _reduce_with_index(
    low: Lowering, x: TensorValue, dim: int, keep: bool, kind: str
) -> tuple[TensorValue, TensorValue]:
    if not x.rank:
        return x, low.full((), 0, "int64")
    return (
        reduce(low, x, dim, keep, kind, x.dtype),
        reduce(low, x, dim, keep, f"arg{kind}", "int64", wide(x.dtype)),
    )


@lowers(aten.max.dim)
def max_dim(low: Lowering, x: TensorValue, dim: int, keepdim: bool = False) -> tuple[TensorValue, TensorValue]:
    return _reduce_with_index(low, low.materialize_if_expensive(x), dim, keepdim, "max")


@lowers(aten.min.dim)
def min_dim(low: Lowering, x: TensorValue, dim: int, keepdim: bool = False) -> tuple[TensorValue, TensorValue]:
    return _reduce_with_index(low, low.materialize_if_expensive(x), dim, keepdim, "min")


@lowers(aten.argmax.default, aten.argmin.default)
def argmax(low: Lowering, x: TensorValue, dim: int | None = None, keepdim: bool = False) -> TensorValue:
    kind = "argmax" if low.node.target is aten.argmax.default else "argmin"
    if not x.rank:
        return low.full((), 0, "int64")
    return reduce(low, x, dim, keepdim, kind, "int64", wide(x.dtype))


def _truth(low: Lowering, x: TensorValue, dims: Any, keep: bool, kind: str) -> TensorValue:
    result = reduce(low, x, dims, keep, kind, "bool")
    if low.out_dtype == "bool":
        return result
    return TensorValue(
        result.shape, low.out_dtype, Deferred(lambda ops, index: ops.cast(result.load(ops, index), "uint8"), 1)
    )


@lowers(aten.any.default, aten.any.dim, aten.any.dims, aten._is_any_true.default)
def any_(low: Lowering, x: TensorValue, dims: Any = None, keepdim: bool = False) -> TensorValue:
    return _truth(low, x, dims, keepdim, "any")


@lowers(aten.all.default, aten.all.dim, aten.all.dims, aten._is_all_true.default)
def all_(low: Lowering, x: TensorValue, dims: Any = None, keepdim: bool = False) -> TensorValue:
    return _truth(low, x, dims, keepdim, "all")


def moments(low: Lowering, x: TensorValue, over: Sequence[int]) -> tuple[TensorValue, TensorValue]:
    """Mean and sum of squared distances from it, both with size 1 in `over`, in the computing type: two passes."""
    x = low.materialize_if_expensive(x)
    kind = wide(x.dtype)
    count = product([x.shape[d] for d in over])
    (total,) = low.reduce(x, over, ("sum",), lambda ops, v, index: (ops.cast(v, kind),), (kind,))
    middle = low.realize(divide(low, restore(total, over, True), count, kind))

    def squares(ops: BodyBuilder, v: int, index: Index) -> Sequence[int]:
        at = tuple(0 if d in over else i for d, i in enumerate(index))
        distance = ops.call("sub", ops.cast(v, kind), middle.load(ops, at))
        return (ops.call("mul", distance, distance),)

    (spread,) = low.reduce(x, over, ("sum",), squares, (kind,))
    return middle, restore(spread, over, True)


def variance(low: Lowering, x: TensorValue, dims: Any, correction: Any) -> tuple[TensorValue, TensorValue, list[int]]:
    over = list(dims_of(x, dims))
    middle, spread = moments(low, x, over)
    count = product([x.shape[d] for d in over])
    kind = wide(x.dtype)
    taken = 1 if correction is None else correction

    def load(ops: BodyBuilder, index: Index) -> int:
        if isinstance(count, Expr) or isinstance(taken, Expr):
            n = ops.call("sub", ops.index(count, kind), ops.const(taken, kind))
            n = ops.call("max", n, ops.const(0, kind))
        else:
            n = ops.const(max(count - taken, 0), kind)
        return ops.call("div", spread.load(ops, index), n)

    return TensorValue(spread.shape, kind, Deferred(load, 2)), middle, over


@lowers(aten.var.correction, aten.var.dim, aten.var.default)
def var(
    low: Lowering, x: TensorValue, dims: Any = None, *args: Any, correction: Any = None, keepdim: bool = False
) -> TensorValue:
    if low.node.target is not aten.var.correction:
        dims, correction, keepdim = _old_form(low, dims, args, keepdim)
    spread, _, over = variance(low, x, dims, correction)
    return _narrow(low, spread, over, keepdim)


def _old_form(low: Lowering, dims: Any, args: Any, keepdim: bool) -> tuple[Any, int, bool]:
    if low.node.target is aten.var.default:
        return None, int(dims is not False), False
    unbiased = args[0] if args else True
    return dims, int(unbiased), args[1] if len(args) > 1 else keepdim


def _narrow(low: Lowering, x: TensorValue, over: Sequence[int], keep: bool) -> TensorValue:
    made = TensorValue(x.shape, low.out_dtype, Deferred(lambda ops, index: x.load(ops, index), x.cost))
    return made if keep else tensor_views.drop(made, over)


@lowers(aten.var_mean.correction)
def var_mean(
    low: Lowering, x: TensorValue, dims: Any = None, *, correction: Any = None, keepdim: bool = False
) -> tuple[TensorValue, TensorValue]:
    spread, middle, over = variance(low, x, dims, correction)
    return _narrow(low, spread, over, keepdim), _narrow(low, middle, over, keepdim)
