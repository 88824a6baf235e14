"""Indices and masks at the edges of what eager takes: counted from the end, beyond the size, for an empty result."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ingot
from ingot_runtime import IndexOutOfRange
from tests.support.oracle import assert_right


class Along(nn.Module):
    def forward(self, x: torch.Tensor, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.take_along_dim(x, index, 1), torch.take_along_dim(x, index, -2)


def places(*shape: int) -> torch.Tensor:
    return torch.randint(-17, 17, shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("dynamic", [False, True])
def test_take_along_dim_counts_modulo_the_size(dynamic: bool) -> None:
    shapes = [{0: "n", 1: "m"}, {0: "n", 1: "m"}] if dynamic else None
    calls = [(torch.randn(n, m), places(n, m)) for n, m in ((5, 5), (3, 7), (1, 2))[: 3 if dynamic else 1]]
    assert_right(Along(), *calls, dynamic_shapes=shapes)


def test_take_along_dim_of_empty_tensors() -> None:
    assert_right(Along(), (torch.randn(3, 0), places(3, 0)))


def test_take_along_dim_without_a_dim_counts_from_the_start() -> None:
    class Flat(nn.Module):
        def forward(self, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
            return torch.take_along_dim(x, index)

    compiled = ingot.compile(Flat(), (torch.randn(3, 2), torch.tensor([0, 5])), threads=1)
    with pytest.raises(IndexOutOfRange):
        compiled(torch.randn(3, 2), torch.tensor([0, -1]))


@pytest.mark.parametrize("mask", [(0, 6), (4, 6), (3, 5)])
@pytest.mark.parametrize("query", [(0, 2, 3, 8), (2, 2, 0, 8)])
def test_an_empty_attention_reads_no_mask(query: tuple[int, ...], mask: tuple[int, ...]) -> None:
    class Attention(nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return F.scaled_dot_product_attention(q, k, k, mask)

    args = torch.randn(query), torch.randn(query[0], 2, 6, 8), torch.randn(mask)
    try:
        Attention()(*args)
    except RuntimeError:
        pytest.skip("eager refuses this mask")
    assert_right(Attention(), args)
