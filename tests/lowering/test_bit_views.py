"""Views as another dtype: the bits of elements, on the CPU and by the reference target."""

from __future__ import annotations

import itertools

import pytest
import torch

import ingot

DTYPES = (
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.uint8, torch.int16),
    *(torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64),
)
PAIRS = list(itertools.permutations(DTYPES, 2))


def examples(before: torch.dtype, after: torch.dtype) -> torch.Tensor:
    """Bits of numbers of either dtype: any bits may be a nan that a conversion changes."""
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randn(3, 16, generator=generator) * 100
    found = [dtype for dtype in (after, before) if dtype.is_floating_point and dtype.itemsize <= before.itemsize]
    return numbers.to(min(found, key=lambda dtype: dtype.itemsize, default=before)).view(before)


def same(have: torch.Tensor, want: torch.Tensor) -> None:
    assert have.dtype == want.dtype and have.shape == want.shape
    assert torch.equal(have.view(torch.uint8), want.view(torch.uint8))


@pytest.mark.parametrize("before", DTYPES, ids=str)
@pytest.mark.parametrize("target", ["cpu", "reference"])
def test_all_pairs(before: torch.dtype, target: str) -> None:
    others = [dtype for dtype in DTYPES if dtype != before]
    tensors = tuple(examples(before, after) for after in others)

    def function(*tensors: torch.Tensor) -> list[torch.Tensor]:
        return [x.view(after) for x, after in zip(tensors, others, strict=True)]

    results = ingot.compile(function, tensors, target=target)(*tensors)
    for have, want in zip(results, function(*tensors), strict=True):
        same(have, want)


@pytest.mark.parametrize("target", ["cpu", "reference"])
def test_bits_of_what_is_computed(target: str) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        bits = (x * 2).view(torch.int32)
        half = (x.half() + 1).view(torch.int16)
        return (bits & 0x7FFFFF) + 1, half + 1, (bits ^ 1).view(torch.float32), x.t().contiguous().view(torch.int8)

    x = torch.randn(4, 6)
    for have, want in zip(ingot.compile(function, (x,), target=target)(x), function(x), strict=True):
        same(have, want)


@pytest.mark.parametrize("target", ["cpu", "reference"])
def test_no_bit_is_lost_on_the_way(target: str) -> None:
    """All bits of a half are those of some integer, those of a nan too."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.view(torch.float16).view(torch.int16) + 0, x.view(torch.float16).view(torch.bfloat16).view(torch.int16)

    x = torch.arange(-(2**15), 2**15, 7, dtype=torch.int32).to(torch.int16)
    for have, want in zip(ingot.compile(function, (x,), target=target)(x), function(x), strict=True):
        same(have, want)


def test_bool_and_the_same_dtype() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.view(torch.uint8) + 1, (y & 1).view(torch.bool), (y + 1).view(torch.uint8).clone()

    x, y = torch.tensor([True, False]), torch.tensor([1, 2, 3], dtype=torch.uint8)
    for have, want in zip(ingot.compile(function, (x, y))(x, y), function(x, y), strict=True):
        same(have, want)


def test_sizes_that_are_open() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (x + 1).view(torch.int16), x.double().view(torch.float32) * 2

    x = torch.randn(3, 5)
    compiled = ingot.compile(function, (x,), dynamic_shapes=({0: "rows", 1: "columns"},))
    for shape in ((3, 5), (4, 9)):
        x = torch.randn(shape)
        for have, want in zip(compiled(x), function(x), strict=True):
            same(have, want)


def test_writes_through_a_view() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * 1
        y.view(torch.int32)[:, 0] = 0x3F800000
        return y + 1

    x = torch.randn(3, 4)
    same(ingot.compile(function, (x,))(x), function(x))
