"""Runs a target's list of scheduling passes, each followed by the verifier where it changed anything."""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Collection, Sequence
from typing import Protocol, TypeAlias

from ingot.config import Settings
from ingot.lowering.loop_module import Module

_log = logging.getLogger("ingot.schedule")

SchedulePass: TypeAlias = tuple[str, Callable[[Module], Module]]


class ScheduleVerifier(Protocol):
    def __call__(self, module: Module, after: str, *, full: bool) -> None: ...


def run_schedule(
    passes: Sequence[SchedulePass],
    verify_schedule: ScheduleVerifier,
    module: Module,
    disabled: Collection[str],
    *,
    verify: bool,
    observe: Callable[[str, Module, Module], None],
) -> Module:
    """The module after every pass that is not disabled. `observe` is called after each with the modules before and
    after it. Raises ScheduleError where a pass made a module that is not well formed: the structure is verified in any
    case, and dtypes, extents and accesses too with `verify` or where the environment asks for it (INGOT_CHECK)."""
    full = verify or Settings.from_environment().check
    verify_schedule(module, "lower", full=full)
    for name, run in passes:
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
