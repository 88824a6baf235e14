"""What an entry of the zoo is, and the rules by which tables of settings become entries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

Dim = int | str
Settings = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Entry:
    """One small architecture with random weights, and the keyword arguments its forward takes.

    `build` returns the same weights at every call, in evaluation mode. `inputs` returns the same values at every call
    with the same sizes. `dynamic` maps an input to its dimensions that may change, each with the name of its size.
    """

    name: str
    family: str
    build: Callable[[], nn.Module]
    inputs: Callable[[dict[str, int]], dict[str, Any]]
    sizes: dict[str, int]
    dynamic: dict[str, dict[int, str]] | None


@dataclass(frozen=True, slots=True)
class Draw:
    """How one input tensor is drawn: a shape whose dimensions are numbers or names of sizes, and a way to fill it."""

    shape: tuple[Dim, ...]
    fill: Callable[[tuple[int, ...], torch.Generator], torch.Tensor]

    def __call__(self, sizes: Mapping[str, int], generator: torch.Generator) -> torch.Tensor:
        """The tensor of this input at the given sizes."""
        return self.fill(tuple(sizes[dim] if isinstance(dim, str) else dim for dim in self.shape), generator)

    def named(self) -> dict[int, str]:
        """The dimensions that follow a size, by index."""
        return {index: dim for index, dim in enumerate(self.shape) if isinstance(dim, str)}


def integers(*shape: Dim, low: int = 3, high: int = 101, dtype: torch.dtype = torch.int64) -> Draw:
    """Integers in [low, high); the default avoids the ids 0, 1 and 2 kept for padding, start and end."""
    return Draw(shape, lambda dims, generator: torch.randint(low, high, dims, generator=generator, dtype=dtype))


def normal(*shape: Dim) -> Draw:
    """Values from the standard normal distribution."""
    return Draw(shape, lambda dims, generator: torch.randn(dims, generator=generator))


def uniform(*shape: Dim) -> Draw:
    """Values in [0, 1)."""
    return Draw(shape, lambda dims, generator: torch.rand(dims, generator=generator))


def ones(*shape: Dim, dtype: torch.dtype = torch.int64) -> Draw:
    """Ones: a mask that hides nothing."""
    return Draw(shape, lambda dims, generator: torch.ones(dims, dtype=dtype))


def zeros(*shape: Dim, dtype: torch.dtype = torch.int64) -> Draw:
    """Zeros."""
    return Draw(shape, lambda dims, generator: torch.zeros(dims, dtype=dtype))


def mask(*shape: Dim) -> Draw:
    """A mask over (batch, sequence) that hides the last three positions of the first row, as padding does."""

    def fill(dims: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
        tensor = torch.ones(dims, dtype=torch.int64)
        tensor[0, -3:] = 0
        return tensor

    return Draw(shape, fill)


def ramp(*shape: Dim) -> Draw:
    """0, 1, 2, ... along the last dimension, the same in every row."""
    return Draw(shape, lambda dims, generator: torch.arange(dims[-1]).expand(dims).contiguous())


def fixed(values: Any, *shape: Dim) -> Draw:
    """The given values, spread over the shape by the rules of broadcasting."""
    return Draw(shape, lambda dims, generator: torch.as_tensor(values).expand(dims).contiguous())


def boxes(*shape: Dim, high: int = 50) -> Draw:
    """Integer boxes (x0, y0, x1, y1) with x0 < x1 and y0 < y1, along a last dimension of four."""

    def fill(dims: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
        corner = torch.randint(0, high, (*dims[:-1], 2), generator=generator)
        extent = torch.randint(1, high, (*dims[:-1], 2), generator=generator)
        return torch.cat([corner, corner + extent], dim=-1)

    return Draw(shape, fill)


def after(lead: list[int], rest: Draw) -> Draw:
    """What `rest` draws, with the first values of its last dimension replaced by `lead` in every row."""

    def fill(dims: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
        tensor = rest.fill(dims, generator)
        tensor[..., : len(lead)] = torch.tensor(lead)
        return tensor

    return Draw(rest.shape, fill)


# Buffers that hold what training would have learned: statistics of normalization and codebooks.
LEARNED_BUFFERS = ("running_mean", "running_var", "embed", "embed_avg", "embed_sum")


def perturb(module: nn.Module) -> None:
    """Add noise to every parameter and learned buffer, always the same for the same module.

    Weights start so small that deep stacks return almost their biases, and biases and norms start as zeros and ones:
    a dropped or swapped tensor would not show in the outputs. Noise scaled by the fan-in keeps the signal alive, and so
    do batch norms that start from ones, where some architectures draw them near zero.
    """
    generator = torch.Generator().manual_seed(0)

    def noise(tensor: torch.Tensor) -> torch.Tensor:
        return torch.randn(tensor.shape, generator=generator).to(tensor.dtype)

    with torch.no_grad():
        for norm in module.modules():
            if isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d):
                norm.weight.fill_(1.0)
        for parameter in module.parameters():
            if parameter.is_floating_point() and parameter.numel():
                gain = 2.0 if parameter.ndim == 4 else 1.0
                fan_in = parameter.numel() // parameter.shape[0] if parameter.ndim > 1 else 1
                parameter.add_(noise(parameter), alpha=(gain / fan_in) ** 0.5 if fan_in > 1 else 0.05)
        for name, buffer in module.named_buffers():
            last = name.rpartition(".")[2]
            if last in LEARNED_BUFFERS:
                buffer.add_(noise(buffer).abs() if last == "running_var" else noise(buffer), alpha=0.2)


def construct(model: str, settings: Settings) -> nn.Module:
    """The `transformers` model of that class name with the given settings of its configuration."""
    import transformers

    torch.manual_seed(0)
    cls = getattr(transformers, model)
    # Configurations take entries out of the dictionaries they are given, and entries of the zoo share those.
    module: nn.Module = cls(cls.config_class(**deepcopy(dict(settings)))).eval()
    perturb(module)
    return module


def define(
    name: str,
    family: str,
    model: str,
    settings: Settings,
    draws: Mapping[str, Draw],
    sizes: Mapping[str, int],
    options: Settings | None = None,
) -> Entry:
    """An entry for a `transformers` class: its inputs are the draws, followed by the options as they are."""

    def inputs(sizes: dict[str, int]) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(1)
        return {key: draw(sizes, generator) for key, draw in draws.items()} | dict(options or {})

    dynamic = {key: named for key, draw in draws.items() if (named := draw.named())}
    return Entry(name, family, lambda: construct(model, settings), inputs, dict(sizes), dynamic or None)
