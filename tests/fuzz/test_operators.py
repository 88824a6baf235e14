"""The generator of operator programs: deterministic, a few programs right, and an oracle that can say no."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from tests.fuzz import operators
from tests.fuzz.grammars.operators_language import LANGUAGE, NEW, NUMBERS
from tests.support.pipeline_fixtures import build
from tests.support.random_programs.differential import Batch, compare_bits, complaints
from tests.support.random_programs.operations import attend
from tests.support.random_programs.programs import Program, Source, Step


def test_a_program_depends_on_its_seed_alone() -> None:
    assert [str(operators.make(seed)) for seed in (3, 8)] == [str(operators.make(seed)) for seed in (3, 8)]
    assert operators.make(8).dynamic and not operators.make(3).dynamic
    assert str(operators.make(3)) != str(operators.make(5))


def test_some_programs_are_right() -> None:
    verdicts = dict(operators.check([1, 2, 3, 5, 6, 7, 9, 10]))
    assert sorted(verdicts) == [1, 2, 3, 5, 6, 7, 9, 10]
    assert not [v.reason for v in verdicts.values() if v.kind == "wrong"]


def test_every_new_operator_is_drawn() -> None:
    drawn = {step.op for seed in range(900) for step in operators.make(seed).steps}
    assert not set(NEW) - drawn


@pytest.mark.parametrize("op", ["equals_number", "through_integer", "add_number"])
def test_the_oracle_can_say_no(op: str) -> None:
    """A compiled program is judged by the meaning of one with another number."""
    source = Source((7, 11), torch.bfloat16, "dense", False, 1, (*NUMBERS, -0.0, 0.3))
    arguments: tuple[tuple[object, ...], ...] = ((NUMBERS[0],), (NUMBERS[1],))
    if op == "through_integer":
        arguments = ((torch.int64,), (torch.bool,))
    one, other = (Program([source], [Step(op, (0,), given)], [], [1], LANGUAGE, [True, True]) for given in arguments)
    compiled = build(Batch([one]), ([one.inputs()],))
    assert not list(complaints(compiled, [one], 11))
    ((_, why),) = complaints(compiled, [other], 11)
    assert "differ" in why or "off by" in why


def test_bits_and_signs_of_zero_are_compared() -> None:
    x = torch.tensor([1.0, 0.0, float("nan")], dtype=torch.bfloat16)
    assert compare_bits(x, x) == ""
    assert "another sign" in compare_bits(torch.tensor([1.0, -0.0, float("nan")], dtype=torch.bfloat16), x)
    assert "1 of 3 differ" in compare_bits(torch.tensor([1.0078125, 0.0, float("nan")], dtype=torch.bfloat16), x)


def test_attention_is_judged_by_its_formula() -> None:
    """On finite numbers the formula is eager's; a value that no query sees, or a row of nan, is clear only there."""
    x = torch.randn(2, 9, 5, dtype=torch.float64)
    for causal in (False, True):
        expected = F.scaled_dot_product_attention(x, x, x, is_causal=causal)
        torch.testing.assert_close(attend(x, x, x, causal=causal), expected)
    x[:, 4:] = math.nan
    found = attend(x, x, x, causal=True)
    assert found[:, :4].isfinite().all() and found[:, 4:].isnan().all()
    for seed in (5164, 5215):
        ((_, verdict),) = operators.check([seed])
        assert verdict.kind == "right", verdict.reason


def test_zeros_that_eager_takes_by_chance() -> None:
    for seed in (6516, 6888):
        ((_, verdict),) = operators.check([seed])
        assert verdict.kind == "right", verdict.reason
