"""Models of loops alone, in several kernels: what the host does is the same for all others."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

# Without the pass that makes one kernel of small ones: what the host does with several is to be seen.
APART: dict[str, Any] = {"disable_passes": ("map_groups",)}


class Several(nn.Module):
    """Four kernels where the pass map_groups is off: results of different shapes are not fused."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.relu(x * self.weight + 1), y.T * 2, x[:, :2] + y[0, 0], y.to(torch.int64)


class Counter(nn.Module):
    """State that calls change."""

    count: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1.0)
        return x * self.count


class Writer(nn.Module):
    """An input that the model writes to."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(2.0)
        return x[:2] + y


class Gather(nn.Module):
    def forward(self, table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        found = table[index] * 2
        return torch.stack([found, found.sqrt().log().exp().sin().cos().tan().abs()])


def build() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """For the command line."""
    return Several().eval(), (torch.randn(4, 5), torch.randn(3, 7))
