"""Random programs, compiled and compared with eager in float64: a few hundred here, thousands in the slow run.

Programs share a C file, so that a compiler is started once for many. A program that is refused by a named error is not
a failure, but there may be few of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.support.pipeline_fixtures import build
from tests.support.random_programs.differential import Batch, Verdict, compare, complaints, try_all
from tests.support.random_programs.programs import Program, Source, Step, make

numbers = st.lists(st.integers(0, 2**60), min_size=4, max_size=9)
SETTINGS = settings(
    deadline=None,
    derandomize=True,
    database=None,
    phases=(Phase.generate,),  # the culprit is found and cut down by `try_all`, which knows how
    suppress_health_check=list(HealthCheck),
)


class Count:
    """Verdicts over a whole run."""

    def __init__(self) -> None:
        self.right = 0
        self.refused: list[str] = []

    def add(self, verdict: Verdict) -> None:
        assert not verdict.wrong, "\n\n".join(verdict.wrong)
        self.right += verdict.right
        self.refused += verdict.refused

    def check(self, least: int) -> None:
        total = self.right + len(self.refused)
        assert total >= least
        assert len(self.refused) <= 0.15 * total, "\n\n".join(self.refused)


def run(batches: int, size: int, dynamic: bool, name: str) -> Count:
    count = Count()

    @settings(SETTINGS, max_examples=batches)
    @given(st.lists(numbers, min_size=size, max_size=size))
    def try_batches(batch: list[list[int]]) -> None:
        # Hypothesis begins with a batch of zeros: its programs, too, are to differ.
        each = [[number + (place << 61) for number in one] for place, one in enumerate(batch)]
        count.add(try_all([make(one, dynamic=dynamic) for one in each]))

    try_batches.hypothesis.inner_test.__qualname__ = name  # what hypothesis takes its seed from
    try_batches()
    return count


def test_programs() -> None:
    run(8, 20, False, "programs").check(160)


def test_programs_of_dynamic_sizes() -> None:
    run(2, 20, True, "dynamic programs").check(40)


@pytest.mark.slow
def test_two_thousand_programs() -> None:
    fixed = run(84, 20, False, "many programs")
    fixed.check(1600)
    dynamic = run(20, 20, True, "many dynamic programs")
    dynamic.check(320)
    write_report({"fixed sizes": fixed, "dynamic sizes": dynamic})


def write_report(counts: dict[str, Count]) -> None:
    path = Path(__file__).parents[2] / "docs" / "reports" / "native_programs.md"
    lines = [
        "# Random programs as native code",
        "",
        "Written by `pytest -m slow tests/e2e/test_random_programs.py`. Each program is a chain of up to eight",
        "operations on one to three inputs of random dtype, shape and layout; it is compiled with others in one C file",
        "and compared with eager: integers and bools equal, nan and inf at the same places, floats at most four",
        "times as far from float64 as eager itself plus 16 units in the last place of the coarsest dtype on the way.",
        "Dynamic ones run at four sizes, the bounds among them.",
        "",
        "| | programs | right | refused by a named error | wrong |",
        "|---|---|---|---|---|",
    ]
    for name, count in counts.items():
        total = count.right + len(count.refused)
        lines.append(f"| {name} | {total} | {count.right} | {len(count.refused)} | 0 |")
    refused = sorted({line.strip().partition(" (")[0] for c in counts.values() for text in c.refused
                      for line in text.splitlines() if "aten." in line})  # fmt: skip
    lines += ["", "Refused:", "", *(f"- {line}" for line in refused)] if refused else []
    path.write_text("\n".join(lines) + "\n")


# ---------------------------------------------------------------------- the judge can say no


def test_a_wrong_number_a_wrong_nan_and_a_wrong_shape_are_seen() -> None:
    exact = torch.linspace(-1, 1, 7, dtype=torch.float64)
    eager = exact.float()
    assert compare(eager.clone(), eager, exact, 1e-6) == ""
    off = eager.clone()
    off[3] += 1e-3
    assert "off by" in compare(off, eager, exact, 1e-6)
    off[3] = float("nan")
    assert "nan or inf" in compare(off, eager, exact, 1e-6)
    assert "eager torch.float32[7]" in compare(eager[:6], eager, exact, 1e-6)
    assert "1 of 3 differ" in compare(torch.tensor([1, 2, 3]), torch.tensor([1, 2, 4]), torch.tensor([1, 2, 4]), 1e-6)


def test_a_wrong_program_is_found() -> None:
    """A compiled program is judged by another one's meaning."""
    source = Source((3, 5), torch.float32, "dense", False, 1)
    one, other = (Program([source], [Step(op, (0,), ())], [], [1]) for op in ("sin", "cos"))
    compiled = build(Batch([one]), ([one.inputs()],))
    assert not list(complaints(compiled, [one], 11))
    ((number, why),) = complaints(compiled, [other], 11)
    assert number == 0 and "off by" in why


def test_any_list_of_numbers_is_a_program() -> None:
    program = make([0, 0, 1, 2])
    assert str(program).startswith("v0 = ")
    assert [str(a) for a in (make([5, 6, 7]), make([5, 6, 7]))] == [str(make([5, 6, 7]))] * 2
