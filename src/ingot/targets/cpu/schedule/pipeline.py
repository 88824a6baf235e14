"""Scheduling: the passes over loops, by name and in order, each of which may be switched off.

    module = schedule(lower(program), disabled={"pairs"})

A pass takes a Module and returns one that computes the same, in fewer or faster steps; a module that no pass has seen
is right, and slow. So a wrong result is traced to a pass by switching passes off: `ingot verify --bisect` does that.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Collection

from ingot.config import Settings
from ingot.lowering.loop_module import Module
from ingot.scheduling.fusion import fusion_passes
from ingot.targets.base import ScheduleObserver, ignore_pass
from ingot.targets.cpu.schedule.dual_gemm import fuse_dual_gemms
from ingot.targets.cpu.schedule.horizontal_fusion import group_sibling_gemms
from ingot.targets.cpu.schedule.limits import FUSION_LIMITS
from ingot.targets.cpu.schedule.loop_order import order_loops
from ingot.targets.cpu.schedule.strip_mining import strip_mine
from ingot.targets.cpu.schedule.verifier import verify_schedule

_log = logging.getLogger("ingot.schedule")

SCHEDULE: tuple[tuple[str, Callable[[Module], Module]], ...] = (
    *fusion_passes(FUSION_LIMITS),
    ("loop_order", order_loops),
    ("strips", strip_mine),
    ("pairs", fuse_dual_gemms),
    ("siblings", group_sibling_gemms),
)


def schedule(
    module: Module,
    disabled: Collection[str] = (),
    *,
    verify: bool = False,
    observe: ScheduleObserver = ignore_pass,
) -> Module:
    """The module after every pass that is not disabled. `observe` is called after each with the modules before and
    after it. Raises ScheduleError where a pass made a module that is not well formed: the structure is verified in any
    case, and dtypes, extents and accesses too with `verify` or where the environment asks for it (INGOT_CHECK)."""
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
    """Whether a pass found nothing to do: what was verified before it needs no second look."""
    same = len(before.steps) == len(after.steps) and all(map(operator.is_, before.steps, after.steps))
    return same and before.buffers == after.buffers
