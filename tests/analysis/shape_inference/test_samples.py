"""A slice of torch's operator samples; `make opinfo-shapes` takes them all."""

from __future__ import annotations

from typing import Any

import pytest

from tests.analysis.shape_inference.samples import judge, operators

SLICE = operators()[::24]


@pytest.mark.parametrize("op", SLICE, ids=lambda op: f"{op.name}{op.variant_test_name}")
def test_never_wrong(op: Any) -> None:
    assert judge(op, most=1).wrong == []
