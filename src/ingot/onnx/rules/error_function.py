"""erf, erfc and the normal distribution. ONNX Runtime has Erf for float32 alone, and nothing for tails.

In float64, and for tails, they are spelled out:

    erf(x)  = x · S(x²)                              up to 1
    erfc(x) = exp(-x²) · T(t) / (1 + 2x)             from 0 on, t = (x - 3.75) / (x + 3.75)

S and T are polynomials through the zeros of Chebyshev polynomials (of u = x² from 0 to 1, and of t from -1 to 1), made
with 60 digits. Compared with 60 digits they are off by 1 and by 4 units in the last place of float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ingot.onnx.exporter import Exporter
from ingot.onnx.registry import exports
from ingot.onnx.values import OnnxValue

aten = torch.ops.aten
f64 = torch.float64

_S = (
    *(1.1283791670955126, -0.3761263890318375, 0.11283791670954879, -0.026866170645076792, 0.0052239776248180145),
    *(-0.000854832698083379, 0.0001205533111164271, -1.4925595266831182e-05, 1.6461000484121368e-06),
    *(-1.6350312701054695e-07, 1.4659775274047436e-08, -1.1372848856791674e-09, 5.957176147748911e-11),
)
_T = (
    *(1.2375126308378275, -0.14024059858554522, 0.0035854154854663067, 0.08227673848999159, -0.10880393014193915),
    *(0.09230432116435616, -0.058693398584491845, 0.028362277371370044, -0.00974657962081509, 0.0017556261692276722),
    *(0.00029371408777227685, -0.0002901553656394713, 5.164737123871838e-05, 2.238759272534769e-05),
    *(-1.143961526007595e-05, -9.79297529099823e-07, 1.7438577411359181e-06, -5.0816911811698186e-08),
    *(-2.4996538037405243e-07, 1.8778501156468795e-08, 3.256499083798513e-08, -1.952790162974837e-09),
    -2.7293941332533855e-09,
)
_END = 30.0  # from here on erfc is 0 in float64


@exports(aten.erf.default)
def erf(ex: Exporter, x: OnnxValue) -> OnnxValue:
    x = ex.cast(x, ex.dtype)
    if x.dtype is not f64:
        return ex.op("Erf", x)
    near = ex.op("Mul", x, _polynomial(ex, _S, ex.op("Mul", x, x)))
    far = ex.op("Mul", ex.op("Sign", x), ex.op("Sub", ex.number(1.0, f64), _tail(ex, ex.op("Abs", x))))
    return ex.op("Where", ex.op("Less", ex.op("Abs", x), ex.number(1.0, f64)), near, far)


@exports(aten.erfc.default)
def erfc(ex: Exporter, x: OnnxValue) -> OnnxValue:
    x = ex.cast(x, f64)
    tail = _tail(ex, ex.op("Abs", x))
    below = ex.op("Less", x, ex.number(0.0, f64))
    return ex.op("Where", below, ex.op("Sub", ex.number(2.0, f64), tail), tail)


@exports(aten.special_ndtr.default)
def ndtr(ex: Exporter, x: OnnxValue) -> OnnxValue:
    x = ex.cast(x, ex.dtype)
    half, root = ex.number(0.5, x.dtype), ex.number(math.sqrt(0.5), x.dtype)
    scaled = ex.op("Mul", x, root)
    if x.dtype is f64:
        return ex.op("Mul", erfc(ex, ex.op("Neg", scaled)), half)
    return ex.op("Mul", ex.op("Add", ex.op("Erf", scaled), ex.number(1.0, x.dtype)), half)


def _tail(ex: Exporter, x: OnnxValue) -> OnnxValue:
    """erfc of what is not negative. x² is taken apart: what it rounds off would be large in exp(-x²)."""
    x = ex.op("Where", ex.op("Greater", x, ex.number(_END, f64)), ex.number(_END, f64), x)
    steps, middle, one = ex.number(16.0, f64), ex.number(3.75, f64), ex.number(1.0, f64)
    high = ex.op("Div", ex.op("Floor", ex.op("Mul", x, steps)), steps)
    rest = ex.op("Mul", ex.op("Sub", x, high), ex.op("Add", x, high))
    power = ex.op("Mul", *(ex.op("Exp", ex.op("Neg", part)) for part in (ex.op("Mul", high, high), rest)))
    place = ex.op("Div", ex.op("Sub", x, middle), ex.op("Add", x, middle))
    made = ex.op("Div", _polynomial(ex, _T, place), ex.op("Add", ex.op("Add", x, x), one))
    return ex.op("Mul", made, power)


def _polynomial(ex: Exporter, coefficients: Sequence[float], x: OnnxValue) -> OnnxValue:
    made = ex.number(coefficients[-1], f64)
    for coefficient in reversed(coefficients[:-1]):
        made = ex.op("Add", ex.op("Mul", made, x), ex.number(coefficient, f64))
    return made
