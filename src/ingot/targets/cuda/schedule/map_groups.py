"""Maps that do not depend on each other become one kernel.

    before                              after
    map  rotated keys → cache           map_group  rotated keys → cache, values → cache, rotated queries → q
    map  values → cache
    map  rotated queries → q

A small kernel takes as long as its launch, whatever it does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ingot.lowering.dependence import can_hoist_over
from ingot.lowering.index_expr import coefficient_of, product
from ingot.lowering.loop_body import reads
from ingot.lowering.loop_ir import Map, Stmt
from ingot.lowering.loop_module import Module
from ingot.targets.cuda.schedule.statements import MapGroup

# Points of a Map that joins others: a larger one takes longer than its launch.
MOST_POINTS = 1 << 21
# The same where memory is not dense along its last loop: alone, it may be transposed through shared memory.
MOST_SCATTERED_POINTS = 1 << 14
# Maps of a group, and how many steps one may move over.
MOST_MEMBERS = 8
FARTHEST = 4


def group_maps(module: Module) -> Module:
    """Joins Maps of the module's own list of steps; computes the same."""
    done: list[list[Stmt]] = []
    for step in module.steps:
        place = _find_group(step, done) if _is_small(step) else None
        if place is None:
            done.append([step])
        else:
            done[place].append(step)
    return replace(module, steps=tuple(_join(group) for group in done))


def _join(group: Sequence[Stmt]) -> Stmt:
    maps = tuple(step for step in group if isinstance(step, Map))
    return MapGroup(maps, maps[0].origin) if len(group) > 1 else group[0]


def _find_group(step: Stmt, done: Sequence[Sequence[Stmt]]) -> int | None:
    """The nearest Map, or group of them, that the step may run beside, if it may run so early."""
    for place in range(len(done) - 1, max(-1, len(done) - 1 - FARTHEST), -1):
        group = done[place]
        if not can_hoist_over(step, group):
            return None
        if len(group) < MOST_MEMBERS and all(map(_is_small, group)):
            return place
    return None


def _is_small(step: Stmt) -> bool:
    if not isinstance(step, Map):
        return False
    points = product([loop.extent for loop in step.loops])
    return isinstance(points, int) and points <= (MOST_POINTS if _is_dense(step) else MOST_SCATTERED_POINTS)


def _is_dense(step: Map) -> bool:
    """Whether neighbouring points of the last loop use neighbouring elements, or the same one."""
    if not step.loops or step.collides:
        return False
    along = step.loops[-1].variable
    places = [use.index for use in reads(step.body)] + [store.index for store in step.stores]
    return all(coefficient_of(place, along) in (0, 1) for place in places)
