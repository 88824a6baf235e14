"""Reductions over dims."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from ingot.onnx.exporter import Exporter
from ingot.onnx.registry import exports
from ingot.onnx.rules.pointwise import truth
from ingot.onnx.values import OnnxValue, axes, axis

aten = torch.ops.aten


def reduce(ex: Exporter, kind: str, x: OnnxValue, dims: Any, keepdim: bool) -> OnnxValue:
    """One of ONNX's Reduce operators over these dims."""
    if not x.rank:
        return _alone(ex, kind, x)
    return ex.op(kind, x, ex.ints(axes(dims, x.rank)), keepdims=int(keepdim))


def _alone(ex: Exporter, kind: str, x: OnnxValue) -> OnnxValue:
    """Of a scalar: kernels reduce dims only."""
    if kind == "ReduceL1":
        return ex.op("Abs", x)
    if kind == "ReduceL2":
        return ex.op("Abs", x)
    return ex.op("Mul", x, x) if kind == "ReduceSumSquare" else x


# ---------------------------------------------------------------------- sums


@exports(aten.sum.dim_IntList)
def sum_dims(ex: Exporter, x: OnnxValue, dims: Any = None, keepdim: bool = False, *, dtype: Any = None) -> OnnxValue:
    return reduce(ex, "ReduceSum", ex.cast(x, ex.dtype), dims, keepdim)


@exports(aten.sum.default)
def sum_all(ex: Exporter, x: OnnxValue, *, dtype: Any = None) -> OnnxValue:
    return sum_dims(ex, x)


@exports(aten.mean.dim)
def mean_dims(ex: Exporter, x: OnnxValue, dims: Any = None, keepdim: bool = False, *, dtype: Any = None) -> OnnxValue:
    if x.rank and any(x.sizes[d] == 0 for d in axes(dims, x.rank)):  # kernels say 0
        return ex.full(ex.shape, math.nan, ex.dtype)
    return reduce(ex, "ReduceMean", ex.cast(x, ex.dtype), dims, keepdim)


@exports(aten.mean.default)
def mean_all(ex: Exporter, x: OnnxValue, *, dtype: Any = None) -> OnnxValue:
    return mean_dims(ex, x)


@exports(aten.prod.dim_int)
def prod_dim(ex: Exporter, x: OnnxValue, dim: int, keepdim: bool = False, *, dtype: Any = None) -> OnnxValue:
    return reduce(ex, "ReduceProd", ex.cast(x, ex.dtype), [dim], keepdim)


@exports(aten.prod.default)
def prod_all(ex: Exporter, x: OnnxValue, *, dtype: Any = None) -> OnnxValue:
    return reduce(ex, "ReduceProd", ex.cast(x, ex.dtype), None, False)


def count_of(ex: Exporter, sizes: Any, dtype: torch.dtype) -> OnnxValue:
    """How many elements these dims have."""
    numbers, unknown = 1, []
    for size in sizes:
        if isinstance(size, int):
            numbers *= size
        else:
            unknown.append(size)
    if not unknown:
        return ex.number(numbers, dtype)
    made = ex.number(numbers, torch.int64)
    for size in unknown:
        made = ex.op("Mul", made, ex.sizes.scalar(size))
    return ex.cast(made, dtype)


def _variance(ex: Exporter, x: OnnxValue, dims: Any, correction: Any, keepdim: bool) -> tuple[OnnxValue, OnnxValue]:
    at = axes(dims, x.rank)
    if x.rank and any(x.sizes[d] == 0 for d in at):
        return ex.full(ex.shape, math.nan, x.dtype), ex.full(ex.shape, math.nan, x.dtype)
    if not x.rank:
        x = ex.reshape(x, [1])
        at, keepdim = [0], False
    mean = ex.op("ReduceMean", x, ex.ints(at))
    away = ex.op("Sub", x, mean)
    total = ex.op("ReduceSum", ex.op("Mul", away, away), ex.ints(at), keepdims=int(keepdim))
    count = count_of(ex, [x.sizes[d] for d in at], x.dtype)
    free = ex.op("Sub", count, ex.operand(1 if correction is None else correction, x.dtype))
    free = ex.op("Max", free, ex.number(0.0, x.dtype))
    return ex.op("Div", total, free), mean if keepdim else ex.op("Squeeze", mean, ex.ints(at))


@exports(aten.var.correction)
def var(ex: Exporter, x: OnnxValue, dims: Any = None, *, correction: Any = 1, keepdim: bool = False) -> OnnxValue:
    return _variance(ex, x, dims, correction, keepdim)[0]


@exports(aten.var.dim)
def var_dim(ex: Exporter, x: OnnxValue, dims: Any, unbiased: bool = True, keepdim: bool = False) -> OnnxValue:
    return _variance(ex, x, dims, int(unbiased), keepdim)[0]


@exports(aten.std.correction)
def std(ex: Exporter, x: OnnxValue, dims: Any = None, *, correction: Any = 1, keepdim: bool = False) -> OnnxValue:
    return ex.op("Sqrt", _variance(ex, x, dims, correction, keepdim)[0])


@exports(aten.var_mean.correction)
def var_mean(
    ex: Exporter, x: OnnxValue, dims: Any = None, *, correction: Any = 1, keepdim: bool = False
) -> list[OnnxValue]:
    return list(_variance(ex, x, dims, correction, keepdim))


@exports(aten.logsumexp.default)
def logsumexp(ex: Exporter, x: OnnxValue, dims: Any, keepdim: bool = False) -> OnnxValue:
    """Shifted by the largest element, which may be infinite: then by nothing."""
    x = ex.cast(x, ex.dtype)
    if not x.rank:
        return x
    at = ex.ints(axes(dims, x.rank))
    largest = ex.op("ReduceMax", x, at)
    zero = ex.number(0.0, x.dtype)
    shift = ex.op("Where", ex.op("Equal", ex.op("Abs", largest), ex.number(math.inf, x.dtype)), zero, largest)
    total = ex.op("ReduceSum", ex.op("Exp", ex.op("Sub", x, shift)), at)
    made = ex.op("Add", ex.op("Log", total), shift)
    return made if keepdim else ex.op("Squeeze", made, at)


# ---------------------------------------------------------------------- extremes


def extreme_over(ex: Exporter, kind: str, x: OnnxValue, dims: Any, keepdim: bool) -> OnnxValue:
    """The largest or smallest, nan if there is one: kernels do not promise that."""
    if x.dtype is torch.bool:
        return ex.cast(reduce(ex, kind, ex.cast(x, torch.int32), dims, keepdim), torch.bool)
    if not x.is_float or not x.rank:
        return reduce(ex, kind, x, dims, keepdim)
    made = reduce(ex, kind, x, dims, keepdim)
    nan = reduce(ex, "ReduceMax", ex.cast(ex.op("IsNaN", x), torch.int32), dims, keepdim)
    return ex.op("Where", ex.cast(nan, torch.bool), ex.number(math.nan, x.dtype), made)


@exports(aten.amax.default)
def amax(ex: Exporter, x: OnnxValue, dims: Any = (), keepdim: bool = False) -> OnnxValue:
    return extreme_over(ex, "ReduceMax", x, dims, keepdim)


@exports(aten.amin.default)
def amin(ex: Exporter, x: OnnxValue, dims: Any = (), keepdim: bool = False) -> OnnxValue:
    return extreme_over(ex, "ReduceMin", x, dims, keepdim)


@exports(aten.aminmax.default)
def aminmax(ex: Exporter, x: OnnxValue, *, dim: int | None = None, keepdim: bool = False) -> list[OnnxValue]:
    dims = None if dim is None else [dim]
    keep = keepdim and bool(x.rank)
    return [extreme_over(ex, kind, x, dims, keep) for kind in ("ReduceMin", "ReduceMax")]


@exports(aten.max.default)
def max_all(ex: Exporter, x: OnnxValue) -> OnnxValue:
    return extreme_over(ex, "ReduceMax", x, None, False)


@exports(aten.min.default)
def min_all(ex: Exporter, x: OnnxValue) -> OnnxValue:
    return extreme_over(ex, "ReduceMin", x, None, False)


def place_of_extreme(ex: Exporter, kind: str, x: OnnxValue, dim: int, keepdim: bool) -> OnnxValue:
    """Where the first of the largest or smallest is; the first nan comes before all of them."""
    if not x.rank:
        return ex.number(0, torch.int64)
    at = axis(dim, x.rank)
    if x.is_float:
        worst = math.inf if kind == "ArgMax" else -math.inf
        nan = ex.op("IsNaN", ex.cast(x, torch.float32) if x.dtype is torch.bfloat16 else x)
        some = ex.op("ReduceMax", ex.cast(nan, torch.int32), ex.ints([at]), keepdims=int(keepdim))
        first = ex.op("ArgMax", ex.cast(nan, torch.int32), axis=at, keepdims=int(keepdim))
        plain = ex.op("Where", nan, ex.number(-worst, x.dtype), x)
        best = ex.op(kind, plain, axis=at, keepdims=int(keepdim))
        return ex.op("Where", ex.cast(some, torch.bool), first, best)
    x = ex.cast(x, torch.int32) if x.dtype is torch.bool else x
    return ex.op(kind, x, axis=at, keepdims=int(keepdim))


def _place(kind: str) -> Callable[..., OnnxValue]:
    def rule(ex: Exporter, x: OnnxValue, dim: int | None = None, keepdim: bool = False) -> OnnxValue:
        if dim is None:
            return ex.reshape(place_of_extreme(ex, kind, ex.reshape(x, [-1]), 0, False), ex.shape)
        return place_of_extreme(ex, kind, x, dim, keepdim)

    return rule


exports(aten.argmax.default)(_place("ArgMax"))
exports(aten.argmin.default)(_place("ArgMin"))


def _make_arg_reduction(kind: str) -> Callable[..., list[OnnxValue]]:
    def rule(ex: Exporter, x: OnnxValue, dim: int, keepdim: bool = False) -> list[OnnxValue]:
        place = place_of_extreme(ex, f"Arg{kind}", x, dim, True)
        if not x.rank:
            return [x, place]
        at = axis(dim, x.rank)
        value = ex.op("GatherElements", x, place, axis=at)
        return [value, place] if keepdim else [ex.squeeze(value, at), ex.squeeze(place, at)]

    return rule


exports(aten.max.dim)(_make_arg_reduction("Max"))
exports(aten.min.dim)(_make_arg_reduction("Min"))


# ---------------------------------------------------------------------- truths


def _any(ex: Exporter, x: OnnxValue, dims: Any, keepdim: bool) -> OnnxValue:
    flags = ex.cast(truth(ex, x), torch.int32)
    if not x.rank:
        return ex.cast(flags, torch.bool)
    # A sum, not a maximum: the maximum of nothing is not defined.
    total = ex.op("ReduceSum", flags, ex.ints(axes(dims, x.rank)), keepdims=int(keepdim))
    return ex.op("Greater", total, ex.number(0, torch.int32))


@exports(aten.any.default, aten._is_any_true.default)
def any_all(ex: Exporter, x: OnnxValue) -> OnnxValue:
    return _any(ex, x, None, False)


@exports(aten.any.dim, aten.any.dims)
def any_dims(ex: Exporter, x: OnnxValue, dims: Any = None, keepdim: bool = False) -> OnnxValue:
    return _any(ex, x, dims, keepdim)


@exports(aten.all.default, aten._is_all_true.default)
def all_all(ex: Exporter, x: OnnxValue) -> OnnxValue:
    return ex.op("Not", _none(ex, x, None, False))


@exports(aten.all.dim, aten.all.dims)
def all_dims(ex: Exporter, x: OnnxValue, dims: Any = None, keepdim: bool = False) -> OnnxValue:
    return ex.op("Not", _none(ex, x, dims, keepdim))


def _none(ex: Exporter, x: OnnxValue, dims: Any, keepdim: bool) -> OnnxValue:
    false = ex.op("Not", truth(ex, x))
    return _any(ex, OnnxValue(false.value, torch.bool, x.shape), dims, keepdim)


# ---------------------------------------------------------------------- norms


@exports(aten.linalg_vector_norm.default)
def vector_norm(
    ex: Exporter, x: OnnxValue, order: Any = 2, dims: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> OnnxValue:
    size = ex.op("Abs", ex.cast(x, ex.dtype))
    size = OnnxValue(size.value, size.dtype, x.shape)
    if order == math.inf:
        return extreme_over(ex, "ReduceMax", size, dims, keepdim)
    if order == -math.inf:
        return extreme_over(ex, "ReduceMin", size, dims, keepdim)
    if order == 0:
        some = ex.op("Not", ex.op("Equal", size, ex.number(0.0, size.dtype)))
        flags = ex.cast(some, size.dtype)
        return reduce(ex, "ReduceSum", OnnxValue(flags.value, flags.dtype, x.shape), dims, keepdim)
    if order == 1:
        return reduce(ex, "ReduceSum", size, dims, keepdim)
    wide = OnnxValue(ex.cast(size, torch.float64).value, torch.float64, x.shape)
    powers = ex.op("Mul", wide, wide) if order == 2 else ex.op("Pow", wide, ex.number(float(order), torch.float64))
    total = reduce(ex, "ReduceSum", OnnxValue(powers.value, torch.float64, x.shape), dims, keepdim)
    if order == 2:
        return ex.op("Sqrt", total)
    return ex.op("Pow", total, ex.number(1 / float(order), torch.float64))


__all__ = ["count_of", "extreme_over", "place_of_extreme", "reduce"]
