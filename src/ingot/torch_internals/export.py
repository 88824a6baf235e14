"""What torch.export checks of its own programs."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.fx import traceback


def guards_of(exported: torch.export.ExportedProgram) -> list[str]:
    """What torch.export checks of the inputs at each call, as Python text."""
    return list(exported._guards_code)


def export_verifier(dialect: str) -> type:
    from torch._export.verifier import load_verifier

    return load_verifier(dialect)


def export_violation() -> type[Exception]:
    from torch._export.verifier import SpecViolationError

    return SpecViolationError


def reserve_name(graph: fx.Graph, name: str) -> None:
    """From now on no node of a graph gets this name, unless it is renamed."""
    graph._graph_namespace.create_name(name, None)


def custom_annotation() -> dict[str, Any]:
    """What the user's code annotates the nodes with that it makes now: `torch.fx.traceback.annotate`."""
    return dict(traceback.current_meta.get("custom") or {})
