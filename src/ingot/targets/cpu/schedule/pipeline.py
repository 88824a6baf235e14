"""Scheduling: the passes over loops, by name and in order, each of which may be switched off.

    module = schedule(lower(program), disabled={"pairs"})

A pass takes a Module and returns one that computes the same, in fewer or faster steps; a module that no pass has seen
is right, and slow. So a wrong result is traced to a pass by switching passes off: `ingot verify --bisect` does that.
"""

from __future__ import annotations

from collections.abc import Collection

from ingot.lowering.loop_module import Module
from ingot.scheduling.fusion import fusion_passes
from ingot.scheduling.pass_runner import SchedulePass, run_schedule
from ingot.targets.base import ScheduleObserver, ignore_pass
from ingot.targets.cpu.schedule.amx import use_amx, use_amx_in_attention
from ingot.targets.cpu.schedule.dual_gemm import fuse_dual_gemms
from ingot.targets.cpu.schedule.horizontal_fusion import group_sibling_gemms
from ingot.targets.cpu.schedule.limits import FUSION_LIMITS
from ingot.targets.cpu.schedule.loop_order import order_loops
from ingot.targets.cpu.schedule.partial_sort import sort_what_is_read
from ingot.targets.cpu.schedule.strip_mining import strip_mine
from ingot.targets.cpu.schedule.verifier import verify_schedule

SCHEDULE: tuple[SchedulePass, ...] = (
    ("partial_sort", sort_what_is_read),
    *fusion_passes(FUSION_LIMITS),
    ("loop_order", order_loops),
    ("strips", strip_mine),
    ("pairs", fuse_dual_gemms),
    ("siblings", group_sibling_gemms),
    ("amx", use_amx),
    ("amx_attention", use_amx_in_attention),
)


def schedule(
    module: Module,
    disabled: Collection[str] = (),
    *,
    verify: bool = False,
    observe: ScheduleObserver = ignore_pass,
) -> Module:
    """The module after every pass that is not disabled, as `run_schedule` has it."""
    return run_schedule(SCHEDULE, verify_schedule, module, disabled, verify=verify, observe=observe)
