"""Images at another size, and at other places."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from ingot.ir.metadata import value_of
from ingot.onnx.exporter import Exporter
from ingot.onnx.registry import OnnxUnsupported, exports
from ingot.onnx.values import OnnxValue, Size, is_known

aten = torch.ops.aten


def _is_uint8(node: fx.Node) -> bool:
    """Whether an image is one of bytes, which passes/decompositions/uint8_interpolate.py takes apart."""
    image = node.args[0]
    return isinstance(image, fx.Node) and value_of(image).dtype is torch.uint8


Interpolation = Callable[[torch.Tensor, list[int], "float | None"], torch.Tensor]


def _resize(
    ex: Exporter, x: OnnxValue, scales: Sequence[float | None] | None, by_torch: Interpolation | None = None, **how: Any
) -> OnnxValue:
    """To the result's size; by factors where the user gave them, since coordinates follow these then.

    `by_torch` interpolates images of one row. Where kernels cannot do what it does, it is queried for the share that
    each place has in each place of the result, and a product does the rest.
    """
    if any(size == 0 for size in x.sizes):
        raise OnnxUnsupported("resampling without elements")
    given = scales is not None and any(scale is not None for scale in scales)
    runs = x.dtype in (torch.float32, torch.bfloat16, torch.float16)
    if given and scales is not None and all(scale is not None for scale in scales) and runs and "antialias" not in how:
        factors = ex.constant(torch.tensor([1.0, 1.0, *(float(s) for s in scales if s is not None)]))
        if _same_sizes(x, ex.shape, scales):
            return ex.op("Resize", x, None, factors, None, **how)
    if not given and runs and "antialias" not in how:
        return ex.op("Resize", x, None, None, ex.sizes.vector(ex.shape), **how)
    if by_torch is None or not is_known(x.sizes[2:]) or not is_known(ex.shape[2:]):
        raise OnnxUnsupported("resampling by factors that do not match the output size, or with dynamic sizes")
    # The last dim first, as torch does it: of bytes each dim's result is rounded.
    for place, (size, out) in reversed(list(enumerate(zip(x.sizes[2:], ex.shape[2:], strict=True)))):
        shares = _shares(by_torch, int(size), int(out), scales[place] if scales is not None else None)
        x = (
            _bytes_along(ex, x, 2 + place, out, shares)
            if x.dtype is torch.uint8
            else multiply_along(ex, x, 2 + place, out, ex.constant(shares.to(x.dtype)))
        )
    return x


def _bytes_along(ex: Exporter, x: OnnxValue, dim: int, out: Size, shares: torch.Tensor) -> OnnxValue:
    """As torch does it for uint8 images: weights are 15-bit integers, and each dim's result is uint8."""
    largest = float(shares.max())
    bits = next(bits for bits in range(22, -1, -1) if int(largest * 2**bits + 0.5) < 2**15)
    whole = torch.where(shares < 0, shares * 2**bits - 0.5, shares * 2**bits + 0.5).trunc()
    wide = torch.float64
    made = multiply_along(ex, ex.cast(x, wide), dim, out, ex.constant(whole))
    rounded = ex.op("Floor", ex.op("Add", ex.op("Mul", made, ex.number(0.5**bits, wide)), ex.number(0.5, wide)))
    kept = ex.op("Clip", rounded, ex.number(0.0, wide), ex.number(255.0, wide))
    return OnnxValue(ex.cast(kept, torch.uint8).value, torch.uint8, made.sizes)


def _shares(by_torch: Interpolation, size: int, out: int, scale: float | None) -> torch.Tensor:
    """[size, out]: what of each place goes into each place of the result."""
    rows = torch.eye(size, dtype=torch.float64).view(size, 1, 1, size)  # columns of one row: torch fails for the turned
    return by_torch(rows, [1, out], scale).reshape(size, out)


def multiply_along(ex: Exporter, x: OnnxValue, dim: int, out: Size, shares: OnnxValue) -> OnnxValue:
    """The product of a dim with [size, out]."""
    order = [*(d for d in range(x.rank) if d != dim), dim]
    made = ex.op("MatMul", ex.transpose(x, order), shares)
    back = [order.index(d) for d in range(x.rank)]
    result = made if dim == x.rank - 1 else ex.op("Transpose", made, perm=back)
    return OnnxValue(result.value, x.dtype, (*x.sizes[:dim], out, *x.sizes[dim + 1 :]))


def _same_sizes(x: OnnxValue, shape: Sequence[Size], scales: Sequence[float | None]) -> bool:
    """Whether ONNX makes of these factors the sizes that torch made, in float32 as it computes."""
    pairs = zip(x.sizes[2:], shape[2:], scales, strict=True)
    return all(not isinstance(i, int) or math.floor(float(torch.tensor(float(s or 1)) * i)) == o for i, o, s in pairs)


_NEAREST: dict[str, Any] = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}


def _scales(rest: Sequence[Any]) -> list[float | None] | None:
    """The factors among an operator's last arguments: one list, or one number for each dim."""
    if not rest or rest[0] is None:
        return None
    return list(rest[0]) if isinstance(rest[0], list | tuple) else list(rest)


@exports(
    *(aten.upsample_nearest1d.default, aten.upsample_nearest2d.default, aten.upsample_nearest3d.default),
    *(aten.upsample_nearest1d.vec, aten.upsample_nearest2d.vec, aten.upsample_nearest3d.vec),
)
def upsample_nearest(ex: Exporter, x: OnnxValue, sizes: Any, *scales: Any) -> OnnxValue:
    return _resize_by_index(ex, x, _scales(scales), half=False)


@exports(
    *(aten._upsample_nearest_exact1d.default, aten._upsample_nearest_exact2d.default),
    *(aten._upsample_nearest_exact3d.default, aten._upsample_nearest_exact1d.vec),
    *(aten._upsample_nearest_exact2d.vec, aten._upsample_nearest_exact3d.vec),
)
def upsample_nearest_exact(ex: Exporter, x: OnnxValue, sizes: Any, *scales: Any) -> OnnxValue:
    return _resize_by_index(ex, x, _scales(scales), half=True)


def _resize_by_index(ex: Exporter, x: OnnxValue, scales: Sequence[float | None] | None, *, half: bool) -> OnnxValue:
    """One Resize where every factor is whole, else rows and columns by their numbers, rounded as torch rounds."""
    ins, outs = x.sizes[2:], ex.shape[2:]
    whole = scales is None or all(s is None or float(s).is_integer() for s in scales)
    if not half and whole and x.dtype is torch.float32:
        multiples = [
            (isinstance(i, int) and isinstance(o, int) and i and o % i == 0) or (scales is not None and scales[n])
            for n, (i, o) in enumerate(zip(ins, outs, strict=True))
        ]
        if all(multiples):
            return _resize(ex, x, scales, **_NEAREST)
    for place, (i, o) in enumerate(zip(ins, outs, strict=True)):
        scale = scales[place] if scales is not None else None
        # In float32, the type that torch computes the place in.
        if scale:
            factor = ex.number(float(torch.tensor(1.0 / float(scale))), torch.float32)
        else:
            factor = ex.op(
                "Div", ex.cast(ex.sizes.scalar(i), torch.float32), ex.cast(ex.sizes.scalar(o), torch.float32)
            )
        at = ex.cast(ex.range(o), torch.float32)
        at = ex.op("Add", at, ex.number(0.5, torch.float32)) if half else at
        at = ex.cast(ex.op("Floor", ex.op("Mul", at, factor)), torch.int64)
        at = ex.op("Min", at, ex.sizes.scalar(i - 1))
        x = ex.op("Gather", x, at, axis=2 + place)
    return x


@exports(
    *(aten.upsample_linear1d.default, aten.upsample_bilinear2d.default, aten.upsample_trilinear3d.default),
    *(aten.upsample_linear1d.vec, aten.upsample_bilinear2d.vec, aten.upsample_trilinear3d.vec),
    takes=lambda node: not _is_uint8(node),
)
def upsample_linear(ex: Exporter, x: OnnxValue, sizes: Any, align_corners: bool, *scales: Any) -> OnnxValue:
    return _resize(
        ex,
        x,
        _scales(scales),
        lambda rows, out, scale: aten.upsample_bilinear2d.default(rows, out, align_corners, None, scale),
        mode="linear",
        coordinate_transformation_mode=_corners(align_corners),
    )


def _corners(align: bool) -> str:
    return "align_corners" if align else "half_pixel"


@exports(aten.upsample_bicubic2d.default, aten.upsample_bicubic2d.vec, takes=lambda node: not _is_uint8(node))
def upsample_bicubic(ex: Exporter, x: OnnxValue, sizes: Any, align_corners: bool, *scales: Any) -> OnnxValue:
    return _resize(
        ex,
        x,
        _scales(scales),
        lambda rows, out, scale: aten.upsample_bicubic2d.default(rows, out, align_corners, None, scale),
        mode="cubic",
        cubic_coeff_a=-0.75,
        coordinate_transformation_mode=_corners(align_corners),
    )


Curve = Callable[[Exporter, OnnxValue], OnnxValue]


def _triangle(ex: Exporter, away: OnnxValue) -> OnnxValue:
    """1 - |x|, and nothing past 1."""
    return ex.op("Max", ex.op("Sub", ex.number(1.0, away.dtype), ex.op("Abs", away)), ex.number(0.0, away.dtype))


def _cubic(ex: Exporter, away: OnnxValue) -> OnnxValue:
    """Keys' two cubics with a = -1/2: 1 at 0, nothing past 2."""
    x = ex.op("Abs", away)

    def polynomial(*factors: float) -> OnnxValue:
        made = ex.number(factors[0], x.dtype)
        for factor in factors[1:]:
            made = ex.op("Add", ex.op("Mul", made, x), ex.number(factor, x.dtype))
        return made

    near, far = polynomial(1.5, -2.5, 0.0, 1.0), polynomial(-0.5, 2.5, -4.0, 2.0)
    far = ex.op("Where", ex.op("Less", x, ex.number(2.0, x.dtype)), far, ex.number(0.0, x.dtype))
    return ex.op("Where", ex.op("Less", x, ex.number(1.0, x.dtype)), near, far)


def _filter(ex: Exporter, curve: Curve, size: Size, out: Size, scale: float | None, align_corners: bool) -> OnnxValue:
    """[size, out] in float64, of data-dependent sizes: a curve as wide as one place of the result, if that is
    more than one of the image, around the middle of each; shares sum up to 1."""
    wide, one = torch.float64, ex.number(1.0, torch.float64)
    before, after = (ex.cast(ex.sizes.scalar(count), wide) for count in (size, out))
    if align_corners:
        inner = ex.op("Div", ex.op("Sub", before, one), ex.op("Max", ex.op("Sub", after, one), one))
        step = ex.op("Where", ex.op("Greater", after, one), inner, ex.number(0.0, wide))
    else:
        step = ex.op("Div", before, after) if scale is None else ex.number(1.0 / scale, wide)
    half = ex.number(0.5, wide)
    middles = ex.op("Mul", ex.op("Add", ex.cast(ex.range(out), wide), half), step)
    places = ex.unsqueeze(ex.op("Add", ex.cast(ex.range(size), wide), half), 1)
    shares = curve(ex, ex.op("Div", ex.op("Sub", places, middles), ex.op("Max", step, one)))
    return ex.op("Div", shares, ex.op("ReduceSum", shares, ex.ints([0])))


def _antialias(op: Any, curve: Curve) -> Any:
    """By shares: kernels have another idea of how wide a filter is."""

    def rule(ex: Exporter, x: OnnxValue, sizes: Any, align_corners: bool, *scales: Any) -> OnnxValue:
        factors = _scales(scales)
        if is_known(x.sizes[2:]) and is_known(ex.shape[2:]):
            return _resize(
                ex, x, factors, lambda rows, out, scale: op(rows, out, align_corners, None, scale), antialias=1
            )
        if x.dtype is torch.uint8:
            raise OnnxUnsupported("resampling of uint8 images with dynamic sizes")
        for place, (size, out) in enumerate(zip(x.sizes[2:], ex.shape[2:], strict=True)):
            shares = _filter(ex, curve, size, out, factors[place] if factors else None, align_corners)
            x = multiply_along(ex, x, 2 + place, out, ex.cast(shares, x.dtype))
        return x

    return rule


exports(aten._upsample_bilinear2d_aa.default, aten._upsample_bilinear2d_aa.vec)(
    _antialias(aten._upsample_bilinear2d_aa.default, _triangle)
)
exports(aten._upsample_bicubic2d_aa.default, aten._upsample_bicubic2d_aa.vec)(
    _antialias(aten._upsample_bicubic2d_aa.default, _cubic)
)


_MODES = (("bilinear", "linear"), ("nearest", "nearest"), ("bicubic", "cubic"))
_EDGES = ("zeros", "border", "reflection")


@exports(aten.grid_sampler.default, aten.grid_sampler_2d.default, aten.grid_sampler_3d.default)
def grid_sampler(ex: Exporter, x: OnnxValue, grid: OnnxValue, mode: int, edge: int, align_corners: bool) -> OnnxValue:
    if x.rank > 4 and ex.opset < 20:
        raise OnnxUnsupported("a grid over volumes, which ONNX has from opset 20 on")
    name = _MODES[mode][int(ex.opset >= 20)]
    return ex.op(
        "GridSample", x, ex.cast(grid, x.dtype), mode=name, padding_mode=_EDGES[edge], align_corners=int(align_corners)
    )


@exports(aten.col2im.default)
def col2im(ex: Exporter, x: OnnxValue, sizes: Any, kernel: Any, dilation: Any, padding: Any, stride: Any) -> OnnxValue:
    single = x.rank == 2
    x = OnnxValue(ex.unsqueeze(x, 0).value, x.dtype) if single else x
    around: dict[str, Any] = {"dilations": list(dilation), "pads": [*padding, *padding], "strides": list(stride)}
    made = ex.op("Col2Im", x, ex.sizes.vector(sizes), ex.ints(kernel), **around)
    return ex.squeeze(made, 0) if single else made


@exports(aten.pixel_shuffle.default, takes=lambda node: value_of(node.args[0]).dim() == 4)
def pixel_shuffle(ex: Exporter, x: OnnxValue, factor: int) -> OnnxValue:
    return ex.op("DepthToSpace", x, blocksize=factor, mode="CRD")
