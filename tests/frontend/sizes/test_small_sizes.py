"""Dynamic dims at size 1: conditions that decide nothing exclude no size, and Python's numbers may be symbols."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

import ingot
from ingot.errors import DynamicShapeError


def causal_unless_masked(x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    is_causal = x.shape[-2] > 1 and mask is None and bool(x.dim())
    return functional.scaled_dot_product_attention(x, x, x, attn_mask=mask, is_causal=is_causal)


def long_or_given(x: torch.Tensor, given: bool) -> torch.Tensor:
    return x * 2 if x.shape[0] < 2 or given is True else x


def several(x: torch.Tensor, given: bool) -> torch.Tensor:
    if x.shape[0] > 1 and x.shape[1] > 1 and given:
        return x * 2
    return x * 3


def causal(x: torch.Tensor) -> torch.Tensor:
    return functional.scaled_dot_product_attention(x, x, x, is_causal=x.shape[-2] > 1)


def causal_memory(x: torch.Tensor) -> torch.Tensor:
    both = torch.cat([x, x], -2)
    return functional.scaled_dot_product_attention(x, both, both, is_causal=x.shape[-2] > 1)


def length(x: torch.Tensor) -> torch.Tensor:
    return x * len(x) + float(x.shape[0])


def half(x: torch.Tensor) -> torch.Tensor:
    return x[: int(x.shape[0] * 0.5)]


def eighths(x: torch.Tensor) -> torch.Tensor:
    return x.new_zeros(math.floor(x.shape[0] / 8) + 1, math.ceil(x.shape[0] / 8), int(x.shape[0] / 4) + 1)


def steps(x: torch.Tensor) -> torch.Tensor:
    return x * torch.linspace(0, 1, steps=x.shape[0]).unsqueeze(1)


def check(f: Callable[..., Any], shape: tuple[int, ...], others: list[tuple[int, ...]], *more: Any) -> None:
    shapes = {"x": {dim - len(shape): f"dim_{dim}" for dim in range(len(shape) - 1)}}
    program = ingot.capture(f, (torch.randn(shape), *more), dynamic_shapes=shapes)
    compiled = ingot.compile(program)
    for other in others:
        x = torch.randn(other)
        torch.testing.assert_close(program(x, *more), f(x, *more))
        torch.testing.assert_close(compiled(x, *more), f(x, *more))


@pytest.mark.parametrize("shape", [(2, 5, 4), (2, 1, 4)])
@pytest.mark.parametrize("f", [causal, causal_memory])
def test_causal_by_size(f: Callable[..., Any], shape: tuple[int, ...]) -> None:
    check(f, shape, [(2, 5, 4), (3, 1, 4), (1, 1, 4), (1, 2, 4)])


def test_a_condition_beside_one_that_is_known() -> None:
    x, mask = torch.randn(2, 5, 4), torch.zeros(1, 1)
    program = ingot.capture(causal_unless_masked, (x, mask), dynamic_shapes=({0: "b", 1: "n"}, None))
    assert all(dim.low == 1 for dim in program.dims)
    for shape in ((2, 1, 4), (1, 1, 4), (3, 7, 4)):
        x = torch.randn(shape)
        torch.testing.assert_close(program(x, mask), causal_unless_masked(x, mask))


@pytest.mark.parametrize(("f", "given", "lowest"), [(long_or_given, True, 1), (long_or_given, False, 2),
                                                    (several, False, 2), (several, True, 2)])  # fmt: skip
def test_only_what_is_known_counts(f: Callable[..., Any], given: bool, lowest: int) -> None:
    program = ingot.capture(f, (torch.randn(3, 4), given), dynamic_shapes=({0: "n"}, None))
    (dim,) = program.dims
    assert dim.low == lowest
    for size in (lowest, 5):
        x = torch.randn(size, 4)
        torch.testing.assert_close(program(x, given), f(x, given))


def expanded(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    rows = x.shape[0]
    if rows != places.shape[0]:
        places = places.expand(rows, -1)
    return x + places.cumsum(-1)


def expanded_and_changed(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    rows = x.shape[0]
    if rows != places.shape[0]:
        places = places.expand(rows, -1) + 1
    return x + places


@pytest.mark.parametrize(("f", "lowest"), [(expanded, 1), (expanded_and_changed, 2)])
def test_an_expansion_where_sizes_differ(f: Callable[..., Any], lowest: int) -> None:
    program = ingot.capture(f, (torch.randn(3, 4), torch.randn(1, 4)), dynamic_shapes=({0: "n"}, None))
    (dim,) = program.dims
    assert dim.low == lowest
    for rows in (lowest, 5):
        x, places = torch.randn(rows, 4), torch.randn(1, 4)
        torch.testing.assert_close(program(x, places), f(x, places))


@pytest.mark.parametrize("f", [length, half, eighths, steps])
def test_numbers_that_are_symbols(f: Callable[..., Any]) -> None:
    check(f, (16, 4), [(1, 4), (2, 4), (9, 4), (24, 4)])


def test_parts_of_a_split_narrow_the_range() -> None:
    program = ingot.capture(lambda x: x.split(4)[1] * 2, (torch.randn(8, 4),), dynamic_shapes=({0: "n"},))
    (dim,) = program.dims
    assert (dim.low, dim.high) == (5, 8)
    for size in (5, 7, 8):
        x = torch.randn(size, 4)
        torch.testing.assert_close(program(x), x.split(4)[1] * 2)


def test_a_quotient_that_must_be_whole() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if (x.shape[0] / 8).is_integer() else x

    with pytest.raises(DynamicShapeError, match="n % 8 == 0"):
        ingot.capture(f, (torch.randn(16),), dynamic_shapes=({0: "n"},))
    program = ingot.capture(f, (torch.randn(16),), dynamic_shapes=({0: "8*n"},))
    torch.testing.assert_close(program(torch.ones(24)), torch.full((24,), 2.0))


def test_the_users_module_is_left_as_it_was() -> None:
    before = dict(globals())
    ingot.capture(length, (torch.randn(3, 4),), dynamic_shapes=({0: "n"},))
    assert globals().keys() == before.keys()
