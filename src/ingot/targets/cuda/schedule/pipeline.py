"""Scheduling for a GPU: the passes over loops, by name and in order, each of which may be switched off."""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Collection

from ingot.config import Settings
from ingot.lowering.loop_module import Module
from ingot.scheduling.fusion import fusion_passes
from ingot.scheduling.state_updates import update_state_in_place
from ingot.targets.base import ScheduleObserver, ignore_pass
from ingot.targets.cuda.schedule.limits import FUSION_LIMITS
from ingot.targets.cuda.schedule.map_groups import group_maps
from ingot.targets.cuda.schedule.siblings import join_siblings
from ingot.targets.cuda.schedule.tiling import choose_tiles
from ingot.targets.cuda.schedule.verifier import verify_schedule

_log = logging.getLogger("ingot.schedule")

SCHEDULE: tuple[tuple[str, Callable[[Module], Module]], ...] = (
    ("state_updates", update_state_in_place),
    *fusion_passes(FUSION_LIMITS),
    ("map_groups", group_maps),
    ("tiles", choose_tiles),
    ("siblings", join_siblings),
)


def schedule(
    module: Module,
    disabled: Collection[str] = (),
    *,
    verify: bool = False,
    observe: ScheduleObserver = ignore_pass,
) -> Module:
    """The module after every pass that is not disabled, verified after each that changed it."""
    full = verify or Settings.from_environment().check
    verify_schedule(module, "lower", full=full)
    for name, run in SCHEDULE:
        if name not in disabled:
            before, module = module, run(module)
            if not _is_unchanged(before, module):
                verify_schedule(module, name, full=full)
            _log.info("%s: %d → %d steps", name, len(before.steps), len(module.steps))
            observe(name, before, module)
    return module


def _is_unchanged(before: Module, after: Module) -> bool:
    same = len(before.steps) == len(after.steps) and all(map(operator.is_, before.steps, after.steps))
    return same and before.buffers == after.buffers
