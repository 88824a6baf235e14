"""What the tests of the command capture."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Net(nn.Module):
    """Two linear layers under one name, a strided convolution in groups, and a weight that is tied."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8))
        self.conv = nn.Conv2d(4, 8, 3, stride=2, groups=2)
        self.tied = nn.Linear(8, 8, bias=False)
        self.tied.weight = self.body[2].weight

    def forward(self, x: torch.Tensor, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        print("forward prints this")
        return self.tied(self.body(x)), self.conv(image)


class Branch(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda x: x @ x.T, lambda x: ((x * 2) @ x.T) @ x @ x.T, (x,))


class ReadsData(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.sum() > 0 else x


def net() -> Any:
    print("the factory prints this")
    return Net().eval(), (torch.ones(5, 4), torch.ones(2, 4, 9, 9)), {}


def pair() -> Any:
    return nn.Linear(4, 2), (torch.ones(3, 4),)


def branch() -> Any:
    return Branch(), (torch.ones(3, 3),), {}


def reads_data() -> Any:
    return ReadsData(), (torch.ones(3),), {}


def raises() -> Any:
    raise ValueError("no such checkpoint")


def raises_inside_torch() -> Any:
    return torch.ones(3).view(2), (), {}


def takes_arguments(size: int) -> Any:
    return nn.Linear(size, size), (torch.ones(1, size),)


def returns_model() -> Any:
    return nn.Linear(4, 4)


def returns_four() -> Any:
    return 1, 2, 3, 4


def returns_no_model() -> Any:
    return 3, ()


def returns_tensor_args() -> Any:
    return nn.Linear(4, 4), torch.ones(4)


def returns_dict_args() -> Any:
    return nn.Linear(4, 4), {"input": torch.ones(4)}


def returns_list_kwargs() -> Any:
    return nn.Linear(4, 4), (), [1]


not_a_function = 3


class Complex(nn.Module):
    """One operator that is compiled, and two that cannot be."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.linalg.eigvals(x @ x.T).abs(), torch.fft.rfft(x).abs()


def not_compilable() -> Any:
    return Complex(), (torch.randn(3, 3),)


class Mixed(nn.Module):
    def forward(self, x: torch.Tensor, scale: int) -> dict[str, torch.Tensor]:
        return {"sum": x.sum(-1) * scale, "rounded": x.bfloat16()}


def mixed() -> Any:
    return Mixed(), (torch.arange(6.0).reshape(2, 3),), {"scale": 3}


def noisy() -> Any:
    return nn.Dropout(0.5).train(), (torch.ones(4, 4),)


def embedding() -> Any:
    return nn.Embedding(10, 4).eval(), (torch.tensor([[1, 2, 3]]),)


def batches() -> Any:
    return [(torch.randn(5, 4), torch.randn(2, 4, 9, 9)) for _ in range(2)]


class Block(nn.Module):
    """Queries, keys and values of the same rows, a residual around a layer, and a value that is computed twice."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(32, 32) for _ in range(4))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.relu(self.q(x) + 1) * torch.sigmoid(self.k(x)) + self.v(x)
        return self.out(y) + y, torch.relu(x) - x


def block() -> Any:
    torch.manual_seed(0)
    return Block().eval(), (torch.randn(6, 32),), {}
