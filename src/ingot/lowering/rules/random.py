"""Random tensors: each element is a function of the seed, the number of the draw and the element's place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ingot.lowering.dtypes import wide
from ingot.lowering.index_expr import Size
from ingot.lowering.loop_body import BodyBuilder
from ingot.lowering.lower import Lowering, lowers
from ingot.lowering.rules.pointwise import value_at
from ingot.lowering.tensor_views import Deferred, Index, Shape, TensorValue

aten = torch.ops.aten


def draw_tensor(
    low: Lowering, shape: Shape, dtype: str, compute: Callable[[BodyBuilder, Index, Callable[..., int]], int]
) -> TensorValue:
    """`compute(ops, index, draw)` at every place; `draw(kind, *more)` is the place's own random number."""
    number, turn = low.draw(), low.turn

    def load(ops: BodyBuilder, index: Index) -> int:
        flat = turn  # each iteration of a loop draws again
        for size, i in zip(shape, index, strict=True):
            flat = flat * size + i

        def draw(kind: str, *more: int) -> int:
            result = {"f32": "float32", "f64": "float64", "i64": "int64"}[kind.rpartition("_")[2]]
            return ops.emit("random", (ops.index(flat), *more), result, (kind, number))

        return compute(ops, index, draw)

    # In memory at once: a draw costs more than a load, and everyone must see the same one.
    return low.realize(TensorValue(shape, dtype, Deferred(load, 30)))


def _suffix(dtype: str) -> str:
    return "f64" if dtype == "float64" else "f32"


@lowers(aten.rand.default, aten.rand_like.default, aten.uniform.default)
def rand(low: Lowering, x: Any = None, start: float = 0.0, end: float = 1.0, **_: Any) -> TensorValue:
    dtype = low.out_dtype
    kind = wide(dtype)

    def compute(ops: BodyBuilder, index: Index, draw: Callable[..., int]) -> int:
        value = ops.cast(draw(f"uniform_{_suffix(kind)}"), kind)
        if low_end == (0.0, 1.0):
            return value
        span = ops.call("mul", value, ops.const(low_end[1] - low_end[0], kind))
        return ops.call("add", span, ops.const(low_end[0], kind))

    low_end = (start, end) if low.node.target is aten.uniform.default else (0.0, 1.0)
    return draw_tensor(low, low.shape_of(low.out), dtype, compute)


@lowers(aten.randn.default, aten.randn_like.default, aten.normal_functional.default)
def randn(low: Lowering, x: Any = None, mean: Any = 0.0, std: Any = 1.0, **_: Any) -> TensorValue:
    given = low.node.target is aten.normal_functional.default
    return _normal(low, mean if given else 0.0, std if given else 1.0)


def _normal(low: Lowering, mean: Any, std: Any) -> TensorValue:
    dtype = low.out_dtype
    kind = wide(dtype)

    def compute(ops: BodyBuilder, index: Index, draw: Callable[..., int]) -> int:
        value = draw(f"normal_{_suffix(kind)}")
        scaled = ops.call("mul", value, value_at(ops, std, index, kind))
        return ops.call("add", scaled, value_at(ops, mean, index, kind))

    return draw_tensor(low, low.shape_of(low.out), dtype, compute)


@lowers(aten.normal.Tensor_float, aten.normal.float_Tensor, aten.normal.Tensor_Tensor, aten.normal.float_float)
def normal(low: Lowering, mean: Any, std: Any = 1.0, *_: Any, **__: Any) -> TensorValue:
    return _normal(low, mean, std)


@lowers(aten.randint.default, aten.randint.low, aten.randint_like.default, aten.randint_like.low_dtype)
def randint(low: Lowering, *args: Any, **_: Any) -> TensorValue:
    """[like,] [low,] high, [size]: whichever this overload has."""
    numbers = [a for a in args if not isinstance(a, (TensorValue, list, tuple))]
    start, end = (0, numbers[0]) if len(numbers) == 1 else (numbers[0], numbers[1])
    dtype = low.out_dtype

    def compute(ops: BodyBuilder, index: Index, draw: Callable[..., int]) -> int:
        value = draw("randint_i64", value_at(ops, start, (), "int64"), value_at(ops, end, (), "int64"))
        return ops.cast(value, wide(dtype))

    return draw_tensor(low, low.shape_of(low.out), dtype, compute)


@lowers(aten.bernoulli.p, aten.bernoulli.default, aten.bernoulli.Tensor)
def bernoulli(low: Lowering, x: TensorValue, p: Any = None, **_: Any) -> TensorValue:
    chance = x if p is None else p
    dtype = low.out_dtype

    def compute(ops: BodyBuilder, index: Index, draw: Callable[..., int]) -> int:
        hit = ops.call("lt", draw("uniform_f64"), value_at(ops, chance, index, "float64"))
        return ops.cast(hit, wide(dtype))

    return draw_tensor(low, low.shape_of(low.out), dtype, compute)


def _drop(low: Lowering, x: TensorValue, p: float) -> tuple[TensorValue, TensorValue]:
    def compute(ops: BodyBuilder, index: Index, draw: Callable[..., int]) -> int:
        return ops.call("ge", draw("uniform_f64"), ops.const(p, "float64"))

    kept = draw_tensor(low, x.shape, "bool", compute)
    kind = wide(x.dtype)

    def load(ops: BodyBuilder, index: Index) -> int:
        scaled = ops.call("mul", x.load(ops, index), ops.const(1 / (1 - p) if p < 1 else 0.0, kind))
        return ops.where(kept.load(ops, index), scaled, ops.const(0, kind))

    return TensorValue(x.shape, x.dtype, Deferred(load, x.cost + 2)), kept


@lowers(aten.dropout.default, aten.native_dropout.default)
def dropout(low: Lowering, x: TensorValue, p: float, train: bool | None = True) -> Any:
    whole = low.node.target is aten.native_dropout.default
    if train is False or not p:
        return (x, low.full(x.shape, True, "bool")) if whole else x
    made, kept = _drop(low, x, p)
    return (made, kept) if whole else made


@lowers(aten.randperm.default)
def randperm(low: Lowering, n: Size, **_: Any) -> TensorValue:
    """The places of n random numbers in order."""
    keys = draw_tensor(low, (n,), "float64", lambda ops, index, draw: draw("uniform_f64"))
    _keys, places = low.routine("sort", [keys], [((n,), "float64"), ((n,), "int64")], (1, n), descending=False)
    dtype = low.out_dtype
    if dtype == "int64":
        return places
    return TensorValue((n,), dtype, Deferred(lambda ops, index: ops.cast(places.load(ops, index), wide(dtype)), 1))
