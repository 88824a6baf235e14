"""Quantization: QuantizeLinear and DequantizeLinear, which runtimes fuse into integer kernels.

torch's own operators for it are those of `quantized_decomposed`, a library that may not be loaded: they are registered
by their names.
"""

from __future__ import annotations

from typing import Any

import torch

from ingot.onnx.dtypes import name_of
from ingot.onnx.export import Exporter, Unsupported, exports
from ingot.onnx.rules.pointwise import clamp
from ingot.onnx.values import Tensor, axis

aten = torch.ops.aten

_KINDS = (torch.int8, torch.uint8, torch.int16, torch.uint16)


def _parameters(ex: Exporter, scale: Any, zero: Any, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Scale as float32 and zero point as the integers are; of one element they are of rank 0."""
    made = []
    for value, kind in ((scale, torch.float32), (zero, dtype)):
        part = ex.operand(value, kind)
        if isinstance(value, Tensor) and value.shape == (1,):
            part = ex.reshape(Tensor(part.value, kind, value.shape), [])
        made.append(part)
    return made[0], made[1]


def _check(ex: Exporter, dtype: torch.dtype, low: Any, high: Any) -> None:
    if dtype not in _KINDS:
        raise Unsupported(f"quantization to {name_of(dtype)}")
    if dtype in (torch.int16, torch.uint16) and ex.opset < 21:
        raise Unsupported(f"quantization to {name_of(dtype)} before opset 21")


def quantized(
    ex: Exporter, x: Tensor, scale: Any, zero: Any, low: int, high: int, dtype: torch.dtype, at: int | None = None
) -> Tensor:
    """Rounded to the nearest even, clipped to the type, and to narrower limits where the user has them."""
    _check(ex, dtype, low, high)
    scale_, zero_ = _parameters(ex, scale, zero, dtype)
    made = ex.op("QuantizeLinear", ex.cast(x, torch.float32), scale_, zero_, axis=at)
    limits = torch.iinfo(dtype)
    if low > limits.min or high < limits.max:
        wide = clamp(ex, Tensor(ex.cast(made, torch.int32).value, torch.int32, x.shape), low, high, torch.int32)
        made = ex.cast(wide, dtype)
    return Tensor(made.value, dtype, x.shape)


def dequantized(ex: Exporter, x: Tensor, scale: Any, zero: Any, dtype: torch.dtype, at: int | None = None) -> Tensor:
    if dtype not in _KINDS and dtype is not torch.int32:
        raise Unsupported(f"quantized numbers as {name_of(dtype)}")
    scale_, zero_ = _parameters(ex, scale, 0 if zero is None else zero, dtype)
    if dtype is torch.int32:  # of which zero points are zero, and ONNX wants none
        return ex.op("DequantizeLinear", x, scale_, axis=at)
    if zero is None and isinstance(scale, Tensor) and scale_.shape:
        zero_ = ex.full(scale.sizes, 0, dtype)
    return ex.op("DequantizeLinear", x, scale_, zero_, axis=at)


# ---------------------------------------------------------------------- torch's operators, by name


@exports(
    *("quantized_decomposed.quantize_per_tensor.default", "quantized_decomposed.quantize_per_tensor.tensor"),
    "quantized_decomposed.quantize_per_tensor.tensor2",
)
def quantize_per_tensor(
    ex: Exporter, x: Tensor, scale: Any, zero: Any, low: Any, high: Any, dtype: torch.dtype, **_: Any
) -> Tensor:
    if not isinstance(low, int) or not isinstance(high, int):
        raise Unsupported("limits of quantization that are not numbers")
    return quantized(ex, x, scale, zero, low, high, dtype)


@exports(
    *("quantized_decomposed.dequantize_per_tensor.default", "quantized_decomposed.dequantize_per_tensor.tensor"),
    "quantized_decomposed.dequantize_per_tensor.tensor2",
)
def dequantize_per_tensor(
    ex: Exporter, x: Tensor, scale: Any, zero: Any, low: Any, high: Any, dtype: torch.dtype, **_: Any
) -> Tensor:
    return dequantized(ex, x, scale, zero, dtype)


@exports("quantized_decomposed.quantize_per_channel.default")
def quantize_per_channel(
    ex: Exporter, x: Tensor, scales: Tensor, zeros: Tensor | None, at: int, low: int, high: int, dtype: torch.dtype
) -> Tensor:
    zeros = zeros if zeros is not None else ex.full(scales.sizes, 0, dtype)
    return quantized(ex, x, scales, zeros, low, high, dtype, axis(at, x.rank))


@exports("quantized_decomposed.dequantize_per_channel.default")
def dequantize_per_channel(
    ex: Exporter, x: Tensor, scales: Tensor, zeros: Tensor | None, at: int, low: int, high: int, dtype: torch.dtype,
    **_: Any,
) -> Tensor:  # fmt: skip
    return dequantized(ex, x, scales, zeros, dtype, axis(at, x.rank))


# ---------------------------------------------------------------------- both at once


def _kind(low: int, high: int) -> torch.dtype:
    """The type that holds these limits."""
    for dtype in (torch.int8, torch.uint8, torch.int16, torch.uint16):
        limits = torch.iinfo(dtype)
        if limits.min <= low and high <= limits.max:
            return dtype
    raise Unsupported(f"quantization to {low} … {high}")


@exports(
    *(aten.fake_quantize_per_tensor_affine.default, aten.fake_quantize_per_tensor_affine.tensor_qparams),
)
def fake_quantize(ex: Exporter, x: Tensor, scale: Any, zero: Any, low: int, high: int) -> Tensor:
    dtype = _kind(low, high)
    return dequantized(ex, quantized(ex, x, scale, zero, low, high, dtype), scale, zero, dtype)


@exports(aten.fake_quantize_per_channel_affine.default)
def fake_quantize_per_channel(
    ex: Exporter, x: Tensor, scale: Tensor, zero: Tensor, at: int, low: int, high: int
) -> Tensor:
    dtype, at = _kind(low, high), axis(at, x.rank)
    zero = Tensor(ex.cast(zero, dtype).value, dtype, zero.shape)
    return dequantized(ex, quantized(ex, x, scale, zero, low, high, dtype, at), scale, zero, dtype, at)
