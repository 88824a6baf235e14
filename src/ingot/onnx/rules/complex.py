"""Complex numbers, of which ONNX has none: pairs of real numbers along one more dim, the last.

An OnnxValue of a complex dtype has the shape that torch says; its value in the graph has that shape and 2. Only the
rules of this file are given one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ingot.analysis.complex_arithmetic import multiply_parts
from ingot.onnx.exporter import Exporter
from ingot.onnx.registry import OnnxUnsupported, exports_pairs
from ingot.onnx.values import OnnxValue, Size, axis

aten = torch.ops.aten

_REAL = {torch.complex64: torch.float32, torch.complex128: torch.float64}
_COMPLEX = {real: dtype for dtype, real in _REAL.items()}


def pairs(x: OnnxValue) -> OnnxValue:
    """The real tensor that a complex one is in the graph."""
    return OnnxValue(x.value, _REAL[x.dtype], (*x.sizes, 2))


def number(x: OnnxValue, shape: Sequence[Size] | None = None) -> OnnxValue:
    """The complex tensor that a real one with a last dim of 2 stands for."""
    known = tuple(shape) if shape is not None else x.shape[:-1] if x.shape is not None else None
    return OnnxValue(x.value, _COMPLEX[x.dtype], known)


def parts(ex: Exporter, x: Any, dtype: torch.dtype) -> tuple[OnnxValue, OnnxValue | None]:
    """The real part and the imaginary one of an operand, the second None where it is real."""
    real = _REAL[dtype]
    if isinstance(x, complex):
        return ex.number(x.real, real), ex.number(x.imag, real)
    if not isinstance(x, OnnxValue) or not x.dtype.is_complex:
        return ex.operand(x, real), None
    made = [ex.op("Gather", pairs(x), ex.number(place, torch.int64), axis=x.rank) for place in (0, 1)]
    return ex.cast(made[0], real), ex.cast(made[1], real)


def make_pair(ex: Exporter, real: OnnxValue, imaginary: OnnxValue) -> OnnxValue:
    """Two real tensors of the node's shape as a complex one."""
    wide = [ex.expand(OnnxValue(part.value, part.dtype), ex.shape) for part in (real, imaginary)]
    rank = len(ex.shape)
    return number(ex.op("Concat", *(ex.unsqueeze(part, rank) for part in wide), axis=rank), ex.shape)


# ---------------------------------------------------------------------- to and from


@exports_pairs(aten.view_as_complex.default)
def view_as_complex(ex: Exporter, x: OnnxValue) -> OnnxValue:
    return number(x)


@exports_pairs(aten.view_as_real.default)
def view_as_real(ex: Exporter, x: OnnxValue) -> OnnxValue:
    return pairs(x)


@exports_pairs(aten.complex.default)
def complex_(ex: Exporter, real: OnnxValue, imaginary: OnnxValue) -> OnnxValue:
    return make_pair(ex, real, imaginary)


@exports_pairs(aten.polar.default)
def polar(ex: Exporter, size: OnnxValue, angle: OnnxValue) -> OnnxValue:
    turned = [ex.op("Mul", size, ex.op(kind, angle)) for kind in ("Cos", "Sin")]
    return make_pair(ex, turned[0], turned[1])


def _part(place: int) -> Callable[..., OnnxValue]:
    return lambda ex, x: ex.op("Gather", pairs(x), ex.number(place, torch.int64), axis=x.rank)


exports_pairs(aten.real.default)(_part(0))
exports_pairs(aten.imag.default)(_part(1))


@exports_pairs(aten.abs.default)
def abs_(ex: Exporter, x: OnnxValue) -> OnnxValue:
    real, imaginary = (ex.cast(part, torch.float64) for part in parts(ex, x, x.dtype) if part is not None)
    return ex.op("Sqrt", ex.op("Add", ex.op("Mul", real, real), ex.op("Mul", imaginary, imaginary)))


@exports_pairs(aten._conj.default, aten._conj_physical.default, aten.conj_physical.default, aten.conj.default)
def conj(ex: Exporter, x: OnnxValue) -> OnnxValue:
    signs = ex.constant(torch.tensor([1.0, -1.0], dtype=_REAL[x.dtype]))
    return number(ex.op("Mul", pairs(x), signs), x.sizes)


@exports_pairs(
    *(aten.to.dtype, aten.to.device, aten.to.dtype_layout, aten._to_copy.default, aten.clone.default),
    *(aten.contiguous.default, aten.alias.default, aten.detach.default, aten.resolve_conj.default),
    *(aten.resolve_neg.default, aten.lift_fresh_copy.default),
)
def copy(ex: Exporter, x: OnnxValue, *_: Any, **__: Any) -> OnnxValue:
    if not ex.dtype.is_complex:  # torch keeps the real part
        return ex.cast(_part(0)(ex, x), ex.dtype)
    if x.dtype.is_complex:
        return number(ex.cast(pairs(x), _REAL[ex.dtype]), x.sizes)
    real = ex.cast(x, _REAL[ex.dtype])
    return make_pair(ex, real, ex.full(ex.shape, 0.0, real.dtype))


# ---------------------------------------------------------------------- arithmetic


@exports_pairs(aten.mul.Tensor, aten.mul.Scalar)
def mul(ex: Exporter, x: Any, y: Any) -> OnnxValue:
    (a, b), (c, d) = parts(ex, x, ex.dtype), parts(ex, y, ex.dtype)
    if b is None or d is None:
        factor, both = (a, y) if b is None else (c, x)
        wide = ex.unsqueeze(factor, _rank(x if b is None else y))
        return number(ex.op("Mul", ex.cast(pairs(both), _REAL[ex.dtype]), wide), ex.shape)
    return _product(ex, "Mul", (a, b), (c, d))


@exports_pairs(aten.mm.default, aten.bmm.default, aten.mv.default, aten.matmul.default)
def product(ex: Exporter, x: OnnxValue, y: OnnxValue) -> OnnxValue:
    (a, b), (c, d) = (parts(ex, operand, ex.dtype) for operand in (x, y))
    assert b is not None and d is not None
    return _product(ex, "MatMul", (a, b), (c, d))


def _product(ex: Exporter, kind: str, x: tuple[OnnxValue, OnnxValue], y: tuple[OnnxValue, OnnxValue]) -> OnnxValue:
    def compute(kind: str) -> Callable[[OnnxValue, OnnxValue], OnnxValue]:
        return lambda left, right: ex.op(kind, left, right)

    return make_pair(ex, *multiply_parts(x, y, compute(kind), compute("Sub"), compute("Add")))


def _rank(x: Any) -> int:
    return x.rank if isinstance(x, OnnxValue) else 0


def _sum(kind: str) -> Callable[..., OnnxValue]:
    def rule(ex: Exporter, x: Any, y: Any, alpha: Any = 1) -> OnnxValue:
        if alpha != 1:
            raise OnnxUnsupported("a sum of complex numbers with a factor")
        (a, b), (c, d) = parts(ex, x, ex.dtype), parts(ex, y, ex.dtype)
        none = ex.number(0.0, a.dtype)
        return make_pair(ex, ex.op(kind, a, c), ex.op(kind, b or none, d or none))

    return rule


exports_pairs(aten.add.Tensor)(_sum("Add"))
exports_pairs(aten.sub.Tensor)(_sum("Sub"))


# ---------------------------------------------------------------------- shapes


@exports_pairs(
    *(aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.unsqueeze.default, aten.squeeze.dim),
    *(aten.squeeze.dims, aten.squeeze.default, aten.flatten.using_ints, aten.unflatten.int),
)
def reshape(ex: Exporter, x: OnnxValue, *_: Any) -> OnnxValue:
    return number(ex.reshape(pairs(x), [*ex.shape, 2]))


@exports_pairs(aten.expand.default)
def expand(ex: Exporter, x: OnnxValue, *_: Any, **__: Any) -> OnnxValue:
    return number(ex.expand(pairs(x), [*ex.shape, 2]))


@exports_pairs(aten.permute.default)
def permute(ex: Exporter, x: OnnxValue, order: Sequence[int]) -> OnnxValue:
    return number(ex.transpose(pairs(x), [*(axis(d, x.rank) for d in order), x.rank]))


@exports_pairs(aten.transpose.int)
def transpose(ex: Exporter, x: OnnxValue, first: int, second: int) -> OnnxValue:
    order = list(range(x.rank + 1))
    a, b = axis(first, x.rank), axis(second, x.rank)
    order[a], order[b] = order[b], order[a]
    return number(ex.transpose(pairs(x), order))


@exports_pairs(aten.slice.Tensor)
def slice_(
    ex: Exporter, x: OnnxValue, dim: int = 0, start: Size | None = None, end: Size | None = None, step: int = 1
) -> OnnxValue:
    last = None if end is None or (isinstance(end, int) and end >= 2**62) else end
    return number(ex.slice(pairs(x), axis(dim, x.rank), start or 0, last, step), ex.shape)


@exports_pairs(aten.select.int)
def select(ex: Exporter, x: OnnxValue, dim: int, index: Size) -> OnnxValue:
    return number(ex.op("Gather", pairs(x), ex.sizes.scalar(index), axis=axis(dim, x.rank)), ex.shape)


@exports_pairs(aten.cat.default)
def cat(ex: Exporter, given: Sequence[OnnxValue], dim: int = 0) -> OnnxValue:
    return number(ex.op("Concat", *map(pairs, given), axis=axis(dim, len(ex.shape))), ex.shape)


@exports_pairs(aten.constant_pad_nd.default)
def pad(ex: Exporter, x: OnnxValue, sides: Sequence[Size], value: Any = 0) -> OnnxValue:
    if value != 0 or any(not isinstance(side, int) or side < 0 for side in sides):
        raise OnnxUnsupported("a padding of complex numbers other than zeros around")
    befores: list[Size] = [0] * (x.rank + 1)
    afters: list[Size] = [0] * (x.rank + 1)
    for place in range(len(sides) // 2):
        befores[x.rank - 1 - place], afters[x.rank - 1 - place] = sides[2 * place], sides[2 * place + 1]
    return number(ex.op("Pad", pairs(x), ex.sizes.vector([*befores, *afters])), ex.shape)


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
    return number(OnnxValue(ex.cast(x, _REAL[ex.dtype]).value, _REAL[ex.dtype], x.shape))


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


@exports_pairs(aten._fft_c2c.default)
def fft_c2c(ex: Exporter, x: OnnxValue, dims: Sequence[int], normalization: int, forward: bool) -> OnnxValue:
    made = _wide(ex, pairs(x))
    for dim in dims:
        made = _transform(ex, made, axis(dim, x.rank), inverse=not forward)
    return _result(ex, _scale(ex, made, [x.sizes[d] for d in dims], normalization))


@exports_pairs(aten._fft_r2c.default)
def fft_r2c(ex: Exporter, x: OnnxValue, dims: Sequence[int], normalization: int, onesided: bool) -> OnnxValue:
    made = ex.unsqueeze(x, x.rank)
    made = _wide(ex, OnnxValue(made.value, x.dtype, (*x.sizes, 1)))
    *others, last = dims
    made = _transform(ex, made, axis(last, x.rank), onesided=onesided)
    for dim in others:
        made = _transform(ex, made, axis(dim, x.rank))
    return _result(ex, _scale(ex, made, [x.sizes[d] for d in dims], normalization))


@exports_pairs(aten._fft_c2r.default)
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
