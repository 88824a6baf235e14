"""The registry of targets, by name. A target's modules are imported when it is first asked for."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ingot.errors import UnknownTarget, format_error
from ingot.targets.base import Target

# Where each target is defined: a module, and the name of the Target in it.
TARGETS = {
    "cpu": ("ingot.targets.cpu.target", "CPU"),
    "cuda": ("ingot.targets.cuda.target", "CUDA"),
    "reference": ("ingot.targets.reference.target", "REFERENCE"),
}


def find_target(target: str | Target[Any]) -> Target[Any]:
    """The target of that name, or the one that is given. Raises UnknownTarget."""
    if isinstance(target, Target):
        return target
    if target not in TARGETS:
        raise UnknownTarget(
            format_error(
                f"There is no target {target!r}.",
                why=f"the targets are {', '.join(map(repr, sorted(TARGETS)))}",
                fix="give target= one of these names, or a Target",
            )
        )
    module, name = TARGETS[target]
    found: Target[Any] = getattr(import_module(module), name)
    return found
