"""What torch.export checks of its own programs."""

from __future__ import annotations

import torch


def guards_of(exported: torch.export.ExportedProgram) -> list[str]:
    """What torch.export checks of the inputs at each call, as Python text."""
    return list(exported._guards_code)


def export_verifier(dialect: str) -> type:
    from torch._export.verifier import load_verifier

    return load_verifier(dialect)


def export_violation() -> type[Exception]:
    from torch._export.verifier import SpecViolationError

    return SpecViolationError
