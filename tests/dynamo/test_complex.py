"""Complex tensors in graphs, as arguments and as results, and tensors that are negated or conjugated when read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from ingot.passes.decompositions.complex import RULES
from tests.dynamo.recording import Recording, close


def numbers(*shape: int, dtype: torch.dtype = torch.complex64) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype)


def _write(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a.mul_(b)
    return a + 1


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "arithmetic": lambda a, b: (a + b) * b.conj() - a / (b + 3),
    "parts": lambda a, b: ((a * b).real, (a * b).imag, a.abs(), b.angle()),
    "an order of memory": lambda a, b: (a * b).t(),
    "views": lambda a, b: ((c := a * b), c.conj(), torch.view_as_real(c), c[0]),
    "views of an argument": lambda a, b: (a.conj(), a.t(), a.imag, a.conj().imag, b + 1),
    "functions": lambda a, b: torch.exp(a) + torch.polar(b.abs(), b.angle()),
    "a write": _write,
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("kind", ["plain", "transposed", "conjugated", "complex128"])
def test_functions(recording: Recording, name: str, kind: str) -> None:
    function = FUNCTIONS[name]

    def arguments() -> tuple[torch.Tensor, torch.Tensor]:
        torch.manual_seed(0)
        a, b = numbers(4, 4, dtype=torch.complex128 if kind == "complex128" else torch.complex64), numbers(4, 4)
        return (a.t() if kind == "transposed" else a.conj() if kind == "conjugated" else a), b

    want_args, have_args = arguments(), arguments()
    want, have = function(*want_args), torch.compile(function, backend=recording)(*have_args)
    close(have, want)
    close(have_args, want_args)
    wants, haves = (x if isinstance(x, tuple) else (x,) for x in (want, have))
    assert [x.stride() for x in haves] == [x.stride() for x in wants]
    if (name, kind) != ("a write", "conjugated"):
        assert recording.native == [True], recording.reports


def test_real_tensors_in_between(recording: Recording) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        z = torch.complex(x, x + 1) * 2j
        return z, torch.fft.fft(x).abs()

    x = torch.randn(3, 8)
    close(torch.compile(function, backend=recording)(x), function(x))
    assert recording.native == [True]


def test_gradients(recording: Recording) -> None:
    def function(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return ((a * a.conj()).real + (a * b).abs()).sum()

    found = []
    for run in (function, torch.compile(function, backend=recording)):
        torch.manual_seed(0)
        leaves = [numbers(3, 4).requires_grad_() for _ in range(2)]
        run(*leaves).backward()
        found.append([leaf.grad for leaf in leaves])
    close(*found)
    assert recording.native == [True, True]


@pytest.mark.parametrize("function", [lambda x: x * (2.0 + 1.0j), lambda x: x / (1.0 + 1.0j)], ids=["times", "over"])
@pytest.mark.parametrize("is_split", [False, True])
def test_gradients_of_literals(
    recording: Recording, function: Callable[[torch.Tensor], torch.Tensor], is_split: bool, monkeypatch: Any
) -> None:
    if is_split:  # a conjugated number that eager computed comes into native code
        monkeypatch.delitem(RULES._rules, torch.ops.aten._conj.default)
    found = []
    for run in (function, torch.compile(function, backend=recording)):
        x = torch.tensor([1 + 2j, 3 - 1j], requires_grad=True)
        run(x).abs().sum().backward()
        found.append(x.grad)
    close(*found)
    assert recording.native == [True, not is_split]


def test_open_sizes(recording: Recording) -> None:
    run = torch.compile(lambda a, b: a * b + 1, backend=recording, dynamic=True)
    for shape in ((3, 4), (5, 2)):
        a, b = numbers(*shape), numbers(*shape)
        close(run(a, b), a * b + 1)
    assert recording.native == [True]


@pytest.mark.parametrize("x", [torch._neg_view(torch.randn(4)), numbers(4).conj().imag], ids=["dense", "with holes"])
def test_an_argument_that_is_negated_when_read(recording: Recording, x: torch.Tensor) -> None:
    close(torch.compile(lambda x: x * 2, backend=recording)(x), x * 2)
    assert recording.native == [True]


def test_a_write_to_an_argument_that_is_negated_when_read(recording: Recording) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2

    want, have = (torch._neg_view(torch.arange(4.0)) for _ in range(2))
    close(torch.compile(function, backend=recording)(have), function(want))
    close(have, want)
