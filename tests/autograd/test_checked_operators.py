"""Operators that check their results at run time, in models that train: torch's graphs call them with tokens."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import ingot
from ingot.errors import AssertionFailed


class Computes(nn.Module):
    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.eye(4) + 0.1 * torch.randn(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self.weight @ self.weight.t() + torch.eye(4), x)


FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "inverse": lambda a, x: torch.linalg.inv(a) @ x,
    "solution": lambda a, x: torch.linalg.solve(a, x),
    "Cholesky": lambda a, x: torch.linalg.cholesky(a) @ x,
    "negative power": lambda a, x: torch.linalg.matrix_power(a, -2) @ x,
    "two in a row": lambda a, x: torch.linalg.solve(torch.linalg.inv(a), x),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_are_those_of_eager(name: str) -> None:
    torch.manual_seed(0)
    model, x = Computes(FUNCTIONS[name]), torch.randn(4, 3)
    compiled = ingot.compile(model, (x,), training=True)
    found = compiled(x)
    found.square().sum().backward()
    assert model.weight.grad is not None
    gradient, model.weight.grad = model.weight.grad, None
    expected = model(x)
    expected.square().sum().backward()
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradient, model.weight.grad, rtol=1e-4, atol=1e-5)


def test_a_singular_matrix_ends_the_step() -> None:
    model, x = Computes(lambda a, x: torch.linalg.inv(a - a) @ x), torch.randn(4, 3)
    compiled = ingot.compile(model, (x,), training=True)
    with pytest.raises(AssertionFailed, match="singular"):
        compiled(x)


@pytest.mark.parametrize("order", range(5))
def test_derivatives_of_digamma(order: int) -> None:
    x = torch.linspace(0.3, 6, 12, requires_grad=True)

    class Derivative(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.polygamma(order, x)

    ingot.compile(Derivative(), (x,), training=True)(x).sum().backward()
    gradient, x.grad = x.grad, None
    torch.polygamma(order, x).sum().backward()
    torch.testing.assert_close(gradient, x.grad, rtol=1e-5, atol=1e-5)
