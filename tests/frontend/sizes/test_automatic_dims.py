"""Automatic dims: they end up free, static, or equal to another dim, as the model needs it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import ingot
from ingot.errors import DynamicShapeError, InputError


class Projection(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.linear(x) + y.sum(-1, keepdim=True), x + y


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize(
    ("dynamic_shapes", "name"),
    [
        ("auto", "x_0"),
        (((Dim.AUTO, Dim.AUTO), (Dim.AUTO, Dim.AUTO)), "x_0"),
        (((Dim.DYNAMIC, Dim.AUTO), (Dim.AUTO, Dim.AUTO)), "x_0"),
        (({0: "rows"}, (Dim.AUTO, Dim.AUTO)), "rows"),
        (((Dim.AUTO, Dim.AUTO), {0: "rows"}), "rows"),
        ((None, {1: Dim.AUTO}), None),
    ],
)
def test_static_and_tied(rows: int, dynamic_shapes: Any, name: str | None) -> None:
    model = Projection()
    program = ingot.capture(model, (torch.randn(rows, 3), torch.randn(rows, 3)), dynamic_shapes=dynamic_shapes)
    assert [dim.name for dim in program.dims] == ([name] if name else [])
    for size in (1, 2, 5) if name else (rows,):
        x, y = torch.randn(size, 3), torch.randn(size, 3)
        torch.testing.assert_close(program(x, y), model(x, y))
        torch.testing.assert_close(program.to_exported().module()(x, y), model(x, y))
    with pytest.raises(InputError):
        program(torch.randn(2, 3), torch.randn(5, 3))


def test_a_tie_to_a_function_of_another_dim() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, x, x[:1]]) + y

    program = ingot.capture(f, (torch.randn(4), torch.randn(9)), dynamic_shapes=({0: "n"}, {0: Dim.AUTO}))
    assert [dim.name for dim in program.dims] == ["n"]
    for size in (1, 2, 7):
        x, y = torch.randn(size), torch.randn(2 * size + 1)
        torch.testing.assert_close(program(x, y), f(x, y))


def test_what_broadcasts_in_the_example_is_static() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y

    program = ingot.capture(f, (torch.randn(1, 3), torch.randn(4, 3)), dynamic_shapes=({0: Dim.AUTO}, {0: Dim.AUTO}))
    assert [dim.name for dim in program.dims] == ["y_0"]
    torch.testing.assert_close(program(torch.ones(1, 3), torch.ones(6, 3)), torch.full((6, 3), 2.0))


def test_a_dim_without_elements() -> None:
    program = ingot.capture(lambda x: x * 2, (torch.randn(0, 3),), dynamic_shapes=({0: Dim.AUTO},))
    assert program(torch.ones(0, 3)).shape == (0, 3)
    torch.testing.assert_close(program(torch.ones(2, 3)), torch.full((2, 3), 2.0))


def test_a_dynamic_dim_is_not_static() -> None:
    with pytest.raises(DynamicShapeError, match=r"x_1 .* works for size 3 only"):
        ingot.capture(
            Projection(), (torch.randn(4, 3), torch.randn(4, 3)), dynamic_shapes=({1: Dim.DYNAMIC}, {1: Dim.AUTO})
        )


def test_native_code_with_tied_dims() -> None:
    model = Projection()
    example = torch.randn(4, 3), torch.randn(4, 3)
    compiled = ingot.compile(model, example, dynamic_shapes="auto")
    for size in (1, 2, 5):
        x, y = torch.randn(size, 3), torch.randn(size, 3)
        torch.testing.assert_close(compiled(x, y), model(x, y))
