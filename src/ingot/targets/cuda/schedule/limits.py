"""How far fusion goes on a GPU."""

from __future__ import annotations

from ingot.lowering.index_expr import coefficient_of
from ingot.lowering.loop_body import reads
from ingot.lowering.loop_ir import Reduce
from ingot.scheduling.fusion_limits import FusionLimits


def reduces_across(step: Reduce) -> bool:
    """Whether neighbouring outputs, and not neighbouring terms of one output, are neighbours in memory: threads then
    take one output each."""
    if not step.loops or not step.over:
        return False
    along, across = step.over[-1].variable, step.loops[-1].variable
    places = [load.index for load in reads(step.body)]
    votes = [(coefficient_of(at, across) == 1) - (coefficient_of(at, along) == 1) for at in places]
    return sum(votes) > 0


FUSION_LIMITS = FusionLimits(
    body_length=256,
    outer_points=64,  # a block takes one outer point; fewer leave most of the GPU idle
    row_length=1 << 14,  # a row that several steps share lies in shared memory
    reduces_across=reduces_across,
    lone_row_length=1 << 14,  # one block computes it in the time that a few launches take
)
