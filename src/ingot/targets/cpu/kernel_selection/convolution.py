"""Convolutions with weights: channels last, by windows that the product's tiles walk over, by channels, by Winograd."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ingot.lowering import tensor_views
from ingot.lowering.dtypes import wide
from ingot.lowering.index_expr import Size, product, require_static, symbol
from ingot.lowering.loop_body import BodyBuilder
from ingot.lowering.loop_ir import ExternKernel, Loop, Map, Store
from ingot.lowering.lower import Lowering
from ingot.lowering.rules.linalg.matmul import as_rows, matmul
from ingot.lowering.rules.nn.convolution import ConvWindows, sum_over_taps
from ingot.lowering.tensor_views import (
    Deferred,
    Index,
    Quantized,
    Strided,
    TensorValue,
    contiguous_strides,
    dequantize_view,
    find_quantized,
)
from ingot.targets.cpu.kernel_selection.choices import may_use
from ingot.targets.cpu.kernel_selection.int8_gemm import EXACT_TERMS, Factored, is_weight, match_int8_product
from ingot.targets.cpu.kernel_selection.operand_conversion import convert_to_uint8, is_narrow, narrow
from ingot.targets.cpu.kernel_selection.packed_weights import pack_panels, reorder
from ingot.targets.cpu.schedule.statements import K_INTERLEAVE, ConvAlgorithm, OperandFormat, TiledConvolution
from ingot.targets.cpu.schedule.tiles import LANES, panel_width


def lower_convolution(
    low: Lowering, x: TensorValue, weight: TensorValue, bias: TensorValue | None, shape: tuple[Size, ...],
    windows: ConvWindows,
    transposed: bool
) -> TensorValue:  # fmt: skip
    """By the algorithm that is the fastest for it; as loops where there is none."""
    coded = find_quantized(weight)
    if coded is not None and is_weight(low, coded, 0) and _match_int8_convolution(low, x, weight) is None:
        return _lower_scaled(low, x, coded, bias, shape, windows, transposed)
    if _uses_windows(low, x, weight, shape, transposed):
        return _channels_last(low, x, weight, bias, shape, windows)
    return sum_over_taps(low, low.materialize_if_expensive(x), weight, bias, shape, windows, transposed)


def _lower_scaled(
    low: Lowering, x: TensorValue, weight: Quantized, bias: TensorValue | None, shape: tuple[Size, ...],
    windows: ConvWindows,
    transposed: bool
) -> TensorValue:  # fmt: skip
    """Floats with a weight of integers: these are numbers once they are packed, and their scales wait for the sums."""
    numbers = TensorValue(weight.integers.shape, x.dtype, weight.integers.data)
    if transposed or not _uses_windows(low, x, numbers, shape, transposed):
        return sum_over_taps(
            low, low.materialize_if_expensive(x), dequantize_view(weight), bias, shape, windows, transposed
        )
    made = _channels_last(low, x, numbers, None, shape, windows)

    def load(ops: BodyBuilder, index: Index) -> int:
        scale = weight.parameter(ops, weight.scale, (index[1],), wide(made.dtype))
        value = ops.call("mul", made.load(ops, index), scale)
        return (
            value if bias is None else ops.call("add", value, ops.cast(bias.load(ops, (index[1],)), wide(made.dtype)))
        )

    return TensorValue(shape, made.dtype, Deferred(load, 3, low.order_of(made)))


def _uses_windows(
    low: Lowering, x: TensorValue, weight: TensorValue, shape: tuple[Size, ...], transposed: bool
) -> bool:
    """Whether this is a convolution in one or two dims with a weight that can be packed ahead of time."""
    whole = _match_int8_convolution(low, x, weight)
    if whole is not None:
        weight = whole.weight
        x = whole.rows
    constant = isinstance(weight.data, Strided) and low.buffers[weight.data.buffer].kind == "weight"
    alike = x.dtype == weight.dtype or whole is not None
    floating = low.out_dtype in ("float16", "bfloat16", "float32", "float64") and alike
    numbers = all(isinstance(size, int) for size in (*weight.shape, x.shape[1]))
    empty = any(size == 0 for size in (*shape, *weight.shape, *x.shape))
    return weight.rank in (3, 4) and constant and floating and numbers and not transposed and not empty


def _match_int8_convolution(low: Lowering, x: TensorValue, weight: TensorValue) -> Factored | None:
    """The convolution as one of integers. Its padding is a zero point, which must be known."""
    whole = match_int8_product(low, x, weight, 0)
    if whole is None or not isinstance(whole.zero, int):
        return None
    fits = (
        weight.shape[1] != 1 or require_static(product(weight.shape[2:])) <= EXACT_TERMS
    )  # sums of one channel are float32
    return whole if fits else None


NHWC = (0, 2, 3, 1)
# Where the Winograd algorithm pays off: channels, least and most, and tiles of 2×2 outputs.
TILED_CHANNELS = (32, 256)
TILES = 40


def _channels_last(
    low: Lowering,
    x: TensorValue,
    weight: TensorValue,
    bias: TensorValue | None,
    shape: tuple[Size, ...],
    windows: ConvWindows,
) -> TensorValue:
    if weight.rank == 3:
        x, weight = tensor_views.insert(x, 2), tensor_views.insert(weight, 2)
        flat = _channels_last(low, x, weight, bias, (*shape[:2], 1, shape[2]), windows.prepend_dim())
        return tensor_views.drop(flat, (2,))
    channels, outs = require_static(x.shape[1]), require_static(weight.shape[0])
    kernel = weight.shape[2:]
    if _fills_vectors(low, weight, windows):
        return _lower_convolution(low, x, weight, bias, shape, windows)
    if windows.groups == channels and channels > 1:
        return _few_a_channel(low, x, weight, bias, shape, windows)
    if kernel == (1, 1) and windows.groups == 1 and windows.stride == (1, 1) and windows.padding == (0, 0):
        image = _nhwc_integers(low, x) if _match_int8_convolution(low, x, weight) else _nhwc(low, x)
        rows = as_rows(low, tensor_views.permute(narrow(low, image) if is_narrow(low, weight) else image, NHWC))
        made = matmul(low, rows, tensor_views.permute(tensor_views.drop(weight, (2, 3)), (1, 0)), bias)
        return tensor_views.permute(tensor_views.reshape(made, (shape[0], *shape[2:], outs), low.hint), (0, 3, 1, 2))
    return _lower_convolution(low, x, weight, bias, shape, windows)


def _nhwc(low: Lowering, x: TensorValue) -> TensorValue:
    """The tensor in memory with channels last, dense."""
    swapped = tensor_views.permute(x, NHWC)
    if isinstance(x.data, Deferred):
        low.realize(x, order=NHWC)
        return x
    return tensor_views.permute(low.make_contiguous(swapped), (0, 3, 1, 2))


def _nhwc_integers(low: Lowering, x: TensorValue) -> TensorValue:
    """The tensor as before, its integers in memory with channels last."""
    found = find_quantized(x)
    assert found is not None
    return dequantize_view(replace(found, integers=_nhwc(low, found.integers)))


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


def _lower_convolution(
    low: Lowering,
    x: TensorValue,
    weight: TensorValue,
    bias: TensorValue | None,
    shape: tuple[Size, ...],
    windows: ConvWindows,
) -> TensorValue:
    dtype, kind = low.out_dtype, wide(low.out_dtype)
    x, windows = _strip_margin(x, windows)
    whole = _match_int8_convolution(low, x, weight)
    way = _way(low, weight if whole is None else whole.weight, shape, windows)
    factors = _factors(low, weight) if whole is None else "int8"
    if way != "windows" and factors == "bfloat16":
        factors = "same"
    if whole is not None:
        operands = _OPERANDS[way](low, whole.rows, whole.weight, shape, windows, _own_zero(whole))
    else:
        operands = _OPERANDS[way](low, x if factors != "same" else widen(low, x, kind), weight, shape, windows, 0)
    outs = require_static(weight.shape[0])
    physical = (shape[0], *shape[2:], outs)
    buffer = low.buffer("temporary", dtype, physical)
    home = Strided(buffer.name, 0, contiguous_strides(physical))
    loops = tuple(Loop(f"i{d}", size) for d, size in enumerate(physical))
    index = tuple(symbol(loop.variable, below=loop.extent) for loop in loops)
    ops = BodyBuilder()
    sums = "int32" if whole is not None and way == "windows" else kind
    value = ops.emit("accumulator", (), sums)
    if whole is not None:
        value = whole.finish_sums(ops, value, _sums(low, whole) if sums == "int32" else None, index[3])
    if bias is not None:
        value = ops.call("add", value, ops.cast(bias.load(ops, (index[3],)), kind))
    epilogue = Map(
        loops, ops.finish([ops.cast(value, dtype)]), (Store(buffer.name, home.offset_at(index), 0),), low.origin
    )
    low.steps.append(
        TiledConvolution(
            images=shape[0],
            size=(operands.size[0], operands.size[1]),
            pixel=require_static(x.shape[1]),
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
            algorithm=way,
            factors=factors,
            outside=require_static(whole.zero) if whole is not None and isinstance(whole.zero, int) else 0,
        )
    )
    return tensor_views.permute(TensorValue(physical, dtype, home), (0, 3, 1, 2))


def _factors(low: Lowering, weight: TensorValue) -> OperandFormat:
    return "int8" if weight.dtype == "int8" else "bfloat16" if is_narrow(low, weight) else "same"


def _own_zero(whole: Factored) -> int:
    """What stands for 0 among the integers as they are."""
    assert isinstance(whole.zero, int)
    return whole.zero - 128 if whole.rows.dtype == "int8" else whole.zero


def _sums(low: Lowering, whole: Factored) -> TensorValue | None:
    assert isinstance(whole.weight.data, Strided)
    return whole.sums(low, whole.weight.data.offset, whole.weight.shape, whole.weight.data.strides)


def _way(low: Lowering, weight: TensorValue, shape: tuple[Size, ...], windows: ConvWindows) -> ConvAlgorithm:
    if _fills_vectors(low, weight, windows):
        return "depthwise"
    return "winograd" if _pays_as_tiles(low, shape, weight, windows) else "windows"


def _fills_vectors(low: Lowering, weight: TensorValue, windows: ConvWindows) -> bool:
    """Whether every channel is a group of its own and they fill known vectors, which none reads beyond."""
    outs, channels = require_static(weight.shape[0]), require_static(weight.shape[1]) * windows.groups
    return may_use(low, "depthwise") and windows.groups == outs == channels and channels % LANES == 0


def _pays_as_tiles(low: Lowering, shape: tuple[Size, ...], weight: TensorValue, windows: ConvWindows) -> bool:
    """Whether the Winograd algorithm is faster: enough tiles to use each of the 16/9 as many weights often enough, and
    enough channels to make up for the sums before and after."""
    assert isinstance(weight.data, Strided)
    plain = weight.shape[2:] == (3, 3) and windows.stride == windows.dilation == (1, 1) and windows.groups == 1
    dense = weight.data.offset == 0 and weight.data.strides == contiguous_strides(weight.shape)
    outs, channels = require_static(weight.shape[0]), require_static(weight.shape[1])
    tiles = low.hint(product([shape[0], *_tiles(shape)]))
    most = max(channels, outs) <= TILED_CHANNELS[1] and channels % LANES == outs % LANES == 0
    # In bfloat16 its sums would round before they are multiplied, by 2⁻⁸ and not by 2⁻²⁴.
    single = wide(low.out_dtype) == "float32" and _factors(low, weight) == "same" and may_use(low, "winograd")
    return single and plain and dense and most and min(channels, outs) >= TILED_CHANNELS[0] and tiles >= TILES


def _tiles(shape: tuple[Size, ...]) -> tuple[Size, Size]:
    """Lines and columns of tiles of 2×2 outputs."""
    return (shape[2] + 1) // 2, (shape[3] + 1) // 2


def _gather_windows(
    low: Lowering, x: TensorValue, weight: TensorValue, shape: tuple[Size, ...], windows: ConvWindows, outside: int
) -> Operands:
    assert isinstance(weight.data, Strided)
    outs, inner, high, across = map(require_static, weight.shape)
    kernel, channels, padding, run = (high, across), inner, windows.padding, 1
    factors = _factors(low, weight)
    if windows.groups == 1 and inner < LANES and windows.dilation[1] == 1 and across > 1:
        # Few channels: a known line of taps lies side by side in memory once the image has its margin.
        ends = [
            (size - 1) * step + (taps - 1) * gap + 1
            for size, step, taps, gap in zip(shape[2:], windows.stride, kernel, windows.dilation, strict=True)
        ]
        # The weights of what is read beyond the last tap, so that it is whole fours, are zeros: it must only be there.
        beyond = -across * inner % K_INTERLEAVE[factors] if factors == "int8" else 0
        x = pad(x, padding, (ends[0], ends[1] + -(-beyond // inner)), outside)
        kernel, channels, padding, run = (high, 1), across * inner + beyond, (0, 0), 2
    image = _image(low, x, factors)
    outer_step, inner_step, tap_y, tap_x = weight.data.strides
    each = outs // windows.groups
    packed = pack_panels(
        low, weight.data.buffer, wide(low.out_dtype), weight.data.offset, (high, across, inner),
        (tap_y, tap_x, inner_step), each, outer_step, groups=windows.groups, factors=factors, run=run
    )  # fmt: skip
    return Operands(image, packed, x.shape[2:], kernel, channels, padding, panel_width(each))


def _plan_depthwise(
    low: Lowering, x: TensorValue, weight: TensorValue, shape: tuple[Size, ...], windows: ConvWindows, outside: int
) -> Operands:
    assert isinstance(weight.data, Strided)
    image = _image(low, x, "int8" if weight.dtype == "int8" else "same")
    outs, inner, high, across = map(require_static, weight.shape)
    outer_step, _, tap_y, tap_x = weight.data.strides
    order = reorder(
        low,
        weight.data.buffer,
        wide(low.out_dtype),
        weight.data.offset,
        (high, across, outs),
        (tap_y, tap_x, outer_step),
    ).data
    assert isinstance(order, Strided)
    return Operands(image, order.buffer, x.shape[2:], (high, across), inner, windows.padding, LANES)


def _plan_winograd(
    low: Lowering, x: TensorValue, weight: TensorValue, shape: tuple[Size, ...], windows: ConvWindows, outside: int
) -> Operands:
    """The image as 16 matrices of tiles by channels; see targets/cpu/codegen/c/winograd.h."""
    assert isinstance(weight.data, Strided)
    image = _image(low, x)
    outs, inner, high, across = map(require_static, weight.shape)
    images, channels, *size = x.shape
    down, wide_ = _tiles(shape)
    made = low.buffer("temporary", x.dtype, (16, images * down * wide_, channels))
    sizes = (images, wide_ * channels, *size, channels, down, wide_, *windows.padding)
    low.steps.append(ExternKernel("winograd", (image,), (made.name,), sizes, origin=low.origin))
    packed = pack_panels(
        low, weight.data.buffer, wide(low.out_dtype), 0, (inner,), (outs,), outs, 1, 16, inner * outs, winograd=True
    )
    return Operands(made.name, packed, x.shape[2:], (high, across), inner, windows.padding, panel_width(outs))


def _image(low: Lowering, x: TensorValue, factors: OperandFormat = "same") -> str:
    """The buffer of an image that is put into memory with channels last, as what its product reads."""
    image = _nhwc(low, x)
    data = _STORED[factors](low, image).data
    assert isinstance(data, Strided)
    return data.buffer


_STORED: dict[OperandFormat, Callable[[Lowering, TensorValue], TensorValue]] = {
    "same": lambda low, x: x,
    "bfloat16": narrow,
    "int8": convert_to_uint8,
}
_OPERANDS: dict[
    ConvAlgorithm, Callable[[Lowering, TensorValue, TensorValue, tuple[Size, ...], ConvWindows, int], Operands]
] = {
    "windows": _gather_windows,
    "depthwise": _plan_depthwise,
    "winograd": _plan_winograd,
}


def widen(low: Lowering, x: TensorValue, kind: str) -> TensorValue:
    if x.dtype == kind:
        return x
    return TensorValue(x.shape, kind, Deferred(lambda ops, index: x.load(ops, index), x.cost, low.order_of(x)))


def _strip_margin(x: TensorValue, windows: ConvWindows) -> tuple[TensorValue, ConvWindows]:
    """The image without the zeros around it, which are the convolution's own padding then."""
    margin = x.data.margin if isinstance(x.data, Deferred) else None
    if margin is None or margin[0].shape[:2] != x.shape[:2]:
        return x, windows
    inner, before = margin
    padding = tuple(p + b for p, b in zip(windows.padding, before[2:], strict=True))
    return inner, replace(windows, padding=padding)


def pad(x: TensorValue, before: Sequence[Size], sizes: Sequence[Size], outside: int = 0) -> TensorValue:
    """An image of these sizes with zeros, or what stands for 0, where the given one, `before` places from the first,
    has none."""
    if all(p == 0 for p in before) and tuple(sizes) == x.shape[2:]:
        return x
    shape = (*x.shape[:2], *sizes)

    def load(ops: BodyBuilder, index: Index) -> int:
        inside: int | None = None
        places = [i - p for i, p in zip(index[2:], before, strict=True)]
        for place, size in zip(places, x.shape[2:], strict=True):
            for name, limit in (("ge", 0), ("lt", size)):
                test = ops.call(name, ops.index(place), ops.index(limit))
                inside = test if inside is None else ops.call("and", inside, test)
        assert inside is not None
        with ops.mask(inside):
            value = x.load(ops, (*index[:2], *places))
        return ops.where(inside, value, ops.const(outside, x.dtype))

    return TensorValue(shape, x.dtype, Deferred(load, x.cost + 3))


def _few_a_channel(
    low: Lowering,
    x: TensorValue,
    weight: TensorValue,
    bias: TensorValue | None,
    shape: tuple[Size, ...],
    windows: ConvWindows,
) -> TensorValue:
    """One or a few outputs a channel, any number of channels: a sum over taps, along the channels."""
    dtype, kind = low.out_dtype, wide(low.out_dtype)
    whole = _match_int8_convolution(low, x, weight)
    if whole is not None:  # integers in float32, which holds their sums
        x, weight = _less_zero(whole), whole.weight
    assert isinstance(weight.data, Strided)
    outs, taps = shape[1], weight.shape[2:]
    times = outs // x.shape[1]
    outer_step, _, tap_y, tap_x = weight.data.strides
    packed = reorder(low, weight.data.buffer, kind, weight.data.offset, (*taps, outs), (tap_y, tap_x, outer_step))
    if isinstance(x.data, Strided) or x.cost > 4 or low.order_of(x) != NHWC:
        x = _nhwc(low, x)

    def load(ops: BodyBuilder, index: Index) -> int:
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

    terms = TensorValue((*shape, *taps), kind, Deferred(load, 6, (0, 2, 3, 1, 4, 5)))
    (made,) = low.reduce(terms, (4, 5), ("sum",), lambda ops, v, index: (v,), (kind,))

    def finish(ops: BodyBuilder, index: Index) -> int:
        value = made.load(ops, index)
        if whole is not None:
            value = whole.finish_sums(ops, value, None, index[1])
        return value if bias is None else ops.call("add", value, ops.cast(bias.load(ops, (index[1],)), kind))

    return TensorValue(shape, dtype, Deferred(finish, 2, NHWC))


def _less_zero(whole: Factored) -> TensorValue:
    """The integers less what stands for 0 among them, in float32."""
    rows, zero = whole.rows, _own_zero(whole)

    def load(ops: BodyBuilder, index: Index) -> int:
        return ops.call("sub", ops.cast(rows.load(ops, index), "float32"), ops.const(zero, "float32"))

    return TensorValue(rows.shape, "float32", Deferred(load, rows.cost + 1))
