"""What a run says about an index that is out of range: its value, and the range that is valid."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import ingot
from ingot_runtime import IndexOutOfRange

Call = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
FROM_END = "(valid: -50 to 49)"
FROM_START = "(valid: 0 to 49)"


def _take(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    return x[i]


def _embed(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.embedding(i, x)


def _gather(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    return torch.gather(x, 0, i[:, None].expand(-1, x.shape[1]))


def _first_column(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    return x[:, 0][i] * 2


def _sum(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    return x[i].sum()


def _put(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    return x.index_put((i,), torch.ones(()))


def _add(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    return x.index_add(0, i, torch.ones(i.shape[0], x.shape[1]))


def _select(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    return x.index_select(0, i)


def _two(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    return x[i.clamp(-50, 49), i.clamp(max=15) % 8] + x[i, 0]


@pytest.mark.parametrize("call", [_take, _embed, _gather, _first_column, _sum, _put, _add, _select, _two])
@pytest.mark.parametrize("dynamic", [False, True])
def test_the_value_and_the_range(call: Call, dynamic: bool) -> None:
    wraps = call in (_take, _first_column, _sum, _put, _two)
    x, i = torch.randn(50, 16), torch.arange(40)
    shapes = {"x": {0: "rows"}, "i": {0: "places"}} if dynamic else None

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
            return call(x, i)

    compiled = ingot.compile(Model(), (x, i), dynamic_shapes=shapes, threads=2)
    assert torch.equal(compiled(x, i), call(x, i)) or call is _sum
    for wrong in (50, 71, -51, 2**62, -(2**63), *(() if wraps else (-1,))):
        bad = i.clone()
        bad[33] = wrong
        with pytest.raises(IndexOutOfRange) as failure:
            compiled(x, bad)
        expected = f"index {wrong} is out of range for a dim of 50 elements {FROM_END if wraps else FROM_START}: "
        assert str(failure.value).startswith(expected)
        assert "test_index_messages.py:" in str(failure.value)
    compiled.close()


def test_an_index_into_nothing() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
            return x[x[:, 0] > 0][i] * 2

    x, i = torch.ones(3, 4), torch.tensor([0, 1])
    compiled = ingot.compile(Model(), (x, i))
    assert torch.equal(compiled(x, i), x[i] * 2)
    with pytest.raises(IndexOutOfRange, match=r"^index 2 is out of range for a dim of 2 elements \(valid: -2 to 1\): "):
        compiled(x - torch.tensor([0, 0, 1])[:, None], torch.tensor([0, 2]))
    with pytest.raises(IndexOutOfRange, match=r"^index \d is out of range for a dim without elements: "):
        compiled(-x, i)
    compiled.close()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8])
def test_indices_of_other_dtypes(dtype: torch.dtype) -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
            return x[i.long()]

    x, i = torch.randn(5), torch.tensor([1, 2], dtype=dtype)
    compiled = ingot.compile(Model(), (x, i))
    with pytest.raises(IndexOutOfRange, match=r"^index 9 is out of range for a dim of 5 elements \(valid: -5 to 4\)"):
        compiled(x, torch.tensor([1, 9], dtype=dtype))
    compiled.close()
