"""Operands whose dims are equal to the result's, or 1, known at run time only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim
from torch.nn.attention.flex_attention import flex_attention

import ingot
from ingot.errors import InputError
from ingot.lowering.index_expr import symbol
from ingot.lowering.tensor_views import Fit, broadcast_place, broadcast_shapes, compare


class Function(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return self.function(x, y)


def test_three_answers() -> None:
    n, m = symbol("n0"), symbol("n1")
    assert compare(n, n) is Fit.EQUAL
    assert compare(1, n) is Fit.BROADCAST
    assert compare(4, n) is Fit.EQUAL
    assert compare(n + 2, m) is Fit.EQUAL
    assert compare(n, m) is Fit.UNKNOWN
    assert str(broadcast_place(symbol("i0"), n, m)) == "min(-1 + n0, i0)"
    assert broadcast_shapes((3, 1), (n,)) == (3, n)


def _attend(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    q, k = (t[:2, None, :, None].expand(-1, 2, -1, 4) for t in (x, y))
    return F.scaled_dot_product_attention(q, k, k)


CASES: dict[str, Callable[..., torch.Tensor]] = {
    "add": lambda x, y: x[:2] + y[:2],
    "where": lambda x, y: torch.where(x[:2] > 0, x[:2], y[:2]),
    "matmul": lambda x, y: x[:2, :, None] @ y[:2, None],
    "attention": _attend,
    "index": lambda x, y: x[(x[:2, 0] > 9).long()] + y[:2],
    "expand": lambda x, y: y[:2].expand(x[:2].shape[0], 3) + 0,
    "bias": lambda x, y: torch.addmm(y[:2], x[:2], torch.ones(3, 3)),
    "write": lambda x, y: x.clone().index_put_((torch.arange(x[:2].shape[0]),), y[:2]),
}


@pytest.mark.parametrize("name", CASES)
def test_broadcast_at_run_time(name: str) -> None:
    function = CASES[name]
    shapes = {"x": {0: "n"}, "y": {0: "m"}}
    example = (torch.randn(5, 3), torch.randn(6, 3))
    compiled = ingot.compile(Function(function), example, dynamic_shapes=shapes, threads=1)
    for n, m in ((5, 7), (4, 1), (2, 2), (2, 1)):
        x, y = torch.randn(n, 3), torch.full((m + 8, 3), 1e30)[:m].copy_(torch.randn(m, 3))
        torch.testing.assert_close(compiled(x, y), function(x, y))


def test_integers_divided_by_a_size() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x[torch.arange(4) % x.shape[0]] + y

    shapes = {"x": {0: Dim("n", min=0)}, "y": {}}
    compiled = ingot.compile(Function(function), (torch.randn(5, 3), torch.randn(3)), dynamic_shapes=shapes, threads=1)
    for size in (1, 3, 6):
        x, y = torch.randn(size, 3), torch.randn(3)
        torch.testing.assert_close(compiled(x, y), function(x, y))
    with pytest.raises(InputError):
        compiled(torch.randn(0, 3), torch.randn(3))


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_with_two_batch_symbols() -> None:
    class Attention(nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
            return flex_attention(q, k, v)

    def tensors(batch: int) -> tuple[torch.Tensor, ...]:
        return tuple(torch.randn(batch, 2, 32, 16) for _ in range(3))

    shapes = {name: {0: dim} for name, dim in zip("qkv", "bbc", strict=True)}
    compiled = ingot.compile(Attention(), tensors(4), dynamic_shapes=shapes, threads=1)
    for batch in (1, 3, 4):
        q, k, v = tensors(batch)
        torch.testing.assert_close(compiled(q, k, v), F.scaled_dot_product_attention(q, k, v))
        shared = F.scaled_dot_product_attention(q, k, v[:1].expand_as(v))
        torch.testing.assert_close(compiled(q, k, v[:1]), shared)
    q, k, v = tensors(4)
    with pytest.raises(InputError):
        compiled(q, k, v[:3])
