"""Results that share memory, and arguments that are written to: as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.dynamo.recording import Recording, close


def _shared(tensors: Any) -> list[tuple[int, int]]:
    """Pairs of tensors that share memory, by number."""
    memories = [tensor.untyped_storage().data_ptr() for tensor in tensors]
    return [(i, j) for i in range(len(memories)) for j in range(i) if memories[i] == memories[j]]


# Of arguments that both calls get as copies: what is returned, and what becomes of the arguments, is compared.
CASES: dict[str, Callable[..., Any]] = {
    "views of an argument": lambda x, y: (x[1:].transpose(0, 1), x.view(-1), x + 1),
    "an argument itself": lambda x, y: (y, x),
    "views of a result": lambda x, y: ((z := x * 2), z.t(), z[1:], z[0]),
    "views of what is not returned": lambda x, y: ((z := x * 2).t(), z[1:, ::2]),
    "parts of a result": lambda x, y: torch.split(x * 2, 2, dim=1),
    "the same result twice": lambda x, y: ((z := x + y), z),
    "detached": lambda x, y: ((z := x + y), z.detach()),
    "another dtype": lambda x, y: ((z := x + y), z.view(torch.int32)),
    "an argument in another dtype": lambda x, y: (x.view(torch.int32), x * 2),
    "written": lambda x, y: (x.mul_(2), x.sum()),
    "written through a view": lambda x, y: (x[0].fill_(3.0), y + x),
    "written, and a view of it": lambda x, y: (x.add_(y), x[1:], x * 2),
    "both written": lambda x, y: (x.add_(1), y.mul_(2), x + y),
    "a view is written after it was returned": lambda x, y: ((z := x * 2), z.t().add_(1)),
    "transposed in place": lambda x, y: (x.t_(), x + 1),
    "copied": lambda x, y: (x.copy_(y), y + 1),
    "written by an index": lambda x, y: (x.index_copy_(0, torch.tensor([1]), y[None]), x.sum()),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("strided", [False, True])
@torch.no_grad()
def test_results_share_what_eager_s_share(recording: Recording, name: str, strided: bool) -> None:
    function = CASES[name]
    x, y = (torch.randn(4, 3).t() if strided else torch.randn(3, 4)), torch.randn(4)
    if strided and name == "views of an argument":
        pytest.skip("eager has no such view")
    compiled = torch.compile(function, backend=recording)
    for _ in range(2):
        have_args, want_args = ([x.clone(), y.clone()] for _ in range(2))
        versions = [tensor._version for tensor in have_args]
        have, want = compiled(*have_args), function(*want_args)
        for a, b in zip((*have, *have_args), (*want, *want_args), strict=True):
            assert a.shape == b.shape and a.stride() == b.stride() and a.storage_offset() == b.storage_offset()
            close(a, b)
        assert _shared((*have, *have_args)) == _shared((*want, *want_args))
        for tensor, other, before in zip(have_args, want_args, versions, strict=True):
            assert (tensor._version > before) == (other._version > 0)
        # What shares memory follows.
        for group in ((*have, *have_args), (*want, *want_args)):
            if group[0].is_floating_point():
                group[0].add_(1)
        for a, b in zip((*have, *have_args), (*want, *want_args), strict=True):
            close(a, b)
    assert all(recording.native)


@torch.no_grad()
def test_two_arguments_that_share_memory(recording: Recording) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x.sum() + y

    compiled = torch.compile(function, backend=recording)
    for _ in range(2):
        mine, other = (torch.arange(12.0).view(3, 4) for _ in range(2))
        close(compiled(mine, mine[1]), function(other, other[1]))
        close(mine, other)
    assert all(recording.native)


def test_a_view_of_a_result_has_a_gradient(recording: Recording) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        y = x.sin()
        return y, y.t(), x[1:]

    x, other = (torch.arange(12.0).view(3, 4).clone().requires_grad_() for _ in range(2))
    compiled = torch.compile(function, backend=recording)
    for run, given in ((compiled, x), (function, other)):
        y, turned, part = run(given)
        (y.sum() + (turned * 2).sum() + (part * 3).sum()).backward()
    close(x.grad, other.grad)
    y, turned, part = compiled(x)
    assert y._is_view() is False and turned._base is not None and part._base is x
    assert all(recording.native)


def test_a_leaf_that_is_written_to_is_the_error_that_eager_has(recording: Recording) -> None:
    x = torch.ones(3, requires_grad=True)
    with pytest.raises(Exception, match="leaf Variable that requires grad"):
        torch.compile(lambda x: x.mul_(2), backend=recording)(x)


def test_what_autograd_saved_may_not_be_written_to(recording: Recording) -> None:
    """A write by native code counts as one."""
    weight = torch.ones(3, requires_grad=True)
    kept = torch.ones(3)
    product = (weight * kept).sum()
    torch.compile(lambda x: x.add_(1), backend=recording)(kept)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()
    assert recording.native == [True]


@torch.no_grad()
def test_a_cache_is_written_where_it_lies(recording: Recording) -> None:
    class Cache(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("cache", torch.zeros(5, 4))

        def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
            self.cache.index_copy_(0, at, x)
            return self.cache.sum(0)

    model = Cache()
    memory = model.cache.data_ptr()
    compiled = torch.compile(model, backend=recording)
    want = torch.zeros(5, 4)
    for row in range(3):
        x = torch.randn(1, 4)
        want[row] = x[0]
        close(compiled(x, torch.tensor([row])), want.sum(0))
        close(model.cache, want)
    assert model.cache.data_ptr() == memory and recording.native == [True]


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_result_that_is_one_of_two_views_written_to(recording: Recording, dynamic: bool) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        y.add_(1)
        return x

    found = []
    for run in (function, torch.compile(function, backend=recording, dynamic=dynamic)):
        base = torch.ones(10)
        result = run(base[1:], base[1:])
        result.mul_(2)
        found.append((result, base))
    close(*found)
    assert recording.native == [True]
