"""Reductions over dims: sums, extremes, counts, places."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ingot.lowering import values
from ingot.lowering.body import Recorder
from ingot.lowering.expr import Expr, Size, product
from ingot.lowering.ir import wide
from ingot.lowering.lower import Lowering, lowers
from ingot.lowering.rules.views import dims_of
from ingot.lowering.values import Index, Lazy, Tensor

aten = torch.ops.aten

Transform = Callable[[Recorder, int, Index], Sequence[int]]


def as_is(ops: Recorder, value: int, index: Index) -> Sequence[int]:
    return (value,)


def restore(x: Tensor, dims: Sequence[int], keep: bool) -> Tensor:
    """The dims that a reduction took away, back as size 1."""
    if keep:
        for d in sorted(dims):
            x = values.insert(x, d)
    return x


def reduced(
    low: Lowering, x: Tensor, dims: Any, keep: bool, kind: str, dtype: str, accumulate: str | None = None
) -> Tensor:
    """x cast to `accumulate` (default: the computing type of `dtype`), combined over dims, as `dtype`."""
    over = dims_of(x, dims)
    inner = accumulate or wide(dtype)
    (made,) = low.reduce(x, over, (kind,), lambda ops, v, index: (ops.cast(v, inner),), (dtype,))
    return restore(made, over, keep)


@lowers(aten.sum.default, aten.sum.dim_IntList)
def sum_(low: Lowering, x: Tensor, dims: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    return reduced(low, x, dims, keepdim, "sum", low.out_dtype)


@lowers(aten.mean.default, aten.mean.dim)
def mean(low: Lowering, x: Tensor, dims: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    over = dims_of(x, dims)
    total = reduced(low, x, dims, keepdim, "sum", wide(low.out_dtype))
    return divided(low, total, product([x.shape[d] for d in over]), low.out_dtype)


def divided(low: Lowering, x: Tensor, count: Size, dtype: str) -> Tensor:
    def load(ops: Recorder, index: Index) -> int:
        return ops.call("div", x.load(ops, index), ops.index(count, wide(dtype)))

    return Tensor(x.shape, dtype, Lazy(load, x.cost + 1))


@lowers(aten.prod.default, aten.prod.dim_int)
def prod(low: Lowering, x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    return reduced(low, x, dim, keepdim, "prod", low.out_dtype)


@lowers(aten.amax.default)
def amax(low: Lowering, x: Tensor, dims: Any = (), keepdim: bool = False) -> Tensor:
    return reduced(low, x, dims, keepdim, "max", x.dtype)


@lowers(aten.amin.default)
def amin(low: Lowering, x: Tensor, dims: Any = (), keepdim: bool = False) -> Tensor:
    return reduced(low, x, dims, keepdim, "min", x.dtype)


@lowers(aten.max.default)
def max_all(low: Lowering, x: Tensor) -> Tensor:
    return reduced(low, x, None, False, "max", x.dtype)


@lowers(aten.min.default)
def min_all(low: Lowering, x: Tensor) -> Tensor:
    return reduced(low, x, None, False, "min", x.dtype)


def _with_places(low: Lowering, x: Tensor, dim: int, keep: bool, kind: str) -> tuple[Tensor, Tensor]:
    if not x.rank:
        return x, low.full((), 0, "int64")
    return (
        reduced(low, x, dim, keep, kind, x.dtype),
        reduced(low, x, dim, keep, f"arg{kind}", "int64", wide(x.dtype)),
    )


@lowers(aten.max.dim)
def max_dim(low: Lowering, x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return _with_places(low, low.keep(x), dim, keepdim, "max")


@lowers(aten.min.dim)
def min_dim(low: Lowering, x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return _with_places(low, low.keep(x), dim, keepdim, "min")


@lowers(aten.argmax.default, aten.argmin.default)
def argmax(low: Lowering, x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    kind = "argmax" if low.node.target is aten.argmax.default else "argmin"
    if not x.rank:
        return low.full((), 0, "int64")
    return reduced(low, x, dim, keepdim, kind, "int64", wide(x.dtype))


def _truth(low: Lowering, x: Tensor, dims: Any, keep: bool, kind: str) -> Tensor:
    result = reduced(low, x, dims, keep, kind, "bool")
    if low.out_dtype == "bool":
        return result
    return Tensor(result.shape, low.out_dtype, Lazy(lambda ops, index: ops.cast(result.load(ops, index), "uint8"), 1))


@lowers(aten.any.default, aten.any.dim, aten.any.dims, aten._is_any_true.default)
def any_(low: Lowering, x: Tensor, dims: Any = None, keepdim: bool = False) -> Tensor:
    return _truth(low, x, dims, keepdim, "any")


@lowers(aten.all.default, aten.all.dim, aten.all.dims, aten._is_all_true.default)
def all_(low: Lowering, x: Tensor, dims: Any = None, keepdim: bool = False) -> Tensor:
    return _truth(low, x, dims, keepdim, "all")


def moments(low: Lowering, x: Tensor, over: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Mean and sum of squared distances from it, both with size 1 in `over`, in the computing type: two passes."""
    x = low.keep(x)
    kind = wide(x.dtype)
    count = product([x.shape[d] for d in over])
    (total,) = low.reduce(x, over, ("sum",), lambda ops, v, index: (ops.cast(v, kind),), (kind,))
    middle = low.realize(divided(low, restore(total, over, True), count, kind))

    def squares(ops: Recorder, v: int, index: Index) -> Sequence[int]:
        at = tuple(0 if d in over else i for d, i in enumerate(index))
        distance = ops.call("sub", ops.cast(v, kind), middle.load(ops, at))
        return (ops.call("mul", distance, distance),)

    (spread,) = low.reduce(x, over, ("sum",), squares, (kind,))
    return middle, restore(spread, over, True)


def variance(low: Lowering, x: Tensor, dims: Any, correction: Any) -> tuple[Tensor, Tensor, list[int]]:
    over = list(dims_of(x, dims))
    middle, spread = moments(low, x, over)
    count = product([x.shape[d] for d in over])
    kind = wide(x.dtype)
    taken = 1 if correction is None else correction

    def load(ops: Recorder, index: Index) -> int:
        if isinstance(count, Expr) or isinstance(taken, Expr):
            n = ops.call("sub", ops.index(count, kind), ops.const(taken, kind))
            n = ops.call("max", n, ops.const(0, kind))
        else:
            n = ops.const(max(count - taken, 0), kind)
        return ops.call("div", spread.load(ops, index), n)

    return Tensor(spread.shape, kind, Lazy(load, 2)), middle, over


@lowers(aten.var.correction, aten.var.dim, aten.var.default)
def var(
    low: Lowering, x: Tensor, dims: Any = None, *args: Any, correction: Any = None, keepdim: bool = False
) -> Tensor:
    if low.node.target is not aten.var.correction:
        dims, correction, keepdim = _old_form(low, dims, args, keepdim)
    spread, _, over = variance(low, x, dims, correction)
    return _narrow(low, spread, over, keepdim)


def _old_form(low: Lowering, dims: Any, args: Any, keepdim: bool) -> tuple[Any, int, bool]:
    if low.node.target is aten.var.default:
        return None, int(dims is not False), False
    unbiased = args[0] if args else True
    return dims, int(unbiased), args[1] if len(args) > 1 else keepdim


def _narrow(low: Lowering, x: Tensor, over: Sequence[int], keep: bool) -> Tensor:
    made = Tensor(x.shape, low.out_dtype, Lazy(lambda ops, index: x.load(ops, index), x.cost))
    return made if keep else values.drop(made, over)


@lowers(aten.var_mean.correction)
def var_mean(
    low: Lowering, x: Tensor, dims: Any = None, *, correction: Any = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    spread, middle, over = variance(low, x, dims, correction)
    return _narrow(low, spread, over, keepdim), _narrow(low, middle, over, keepdim)
