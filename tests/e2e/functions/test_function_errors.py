"""Functions that cannot run inside a kernel are refused by name, at the line that makes them so."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import nn
from torch._higher_order_ops.associative_scan import associative_scan

import ingot
from ingot.autograd.gradient_rules import gradient_rules
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
    (no_tensor, CaptureError, "which is not a tensor"),
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


# ---------------------------------------------------------------------- gradients that have no native code


def without_gradient(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    positive = s.abs() + 1
    return torch.digamma(positive)


def combined_without_gradient(a: Any, b: Any) -> Any:
    return torch.digamma(a * a + 1) + b


class WithoutGradient(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        y = self.linear(x).sigmoid() + 1
        z = torch.digamma(y)
        return torch.cdist(z, y)


def line_of(function: Any, text: str) -> str:
    lines, first = inspect.getsourcelines(function)
    return f"{__file__}:{first + next(number for number, line in enumerate(lines) if text in line)}"


@pytest.fixture
def no_polygamma(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every function of one element has a gradient: here one of them has none."""
    rules: Any = gradient_rules()
    monkeypatch.delitem(rules._rules, torch.ops.aten.polygamma.default)


@pytest.mark.usefixtures("no_polygamma")
def test_a_score_function_whose_gradient_cannot_be_compiled() -> None:
    given = [t.requires_grad_() for t in operands()]
    with pytest.raises(UnsupportedOperator, match=r"gradient of this model.*\n.*aten\.polygamma") as raised:
        ingot.attention(*given, score_mod=without_gradient)
    assert line_of(without_gradient, "digamma") in str(raised.value)


@pytest.mark.usefixtures("no_polygamma")
def test_a_combine_function_whose_gradient_cannot_be_compiled() -> None:
    def model(x: Any) -> Any:
        return associative_scan(combined_without_gradient, x, 0, combine_mode="generic")

    with pytest.raises(UnsupportedOperator, match=r"gradient of this model.*\n.*aten\.polygamma") as raised:
        ingot.compile(model, (torch.rand(5, 3, requires_grad=True),), training=True)
    assert line_of(combined_without_gradient, "digamma") in str(raised.value)


@pytest.mark.usefixtures("no_polygamma")
def test_operators_of_a_model_whose_gradient_cannot_be_compiled() -> None:
    with pytest.raises(UnsupportedOperator, match=r"gradient of this model.*2 operators") as raised:
        ingot.compile(WithoutGradient(), (torch.rand(3, 4),), training=True)
    said = str(raised.value)
    assert f"aten.polygamma.default: there is no rule for it ({line_of(WithoutGradient.forward, 'digamma')}" in said
    assert f"aten._cdist_backward.default: there is no rule for it ({line_of(WithoutGradient.forward, 'cdist')}" in said
