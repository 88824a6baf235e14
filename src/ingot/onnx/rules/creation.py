"""Tensors out of nothing: numbers, ranges, random draws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ingot.onnx.dtypes import TO_ONNX
from ingot.onnx.exporter import Exporter
from ingot.onnx.registry import exports
from ingot.onnx.values import OnnxValue, Size

aten = torch.ops.aten


@exports(aten.full.default, moves_data=True)
def full(ex: Exporter, sizes: Sequence[Size], value: Any, **_: Any) -> OnnxValue:
    return ex.full(ex.shape, value, ex.dtype)


@exports(aten.full_like.default, aten.new_full.default, aten.fill.Scalar, aten.fill.Tensor, moves_data=True)
def full_like(ex: Exporter, x: OnnxValue, *rest: Any, **_: Any) -> OnnxValue:
    return ex.full(ex.shape, rest[-1], ex.dtype)


@exports(aten.scalar_tensor.default, moves_data=True)
def scalar_tensor(ex: Exporter, value: Any, **_: Any) -> OnnxValue:
    return ex.operand(value, ex.dtype)


@exports(
    *(aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default, aten.empty.memory_format),
    *(aten.empty_like.default, aten.new_empty.default, aten.empty_strided.default, aten.new_empty_strided.default),
    *(aten.empty_permuted.default, aten._efficientzerotensor.default),
    moves_data=True,
)
def zeros(ex: Exporter, *_: Any, **__: Any) -> OnnxValue:
    """What torch leaves unwritten is zeros here."""
    return ex.full(ex.shape, 0, ex.dtype)


@exports(aten.ones.default, aten.ones_like.default, aten.new_ones.default, moves_data=True)
def ones(ex: Exporter, *_: Any, **__: Any) -> OnnxValue:
    return ex.full(ex.shape, 1, ex.dtype)


@exports(aten.arange.default, aten.arange.start, aten.arange.start_step, moves_data=True)
def arange(ex: Exporter, *bounds: Any, **_: Any) -> OnnxValue:
    start, _end, step = (0, *bounds, 1) if len(bounds) == 1 else (*bounds, 1) if len(bounds) == 2 else bounds
    (count,) = ex.shape
    if ex.dtype.is_floating_point:
        # Of the place, not by adding up: that is how torch rounds.
        dtype = torch.float64
        places = ex.cast(ex.range(count), dtype)
        return ex.op("Add", ex.op("Mul", places, ex.operand(step, dtype)), ex.operand(start, dtype))
    # torch counts the places with the numbers it was given, and fills them with integers.
    start, step = (int(v) if isinstance(v, float) else v for v in (start, step))
    places = ex.range(count)
    if step != 1:
        places = ex.op("Mul", places, ex.operand(step, torch.int64))
    return places if start == 0 else ex.op("Add", places, ex.operand(start, torch.int64))


@exports(aten.eye.default, aten.eye.m, moves_data=True)
def eye(ex: Exporter, *_: Any, **__: Any) -> OnnxValue:
    rows, columns = ex.shape
    same = ex.op("Equal", ex.unsqueeze(ex.range(rows), 1), ex.unsqueeze(ex.range(columns), 0))
    return ex.cast(same, ex.dtype)


# ---------------------------------------------------------------------- draws


def _draw_uniform(ex: Exporter, kind: str = "RandomUniformLike", dtype: torch.dtype = torch.float32) -> OnnxValue:
    """Random numbers of ONNX's own, not torch's: only their distribution is the same."""
    ex.draws = True
    # onnx.reference, which alone draws at opset 22 and later, draws no tensor without dims.
    like = ex.full(ex.shape or [1], 0.0, torch.float32)
    made = ex.op(kind, like, dtype=dtype, **{"dtype_": TO_ONNX[dtype].value})
    return made if ex.shape else ex.reshape(made, [])


def _own_type(ex: Exporter) -> torch.dtype:
    return ex.dtype if ex.dtype in (torch.float32, torch.float64) else torch.float32


@exports(aten.rand.default, aten.rand_like.default, aten.rand.generator, moves_data=True)
def rand(ex: Exporter, *_: Any, **__: Any) -> OnnxValue:
    return _draw_uniform(ex, dtype=_own_type(ex))


@exports(aten.randn.default, aten.randn_like.default, aten.randn.generator, moves_data=True)
def randn(ex: Exporter, *_: Any, **__: Any) -> OnnxValue:
    return _draw_uniform(ex, "RandomNormalLike", _own_type(ex))


def _integers(ex: Exporter, low: Any, high: Any) -> OnnxValue:
    uniform = ex.cast(_draw_uniform(ex), torch.float64)
    low, high = ex.operand(low, torch.float64), ex.operand(high, torch.float64)
    scaled = ex.op("Add", ex.op("Floor", ex.op("Mul", uniform, ex.op("Sub", high, low))), low)
    return ex.cast(scaled, torch.int64)


@exports(aten.randint.default, aten.randint.generator, moves_data=True)
def randint(ex: Exporter, high: Any, sizes: Any, **_: Any) -> OnnxValue:
    return _integers(ex, 0, high)


@exports(aten.randint.low, aten.randint.low_generator, moves_data=True)
def randint_low(ex: Exporter, low: Any, high: Any, sizes: Any, **_: Any) -> OnnxValue:
    return _integers(ex, low, high)


@exports(aten.randint_like.default, moves_data=True)
def randint_like(ex: Exporter, x: OnnxValue, high: Any, **_: Any) -> OnnxValue:
    return _integers(ex, 0, high)


@exports(aten.randint_like.low_dtype, moves_data=True)
def randint_like_low(ex: Exporter, x: OnnxValue, low: Any, high: Any, **_: Any) -> OnnxValue:
    return _integers(ex, low, high)


@exports(aten.randperm.default, moves_data=True)
def randperm(ex: Exporter, count: Size, **_: Any) -> OnnxValue:
    """The order of random keys."""
    _values, places = ex.several("TopK", 2, _draw_uniform(ex), ex.sizes.one(count), axis=0)
    return places


@exports(aten.bernoulli.p, moves_data=True)
def bernoulli_p(ex: Exporter, x: OnnxValue, p: float = 0.5, **_: Any) -> OnnxValue:
    return ex.cast(_draw_keep_mask(ex, p), ex.dtype)


@exports(aten.bernoulli.default, moves_data=True)
def bernoulli(ex: Exporter, x: OnnxValue, **_: Any) -> OnnxValue:
    return ex.cast(ex.op("Less", _draw_uniform(ex), ex.cast(x, torch.float32)), ex.dtype)


def _draw_keep_mask(ex: Exporter, p: float) -> OnnxValue:
    return ex.op("Less", _draw_uniform(ex), ex.number(float(p), torch.float32))


@exports(aten.dropout.default, moves_data=True)
def dropout(ex: Exporter, x: OnnxValue, p: float, train: bool) -> OnnxValue:
    """Of a model that does not train it is nothing at all."""
    return native_dropout(ex, x, p, train)[0] if train and p else x


@exports(
    *(aten.feature_dropout.default, aten.alpha_dropout.default, aten.feature_alpha_dropout.default),
    takes=lambda node: not node.args[2],
    moves_data=True,
)
def other_dropout(ex: Exporter, x: OnnxValue, p: float, train: bool) -> OnnxValue:
    """Of a model that does not train; others are taken apart into their draws."""
    return x


@exports(aten.native_dropout.default, moves_data=True)
def native_dropout(ex: Exporter, x: OnnxValue, p: float, train: bool | None) -> list[OnnxValue]:
    if not train:
        return [x, ex.full(ex.shape, True, torch.bool)]
    if p == 1:
        return [ex.full(ex.shape, 0, ex.dtype), ex.full(ex.shape, False, torch.bool)]
    kept = _draw_keep_mask(ex, 1 - p)
    scaled = ex.op("Mul", x, ex.number(1 / (1 - p), x.dtype))
    return [ex.op("Where", kept, scaled, ex.number(0.0, x.dtype)), kept]


@exports(aten.uniform.default, moves_data=True)
def uniform(ex: Exporter, x: OnnxValue, low: float = 0.0, high: float = 1.0, **_: Any) -> OnnxValue:
    drawn = _draw_uniform(ex, dtype=_own_type(ex))
    return ex.op("Add", ex.op("Mul", drawn, ex.number(high - low, drawn.dtype)), ex.number(low, drawn.dtype))


@exports(aten.normal_functional.default, aten.normal.float_float, moves_data=True)
def normal(ex: Exporter, first: Any, second: Any = 0.0, third: Any = 1.0, **_: Any) -> OnnxValue:
    mean, deviation = (second, third) if isinstance(first, OnnxValue) else (first, second)
    return _normal(ex, mean, deviation)


@exports(aten.normal.Tensor_float, aten.normal.Tensor_Tensor, aten.normal.float_Tensor, moves_data=True)
def normal_of(ex: Exporter, mean: Any, deviation: Any = 1.0, **_: Any) -> OnnxValue:
    return _normal(ex, mean, deviation)


def _normal(ex: Exporter, mean: Any, deviation: Any) -> OnnxValue:
    drawn = _draw_uniform(ex, "RandomNormalLike", _own_type(ex))
    scaled = ex.op("Mul", drawn, ex.operand(deviation, drawn.dtype))
    return ex.op("Add", scaled, ex.operand(mean, drawn.dtype))
