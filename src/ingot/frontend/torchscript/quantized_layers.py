"""Quantized operators that are one float operator, with a scale and a zero point for the result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F

from ingot.frontend.torchscript.interpreter import TorchScriptInterpreter
from ingot.frontend.torchscript.quantized_ops import QuantizedTensor, limits_of, quantize, rule, stored_half

aten = torch.ops.aten


def _norm(x: torch.Tensor, weight: Any, bias: Any, mean: torch.Tensor, var: torch.Tensor, eps: float) -> torch.Tensor:
    return F.batch_norm(x, mean, var, weight, bias, False, 0.0, eps)


# What each computes of floats; scale and zero point are its last two arguments.
_LAST: dict[str, Callable[..., torch.Tensor]] = {
    **{f"batch_norm{dims}": _norm for dims in ("", "1d", "2d", "3d")},
    **{f"batch_norm{dims}_relu": lambda *args: F.relu(_norm(*args)) for dims in ("", "1d", "2d", "3d")},
    "layer_norm": F.layer_norm,
    "group_norm": F.group_norm,
    "instance_norm": lambda x, weight, bias, eps: F.instance_norm(x, None, None, weight, bias, eps=eps),
    "leaky_relu": lambda x, slope, inplace: F.leaky_relu(x, slope),
    "prelu": F.prelu,
    "hardswish": F.hardswish,
    "sigmoid": torch.sigmoid,
    "softmax": lambda x, dim: torch.softmax(x, dim),
}
# … and here they are the first two after the tensor.
_FIRST: dict[str, Callable[..., torch.Tensor]] = {
    "elu": lambda x, alpha=1, scale=1, input_scale=1: aten.elu.default(x, alpha, scale, input_scale),
    "celu": lambda x, alpha=1: aten.celu.default(x, alpha),
}
# These choose both by themselves, from what they can give: a share of the numbers that there are, and the lowest.
_OWN: dict[str, tuple[Callable[..., torch.Tensor], float, bool]] = {
    "sigmoid": (torch.sigmoid, 1 / 256, False),
    "hardsigmoid": (F.hardsigmoid, 1 / 256, False),
    "tanh": (torch.tanh, 2 / 256, True),
}


def _register() -> None:
    def last(compute: Callable[..., torch.Tensor]) -> Callable[..., Any]:
        def run(machine: TorchScriptInterpreter, x: QuantizedTensor, *rest: Any) -> Any:
            *settings, scale, zero_point = rest
            return quantize(compute(x.floats(), *settings), scale, zero_point, x.dtype)

        return run

    def first(compute: Callable[..., torch.Tensor]) -> Callable[..., Any]:
        def run(
            machine: TorchScriptInterpreter, x: QuantizedTensor, scale: Any, zero_point: Any, *settings: Any
        ) -> Any:
            return quantize(compute(x.floats(), *settings), scale, zero_point, x.dtype)

        return run

    def own(compute: Callable[..., torch.Tensor], scale: float, centered: bool) -> Callable[..., Any]:
        def run(machine: TorchScriptInterpreter, x: QuantizedTensor) -> Any:
            low, high = limits_of(x.dtype)
            return quantize(compute(x.floats()), scale, (low + high + 1) // 2 if centered else low, x.dtype)

        return run

    for name, compute in _LAST.items():
        rule(f"quantized::{name}")(last(compute))
    for name, compute in _FIRST.items():
        rule(f"quantized::{name}")(first(compute))
    for name, (compute, scale, centered) in _OWN.items():
        rule(f"aten::{name}", given_quantized=True)(own(compute, scale, centered))


_register()


@rule("quantized::relu6")
def _relu6(machine: TorchScriptInterpreter, x: QuantizedTensor, inplace: bool = False) -> Any:
    return x.again(F.relu6(x.floats()))


@rule("quantized::mul_scalar")
def _scale(machine: TorchScriptInterpreter, x: QuantizedTensor, factor: float) -> Any:
    """The same numbers, read with another scale; flipped where the factor is negative."""
    if factor == 0:
        return replace(x, values=torch.zeros_like(x.values), scale=1.0, zero_point=0)
    if factor > 0:
        return replace(x, scale=x.scale * factor)
    low, high = limits_of(x.dtype)
    turned = (low + high - x.values.to(torch.int32)).to(x.values.dtype)
    return replace(x, values=turned, scale=x.scale * -factor, zero_point=low + high - x.zero_point)


@rule("quantized::add_scalar")
def _shift(machine: TorchScriptInterpreter, x: QuantizedTensor, by: float) -> Any:
    """The same numbers, read from another zero point; where that lies outside, the scale grows until it is the end."""
    low, high = limits_of(x.dtype)
    if isinstance(x.scale, torch.Tensor) or isinstance(x.zero_point, torch.Tensor):
        raise machine.unsupported_error("A number is added to a quantized tensor whose scale is a tensor.")
    zero_point = x.zero_point - round(by / x.scale)
    if low <= zero_point <= high:
        return replace(x, zero_point=zero_point)
    floats = (x.values.to(torch.float32) - zero_point) * x.scale
    end = low if zero_point < low else high
    reach = high - zero_point if zero_point < low else zero_point - low
    return quantize(floats, reach / (high - low) * x.scale, end, x.dtype)


@rule("quantized::linear_dynamic_fp16")
def _linear_half(machine: TorchScriptInterpreter, x: torch.Tensor, packed: Any) -> torch.Tensor:
    """Weights that are rounded to float16, and float32 again when they are used."""
    weight, bias = stored_half(machine, packed)
    return F.linear(machine.localize(x), weight.to(torch.float32), bias)


@rule("quantized::linear_relu_dynamic_fp16")
def _linear_half_relu(machine: TorchScriptInterpreter, x: torch.Tensor, packed: Any) -> torch.Tensor:
    return F.relu(_linear_half(machine, x, packed))
