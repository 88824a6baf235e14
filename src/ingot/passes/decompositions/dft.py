"""FFTs as matrix products.

A transform of p·q numbers is p transforms of q, a turn of each, and q transforms of p: a long one becomes products with
small matrices, which are constants where the length is. Sums are of float64: torch's own in float32 lose as many digits
as there are stages, a plain sum of products loses more.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch import fx

from ingot.ir import metadata
from ingot.passes.decompositions.complex import Parts, multiply, parts_of, product, splits

aten = torch.ops.aten
_WHOLE = 64  # as many numbers, or fewer, are transformed by one product
_LARGEST = 1024  # a factor that is a larger prime is not worth a matrix


def fits(node: fx.Node) -> bool:
    """Whether the lengths of a transform are such that this way of it makes sense."""
    args: Any = node.args
    lengths = [metadata.value_of(args[0]).shape[dim] for dim in args[1]]
    if node.target is aten._fft_c2r.default:
        lengths[-1] = args[3]
        if not isinstance(args[3], int):
            return False
    return all(not isinstance(n, int) or n <= _LARGEST or max(_factors(n)) <= _LARGEST for n in lengths)


def _factors(number: int) -> list[int]:
    """Prime factors."""
    found = []
    for factor in range(2, math.isqrt(number) + 1):
        while number % factor == 0:
            found.append(factor)
            number //= factor
    return [*found, number] if number > 1 or not found else found


def _split(number: int) -> tuple[int, int]:
    """Two factors, the nearest to each other that there are."""
    first = next(n for n in range(math.isqrt(number), 0, -1) if number % n == 0)
    return first, number // first


def _turns(rows: Any, columns: Any, length: Any, sign: int) -> Parts:
    """e^(2πi·sign·row·column/length), exact in the angle: the product of the numbers is reduced as an integer."""
    steps = torch.arange(rows)[:, None] * torch.arange(columns)[None, :] % length
    angles = steps.to(torch.float64) * (2 * math.pi * sign / length)
    return Parts(angles.cos(), angles.sin())


def _last(x: Any, sign: int) -> Parts:
    """The transform along the last dim, of float64."""
    length = (x.real if isinstance(x, Parts) else x).shape[-1]
    first, second = _split(length) if isinstance(length, int) and length > _WHOLE else (1, length)
    if first == 1:
        turns = _turns(length, length, length, sign)
        if not isinstance(x, Parts):
            return Parts(x @ turns.real, x @ turns.imaginary)
        return product(x, turns, operator.matmul)
    # Place second·a + b of the numbers, and first·d + c of the transform.
    grid = _each(x, lambda part: part.unflatten(-1, (first, second)).mT)  # …, b, a
    inner = multiply(_last(grid, sign), _turns(second, first, length, sign))  # …, b, c
    outer = _last(_each(inner, lambda part: part.mT), sign)  # …, c, d
    return Parts(*(part.mT.flatten(-2) for part in (outer.real, outer.imaginary)))


def _each(x: Any, function: Any) -> Any:
    return Parts(function(x.real), function(x.imaginary)) if isinstance(x, Parts) else function(x)


def _transform_dim(x: Any, dim: int, sign: int) -> Parts:
    made = _last(_each(x, lambda part: part.movedim(dim, -1)), sign)
    return Parts(*(part.movedim(-1, dim) for part in (made.real, made.imaginary)))


def _scale(x: Parts, lengths: list[Any], normalization: int, dtype: torch.dtype) -> Parts:
    """Over the root of the number of elements, or over that number, as torch counts: 0 none, 1 root, 2 number."""
    if normalization:
        count = math.prod(lengths)
        factor = 1 / (torch.sym_sqrt(count) if normalization == 1 else count)
        x = multiply(x, factor)
    return Parts(x.real.to(dtype), x.imaginary.to(dtype))


@splits(aten._fft_c2c.default, tags=("transform",))
def _c2c(x: Any, dims: list[int], normalization: int, forward: bool) -> Parts:
    x = parts_of(x)
    made = Parts(x.real.to(torch.float64), x.imaginary.to(torch.float64))
    for dim in dims:
        made = _transform_dim(made, dim, -1 if forward else 1)
    return _scale(made, [x.real.shape[dim] for dim in dims], normalization, x.real.dtype)


@splits(aten._fft_r2c.default, tags=("transform",))
def _r2c(x: torch.Tensor, dims: list[int], normalization: int, onesided: bool) -> Parts:
    made: Any = x.to(torch.float64)
    for dim in reversed(dims):
        made = _transform_dim(made, dim, -1)
    result = _scale(made, [x.shape[dim] for dim in dims], normalization, x.dtype)
    if not onesided:
        return result
    there = x.shape[dims[-1]] // 2 + 1
    return Parts(result.real.narrow(dims[-1], 0, there), result.imaginary.narrow(dims[-1], 0, there))


@splits(aten._fft_c2r.default, tags=("transform",))
def _c2r(x: Parts, dims: list[int], normalization: int, length: int) -> torch.Tensor:
    """The half of the spectrum that is not there is the mirror of the half that is."""
    made = Parts(x.real.to(torch.float64), x.imaginary.to(torch.float64))
    *others, last = dims
    for dim in others:
        made = _transform_dim(made, dim, 1)
    there, mirrored = length // 2 + 1, length - length // 2 - 1
    real = torch.cat([made.real.narrow(last, 0, there), made.real.narrow(last, 1, mirrored).flip(last)], last)
    imaginary = made.imaginary.narrow(last, 0, there)
    imaginary = torch.cat([imaginary, -made.imaginary.narrow(last, 1, mirrored).flip(last)], last)
    back = _transform_dim(Parts(real, imaginary), last, 1)
    lengths = [x.real.shape[dim] for dim in others] + [length]
    result: torch.Tensor = _scale(back, lengths, normalization, x.real.dtype).real
    return result
