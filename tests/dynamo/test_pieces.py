"""Graphs in pieces: what has no native code runs in eager, the rest stays native."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from tests.dynamo.recording import Recording, close


def _raise(x: torch.Tensor, by: float) -> None:
    x.add_(by)


@pytest.fixture
def library() -> Iterator[Any]:
    """Operators of a user's, which no compiler knows: one computes, one writes, one has a gradient."""
    made = torch.library.Library("ingot_dynamo_tests", "FRAGMENT")
    made.define("cube(Tensor x) -> Tensor")
    made.impl("cube", lambda x: x.clone() ** 3, "CPU")
    made.impl("cube", torch.empty_like, "Meta")
    made.define("raise_(Tensor(a!) x, float by) -> ()")
    made.impl("raise_", _raise, "CPU")
    made.impl("raise_", lambda x, by: None, "Meta")

    def gradient(ctx: Any, given: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return given * 3 * x * x

    torch.library.register_autograd(
        "ingot_dynamo_tests::cube",
        gradient,
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
        lib=made,
    )
    yield torch.ops.ingot_dynamo_tests
    made._destroy()


@torch.no_grad()
def test_a_custom_operator_splits_the_graph(recording: Recording, said: Any, library: Any) -> None:
    first, second = nn.Linear(4, 8), nn.Linear(8, 3)

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = first(x).relu()
        return second(library.cube(y)).tanh(), y + 1

    compiled = torch.compile(function, backend=recording)
    for _ in range(2):
        x = torch.randn(5, 4)
        close(compiled(x), function(x))
    first.weight.mul_(2)  # packed into one of the pieces
    close(compiled(x), function(x))
    (report,) = recording.reports
    assert report.native == report.operations - 1 and report.pieces == 2
    assert len(said()) == 1 and "is split" in said()[0] and "ingot_dynamo_tests.cube" in said()[0]
    assert "test_pieces.py" in said()[0]


def test_a_custom_operator_with_a_gradient(recording: Recording, library: Any) -> None:
    model = nn.Linear(4, 8)

    def function(x: torch.Tensor) -> Any:
        return library.cube(model(x).tanh()).sin().sum()

    compiled = torch.compile(function, backend=recording)
    x, other = torch.randn(5, 4), None
    compiled(x).backward()
    have, other = model.weight.grad.clone(), model.weight
    other.grad = None
    function(x).backward()
    close(have, other.grad)
    assert recording.halves == ["forward", "backward"]
    assert [report.operations - report.native for report in recording.reports] == [1, 0]


@torch.no_grad()
def test_an_operator_that_writes_to_its_argument(recording: Recording, library: Any) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        library.raise_(y, 1.0)
        library.raise_(x, 2.0)
        return y.exp() + x

    compiled = torch.compile(function, backend=recording)
    for _ in range(2):
        x = torch.randn(4)
        other = x.clone()
        close(compiled(x), function(other))
        close(x, other)
    assert recording.reports[0].native > 0


@torch.no_grad()
def test_complex_values(recording: Recording) -> None:
    linear = nn.Linear(6, 6)

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values = torch.linalg.eigvals(linear(x).relu())
        return values.abs().sum(-1).tanh(), values

    x = torch.randn(3, 6, 6)
    compiled = torch.compile(function, backend=recording)
    have, want = compiled(x), function(x)
    close(have[0], want[0])
    assert have[1].dtype is torch.complex64
    (report,) = recording.reports
    assert 0 < report.native < report.operations and report.pieces == 2


@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True)
@torch.no_grad()
def test_values_that_decide_about_sizes(recording: Recording) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * 2
        places = y.relu().nonzero()
        count = (y > 0).sum().item()
        return (places + 1).float().sum(0), y * count

    compiled = torch.compile(function, backend=recording, fullgraph=True)
    for _ in range(3):
        x = torch.randn(4, 5)
        close(compiled(x), function(x))
    assert len(recording.reports) == 1 and recording.reports[0].native > 0


@torch.no_grad()
def test_writes_of_a_graph_in_pieces(recording: Recording, library: Any) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        before = library.cube(x + y)
        x.mul_(2)
        y.copy_(x[0])
        return before + x.sum()

    compiled = torch.compile(function, backend=recording)
    for _ in range(2):
        mine, other = [torch.ones(3, 4), torch.ones(4)], [torch.ones(3, 4), torch.ones(4)]
        close(compiled(*mine), function(*other))
        close(mine, other)
        assert all(tensor._version > 0 for tensor in mine)


def test_random_numbers_of_eager(recording: Recording) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (torch.rand_like(x) + torch.randn_like(x) + x).exp() + torch.rand_like(x)

    compiled = torch.compile(function, backend=recording, options={"fallback_random": True})
    x = torch.randn(4, 5)
    torch.manual_seed(3)
    have = compiled(x)
    torch.manual_seed(3)
    close(have, function(x))
    (report,) = recording.reports
    assert report.operations - report.native == 3 and "fallback_random" in report.reasons[0]


@pytest.mark.parametrize("dynamic", [None, True, False])
@torch.no_grad()
def test_numbers_as_arguments(recording: Recording, dynamic: bool | None) -> None:
    def function(x: torch.Tensor, n: int, scale: float, flip: bool, shift: torch.Tensor) -> Any:
        y = x * n * scale + shift
        return (y.flip(0) if flip else y), n + 1, x.shape[0] * n

    compiled = torch.compile(function, backend=recording, dynamic=dynamic)
    x, shift = torch.randn(4, 3), torch.tensor(2.5, dtype=torch.float64)
    for n, scale, flip in ((3, 0.5, True), (4, 1.5, False), (7, 2.5, True), (0, -1.0, True), (-5, 0.25, True)):
        have, want = compiled(x, n, scale, flip, shift), function(x, n, scale, flip, shift)
        close(have[0], want[0])
        assert have[1:] == want[1:]
    assert all(recording.native), recording.reports


@torch.no_grad()
def test_a_number_that_no_tensor_tells(recording: Recording) -> None:
    compiled = torch.compile(lambda x, n: torch.arange(n) + x.sum() * n, backend=recording, dynamic=True)
    x = torch.randn(4)
    for n in (3, 5, 7, 100, 3):
        close(compiled(x, n), torch.arange(n) + x.sum() * n)
    assert all(recording.native), recording.reports


@torch.no_grad()
def test_a_number_of_which_native_code_knows_no_function(recording: Recording) -> None:
    """Rounded to decimals, it becomes a part of the code, for some of its values."""

    def function(x: torch.Tensor, i: int) -> Any:
        return x + round(i / 2 * 123.4567, 1), x[: round(i / 2 + 1)] + round(i / 2)

    compiled = torch.compile(function, backend=recording, fullgraph=True, dynamic=True)
    for i in range(1, 6):
        x = torch.randn(5)
        close(compiled(x, i), function(x, i))
    assert all(recording.native), recording.reports


@torch.no_grad()
def test_a_number_without_native_code(recording: Recording, library: Any) -> None:
    """That there is none is known, and reported, before the first call."""

    def function(x: torch.Tensor, i: int) -> Any:
        return library.cube(x + round(i / 2 * 123.4567, 1)).tanh()

    compiled = torch.compile(function, backend=recording, fullgraph=True, dynamic=True)
    for i in (2, 3):
        x = torch.randn(5)
        close(compiled(x, i), function(x, i))
    assert not recording.reports[0].is_native
