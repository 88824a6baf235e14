"""Discrete Fourier transforms along one dim, with real and imaginary parts as tensors of their own; none is scaled.

    ingot::dft(real, imaginary, turns, dim, backward) -> (real, imaginary)    of n complex numbers
    ingot::dft_of_real(x, turns, dim) -> (real, imaginary)                    of n real numbers: the first n // 2 + 1
    ingot::dft_to_real(real, imaginary, turns, dim, n) -> x                   back from such a half, to n real numbers

`turns` are the real and the imaginary parts of e^(-2πi·k/n), two rows of n, for those who compute by them.
"""

from __future__ import annotations

from typing import Any

import torch

from ingot.torch_internals.custom_ops import define, register_gradient

Pair = tuple[torch.Tensor, torch.Tensor]


def _parts(x: torch.Tensor) -> Pair:
    return x.real.contiguous(), x.imag.contiguous()


def _run(real: torch.Tensor, imaginary: torch.Tensor, turns: torch.Tensor, dim: int, backward: bool) -> Pair:
    x = torch.complex(real, imaginary)
    return _parts(torch.fft.ifft(x, dim=dim, norm="forward") if backward else torch.fft.fft(x, dim=dim))


def _run_of_real(x: torch.Tensor, turns: torch.Tensor, dim: int) -> Pair:
    return _parts(torch.fft.rfft(x, dim=dim))


def _run_to_real(real: torch.Tensor, imaginary: torch.Tensor, turns: torch.Tensor, dim: int, n: int) -> torch.Tensor:
    made: torch.Tensor = torch.fft.irfft(torch.complex(real, imaginary), n, dim=dim, norm="forward")
    return made


def _resize_dim(x: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    shape = list(x.shape)
    shape[dim] = size
    return x.new_empty(shape)


def _fake(real: torch.Tensor, imaginary: torch.Tensor, turns: torch.Tensor, dim: int, backward: bool) -> Pair:
    return real.new_empty(real.shape), imaginary.new_empty(imaginary.shape)


def _fake_of_real(x: torch.Tensor, turns: torch.Tensor, dim: int) -> Pair:
    half = x.shape[dim] // 2 + 1
    return _resize_dim(x, dim, half), _resize_dim(x, dim, half)


def _fake_to_real(real: torch.Tensor, imaginary: torch.Tensor, turns: torch.Tensor, dim: int, n: int) -> torch.Tensor:
    return _resize_dim(real, dim, n)


dft = define(
    "ingot", "dft(Tensor real, Tensor imaginary, Tensor turns, int dim, bool backward) -> (Tensor, Tensor)", _run, _fake
)
dft_of_real = define(
    "ingot", "dft_of_real(Tensor x, Tensor turns, int dim) -> (Tensor, Tensor)", _run_of_real, _fake_of_real
)
dft_to_real = define(
    "ingot",
    "dft_to_real(Tensor real, Tensor imaginary, Tensor turns, int dim, SymInt n) -> Tensor",
    _run_to_real,
    _fake_to_real,
)
OPERATORS = (dft, dft_of_real, dft_to_real)


# ---------------------------------------------------------------------- gradients


def _shares(like: torch.Tensor, dim: int, n: int) -> torch.Tensor:
    """In how many numbers of the whole spectrum each number of its half is found: 2, but 1 for those without a mirror
    image."""
    places = torch.arange(n // 2 + 1, device=like.device)
    shares = torch.where((places == 0) | (2 * places == n), 1, 2).to(like.dtype)
    return shares.reshape([-1 if d == dim % like.dim() else 1 for d in range(like.dim())])


def _gradient(saved: Any, real: torch.Tensor, imaginary: torch.Tensor) -> tuple[Any, ...]:
    (turns, dim, backward) = saved
    return (*dft(real, imaginary, turns, dim, not backward), None, None, None)


def _gradient_of_real(saved: Any, real: torch.Tensor, imaginary: torch.Tensor) -> tuple[Any, ...]:
    turns, dim = saved
    n = turns.shape[-1]
    shares = _shares(real, dim, n)
    return dft_to_real(real / shares, imaginary / shares, turns, dim, n), None, None


def _gradient_to_real(saved: Any, x: torch.Tensor) -> tuple[Any, ...]:
    turns, dim, n = saved
    shares = _shares(x, dim, n)
    real, imaginary = dft_of_real(x, turns, dim)
    return real * shares, imaginary * shares, None, None, None


register_gradient(dft, _gradient, lambda real, imaginary, turns, dim, backward: (turns, dim, backward))
register_gradient(dft_of_real, _gradient_of_real, lambda x, turns, dim: (turns, dim))
register_gradient(dft_to_real, _gradient_to_real, lambda real, imaginary, turns, dim, n: (turns, dim, n))
