"""Masks: how many places they name is known only when the model runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import ingot
import ingot_runtime
from ingot.errors import UnsupportedOperator
from tests.support.oracle import assert_right


def x(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def mask(*shape: int, seed: int = 0) -> torch.Tensor:
    return x(*shape, seed=seed) > 0


class Of(nn.Module):
    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        return self.function(*args)


def put(a: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    made = a.clone()
    made[k] = a[k] * 2 + 1
    return made


CASES = {
    "every dim": (lambda a, k: a[k].exp().sum() + a[k].cumsum(0).amax(), (5, 6), (5, 6)),
    "the first dim": (lambda a, k: (a[k] * 2 + 1).sum(0), (5, 6), (5,)),
    "a dim between": (lambda a, k: a[:, k].sum(1), (5, 6, 4), (6,)),
    "nonzero": (lambda a, k: (torch.nonzero(k) * torch.tensor([7, 1])).sum() + a.sum(), (2,), (5, 6)),
    "masked_select": (lambda a, k: torch.masked_select(a, k).exp().sum(), (5, 6), (6,)),
    "a product": (lambda a, k: a[k].T @ a[k], (70, 6), (70,)),
    "written, every dim": (put, (5, 6), (5, 6)),
    "written, some dims": (put, (5, 6, 3), (5, 6)),
}


@pytest.mark.parametrize("name", CASES)
def test_mask(name: str) -> None:
    function, shape, masked = CASES[name]
    calls = [(x(*shape), mask(*masked, seed=seed)) for seed in range(3)]
    assert_right(Of(function), *calls, (x(*shape), torch.ones(masked, dtype=torch.bool)))


def test_a_mask_that_names_nothing() -> None:
    nothing = torch.zeros(5, dtype=torch.bool)
    assert_right(Of(lambda a, k: a[k].sum(0)), (x(5, 6), mask(5)), (x(5, 6), nothing))


def test_a_write_of_another_number_of_values_fails() -> None:
    def write(a: torch.Tensor, k: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        made = a.clone()
        made[k] = values
        return made

    three = torch.tensor([True, False, True, True, False])
    compiled = assert_right(Of(write), (x(5), three, x(3)))
    with pytest.raises(ingot_runtime.AssertionFailed):
        compiled(x(5), ~three, x(3))


def test_a_result_of_unknown_size_is_refused() -> None:
    with pytest.raises(UnsupportedOperator, match="is data-dependent"):
        ingot.compile(Of(lambda a, k: a[k]), (x(5), mask(5)))
