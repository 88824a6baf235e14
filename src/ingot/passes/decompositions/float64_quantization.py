"""Quantization in float64: what torch's operators for it mean, which they themselves compute in float32 alone.

`EXACT` maps their names to functions that take the same arguments. A program in float64 calls these, so that what it
gives is the measure for those that round earlier.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ingot.registry import R, Registry

X = torch.Tensor
EXACT: Registry[str, Callable[..., Any]] = Registry("function in float64")


def computes(*names: str) -> Callable[[R], R]:
    """Registers a function for operators of quantized_decomposed, by their names there."""
    return EXACT.register(*(f"quantized_decomposed.{name}" for name in names))


def _reshape_along(parameter: X, x: X, axis: int) -> X:
    """One number for each place of an axis, to go with a tensor."""
    return parameter.double().reshape([-1 if d == axis % x.dim() else 1 for d in range(x.dim())])


@computes(
    "quantize_per_tensor.default",
    "quantize_per_tensor.tensor",
    "quantize_per_tensor.tensor2",
    "quantize_per_token.default",
)
def _to_integers(x: X, scale: Any, zero: Any, low: Any, high: Any, dtype: torch.dtype) -> X:
    steps: X = torch.round(x.double() / scale) + zero
    return steps.clamp(low, high).to(dtype)


def _to_floats(x: X, scale: Any, zero: Any) -> X:
    made: X = (x.double() - zero) * scale
    return made


@computes(
    "dequantize_per_tensor.default",
    "dequantize_per_tensor.tensor",
    "dequantize_per_tensor.tensor2",
    "dequantize_per_token.default",
)
def _dequantize(x: X, scale: Any, zero: Any, *_: Any, **__: Any) -> X:
    return _to_floats(x, scale, zero)


@computes("quantize_per_channel.default")
def _quantize_channels(x: X, scales: X, zeros: X, axis: int, low: int, high: int, dtype: torch.dtype) -> X:
    return _to_integers(x, _reshape_along(scales, x, axis), _reshape_along(zeros, x, axis), low, high, dtype)


@computes("dequantize_per_channel.default")
def _dequantize_channels(x: X, scales: X, zeros: X | None, axis: int, *_: Any, **__: Any) -> X:
    return _to_floats(x, _reshape_along(scales, x, axis), 0.0 if zeros is None else _reshape_along(zeros, x, axis))


@computes("dequantize_per_channel_group.default")
def _dequantize_groups(
    x: X, scales: X, zeros: X | None, low: int, high: int, dtype: torch.dtype, group: int, out: torch.dtype
) -> X:
    shift: Any = 0.0 if zeros is None else zeros.reshape(-1, 1).double()
    return _to_floats(x.reshape(scales.numel(), -1), scales.reshape(-1, 1).double(), shift).reshape(x.shape)


def _range(x: X, dims: Any = None) -> tuple[X, X]:
    low, high = (x.double().amin(dims, True), x.double().amax(dims, True)) if dims else x.double().aminmax()
    return low.clamp(max=0), high.clamp(min=0)


@computes("choose_qparams.tensor")
def _choose(x: X, low: int, high: int, eps: float, dtype: torch.dtype) -> tuple[X, X]:
    least, largest = _range(x)
    scale = ((largest - least) / (high - low)).clamp(min=eps)
    zero = (low - torch.round(least / scale)).clamp(low, high)
    return scale.reshape(1), zero.to(torch.int64).reshape(1)


@computes("choose_qparams_symmetric.tensor")
def _choose_symmetric(x: X, low: int, high: int, eps: float, dtype: torch.dtype) -> tuple[X, X]:
    least, largest = _range(x)
    scale = (torch.maximum(-least, largest) / ((high - low) / 2)).clamp(min=eps)
    return scale.reshape(1), torch.tensor([128 if dtype is torch.uint8 else 0])


@computes("choose_qparams_per_token_asymmetric.default")
def _choose_by_token(x: X, dtype: torch.dtype) -> tuple[X, X]:
    least, largest = _range(x, [-1])
    scale = ((largest - least) / 255).clamp(min=torch.finfo(torch.float32).eps)
    below, above = least / scale, largest / scale
    zero = torch.where(below - 128 + above + 127 > 0, -128 - below, 127 - above)
    return scale, zero.clamp(-128, 127).round().to(torch.int64)
