"""Functions that cannot run inside of a kernel are refused by name, at the line that makes them so."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

import ingot
from ingot.errors import CaptureError, IngotError, InputError, UnsupportedOperator

TABLE = torch.randn(4, 16)


def two_values(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return s, s * 2


def a_shape(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return s + TABLE[h]


def no_tensor(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return 1.0


def whole_number(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return i - j


def random_draw(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return s + torch.rand(())


def write(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    TABLE.add_(1)
    return s


def sum_of_a_table(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return s + TABLE[h].sum()


def sorted_table(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return s + torch.sort(TABLE[h]).values[i]


def number_mask(b: Any, h: Any, i: Any, j: Any) -> Any:
    return i - j


def random_mask(b: Any, h: Any, i: Any, j: Any) -> Any:
    return torch.rand(()) > 0.5


SCORES: list[tuple[Any, type[IngotError], str]] = [
    (two_values, CaptureError, "returns 2 values"),
    (a_shape, CaptureError, r"returns float32\[16\]"),
    (no_tensor, CaptureError, "which is no tensor"),
    (whole_number, CaptureError, "a score is a floating-point number"),
    (random_draw, CaptureError, "aten.rand.default draws random numbers"),
    (write, CaptureError, "aten.add_.Tensor writes to a tensor"),
    (sum_of_a_table, UnsupportedOperator, r"aten\.sum"),
    (sorted_table, UnsupportedOperator, r"aten\.sort"),
]
MASKS: list[tuple[Any, type[IngotError], str]] = [
    (number_mask, CaptureError, "a mask is a bool"),
    (random_mask, CaptureError, "draws random numbers"),
]


def operands() -> list[torch.Tensor]:
    return [torch.randn(1, 4, 8, 16) for _ in range(3)]


def check_place(error: IngotError, function: Any) -> None:
    """The message names this file and a line of the function."""
    lines, first = inspect.getsourcelines(function)
    places = [f"{__file__}:{number}" for number in range(first, first + len(lines))]
    assert any(place in str(error) for place in places), str(error)


@pytest.mark.parametrize(("function", "error", "text"), SCORES, ids=[case[0].__name__ for case in SCORES])
def test_score_functions_that_are_refused(function: Any, error: type[IngotError], text: str) -> None:
    before = TABLE.clone()
    with pytest.raises(error, match=text) as raised:
        ingot.attention(*operands(), score_mod=function)
    if function is not no_tensor:  # nothing in it was recorded: the call is named instead
        check_place(raised.value, function)
    assert torch.equal(TABLE, before)


@pytest.mark.parametrize(("function", "error", "text"), MASKS, ids=[case[0].__name__ for case in MASKS])
def test_mask_functions_that_are_refused(function: Any, error: type[IngotError], text: str) -> None:
    with pytest.raises(error, match=text) as raised:
        ingot.attention(*operands(), mask_mod=function)
    check_place(raised.value, function)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda q, k, v: (q[0], k, v), "add the dims"),
        (lambda q, k, v: (q, k.double(), v), "cast them"),
        (lambda q, k, v: (q, k[:, :, :5], v), "in pairs"),
        (lambda q, k, v: (q, k[..., :8], v), "same depth"),
        (lambda q, k, v: (q, k[:, :2], v[:, :2]), "enable_gqa=True"),
        (lambda q, k, v: (q, k[:, :3], v[:, :3]), "a multiple"),
        (lambda q, k, v: (q.repeat(3, 1, 1, 1), k.repeat(2, 1, 1, 1), v.repeat(2, 1, 1, 1)), "same batch"),
    ],
)
def test_tensors_that_do_not_fit(change: Any, text: str) -> None:
    with pytest.raises(InputError, match=text):
        ingot.attention(*change(*operands()))
