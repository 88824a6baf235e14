"""Operators that speak of memory: `resize` and `as_strided` of what does not lie there row by row."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.dynamo.recording import Recording, close

ORDERS = {
    "plain": lambda x: x,
    "transposed": lambda x: x.transpose(0, -1),
    "steps": lambda x: x[..., ::2],
    "expanded": lambda x: x[:1].expand(4, *x.shape[1:]),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("size", [(2, 3), (0, 3), (5,), ()], ids=str)
@pytest.mark.parametrize("is_made", [False, True], ids=["an argument", "a value"])
def test_resize(recording: Recording, order: str, size: tuple[int, ...], is_made: bool) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.resize(x * 2 if is_made else x, size)

    x = ORDERS[order](torch.randn(4, 6))
    want, have = function(x), torch.compile(function, backend=recording)(x)
    close(have, want)
    assert have.stride() == want.stride()
    assert recording.native == [True]


def test_resize_with_channels_last(recording: Recording) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        resize, last = torch.ops.aten.resize, torch.channels_last
        return resize(x, (1, 2, 2, 3), memory_format=last), resize(y, (2, 2, 2))

    given = torch.randn(4, 6), torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    want, have = function(*given), torch.compile(function, backend=recording)(*given)
    close(have, want)
    assert [x.stride() for x in have] == [x.stride() for x in want]
    assert recording.native == [True]


@pytest.mark.parametrize("dtype", [torch.float32, torch.int16, torch.bool, torch.complex64], ids=str)
def test_resize_to_more(recording: Recording, dtype: torch.dtype) -> None:
    """Memory that nothing was written to is 0 here; torch fills it where deterministic algorithms are asked for."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.resize(x, (5, 8))

    x = torch.ones(4, 6).to(dtype).t()
    have = torch.compile(function, backend=recording)(x)
    close(have.flatten()[:24], x.t().flatten())
    torch._dynamo.reset()
    torch.use_deterministic_algorithms(True)
    try:
        torch.testing.assert_close(torch.compile(function, backend=recording)(x), function(x), equal_nan=True)
    finally:
        torch.use_deterministic_algorithms(False)
    assert recording.native == [True, True]


@pytest.mark.parametrize("order", ["plain", "transposed"])
@pytest.mark.parametrize("place", [((3, 2), (1, 4), 0), ((2, 2, 2), (6, 0, 1), 5)], ids=str)
def test_as_strided(recording: Recording, order: str, place: tuple[Any, ...]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).as_strided(*place) + 1

    x = ORDERS[order](torch.randn(4, 6))
    close(torch.compile(function, backend=recording)(x), function(x))
    assert recording.native == [True]


@pytest.mark.parametrize("order", ["plain", "transposed", "steps"])
@pytest.mark.parametrize("operator", ["resize", "resize_as"])
def test_resize_of_any_size(recording: Recording, order: str, operator: str) -> None:
    """Elements are taken away, or some are added."""

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if operator == "resize":
            return torch.ops.aten.resize(x * 2, (y.shape[0], 3, y.shape[1]))
        return torch.ops.aten.resize_as(x, y, memory_format=torch.preserve_format)

    compiled = torch.compile(function, backend=recording, dynamic=True)
    for (m, n), like in (((4, 6), (2, 3)), ((3, 4), (7, 5)), ((5, 2), (2, 5)), ((12, 8), (3, 2))):
        x, y = ORDERS[order](torch.randn(m, n)), torch.randn(*like)
        have, want = compiled(x, y), function(x, y)
        assert have.stride() == want.stride() and have.shape == want.shape
        count = min(x.numel(), want.numel())
        close(have.flatten()[:count], want.flatten()[:count])
        assert not have.flatten()[count:].any()
    assert all(recording.native)


def test_resize_as_channels_last(recording: Recording) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.resize_as(x, y, memory_format=torch.preserve_format)

    compiled = torch.compile(function, backend=recording)
    for sizes, like in (((5, 4, 6, 3), (2, 3, 4, 2)), ((3, 8, 2, 6), (4, 2, 3, 7))):
        x, y = (torch.randn(*shape).contiguous(memory_format=torch.channels_last) for shape in (sizes, like))
        have, want = compiled(x, y), function(x, y)
        close(have, want)
        assert have.stride() == want.stride()
    assert all(recording.native)


@pytest.mark.parametrize("place", [((3, 2), (1, 4), 0), ((2, 2, 2), (6, 0, 1), 5)], ids=str)
@pytest.mark.parametrize("view", ["steps", "transposed", "narrow"])
def test_as_strided_of_views(recording: Recording, view: str, place: tuple[Any, ...]) -> None:
    """Places count from the start of the memory that a view shows."""

    def function(x: torch.Tensor) -> torch.Tensor:
        made = x * 2
        shown = made[1:, 2:] if view == "narrow" else ORDERS[view](made)
        return shown.as_strided(*place) + shown.as_strided(*place[:2]).as_strided(*place)

    x = torch.randn(4, 6)
    close(torch.compile(function, backend=recording)(x), function(x))
    assert recording.native == [True]


def test_as_strided_of_views_of_an_argument(recording: Recording) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        first, second = x.split(3)
        return first.as_strided((2,), (1,)) + second.as_strided((2,), (1,))

    compiled = torch.compile(function, backend=recording)
    for x in (torch.randn(6), torch.randn(9)[3:]):
        close(compiled(x), function(x))
    assert all(recording.native)


@pytest.mark.parametrize("dynamic", [False, True])
def test_as_strided_counts_from_the_start_of_memory(recording: Recording, dynamic: bool) -> None:
    """Also where the tensor comes from another piece of the graph, or its sizes are open."""

    def function(x: torch.Tensor) -> torch.Tensor:
        shown = (x * 2)[1:]
        return shown.as_strided((2, 2), (1, 2), 3) + torch.linalg.eigvals(x[:4, :4]).abs().sum() * 0

    compiled = torch.compile(function, backend=recording, dynamic=dynamic)
    for m, n in ((5, 4), (7, 9), (6, 5)):
        x = torch.randn(m, n)
        close(compiled(x), function(x))
    assert recording.reports[0].native > 0


def test_as_strided_in_another_piece(recording: Recording) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        shown = (x * 2)[1:]
        return torch.linalg.eigvals(shown.as_strided((2, 2), (1, 2), 3)).abs().sort()[0]

    x = torch.randn(5, 4)
    close(torch.compile(function, backend=recording)(x), function(x))
    assert recording.reports[0].pieces > 0


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.as_strided((2,), (1,), 0) + 1,
        lambda x: x.as_strided((2,), (1,)) + 1,
        lambda x: x[1:].as_strided((2,), (1,), 4) + 1,
        lambda x: torch.as_strided_scatter(x, torch.ones(2), (2,), (1,), 4) + 1,
        lambda x: x.as_strided((2,), (1,), 4).add_(1) + x.sum(),
    ],
    ids=["at the start", "where it begins", "of a view", "scatter", "written to"],
)
def test_arguments_inside_their_memory(recording: Recording, function: Any, dynamic: bool) -> None:
    """torch.compile does not ask where in its memory an argument begins."""
    compiled = torch.compile(function, backend=recording, dynamic=dynamic)
    memory = torch.arange(12.0)
    for begin in (3, 0, 4):
        mine, other = memory.clone(), memory.clone()
        close(compiled(mine[begin : begin + 6]), function(other[begin : begin + 6]))
        close(mine, other)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("offset", [3, 4, 6, 11])
def test_as_strided_scatter_into_views(recording: Recording, offset: int, dynamic: bool) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.as_strided_scatter((x * 2)[1:], torch.ones(2, 2), (2, 2), (1, 2), offset) + 0

    x = torch.randn(5, 4)
    close(torch.compile(function, backend=recording, dynamic=dynamic)(x), function(x))


def test_as_strided_past_the_end_of_a_view(recording: Recording) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        shown = (x * 2)[1:2]
        return torch.linalg.eigvals(shown.as_strided((3, 3), (3, 1))).abs().sort()[0]

    x = torch.randn(5, 4)
    close(torch.compile(function, backend=recording)(x), function(x))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("of", ["a value", "a view", "an argument", "a view of an argument"])
def test_copies_of_strided_views(recording: Recording, of: str, dynamic: bool) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        given = x if "argument" in of else x * 2
        return torch.as_strided_copy(given[1:] if "view" in of else given, (2, 2), (1, 2), 5) + 1

    compiled = torch.compile(function, backend=recording, dynamic=dynamic)
    memory = torch.randn(8, 4)
    for x in (memory[:6], memory[2:]):
        close(compiled(x), function(x))
    assert all(recording.native)
