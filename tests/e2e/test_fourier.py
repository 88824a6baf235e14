"""FFTs as native code: every way a length is taken, held to torch in float64."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

import ingot
from ingot.ir.operators import fourier
from ingot.passes.decompositions.dft import OperatorTransforms

X = torch.Tensor
# One, powers of two, small factors, primes that a pass takes and primes that it does not, halves that are primes.
LENGTHS = (1, 2, 3, 8, 12, 30, 31, 64, 127, 131, 262, 400)
# Shapes around a line of n, and its dim: lines apart, next to each other, more and fewer than vectors have lanes.
PLACES: tuple[tuple[Callable[[int], tuple[int, ...]], int], ...] = (
    (lambda n: (n,), 0),
    (lambda n: (21, n), -1),
    (lambda n: (2, n, 3), 1),
    (lambda n: (n, 19), 0),
    (lambda n: (2, n, 16), -2),
)


class Computes(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: X) -> Any:
        return self.function(*args)


def all_ways(x: X, z: X, n: int, dim: int) -> list[X]:
    """Each kind of transform of x, and of the complex numbers that z holds the parts of."""
    pairs = torch.view_as_complex(z)
    half = pairs.narrow(dim, 0, n // 2 + 1)
    spectra = [
        torch.fft.fft(pairs, dim=dim),
        torch.fft.ifft(pairs, dim=dim),
        torch.fft.rfft(x, dim=dim),
        torch.fft.fft(x, dim=dim, norm="ortho"),
        torch.fft.ihfft(x, dim=dim).resolve_conj(),
    ]
    return [*map(torch.view_as_real, spectra), torch.fft.irfft(half, n, dim=dim), torch.fft.hfft(half, n, dim=dim)]


def given(n: int, shape: Sequence[int], dtype: torch.dtype) -> tuple[X, X]:
    generator = torch.Generator().manual_seed(n)
    x = torch.randn(*shape, generator=generator, dtype=torch.float64)
    z = torch.randn(*shape, 2, generator=generator, dtype=torch.float64)
    return x.to(dtype), z.to(dtype)


def check(found: Sequence[X], eager: Sequence[X], truth: Sequence[X], case: Any) -> None:
    """At most four times as far from float64 as eager is, or a few roundings of the largest number; eager's own, too,
    where that is of float64."""
    for number, (one, other, exact) in enumerate(zip(found, eager, truth, strict=True)):
        assert one.shape == other.shape and one.dtype == other.dtype, (case, number)
        rounding = torch.finfo(other.dtype).eps / 2 * exact.abs().max()
        error, allowed = (one.double() - exact).abs().max(), (other.double() - exact).abs().max()
        roundings = 32 if other.dtype is torch.float64 else 8
        assert error <= 4 * allowed + roundings * rounding, (case, number, error, allowed)


@pytest.mark.parametrize(
    ("place", "dtype"),
    [*((place, torch.float32) for place in range(len(PLACES))), *((2, torch.float64), (3, torch.float64))],
)
def test_every_length(place: int, dtype: torch.dtype) -> None:
    shape_of, dim = PLACES[place]
    lengths = [n for n in LENGTHS if len(shape_of(n)) < 3 or n < 130]

    def compute(*args: X) -> list[X]:
        return [y for n, x, z in zip(lengths, args[::2], args[1::2], strict=True) for y in all_ways(x, z, n, dim)]

    args = [value for n in lengths for value in given(n, shape_of(n), dtype)]
    found = ingot.compile(Computes(compute), tuple(args))(*args)
    check(found, compute(*args), compute(*(a.double() for a in args)), shape_of(0))


def test_lengths_that_are_cut() -> None:
    """Long lines, and few, are cut in two; what is left of them may be a prime, or odd."""
    lengths = (256, 1000, 2187, 4000, OperatorTransforms.LONG * 2, 30_030)

    def compute(*args: X) -> list[X]:
        return [y for n, x, z in zip(lengths, args[::2], args[1::2], strict=True) for y in all_ways(x, z, n, -1)]

    args = [value for n in lengths for value in given(n, (2, n), torch.float32)]
    found = ingot.compile(Computes(compute), tuple(args))(*args)
    check(found, compute(*args), compute(*(a.double() for a in args)), "cut")


def test_lengths_that_the_run_brings() -> None:
    def compute(x: X, z: X) -> list[X]:
        return all_ways(x, z, x.shape[1], 1)

    n = torch.export.Dim("n", min=1, max=2000)
    shapes = ({1: n}, {1: n})
    compiled = ingot.compile(ingot.capture(Computes(compute), given(12, (5, 12), torch.float32), dynamic_shapes=shapes))
    for length in (1, 2, 3, 12, 13, 127, 128, 131, 262, 393, 1000, 1009):
        x, z = given(length, (5, length), torch.float32)
        check(compiled(x, z), compute(x, z), compute(x.double(), z.double()), length)


def test_several_dims() -> None:
    def compute(x: X) -> list[X]:
        spectra = [
            torch.fft.fft2(x),
            torch.fft.rfftn(x),
            torch.fft.fftn(x, dim=(0, 2), norm="ortho"),
            torch.fft.fft(x.transpose(0, 2), dim=0),
            torch.fft.ifftshift(torch.fft.fft2(x, s=(5, 12))),
        ]
        whole = torch.fft.rfft2(x)
        return [*map(torch.view_as_real, spectra), torch.fft.irfft2(whole, s=(6, 9)), torch.fft.irfftn(whole)]

    x = torch.randn(4, 6, 9, generator=torch.Generator().manual_seed(0))
    check(ingot.compile(Computes(compute), (x,))(x), compute(x), compute(x.double()), "dims")


def test_what_is_not_finite_stays_in_its_line() -> None:
    """And a line of small numbers is as exact beside one of large ones."""
    x = torch.randn(40, 64, generator=torch.Generator().manual_seed(0))
    x[3, 5], x[20, 7] = float("nan"), float("inf")
    x[::2] *= 1e6

    def compute(x: X) -> list[X]:
        return [torch.view_as_real(torch.fft.rfft(x)), torch.fft.irfft(torch.fft.rfft(x))]

    for found, expected in zip(ingot.compile(Computes(compute), (x,))(x), compute(x.double()), strict=True):
        for line in (line for line in range(len(x)) if line not in (3, 20)):
            torch.testing.assert_close(
                found[line].double(), expected[line], rtol=0, atol=1e-6 * float(expected[line].abs().max())
            )
        assert not found[[3, 20]].isfinite().all()


def test_imaginary_parts_that_no_real_line_has() -> None:
    def compute(z: X) -> list[X]:
        return [torch.fft.irfft(torch.view_as_complex(z), n) for n in (8, 9)]

    z = torch.randn(3, 5, 2)
    z[:, 0, 1] = z[:, 4, 1] = float("nan")
    found = ingot.compile(Computes(compute), (z,))(z)[0]
    z[:, 0, 1] = z[:, 4, 1] = 0
    torch.testing.assert_close(found, compute(z)[0])


@pytest.mark.parametrize("n", [1, 2, 3, 8, 9])
def test_gradients_of_the_operators(n: int) -> None:
    def numbers(*shape: int) -> X:
        return torch.randn(*shape, dtype=torch.float64, requires_grad=True)

    turns = torch.zeros(2, n, dtype=torch.float64)
    for backward in (False, True):
        operands = (numbers(2, n, 3), numbers(2, n, 3))
        assert torch.autograd.gradcheck(lambda a, b, back=backward: fourier.dft(a, b, turns, 1, back), operands)
    assert torch.autograd.gradcheck(lambda a: fourier.dft_of_real(a, turns, -2), (numbers(2, n, 3),))
    half = (numbers(2, n // 2 + 1, 3), numbers(2, n // 2 + 1, 3))
    assert torch.autograd.gradcheck(lambda a, b: fourier.dft_to_real(a, b, turns, 1, n), half)


def test_training_through_a_transform() -> None:
    class Filter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain = nn.Parameter(torch.linspace(0, 1, 18).view(9, 2))

        def forward(self, x: X) -> X:
            return torch.fft.irfft(torch.fft.rfft(x) * torch.view_as_complex(self.gain), 16).square().sum()

    model, x = Filter(), torch.randn(5, 16)
    trained = ingot.compile(model, (x,), training=True)
    trained(x).backward()
    found = model.gain.grad
    model.gain.grad = None
    model(x).backward()
    torch.testing.assert_close(found, model.gain.grad)


def drawn(seed: int) -> tuple[nn.Module, tuple[X, ...]]:
    """A few transforms after one another along dims at random, with what else may stand between them."""
    draws = random.Random(seed)
    shape = tuple(draws.choice((1, 2, 3, 5, 8, 12, 17, 20)) for _ in range(draws.choice((1, 2, 3))))
    steps = []
    for _ in range(draws.choice((1, 2, 3))):
        norm = draws.choice(("backward", "ortho", "forward"))
        dims = draws.sample(range(len(shape)), draws.randint(1, len(shape)))
        steps.append((draws.choice(("fftn", "ifftn", "filter", "turned")), norm, dims))

    def compute(x: X) -> X:
        for kind, norm, dims in steps:
            if kind == "filter":
                half = torch.fft.rfftn(x, dim=dims, norm=norm)
                x = torch.fft.irfftn(half * (half.abs() > 0.1), s=[x.shape[d] for d in dims], dim=dims, norm=norm)
            elif kind == "turned":
                z = torch.fft.fft(x, dim=dims[0], norm=norm).movedim(dims[0], dims[-1]).movedim(dims[-1], dims[0])
                x = z.real - z.imag
            else:
                x = getattr(torch.fft, kind)(torch.complex(x, x.sin()), dim=dims, norm=norm).real
        return x

    return Computes(compute), (torch.randn(shape, generator=torch.Generator().manual_seed(seed)),)


@pytest.mark.parametrize("seed", range(12))
def test_random_programs_with_the_kernel_and_without(seed: int) -> None:
    model, args = drawn(seed)
    exact, eager = model(*(x.double() for x in args)), model(*args)
    for disabled in ((), ("dft",)):
        compiled = ingot.compile(model, args, disable_passes=disabled)
        assert ("ig_dft_" in compiled.source) is not bool(disabled)
        check([compiled(*args)], [eager], [exact], (seed, disabled))


def test_the_reference_target_agrees() -> None:
    def compute(x: X, z: X) -> list[X]:
        return [*all_ways(x, z, 12, 1), *all_ways(x[:, :7], z[:, :7], 7, 1)]

    x, z = given(12, (3, 12), torch.float32)
    found = ingot.compile(Computes(compute), (x, z), check="numerics", target="reference")(x, z)
    check(found, compute(x, z), compute(x.double(), z.double()), "reference")


def test_parts_side_by_side_are_one_step() -> None:
    """Both halves of a complex result are written by one loop, which chooses nothing."""
    compiled = ingot.compile(Computes(lambda a, b: torch.stack([a.sin(), b * 2], -1)), (torch.randn(7),) * 2)
    (source,) = (text for text in compiled.source.split("\n\n") if "ig_sin_f32(" in text and "for (" in text)
    assert "?" not in source
