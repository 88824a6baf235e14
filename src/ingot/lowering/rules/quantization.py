"""Quantization: integers that stand for numbers.

A dequantized tensor is Deferred and remembers its integers: whatever can compute with those calls `find_quantized`, and
anything else loads numbers. torch's operators for it are those of `quantized_decomposed`, a library that may not be
loaded: they are registered by their names.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from ingot.lowering import tensor_views
from ingot.lowering.index_expr import require_static
from ingot.lowering.loop_body import BodyBuilder
from ingot.lowering.lower import Lowering, lowers
from ingot.lowering.tensor_views import Deferred, Index, Quantized, TensorValue, dequantize_view, find_quantized
from ingot.lowering.unsupported import LoweringUnsupported, dtype_name

# Integers that rounding by one addition reaches, with room to spare.
_SMALL = ("uint8", "int8", "int16", "uint16")
_COST = 5


@lowers(
    "quantized_decomposed.quantize_per_tensor.default",
    "quantized_decomposed.quantize_per_tensor.tensor",
    "quantized_decomposed.quantize_per_tensor.tensor2",
)
def quantize_per_tensor(
    low: Lowering, x: TensorValue, scale: Any, zero: Any, lowest: Any, highest: Any, dtype: torch.dtype
) -> TensorValue:
    return _quantize(low, x, scale, zero, None, lowest, highest, dtype)


@lowers("quantized_decomposed.quantize_per_channel.default")
def quantize_per_channel(
    low: Lowering,
    x: TensorValue,
    scales: TensorValue,
    zeros: TensorValue,
    axis: int,
    lowest: int,
    highest: int,
    dtype: torch.dtype,
) -> TensorValue:
    return _quantize(low, x, scales, zeros, axis % x.rank, lowest, highest, dtype)


@lowers(
    "quantized_decomposed.dequantize_per_tensor.default",
    "quantized_decomposed.dequantize_per_tensor.tensor",
    "quantized_decomposed.dequantize_per_tensor.tensor2",
)
def dequantize_per_tensor(
    low: Lowering, x: TensorValue, scale: Any, zero: Any, lowest: Any, highest: Any, dtype: torch.dtype,
    *, out_dtype: torch.dtype | None = None
) -> TensorValue:  # fmt: skip
    return _dequantize(low, x, Quantized(x, scale, zero, ends=_ends(lowest, highest)))


@lowers("quantized_decomposed.dequantize_per_channel.default")
def dequantize_per_channel(
    low: Lowering, x: TensorValue, scales: TensorValue, zeros: TensorValue | None, axis: int, lowest: int, highest: int,
    dtype: torch.dtype, *, out_dtype: torch.dtype | None = None
) -> TensorValue:  # fmt: skip
    ends = _ends(lowest, highest)
    return _dequantize(low, x, Quantized(x, scales, 0 if zeros is None else zeros, axis % x.rank, ends=ends))


@lowers("quantized_decomposed.dequantize_per_channel_group.default")
def dequantize_per_channel_group(
    low: Lowering, x: TensorValue, scales: TensorValue, zeros: TensorValue | None, lowest: int, highest: int,
    dtype: torch.dtype,
    group_size: int = 128, output_dtype: torch.dtype = torch.float32
) -> TensorValue:  # fmt: skip
    rows, columns = x.shape
    group = columns if group_size > require_static(columns) and scales.shape[-1] == 1 else group_size
    shape = (rows, columns // group)
    scales = tensor_views.reshape(scales, shape, low.hint)
    zero = 0 if zeros is None else tensor_views.reshape(zeros, shape, low.hint)
    return _dequantize(low, x, Quantized(x, scales, zero, 0, require_static(group), _ends(lowest, highest)))


def _ends(lowest: Any, highest: Any) -> tuple[int, int] | None:
    return (lowest, highest) if isinstance(lowest, int) and isinstance(highest, int) else None


def _dequantize(low: Lowering, x: TensorValue, found: Quantized) -> TensorValue:
    if low.out_dtype not in ("float32", "bfloat16", "float16"):
        raise LoweringUnsupported(f"it returns {low.out_dtype}")
    if len(low.node.users) > 1:
        found = replace(found, integers=low.materialize_if_expensive(x))
    if isinstance(found.zero, TensorValue):
        zeros = low.constant(found.zero)
        if zeros is not None and not zeros.any():
            found = replace(found, zero=0)
    return dequantize_view(replace(found, dtype=low.out_dtype))


def _quantize(
    low: Lowering,
    x: TensorValue,
    scale: Any,
    zero: Any,
    axis: int | None,
    lowest: Any,
    highest: Any,
    dtype: torch.dtype,
) -> TensorValue:
    kind = dtype_name(dtype)
    before = find_quantized(x)
    limits = torch.iinfo(dtype)
    if before is not None and (lowest, highest) == (limits.min, limits.max) and axis is None:
        same = (before.scale, before.zero, before.axis, before.integers.dtype) == (scale, zero, None, kind)
        if same and not isinstance(scale, TensorValue) and not isinstance(zero, TensorValue):
            return before.integers
    numbers = Quantized(x, scale, zero, axis)  # whose parameters belong to elements in the same way
    round_ = _nearest if kind in _SMALL else _round

    def load(ops: BodyBuilder, index: Index) -> int:
        value = ops.cast(x.load(ops, index), "float32")
        value = ops.call("mul", value, _inverse(ops, numbers, index))
        ends = [numbers.parameter(ops, end, (), "int32") for end in (lowest, highest)]
        return round_(ops, value, numbers, index, (ends[0], ends[1]), kind)

    margin = x.data.margin if isinstance(x.data, Deferred) and axis is None and type(zero) is int else None
    if margin is not None and not lowest <= zero <= highest:
        margin = None
    if margin is not None:  # 0 becomes the zero point, whatever the scale
        margin = (_quantize(low, margin[0], scale, zero, axis, lowest, highest, dtype), margin[1])
    return TensorValue(x.shape, kind, Deferred(load, x.cost + _COST, low.order_of(x), margin))


def _inverse(ops: BodyBuilder, numbers: Quantized, index: Index) -> int:
    """One over the scale as torch has it: of one scale in float64, then rounded; of many in their own type."""
    scale = numbers.scale
    if not isinstance(scale, TensorValue):
        return ops.const(1.0 / scale, "float32")
    kind = "float64" if numbers.axis is None else "float32"
    own = numbers.parameter(ops, scale, index, kind)
    return ops.cast(ops.call("div", ops.const(1, kind), own), "float32")


def _nearest(ops: BodyBuilder, value: int, numbers: Quantized, index: Index, ends: tuple[int, int], kind: str) -> int:
    """Rounded between the ends less the zero point: those are integers, so it is the same as rounding first."""
    zero = numbers.parameter(ops, numbers.zero, index, "int32")
    for name, end in zip(("fmax", "fmin"), ends, strict=True):
        value = ops.call(name, value, _fold_difference(ops, "sub", end, zero, "float32"))
    whole = ops.emit("round_to_int", (value,), "int32")
    if numbers.zero != 0:
        whole = ops.call("add", whole, zero)
    return ops.emit("truncate", (whole,), kind)


def _round(ops: BodyBuilder, value: int, numbers: Quantized, index: Index, ends: tuple[int, int], kind: str) -> int:
    zero = numbers.parameter(ops, numbers.zero, index, "float32")
    value = ops.call("add", ops.call("round", value), zero)
    for name, end in zip(("fmax", "fmin"), ends, strict=True):
        value = ops.call(name, value, ops.cast(end, "float32"))
    return ops.cast(value, kind)


def _fold_difference(ops: BodyBuilder, name: str, left: int, right: int, dtype: str) -> int:
    """A difference of integers, computed here where both are known."""
    a, b = ops.ops[left], ops.ops[right]
    if a.name == b.name == "const":
        return ops.const(a.attribute.value - b.attribute.value, dtype)
    return ops.cast(ops.call(name, left, right), dtype)


@lowers("quantized_decomposed.choose_qparams.tensor")
def choose_qparams(
    low: Lowering, x: TensorValue, lowest: int, highest: int, least: float, dtype: torch.dtype
) -> tuple[TensorValue, TensorValue]:
    """The scale and zero point with which the range of x, and 0, spans all integers."""
    return _choose_parameters(low, x, lowest, highest, least, symmetric=False)


@lowers("quantized_decomposed.choose_qparams_symmetric.tensor")
def choose_qparams_symmetric(
    low: Lowering, x: TensorValue, lowest: int, highest: int, least: float, dtype: torch.dtype
) -> tuple[TensorValue, TensorValue]:
    return _choose_parameters(low, x, lowest, highest, least, symmetric=True)


def _choose_parameters(
    low: Lowering, x: TensorValue, lowest: int, highest: int, least: float, symmetric: bool
) -> tuple[TensorValue, TensorValue]:
    x = low.materialize_if_expensive(x)
    kinds = ("min", "max")
    found = low.reduce(
        x, tuple(range(x.rank)), kinds, lambda ops, v, index: (ops.cast(v, "float32"),) * 2, ("float32",) * 2
    )

    def ends(ops: BodyBuilder) -> tuple[int, int]:
        zero = ops.const(0, "float32")
        small, large = (part.load(ops, ()) for part in found)
        return ops.call("min", small, zero), ops.call("max", large, zero)

    def scale_of(ops: BodyBuilder) -> int:
        small, large = ends(ops)
        if symmetric:
            width = ops.call(
                "div", ops.call("max", ops.call("neg", small), large), ops.const((highest - lowest) / 2, "float32")
            )
        else:
            width = ops.call("div", ops.call("sub", large, small), ops.const(highest - lowest, "float32"))
        return ops.call("max", width, ops.const(least, "float32"))

    def zero_of(ops: BodyBuilder) -> int:
        if symmetric:
            return ops.const(128 if low.node.args[4] is torch.uint8 else 0, "int64")
        small, _ = ends(ops)
        steps = ops.cast(ops.call("round", ops.call("div", small, scale_of(ops))), "int64")
        value = ops.call("sub", ops.const(lowest, "int64"), steps)
        value = ops.call("max", value, ops.const(lowest, "int64"))
        return ops.call("min", value, ops.const(highest, "int64"))

    scale = TensorValue((1,), "float64", Deferred(lambda ops, index: ops.cast(scale_of(ops), "float64"), 8))
    zero = TensorValue((1,), "int64", Deferred(lambda ops, index: zero_of(ops), 8))
    return low.realize(scale), low.realize(zero)
