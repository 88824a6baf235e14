"""What an entry of the registry is: a model of a public package, its example inputs, and the dims that may change."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.export import Dim

from tests.support.zoo.entry import perturb

# A size: a number, a name ("batch"), or a name times a number ("32*side").
Size = int | str
Shape = tuple[Size, ...]
Fill = Callable[[tuple[int, ...], torch.Generator, Mapping[str, int]], Any]

LARGE = 19


@dataclass(frozen=True, slots=True)
class Input:
    """One argument of a model: a shape, and how it is filled."""

    shape: Shape
    fill: Fill

    def __call__(self, sizes: Mapping[str, int], generator: torch.Generator) -> Any:
        return self.fill(tuple(size_of(dim, sizes) for dim in self.shape), generator, sizes)

    def named(self) -> dict[int, str]:
        """The dims that may change, by index."""
        return {index: dim for index, dim in enumerate(self.shape) if isinstance(dim, str)}


@dataclass(frozen=True, slots=True)
class Model:
    """One model with random weights; `sizes` are those of the example, of the names that the inputs use."""

    package: str
    name: str
    build: Callable[[], nn.Module]
    inputs: tuple[Input, ...]
    sizes: Mapping[str, int]
    options: Mapping[str, Any] = field(default_factory=dict)
    limits: Mapping[str, int] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return f"{self.package}/{self.name}"

    def module(self) -> nn.Module:
        """The model in evaluation mode, the same at every call."""
        torch.manual_seed(0)
        module = self.build().eval()
        perturb(module)
        return module

    def args(self, sizes: Mapping[str, int] | None = None) -> tuple[Any, ...]:
        """The arguments at these sizes, the same at every call."""
        generator = torch.Generator().manual_seed(1)
        return tuple(one({**self.sizes, **(sizes or {})}, generator) for one in self.inputs)

    def dynamic(self) -> tuple[Any, ...] | None:
        """The dims that may change, argument by argument, in torch.export's words; None where there are none."""
        dims = {name: Dim(name, max=self.limits[name]) if name in self.limits else Dim(name) for name in self.sizes}
        shapes = tuple({index: _dim(dim, dims) for index, dim in one.named().items()} or None for one in self.inputs)
        return shapes if any(shapes) else None

    def other_sizes(self) -> list[tuple[str, dict[str, int]]]:
        """The levels of sizes besides the example's at which a model runs: 1, 2, odd and large."""
        odd = {name: self._limited(name, 3 if name == "batch" else 5) for name in self.sizes}
        large = {name: self._limited(name, self._large(name)) for name in self.sizes}
        levels = (("1", dict.fromkeys(self.sizes, 1)), ("2", dict.fromkeys(self.sizes, 2)), ("odd", odd))
        return [*levels, ("large", large)]

    def _large(self, name: str) -> int:
        steps = {int(dim.rpartition("*")[0] or 1) for one in self.inputs for dim in one.named().values() if name in dim}
        if name == "batch" or max(steps) > 1:
            return 2 * self.sizes[name] + 1
        return max(LARGE, 2 * self.sizes[name] + 3)

    def _limited(self, name: str, size: int) -> int:
        return min(size, self.limits.get(name, size))


def size_of(dim: Size, sizes: Mapping[str, int]) -> int:
    if isinstance(dim, int):
        return dim
    return math.prod(int(part) if part.isdigit() else sizes[part] for part in dim.split("*"))


def _dim(text: str, dims: Mapping[str, Any]) -> Any:
    factor, _, name = text.rpartition("*")
    return int(factor) * dims[name] if factor else dims[name]


# ---------------------------------------------------------------------- inputs


def normal(*shape: Size) -> Input:
    """Values from the standard normal distribution."""
    return Input(shape, lambda dims, generator, sizes: torch.randn(dims, generator=generator))


def uniform(*shape: Size) -> Input:
    """Values in [0, 1)."""
    return Input(shape, lambda dims, generator, sizes: torch.rand(dims, generator=generator))


def integers(*shape: Size, low: int = 0, high: int = 100) -> Input:
    return Input(shape, lambda dims, generator, sizes: torch.randint(low, high, dims, generator=generator))


def trues(*shape: Size) -> Input:
    """A boolean mask that hides the last position of the first row."""

    def fill(dims: tuple[int, ...], generator: torch.Generator, sizes: Mapping[str, int]) -> torch.Tensor:
        mask = torch.ones(dims, dtype=torch.bool)
        mask[0, -1] = mask.shape[-1] == 1
        return mask

    return Input(shape, fill)


def edges(count: Size, nodes: Size) -> Input:
    """Edges of a graph of so many nodes, as pairs."""

    def fill(dims: tuple[int, ...], generator: torch.Generator, sizes: Mapping[str, int]) -> torch.Tensor:
        return torch.randint(0, size_of(nodes, sizes), dims, generator=generator)

    return Input((2, count), fill)


def fixed(value: Any) -> Input:
    """This value, whatever the sizes are."""
    return Input((), lambda dims, generator, sizes: value.clone() if isinstance(value, torch.Tensor) else value)
