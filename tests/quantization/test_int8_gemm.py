"""Converted programs against integers in numpy, to the last bit, and native code against the same.

Scales are powers of two, and weights and biases whole multiples of them, so that float32 is exact until a result is
quantized: every operator must give numpy's very numbers. With scales as they come, one step is allowed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ingot
from ingot.quantization.observers import Observer
from ingot.quantization.qscheme import Parameters
from ingot.quantize import calibrate, convert, int8_static, prepare
from tests.quantization import reference


class Dyadic(Observer):
    """Scales are powers of two."""

    def parameters_now(self) -> Parameters:
        found = super().parameters_now()
        scale = torch.exp2(torch.ceil(torch.log2(found.scale)))
        low, high = self.scheme.qmin, self.scheme.qmax
        return Parameters(scale, (low - torch.round(self.low.clamp(max=0) / scale)).clamp(low, high).long())


def dyadic(model: nn.Module) -> nn.Module:
    """The model with weights that are integers times a power of two, with a 127 in every channel."""
    generator = torch.Generator().manual_seed(0)
    for module in model.modules():
        weight = getattr(module, "weight", None)
        if weight is None:
            continue
        axis = 1 if getattr(module, "transposed", False) else 0
        numbers = torch.randint(-127, 128, weight.shape, generator=generator).float()
        rows = numbers.transpose(0, axis)
        rows[(slice(None), *[0] * (rows.dim() - 1))] = 127  # the first of each channel
        steps = torch.exp2(torch.randint(-9, -6, (rows.shape[0],), generator=generator).float())
        rows.mul_(steps.view(-1, *[1] * (rows.dim() - 1)))
        weight.data = numbers
        if getattr(module, "bias", None) is not None:
            module.bias.data = torch.randint(-99, 99, module.bias.shape, generator=generator) * 2.0**-9
    return model


class Between(nn.Module):
    """An operator between two linear maps along the last axis, so that its results are quantized as well."""

    def __init__(self, operator: nn.Module, last: int) -> None:
        super().__init__()
        self.operator, self.after = operator, nn.Linear(last, 3)

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.after(self.operator(*args))
        return made


class Applied(nn.Module):
    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        return self.function(*args)


def values(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(len(shape))
    return torch.randn(shape, generator=generator).mul(16).round().div(16)


def transposed(dims: int, **words: Any) -> nn.Module:
    made: nn.Module = getattr(nn, f"ConvTranspose{dims}d")(4, 4, 3, stride=2, padding=1, output_padding=1, **words)
    return made


# The operator, how long the last axis of its result is, and its arguments.
OPERATORS: dict[str, tuple[nn.Module, int, tuple[torch.Tensor, ...]]] = {
    "linear": (nn.Linear(8, 6), 6, (values(5, 8),)),
    "conv1d": (nn.Conv1d(4, 6, 3, padding="same", dilation=2), 7, (values(2, 4, 7),)),
    "conv2d": (nn.Conv2d(4, 6, 3, stride=2, padding=(1, 2), groups=2), 5, (values(2, 4, 6, 7),)),
    "conv3d": (
        nn.Conv3d(4, 6, (3, 2, 3), stride=(1, 2, 1), padding=(1, 0, 1), bias=False),
        4,
        (values(2, 4, 5, 4, 4),),
    ),
    "depthwise": (nn.Conv2d(4, 4, 3, padding=1, groups=4), 6, (values(1, 4, 5, 6),)),
    "conv_transpose1d": (transposed(1), 10, (values(2, 4, 5),)),
    "conv_transpose2d": (transposed(2, groups=2), 8, (values(2, 4, 3, 4),)),
    "conv_transpose3d": (transposed(3, bias=False), 6, (values(1, 4, 3, 2, 3),)),
    "embedding": (nn.Embedding(11, 8), 8, (torch.arange(10).view(2, 5),)),
    "add": (Applied(torch.add), 6, (values(4, 6), 2 * values(1, 6))),
    "matmul": (Applied(torch.matmul), 5, (values(2, 3, 4, 6), values(2, 3, 6, 5))),
    "bmm": (Applied(torch.bmm), 5, (values(3, 4, 6), values(3, 6, 5))),
    "cat": (Applied(lambda a, b: torch.cat([a, b], -1)), 9, (values(3, 4), 3 * values(3, 5))),
    "max_pool2d": (Applied(lambda x: F.max_pool2d(x, 2)), 3, (values(1, 2, 4, 6),)),
}


def quantized(model: nn.Module, args: tuple[torch.Tensor, ...], observer: Any = Dyadic) -> ingot.Program:
    recipe = int8_static()
    assert recipe.activation is not None
    recipe = replace(recipe, activation=replace(recipe.activation, observer=observer))
    return convert(calibrate(prepare(ingot.capture(dyadic(model).eval(), args), recipe), [args], progress=False))


@pytest.mark.parametrize("name", OPERATORS)
def test_to_the_last_bit(name: str) -> None:
    operator, last, args = OPERATORS[name]
    program = quantized(Between(operator, last), args)
    results, numbers = reference.run(program, *args)
    ours = reference.integers_of(program, *args)
    assert ours.keys() == numbers.keys() and len(ours) >= 1
    for node, expected in numbers.items():
        np.testing.assert_array_equal(ours[node], expected, err_msg=node)
    with torch.no_grad():
        np.testing.assert_array_equal(program(*args).numpy(), results[0].astype(np.float32))


def _shaken(x: torch.Tensor) -> torch.Tensor:
    """Not a multiple of anything, so that no value lies half between two numbers."""
    return x + torch.linspace(0, 1 / 17, x.numel()).view_as(x)


@pytest.mark.parametrize("name", OPERATORS)
def test_to_one_step_with_any_scale(name: str) -> None:
    operator, last, args = OPERATORS[name]
    args = tuple(_shaken(x) if x.is_floating_point() else x for x in args)
    program = quantized(Between(operator, last), args, "minmax")
    numbers, ours = reference.run(program, *args)[1], reference.integers_of(program, *args)
    assert ours.keys() == numbers.keys()
    for node, expected in numbers.items():
        off = np.abs(ours[node].astype(int) - expected.astype(int))
        assert off.max() <= 1 and (off > 0).mean() < 0.02, node


class Every(nn.Module):
    """All of them side by side, so that they are compiled once."""

    def __init__(self, models: list[nn.Module], counts: list[int]) -> None:
        super().__init__()
        self.models, self.counts = nn.ModuleList(models), counts

    def forward(self, *args: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made, given = [], list(args)
        for model, count in zip(self.models, self.counts, strict=True):
            made.append(model(*given[:count]))
            del given[:count]
        return tuple(made)


def test_native_code_to_the_last_bit() -> None:
    models: list[nn.Module] = [Between(operator, last) for operator, last, _ in OPERATORS.values()]
    args = tuple(x for _, _, given in OPERATORS.values() for x in given)
    program = quantized(Every(models, [len(given) for _, _, given in OPERATORS.values()]), args)
    expected = reference.run(program, *args)[0]
    native = ingot.compile(program)
    for name, ours, right in zip(OPERATORS, native(*args), expected, strict=True):
        np.testing.assert_array_equal(np.asarray(ours), right.astype(np.float32), err_msg=name)
