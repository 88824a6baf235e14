"""Quantization: QuantizeLinear and DequantizeLinear, which runtimes fuse into integer kernels.

Weights with a scale for each stretch of a row are blocks of one DequantizeLinear from opset 21 on, of 4 bits where they
fit; before, rows of stretches. Scales for each row of an activation have no operator: they are spelled out.

torch's own operators for it are those of `quantized_decomposed`, a library that may not be loaded: they are registered
by their names.
"""

from __future__ import annotations

from typing import Any

import torch

from ingot.onnx.dtypes import name_of
from ingot.onnx.exporter import Exporter
from ingot.onnx.registry import OnnxUnsupported, exports
from ingot.onnx.rules.reductions import extreme_over
from ingot.onnx.rules.select_and_clamp import clamp
from ingot.onnx.values import OnnxValue, axis

aten = torch.ops.aten

_KINDS = (torch.int8, torch.uint8, torch.int16, torch.uint16)


def _parameters(ex: Exporter, scale: Any, zero: Any, dtype: torch.dtype) -> tuple[OnnxValue, OnnxValue]:
    """Scale as float32 and zero point as the integers are; of one element they are of rank 0."""
    made = []
    for value, kind in ((scale, torch.float32), (zero, dtype)):
        part = ex.operand(value, kind)
        if isinstance(value, OnnxValue) and value.shape == (1,):
            part = ex.reshape(OnnxValue(part.value, kind, value.shape), [])
        made.append(part)
    return made[0], made[1]


def _check(ex: Exporter, dtype: torch.dtype) -> None:
    if dtype not in _KINDS:
        raise OnnxUnsupported(f"quantization to {name_of(dtype)}")
    if dtype in (torch.int16, torch.uint16) and ex.opset < 21:
        raise OnnxUnsupported(f"quantization to {name_of(dtype)} before opset 21")


def quantize(
    ex: Exporter, x: OnnxValue, scale: Any, zero: Any, low: Any, high: Any, dtype: torch.dtype, at: int | None = None
) -> OnnxValue:
    """Rounded to the nearest even, clipped to the type, and to narrower limits where the user has them."""
    _check(ex, dtype)
    scale_, zero_ = _parameters(ex, scale, zero, dtype)
    x = OnnxValue(ex.cast(x, torch.float32).value, torch.float32, x.shape)
    if isinstance(scale, OnnxValue) and at is None:
        # As torch does: where the scale follows from the largest value, that one lies between two integers, and a
        # quotient falls on the other side than the product. Nothing is lost: only fixed scales go into kernels.
        inverse = ex.cast(ex.op("Reciprocal", ex.cast(scale, torch.float64)), torch.float32)
        inverse = ex.reshape(OnnxValue(inverse.value, torch.float32, scale.shape), [])
        x, scale_ = ex.op("Mul", x, inverse), ex.number(1.0, torch.float32)
        x = OnnxValue(x.value, torch.float32, ex.shape)
    made = ex.op("QuantizeLinear", x, scale_, zero_, axis=at)
    limits = torch.iinfo(dtype)
    if isinstance(low, OnnxValue) or isinstance(high, OnnxValue) or low > limits.min or high < limits.max:
        wide = clamp(ex, OnnxValue(ex.cast(made, torch.int32).value, torch.int32, x.shape), low, high, torch.int32)
        made = ex.cast(wide, dtype)
    return OnnxValue(made.value, dtype, x.shape)


def dequantize(
    ex: Exporter, x: OnnxValue, scale: Any, zero: Any, dtype: torch.dtype, at: int | None = None
) -> OnnxValue:
    if dtype not in _KINDS and dtype is not torch.int32:
        raise OnnxUnsupported(f"quantized numbers as {name_of(dtype)}")
    scale_, zero_ = _parameters(ex, scale, 0 if zero is None else zero, dtype)
    if dtype is torch.int32:  # of which zero points are zero, and ONNX wants none
        return ex.op("DequantizeLinear", x, scale_, axis=at)
    if zero is None and isinstance(scale, OnnxValue) and scale_.shape:
        zero_ = _zeros(ex, scale, dtype)
    return ex.op("DequantizeLinear", x, scale_, zero_, axis=at)


def _zeros(ex: Exporter, scales: OnnxValue, dtype: torch.dtype) -> OnnxValue:
    """A zero point for each scale: stored, if their number is known, for runtimes look for it there."""
    sizes = [size for size in scales.sizes if isinstance(size, int)]
    if len(sizes) < len(scales.sizes):
        return ex.full(scales.sizes, 0, dtype)
    return ex.constant(torch.zeros(sizes, dtype=dtype))


# ---------------------------------------------------------------------- torch's operators, by name


@exports(
    *("quantized_decomposed.quantize_per_tensor.default", "quantized_decomposed.quantize_per_tensor.tensor"),
    "quantized_decomposed.quantize_per_tensor.tensor2",
    moves_data=True,
)
def quantize_per_tensor(
    ex: Exporter, x: OnnxValue, scale: Any, zero: Any, low: Any, high: Any, dtype: torch.dtype, **_: Any
) -> OnnxValue:
    return quantize(ex, x, scale, zero, low, high, dtype)


@exports(
    *("quantized_decomposed.dequantize_per_tensor.default", "quantized_decomposed.dequantize_per_tensor.tensor"),
    "quantized_decomposed.dequantize_per_tensor.tensor2",
    moves_data=True,
)
def dequantize_per_tensor(
    ex: Exporter, x: OnnxValue, scale: Any, zero: Any, low: Any, high: Any, dtype: torch.dtype, **_: Any
) -> OnnxValue:
    return dequantize(ex, x, scale, zero, dtype)


@exports("quantized_decomposed.quantize_per_channel.default", moves_data=True)
def quantize_per_channel(
    ex: Exporter,
    x: OnnxValue,
    scales: OnnxValue,
    zeros: OnnxValue | None,
    at: int,
    low: int,
    high: int,
    dtype: torch.dtype,
) -> OnnxValue:
    zeros = zeros if zeros is not None else ex.full(scales.sizes, 0, dtype)
    return quantize(ex, x, scales, zeros, low, high, dtype, axis(at, x.rank))


@exports("quantized_decomposed.dequantize_per_channel.default", moves_data=True)
def dequantize_per_channel(
    ex: Exporter, x: OnnxValue, scales: OnnxValue, zeros: OnnxValue | None, at: int, low: int, high: int,
    dtype: torch.dtype,
    **_: Any,
) -> OnnxValue:  # fmt: skip
    return dequantize(ex, x, scales, zeros, dtype, axis(at, x.rank))


@exports("quantized_decomposed.convert_element_type.no_fuse", moves_data=True)
def convert_element_type(ex: Exporter, x: OnnxValue, dtype: torch.dtype) -> OnnxValue:
    return ex.cast(x, dtype)


# ---------------------------------------------------------------------- a scale for each stretch of a row


@exports("quantized_decomposed.dequantize_per_channel_group.default", moves_data=True)
def dequantize_per_channel_group(
    ex: Exporter, x: OnnxValue, scales: OnnxValue, zeros: OnnxValue | None, low: int, high: int, dtype: torch.dtype,
    group: int,
    out: torch.dtype,
) -> OnnxValue:  # fmt: skip
    rows, columns = x.sizes
    group = min(group, int(columns)) if isinstance(columns, int) else group
    scale, zero = ex.cast(scales, torch.float32), None if zeros is None else ex.cast(zeros, dtype)
    stretches = (rows, columns // group)
    if ex.opset < 21:
        flat = [rows * stretches[1]]
        numbers = ex.reshape(x, [*flat, group])
        rest = () if zero is None else (ex.reshape(OnnxValue(zero.value, dtype, scales.shape), flat),)
        made = ex.op("DequantizeLinear", numbers, ex.reshape(OnnxValue(scale.value, scale.dtype, scales.shape), flat),
                     *rest, axis=0)  # fmt: skip
        return ex.reshape(OnnxValue(made.value, made.dtype, (*flat, group)), x.sizes)
    blocks = ex.reshape(OnnxValue(scale.value, scale.dtype, scales.shape), stretches)
    shifts = None if zero is None else ex.reshape(OnnxValue(zero.value, dtype, scales.shape), stretches)
    numbers, shifts = _narrow(ex, x, zeros, shifts, low, high)
    (made,) = ex.plain("DequantizeLinear", [numbers, blocks, shifts], [torch.float32], axis=1, block_size=group)
    return made


def _narrow(
    ex: Exporter, x: OnnxValue, zeros: OnnxValue | None, shifts: OnnxValue | None, low: int, high: int
) -> tuple[OnnxValue, OnnxValue | None]:
    """Numbers and zero points as 4 bits each where the model holds them and they fit, which halves the file."""
    stored = ex.known(x)
    offsets = None if zeros is None else ex.known(zeros)
    if stored is None or low < -8 or high > 7 or x.dtype is not torch.int8:
        return x, shifts
    if zeros is not None and (offsets is None or int(offsets.min()) < -8 or int(offsets.max()) > 7):
        return x, shifts
    name = str(x.value.name)
    if offsets is not None and shifts is not None:
        shifts = ex.nibbles(f"{name}.zero_point", offsets.reshape(-1, int(shifts.sizes[1]))) if offsets.any() else None
    return ex.nibbles(name if name.endswith("int4") else f"{name}.int4", stored), shifts


@exports("quantized_decomposed.quantize_per_channel_group.default", moves_data=True)
def quantize_per_channel_group(
    ex: Exporter, x: OnnxValue, scales: OnnxValue, zeros: OnnxValue, low: int, high: int, dtype: torch.dtype, group: int
) -> OnnxValue:
    rows, columns = x.sizes
    group = min(group, int(columns)) if isinstance(columns, int) else group
    flat = [rows * (columns // group)]
    scale, zero = (ex.reshape(part, flat) for part in (scales, zeros))
    made = quantize(ex, ex.reshape(x, [*flat, group]), scale, zero, low, high, dtype, 0)
    return ex.reshape(made, x.sizes)


# ---------------------------------------------------------------------- scales that follow from the values


def _range(ex: Exporter, x: OnnxValue, dims: Any, keepdim: bool) -> tuple[OnnxValue, OnnxValue]:
    """The least and the largest value; zero is always between them."""
    x, zero = ex.cast(x, torch.float32), ex.number(0.0, torch.float32)
    x = OnnxValue(x.value, x.dtype, x.shape)
    low, high = (extreme_over(ex, kind, x, dims, keepdim) for kind in ("ReduceMin", "ReduceMax"))
    return ex.op("Min", low, zero), ex.op("Max", high, zero)


def _clamp_below(ex: Exporter, x: OnnxValue, least: float) -> OnnxValue:
    return ex.op("Max", x, ex.number(least, x.dtype))


@exports("quantized_decomposed.choose_qparams.tensor", moves_data=True)
def choose_qparams(ex: Exporter, x: OnnxValue, low: int, high: int, eps: float, dtype: torch.dtype) -> list[OnnxValue]:
    least, largest = _range(ex, x, None, False)
    scale = ex.op("Div", ex.op("Sub", largest, least), ex.number(float(high - low), torch.float32))
    scale = _clamp_below(ex, scale, eps)
    steps = ex.cast(ex.op("Round", ex.op("Div", least, scale)), torch.int64)
    zero = ex.op("Sub", ex.number(low, torch.int64), steps)
    zero = clamp(ex, OnnxValue(zero.value, torch.int64, ()), low, high, torch.int64)
    return [_one(ex, scale), _one(ex, zero)]


@exports("quantized_decomposed.choose_qparams_symmetric.tensor", moves_data=True)
def choose_qparams_symmetric(
    ex: Exporter, x: OnnxValue, low: int, high: int, eps: float, dtype: torch.dtype
) -> list[OnnxValue]:
    least, largest = _range(ex, x, None, False)
    farthest = ex.op("Max", ex.op("Neg", least), largest)
    scale = _clamp_below(ex, ex.op("Div", farthest, ex.number((high - low) / 2, torch.float32)), eps)
    return [_one(ex, scale), ex.ints([128 if dtype is torch.uint8 else 0])]


def _one(ex: Exporter, x: OnnxValue) -> OnnxValue:
    return ex.reshape(OnnxValue(x.value, x.dtype, ()), [1])


@exports("quantized_decomposed.choose_qparams_per_token.default", moves_data=True)
def choose_qparams_per_token(ex: Exporter, x: OnnxValue, dtype: torch.dtype) -> list[OnnxValue]:
    size = ex.op("Abs", x)
    farthest = extreme_over(ex, "ReduceMax", OnnxValue(size.value, x.dtype, x.shape), [-1], True)
    scale = ex.op("Div", _clamp_below(ex, farthest, 1e-5), ex.number(127.0, x.dtype))
    return [scale, ex.full([*x.sizes[:-1], 1], 0, torch.int64)]


@exports(
    "quantized_decomposed.choose_qparams_per_token_asymmetric.default",
    "quantized_decomposed._choose_qparams_per_token_asymmetric_impl.default",
    moves_data=True,
)
def choose_qparams_per_token_asymmetric(ex: Exporter, x: OnnxValue, dtype: torch.dtype) -> list[OnnxValue]:
    """From -128 to 127: the zero point is counted from the end where it is rounded by less."""
    least, largest = _range(ex, x, [-1], True)
    low, high = (ex.number(float(end), torch.float32) for end in (-128, 127))
    scale = ex.op("Div", ex.op("Sub", largest, least), ex.number(255.0, torch.float32))
    scale = _clamp_below(ex, scale, torch.finfo(torch.float32).eps)
    below, above = ex.op("Div", least, scale), ex.op("Div", largest, scale)
    lean = ex.op("Add", ex.op("Add", low, below), ex.op("Add", high, above))
    nearer = ex.op("Greater", lean, ex.number(0.0, torch.float32))
    zero = ex.op("Where", nearer, ex.op("Sub", low, below), ex.op("Sub", high, above))
    zero = ex.op("Round", ex.op("Min", ex.op("Max", zero, low), high))
    return [scale, zero]


@exports("quantized_decomposed.quantize_per_token.default", moves_data=True)
def quantize_per_token(
    ex: Exporter, x: OnnxValue, scales: OnnxValue, zeros: OnnxValue, low: int, high: int, dtype: torch.dtype
) -> OnnxValue:
    wide = torch.promote_types(x.dtype, scales.dtype)
    steps = ex.op("Mul", ex.cast(x, wide), ex.op("Reciprocal", ex.cast(scales, wide)))
    numbers = ex.op("Round", ex.op("Add", steps, ex.cast(zeros, wide)))
    return ex.cast(clamp(ex, OnnxValue(numbers.value, wide, x.shape), float(low), float(high), wide), dtype)


@exports("quantized_decomposed.dequantize_per_token.default", moves_data=True)
def dequantize_per_token(
    ex: Exporter,
    x: OnnxValue,
    scales: OnnxValue,
    zeros: OnnxValue,
    low: int,
    high: int,
    dtype: torch.dtype,
    out: torch.dtype,
) -> OnnxValue:
    wide = torch.promote_types(torch.float32, scales.dtype)
    away = ex.op("Sub", ex.cast(x, wide), ex.cast(zeros, wide))
    return ex.cast(ex.op("Mul", away, ex.cast(scales, wide)), out)


# ---------------------------------------------------------------------- both at once


def _kind(low: int, high: int) -> torch.dtype:
    """The type that holds these limits."""
    for dtype in (torch.int8, torch.uint8, torch.int16, torch.uint16):
        limits = torch.iinfo(dtype)
        if limits.min <= low and high <= limits.max:
            return dtype
    raise OnnxUnsupported(f"quantization to {low} … {high}")


@exports(
    *(aten.fake_quantize_per_tensor_affine.default, aten.fake_quantize_per_tensor_affine.tensor_qparams),
    moves_data=True,
)
def fake_quantize(ex: Exporter, x: OnnxValue, scale: Any, zero: Any, low: int, high: int) -> OnnxValue:
    dtype = _kind(low, high)
    return dequantize(ex, quantize(ex, x, scale, zero, low, high, dtype), scale, zero, dtype)


@exports(
    aten.fake_quantize_per_channel_affine.default,
    "quantized_decomposed.fake_quant_per_channel.default",
    moves_data=True,
)
def fake_quantize_per_channel(
    ex: Exporter, x: OnnxValue, scale: OnnxValue, zero: OnnxValue, at: int, low: int, high: int
) -> OnnxValue:
    dtype, at = _kind(low, high), axis(at, x.rank)
    zero = OnnxValue(ex.cast(zero, dtype).value, dtype, zero.shape)
    return dequantize(ex, quantize(ex, x, scale, zero, low, high, dtype, at), scale, zero, dtype, at)
