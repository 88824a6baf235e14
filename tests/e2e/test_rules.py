"""Numbers that were wrong once, and what torch's samples do not show."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import ingot


def compiled(function: Callable[..., Any], *args: torch.Tensor) -> Any:
    class Model(torch.nn.Module):
        def forward(self, *inputs: torch.Tensor) -> Any:
            return function(*inputs)

    return ingot.compile(Model(), args)


def same(function: Callable[..., Any], *args: torch.Tensor) -> None:
    expected = function(*[a.clone() for a in args])
    found = compiled(function, *args)(*args)
    torch.testing.assert_close(found, expected, equal_nan=True)


def test_softmax_computes_in_the_dtype_that_is_asked_for() -> None:
    same(lambda x: torch.softmax(x, -1, dtype=torch.float64), torch.randn(3, 5))


def test_statistics_of_a_norm_have_the_dtype_that_torch_gives_them() -> None:
    same(lambda x: torch.native_layer_norm(x, [4], None, None, 1e-5), torch.randn(3, 4, dtype=torch.bfloat16))


def test_a_repeat_of_nothing() -> None:
    same(lambda x: x.repeat(2, 3), torch.zeros(3, 0))


def test_in_place_composites_are_made_functional_before_they_are_folded() -> None:
    same(lambda x: torch.nn.functional.pad(x, (1, 2), mode="circular"), torch.randn(1, 3, 3))
    same(lambda x: torch.quantile(x, 0.3, dim=0, keepdim=True), torch.randn(4, 3))


def test_places_of_a_maximum_of_minus_infinities_lie_inside() -> None:
    x = torch.full((1, 1, 4, 4), -torch.inf)
    same(lambda x: torch.nn.functional.max_pool2d(x, 3, 2, 1, return_indices=True), x)


def test_nan_comes_last_in_a_sort_and_is_the_median() -> None:
    x = torch.tensor([[3.0, torch.nan, 1.0, 2.0], [4.0, 1.0, 2.0, 3.0]])
    same(lambda x: torch.sort(x, -1), x)
    same(lambda x: torch.sort(x, -1, descending=True), x)
    same(lambda x: torch.median(x, -1), x)
    same(lambda x: torch.nanmedian(x, -1).values, x)


def test_a_sort_keeps_the_order_of_equals() -> None:
    x = torch.randint(0, 5, (3, 200))
    same(lambda x: torch.sort(x, dim=-1, stable=True), x)
    same(lambda x: torch.sort(x, dim=-1, descending=True, stable=True), x)


def test_a_scatter_of_halves_adds_in_float32() -> None:
    x, places = torch.zeros(1, dtype=torch.bfloat16), torch.zeros(1000, dtype=torch.int64)
    found = compiled(lambda x, p, s: x.index_add(0, p, s), x, places, torch.ones(1000, dtype=torch.bfloat16))
    assert found(x, places, torch.ones(1000, dtype=torch.bfloat16)).item() == 1000


def test_a_place_outside_fails_the_run() -> None:
    x, places, source = torch.zeros(4), torch.tensor([0, 1]), torch.ones(2)
    model = compiled(lambda x, p, s: x.scatter_add(0, p, s), x, places, source)
    assert model(x, places, source).tolist() == [1, 1, 0, 0]
    with pytest.raises(Exception, match="out of range"):
        model(x, torch.tensor([0, 4]), source)


def test_a_matrix_that_is_not_positive_definite_fails_the_run() -> None:
    model = compiled(lambda a: torch.linalg.cholesky(a), torch.eye(3))
    assert torch.equal(model(torch.eye(3)), torch.eye(3))
    with pytest.raises(Exception, match="positive definite"):
        model(-torch.eye(3))


def test_draws_have_the_distribution_that_is_asked_for() -> None:
    blank = torch.zeros(40_000)
    normal, uniform, chance = compiled(
        lambda x: (torch.randn_like(x), torch.empty_like(x).uniform_(2, 6), torch.bernoulli(x + 0.25)), blank
    )(blank)
    assert abs(normal.mean().item()) < 0.03 and abs(normal.std().item() - 1) < 0.03
    assert uniform.min() >= 2 and uniform.max() < 6 and abs(uniform.mean().item() - 4) < 0.04
    assert abs(chance.mean().item() - 0.25) < 0.02


def test_dropout_keeps_the_mean() -> None:
    x = torch.ones(40_000)
    y = compiled(lambda x: torch.nn.functional.dropout(x, 0.25, True), x)(x)
    assert abs(y.mean().item() - 1) < 0.03
    assert y.unique().tolist() == pytest.approx([0.0, 1 / 0.75])


def test_a_permutation_holds_every_place_once() -> None:
    x = torch.zeros(50)
    found = compiled(lambda x: torch.randperm(50) + x.long(), x)(x)
    assert sorted(found.tolist()) == list(range(50))
    assert found.tolist() != list(range(50))
