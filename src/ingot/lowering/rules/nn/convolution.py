"""Convolutions, whole or as loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ingot.lowering import tensor_views
from ingot.lowering.dtypes import FLOATS, wide
from ingot.lowering.index_expr import Size, require_static, symbol
from ingot.lowering.loop_body import BodyBuilder
from ingot.lowering.loop_ir import Convolution, Loop, Map, Store, StridedView
from ingot.lowering.lower import Lowering, lowers
from ingot.lowering.tensor_views import Deferred, Index, Shape, Strided, TensorValue, contiguous_strides

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class ConvWindows:
    """How a convolution walks over its input, one number per spatial dim."""

    stride: tuple[int, ...]
    padding: tuple[Any, ...]
    dilation: tuple[int, ...]
    groups: int

    def prepend_dim(self) -> ConvWindows:
        """With one more dim in front, of one place."""
        return ConvWindows((1, *self.stride), (0, *self.padding), (1, *self.dilation), self.groups)


@lowers(aten.convolution.default)
def convolution(
    low: Lowering, x: TensorValue, weight: TensorValue, bias: TensorValue | None, stride: Sequence[int],
    padding: Sequence[Size],
    dilation: Sequence[int], transposed: bool, output_padding: Sequence[Size], groups: int
) -> TensorValue:  # fmt: skip
    spatial = weight.rank - 2

    def each(numbers: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(numbers) * spatial if len(numbers) == 1 else tuple(numbers)

    windows = ConvWindows(each(stride), each(padding), each(dilation), groups)
    unbatched = x.rank == spatial + 1
    if unbatched:
        x = tensor_views.insert(x, 0)
    shape = low.shape_of(low.out)
    shape = (1, *shape) if unbatched else shape
    made = low.strategy.lower_convolution(low, x, weight, bias, shape, windows, transposed)
    if made is None and not transposed and _is_whole(low, x, weight, shape):
        made = _whole(low, x, weight, bias, shape, windows)
    elif made is None:
        made = sum_over_taps(low, low.materialize_if_expensive(x), weight, bias, shape, windows, transposed)
    return tensor_views.drop(made, (0,)) if unbatched else made


def _is_whole(low: Lowering, x: TensorValue, weight: TensorValue, shape: Shape) -> bool:
    """Whether a convolution can be one step: floats, of known channels and taps, and not empty."""
    alike = low.out_dtype in FLOATS and x.dtype == weight.dtype == low.out_dtype
    numbers = all(isinstance(size, int) for size in (*weight.shape, x.shape[1]))
    return alike and numbers and not any(size == 0 for size in (*shape, *weight.shape, *x.shape))


def _whole(
    low: Lowering, x: TensorValue, weight: TensorValue, bias: TensorValue | None, shape: Shape, windows: ConvWindows
) -> TensorValue:
    """The convolution as one step, its result with channels last."""
    dtype, kind = low.out_dtype, wide(low.out_dtype)
    views = []
    for operand in (low.realize(x), low.realize(weight)):
        assert isinstance(operand.data, Strided)
        views.append(StridedView(operand.data.buffer, operand.data.offset, operand.data.strides))
    outs, channels, *kernel = map(require_static, weight.shape)
    physical = (shape[0], *shape[2:], outs)
    buffer = low.buffer("temporary", dtype, physical)
    home = Strided(buffer.name, 0, contiguous_strides(physical))
    loops = tuple(Loop(f"i{d}", size) for d, size in enumerate(physical))
    index = tuple(symbol(loop.variable, below=loop.extent) for loop in loops)
    ops = BodyBuilder()
    value = ops.emit("accumulator", (), kind)
    if bias is not None:
        value = ops.call("add", value, ops.cast(bias.load(ops, (index[-1],)), kind))
    epilogue = Map(
        loops, ops.finish([ops.cast(value, dtype)]), (Store(buffer.name, home.offset_at(index), 0),), low.origin
    )
    low.steps.append(
        Convolution(
            images=shape[0],
            channels=channels,
            out_channels=outs,
            groups=windows.groups,
            size=x.shape[2:],
            out_size=shape[2:],
            kernel=tuple(kernel),
            stride=windows.stride,
            padding=windows.padding,
            dilation=windows.dilation,
            x=views[0],
            weight=views[1],
            dtype=kind,
            epilogue=epilogue,
            origin=low.origin,
        )
    )
    rank = len(shape)
    return tensor_views.permute(TensorValue(physical, dtype, home), (0, rank - 1, *range(1, rank - 1)))


def sum_over_taps(
    low: Lowering,
    x: TensorValue,
    weight: TensorValue,
    bias: TensorValue | None,
    shape: tuple[Size, ...],
    windows: ConvWindows,
    transposed: bool,
) -> TensorValue:
    """Every convolution as a sum over channels and taps, with what lies outside masked away."""
    dtype, kind = low.out_dtype, wide(low.out_dtype)
    stride, padding, dilation, groups = windows.stride, windows.padding, windows.dilation, windows.groups
    inner, outer = x.shape[1] // groups, shape[1] // groups
    taps = weight.shape[2:]
    weight = low.materialize_if_expensive(weight)

    def load(ops: BodyBuilder, index: Index) -> int:
        image, out_channel = index[0], index[1]
        place, channel, tap = index[2 : 2 + len(taps)], index[2 + len(taps)], index[3 + len(taps) :]
        group = out_channel // outer if groups != 1 and outer != 0 else 0
        within: int | None = None
        source: list[Size] = []
        for d, size in enumerate(x.shape[2:]):
            if transposed:
                at = place[d] + padding[d] - tap[d] * dilation[d]
                if stride[d] != 1:
                    known = ops.call("eq", ops.index(at % stride[d]), ops.index(0))
                    within = known if within is None else ops.call("and", within, known)
                    at = at // stride[d]
            else:
                at = place[d] * stride[d] + tap[d] * dilation[d] - padding[d]
            if transposed or padding[d] != 0:
                for name, limit in (("ge", 0), ("lt", size)):
                    test = ops.call(name, ops.index(at), ops.index(limit))
                    within = test if within is None else ops.call("and", within, test)
            source.append(at)
        real = group * inner + channel
        if transposed:
            factor = weight.load(ops, (real, out_channel - group * outer, *tap))
        else:
            factor = weight.load(ops, (out_channel, channel, *tap))
        if within is None:
            value = x.load(ops, (image, real, *source))
        else:
            value = ops.zero_outside(within, lambda: x.load(ops, (image, real, *source)))
        return ops.call("mul", ops.cast(value, kind), ops.cast(factor, kind))

    terms = TensorValue((*shape, inner, *taps), kind, Deferred(load, 6))
    over = tuple(range(len(shape), len(shape) + 1 + len(taps)))
    (made,) = low.reduce(terms, over, ("sum",), lambda ops, v, index: (v,), (kind,))
    if bias is None:
        return (
            made if kind == dtype else TensorValue(shape, dtype, Deferred(lambda ops, index: made.load(ops, index), 1))
        )

    def add_bias(ops: BodyBuilder, index: Index) -> int:
        return ops.call("add", made.load(ops, index), ops.cast(bias.load(ops, (index[1],)), kind))

    return TensorValue(shape, dtype, Deferred(add_bias, 2))
