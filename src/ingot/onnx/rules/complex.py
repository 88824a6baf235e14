"""Complex numbers, of which ONNX has none: pairs of real numbers along one more dim, the last.

An OnnxValue of a complex dtype has the shape that torch says; its value in the graph has that shape and 2. Only the
rules of this file are given one: the pass decompose_complex leaves complex numbers where ONNX has an operator on such
pairs, its DFT.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ingot.onnx.exporter import Exporter
from ingot.onnx.registry import OnnxUnsupported, exports
from ingot.onnx.values import OnnxValue, Size, axis

aten = torch.ops.aten


def pairs(x: OnnxValue) -> OnnxValue:
    """The real tensor that a complex one is in the graph."""
    return OnnxValue(x.value, x.dtype.to_real(), (*x.sizes, 2))


def number(x: OnnxValue) -> OnnxValue:
    """The complex tensor that a real one with a last dim of 2 stands for."""
    return OnnxValue(x.value, x.dtype.to_complex(), x.sizes[:-1])


@exports(aten.view_as_complex.default, moves_data=True, pairs=True)
def view_as_complex(ex: Exporter, x: OnnxValue) -> OnnxValue:
    return number(x)


@exports(aten.view_as_real.default, moves_data=True, pairs=True)
def view_as_real(ex: Exporter, x: OnnxValue) -> OnnxValue:
    return pairs(x)


# ---------------------------------------------------------------------- transforms


def _transform(ex: Exporter, x: OnnxValue, dim: int, *, inverse: bool = False, onesided: bool = False) -> OnnxValue:
    """Along one dim of a tensor whose last dim is 1 or 2, not scaled: ONNX divides an inverse by the length."""
    if ex.opset >= 20:
        along = ex.number(dim, torch.int64)
        made = ex.op("DFT", x, None, along, inverse=int(inverse), onesided=int(onesided))
    else:
        made = ex.op("DFT", x, axis=dim, inverse=int(inverse), onesided=int(onesided))
    if inverse:
        made = ex.op("Mul", made, ex.cast(ex.sizes.scalar(x.sizes[dim]), made.dtype))
    sizes = list(x.sizes)
    sizes[-1] = 2
    if onesided:
        sizes[dim] = sizes[dim] // 2 + 1
    return OnnxValue(made.value, made.dtype, tuple(sizes))


def _wide(ex: Exporter, x: OnnxValue) -> OnnxValue:
    """In float64: kernels for lengths that are not powers of two lose digits in float32."""
    return OnnxValue(ex.cast(x, torch.float64).value, torch.float64, x.shape)


def _result(ex: Exporter, x: OnnxValue) -> OnnxValue:
    """A transform as the complex numbers that the node returns."""
    return number(OnnxValue(ex.cast(x, ex.dtype.to_real()).value, ex.dtype.to_real(), x.shape))


def _scale(ex: Exporter, x: OnnxValue, lengths: Sequence[Size], normalization: int) -> OnnxValue:
    """Over the root of the number of elements, or over that number, as torch counts: 0 none, 1 root, 2 number."""
    if normalization == 0:
        return x
    total = ex.number(1, torch.int64)
    for length in lengths:
        total = ex.op("Mul", total, ex.sizes.scalar(length))
    divisor = ex.cast(total, x.dtype)
    made = ex.op("Div", x, ex.op("Sqrt", divisor) if normalization == 1 else divisor)
    return OnnxValue(made.value, x.dtype, x.shape)


@exports(aten._fft_c2c.default, moves_data=True, pairs=True)
def fft_c2c(ex: Exporter, x: OnnxValue, dims: Sequence[int], normalization: int, forward: bool) -> OnnxValue:
    made = _wide(ex, pairs(x))
    for dim in dims:
        made = _transform(ex, made, axis(dim, x.rank), inverse=not forward)
    return _result(ex, _scale(ex, made, [x.sizes[d] for d in dims], normalization))


@exports(aten._fft_r2c.default, moves_data=True, pairs=True)
def fft_r2c(ex: Exporter, x: OnnxValue, dims: Sequence[int], normalization: int, onesided: bool) -> OnnxValue:
    made = ex.unsqueeze(x, x.rank)
    made = _wide(ex, OnnxValue(made.value, x.dtype, (*x.sizes, 1)))
    *others, last = dims
    made = _transform(ex, made, axis(last, x.rank), onesided=onesided)
    for dim in others:
        made = _transform(ex, made, axis(dim, x.rank))
    return _result(ex, _scale(ex, made, [x.sizes[d] for d in dims], normalization))


@exports(aten._fft_c2r.default, moves_data=True, pairs=True)
def fft_c2r(ex: Exporter, x: OnnxValue, dims: Sequence[int], normalization: int, length: Size) -> OnnxValue:
    """The half that is not there is the mirror of the half that is."""
    made = _wide(ex, pairs(x))
    *others, last = dims
    for dim in others:
        made = _transform(ex, made, axis(dim, x.rank), inverse=True)
    at = axis(last, x.rank)
    if not isinstance(length, int):
        raise OnnxUnsupported("an inverse transform to a dynamic size")
    half = OnnxValue(ex.slice(made, at, 0, length // 2 + 1).value, made.dtype)
    mirror = ex.slice(made, at, 1, length - length // 2)
    turned = ex.op("Slice", mirror, ex.ints([-1]), ex.ints([-(2**63)]), ex.ints([at]), ex.ints([-1]))
    signs = ex.constant(torch.tensor([1.0, -1.0], dtype=made.dtype))
    whole = ex.op("Concat", half, ex.op("Mul", turned, signs), axis=at)
    sizes = (*made.sizes[:at], length, *made.sizes[at + 1 :])
    back = _transform(ex, OnnxValue(whole.value, made.dtype, sizes), at, inverse=True)
    back = _scale(ex, back, [length if d == last else x.sizes[d] for d in dims], normalization)
    return ex.op("Gather", back, ex.number(0, torch.int64), axis=x.rank)
