"""Scheduling: the passes over loops, by name and in order, each of which may be switched off.

    module = schedule(lower(program), disabled={"pairs"})

A pass takes a Module and returns one that computes the same, in fewer or faster steps; a module that no pass has seen
is right, and slow. So a wrong result is traced to a pass by switching passes off: `ingot verify --bisect` does that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from ingot.lowering.fusion import FUSION
from ingot.lowering.ir import Module
from ingot.lowering.pairs import pair
from ingot.lowering.siblings import join_siblings
from ingot.lowering.strips import strip
from ingot.lowering.verifier import verify_module

SCHEDULE: tuple[tuple[str, Callable[[Module], Module]], ...] = (
    *FUSION,
    ("strips", strip),
    ("pairs", pair),
    ("siblings", join_siblings),
)


def schedule(
    module: Module,
    disabled: Collection[str] = (),
    *,
    observe: Callable[[str, Module, Module], None] = lambda name, before, after: None,
) -> Module:
    """The module after every pass that is not disabled. `observe` is called after each with the modules before and
    after it. Raises ScheduleError where a pass made a module that is not well formed."""
    verify_module(module, "lower")
    for name, run in SCHEDULE:
        if name not in disabled:
            before, module = module, run(module)
            verify_module(module, name)
            observe(name, before, module)
    return module
