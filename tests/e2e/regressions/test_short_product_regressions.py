"""Quantized products of one to five terms, where dims of size 1 leave strides open."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import ingot
from ingot.compiler import run_cpu_pipeline
from ingot.targets.cpu.schedule.statements import PackedGemm
from ingot.targets.cpu.target import CPU
from tests.support.pipeline_fixtures import assemble, lowered

X = torch.Tensor
TERMS = (1, 2, 3, 4, 5)
COLUMNS = (1, 3, 17)
FLAGS = ("-O0",)
MODES = ("int8_static", "int8_dynamic", "int8_weight_only", "int4_weight_only")
# How a layer's input comes about: dims of size 1 get strides of every kind.
FORMS: tuple[Callable[[X], X], ...] = (
    lambda x: x,
    lambda x: x.transpose(1, -1).contiguous().transpose(1, -1),
    lambda x: x.relu() + 0.5,
)


class Layers(nn.Module):
    """Layers of so many terms, each on every form of its input."""

    def __init__(self, terms: int) -> None:
        super().__init__()
        makers: tuple[Callable[[int], nn.Module], ...] = (
            lambda n: nn.Linear(terms, n),
            lambda n: nn.Conv1d(terms, n, 1),
            lambda n: nn.Conv2d(terms, n, 1),
            lambda n: nn.Conv2d(terms, n, (1, 3), padding=(0, 1)),
        )
        self.layers = nn.ModuleList(nn.ModuleList(make(n) for n in COLUMNS) for make in makers)

    def forward(self, rows: X, signal: X, image: X) -> list[X]:
        inputs = (rows, signal, image, image)
        return [
            layer(form(x))
            for x, kind in zip(inputs, self.layers, strict=True)
            for layer in kind
            for form in (FORMS if x is not rows else FORMS[::2])
        ]


def inputs(terms: int) -> tuple[X, X, X]:
    return torch.randn(21, terms), torch.randn(1, terms, 13), torch.randn(1, terms, 5, 4)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("terms", TERMS)
def test_quantized_layers_of_few_terms(terms: int, mode: str) -> None:
    torch.manual_seed(terms)
    args = inputs(terms)
    prepared = ingot.quantize.prepare(ingot.capture(Layers(terms).eval(), args), getattr(ingot.quantize, mode)())
    program = ingot.quantize.convert(ingot.quantize.calibrate(prepared, [args], progress=False))
    ready = run_cpu_pipeline(program)
    native = assemble(ready, CPU.schedule(CPU.lower(ready)), flags=FLAGS)
    with torch.no_grad():
        torch.testing.assert_close(native(*args), program(*args), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("terms", TERMS)
def test_narrow_layers_of_few_terms(terms: int) -> None:
    torch.manual_seed(terms)
    model, args = Layers(terms).eval(), inputs(terms)
    program, module = lowered(model, args, precision="bfloat16")
    with torch.no_grad():
        torch.testing.assert_close(assemble(program, module, flags=FLAGS)(*args), model(*args), rtol=2e-2, atol=2e-2)
    narrow = [step for step in module.steps if isinstance(step, PackedGemm) and step.factors == "bfloat16"]
    assert narrow and all(step.a.columns == 1 for step in narrow)
