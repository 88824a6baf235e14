"""Products and convolutions of random shapes with small integers, where every order of a sum gives the same bits.

A tile of rows goes through a run of terms, and then through the next: shapes are drawn around the numbers of rows and
terms at which a tile, a run, a task or a line of the image ends.
"""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn

from ingot.codegen.build.isa import ISAS, Isa, missing_features
from ingot.targets.cpu.target import CPU, CpuTarget
from tests.support.emulated_amx import DENIED_AMX, EMULATED_AMX
from tests.support.int8_layers import Layer, inputs
from tests.support.pipeline_fixtures import assemble, lowered

RUNNABLE = [*(isa for isa in ISAS.values() if isa.architecture and not missing_features(isa)), EMULATED_AMX, DENIED_AMX]
LAYERS = 8
TERMS = (1, 2, 3, 31, 64, 170, 171, 257, 511, 512, 513, 700, 1025)
ROWS = (1, 5, 6, 7, 8, 11, 12, 13, 16, 17, 24, 25, 33, 63, 64, 65, 145)
COLUMNS = (5, 16, 31, 48, 50, 64, 65)


class Layers(nn.Module):
    """Layers beside each other, each with an input of its own."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(layer(x) for layer, x in zip(self.layers, given, strict=True))


def convolution(draws: random.Random) -> tuple[tuple[int, int, tuple[int, int]], dict[str, object], tuple[int, ...]]:
    """Channels, kernel and options of a convolution, and the shape of its input."""
    groups = draws.choice((1, 1, 1, 2))
    channels = draws.choice([c for c in TERMS if c <= 257]) * groups
    kernel = (
        draws.choice(((1, 1), (1, 3), (3, 3), (5, 2), (7, 7))) if channels < 100 else draws.choice(((1, 1), (3, 3)))
    )
    stride, dilation = (draws.randint(1, 2), draws.randint(1, 3)), draws.choice(((1, 1), (2, 1), (1, 2)))
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    padding = tuple(draws.randint(0, r // 2) for r in reach)
    size = [r + draws.choice((0, 1, 4, 12)) for r in reach]
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    return (channels, draws.choice(COLUMNS) * groups, kernel), options, (draws.randint(1, 3), channels, *size)


def whole(shape: tuple[int, ...], draws: torch.Generator, dtype: torch.dtype) -> torch.Tensor:
    return torch.randint(-4, 5, shape, generator=draws).to(dtype)


def drawn_layers(seed: int, dtype: torch.dtype) -> tuple[Layers, list[torch.Tensor]]:
    draws, numbers = random.Random(seed), torch.Generator().manual_seed(seed)
    layers: list[nn.Module] = []
    given = []
    for number in range(LAYERS):
        if number % 2:
            layer: nn.Module = nn.Linear(draws.choice(TERMS), draws.choice(COLUMNS))
            shape: tuple[int, ...] = (draws.choice(ROWS), layer.in_features)
        else:
            (channels, outs, kernel), options, shape = convolution(draws)
            layer = nn.Conv2d(channels, outs, kernel, **options)
        for parameter in layer.parameters():
            parameter.data = whole(tuple(parameter.shape), numbers, dtype)
        layers.append(layer)
        given.append(whole(shape, numbers, dtype))
    return Layers(layers).eval(), given


@pytest.mark.parametrize("isa", RUNNABLE, ids=str)
@pytest.mark.parametrize("kind", ["float32", "float64", "bfloat16"])
def test_integers_are_exact(kind: str, isa: Isa) -> None:
    check_whole_numbers(kind, isa, RUNNABLE.index(isa))


def check_whole_numbers(kind: str, isa: Isa, seed: int, target: CpuTarget = CPU) -> None:
    dtype = torch.float64 if kind == "float64" else torch.float32
    model, given = drawn_layers(seed * 10 + len(kind), dtype)
    program, module = lowered(model, tuple(given), precision="bfloat16" if kind == "bfloat16" else "float32")
    native = assemble(program, module, isa=isa, threads=2, target=target)
    with torch.no_grad():
        expected = model.double()(*(x.double() for x in given))
        for ours, right in zip(native(*given), expected, strict=True):
            assert torch.equal(ours.double(), right)


@pytest.mark.parametrize("isa", RUNNABLE, ids=str)
def test_bytes_are_exact(isa: Isa) -> None:
    check_bytes(isa, RUNNABLE.index(isa))


def check_bytes(isa: Isa, seed: int, target: CpuTarget = CPU) -> None:
    """Scales are powers of two: float32 eager computes the same layers without rounding."""
    draws = random.Random(seed)
    layers, shapes = [], []
    for number in range(LAYERS):
        if number % 2:
            terms = draws.choice((*TERMS, 2047, 2048, 2051))
            layers.append(Layer(terms, draws.choice(COLUMNS), zero=draws.choice((0, 7, 255)), out=None))
            shapes.append((draws.choice(ROWS), terms))
        else:
            (channels, outs, kernel), options, shape = convolution(draws)
            layers.append(Layer(channels, outs, kernel, zero=draws.choice((0, 7, 255)), out=None, options=options))
            shapes.append(shape)
    model, given = Layers(layers).eval(), inputs(*shapes)
    native = assemble(*lowered(model, tuple(given)), isa=isa, threads=2, target=target)
    with torch.no_grad():
        for ours, right in zip(native(*given), model(*given), strict=True):
            assert torch.equal(ours, right)
