"""Questions about how a step walks through memory."""

from __future__ import annotations

from ingot.lowering.body import reads
from ingot.lowering.expr import coefficient_of
from ingot.lowering.ir import Reduce


def across(step: Reduce) -> bool:
    """Whether memory runs along the last output loop rather than along the reduction."""
    if not step.loops or any(kind.startswith("arg") for kind in step.kinds):
        return False
    if not step.over:
        return True
    along_output = along_reduction = 0
    for access in reads(step.body):
        along_output += coefficient_of(access.index, step.loops[-1].variable) == 1
        along_reduction += coefficient_of(access.index, step.over[-1].variable) == 1
    return along_output > along_reduction
