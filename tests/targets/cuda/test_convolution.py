"""Convolutions on the CUDA target: taps, strides, paddings, dilations and groups, against eager in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import ingot
from ingot.compiler import run_cpu_pipeline
from ingot.ir.program import Program
from ingot.lowering.loop_ir import Convolution
from ingot.lowering.loop_module import Module
from ingot.targets.cuda.codegen import convolution as _convolution  # registers its writers
from ingot.targets.cuda.schedule.statements import ImplicitGemm, TiledGemm
from ingot.targets.reference.interpreted_model import InterpretedModel
from ingot.targets.reference.target import REFERENCE
from tests.support.cuda_emulation.emulated_model import EmulatedModel, PackingTarget, build_models, lower_for_cuda
from tests.targets.cuda.test_gemm_epilogues import compare, lower_model, randn

assert _convolution.KERNELS

# Layers, and the sizes of their images.
LAYERS: list[tuple[Any, tuple[int, ...]]] = [
    (lambda: nn.Conv2d(16, 24, 3, padding=1), (2, 16, 9, 7)),
    (lambda: nn.Conv2d(3, 8, 7, stride=2, padding=3), (1, 3, 17, 15)),  # few channels: they are padded
    (lambda: nn.Conv2d(16, 8, 1), (2, 16, 5, 5)),
    (lambda: nn.Conv2d(16, 8, 1, stride=2), (1, 16, 7, 6)),
    (lambda: nn.Conv2d(8, 12, (3, 2), stride=(1, 2), padding=(2, 0), dilation=(2, 1)), (1, 8, 8, 9)),
    (lambda: nn.Conv2d(16, 32, 3, padding=1, groups=4), (1, 16, 6, 6)),
    (lambda: nn.Conv2d(16, 16, 3, padding=1, groups=16), (2, 16, 7, 6)),
    (lambda: nn.Conv2d(6, 12, 5, stride=2, padding=2, groups=6, bias=False), (1, 6, 9, 9)),
    (lambda: nn.Conv2d(5, 7, 3, bias=False), (1, 5, 6, 5)),  # nothing is aligned
    (lambda: nn.Conv1d(24, 16, 4, padding=2, stride=2), (2, 24, 21)),
    (lambda: nn.Conv1d(12, 12, 9, padding=4, groups=12), (1, 12, 20)),
    (lambda: nn.Conv3d(4, 8, (2, 3, 3), padding=(1, 1, 0)), (1, 4, 4, 5, 6)),
    (lambda: nn.Conv2d(64, 16, 3, padding=1), (1, 64, 4, 4)),  # terms of one tap fill a tile
    (lambda: nn.Conv2d(1, 4, 3), (1, 1, 5, 5)),
]


def make_layers(dtype: torch.dtype) -> list[tuple[nn.Module, tuple[torch.Tensor, ...]]]:
    torch.manual_seed(3)
    # Halves share their kernels, and so do float32 and float64: the second of each pair does with every third layer.
    each = 1 if dtype in (torch.bfloat16, torch.float32) else 3
    return [(make().to(dtype).eval(), (randn(*shape, dtype=dtype),)) for make, shape in LAYERS[::each]]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_layers(dtype: torch.dtype) -> None:
    layers = make_layers(dtype)
    lowered = [lower_model(model, args) for model, args in layers]
    for (model, args), run, (program, module) in zip(layers, build_models(lowered), lowered, strict=True):
        compare(model, args, run)
        compare(model, args, InterpretedModel(PackingTarget(), program, module))


class Weights(nn.Module):
    """A convolution whose weight is an argument, as it lies."""

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return nn.functional.conv2d(x, weight, padding=1)


def test_weights_that_are_not_packed() -> None:
    for dtype in (torch.bfloat16, torch.float32):
        args = (randn(2, 8, 6, 5, dtype=dtype), randn(12, 8, 3, 3, dtype=dtype, seed=1))
        program, module = lower_model(Weights(), args)
        assert any(isinstance(step, ImplicitGemm) for step in module.steps)
        compare(Weights(), args, EmulatedModel(program, module))


class Block(nn.Module):
    """A residual block between two convolutions: what ResNet is made of."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.narrow, self.middle, self.wide = nn.Conv2d(16, 8, 1), nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 16, 1)
        self.last = nn.Conv2d(16, 8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        y = torch.relu(self.middle(torch.relu(self.narrow(x))))
        made: torch.Tensor = self.last(torch.relu(self.wide(y) + x))
        return made.flatten(1)


def test_residual_block() -> None:
    """One kernel per convolution: bias, addition and activation are in it."""
    for dtype in (torch.bfloat16, torch.float32):
        torch.manual_seed(0)
        model, args = Block().to(dtype).eval(), (randn(1, 3, 13, 12, dtype=dtype),)
        program, module = lower_model(model, args)
        products = [step for step in module.steps if isinstance(step, (TiledGemm, ImplicitGemm))]
        assert len(products) == 5 and len(module.steps) <= 7, str(module)
        compare(model, args, EmulatedModel(program, module))


def test_dynamic_images() -> None:
    sizes = ({0: torch.export.Dim("n", min=1, max=8), 2: torch.export.Dim("h", min=3, max=64)},)
    model = nn.Conv2d(16, 8, 3, padding=1).to(torch.bfloat16).eval()
    program, module = lower_model(model, (randn(2, 16, 9, 7),), dynamic_shapes=sizes)
    run = EmulatedModel(program, module)
    for n, high in ((2, 9), (1, 3), (3, 17)):
        compare(model, (randn(n, 16, high, 7),), run)


def test_schedule_without_tiles() -> None:
    model = nn.Conv2d(16, 8, 3, padding=1).eval()
    args = (randn(1, 16, 6, 6, dtype=torch.float32),)
    program: Program = run_cpu_pipeline(ingot.capture(model, args), (), REFERENCE)
    module: Module = lower_for_cuda(program, ("tiles",))
    assert any(type(step) is Convolution for step in module.steps)
    compare(model, args, EmulatedModel(program, module))


def test_split_convolution() -> None:
    """Blocks that share the terms, of all groups."""
    torch.manual_seed(0)
    for model in (nn.Conv2d(64, 16, 3, padding=1), nn.Conv2d(64, 32, 3, padding=1, groups=2)):
        model, args = model.to(torch.bfloat16).eval(), (randn(1, 64, 4, 4),)
        program, module = lower_model(model, args)
        steps = [replace(one, split_k=3) if isinstance(one, ImplicitGemm) else one for one in module.steps]
        assert steps != list(module.steps)
        compare(model, args, EmulatedModel(program, replace(module, steps=tuple(steps))))
