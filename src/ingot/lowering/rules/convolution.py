"""Convolutions: channels last, by windows that the product's tiles walk over; loops for whatever is left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ingot.lowering import values
from ingot.lowering.body import Recorder
from ingot.lowering.expr import Size, known, product, symbol
from ingot.lowering.integers import EXACT_TERMS, Factored, factored, is_weight
from ingot.lowering.ir import TOGETHER, Convolution, Factors, Loop, Map, Routine, Store, Way, wide
from ingot.lowering.lower import Lowering, lowers
from ingot.lowering.making import panel_width
from ingot.lowering.narrowing import is_narrow, narrowed, unsigned
from ingot.lowering.rules.products import as_rows, matmul
from ingot.lowering.values import Index, Lazy, Quantized, Strided, Tensor, contiguous_strides, dequantized, quantized_of

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Windows:
    """How a convolution walks over its input, one number a spatial dim."""

    stride: tuple[int, ...]
    padding: tuple[Any, ...]
    dilation: tuple[int, ...]
    groups: int

    def behind(self) -> Windows:
        """With one more dim in front, of one place."""
        return Windows((1, *self.stride), (0, *self.padding), (1, *self.dilation), self.groups)


@lowers(aten.convolution.default)
def convolution(
    low: Lowering, x: Tensor, weight: Tensor, bias: Tensor | None, stride: Sequence[int], padding: Sequence[Size],
    dilation: Sequence[int], transposed: bool, output_padding: Sequence[Size], groups: int
) -> Tensor:  # fmt: skip
    spatial = weight.rank - 2

    def each(numbers: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(numbers) * spatial if len(numbers) == 1 else tuple(numbers)

    windows = Windows(each(stride), each(padding), each(dilation), groups)
    unbatched = x.rank == spatial + 1
    if unbatched:
        x = values.insert(x, 0)
    shape = low.shape_of(low.out)
    shape = (1, *shape) if unbatched else shape
    coded = quantized_of(weight)
    if coded is not None and is_weight(low, coded, 0) and _factored(low, x, weight) is None:
        made = _with_scales(low, x, coded, bias, shape, windows, transposed)
    elif _windowed(low, x, weight, shape, transposed):
        made = _channels_last(low, x, weight, bias, shape, windows)
    else:
        made = _convolved(low, low.keep(x), weight, bias, shape, windows, transposed)
    return values.drop(made, (0,)) if unbatched else made


def _with_scales(
    low: Lowering, x: Tensor, weight: Quantized, bias: Tensor | None, shape: tuple[Size, ...], windows: Windows,
    transposed: bool
) -> Tensor:  # fmt: skip
    """Floats with a weight of integers: these are numbers once they are packed, and their scales wait for the sums."""
    numbers = Tensor(weight.integers.shape, x.dtype, weight.integers.data)
    if transposed or not _windowed(low, x, numbers, shape, transposed):
        return _convolved(low, low.keep(x), dequantized(weight), bias, shape, windows, transposed)
    made = _channels_last(low, x, numbers, None, shape, windows)

    def load(ops: Recorder, index: Index) -> int:
        scale = weight.parameter(ops, weight.scale, (index[1],), wide(made.dtype))
        value = ops.call("mul", made.load(ops, index), scale)
        return (
            value if bias is None else ops.call("add", value, ops.cast(bias.load(ops, (index[1],)), wide(made.dtype)))
        )

    return Tensor(shape, made.dtype, Lazy(load, 3, low.order_of(made)))


def _windowed(low: Lowering, x: Tensor, weight: Tensor, shape: tuple[Size, ...], transposed: bool) -> bool:
    """Whether this is a convolution in one or two dims with a weight that can be packed ahead of time."""
    whole = _factored(low, x, weight)
    if whole is not None:
        weight = whole.weight
        x = whole.rows
    constant = isinstance(weight.data, Strided) and low.buffers[weight.data.buffer].kind == "weight"
    alike = x.dtype == weight.dtype or whole is not None
    floating = low.out_dtype in ("float16", "bfloat16", "float32", "float64") and alike
    numbers = all(isinstance(size, int) for size in (*weight.shape, x.shape[1]))
    empty = any(size == 0 for size in (*shape, *weight.shape, *x.shape))
    return weight.rank in (3, 4) and constant and floating and numbers and not transposed and not empty


def _factored(low: Lowering, x: Tensor, weight: Tensor) -> Factored | None:
    """The convolution as one of integers. Its padding is a zero point, which must be known."""
    whole = factored(low, x, weight, 0)
    if whole is None or not isinstance(whole.zero, int):
        return None
    fits = weight.shape[1] != 1 or known(product(weight.shape[2:])) <= EXACT_TERMS  # sums of one channel are float32
    return whole if fits else None


NHWC = (0, 2, 3, 1)
# Channels that the longest vector holds: a multiple of them needs no care at a pixel's end.
LANES = 16
# Where Winograd's way pays: channels, least and most, and tiles of 2×2 outputs.
TILED_CHANNELS = (32, 256)
TILES = 40


def _channels_last(
    low: Lowering, x: Tensor, weight: Tensor, bias: Tensor | None, shape: tuple[Size, ...], windows: Windows
) -> Tensor:
    if weight.rank == 3:
        x, weight = values.insert(x, 2), values.insert(weight, 2)
        flat = _channels_last(low, x, weight, bias, (*shape[:2], 1, shape[2]), windows.behind())
        return values.drop(flat, (2,))
    channels, outs = known(x.shape[1]), known(weight.shape[0])
    kernel = weight.shape[2:]
    if _fills_vectors(low, weight, windows):
        return _by_windows(low, x, weight, bias, shape, windows)
    if windows.groups == channels and channels > 1:
        return _few_a_channel(low, x, weight, bias, shape, windows)
    if kernel == (1, 1) and windows.groups == 1 and windows.stride == (1, 1) and windows.padding == (0, 0):
        image = _nhwc_integers(low, x) if _factored(low, x, weight) else _nhwc(low, x)
        rows = as_rows(low, values.permute(narrowed(low, image) if is_narrow(low, weight) else image, NHWC))
        made = matmul(low, rows, values.permute(values.drop(weight, (2, 3)), (1, 0)), bias)
        return values.permute(values.reshape(made, (shape[0], *shape[2:], outs), low.hint), (0, 3, 1, 2))
    return _by_windows(low, x, weight, bias, shape, windows)


def _nhwc(low: Lowering, x: Tensor) -> Tensor:
    """The tensor in memory with channels last, dense."""
    swapped = values.permute(x, NHWC)
    if isinstance(x.data, Lazy):
        low.realize(x, order=NHWC)
        return x
    return values.permute(low.dense(swapped), (0, 3, 1, 2))


def _nhwc_integers(low: Lowering, x: Tensor) -> Tensor:
    """The tensor as before, its integers in memory with channels last."""
    found = quantized_of(x)
    assert found is not None
    return dequantized(replace(found, integers=_nhwc(low, found.integers)))


@dataclass(frozen=True, slots=True)
class Operands:
    """The image and the weight as one way of convolving reads them, and the window that it walks over the image."""

    x: str
    weight: str
    size: tuple[Size, ...]
    kernel: tuple[int, int]
    channels: int
    padding: tuple[Any, ...]
    panel: int


def _by_windows(
    low: Lowering, x: Tensor, weight: Tensor, bias: Tensor | None, shape: tuple[Size, ...], windows: Windows
) -> Tensor:
    dtype, kind = low.out_dtype, wide(low.out_dtype)
    x, windows = _without_margin(x, windows)
    whole = _factored(low, x, weight)
    way = _way(low, weight if whole is None else whole.weight, shape, windows)
    factors = _factors(low, weight) if whole is None else "int8"
    if way != "windows" and factors == "bfloat16":
        factors = "same"
    if whole is not None:
        operands = _OPERANDS[way](low, whole.rows, whole.weight, shape, windows, _own_zero(whole))
    else:
        operands = _OPERANDS[way](low, x if factors != "same" else widened(low, x, kind), weight, shape, windows, 0)
    outs = known(weight.shape[0])
    physical = (shape[0], *shape[2:], outs)
    buffer = low.buffer("temporary", dtype, physical)
    home = Strided(buffer.name, 0, contiguous_strides(physical))
    loops = tuple(Loop(f"i{d}", size) for d, size in enumerate(physical))
    index = tuple(symbol(loop.variable, below=loop.extent) for loop in loops)
    ops = Recorder()
    sums = "int32" if whole is not None and way == "windows" else kind
    value = ops.emit("accumulator", (), sums)
    if whole is not None:
        value = whole.finished(ops, value, _sums(low, whole) if sums == "int32" else None, index[3])
    if bias is not None:
        value = ops.call("add", value, ops.cast(bias.load(ops, (index[3],)), kind))
    epilogue = Map(loops, ops.finish([ops.cast(value, dtype)]), (Store(buffer.name, home.at(index), 0),), low.origin)
    low.steps.append(
        Convolution(
            images=shape[0],
            size=(operands.size[0], operands.size[1]),
            pixel=known(x.shape[1]),
            channels=operands.channels,
            out_size=(shape[2], shape[3]),
            out_channels=outs,
            kernel=operands.kernel,
            stride=(windows.stride[0], windows.stride[1]),
            padding=(operands.padding[0], operands.padding[1]),
            dilation=(windows.dilation[0], windows.dilation[1]),
            groups=windows.groups,
            x=operands.x,
            weight=operands.weight,
            panel=operands.panel,
            dtype=sums,
            epilogue=epilogue,
            origin=low.origin,
            way=way,
            factors=factors,
            outside=known(whole.zero) if whole is not None and isinstance(whole.zero, int) else 0,
        )
    )
    return values.permute(Tensor(physical, dtype, home), (0, 3, 1, 2))


def _factors(low: Lowering, weight: Tensor) -> Factors:
    return "int8" if weight.dtype == "int8" else "bfloat16" if is_narrow(low, weight) else "same"


def _own_zero(whole: Factored) -> int:
    """What stands for 0 among the integers as they are."""
    assert isinstance(whole.zero, int)
    return whole.zero - 128 if whole.rows.dtype == "int8" else whole.zero


def _sums(low: Lowering, whole: Factored) -> Tensor | None:
    assert isinstance(whole.weight.data, Strided)
    return whole.sums(low, whole.weight.data.offset, whole.weight.shape, whole.weight.data.strides)


def _way(low: Lowering, weight: Tensor, shape: tuple[Size, ...], windows: Windows) -> Way:
    if _fills_vectors(low, weight, windows):
        return "depthwise"
    return "winograd" if _pays_as_tiles(low, shape, weight, windows) else "windows"


def _fills_vectors(low: Lowering, weight: Tensor, windows: Windows) -> bool:
    """Whether every channel is a group of its own and they fill known vectors, which none reads beyond."""
    outs, channels = known(weight.shape[0]), known(weight.shape[1]) * windows.groups
    return low.may_use("depthwise") and windows.groups == outs == channels and channels % LANES == 0


def _pays_as_tiles(low: Lowering, shape: tuple[Size, ...], weight: Tensor, windows: Windows) -> bool:
    """Whether Winograd's way is the faster one: enough tiles to use each of the 16/9 as many weights often enough, and
    enough channels to make up for the sums before and after."""
    assert isinstance(weight.data, Strided)
    plain = weight.shape[2:] == (3, 3) and windows.stride == windows.dilation == (1, 1) and windows.groups == 1
    dense = weight.data.offset == 0 and weight.data.strides == contiguous_strides(weight.shape)
    outs, channels = known(weight.shape[0]), known(weight.shape[1])
    tiles = low.hint(product([shape[0], *_tiles(shape)]))
    most = max(channels, outs) <= TILED_CHANNELS[1] and channels % LANES == outs % LANES == 0
    # In bfloat16 its sums would round before they are multiplied, by 2⁻⁸ and not by 2⁻²⁴.
    single = wide(low.out_dtype) == "float32" and _factors(low, weight) == "same" and low.may_use("winograd")
    return single and plain and dense and most and min(channels, outs) >= TILED_CHANNELS[0] and tiles >= TILES


def _tiles(shape: tuple[Size, ...]) -> tuple[Size, Size]:
    """Lines and columns of tiles of 2×2 outputs."""
    return (shape[2] + 1) // 2, (shape[3] + 1) // 2


def _under_windows(
    low: Lowering, x: Tensor, weight: Tensor, shape: tuple[Size, ...], windows: Windows, outside: int
) -> Operands:
    assert isinstance(weight.data, Strided)
    outs, inner, high, across = map(known, weight.shape)
    kernel, channels, padding, run = (high, across), inner, windows.padding, 1
    factors = _factors(low, weight)
    if windows.groups == 1 and inner < LANES and windows.dilation[1] == 1 and across > 1:
        # Few channels: a known line of taps lies side by side in memory once the image has its margin.
        ends = [
            (size - 1) * step + (taps - 1) * gap + 1
            for size, step, taps, gap in zip(shape[2:], windows.stride, kernel, windows.dilation, strict=True)
        ]
        # The weights of what is read beyond the last tap, so that it is whole fours, are zeros: it must only be there.
        beyond = -across * inner % TOGETHER[factors] if factors == "int8" else 0
        x = padded(x, padding, (ends[0], ends[1] + -(-beyond // inner)), outside)
        kernel, channels, padding, run = (high, 1), across * inner + beyond, (0, 0), 2
    image = _image(low, x, factors)
    outer_step, inner_step, tap_y, tap_x = weight.data.strides
    each = outs // windows.groups
    packed = low.pack(
        weight.data.buffer, wide(low.out_dtype), weight.data.offset, (high, across, inner), (tap_y, tap_x, inner_step),
        each, outer_step, groups=windows.groups, factors=factors, run=run
    )  # fmt: skip
    return Operands(image, packed, x.shape[2:], kernel, channels, padding, panel_width(each))


def _by_channels(
    low: Lowering, x: Tensor, weight: Tensor, shape: tuple[Size, ...], windows: Windows, outside: int
) -> Operands:
    assert isinstance(weight.data, Strided)
    image = _image(low, x, "int8" if weight.dtype == "int8" else "same")
    outs, inner, high, across = map(known, weight.shape)
    outer_step, _, tap_y, tap_x = weight.data.strides
    order = low.repacked(
        weight.data.buffer, wide(low.out_dtype), weight.data.offset, (high, across, outs), (tap_y, tap_x, outer_step)
    ).data
    assert isinstance(order, Strided)
    return Operands(image, order.buffer, x.shape[2:], (high, across), inner, windows.padding, LANES)


def _by_tiles(
    low: Lowering, x: Tensor, weight: Tensor, shape: tuple[Size, ...], windows: Windows, outside: int
) -> Operands:
    """The image as 16 matrices of tiles by channels; see codegen/c/winograd.h."""
    assert isinstance(weight.data, Strided)
    image = _image(low, x)
    outs, inner, high, across = map(known, weight.shape)
    images, channels, *size = x.shape
    down, wide_ = _tiles(shape)
    made = low.buffer("temporary", x.dtype, (16, images * down * wide_, channels))
    sizes = (images, wide_ * channels, *size, channels, down, wide_, *windows.padding)
    low.steps.append(Routine("winograd", (image,), (made.name,), sizes, origin=low.origin))
    packed = low.pack(
        weight.data.buffer, wide(low.out_dtype), 0, (inner,), (outs,), outs, 1, 16, inner * outs, winograd=True
    )
    return Operands(made.name, packed, x.shape[2:], (high, across), inner, windows.padding, panel_width(outs))


def _image(low: Lowering, x: Tensor, factors: Factors = "same") -> str:
    """The buffer of an image that is put into memory with channels last, as what its product reads."""
    image = _nhwc(low, x)
    data = _STORED[factors](low, image).data
    assert isinstance(data, Strided)
    return data.buffer


_STORED: dict[Factors, Callable[[Lowering, Tensor], Tensor]] = {
    "same": lambda low, x: x,
    "bfloat16": narrowed,
    "int8": unsigned,
}
_OPERANDS: dict[Way, Callable[[Lowering, Tensor, Tensor, tuple[Size, ...], Windows, int], Operands]] = {
    "windows": _under_windows,
    "depthwise": _by_channels,
    "winograd": _by_tiles,
}


def widened(low: Lowering, x: Tensor, kind: str) -> Tensor:
    if x.dtype == kind:
        return x
    return Tensor(x.shape, kind, Lazy(lambda ops, index: x.load(ops, index), x.cost, low.order_of(x)))


def _without_margin(x: Tensor, windows: Windows) -> tuple[Tensor, Windows]:
    """The image without the zeros around it, which are the convolution's own padding then."""
    margin = x.data.margin if isinstance(x.data, Lazy) else None
    if margin is None or margin[0].shape[:2] != x.shape[:2]:
        return x, windows
    inner, before = margin
    padding = tuple(p + b for p, b in zip(windows.padding, before[2:], strict=True))
    return inner, replace(windows, padding=padding)


def padded(x: Tensor, before: Sequence[Size], sizes: Sequence[Size], outside: int = 0) -> Tensor:
    """An image of these sizes with zeros, or what stands for 0, where the given one, `before` places from the first,
    has none."""
    if all(p == 0 for p in before) and tuple(sizes) == x.shape[2:]:
        return x
    shape = (*x.shape[:2], *sizes)

    def load(ops: Recorder, index: Index) -> int:
        inside: int | None = None
        places = [i - p for i, p in zip(index[2:], before, strict=True)]
        for place, size in zip(places, x.shape[2:], strict=True):
            for name, limit in (("ge", 0), ("lt", size)):
                test = ops.call(name, ops.index(place), ops.index(limit))
                inside = test if inside is None else ops.call("and", inside, test)
        assert inside is not None
        with ops.masked(inside):
            value = x.load(ops, (*index[:2], *places))
        return ops.where(inside, value, ops.const(outside, x.dtype))

    return Tensor(shape, x.dtype, Lazy(load, x.cost + 3))


def _few_a_channel(
    low: Lowering, x: Tensor, weight: Tensor, bias: Tensor | None, shape: tuple[Size, ...], windows: Windows
) -> Tensor:
    """One or a few outputs a channel, any number of channels: a sum over taps, along the channels."""
    dtype, kind = low.out_dtype, wide(low.out_dtype)
    whole = _factored(low, x, weight)
    if whole is not None:  # whole numbers in float32, which holds their sums
        x, weight = _less_zero(whole), whole.weight
    assert isinstance(weight.data, Strided)
    outs, taps = shape[1], weight.shape[2:]
    times = outs // x.shape[1]
    outer_step, _, tap_y, tap_x = weight.data.strides
    packed = low.repacked(weight.data.buffer, kind, weight.data.offset, (*taps, outs), (tap_y, tap_x, outer_step))
    if isinstance(x.data, Strided) or x.cost > 4 or low.order_of(x) != NHWC:
        x = _nhwc(low, x)

    def load(ops: Recorder, index: Index) -> int:
        image, channel, y, x_, a, b = index
        places: list[Size] = []
        inside: int | None = None
        for d, (place, tap, size) in enumerate(((y, a, x.shape[2]), (x_, b, x.shape[3]))):
            at = place * windows.stride[d] + tap * windows.dilation[d] - windows.padding[d]
            places.append(at)
            if windows.padding[d] == 0:
                continue
            for name, limit in (("ge", 0), ("lt", size)):
                test = ops.call(name, ops.index(at), ops.index(limit))
                inside = test if inside is None else ops.call("and", inside, test)
        factor = packed.load(ops, (a, b, channel))
        source = (image, channel // times if times != 1 else channel, *places)
        if inside is None:
            value = x.load(ops, source)
        else:
            value = ops.zero_outside(inside, lambda: x.load(ops, source))
        return ops.call("mul", ops.cast(value, kind), factor)

    terms = Tensor((*shape, *taps), kind, Lazy(load, 6, (0, 2, 3, 1, 4, 5)))
    (made,) = low.reduce(terms, (4, 5), ("sum",), lambda ops, v, index: (v,), (kind,))

    def finish(ops: Recorder, index: Index) -> int:
        value = made.load(ops, index)
        if whole is not None:
            value = whole.finished(ops, value, None, index[1])
        return value if bias is None else ops.call("add", value, ops.cast(bias.load(ops, (index[1],)), kind))

    return Tensor(shape, dtype, Lazy(finish, 2, NHWC))


def _less_zero(whole: Factored) -> Tensor:
    """The integers less what stands for 0 among them, in float32."""
    rows, zero = whole.rows, _own_zero(whole)

    def load(ops: Recorder, index: Index) -> int:
        return ops.call("sub", ops.cast(rows.load(ops, index), "float32"), ops.const(zero, "float32"))

    return Tensor(rows.shape, "float32", Lazy(load, rows.cost + 1))


def _convolved(
    low: Lowering,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    shape: tuple[Size, ...],
    windows: Windows,
    transposed: bool,
) -> Tensor:
    """Every convolution as a sum over channels and taps, with what lies outside masked away."""
    dtype, kind = low.out_dtype, wide(low.out_dtype)
    stride, padding, dilation, groups = windows.stride, windows.padding, windows.dilation, windows.groups
    inner, outer = x.shape[1] // groups, shape[1] // groups
    taps = weight.shape[2:]
    weight = low.keep(weight)

    def load(ops: Recorder, index: Index) -> int:
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

    terms = Tensor((*shape, inner, *taps), kind, Lazy(load, 6))
    over = tuple(range(len(shape), len(shape) + 1 + len(taps)))
    (made,) = low.reduce(terms, over, ("sum",), lambda ops, v, index: (v,), (kind,))
    if bias is None:
        return made if kind == dtype else Tensor(shape, dtype, Lazy(lambda ops, index: made.load(ops, index), 1))

    def with_bias(ops: Recorder, index: Index) -> int:
        return ops.call("add", made.load(ops, index), ops.cast(bias.load(ops, (index[1],)), kind))

    return Tensor(shape, dtype, Lazy(with_bias, 2))
