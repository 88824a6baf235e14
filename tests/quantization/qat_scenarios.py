"""The situations of quantization-aware training that torchao's tests are about, as models of ours."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

ACTIVATIONS: dict[str, type[nn.Module] | None] = {"none": None, "relu": nn.ReLU, "relu6": nn.ReLU6}


@dataclass(frozen=True)
class Situation:
    """A convolution with batch norm behind, and perhaps an activation."""

    dims: int
    transposed: bool
    bias: bool
    activation: str
    per_channel: bool = True

    def __str__(self) -> str:
        kind = f"conv{'_transpose' if self.transposed else ''}{self.dims}d"
        bias, scales = "bias" if self.bias else "no bias", "per channel" if self.per_channel else "per tensor"
        return f"{kind}, {bias}, {self.activation}, {scales}"

    def model(self, *, eps: float = 1e-5, momentum: float = 0.1, channels: int = 3, groups: int = 1) -> nn.Sequential:
        torch.manual_seed(1)
        conv = getattr(nn, f"Conv{'Transpose' if self.transposed else ''}{self.dims}d")
        norm = getattr(nn, f"BatchNorm{self.dims}d")
        activation = ACTIVATIONS[self.activation]
        return nn.Sequential(
            conv(channels, channels, 3, stride=2, padding=1, bias=self.bias, groups=groups),
            norm(channels, eps=eps, momentum=momentum),
            *([activation()] if activation is not None else []),
        )

    def batch(self, channels: int = 3) -> torch.Tensor:
        return torch.randn(4, channels, *[8] * self.dims)


def situations(dims: tuple[int, ...] = (1, 2, 3), scales: tuple[bool, ...] = (True,)) -> Iterator[Situation]:
    for each in itertools.product(dims, (False, True), (False, True), ACTIVATIONS, scales):
        yield Situation(*each)


class Branching(nn.Module):
    """Linear layers in both branches of a condition, in a loop, and in a region of another precision."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.yes, self.no, self.again, self.last = (nn.Linear(4, 4) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.cond(x.sum() > 0, lambda y: self.yes(y), lambda y: self.no(y).relu(), (x,))
        _, x = torch.while_loop(
            lambda i, y: i < 2, lambda i, y: (i + 1, torch.tanh(self.again(y))), (torch.tensor(0), x)
        )
        with torch.autocast("cpu", torch.bfloat16):
            return self.last(x).float()
