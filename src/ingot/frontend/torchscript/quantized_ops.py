"""Quantized tensors and operators: quantize and dequantize around the same operator on floats.

A quantized tensor is its integers with their scale and zero point; fakes have no such
dtype. Weights come out of the packed objects that quantized modules hold, as the integers that they are, so that
the graph shows what is stored. The sums are float32's, where torch's kernels add integers: results may differ by
one step where a sum falls between two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from ingot import torch_internals as internals
from ingot.frontend.torchscript.interpreter import TorchScriptInterpreter
from ingot.frontend.torchscript.runtime_values import RuntimeScalar, as_tensor
from ingot.registry import Registry
from ingot.torch_internals import torchscript as ts

aten = torch.ops.aten
STORED: dict[torch.dtype, torch.dtype] = {
    torch.quint8: torch.uint8,
    torch.qint8: torch.int8,
    torch.qint32: torch.int32,
}
Rule = Callable[..., Any]
_RULES: Registry[str, Rule] = Registry("rule")


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedTensor:
    """A tensor of integers, and what they mean: (integer - zero point) * scale."""

    values: torch.Tensor
    scale: float | torch.Tensor
    zero_point: int | torch.Tensor
    dtype: torch.dtype

    @property
    def shape(self) -> torch.Size:
        return self.values.shape

    def floats(self) -> torch.Tensor:
        low, high = limits_of(self.dtype)
        stored = STORED[self.dtype]
        return ts.dequantize(self.values, self.scale, self.zero_point, low, high, stored)

    def counts(self) -> torch.Tensor:
        """How many steps each number is from zero, which float32 holds exactly."""
        return self.values.to(torch.float32) - self.zero_point

    def from_counts(self, counts: torch.Tensor) -> QuantizedTensor:
        """Numbers of steps, rounded to integers: a half is a half, whatever the scale."""
        low, high = limits_of(self.dtype)
        whole = torch.clamp(torch.round(counts) + self.zero_point, low, high)
        return replace(self, values=whole.to(STORED[self.dtype]))

    def again(self, floats: torch.Tensor) -> QuantizedTensor:
        """Other numbers, read in the same way."""
        return quantize(floats, self.scale, self.zero_point, self.dtype)


def quantize(floats: torch.Tensor, scale: Any, zero_point: Any, dtype: torch.dtype) -> QuantizedTensor:
    """Quantizes floats; scale and zero point are numbers, or tensors where a module keeps them in buffers."""
    if isinstance(scale, RuntimeScalar | torch.Tensor) or isinstance(zero_point, RuntimeScalar | torch.Tensor):
        scale, zero_point = (v if isinstance(v, torch.Tensor) else as_tensor(v) for v in (scale, zero_point))
    low, high = limits_of(dtype)
    return QuantizedTensor(ts.quantize(floats, scale, zero_point, low, high, STORED[dtype]), scale, zero_point, dtype)


def limits_of(dtype: torch.dtype) -> tuple[int, int]:
    """The least and the greatest integer of a quantized dtype."""
    limits = torch.iinfo(STORED[dtype])
    return limits.min, limits.max


def handles(name: str, inputs: list[Any]) -> bool:
    """Whether an operator is one of this file's."""
    if name.startswith("quantized::") or any(isinstance(v, QuantizedTensor) for v in _flat(inputs)):
        return True
    return name in _RULES and not _RULES.has_tag(name, "given_quantized")


def run(
    machine: TorchScriptInterpreter, name: str, overload: str, inputs: list[Any], general: Callable[[list[Any]], Any]
) -> Any:
    """An operator by its rule, or on the floats; `general` runs one on plain values."""
    found = _RULES.get(name)
    if found is not None:
        return found(machine, *inputs)
    if name.startswith("quantized::"):
        raise machine.unsupported_error(
            f"The quantized operator {name} has no rule.",
            fix="leave this module in float, or quantize the program itself: ingot.quantize",
        )
    first = next(value for value in _flat(inputs) if isinstance(value, QuantizedTensor))
    if name in _MOVING or name in _ASKING:
        out = general([value.values if isinstance(value, QuantizedTensor) else value for value in inputs])
        if name in _ASKING:
            return out
        return [replace(first, values=o) for o in out] if isinstance(out, list | tuple) else replace(first, values=out)
    if name in _AVERAGING:
        return first.from_counts(general([first.counts(), *inputs[1:]]))
    out = general([_floats(value) for value in inputs])
    return first.again(out) if isinstance(out, torch.Tensor) and out.dtype.is_floating_point else out


def _flat(inputs: list[Any]) -> list[Any]:
    return [item for value in inputs for item in (value if isinstance(value, list) else [value])]


def _floats(value: Any) -> Any:
    if isinstance(value, list):
        return [_floats(item) for item in value]
    return value.floats() if isinstance(value, QuantizedTensor) else value


# They move numbers about and compute none.
_MOVING = frozenset(
    f"aten::{name}"
    for name in (
        *("view", "reshape", "flatten", "permute", "transpose", "t", "contiguous", "slice", "select", "squeeze"),
        *("unsqueeze", "expand", "clone", "detach", "chunk", "split", "unbind", "narrow", "flip"),
    )
)
# What they return is a number of steps too, but for the fraction.
_AVERAGING = frozenset(
    f"aten::{name}" for name in ("mean", "avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool2d")
)
# They query a tensor and do not return one.
_ASKING = frozenset(f"aten::{name}" for name in ("size", "dim", "numel", "stride", "is_contiguous", "len"))


def rule(*names: str, given_quantized: bool = False) -> Callable[[Rule], Rule]:
    """Registers `(machine, *inputs) -> value` for operators. A second rule for one raises.

    `given_quantized` is for operators that floats have too: they are meant where they are given quantized tensors.
    """
    return _RULES.register(*names, tags=("given_quantized",) if given_quantized else ())


# ---------------------------------------------------------------------- in and out


@rule("aten::quantize_per_tensor")
def _quantize(machine: TorchScriptInterpreter, x: torch.Tensor, scale: Any, zero_point: Any, dtype: int) -> Any:
    return quantize(machine.localize(x), scale, zero_point, ts.dtype_of_number(dtype))


@rule("aten::dequantize")
def _dequantize(machine: TorchScriptInterpreter, x: Any) -> Any:
    return _floats(x)


@rule("aten::q_scale")
def _scale(machine: TorchScriptInterpreter, x: QuantizedTensor) -> Any:
    return x.scale


@rule("aten::q_zero_point")
def _zero_point(machine: TorchScriptInterpreter, x: QuantizedTensor) -> Any:
    return x.zero_point


@rule("aten::int_repr")
def _numbers(machine: TorchScriptInterpreter, x: QuantizedTensor) -> Any:
    return x.values


# ---------------------------------------------------------------------- layers


def _weights(machine: TorchScriptInterpreter, packed: Any, unpack: str) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The weight, dequantized in the graph, and the bias of a packed object."""
    weight, bias, scales, zeros, axis = machine.once(packed, lambda: _unpack(machine, packed, unpack))
    if axis is None:
        low, high = limits_of(torch.qint8)
        return ts.dequantize(weight, scales, zeros, low, high, torch.int8), bias
    return ts.dequantize_channels(weight, scales, zeros, axis, -128, 127, torch.int8), bias


def _unpack(machine: TorchScriptInterpreter, packed: Any, unpack: str) -> tuple[Any, ...]:
    assert machine.recorder is not None
    with machine.recorder.pause(), internals.real_tensors(), torch.no_grad():
        weight, bias = ts.unpack_weight(unpack, packed)
        bias = None if bias is None else bias.detach().clone()
        if weight.qscheme() == torch.per_tensor_affine:
            return weight.int_repr(), bias, weight.q_scale(), weight.q_zero_point(), None
        scales, zeros = weight.q_per_channel_scales().float(), weight.q_per_channel_zero_points()
        return weight.int_repr(), bias, scales, zeros, weight.q_per_channel_axis()


def _linear(relu: bool) -> Rule:
    def compute(machine: TorchScriptInterpreter, x: QuantizedTensor, packed: Any, scale: Any, zero_point: Any) -> Any:
        weight, bias = _weights(machine, packed, "linear_unpack")
        out = aten.linear.default(x.floats(), weight, bias)
        out = aten.relu.default(out) if relu else out
        return quantize(out, scale, zero_point, x.dtype)

    return compute


rule("quantized::linear")(_linear(False))
rule("quantized::linear_relu")(_linear(True))


def _convolution(dims: int, relu: bool) -> Rule:
    def compute(machine: TorchScriptInterpreter, x: QuantizedTensor, packed: Any, scale: Any, zero_point: Any) -> Any:
        weight, bias = _weights(machine, packed, f"conv{dims}d_unpack")
        stride, padding, dilation, groups = ts.convolution_settings(packed, dims)
        operator = getattr(aten, f"conv{dims}d").default
        out = operator(x.floats(), weight, bias, stride, padding, dilation, groups)
        out = aten.relu.default(out) if relu else out
        return quantize(out, scale, zero_point, x.dtype)

    return compute


for _dims in (1, 2, 3):
    rule(f"quantized::conv{_dims}d")(_convolution(_dims, False))
    rule(f"quantized::conv{_dims}d_relu")(_convolution(_dims, True))


@rule("quantized::linear_dynamic", "quantized::linear_relu_dynamic")
def _linear_dynamic(machine: TorchScriptInterpreter, x: torch.Tensor, packed: Any, reduce_range: bool = False) -> Any:
    """The activations are quantized by what they hold: with one bit less where a kernel's sums could overflow."""
    weight, bias = _weights(machine, packed, "linear_unpack")
    return aten.linear.default(ts.quantize_by_range(x, 0, 127 if reduce_range else 255, torch.uint8), weight, bias)


def stored_half(machine: TorchScriptInterpreter, packed: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The float16 weight, and the bias, of a packed object whose weight is not quantized but rounded."""

    def unpack() -> tuple[torch.Tensor, torch.Tensor | None]:
        assert machine.recorder is not None
        with machine.recorder.pause(), internals.real_tensors(), torch.no_grad():
            weight, bias = ts.unpack_weight("linear_unpack_fp16", packed)
            return weight.to(torch.float16), None if bias is None else bias.detach().clone()

    weight, bias = machine.once(packed, unpack)
    return weight, bias


# ---------------------------------------------------------------------- arithmetic


def _binary(operator: Callable[..., torch.Tensor], relu: bool) -> Rule:
    def compute(machine: TorchScriptInterpreter, a: QuantizedTensor, b: Any, *rest: Any) -> Any:
        out = operator(a.floats(), _floats(b))
        out = aten.relu.default(out) if relu else out
        if not rest:
            return a.again(out)
        return quantize(out, rest[0], rest[1], a.dtype)

    return compute


for _name, _operator in (("add", torch.add), ("mul", torch.mul)):
    rule(f"quantized::{_name}")(_binary(_operator, False))
    rule(f"quantized::{_name}_relu")(_binary(_operator, True))


@rule("quantized::cat")
def _cat(
    machine: TorchScriptInterpreter, parts: list[QuantizedTensor], dim: int, scale: Any = None, zero_point: Any = None
) -> Any:
    out = torch.cat([part.floats() for part in parts], dim)
    if scale is None:
        return parts[0].again(out)
    return quantize(out, scale, zero_point, parts[0].dtype)
