"""Questions about how a step walks through memory."""

from __future__ import annotations

from dataclasses import replace

from ingot.lowering.body import reads
from ingot.lowering.expr import coefficient_of
from ingot.lowering.ir import Loop, Map, Reduce

# Outputs side by side that are worth walking along instead of along the reduction.
WIDE = 16


def across(step: Reduce) -> bool:
    """Whether memory runs along the last output loop rather than along the reduction."""
    if not step.loops or any(kind.startswith("arg") for kind in step.kinds):
        return False
    if not step.over:
        return True
    output, reduction = step.loops[-1], step.over[-1]
    steps = [
        [coefficient_of(access.index, loop.variable) for access in reads(step.body)] for loop in (output, reduction)
    ]
    # What lies neither beside its neighbour nor still must be gathered.
    gathered_across, gathered_along = (sum(by not in (0, 1) for by in found) for found in steps)
    if gathered_across < gathered_along and isinstance(output.extent, int) and output.extent >= WIDE:
        return True
    return steps[0].count(1) > steps[1].count(1)


def along_memory(step: Map) -> Map:
    """The same points in another order: innermost the loop along which the fewest elements must be gathered."""
    if step.serial or len(step.loops) < 2:
        return step
    places = [access.index for access in reads(step.body)] + [store.index for store in step.stores]

    def gathered(loop: Loop) -> int:
        return sum(coefficient_of(place, loop.variable) not in (0, 1) for place in places)

    *_, last = step.loops
    wide = [loop for loop in step.loops if isinstance(loop.extent, int) and loop.extent >= WIDE]
    best = min(wide, key=gathered, default=last)
    if gathered(best) >= gathered(last):
        return step
    return replace(step, loops=(*(loop for loop in step.loops if loop is not best), best))
