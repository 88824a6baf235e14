"""Random programs through the passes: eighty in each run, in the slow run as many as the report has.

A failure shows the program as hypothesis cut it down. Its text is a test of its own, in test_fuzz_regressions.py.
"""

from __future__ import annotations

import pytest
from hypothesis import Phase, given, settings

from tests.passes.random_programs import programs, sweep
from tests.passes.random_programs.checks import Order, check_drawn, orders

QUICK = 80


@settings(max_examples=QUICK, derandomize=True, phases=[Phase.generate], **sweep.SETTINGS)
@given(programs.programs(small=True), orders())
def test_random_programs(drawn: programs.Program, order: Order) -> None:
    check_drawn(drawn, order)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(sweep.PARTS))
def test_many_random_programs(part: int) -> None:
    assert sweep.check_part(part) == sweep.SIZE
