"""A slice of torch's operator samples; `make long-shapes` takes them all."""

from __future__ import annotations

from typing import Any

import pytest

from tests.program.shapes.samples import KINDS, Tally, judge, operators

SLICE = operators()[::24]


@pytest.mark.parametrize("op", SLICE, ids=lambda op: f"{op.name}{op.variant_test_name}")
def test_never_wrong(op: Any) -> None:
    tally = {kind: Tally() for kind in KINDS}
    judge(op, tally, most=1, scripts=False)
    assert [line for kind in KINDS for line in tally[kind].wrong] == []
