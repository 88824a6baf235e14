"""The registry of targets, by name."""

from __future__ import annotations

from typing import Any

from ingot.errors import UnknownTarget, format_error
from ingot.targets.base import Target
from ingot.targets.cpu.target import CPU
from ingot.targets.cuda.target import CUDA
from ingot.targets.reference.target import REFERENCE

TARGETS: dict[str, Target[Any]] = {CPU.name: CPU, CUDA.name: CUDA, REFERENCE.name: REFERENCE}


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
    return TARGETS[target]
