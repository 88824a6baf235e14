"""Operators on complex numbers, said with their real and their imaginary parts.

A rule takes what the operator takes, with Parts for complex tensors, and returns what it returns. Those of FFTs are in
dft.py.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ingot.registry import Registry

aten = torch.ops.aten
Rule = Callable[..., Any]
RULES: Registry[Any, Rule] = Registry("rule for complex numbers")
splits = RULES.register


@dataclass(frozen=True, slots=True)
class Parts:
    """A complex tensor: two real ones of its shape. Of a complex literal: two numbers.

    `pairs` is the tensor of both, along a last dim of 2, where a complex tensor was taken apart.
    """

    real: Any
    imaginary: Any
    pairs: torch.Tensor | None = None


def take_apart(value: Any) -> Any:
    """A complex tensor as Parts; anything else as it is."""
    if not isinstance(value, torch.Tensor) or not value.is_complex():
        return value
    pairs = torch.view_as_real(value.resolve_conj())
    return Parts(pairs.select(-1, 0), pairs.select(-1, 1), pairs)


def put_together(value: Any) -> Any:
    """Parts as a complex tensor; anything else as it is."""
    return torch.view_as_complex(pairs_of(value)) if isinstance(value, Parts) else value


def pairs_of(x: Parts) -> torch.Tensor:
    """Both parts along a last dim of 2."""
    return torch.cat([x.real.unsqueeze(-1), x.imaginary.unsqueeze(-1)], -1) if x.pairs is None else x.pairs


def nothing(like: torch.Tensor) -> torch.Tensor:
    return torch.full(like.shape, 0.0, dtype=like.dtype, device=like.device)


def parts_of(x: Any) -> Parts:
    """Anything as a complex number."""
    if isinstance(x, Parts):
        return x
    if isinstance(x, complex):
        return Parts(x.real, x.imag)
    return Parts(x, nothing(x) if isinstance(x, torch.Tensor) else 0.0)


def is_real(x: Any) -> bool:
    return not isinstance(x, Parts | complex)


# ---------------------------------------------------------------------- what does the same to both parts


def _part(value: Any, place: int) -> Any:
    """One of the two calls' arguments: indices, masks, dims and sizes are those of both."""
    if isinstance(value, Parts):
        return (value.real, value.imaginary)[place]
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value if place == 0 else nothing(value)
    if isinstance(value, torch.dtype):
        return value.to_real() if value.is_complex else value
    if isinstance(value, list | tuple):
        return [_part(item, place) for item in value]
    return value


def _each(op: Any) -> Rule:
    def rule(*args: Any, **kwargs: Any) -> Any:
        real, imaginary = (
            op(*_part(args, place), **{key: _part(value, place) for key, value in kwargs.items()}) for place in (0, 1)
        )
        if isinstance(real, torch.Tensor):
            return Parts(real, imaginary)
        return [Parts(*both) for both in zip(real, imaginary, strict=True)]

    return rule


for _op in (
    *(aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.unsqueeze.default, aten.squeeze.dim),
    *(aten.squeeze.dims, aten.squeeze.default, aten.permute.default, aten.transpose.int, aten.expand.default),
    *(aten.slice.Tensor, aten.select.int, aten.flip.default, aten.roll.default, aten.repeat.default),
    *(aten.split.Tensor, aten.split_with_sizes.default, aten.unbind.int, aten.as_strided.default),
    *(aten.diagonal.default, aten.tril.default, aten.triu.default, aten.unfold.default, aten.index.Tensor),
    *(aten.index_select.default, aten.gather.default, aten.index_put.default, aten.scatter.src),
    *(aten.slice_scatter.default, aten.select_scatter.default, aten.embedding.default),
    *(aten.clone.default, aten.alias.default, aten.detach.default, aten.lift_fresh_copy.default),
    *(aten.resolve_conj.default, aten.resolve_neg.default, aten.neg.default, aten._neg_view.default),
    *(aten.sum.dim_IntList, aten.sum.default, aten.mean.dim, aten.mean.default, aten.cumsum.default),
    *(aten.zeros_like.default, aten.empty_like.default),
):
    splits(_op)(_each(_op))
splits(operator.getitem)(operator.getitem)


@splits(aten.cat.default)
def _cat(given: Any, dim: int = 0) -> Any:
    return _each(aten.cat.default)([parts_of(x) for x in given], dim)  # integers are numbers here, not indices


@splits(aten.where.self)
def _where(mask: torch.Tensor, x: Any, y: Any) -> Any:
    return _each(aten.where.self)(mask, parts_of(x), parts_of(y))


@splits(aten.copy.default)
def _copy(x: Any, y: Any, non_blocking: bool = False) -> Any:
    return _each(aten.copy.default)(parts_of(x), parts_of(y))


@splits(aten._to_copy.default)
def _to_copy(x: Any, **options: Any) -> Any:
    dtype = options.get("dtype")
    if not isinstance(x, Parts):
        made = aten._to_copy.default(x, **_part_options(options))
        return Parts(made, nothing(made))
    if dtype is None or dtype.is_complex:
        return _each(aten._to_copy.default)(x, **options)
    return aten._to_copy.default(x.real, **options)


def _part_options(options: dict[str, Any]) -> dict[str, Any]:
    return {key: _part(value, 0) for key, value in options.items()}


def _fill(op: Any) -> Rule:
    """An operator of a shape, or of a tensor of that shape, and a number."""

    def rule(like: Any, value: Any = 0.0, **options: Any) -> Parts:
        shape = like.real if isinstance(like, Parts) else like
        number = parts_of(value)
        return Parts(*(op(shape, each, **_part_options(options)) for each in (number.real, number.imaginary)))

    return rule


splits(aten.full.default)(_fill(aten.full.default))
splits(aten.full_like.default)(_fill(aten.full_like.default))


@splits(aten.scalar_tensor.default)
def _scalar_tensor(value: Any, **options: Any) -> Parts:
    number, options = parts_of(value), _part_options(options)
    return Parts(*(aten.scalar_tensor.default(each, **options) for each in (number.real, number.imaginary)))


@splits(aten.constant_pad_nd.default)
def _pad(x: Parts, sides: Any, value: Any = 0) -> Parts:
    number = parts_of(value)
    pad = aten.constant_pad_nd.default
    return Parts(pad(x.real, sides, number.real), pad(x.imaginary, sides, number.imaginary))


# ---------------------------------------------------------------------- to and from real numbers


@splits(aten.view_as_complex.default)
def _view_as_complex(x: torch.Tensor) -> Parts:
    return Parts(x.select(-1, 0), x.select(-1, 1))


splits(aten.view_as_real.default)(pairs_of)
splits(aten.real.default)(lambda x: x.real if isinstance(x, Parts) else x)
splits(aten.imag.default)(lambda x: x.imaginary)


@splits(aten.complex.default)
def _complex(real: torch.Tensor, imaginary: torch.Tensor) -> Parts:
    return Parts(*torch.broadcast_tensors(real, imaginary))


@splits(aten.polar.default)
def _polar(size: torch.Tensor, angle: torch.Tensor) -> Parts:
    return Parts(size * angle.cos(), size * angle.sin())


splits(aten.abs.default)(lambda x: torch.hypot(x.real, x.imaginary))
splits(aten.angle.default)(lambda x: torch.atan2(x.imaginary, x.real))


@splits(aten._conj.default, aten._conj_physical.default, aten.conj_physical.default, aten.conj.default)
def _conj(x: Any) -> Any:
    if not isinstance(x, Parts):  # a literal
        return x.conjugate()
    return Parts(x.real, -x.imaginary)


# ---------------------------------------------------------------------- arithmetic


def product(x: Parts, y: Parts, times: Callable[[Any, Any], Any]) -> Parts:
    """(a + bi)(c + di) = (ac - bd) + (ad + bc)i, of numbers or, where `times` is theirs, of matrices."""
    real = times(x.real, y.real) - times(x.imaginary, y.imaginary)
    return Parts(real, times(x.real, y.imaginary) + times(x.imaginary, y.real))


def multiply(x: Any, y: Any) -> Parts:
    if is_real(x) or is_real(y):
        number, factor = (y, x) if is_real(x) else (x, y)
        number = parts_of(number)
        return Parts(number.real * factor, number.imaginary * factor)
    return product(parts_of(x), parts_of(y), operator.mul)


splits(aten.mul.Tensor, aten.mul.Scalar)(multiply)


def _sum(x: Any, y: Any, alpha: Any = 1) -> Parts:
    term = y if alpha == 1 else multiply(y, alpha)
    if is_real(x) or is_real(term):
        number, other = (parts_of(term), x) if is_real(x) else (parts_of(x), term)
        real = number.real + other
        return Parts(real, _wide(number.imaginary, real))
    x, term = parts_of(x), parts_of(term)
    return Parts(x.real + term.real, x.imaginary + term.imaginary)


def _wide(part: Any, like: torch.Tensor) -> torch.Tensor:
    """A part of the shape and dtype that the other one has after a real number was added to it."""
    made: torch.Tensor = nothing(like) + part
    return made


def _difference(x: Any, y: Any, alpha: Any = 1) -> Parts:
    return _sum(x, multiply(y, -1) if isinstance(y, Parts | complex) else -y, alpha)


splits(aten.add.Tensor, aten.add.Scalar)(_sum)
splits(aten.sub.Tensor, aten.sub.Scalar)(_difference)
splits(aten.rsub.Scalar, aten.rsub.Tensor)(lambda x, y, alpha=1: _difference(y, x, alpha))


@splits(aten.reciprocal.default)
def _reciprocal(x: Parts) -> Parts:
    """Divided by the larger part first: its square may run over where the result does not."""
    unit = torch.maximum(x.real.abs(), x.imaginary.abs())
    real, imaginary = x.real / unit, x.imaginary / unit
    square = (real * real + imaginary * imaginary) * unit
    return Parts(real / square, -imaginary / square)


@splits(aten.div.Tensor, aten.div.Scalar)
def _div(x: Any, y: Any) -> Parts:
    if is_real(y):
        return Parts(x.real / y, x.imaginary / y)
    if isinstance(y, complex):
        return multiply(x, 1 / y)
    return multiply(x, _reciprocal(y))


@splits(aten.exp.default)
def _exp(x: Parts) -> Parts:
    size = x.real.exp()
    return Parts(size * x.imaginary.cos(), size * x.imaginary.sin())


@splits(aten.log.default)
def _log(x: Parts) -> Parts:
    return Parts(torch.hypot(x.real, x.imaginary).log(), torch.atan2(x.imaginary, x.real))


@splits(aten.sgn.default)
def _sgn(x: Parts) -> Parts:
    size = torch.hypot(x.real, x.imaginary)
    nothing = size == 0
    return Parts(*(torch.where(nothing, 0.0, part / size) for part in (x.real, x.imaginary)))


splits(aten.eq.Tensor)(lambda x, y: _same(parts_of(x), parts_of(y)))
splits(aten.ne.Tensor)(lambda x, y: ~_same(parts_of(x), parts_of(y)))
splits(aten.isnan.default)(lambda x: x.real.isnan() | x.imaginary.isnan())
splits(aten.isinf.default)(lambda x: x.real.isinf() | x.imaginary.isinf())


def _same(x: Parts, y: Parts) -> torch.Tensor:
    same: torch.Tensor = (x.real == y.real) & (x.imaginary == y.imaginary)
    return same


# ---------------------------------------------------------------------- products of matrices


for _op in (aten.mm.default, aten.bmm.default, aten.matmul.default, aten.mv.default, aten.dot.default):
    splits(_op)(functools.partial(product, times=_op))


@splits(aten.addmm.default, aten.baddbmm.default)
def _addmm(base: Parts, x: Parts, y: Parts, *, beta: Any = 1, alpha: Any = 1) -> Parts:
    return _sum(base if beta == 1 else multiply(base, beta), product(x, y, torch.matmul), alpha)


@splits(aten.linear.default)
def _linear(x: Parts, weight: Parts, bias: Parts | None = None) -> Parts:
    made = product(x, Parts(weight.real.mT, weight.imaginary.mT), torch.matmul)
    return made if bias is None else _sum(made, bias)
