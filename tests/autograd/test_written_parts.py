"""Models that write to parts of tensors train: gradients are those of eager in float64, or the error has a name."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import ingot
from ingot.errors import CompileError, UnsupportedOperator


def write_row(x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros(3, 4, dtype=x.dtype)
    y[0] = x[0]
    return y * 2 + x


def write_broadcast(x: torch.Tensor) -> torch.Tensor:
    y = x * 3
    y[1:] = x[0]  # one row to two
    return y.sin()


def overwrite(x: torch.Tensor) -> torch.Tensor:
    y = x * 3
    y.copy_(x.cos())
    return y


def write_cast(x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros(3, 4, dtype=torch.float64)
    y[:, 1] = x[:, 2]
    return y.to(x.dtype) * x


def write_thrice(x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros(3, 4, dtype=x.dtype)
    y[0] = x[0]
    return y * 3


def write_in_branch(x: torch.Tensor) -> torch.Tensor:
    made: torch.Tensor = torch.cond(x.sum() > 0, write_thrice, lambda a: a * 2, (x,))
    return made


def write_in_region(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", enabled=False):
        y = torch.zeros(3, 4, dtype=x.dtype)
        y[0] = x[0]
    return y * x


def draw_over(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y.bernoulli_(1.0)
    return y * x


WRITES = (write_row, write_broadcast, overwrite, write_cast, write_in_branch, write_in_region, draw_over)
# Eager torch.cond compiles its branches; the reference calls the one that is taken.
EAGER = {write_in_branch: write_thrice}


@pytest.mark.parametrize("function", WRITES, ids=lambda function: function.__name__)
def test_gradients_through_written_parts_are_those_of_eager(function: Any) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.function = function
            self.scale = nn.Parameter(torch.rand(4) + 0.5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made: torch.Tensor = self.function(x * self.scale)
            return made

    torch.manual_seed(0)
    model = Model()
    x = torch.rand(3, 4, requires_grad=True)
    exact, precise = copy.deepcopy(model).double(), x.detach().double().requires_grad_()
    exact.function = EAGER.get(function, function)
    weights = torch.rand(3, 4)
    trained = ingot.compile(model, (x,), training=True)
    result, expected = trained(x), exact(precise)
    torch.testing.assert_close(result.double(), expected)
    (result * weights).sum().backward()
    (expected * weights.double()).sum().backward()
    assert x.grad is not None and model.scale.grad is not None
    torch.testing.assert_close(x.grad.double(), precise.grad)
    torch.testing.assert_close(model.scale.grad.double(), exact.scale.grad)
    trained.close()


def step(x: torch.Tensor) -> torch.Tensor:
    y = torch.heaviside(x, torch.ones(3))  # has no gradient
    return y + x


def test_an_operator_without_a_gradient_is_named_with_its_line() -> None:
    x = torch.rand(3, requires_grad=True)
    with pytest.raises(UnsupportedOperator, match=r"torch has no gradient of aten\.heaviside") as failure:
        ingot.compile(step, (x,), training=True)
    said = str(failure.value)
    assert f"{__file__}:{step.__code__.co_firstlineno + 1}" in said and "what to do:" in said and "detach" in said


def test_an_operator_without_a_gradient_may_be_used_where_none_is_needed() -> None:
    def model(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.heaviside(x.detach(), torch.ones(3)) * x, torch.heaviside(x, torch.ones(3)).detach()

    x = torch.rand(3, requires_grad=True)
    trained = ingot.compile(model, (x,), training=True)
    trained(x)[0].sum().backward()
    assert torch.equal(x.grad, torch.ones(3))  # type: ignore[arg-type]
    trained.close()


@torch.library.custom_op("ingot_test_written_parts::halve", mutates_args=())
def halve(x: torch.Tensor) -> torch.Tensor:
    return x / 2


@halve.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_what_torch_raises_while_it_writes_the_gradient_has_a_name() -> None:
    x = torch.rand(3, requires_grad=True)
    with pytest.raises(CompileError, match="gradient of this model") as failure:
        ingot.compile(lambda x: halve(x) + x, (x,), training=True)
    said = str(failure.value)
    assert "why: " in said and "what to do: " in said and "halve" in said
