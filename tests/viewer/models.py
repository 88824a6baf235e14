"""The models that the tests of the viewer show."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Gate(nn.Module):
    """A branch, an autocast region, and two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 8)
        self.out = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.fc(x).relu()
        y = torch.cond(y.sum() > 0, lambda y: y * 2, lambda y: y - 1, (y,))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            z = self.out(y)
        return z.float().softmax(-1)


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.second = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).relu())


class Constrained(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[3:4].squeeze(0) * 2


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.first = nn.Linear(16, 16)
        self.second = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.second(nn.functional.gelu(self.first(self.norm(x)))) * 0.5
        return x + torch.cat([y[:, :8].sin(), y[:, 8:].cos()], 1)


class Deep(nn.Module):
    """About eleven nodes in each block."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Everything(nn.Module):
    """Writes, assertions, loops, nested branches, regions, results that are nested."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.layer = nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> Any:
        self.count.add_(1)
        x = x.clone()
        x[0] = 2.0
        x.relu_()
        torch._assert_async((x > -1e9).all(), "too small")
        with torch.no_grad():
            y = self.norm(x)

        def body(i: torch.Tensor, a: torch.Tensor) -> Any:
            return i + 1, torch.cond(a.sum() > 0, lambda a: self.layer(a), lambda a: a * 2, (a,))

        _, y = torch._higher_order_ops.while_loop(lambda i, a: i < 3, body, (torch.tensor(0), y))
        values, _ = torch.sort(y, -1)
        known = torch.nonzero(x[:, 0]).sum()
        parts = torch.split(torch.dropout(y, 0.5, False), 2, 1)
        return {"a": values, "b": [known, parts[0] + parts[1]], "size": x.shape[0] * 2}


def batches() -> Any:
    """Data for a layer of 16 features."""
    return [torch.ones(8, 16) * number for number in range(3)]


def gate() -> Any:
    return Gate().eval(), (torch.ones(5, 4),), {}


def mlp() -> Any:
    return Mlp().eval(), (torch.ones(3, 4),), {}
