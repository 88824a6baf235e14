"""Quantization by the token: a scale and a zero point for each row, which the run chooses."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ingot.lowering.loop_body import BodyBuilder
from ingot.lowering.lower import Lowering, lowers
from ingot.lowering.tensor_views import Deferred, Index, Quantized, TensorValue, dequantize_view
from ingot.lowering.unsupported import dtype_name

# What torch takes a scale for that would be smaller, and what its rows of int8 lie between.
_LEAST, _LEAST_SYMMETRIC = 2.0**-23, 1e-5
_LOWEST, _HIGHEST = -128, 127


@lowers("quantized_decomposed.choose_qparams_per_token_asymmetric.default")
def choose(low: Lowering, x: TensorValue, dtype: torch.dtype) -> tuple[TensorValue, TensorValue]:
    """The scale and zero point with which a row's range, and 0, spans all of int8; in float32, step by step as torch
    computes them, for the zero point is rounded at the end."""
    x = low.materialize_if_expensive(x)
    ends = _extremes(low, x, ("min", "max"))

    def range_(ops: BodyBuilder, index: Index) -> tuple[int, int, int]:
        zero = ops.const(0, "float32")
        small, large = (end.load(ops, index[:-1]) for end in ends)
        small, large = ops.call("min", small, zero), ops.call("max", large, zero)
        scale = ops.call("div", ops.call("sub", large, small), ops.const(_HIGHEST - _LOWEST, "float32"))
        return small, large, ops.call("max", scale, ops.const(_LEAST, "float32"))

    def zero_of(ops: BodyBuilder, index: Index) -> int:
        small, large, scale = range_(ops, index)
        lowest, highest = (ops.const(end, "float32") for end in (_LOWEST, _HIGHEST))
        least, most = ops.call("div", small, scale), ops.call("div", large, scale)
        error = ops.call("add", ops.call("add", lowest, least), ops.call("add", highest, most))
        above = ops.call("gt", error, ops.const(0, "float32"))
        zero = ops.where(above, ops.call("sub", lowest, least), ops.call("sub", highest, most))
        zero = ops.call("min", ops.call("max", zero, lowest), highest)
        return ops.cast(ops.call("round", zero), "int64")

    shape = (*x.shape[:-1], 1)
    scale = Deferred(lambda ops, index: ops.cast(range_(ops, index)[2], "float64"), 8)
    return low.realize(TensorValue(shape, "float64", scale)), low.realize(
        TensorValue(shape, "int64", Deferred(zero_of, 16))
    )


@lowers("quantized_decomposed.choose_qparams_per_token.default")
def choose_symmetric(low: Lowering, x: TensorValue, dtype: torch.dtype) -> tuple[TensorValue, TensorValue]:
    (most,) = _extremes(low, low.materialize_if_expensive(x), ("max",), "abs")

    def scale_of(ops: BodyBuilder, index: Index) -> int:
        scale = ops.call("max", most.load(ops, index[:-1]), ops.const(_LEAST_SYMMETRIC, "float32"))
        return ops.cast(ops.call("div", scale, ops.const(_HIGHEST, "float32")), "float64")

    shape = (*x.shape[:-1], 1)
    return low.realize(TensorValue(shape, "float64", Deferred(scale_of, 8))), low.full(shape, 0, "int64")


def _extremes(low: Lowering, x: TensorValue, kinds: Sequence[str], of: str | None = None) -> list[TensorValue]:
    def transform(ops: BodyBuilder, value: int, index: Index) -> list[int]:
        value = ops.cast(value, "float32")
        return [value if of is None else ops.call(of, value)] * len(kinds)

    return low.reduce(x, (x.rank - 1,), kinds, transform, ["float32"] * len(kinds))


@lowers("quantized_decomposed.quantize_per_token.default")
def quantize(
    low: Lowering,
    x: TensorValue,
    scales: TensorValue,
    zeros: TensorValue,
    lowest: int,
    highest: int,
    dtype: torch.dtype,
) -> TensorValue:
    """In the type that x and the scales have in common, as torch computes it: float64 of scales that are."""
    rows = Quantized(x, scales, zeros, tokens=True)
    kind = dtype_name(torch.promote_types(getattr(torch, x.dtype), getattr(torch, scales.dtype)))

    def load(ops: BodyBuilder, index: Index) -> int:
        scale, zero = (rows.parameter(ops, given, index, kind) for given in (scales, zeros))
        value = ops.call("mul", ops.cast(x.load(ops, index), kind), ops.call("div", ops.const(1, kind), scale))
        value = ops.call("round", ops.call("add", value, zero))
        for name, end in (("fmax", lowest), ("fmin", highest)):
            value = ops.call(name, value, ops.const(end, kind))
        return ops.cast(value, low_dtype)

    low_dtype = dtype_name(dtype)
    return TensorValue(x.shape, low_dtype, Deferred(load, x.cost + 8, low.order_of(x)))


@lowers("quantized_decomposed.dequantize_per_token.default")
def dequantize(
    low: Lowering, x: TensorValue, scales: TensorValue, zeros: TensorValue, lowest: int, highest: int,
    dtype: torch.dtype,
    output_dtype: torch.dtype = torch.float32
) -> TensorValue:  # fmt: skip
    return dequantize_view(Quantized(low.materialize_if_expensive(x), scales, zeros, tokens=True))
