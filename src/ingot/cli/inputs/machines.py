"""The machines that `ingot compile --isa` names, checked before the work."""

from __future__ import annotations

from collections.abc import Sequence

from ingot.codegen.build.isa import find_isas


def check_machines(target: str, names: Sequence[str]) -> None:
    """Raises UnsupportedMachine, which lists the names, where there is no such instruction set or architecture."""
    if target == "cuda":
        from ingot.targets.cuda.target import split_machines

        split_machines(names)
        return
    find_isas(names)
