"""What follows a product in its own kernel: programs against eager in float64, and where their values lie."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ingot
from ingot.compiler import run_cpu_pipeline
from ingot.ir.program import Program
from ingot.lowering.loop_ir import Gemm, Map
from ingot.lowering.loop_module import Module
from ingot.targets.cuda.codegen import gemm as _gemm  # registers its writers
from ingot.targets.cuda.schedule.statements import TiledGemm
from ingot.targets.reference.interpreted_model import InterpretedModel
from ingot.targets.reference.target import REFERENCE
from tests.support.cuda_emulation.emulated_model import EmulatedModel, PackingTarget, build_models, lower_for_cuda
from tests.support.cuda_emulation.kernels import write_kernels

assert _gemm.KERNELS

# Against float64, relative to the largest value: a few roundings of a result.
TOLERANCES = {torch.bfloat16: 1.2e-2, torch.float16: 1.5e-3, torch.float32: 2e-6, torch.float64: 1e-13}


def lower_model(model: Any, args: tuple[Any, ...], **options: Any) -> tuple[Program, Module]:
    program = run_cpu_pipeline(ingot.capture(model, args, **options), (), REFERENCE)
    return program, lower_for_cuda(program)


def in_double(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def compare(model: nn.Module, args: tuple[Any, ...], run: Callable[..., Any]) -> None:
    """What `run` gives, against the model in float64: as near as its coarsest dtype lets it be."""
    found = run(*args)
    with torch.no_grad():
        expected = copy.deepcopy(model).double()(*map(in_double, args))
    leaves = torch.utils._pytree.tree_leaves
    for ours, theirs in zip(leaves(found), leaves(expected), strict=True):
        assert ours.shape == theirs.shape
        scale = max(float(theirs.abs().max()), 1e-6)
        error = float((ours.double() - theirs).abs().max()) / scale
        tolerance = max(TOLERANCES[ours.dtype], TOLERANCES[args[0].dtype])
        assert error <= tolerance, f"{error} {ours.dtype}"


class Layer(nn.Module):
    """A product with a bias, then what `then` says; `more` is what it may add."""

    def __init__(self, inputs: int, outputs: int, then: Callable[..., Any], bias: bool = True) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs, bias=bias)
        self.then = then

    def forward(self, x: torch.Tensor, *more: torch.Tensor) -> Any:
        return self.then(self.linear(x), *more)


def randn(*shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def make_layers(dtype: torch.dtype) -> list[tuple[nn.Module, tuple[torch.Tensor, ...]]]:
    def x(*shape: int) -> torch.Tensor:
        return randn(*shape, dtype=dtype, seed=len(shape))

    layers: list[tuple[Layer, tuple[torch.Tensor, ...]]] = [
        (Layer(40, 24, F.gelu), (x(35, 40),)),
        (Layer(40, 33, F.relu, bias=False), (x(35, 40),)),  # columns that no vector divides
        (Layer(40, 24, lambda y, r: torch.tanh(y + r)), (x(2, 17, 40), x(2, 17, 24))),
        (Layer(40, 24, lambda y, r: (y, y + r)), (x(35, 40), x(35, 24))),  # two stores
        (Layer(40, 24, lambda y, r: y * r), (x(4, 9, 40), x(4, 1, 24))),
        (Layer(40, 48, lambda y: y.view(2, 17, 4, 12).transpose(1, 2)), (x(2, 17, 40),)),
        (Layer(40, 24, lambda y: y.transpose(0, 1).contiguous()), (x(35, 40),)),
        (Layer(64, 24, lambda y, r: F.silu(y) + r), (x(1, 64), x(1, 24))),
        (Layer(64, 24, F.softplus), (x(5, 64),)),
        (Layer(640, 16, lambda y, r: y + r), (x(20, 640), x(20, 16))),  # blocks that share terms
        (Layer(7, 5, torch.sigmoid), (x(3, 7),)),
        (Layer(16, 8, lambda y: y.float() * 3), (x(9, 16),)),
    ]
    return [(layer.to(dtype).eval(), args) for layer, args in layers]


@pytest.mark.parametrize("dtype", list(TOLERANCES))
def test_epilogues(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    layers = make_layers(dtype)
    lowered = [lower_model(model, args) for model, args in layers]
    for (model, args), run, (program, module) in zip(layers, build_models(lowered), lowered, strict=True):
        interpreted = InterpretedModel(PackingTarget(), program, module)
        compare(model, args, run)
        compare(model, args, interpreted)


def test_epilogues_of_shared_terms() -> None:
    """The second kernel, which adds up the parts, has the epilogue."""
    for model, args in make_layers(torch.bfloat16)[:7]:
        program, module = lower_model(model, args)
        steps = [replace(one, split_k=2) if isinstance(one, TiledGemm) else one for one in module.steps]
        assert steps != list(module.steps)
        compare(model, args, EmulatedModel(program, replace(module, steps=tuple(steps))))


def test_what_follows_a_product_is_its_epilogue() -> None:
    (model, args) = make_layers(torch.bfloat16)[2]
    _, module = lower_model(model, args)
    (step,) = module.steps
    assert isinstance(step, TiledGemm) and "tanh" in str(module) and "tiled_gemm m=34 n=24 k=40" in str(module)


def test_gelu_of_every_bfloat16() -> None:
    """The shorter 1 + erf(x) of results that are rounded: as near to float64 as eager is, or nearer, for all inputs."""
    every = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    x = every[every.isfinite()].reshape(-1, 1)
    model = nn.Sequential(nn.Linear(1, 8, bias=False), nn.GELU()).to(torch.bfloat16).eval()
    with torch.no_grad():
        model[0].weight.fill_(1.0)
    program, module = lower_model(model, (x,))
    text, _ = write_kernels(module)
    assert "= ig_erf_plus_one(" in text and "= ig_erf_f32(" not in text
    ours = EmulatedModel(program, module)(x)[:, 3].double()
    exact = x[:, 0].double()
    exact = 0.5 * exact * torch.special.erfc(-exact * 0.5**0.5)
    error, theirs = (ours - exact).abs(), (F.gelu(x[:, 0]).double() - exact).abs()
    assert error.sum() <= theirs.sum()
    assert (error <= theirs).all(), x[error > theirs].tolist()[:9]


def test_silu_of_every_bfloat16() -> None:
    """The shorter sigmoid of results that are rounded: as near to float64 as eager is, or nearer, but for results that
    are smaller than normal numbers."""
    every = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    x = every[every.isfinite()].reshape(-1, 1)
    model = nn.Sequential(nn.Linear(1, 8, bias=False), nn.SiLU()).to(torch.bfloat16).eval()
    with torch.no_grad():
        model[0].weight.fill_(1.0)
    program, module = lower_model(model, (x,))
    assert "= ig_sigmoid_near(" in write_kernels(module)[0]
    ours = EmulatedModel(program, module)(x)[:, 3].double()
    exact = x[:, 0].double()
    exact = exact * torch.sigmoid(exact)
    error, theirs = (ours - exact).abs(), (F.silu(x[:, 0]).double() - exact).abs()
    assert (error <= theirs + 2e-36).all(), x[error > theirs + 2e-36].tolist()[:9]


def test_what_is_not_rounded_keeps_its_function() -> None:
    for silu in (lambda y: F.silu(y.float()), lambda y: (F.silu(y), torch.sigmoid(y.float()))):
        _, module = lower_model(Layer(64, 8, silu).to(torch.bfloat16).eval(), (randn(20, 64),))
        assert "= ig_sigmoid_near(" not in write_kernels(module)[0]
    for then in (lambda y: F.gelu(y.float()), lambda y: (F.gelu(y), torch.erf(y.float()) + 1), torch.erf):
        _, module = lower_model(Layer(64, 8, then).to(torch.bfloat16).eval(), (randn(20, 64),))
        text, _ = write_kernels(module)
        assert "= ig_erf_f32(" in text
    assert "= ig_erf_plus_one(" not in text
    _, module = lower_model(Layer(64, 8, F.gelu).to(torch.float16).eval(), (randn(20, 64, dtype=torch.float16),))
    assert "= ig_erf_f32(" in write_kernels(module)[0]


class Products(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return a @ b, (a.transpose(-1, -2) @ b.transpose(-1, -2).transpose(-1, -2)[..., :4]) * 2, a @ c


def test_products_of_activations() -> None:
    for dtype in (torch.bfloat16, torch.float32):
        args = (randn(2, 3, 16, 16, dtype=dtype), randn(2, 3, 16, 24, dtype=dtype), randn(16, 8, dtype=dtype))
        program, module = lower_model(Products(), args)
        assert str(module).count("tiled_gemm") == 3
        compare(Products(), args, EmulatedModel(program, module))


def test_dynamic_sizes() -> None:
    """Dynamic rows, columns and terms."""
    rows = torch.export.Dim("rows", min=1, max=512)
    terms = torch.export.Dim("terms", min=1, max=512)

    class Model(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return torch.relu(a @ b)

    for dtype in (torch.bfloat16, torch.float32):
        args = (randn(30, 48, dtype=dtype), randn(48, 20, dtype=dtype))
        program, module = lower_model(Model(), args, dynamic_shapes=({0: rows, 1: terms}, {0: terms}))
        run = EmulatedModel(program, module)
        for m, k in ((30, 48), (1, 7), (65, 33)):
            compare(Model(), (randn(m, k, dtype=dtype), randn(k, 20, dtype=dtype, seed=3)), run)


def test_schedule_without_tiles() -> None:
    model, args = make_layers(torch.bfloat16)[0]
    program = run_cpu_pipeline(ingot.capture(model, args), (), REFERENCE)
    module = lower_for_cuda(program, ("tiles",))
    assert [type(step) for step in module.steps] == [Gemm]
    compare(model, args, EmulatedModel(program, module))
    assert not any(isinstance(step, Map) for step in module.steps)
