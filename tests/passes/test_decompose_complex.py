"""Complex numbers as their parts: the same numbers from torch and from native code, and nothing complex left."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import ingot
from ingot import passes
from ingot.errors import UnsupportedOperator
from ingot.ir.metadata import tensors_in, touches_complex, value_of
from ingot.ir.outlining import graph_modules

Function = Callable[..., torch.Tensor]
ROAD = [*passes.DEFAULT_PIPELINE, passes.legalize, passes.decompose_complex]


def pair() -> tuple[torch.Tensor, torch.Tensor]:
    a, b = torch.randn(2, 4, 4, dtype=torch.float64)
    return a, b


def split(model: Any, args: tuple[Any, ...], **options: Any) -> ingot.Program:
    """The program after the pass, in which nothing is complex; a second run of the pass finds nothing to do."""
    program = ingot.transform(ingot.capture(model, args, **options), ROAD)
    nodes = [node for module in graph_modules(program.graph_module) for node in module.graph.nodes]
    assert not any(tensor.dtype.is_complex for node in nodes for tensor in tensors_in(value_of(node)))
    assert program.history[-1].changes > 0
    assert ingot.transform(program, [passes.decompose_complex]).history[-1].changes == 0
    return program


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    assert got.dtype == want.dtype
    scale = want.abs().max().clamp(min=1) if want.numel() and want.dtype.is_floating_point else 1
    torch.testing.assert_close(got / scale, want / scale, equal_nan=True)


def real(z: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(z.resolve_conj()) if z.is_complex() else z


# Of z and w, complex, and x, real.
OPERATORS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "mul": lambda z, w, x: z * w,
    "mul by a real tensor": lambda z, w, x: x * z,
    "mul by numbers": lambda z, w, x: 2 * z * (1 - 3j),
    "add": lambda z, w, x: z + w,
    "add a real tensor": lambda z, w, x: x[0] + z,
    "add with a factor": lambda z, w, x: torch.add(z, w, alpha=2),
    "add numbers": lambda z, w, x: (z + 1) + 2j,
    "sub": lambda z, w, x: z - w,
    "sub from a real tensor": lambda z, w, x: x - z,
    "sub from a number": lambda z, w, x: (1 + 1j) - z,
    "sub with a factor": lambda z, w, x: torch.sub(z, w, alpha=3),
    "div": lambda z, w, x: z / w,
    "div by a real tensor": lambda z, w, x: z / x,
    "div of a real tensor": lambda z, w, x: x / z,
    "div by numbers": lambda z, w, x: z / 3 + w / (2 - 1j),
    "reciprocal": lambda z, w, x: z.reciprocal(),
    "neg": lambda z, w, x: -z,
    "conj": lambda z, w, x: z.conj() * w,
    "exp": lambda z, w, x: z.exp(),
    "log": lambda z, w, x: z.log(),
    "abs": lambda z, w, x: z.abs(),
    "angle": lambda z, w, x: z.angle(),
    "sgn": lambda z, w, x: torch.sgn(z * (x > 0)),
    "real and imag": lambda z, w, x: z.real * z.imag,
    "polar": lambda z, w, x: torch.polar(x.abs(), x),
    "complex": lambda z, w, x: torch.complex(x, x[:1]),
    "matmul": lambda z, w, x: z @ w,
    "bmm": lambda z, w, x: torch.bmm(z[None], w[None]),
    "addmm": lambda z, w, x: torch.addmm(z, w, z, beta=0.5, alpha=2),
    "linear": lambda z, w, x: torch.nn.functional.linear(z, w, w[0]),
    "einsum": lambda z, w, x: torch.einsum("ij,kj->ik", z, w),
    "sum": lambda z, w, x: z.sum(0) + z.sum() + z.mean(-1),
    "cumsum": lambda z, w, x: z.cumsum(0),
    "cat with a real one": lambda z, w, x: torch.cat([z, x, w], 1),
    "cat with integers": lambda z, w, x: torch.cat([z, (x * 5).to(torch.int64)]),
    "where with integers": lambda z, w, x: torch.where(x > 0, z, (x * 5).to(torch.int64)),
    "stack": lambda z, w, x: torch.stack([z, w]),
    "split": lambda z, w, x: z.split([1, 3])[1] * w.chunk(2)[0][:1],
    "unbind": lambda z, w, x: z.unbind()[2],
    "views": lambda z, w, x: z.T.reshape(2, 8).unflatten(1, (2, 4)).flip(0)[..., 1:].squeeze(),
    "roll and repeat": lambda z, w, x: z.roll(1, 0).repeat(2, 1),
    "pad": lambda z, w, x: torch.nn.functional.pad(z, (1, 2)),
    "index": lambda z, w, x: z[torch.tensor([0, 2, 2])],
    "index a mask": lambda z, w, x: torch.where(x > 0, z, w),
    "where with a number": lambda z, w, x: torch.where(x > 0, z, 0.0),
    "masked_fill": lambda z, w, x: z.masked_fill(x > 0, 1.0),
    "assigned": lambda z, w, x: z.clone().index_put((torch.tensor([1]),), w[:1]),
    "triu": lambda z, w, x: z.triu(),
    "new ones": lambda z, w, x: z + torch.full((4,), 1 + 2j, dtype=z.dtype) * torch.ones_like(w) + torch.zeros_like(z),
    "new real ones": lambda z, w, x: torch.zeros_like(z, dtype=x.dtype) + torch.full_like(z, 2, dtype=x.dtype) + z.real,
    "equal": lambda z, w, x: (z == w) | (z != z.clone()),
    "isnan": lambda z, w, x: torch.isnan(z / 0),
    "another dtype": lambda z, w, x: z.to(torch.complex64) * 2,
    "from real": lambda z, w, x: x.to(torch.complex128) * z,
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operators(name: str) -> None:
    def model(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        z, w = torch.complex(a, b), torch.complex(b, a + 1)
        return real(OPERATORS[name](z, w, a - b))

    args = pair()
    close(split(model, args)(*args), model(*args))


def test_division_where_squares_run_over() -> None:
    def model(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return real(torch.complex(a, b) / torch.complex(b, a))

    for scale in (1e200, 1e-200):
        a, b = (x * scale for x in pair())
        close(split(model, (a, b))(a, b), model(a, b))


class Rotary(nn.Module):
    """As many models turn queries and keys; `table` is complex state."""

    def __init__(self) -> None:
        super().__init__()
        angles = torch.outer(torch.arange(9.0), 1 / 10 ** torch.arange(0, 1, 0.25))
        self.register_buffer("table", torch.polar(torch.ones_like(angles), angles))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        turned = torch.view_as_complex(x.float().unflatten(-1, (-1, 2))) * self.table[: x.shape[1], None]
        return torch.view_as_real(turned).flatten(-2).type_as(x)


def test_complex_state_at_any_size() -> None:
    model, x = Rotary(), torch.randn(2, 5, 3, 8)
    program = ingot.capture(model, (x,), dynamic_shapes={"x": {1: torch.export.Dim("seq", min=1, max=9)}})
    native = ingot.compile(program)
    for size in (1, 2, 9):
        x = torch.randn(2, size, 3, 8)
        close(native(x), model(x))
    assert program.state_dict["table"].is_complex() and model.table.is_complex(), "what is given stays as it was"


def test_state_that_is_a_conjugate() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("turns", torch.randn(4, dtype=torch.complex128).conj())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return real(torch.view_as_complex(x) * self.turns)

    model, x = Model(), torch.randn(4, 2, dtype=torch.float64)
    assert model.turns.is_conj()
    close(split(model, (x,))(x), model(x))


def test_under_no_grad() -> None:
    def model(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            turns = torch.polar(torch.ones_like(angles), angles)
        return (torch.view_as_complex(x) * turns).abs()

    args = torch.randn(5, 2, dtype=torch.float64), torch.randn(5, dtype=torch.float64)
    program = split(model, args)
    close(program(*args), model(*args))
    assert "wrap_with_set_grad_enabled(False" in str(program), "the switch is still there"


class Spectral(nn.Module):
    """A layer of a Fourier neural operator: its weights are complex parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 4, 6, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        low = torch.fft.rfft(x)[..., :6]
        return torch.fft.irfft(torch.einsum("bix,iox->box", low, self.weight), n=x.shape[-1])


def test_complex_parameters_are_for_running_alone() -> None:
    model, x = Spectral(), torch.randn(2, 3, 20)
    close(ingot.compile(model, (x,))(x), model(x).detach())
    program = ingot.transform(ingot.capture(model, (x,)), ROAD)
    assert program.history[-1].changes == 0, "it still trains"
    with pytest.raises(UnsupportedOperator, match="complex64 is not supported"):
        ingot.compile(model, (x,), training=True)


def test_training() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.rotary = nn.Linear(8, 8), Rotary()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.rotary(self.layer(x)).tanh() + torch.fft.fft(x, norm="ortho").real

    model, x = Model(), torch.randn(2, 5, 3, 8, requires_grad=True)
    gradients = []
    for call in (ingot.compile(model, (x,), training=True), model):
        asked = [*model.parameters(), x]
        gradients.append(torch.autograd.grad(call(x).square().sum(), asked))
    for ours, theirs in zip(*gradients, strict=True):
        close(ours, theirs)


# ---------------------------------------------------------------------- transforms


@pytest.mark.parametrize("length", [1, 2, 3, 7, 64, 65, 96, 101, 128, 360, 513, 1009])
def test_lengths(length: int) -> None:
    def model(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        half = torch.fft.rfft(x)
        return (
            real(half),
            real(torch.fft.ifft(x + 1j * x)),
            torch.fft.irfft(half, n=length),
            torch.fft.hfft(half, n=length),
        )

    x = torch.randn(3, length, dtype=torch.float64)
    for got, want in zip(split(model, (x,))(x), model(x), strict=True):
        close(got, want)


@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
def test_scales_and_several_dims(norm: str) -> None:
    def model(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        spectrum = torch.fft.rfftn(x, dim=(0, 2), norm=norm)
        both = torch.fft.fft2(x, norm=norm), torch.fft.ifftn(x, dim=(1, 0), norm=norm)
        return real(spectrum), torch.fft.irfftn(spectrum, s=(6, 9), dim=(0, 2), norm=norm), *map(real, both)

    x = torch.randn(6, 5, 9, dtype=torch.float64)
    for got, want in zip(split(model, (x,))(x), model(x), strict=True):
        close(got, want)


def test_a_length_that_is_known_only_when_it_runs() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.fft.fft(x, dim=1, norm="ortho").real

    x = torch.randn(2, 12, 3)
    native = ingot.compile(model, (x,), dynamic_shapes={"x": {1: torch.export.Dim("n", min=1, max=200)}})
    for size in (1, 2, 67, 200):
        x = torch.randn(2, size, 3)
        close(native(x), model(x))


def test_native_spectrogram() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        spectrum = torch.stft(x, 400, 160, window=torch.hann_window(400), return_complex=True)
        return spectrum[..., :-1].abs() ** 2

    x = torch.randn(2, 1600)
    exact = torch.stft(x.double(), 400, 160, window=torch.hann_window(400).double(), return_complex=True)
    exact = exact[..., :-1].abs() ** 2
    ours, theirs = ((y - exact).norm() for y in (ingot.compile(model, (x,))(x), model(x)))
    assert ours <= 2 * theirs


# ---------------------------------------------------------------------- what is left alone


def _branching(x: torch.Tensor) -> torch.Tensor:
    z = torch.view_as_complex(x)
    return torch.view_as_real(torch.cond(x.sum() > 0, lambda z: z * 2, lambda z: z * z, (z,)))


@pytest.mark.parametrize(
    "model",
    [
        lambda x: torch.view_as_complex(x) * 2,
        lambda x: torch.view_as_complex(x).acos().real,
        _branching,
    ],
    ids=["a result", "no rule", "a branch"],
)
def test_all_or_nothing(model: Function) -> None:
    x = torch.randn(3, 2)
    program = ingot.transform(ingot.capture(model, (x,)), ROAD)
    assert program.history[-1].changes == 0
    close(real(program(x)), real(model(x)))
    with pytest.raises(UnsupportedOperator, match=r"test_decompose_complex\.py:\d+"):
        ingot.compile(model, (x,))


def test_a_long_prime_takes_a_kernel() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.fft.fft(torch.nn.functional.pad(x, (0, 2 * 1031 - 2))).real

    x = torch.randn(3, 2)
    program = ingot.transform(ingot.capture(model, (x,)), ROAD)
    assert program.history[-1].changes == 0
    close(real(program(x)), real(model(x)))
    close(ingot.compile(model, (x,))(x), model(x))


def test_an_argument_that_is_complex() -> None:
    z = torch.randn(3, dtype=torch.complex64)
    with pytest.raises(UnsupportedOperator, match="complex64 is not supported"):
        ingot.compile(lambda z: z.abs(), (z,))


# ---------------------------------------------------------------------- a part of the program


class Squaring(nn.Module):
    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return z * z


class Calling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Squaring()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return real(self.inner(torch.view_as_complex(x) * 2) + 1)


# For each model the operators that still take or give a complex tensor, but for the steps to and from one.
PARTIAL: dict[str, tuple[Any, set[str]]] = {
    "all of it": (lambda x: real(torch.view_as_complex(x) * 2), set()),
    "a result": (lambda x: torch.view_as_complex(x) * 2, {"output"}),
    "no rule": (lambda x: real((torch.view_as_complex(x) * 2).acos() + 1), {"aten.acos.default"}),
    "a branch": (_branching, {"cond", "output"}),
    "an FFT that is kept": (lambda x: real(torch.fft.fft(x) * 2j), {"aten._fft_r2c.default"}),
    "nothing but an FFT": (lambda x: real(torch.fft.fft(torch.view_as_complex(x))), {"aten._fft_c2c.default"}),
    "a preserved call": (Calling(), set()),
}
KEPT = [torch.ops.aten._fft_r2c.default, torch.ops.aten._fft_c2c.default]
STEPS = [torch.ops.aten.view_as_complex.default, torch.ops.aten.view_as_real.default, operator.getitem]


@pytest.mark.parametrize("name", PARTIAL)
def test_partial(name: str) -> None:
    model, expected = PARTIAL[name]
    options = {"preserve_module_call_signature": ("inner",)} if isinstance(model, nn.Module) else {}
    x = torch.randn(3, 2, dtype=torch.float64)
    before = ingot.transform(ingot.capture(model, (x,), **options), ROAD[:-1])
    run = (passes.decompose_complex, {"keep": KEPT, "partial": True})
    program = ingot.transform(before, [run])
    nodes = [node for module in graph_modules(program.graph_module) for node in module.graph.nodes]
    left = {str(n.target) for n in nodes if touches_complex(n) and n.op != "placeholder" and n.target not in STEPS}
    assert left == expected
    assert (program.history[-1].changes > 0) == (name != "nothing but an FFT")
    assert ingot.transform(program, [run]).history[-1].changes == 0
    close(real(program(x)), real(model(x)))


def test_partial_with_a_complex_argument() -> None:
    def model(z: torch.Tensor) -> torch.Tensor:
        return (z * 2j + 1).abs()

    z = torch.randn(3, dtype=torch.complex128)
    program = ingot.transform(ingot.capture(model, (z,)), [*ROAD[:-1], (passes.decompose_complex, {"partial": True})])
    assert [str(n.target) for n in program.graph.nodes if touches_complex(n)] == ["z", "aten.view_as_real.default"]
    close(program(z), model(z))
