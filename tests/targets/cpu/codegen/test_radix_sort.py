"""Sorted rows equal torch's stable sort: every dtype, both orders, lengths around the limits of the algorithms."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

import ingot
from ingot.targets.cpu.codegen.builtin_kernels import MOST_SELECTED

DTYPES = (torch.float32, torch.float64, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
          torch.float16, torch.bfloat16)  # fmt: skip
LENGTHS = (0, 1, 2, 39, 40, 41, 257, 1000)
SPECIAL = (float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-40, -1e-40, -float("nan"))


def make_rows(dtype: torch.dtype, length: int) -> torch.Tensor:
    """Rows of numbers of every size, of few different numbers, in order, in reverse order, and all the same."""
    generator = torch.Generator().manual_seed(length)
    if dtype == torch.bool:
        rows = torch.randint(0, 2, (5, length), generator=generator).bool()
    elif dtype.is_floating_point:
        rows = torch.randn(5, length, generator=generator, dtype=torch.float64).mul(1e3).exp2().nan_to_num(posinf=1e30)
        rows *= torch.randn(5, length, generator=generator).sign()
        for at, value in enumerate(SPECIAL[:length]):
            rows[0, at::11] = value
        rows = rows.to(dtype)
    else:
        limits = torch.iinfo(dtype)
        rows = torch.randint(limits.min, limits.max, (5, length), generator=generator, dtype=dtype)
        rows[0, : length // 2] = limits.min
        rows[0, length // 2 : length // 2 + 1] = limits.max
    few = torch.randint(0, 3, (length,), generator=generator)
    rows[1] = few.to(dtype)
    rows[2] = rows[2].sort().values
    rows[3] = rows[3].sort(descending=True).values
    rows[4] = rows[4, :1]
    return rows


def check(
    function: Callable[[torch.Tensor], tuple[torch.Tensor, ...]],
    dtype: torch.dtype,
    lengths: tuple[int, ...],
    **options: Any,
) -> None:
    """Compares a function, compiled once, with itself in eager, bit by bit but for nans."""

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return function(x)

    example = (make_rows(dtype, 100),)
    compiled = ingot.compile(
        Model(), example, dynamic_shapes={"x": {1: torch.export.Dim("length", min=0)}}, threads=2, **options
    )
    for length in lengths:
        x = make_rows(dtype, length)
        for result, expected in zip(compiled(x), function(x), strict=True):
            assert result.dtype == expected.dtype
            assert torch.equal(result.nan_to_num(7), expected.nan_to_num(7))
            if expected.is_floating_point():
                real = ~expected.isnan()
                assert torch.equal(result[real].signbit(), expected[real].signbit())  # of zeros


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sorted_rows_equal_those_of_torch(dtype: torch.dtype) -> None:
    check(lambda x: (*x.sort(stable=True), *x.sort(stable=True, descending=True)), dtype, LENGTHS)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("options", [{}, {"disable_passes": {"partial_sort"}}], ids=["first", "all"])
def test_the_first_of_each_row_equal_those_of_a_whole_sort(dtype: torch.dtype, options: dict[str, Any]) -> None:
    """Which of equal numbers torch.topk returns is not said: a stable sort is the reference."""

    def first(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = []
        for count in (1, 5, MOST_SELECTED, MOST_SELECTED + 1):
            up, down = x.sort(stable=True), x.sort(stable=True, descending=True)
            found += [up.values[:, :count], up.indices[:, :count], down.values[:, :count], down.indices[:, 1:count]]
        return tuple(found)

    check(first, dtype, (66, 97, 1000), **options)


def test_rows_of_sizes_that_a_call_brings() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return *x.topk(5, largest=False), x.sort(-1).values[:, :3] * 2

    compiled = ingot.compile(Model(), (torch.randn(4, 50),), dynamic_shapes={"x": {0: "rows", 1: "length"}}, threads=2)
    assert "ig_sort_first_float32" in compiled.source
    for rows, length in ((1, 5), (3, 6), (7, 41), (2, 3000)):
        x = torch.randn(rows, length)
        for result, expected in zip(compiled(x), Model()(x), strict=True):
            assert torch.equal(result, expected)


def test_rows_that_are_known_to_be_empty() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return *x.sort(stable=True), x.sort(0).values[:2] + 1

    x = torch.zeros(3, 0)
    found = ingot.compile(Model(), (x,), threads=2)(x)
    assert [tuple(result.shape) for result in found] == [(3, 0), (3, 0), (2, 0)]


class Ranked(torch.nn.Module):
    """A random program of sorts and what reads them: slices, single places, gathers, sums, and whole rows."""

    def __init__(self, seed: int, shape: tuple[int, ...]) -> None:
        super().__init__()
        draw = random.Random(seed)
        self.steps = []
        for _ in range(draw.randint(1, 3)):
            dim = draw.randrange(len(shape))
            count = draw.randint(1, min(shape[dim], 70))
            self.steps.append((draw.choice(("topk", "sort", "kth", "whole")), dim, count, draw.random() < 0.5))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = []
        for kind, dim, count, down in self.steps:
            values, places = x.sort(dim=dim, descending=down, stable=True)
            if kind == "topk":
                values, places = x.topk(count, dim, largest=down)
                places = places * 0  # which of equal numbers is not said
            elif kind == "kth":
                values, places = values.select(dim, count - 1), places.select(dim, count - 1)
            elif kind == "sort":
                values, places = values.narrow(dim, 0, count), places.narrow(dim, 0, count)
                values = values + x.gather(dim, places)
            found += [values.clone(), places.clone(), values.sum(0)]
        return tuple(found)


@pytest.mark.parametrize("seed", range(16))
def test_random_programs_with_the_pass_on_and_off(seed: int) -> None:
    draw = random.Random(seed)
    shape = tuple(draw.choice((1, 2, 5, 33, 70, 130)) for _ in range(draw.randint(1, 3)))
    model = Ranked(seed, shape)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).mul(2).round()  # with many equals
    on = ingot.compile(model, (x,), threads=2)(x)
    off = ingot.compile(model, (x,), threads=2, disable_passes={"partial_sort"})(x)
    for result, other, expected in zip(on, off, model(x), strict=True):
        assert torch.equal(result, other)
        torch.testing.assert_close(result, expected)
