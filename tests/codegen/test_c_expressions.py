"""Bodies as C text."""

from __future__ import annotations

import re

import pytest

from ingot.codegen.c_expressions import CBodyEmitter
from ingot.lowering.loop_body import BodyBuilder
from ingot.lowering.loop_ir import Buffer


@pytest.mark.parametrize("wraps", [False, True])
def test_every_variable_is_used(wraps: bool) -> None:
    """Of a dim of one element the place is 0 whatever the index is, and only the check reads it."""
    ops = BodyBuilder()
    x = ops.load("x", 0, "int64")
    ops.check_index(ops.call("remainder", x, ops.const(1, "int64")), 1, wraps=wraps)
    body = ops.finish([x])
    buffers = {"x": Buffer("x", "int64", (1,))}
    code = CBodyEmitter(body, lambda buffer, index: f"{buffer}[{index}]", buffers, set(), finds_indices=True)
    assert len(code.checks) == 1
    text = "\n".join([*code.before, *code.between, *code.inside])
    for name in re.findall(r"^const \w+ (\w+) =", text, re.MULTILINE):
        assert len(re.findall(rf"\b{name}\b", text)) > 1 or name in code.results, f"{name} is not used in\n{text}"
