"""Activations: ONNX's own where the opset has them, else what they are made of."""

from __future__ import annotations

import math
from typing import Any

import torch

from ingot.onnx.exporter import Exporter
from ingot.onnx.registry import exports
from ingot.onnx.rules.error_function import erf
from ingot.onnx.rules.math import expm1
from ingot.onnx.rules.select_and_clamp import clamp
from ingot.onnx.values import OnnxValue, axis

aten = torch.ops.aten


@exports(aten.relu.default)
def relu(ex: Exporter, x: OnnxValue) -> OnnxValue:
    return ex.op("Relu", x) if x.is_float else ex.op("Max", x, ex.number(0, x.dtype))


@exports(aten.relu6.default)
def relu6(ex: Exporter, x: OnnxValue) -> OnnxValue:
    return clamp(ex, x, 0, 6)


@exports(aten.hardtanh.default)
def hardtanh(ex: Exporter, x: OnnxValue, low: Any = -1, high: Any = 1) -> OnnxValue:
    return clamp(ex, x, low, high)


@exports(aten.gelu.default)
def gelu(ex: Exporter, x: OnnxValue, approximate: str = "none") -> OnnxValue:
    if ex.opset >= 20 and x.dtype is not torch.float64:  # the node is defined with numbers of 32 bits
        return ex.op("Gelu", x, approximate=approximate)
    half, one = ex.number(0.5, x.dtype), ex.number(1.0, x.dtype)
    if approximate == "tanh":
        cube = ex.op("Mul", ex.op("Mul", x, x), x)
        inner = ex.op("Add", x, ex.op("Mul", cube, ex.number(0.044715, x.dtype)))
        gate = ex.op("Tanh", ex.op("Mul", inner, ex.number(math.sqrt(2 / math.pi), x.dtype)))
        return ex.op("Mul", ex.op("Mul", x, half), ex.op("Add", gate, one))
    # Spelled as ONNX Runtime knows it: x / sqrt(2), erf, + 1, times x, times a half become one kernel.
    gate = erf(ex, ex.op("Div", x, ex.number(math.sqrt(2), x.dtype)))
    return ex.op("Mul", ex.op("Mul", x, ex.op("Add", gate, one)), half)


@exports(aten.silu.default)
def silu(ex: Exporter, x: OnnxValue) -> OnnxValue:
    return ex.op("Mul", x, ex.op("Sigmoid", x))


@exports(aten.mish.default)
def mish(ex: Exporter, x: OnnxValue) -> OnnxValue:
    return ex.op("Mul", x, ex.op("Tanh", ex.op("Softplus", x)))


@exports(aten.softplus.default)
def softplus(ex: Exporter, x: OnnxValue, beta: Any = 1, threshold: Any = 20) -> OnnxValue:
    scaled = ex.op("Mul", x, ex.number(float(beta), x.dtype)) if beta != 1 else x
    soft = ex.op("Softplus", scaled)
    soft = ex.op("Div", soft, ex.number(float(beta), x.dtype)) if beta != 1 else soft
    return ex.op("Where", ex.op("Greater", scaled, ex.number(float(threshold), x.dtype)), x, soft)


@exports(aten.log_sigmoid.default)
def log_sigmoid(ex: Exporter, x: OnnxValue) -> OnnxValue:
    return ex.op("Neg", ex.op("Softplus", ex.op("Neg", x)))


@exports(aten.hardsigmoid.default)
def hardsigmoid(ex: Exporter, x: OnnxValue) -> OnnxValue:
    if ex.says(x.dtype, 1 / 6):
        return ex.op("HardSigmoid", x, alpha=1 / 6, beta=0.5)
    sixth = ex.op("Div", ex.op("Add", x, ex.number(3.0, x.dtype)), ex.number(6.0, x.dtype))
    return clamp(ex, sixth, 0, 1)


@exports(aten.hardswish.default)
def hardswish(ex: Exporter, x: OnnxValue) -> OnnxValue:
    return ex.op("HardSwish", x) if ex.says(x.dtype, 1 / 6) else ex.op("Mul", x, hardsigmoid(ex, x))


@exports(aten.leaky_relu.default)
def leaky_relu(ex: Exporter, x: OnnxValue, slope: float = 0.01) -> OnnxValue:
    if ex.says(x.dtype, float(slope)):
        return ex.op("LeakyRelu", x, alpha=float(slope))
    below = ex.op("Mul", x, ex.number(float(slope), x.dtype))
    return ex.op("Where", ex.op("Greater", x, ex.number(0.0, x.dtype)), x, below)


@exports(aten.prelu.default, aten._prelu_kernel.default)
def prelu(ex: Exporter, x: OnnxValue, weight: OnnxValue) -> OnnxValue:
    if weight.rank == 1 and x.rank > 1:  # one slope a channel
        weight = ex.reshape(weight, [*weight.sizes, *([1] * (x.rank - 2))])
    elif weight.rank == 1 and not x.rank:
        weight = ex.reshape(weight, [])
    scaled = ex.op("Mul", x, weight)
    return ex.op("Where", ex.op("Greater", x, ex.number(0.0, x.dtype)), x, scaled)


@exports(aten.elu.default)
def elu(ex: Exporter, x: OnnxValue, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> OnnxValue:
    if scale == 1 and input_scale == 1 and alpha == 1:
        return ex.op("Where", ex.op("Greater", x, ex.number(0.0, x.dtype)), x, ex.cast(expm1(ex, x), x.dtype))
    inner = ex.op("Mul", x, ex.number(float(input_scale), x.dtype)) if input_scale != 1 else x
    down = ex.op("Mul", ex.cast(expm1(ex, inner), x.dtype), ex.number(float(alpha) * float(scale), x.dtype))
    up = ex.op("Mul", x, ex.number(float(scale), x.dtype)) if scale != 1 else x
    return ex.op("Where", ex.op("Greater", x, ex.number(0.0, x.dtype)), up, down)


@exports(aten.celu.default)
def celu(ex: Exporter, x: OnnxValue, alpha: Any = 1.0) -> OnnxValue:
    return elu(ex, x, float(alpha), 1.0, 1.0 / float(alpha))


@exports(aten.selu.default)
def selu(ex: Exporter, x: OnnxValue) -> OnnxValue:
    return elu(ex, x, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946)


@exports(aten.threshold.default)
def threshold(ex: Exporter, x: OnnxValue, limit: Any, value: Any) -> OnnxValue:
    below = ex.op("LessOrEqual", x, ex.operand(limit, x.dtype))
    return ex.op("Where", below, ex.operand(value, x.dtype), x)


@exports(aten.glu.default)
def glu(ex: Exporter, x: OnnxValue, dim: int = -1) -> OnnxValue:
    left, right = ex.several("Split", 2, x, axis=axis(dim, x.rank), num_outputs=2)
    return ex.op("Mul", left, ex.op("Sigmoid", right))


def _normalize(kind: str) -> Any:
    def rule(ex: Exporter, x: OnnxValue, dim: int, *rest: Any, **options: Any) -> OnnxValue:
        x = ex.cast(x, ex.dtype)
        if not x.rank:
            x = ex.reshape(x, [1])
            return ex.reshape(ex.op(kind, x, axis=0), [])
        return ex.op(kind, x, axis=axis(dim, x.rank))

    return rule


exports(aten.softmax.int, aten._softmax.default)(_normalize("Softmax"))
exports(aten.log_softmax.int, aten._log_softmax.default)(_normalize("LogSoftmax"))


@exports(aten._safe_softmax.default)
def safe_softmax(ex: Exporter, x: OnnxValue, dim: int, dtype: Any = None) -> OnnxValue:
    """A row that is hidden altogether is zeros."""
    x = ex.cast(x, ex.dtype)
    at = axis(dim, x.rank)
    largest = ex.op("ReduceMax", x, ex.ints([at]), keepdims=1)
    hidden = ex.op("Equal", largest, ex.number(-math.inf, x.dtype))
    return ex.op("Where", hidden, ex.number(0.0, x.dtype), ex.op("Softmax", x, axis=at))


@exports(aten.logit.default)
def logit(ex: Exporter, x: OnnxValue, eps: float | None = None) -> OnnxValue:
    x = ex.cast(x, ex.dtype)
    if eps is not None:
        x = clamp(ex, x, eps, 1 - eps)
    one = ex.number(1.0, torch.float64)
    x = ex.cast(x, torch.float64)
    return ex.op("Log", ex.op("Div", x, ex.op("Sub", one, x)))
