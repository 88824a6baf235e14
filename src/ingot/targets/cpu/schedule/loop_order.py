"""Loop order: the innermost loop is the one that vectors run along.

before                                        after
for i < 49: for j < 2048: y[49·j + i] = …     for b < 128: for i < 49: for l < 16: y[49·(16·b + l) + i] = …
"""

from __future__ import annotations

from dataclasses import replace

from ingot.lowering.index_expr import Size, coefficient_of, substitute, symbol
from ingot.lowering.loop_body import reads, rewrite
from ingot.lowering.loop_ir import Loop, Map, Reduce
from ingot.lowering.loop_module import Module

# Outputs side by side that are worth walking along instead of along the reduction.
WIDE = 16


def order_loops(module: Module) -> Module:
    """Orders the loops of every Map for vectors; computes the same."""
    steps = [
        block_strided_stores(reorder_loops_for_contiguity(step)) if isinstance(step, Map) else step
        for step in module.steps
    ]
    return replace(module, steps=tuple(steps))


def is_outer_reduction(step: Reduce) -> bool:
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


def reorder_loops_for_contiguity(step: Map) -> Map:
    """The same points in another order: innermost the loop along which the fewest elements must be gathered."""
    if step.collides or len(step.loops) < 2:
        return step
    places = [access.index for access in reads(step.body)] + [store.index for store in step.stores]

    def gathered(loop: Loop) -> float:
        return sum(_gather_cost(coefficient_of(place, loop.variable)) for place in places)

    *_, last = step.loops
    wide = [loop for loop in step.loops if isinstance(loop.extent, int) and loop.extent >= WIDE]
    best = min(wide, key=gathered, default=last)
    short = isinstance(last.extent, int) and last.extent < WIDE // 2  # the three channels of an image fill no vector
    if gathered(best) >= gathered(last) + short:
        return step
    return replace(step, loops=(*(loop for loop in step.loops if loop is not best), best))


def _gather_cost(step: Size | None) -> float:
    """What vectors of elements so far apart cost, in gathers: every second one is shuffled out of two vectors."""
    return 0.0 if step in (0, 1) else 0.25 if step == 2 else 1.0


def block_strided_stores(step: Map) -> Map:
    """The same points in another order, where memory that is written runs along another loop than the innermost one:

        for i < 49: for j < 2048: y[49·j + i] = …    for b < 128: for i < 49: for l < 16: y[49·(16·b + l) + i] = …

    So many lines of memory are written again before they leave the nearest cache, by one thread."""
    if step.collides or len(step.loops) < 2:
        return step
    *outer, inner = step.loops
    if not isinstance(inner.extent, int) or inner.extent % WIDE or inner.extent == WIDE:
        return step
    strided = [store.index for store in step.stores if coefficient_of(store.index, inner.variable) not in (0, 1, 2)]
    long = [loop for loop in outer if not isinstance(loop.extent, int) or loop.extent >= WIDE]
    along = [loop for loop in long if any(coefficient_of(index, loop.variable) in (1, 2) for index in strided)]
    if not along:
        return step
    block, lane = Loop(f"{inner.variable}b", inner.extent // WIDE), Loop(inner.variable, WIDE)
    place = outer.index(along[0])
    place_in = {inner.variable: symbol(block.variable, below=block.extent) * WIDE + symbol(lane.variable, below=WIDE)}
    ops, results = rewrite(step.body, symbols=place_in)
    return replace(
        step,
        loops=(*outer[:place], block, *outer[place:], lane),
        body=ops.finish(results),
        stores=tuple(replace(store, index=substitute(store.index, place_in)) for store in step.stores),
    )
