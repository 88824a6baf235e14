"""Lowering without a target: products, convolutions and attention stay whole, over memory as it is."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ingot
from ingot.compiler import run_cpu_pipeline
from ingot.errors import ScheduleError
from ingot.ir.program import Program
from ingot.lowering.index_expr import require_static
from ingot.lowering.loop_ir import Attention, Convolution, Gemm, Map, Reduce, StridedView
from ingot.lowering.loop_ir_verifier import verify_module
from ingot.lowering.loop_module import Module
from ingot.lowering.lower import lower
from ingot.targets.cpu.schedule.statements import PackedGemm
from ingot.targets.cpu.target import CPU


def plain(model: nn.Module, *args: torch.Tensor, dims: object = None) -> tuple[Program, Module]:
    program = run_cpu_pipeline(ingot.capture(model.eval(), args, dynamic_shapes=dims))
    module = lower(program)
    verify_module(module, "lower")
    return program, module


def test_nothing_is_chosen_for_a_machine() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.line = nn.Conv2d(32, 48, 3, padding=1), nn.Linear(48, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.line(self.conv(x).flatten(2).transpose(1, 2))[:, None]
            return F.scaled_dot_product_attention(y, y, y)

    _, module = plain(Model(), torch.randn(1, 32, 8, 8))
    assert {Convolution, Gemm, Attention} <= {type(step) for step in module.steps}
    assert {type(step).__module__ for step in module.steps} == {"ingot.lowering.loop_ir"}
    assert all(weight.layout is None for weight in module.weights)


def test_few_rows_and_half_weights_stay_as_they_are() -> None:
    _, module = plain(nn.Linear(24, 8).bfloat16(), torch.randn(1, 24).bfloat16())
    (step,) = (step for step in module.steps if isinstance(step, Gemm))
    assert module.buffers[step.b.buffer].dtype == "bfloat16" and step.dtype == "float32"


def test_a_plain_product_is_scheduled_and_compiled_too() -> None:
    """What no strategy has packed, the CPU's kernels pack while they run."""
    model, x = nn.Sequential(nn.Linear(24, 40), nn.ReLU(), nn.Linear(40, 10)), torch.randn(9, 24)
    program, module = plain(model, x)
    scheduled = CPU.schedule(module)
    assert not any(isinstance(step, PackedGemm) for step in scheduled.steps)
    assert sum(isinstance(step, Gemm) for step in scheduled.steps) == 2
    from tests.support.pipeline_fixtures import assemble

    native = assemble(program, scheduled)
    torch.testing.assert_close(native(x), model(x))
    native.close()


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv2d(6, 9, 3, stride=2, padding=1, dilation=2, groups=3), (2, 6, 11, 10)),
        (nn.Conv1d(4, 5, 3, padding=2), (2, 4, 9)),
        (nn.Conv3d(2, 3, (2, 3, 1)), (1, 2, 4, 5, 3)),
    ],
    ids=["2d", "1d", "3d"],
)
def test_a_convolution_means_what_its_docstring_says(layer: nn.Module, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    program, module = plain(layer, x)
    (step,) = (step for step in module.steps if isinstance(step, Convolution))
    weight = next(w for w in module.weights if w.buffer == step.weight.buffer)
    buffers = {step.x.buffer: x.numpy(), step.weight.buffer: program.state_dict[weight.source].detach().numpy()}
    found = _sums(step, buffers) + layer.bias.detach().numpy()
    expected = layer(x).detach().movedim(1, -1).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-5)


def _sums(step: Convolution, buffers: dict[str, np.ndarray]) -> np.ndarray:
    sizes, outs = tuple(map(require_static, step.size)), tuple(map(require_static, step.out_size))
    x = _view(step.x, (require_static(step.images), step.channels * step.groups, *sizes), buffers)
    weight = _view(step.weight, (step.out_channels, step.channels, *step.kernel), buffers)
    made = np.zeros((require_static(step.images), *outs, step.out_channels))
    for place in np.ndindex(*outs):
        for tap in np.ndindex(*step.kernel):
            walk = zip(place, tap, step.stride, step.dilation, step.padding, strict=True)
            at = tuple(p * s + t * d - require_static(pad) for p, t, s, d, pad in walk)
            if not all(0 <= a < size for a, size in zip(at, sizes, strict=True)):
                continue
            for out in range(step.out_channels):
                group = out // (step.out_channels // step.groups)
                pixel = x[(slice(None), slice(group * step.channels, (group + 1) * step.channels), *at)]
                made[(slice(None), *place, out)] += pixel @ weight[(out, slice(None), *tap)]
    return made


def _view(view: StridedView, shape: tuple[int, ...], buffers: dict[str, np.ndarray]) -> np.ndarray:
    flat = buffers[view.buffer].reshape(-1)[require_static(view.offset) :]
    return np.lib.stride_tricks.as_strided(flat, shape, [require_static(s) * flat.itemsize for s in view.strides])


def test_the_cpu_refuses_a_convolution_without_an_algorithm() -> None:
    _, module = plain(nn.Conv2d(3, 4, 3), torch.randn(1, 3, 5, 5))
    with pytest.raises(ScheduleError, match="it has no algorithm"):
        CPU.schedule(module)


def test_a_transposed_convolution_is_loops() -> None:
    _, module = plain(nn.ConvTranspose2d(3, 4, 3), torch.randn(1, 3, 5, 5))
    assert {type(step) for step in module.steps} <= {Map, Reduce}
