"""Pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from ingot.onnx.exporter import Exporter
from ingot.onnx.registry import OnnxUnsupported, exports
from ingot.onnx.rules.nn.interpolate import multiply_along
from ingot.onnx.rules.nn.matmul_conv import spread
from ingot.onnx.values import OnnxValue, Size, is_known

aten = torch.ops.aten


class PoolWindows:
    """Windows over the last dims: how long, how far apart, and how many torch makes of them."""

    def __init__(
        self, ex: Exporter, x: OnnxValue, count: int, kernel: Any, stride: Any, padding: Any, dilation: Any
    ) -> None:
        self.kernel = spread(kernel, count)
        self.stride = spread(stride, count) if stride not in (None, []) else self.kernel
        self.before = spread(padding, count)
        self.dilation = spread(dilation, count)
        self.ins = x.sizes[-count:]
        self.outs = ex.shape[-count:]

    def afters(self) -> list[int] | None:
        """What is added behind, so that whole windows are as many as torch makes. None where sizes are not numbers."""
        if not is_known(self.ins):
            return None
        return [
            max(0, (int(o) - 1) * s + d * (k - 1) + 1 - int(i) - b)
            for o, s, d, k, i, b in zip(
                self.outs, self.stride, self.dilation, self.kernel, self.ins, self.before, strict=True
            )
        ]


def _add_batch(ex: Exporter, x: OnnxValue, count: int) -> tuple[OnnxValue, bool]:
    """With a batch, as kernels want it, and whether it had none."""
    if any(size == 0 for size in x.sizes):
        raise OnnxUnsupported("pooling without elements")
    if x.rank == count + 1:
        made = ex.unsqueeze(x, 0)
        return OnnxValue(made.value, x.dtype, (1, *x.sizes)), True
    return x, False


def _apart_from_pad(ex: Exporter, x: OnnxValue) -> OnnxValue:
    """ONNX Runtime takes zeros around the input of a MaxPool for the pool's own padding, which counts for nothing: it
    must not see the two side by side."""
    producer = x.value.producer()
    if producer is None or producer.op_type != "Pad":
        return x
    return OnnxValue(ex.op("Max", x, ex.number(-math.inf, x.dtype)).value, x.dtype, x.shape)


def _max_pool(count: int, indices: bool) -> Any:
    def rule(
        ex: Exporter, x: OnnxValue, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1,
        ceil_mode: bool = False,
    ) -> Any:  # fmt: skip
        if x.dtype is torch.int64:
            raise OnnxUnsupported("pooling of int64, which float kernels cannot represent")
        if not x.is_float:
            x = ex.cast(x, torch.float64 if x.dtype is torch.int32 else torch.float32)
        windows = PoolWindows(ex, x, count, kernel, stride or None, padding, dilation)
        x, single = _add_batch(ex, _apart_from_pad(ex, x), count)
        afters = windows.afters()
        simple = not ceil_mode or afters is None
        ends = windows.before if simple else [max(a, 0) for a in afters or ()]
        wanted = indices and any(user.args[1] == 1 for user in ex.node.users)
        made = ex.several(
            "MaxPool",
            2 if wanted else 1,
            x,
            kernel_shape=windows.kernel,
            strides=windows.stride,
            pads=[*windows.before, *ends],
            dilations=windows.dilation,
            ceil_mode=int(ceil_mode and simple),
        )
        if wanted:  # ONNX counts from the first element of all, torch from the first of the plane
            plane: Any = 1
            for size in windows.ins:
                plane = plane * size
            made[1] = ex.op("Mod", made[1], ex.sizes.scalar(plane))
        made = [ex.squeeze(part, 0) for part in made] if single else made
        return (made if wanted else [made[0], made[0]]) if indices else made[0]

    return rule


exports(aten.max_pool2d_with_indices.default)(_max_pool(2, True))
exports(aten.max_pool3d_with_indices.default)(_max_pool(3, True))
exports(aten.max_pool1d.default)(_max_pool(1, False))
exports(aten.max_pool2d.default)(_max_pool(2, False))
exports(aten.max_pool3d.default)(_max_pool(3, False))


def _avg_pool(count: int) -> Any:
    def rule(
        ex: Exporter, x: OnnxValue, kernel: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False,
        count_include_pad: bool = True, divisor_override: int | None = None,
    ) -> OnnxValue:  # fmt: skip
        if not x.is_float:
            raise OnnxUnsupported("pooling of integers")
        windows = PoolWindows(ex, x, count, kernel, stride or None, padding, 1)
        x, single = _add_batch(ex, x, count)
        afters = windows.afters()
        if ceil_mode and afters is None:
            raise OnnxUnsupported("windows that exceed a dynamic size")
        over = ceil_mode and any(a > b for a, b in zip(afters or (), windows.before, strict=True))
        if not over and divisor_override is None:
            made = ex.op(
                "AveragePool",
                x,
                kernel_shape=windows.kernel,
                strides=windows.stride,
                pads=windows.before * 2,
                count_include_pad=int(count_include_pad),
            )
        else:
            made = _sum(ex, x, windows, afters or windows.before, count_include_pad, divisor_override)
        return ex.squeeze(made, 0) if single else made

    return rule


def _sum(
    ex: Exporter, x: OnnxValue, windows: PoolWindows, afters: Sequence[int], include: bool, override: int | None
) -> OnnxValue:
    """Sums of windows over zeros around, each over its own count."""
    count = len(windows.kernel)
    ends = [max(a, b) for a, b in zip(afters, windows.before, strict=True)]
    pads = ex.ints([0, 0, *windows.before, 0, 0, *ends])
    padded = ex.op("Pad", x, pads, mode="constant")
    area = math.prod(windows.kernel)
    mean = ex.op("AveragePool", padded, kernel_shape=windows.kernel, strides=windows.stride)
    if override is not None:
        mean_ = ex.op("Mul", mean, ex.number(area / override, x.dtype))
        return _cut(ex, mean_, windows)
    counts = torch.ones(())
    for place in range(count):
        i, b, k, s, o = (
            int(v[place]) for v in (windows.ins, windows.before, windows.kernel, windows.stride, windows.outs)
        )
        starts = torch.arange(o) * s - b
        stops = torch.clamp(starts + k, max=i + b if include else i)
        lengths = stops - (starts if include else starts.clamp(min=0))
        counts = counts.unsqueeze(-1) * lengths.to(torch.float64)
    factors = ex.constant((area / counts).to(x.dtype))
    return ex.op("Mul", _cut(ex, mean, windows), factors)


def _cut(ex: Exporter, x: OnnxValue, windows: PoolWindows) -> OnnxValue:
    """As many windows as torch makes."""
    count = len(windows.kernel)
    at = list(range(2, 2 + count))
    return ex.op("Slice", x, ex.ints([0] * count), ex.sizes.vector(windows.outs), ex.ints(at))


exports(aten.avg_pool1d.default)(_avg_pool(1))
exports(aten.avg_pool2d.default)(_avg_pool(2))
exports(aten.avg_pool3d.default)(_avg_pool(3))


# ---------------------------------------------------------------------- to a size


def _adaptive(count: int) -> Any:
    def rule(ex: Exporter, x: OnnxValue, sizes: Any) -> OnnxValue:
        """Each dim by itself: a mean over equal windows, over everything, or a product with the windows' shares."""
        outs = ex.shape[-count:]
        ins = x.sizes[-count:]
        if any(size == 0 for size in (*x.sizes, *ex.shape)):
            raise OnnxUnsupported("pooling without elements")
        if all(out == 1 for out in outs):
            return ex.op("ReduceMean", x, ex.ints(list(range(x.rank - count, x.rank))))
        known = is_known(ins) and is_known(outs)
        if known and all(int(i) % int(o) == 0 for i, o in zip(ins, outs, strict=True)):
            steps = [int(i) // int(o) for i, o in zip(ins, outs, strict=True)]
            wide, single = _add_batch(ex, x, count)
            made = ex.op("AveragePool", wide, kernel_shape=steps, strides=steps)
            return ex.squeeze(made, 0) if single else made
        for place, (i, o) in enumerate(zip(ins, outs, strict=True)):
            if i != o:
                x = _pool_along(ex, x, x.rank - count + place, i, o)
        return x

    return rule


def _pool_along(ex: Exporter, x: OnnxValue, dim: int, size: Size, out: Size) -> OnnxValue:
    places, columns = ex.range(out), ex.range(size)
    inside, outside = ex.sizes.scalar(size), ex.sizes.scalar(out)
    one = ex.number(1, torch.int64)
    starts = ex.op("Div", ex.op("Mul", places, inside), outside)
    last = ex.op("Mul", ex.op("Add", places, one), inside)
    stops = ex.op("Div", ex.op("Sub", ex.op("Add", last, outside), one), outside)
    at, stop, column = ex.unsqueeze(starts, 1), ex.unsqueeze(stops, 1), ex.unsqueeze(columns, 0)
    among = ex.op("And", ex.op("GreaterOrEqual", column, at), ex.op("Less", column, stop))
    share = ex.op("Div", ex.cast(among, x.dtype), ex.cast(ex.op("Sub", stop, at), x.dtype))
    return multiply_along(ex, x, dim, out, ex.op("Transpose", share, perm=[1, 0]))


exports(aten.adaptive_avg_pool1d.default)(_adaptive(1))
exports(aten._adaptive_avg_pool2d.default, aten.adaptive_avg_pool2d.default)(_adaptive(2))
exports(aten._adaptive_avg_pool3d.default, aten.adaptive_avg_pool3d.default)(_adaptive(3))


def _adaptive_max(count: int) -> Any:
    def rule(ex: Exporter, x: OnnxValue, sizes: Any) -> list[OnnxValue]:
        """Windows that are all as long."""
        ins, outs = x.sizes[-count:], ex.shape[-count:]
        pairs = list(zip(ins, outs, strict=True))
        if not is_known(ins) or not is_known(outs) or any(int(o) == 0 or int(i) % int(o) for i, o in pairs):
            raise OnnxUnsupported("max pooling with windows of different sizes")
        steps = [int(i) // int(o) for i, o in pairs]
        made: list[OnnxValue] = _max_pool(count, True)(ex, x, steps, steps)
        return made

    return rule


exports(aten.adaptive_max_pool2d.default)(_adaptive_max(2))
exports(aten.adaptive_max_pool3d.default)(_adaptive_max(3))
