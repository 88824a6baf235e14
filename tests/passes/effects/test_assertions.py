"""An assertion that fails says its message, the user's line and the module's path, in whatever form the program is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import ingot
from ingot.errors import AssertionFailed
from ingot.passes.decompose import decompose
from ingot.passes.erase_effect_tokens import erase_effect_tokens
from ingot.passes.functionalize import functionalize
from ingot.passes.insert_effect_tokens import insert_effect_tokens
from tests.passes.effects import effectful_ops
from tests.passes.effects.effectful_ops import AssertAndCond, Base, Regions, complain, made, program_of


def failure_of(program: Callable[..., Any], *args: Any) -> str:
    with pytest.raises(AssertionFailed) as caught:
        program(*args)
    return str(caught.value)


def line_of(text: str) -> int:
    return next(
        i for i, line in enumerate(Path(effectful_ops.__file__).read_text().splitlines(), 1) if line.strip() == text
    )


@pytest.mark.parametrize("cls", [AssertAndCond, Regions])
def test_a_failing_assertion_says_what_and_where(cls: type[Base]) -> None:
    model, x = made(cls)
    program = program_of(model, x)
    line = line_of('torch._assert_async((x < 50).all(), "too large")')
    for one in (
        program,
        ingot.transform(program, [insert_effect_tokens]),
        ingot.transform(program, [insert_effect_tokens, functionalize, decompose]),
        ingot.transform(program, [insert_effect_tokens, functionalize, erase_effect_tokens]),
    ):
        text = failure_of(one, x + 100)
        assert text.startswith("too large\n")
        assert f"{effectful_ops.__file__}:{line}" in text
        assert "module sub" in text


def test_a_failing_assertion_in_a_branch_says_where() -> None:
    class Branch(Base):
        def forward(self, x: torch.Tensor) -> Any:
            return torch.cond(x.sum() > 0, lambda v: self.sub(v), lambda v: v * 2, (x,))

    model, x = made(Branch)
    program = program_of(model, x)
    line = line_of('torch._assert_async((x < 50).all(), "too large")')
    for one in (program, ingot.transform(program, [insert_effect_tokens])):
        text = failure_of(one, x + 100)
        assert "too large" in text and f"{effectful_ops.__file__}:{line}" in text and "module sub" in text


def test_a_failing_check_of_a_size_says_what() -> None:
    class Checked(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            number = x.sum().item()
            torch._check(number < 40)
            return x + number

    program = program_of(Checked(), torch.ones(3, dtype=torch.int64))
    for one in (program, ingot.transform(program, [insert_effect_tokens])):
        text = failure_of(one, torch.full((3,), 50))
        assert "< 40" in text and f"{__file__}:" in text


def test_another_failure_is_not_an_assertion() -> None:
    class Complaining(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            complain(x)
            return x + 1

    program = program_of(Complaining(), torch.ones(2))
    for one in (program, ingot.transform(program, [insert_effect_tokens])):
        with pytest.raises(RuntimeError, match="a broken kernel") as caught:
            one(torch.ones(2))
        assert not isinstance(caught.value, AssertionFailed)


def test_a_failing_assertion_writes_no_more_than_eager() -> None:
    class Counting(Base):
        def forward(self, x: torch.Tensor) -> Any:
            self.seen.add_(1)
            y = self.sub(x)
            self.seen.add_(1)
            return y

    model, x = made(Counting)
    program = program_of(model, x)
    failure_of(program, x + 100)
    assert program.state_dict["seen"].item() == 1
