"""FFTs, as operators that a target has kernels for or as products with matrices.

    OperatorTransforms   ingot::dft and its two forms for real numbers; long lines, and few, are cut into shorter ones
    MatrixTransforms     products with constant matrices, summed in float64: for those who have nothing but products

A transform of p·q numbers is p transforms of q, a turn of each, and q transforms of p.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection
from typing import Any, Protocol

import torch
from torch import fx

from ingot.ir import metadata
from ingot.ir.operators import fourier
from ingot.passes.decompositions.complex import Parts, multiply, nothing, parts_of, product, splits

aten = torch.ops.aten


class Transforms(Protocol):
    """Transforms along one dim; none is scaled. All of it is along `dim`, which is not negative."""

    def fits(self, length: Any) -> bool:
        """Whether it makes sense to transform lines of this length so."""

    def computes_in(self, dtype: torch.dtype) -> torch.dtype:
        """The dtype of the parts that the others take, for parts of `dtype`."""

    def transform(self, x: Parts, dim: int, backward: bool) -> Parts: ...

    def from_real(self, x: torch.Tensor, dim: int) -> Parts:
        """The first n // 2 + 1 numbers of the transform of n real ones."""

    def to_real(self, x: Parts, dim: int, length: Any) -> torch.Tensor:
        """As many real numbers as `length`, back from the first half of their transform."""


def choose_transforms(kept: Collection[Any]) -> Transforms:
    """The best that can be had where these operators are kept."""
    return OperatorTransforms() if fourier.dft in kept else MatrixTransforms()


def fits(node: fx.Node, transforms: Transforms) -> bool:
    """Whether the lengths of a transform are such that it makes sense to replace it."""
    args: Any = node.args
    lengths = [metadata.value_of(args[0]).shape[dim] for dim in args[1]]
    if node.target is aten._fft_c2r.default:
        lengths[-1] = args[3]
    return all(map(transforms.fits, lengths))


def _factors(number: int) -> list[int]:
    """Prime factors, in ascending order."""
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


def _roots(steps: torch.Tensor, length: Any) -> Parts:
    """e^(-2πi·step/length) in float64."""
    angles = steps.to(torch.float64) * (-2 * math.pi / length)
    return Parts(angles.cos(), angles.sin())


def _turns(rows: Any, columns: Any, length: Any, like: torch.Tensor) -> Parts:
    """e^(-2πi·row·column/length), exact in the angle: the product of the numbers is reduced as an integer."""
    steps = (torch.arange(n, device=like.device) for n in (rows, columns))
    return _roots(torch.outer(*steps) % length, length)


def _each(x: Parts, function: Any) -> Parts:
    return Parts(function(x.real), function(x.imaginary))


def _cast(x: Parts, dtype: torch.dtype) -> Parts:
    return _each(x, lambda part: part.to(dtype))


def _conjugate_if(condition: bool, x: Parts) -> Parts:
    return Parts(x.real, -x.imaginary) if condition else x


def _mirror(half: Parts, last: int, length: Any, others: Collection[int] = ()) -> Parts:
    """All numbers of the spectrum of real ones from the first half along `last`, where `others` are the other dims
    that were transformed."""

    def images(part: torch.Tensor) -> torch.Tensor:
        image = part.narrow(last, 1, (length - 1) // 2).flip([last, *others])
        return image.roll([1] * len(others), list(others)) if others else image

    return Parts(
        torch.cat([half.real, images(half.real)], last), torch.cat([half.imaginary, -images(half.imaginary)], last)
    )


# ---------------------------------------------------------------------- operators


class OperatorTransforms:
    """A kernel takes a vector's worth of lines at once, so few lines leave most of a vector unused, and long ones leave
    the caches: both are cut. A length with a large prime factor becomes a convolution (Bluestein)."""

    LONG = 16384
    LARGEST_PRIME = 128
    # Fewer lines than FEW, of MANY numbers or more, are cut.
    FEW = 8
    MANY = 256

    def fits(self, length: Any) -> bool:
        return True

    def computes_in(self, dtype: torch.dtype) -> torch.dtype:
        return dtype if dtype in (torch.float32, torch.float64) else torch.float32

    def transform(self, x: Parts, dim: int, backward: bool) -> Parts:
        n = x.real.shape[dim]
        if self._suits(x.real, dim):
            return Parts(*fourier.dft(x.real, x.imaginary, self._table(n, x.real), dim, backward))
        moved = _each(x, lambda part: part.movedim(dim, -1))
        moved = _conjugate_if(backward, moved)
        made = self._convolve(moved, n) if max(_factors(n)) > self.LARGEST_PRIME else self._cut(moved, n)
        return _each(_conjugate_if(backward, made), lambda part: part.movedim(-1, dim))

    def from_real(self, x: torch.Tensor, dim: int) -> Parts:
        n = x.shape[dim]
        if self._suits(x, dim):
            return Parts(*fourier.dft_of_real(x, self._table(n, x), dim))
        if n % 2:
            return _each(self.transform(parts_of(x), dim, False), lambda part: part.narrow(dim, 0, n // 2 + 1))
        # Pairs of numbers as complex ones: the spectrum is that of the first ones, and that of the second ones turned.
        pairs = x.movedim(dim, -1).unflatten(-1, (n // 2, 2))
        mixed = self.transform(Parts(pairs.select(-1, 0), pairs.select(-1, 1)), x.dim() - 1, False)
        whole = _each(mixed, lambda part: torch.cat([part, part.narrow(-1, 0, 1)], -1))
        image = _each(whole, lambda part: part.flip(-1))
        first = Parts((whole.real + image.real) / 2, (whole.imaginary - image.imaginary) / 2)
        second = Parts((whole.imaginary + image.imaginary) / 2, (image.real - whole.real) / 2)
        turned = multiply(second, self._half_turns(n, x))
        made = Parts(first.real + turned.real, first.imaginary + turned.imaginary)
        return _each(made, lambda part: part.movedim(-1, dim))

    def to_real(self, x: Parts, dim: int, length: Any) -> torch.Tensor:
        if self._suits(x.real, dim, length):
            made: torch.Tensor = fourier.dft_to_real(x.real, x.imaginary, self._table(length, x.real), dim, length)
            return made
        # What has no mirror image is real, whatever is said.
        ends = torch.arange(length // 2 + 1, device=x.real.device).mul(2) % length == 0
        half = _each(x, lambda part: part.movedim(dim, -1))
        half = Parts(half.real, torch.where(ends, 0.0, half.imaginary))
        last = x.real.dim() - 1
        if length % 2:
            odd: torch.Tensor = self.transform(_mirror(half, last, length), last, True).real.movedim(-1, dim)
            return odd
        image = _each(half, lambda part: part.flip(-1))
        first = Parts(half.real + image.real, half.imaginary - image.imaginary)
        second = Parts(half.real - image.real, half.imaginary + image.imaginary)
        turned = multiply(second, _conjugate_if(True, self._half_turns(length, x.real)))
        pairs = Parts(first.real - turned.imaginary, first.imaginary + turned.real)
        pairs = self.transform(_each(pairs, lambda part: part.narrow(-1, 0, length // 2)), last, True)
        made = torch.stack([pairs.real, pairs.imaginary], -1).flatten(-2)
        return made.movedim(-1, dim)

    def _suits(self, x: torch.Tensor, dim: int, length: Any = None) -> bool:
        """Whether the kernel is the best for lines of x, whatever its lengths are when it runs."""
        n = x.shape[dim] if length is None else length
        if not isinstance(n, int) or n <= 2:
            return True
        if max(_factors(n)) > self.LARGEST_PRIME:
            return False
        lines = math.prod(size for d, size in enumerate(x.shape) if d != dim)
        few = isinstance(lines, int) and lines < self.FEW and n >= self.MANY
        return n <= self.LONG and not (few and _split(n)[0] >= self.FEW)

    def _table(self, n: Any, like: torch.Tensor) -> torch.Tensor:
        roots = _roots(torch.arange(n, device=like.device), n)
        return torch.stack([roots.real, roots.imaginary]).to(like.dtype)

    def _half_turns(self, n: Any, like: torch.Tensor) -> Parts:
        return _cast(_roots(torch.arange(n // 2 + 1, device=like.device), n), like.dtype)

    def _cut(self, x: Parts, n: int) -> Parts:
        """Along the last dim. Place second·a + b of the numbers, and first·d + c of the transform."""
        first, second = _split(n)
        end = x.real.dim()
        grid = _each(x, lambda part: part.unflatten(-1, (first, second)))  # …, a, b
        inner = _each(self.transform(grid, end - 1, False), lambda part: part.mT)  # …, b, c
        turned = multiply(inner, _cast(_turns(second, first, n, x.real), x.real.dtype))
        outer = self.transform(turned, end - 1, False)  # …, d, c
        return _each(outer, lambda part: part.flatten(-2))

    def _convolve(self, x: Parts, n: int) -> Parts:
        """Along the last dim: jk is half of j² + k² - (k - j)², so the transform is a convolution with a chirp."""
        length = 1 << (2 * n - 2).bit_length()
        places = torch.arange(n, device=x.real.device)
        chirp = _cast(_roots(places * places % (2 * n), 2 * n), x.real.dtype)
        end = x.real.dim() - 1
        given = _each(multiply(x, chirp), lambda part: torch.nn.functional.pad(part, (0, length - n)))
        gap = length - 2 * n + 1
        # The chirp itself, nothing, and the chirp backwards: places -n + 1 to -1 of a circle.
        around = _each(
            chirp,
            lambda part: torch.cat([part, torch.zeros(gap, dtype=part.dtype, device=part.device), part[1:].flip(0)]),
        )
        by = self.transform(_conjugate_if(True, around), 0, False)
        made = self.transform(multiply(self.transform(given, end, False), multiply(by, 1 / length)), end, True)
        return multiply(_each(made, lambda part: part.narrow(-1, 0, n)), chirp)


# ---------------------------------------------------------------------- matrices


class MatrixTransforms:
    """Sums are of float64: torch's own in float32 lose as many digits as there are stages, a plain sum of products
    loses more."""

    WHOLE = 64  # as many numbers, or fewer, are transformed by one product
    LARGEST_PRIME = 1024  # a factor that is a larger prime is not worth a matrix

    def fits(self, length: Any) -> bool:
        return not isinstance(length, int) or max(_factors(length)) <= self.LARGEST_PRIME

    def computes_in(self, dtype: torch.dtype) -> torch.dtype:
        return torch.float64

    def transform(self, x: Parts, dim: int, backward: bool) -> Parts:
        moved = _conjugate_if(backward, _each(x, lambda part: part.movedim(dim, -1)))
        return _each(_conjugate_if(backward, self._last(moved)), lambda part: part.movedim(-1, dim))

    def from_real(self, x: torch.Tensor, dim: int) -> Parts:
        made = self._last(x.movedim(dim, -1))
        return _each(made, lambda part: part.narrow(-1, 0, x.shape[dim] // 2 + 1).movedim(-1, dim))

    def to_real(self, x: Parts, dim: int, length: Any) -> torch.Tensor:
        made: torch.Tensor = self.transform(_mirror(x, dim, length), dim, True).real
        return made

    def _last(self, x: Parts | torch.Tensor) -> Parts:
        """The transform along the last dim."""
        like = x.real if isinstance(x, Parts) else x
        length = like.shape[-1]
        first, second = _split(length) if isinstance(length, int) and length > self.WHOLE else (1, length)
        if first == 1:
            turns = _turns(length, length, length, like)
            if isinstance(x, Parts):
                return product(x, turns, operator.matmul)
            return Parts(x @ turns.real, x @ turns.imaginary)
        # Place second·a + b of the numbers, and first·d + c of the transform.
        rows = (first, second)
        grid: Any = (
            _each(x, lambda part: part.unflatten(-1, rows).mT) if isinstance(x, Parts) else x.unflatten(-1, rows).mT
        )  # …, b, a
        inner = multiply(self._last(grid), _turns(second, first, length, like))  # …, b, c
        outer = self._last(_each(inner, lambda part: part.mT))  # …, c, d
        return _each(outer, lambda part: part.mT.flatten(-2))


# ---------------------------------------------------------------------- rules


def _scale(x: Parts, lengths: list[Any], normalization: int, dtype: torch.dtype) -> Parts:
    """Over the root of the number of elements, or over that number, as torch counts: 0 none, 1 root, 2 number."""
    if normalization:
        count = math.prod(lengths)
        x = multiply(x, 1 / (torch.sym_sqrt(count) if normalization == 1 else count))
    return _cast(x, dtype)


@splits(aten._fft_c2c.default, tags=("transform",))
def _c2c(transforms: Transforms, x: Any, dims: list[int], normalization: int, forward: bool) -> Parts:
    x = parts_of(x)
    made = _cast(x, transforms.computes_in(x.real.dtype))
    for dim in dims:
        made = transforms.transform(made, dim % x.real.dim(), not forward)
    return _scale(made, [x.real.shape[dim] for dim in dims], normalization, x.real.dtype)


@splits(aten._fft_r2c.default, tags=("transform",))
def _r2c(transforms: Transforms, x: torch.Tensor, dims: list[int], normalization: int, onesided: bool) -> Parts:
    *others, last = (dim % x.dim() for dim in dims)
    made = transforms.from_real(x.to(transforms.computes_in(x.dtype)), last)
    for dim in others:
        made = transforms.transform(made, dim, False)
    result = _scale(made, [x.shape[dim] for dim in dims], normalization, x.dtype)
    return result if onesided else _mirror(result, last, x.shape[last], others)


@splits(aten._fft_c2r.default, tags=("transform",))
def _c2r(transforms: Transforms, x: Parts, dims: list[int], normalization: int, length: Any) -> torch.Tensor:
    *others, last = (dim % x.real.dim() for dim in dims)
    made = _cast(x, transforms.computes_in(x.real.dtype))
    made = _each(made, lambda part: part.narrow(last, 0, length // 2 + 1))
    for dim in others:
        made = transforms.transform(made, dim, True)
    back = transforms.to_real(made, last, length)
    lengths = [x.real.shape[dim] for dim in others] + [length]
    result: torch.Tensor = _scale(Parts(back, nothing(back)), lengths, normalization, x.real.dtype).real
    return result
