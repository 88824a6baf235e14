"""What Python does in each call of a compiled graph does not grow with its arguments."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections import Counter
from types import FrameType
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch._subclasses.functional_tensor import dispatch_functionalize

from tests.dynamo.recording import Recording


def count_calls(function: Any, *args: Any) -> Counter[str]:
    """Calls of Python functions of ours, by name."""
    found: Counter[str] = Counter()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and "/ingot" in frame.f_code.co_filename.replace("\\", "/"):
            found[frame.f_code.co_name] += 1

    sys.setprofile(note)
    try:
        function(*args)
    finally:
        sys.setprofile(None)
    return found


@pytest.mark.parametrize("results", ["one", "many"])
@torch.no_grad()
def test_calls_of_functions(recording: Recording, results: str) -> None:
    counts = []
    for number in (3, 100):
        tensors = [torch.randn(8) for _ in range(number)]
        torch._dynamo.reset()
        add = (lambda *xs: sum(xs)) if results == "one" else (lambda *xs: [x + 1 for x in xs])
        compiled = torch.compile(add, backend=recording)
        for _ in range(2):
            compiled(*tensors)
        counts.append(count_calls(compiled, *tensors))
    assert counts[0] == counts[1]
    assert counts[0].total() <= 10, counts[0]


@torch.no_grad()
def test_other_strides_and_offsets(recording: Recording) -> None:
    """Where torch's guards let them through, they are computed with as they are."""

    def function(*xs: torch.Tensor) -> torch.Tensor:
        return torch.stack([x * 2 for x in xs]).sum(0)

    compiled = torch.compile(function, backend=recording, dynamic=True)
    base = torch.randn(6, 5, 4)
    for given in (
        [base[0], base[1], base[2]],
        [base[:, 0, :], base[:, 1, :], base[:, 2, :]],
        [base[0].t(), base[1].t(), base[3].t()],
        [base[0].double(), base[1], base[2]],
    ):
        torch.testing.assert_close(compiled(*given), function(*given))
    assert all(recording.native)


@pytest.mark.parametrize("number", [None, 2.5], ids=["tensors", "a number"])
@torch.no_grad()
def test_tensors_without_memory(recording: Recording, number: float | None) -> None:
    """A compiled function that is traced, or called with fake tensors, runs as the graph that it was."""

    def function(x: torch.Tensor, *numbers: float) -> torch.Tensor:
        return x.sin() * 2 if not numbers else x * numbers[0]

    given = [] if number is None else [number]
    compiled = torch.compile(function, backend=recording, dynamic=bool(given))
    x = torch.randn(4)
    compiled(x, *given)
    with contextlib.suppress(RuntimeError):  # of torch's, with any backend, the first time
        dispatch_functionalize(compiled)(x, *given)
    torch.testing.assert_close(dispatch_functionalize(compiled)(x, *given), function(x, *given))
    with FakeTensorMode() as mode, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = compiled(mode.from_tensor(x), *given)
        assert isinstance(made, FakeTensor) and made.shape == (4,)
    torch.testing.assert_close(compiled(x, *given), function(x, *given))
    assert all(recording.native)
