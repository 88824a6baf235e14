"""Convolutions with weights: activations with channels last, weights in the order in which their terms are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ingot.lowering import tensor_views
from ingot.lowering.builder import LoopBuilder
from ingot.lowering.dtypes import FLOATS, HALVES, wide
from ingot.lowering.index_expr import Size, require_static, symbol
from ingot.lowering.loop_body import BodyBuilder
from ingot.lowering.loop_ir import Convolution, Loop, Map, Store, StridedView
from ingot.lowering.lower import Lowering
from ingot.lowering.rules.linalg.matmul import as_rows, matmul
from ingot.lowering.rules.nn.convolution import ConvWindows
from ingot.lowering.tensor_views import Deferred, Index, Strided, TensorValue, contiguous_strides
from ingot.targets.cuda.schedule.weight_layouts import ReorderedLayout

# Channels of which two pixels are one copy of 16 bytes: fewer are padded to as many.
FEW_CHANNELS = 4


def lower_convolution(
    low: Lowering, x: TensorValue, weight: TensorValue, bias: TensorValue | None, shape: tuple[Size, ...],
    windows: ConvWindows,
    transposed: bool
) -> TensorValue | None:  # fmt: skip
    """A convolution whose weight is known ahead of time; None of any other."""
    if transposed or not _is_packable(low, x, weight, shape):
        return None
    x, windows = _strip_margin(x, windows)
    if _is_pointwise(weight, windows):
        return _lower_pointwise(low, x, weight, bias, shape)
    outs, channels = require_static(weight.shape[0]), require_static(weight.shape[1])
    if channels == 1 and windows.groups > 1:
        image, packed = _make_channels_last(low, x), _pack_channels(low, weight)
        return _append(low, image, packed, channels, bias, shape, windows, outs)
    if channels < FEW_CHANNELS and windows.groups == 1 and weight.dtype in HALVES and windows.dilation[-1] == 1:
        return _lower_few_channels(low, x, weight, bias, shape, windows)
    packed = _pack_taps(low, weight, require_static(weight.shape[-1]), channels)
    return _append(low, _make_channels_last(low, x), packed, channels, bias, shape, windows, outs)


def _lower_few_channels(
    low: Lowering, x: TensorValue, weight: TensorValue, bias: TensorValue | None, shape: tuple[Size, ...],
    windows: ConvWindows
) -> TensorValue:  # fmt: skip
    """Few channels are padded to as many as one copy takes, and the image to all that windows reach: the taps of a line
    then lie side by side, as if they were channels of one tap. Where windows move by an even number of lines, so do two
    lines."""
    outs, *taps = (require_static(weight.shape[0]), *map(require_static, weight.shape[2:]))
    line = taps[-1] + -taps[-1] % 2  # taps of a line, those behind the last with zeros for weights
    lines = 2 if len(taps) == 2 and windows.stride[0] % 2 == 0 and windows.dilation[0] == 1 else 1
    if lines > 1:
        taps[0] += -taps[0] % lines
    reach = [(size - 1) * step for size, step in zip(shape[2:], windows.stride, strict=True)]
    sizes = [first + (count - 1) * gap + 1 for first, count, gap in zip(reach, taps, windows.dilation, strict=True)]
    sizes[-1] = (reach[-1] + line + 1) // 2 * 2  # so that lines of the image are aligned
    padded = _pad_image(x, FEW_CHANNELS, windows.padding, sizes)
    stride, channels = windows.stride, line * lines * FEW_CHANNELS
    if lines > 1:
        padded = _fold_lines(padded, lines)
        sizes[0], taps[0] = sizes[0] // lines, taps[0] // lines
        stride = (stride[0] // lines, *stride[1:])
    image = _make_channels_last(low, padded)
    assert isinstance(image.data, Strided)
    view = TensorValue((x.shape[0], channels, *sizes[:-1], sizes[-1] - line + 1), x.dtype, image.data)
    packed = _pack_taps(low, weight, line, FEW_CHANNELS, lines)
    flat = StridedView(packed.buffer, 0, (*packed.strides[:-1], channels))
    moved = ConvWindows(stride, (0,) * len(taps), (*windows.dilation[:-1], 1), 1)
    return _append(low, view, flat, channels, bias, shape, moved, outs, (*taps[:-1], 1))


def _fold_lines(x: TensorValue, lines: int) -> TensorValue:
    """An image with so many lines as one: the channels of the first, then those of the next."""
    images, channels, high, *rest = x.shape

    def load(ops: BodyBuilder, index: Index) -> int:
        image, channel, line, *others = index
        return x.load(ops, (image, channel % channels, line * lines + channel // channels, *others))

    return TensorValue((images, channels * lines, high // lines, *rest), x.dtype, Deferred(load, x.cost + 2))


def _is_packable(low: Lowering, x: TensorValue, weight: TensorValue, shape: tuple[Size, ...]) -> bool:
    constant = isinstance(weight.data, Strided) and low.buffers[weight.data.buffer].kind == "weight"
    alike = low.out_dtype in FLOATS and x.dtype == weight.dtype == low.out_dtype
    numbers = all(isinstance(size, int) for size in (*weight.shape, x.shape[1]))
    empty = any(size == 0 for size in (*shape, *weight.shape, *x.shape))
    return weight.rank in (3, 4, 5) and constant and alike and numbers and not empty


def _is_pointwise(weight: TensorValue, windows: ConvWindows) -> bool:
    """Whether every output is a sum over the channels of one pixel, the same place."""
    taps = all(size == 1 for size in weight.shape[2:])
    still = all(step == 1 for step in windows.stride) and all(p == 0 for p in windows.padding)
    return taps and still and windows.groups == 1


def _last(rank: int) -> tuple[int, ...]:
    return (0, *range(2, rank), 1)


def _first(rank: int) -> tuple[int, ...]:
    return (0, rank - 1, *range(1, rank - 1))


def _lower_pointwise(
    low: Lowering, x: TensorValue, weight: TensorValue, bias: TensorValue | None, shape: tuple[Size, ...]
) -> TensorValue:
    rank = x.rank
    rows = as_rows(low, tensor_views.permute(_make_channels_last(low, x), _last(rank)))
    flat = tensor_views.drop(weight, tuple(range(2, rank)))
    made = matmul(low, rows, tensor_views.permute(flat, (1, 0)), bias)
    whole = tensor_views.reshape(made, (shape[0], *shape[2:], shape[1]), low.hint)
    return tensor_views.permute(whole, _first(rank))


def _make_channels_last(low: Lowering, x: TensorValue) -> TensorValue:
    """The tensor in memory with channels last, dense."""
    order = _last(x.rank)
    if isinstance(x.data, Deferred):
        return low.realize(x, order=order)
    return tensor_views.permute(low.make_contiguous(tensor_views.permute(x, order)), _first(x.rank))


def _pad_image(x: TensorValue, channels: int, before: Sequence[Size], sizes: Sequence[Size]) -> TensorValue:
    """The tensor with so many channels and of these sizes, its own from `before` on, and zeros around it."""

    def load(ops: BodyBuilder, index: Index) -> int:
        inside = ops.call("lt", ops.index(index[1]), ops.index(x.shape[1]))
        places = [place - first for place, first in zip(index[2:], before, strict=True)]
        for place, size in zip(places, x.shape[2:], strict=True):
            for name, limit in (("ge", 0), ("lt", size)):
                inside = ops.call("and", inside, ops.call(name, ops.index(place), ops.index(limit)))
        return ops.zero_outside(inside, lambda: x.load(ops, (*index[:2], *places)))

    return TensorValue((x.shape[0], channels, *sizes), x.dtype, Deferred(load, x.cost + 3))


def _pack_taps(low: LoopBuilder, weight: TensorValue, line: int, channels: int, lines: int = 1) -> StridedView:
    """[output channel, tap…, channel], with so many taps in a line and so many channels, and so many lines folded into
    one, as a view of (output channel, channel, tap…)."""
    outer, channel, *taps = weight.shape
    outer_step, channel_step, *tap_steps = _strides_of(weight)
    padded = (*map(require_static, (outer, *taps[:-1])), line, channels)
    if lines > 1:
        padded = (padded[0], padded[1] + -padded[1] % lines, *padded[2:])
    layout = _layout(weight, (outer, *taps, channel), (outer_step, *tap_steps, channel_step), padded)
    return _derive(low, weight, replace(layout, folded=lines), _first(weight.rank))


def _pack_channels(low: LoopBuilder, weight: TensorValue) -> StridedView:
    """[tap…, output channel], as a view of (output channel, 1, tap…)."""
    outer, _, *taps = weight.shape
    outer_step, _, *tap_steps = _strides_of(weight)
    shape = (1, *map(require_static, taps), require_static(outer))
    layout = _layout(weight, shape, (0, *tap_steps, outer_step), shape)
    rank = weight.rank
    return _derive(low, weight, layout, (rank - 1, 0, *range(1, rank - 1)))


def _strides_of(weight: TensorValue) -> tuple[Size, ...]:
    assert isinstance(weight.data, Strided)
    return weight.data.strides


def _layout(
    weight: TensorValue, shape: tuple[Size, ...], strides: tuple[Size, ...], padded: tuple[int, ...]
) -> ReorderedLayout:
    assert isinstance(weight.data, Strided)
    offset = require_static(weight.data.offset)
    return ReorderedLayout(offset, tuple(map(require_static, shape)), tuple(map(require_static, strides)), padded)


def _derive(low: LoopBuilder, weight: TensorValue, layout: ReorderedLayout, order: tuple[int, ...]) -> StridedView:
    """The packed weight, its dims in this order."""
    assert isinstance(weight.data, Strided)
    shape = layout.stored_shape()
    strides = contiguous_strides(shape)
    name = low.derive_weight(weight.data.buffer, weight.dtype, shape, layout)
    return StridedView(name, 0, tuple(strides[d] for d in order))


def _strip_margin(x: TensorValue, windows: ConvWindows) -> tuple[TensorValue, ConvWindows]:
    """The image without the zeros around it, which are the convolution's own padding then."""
    margin = x.data.margin if isinstance(x.data, Deferred) else None
    if margin is None or margin[0].shape[:2] != x.shape[:2]:
        return x, windows
    inner, before = margin
    padding = tuple(p + b for p, b in zip(windows.padding, before[2:], strict=True))
    return inner, replace(windows, padding=padding)


def _append(
    low: Lowering,
    x: TensorValue,
    weight: StridedView,
    channels: int,
    bias: TensorValue | None,
    shape: tuple[Size, ...],
    windows: ConvWindows,
    outs: int,
    kernel: tuple[int, ...] | None = None,
) -> TensorValue:
    """The step, its result with channels last. `kernel` are its taps, if not those of the packed weight."""
    dtype, kind = low.out_dtype, wide(low.out_dtype)
    assert isinstance(x.data, Strided)
    physical = (shape[0], *shape[2:], outs)
    buffer = low.buffer("temporary", dtype, physical)
    home = Strided(buffer.name, 0, contiguous_strides(physical))
    loops = tuple(Loop(f"i{d}", size) for d, size in enumerate(physical))
    index = tuple(symbol(loop.variable, below=loop.extent) for loop in loops)
    ops = BodyBuilder()
    value = ops.emit("accumulator", (), kind)
    if bias is not None:
        value = ops.call("add", value, ops.cast(bias.load(ops, (index[-1],)), kind))
    body = ops.finish([ops.cast(value, dtype)])
    epilogue = Map(loops, body, (Store(buffer.name, home.offset_at(index), 0),), low.origin)
    low.steps.append(
        Convolution(
            images=shape[0],
            channels=channels,
            out_channels=outs,
            groups=windows.groups,
            size=x.shape[2:],
            out_size=shape[2:],
            kernel=kernel or _kernel_of(low, weight),
            stride=windows.stride,
            padding=windows.padding,
            dilation=windows.dilation,
            x=StridedView(x.data.buffer, x.data.offset, x.data.strides),
            weight=weight,
            dtype=kind,
            epilogue=epilogue,
            origin=low.origin,
        )
    )
    return tensor_views.permute(TensorValue(physical, dtype, home), _first(len(shape)))


def _kernel_of(low: LoopBuilder, weight: StridedView) -> tuple[int, ...]:
    """The taps of a packed weight: all of its dims but the first and the last."""
    return tuple(map(require_static, low.buffers[weight.buffer].shape[1:-1]))
