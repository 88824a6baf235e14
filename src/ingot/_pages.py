"""The page of a program or of a compiled model, from the layer above both: found by its name when it is asked for."""

from __future__ import annotations

import importlib
from typing import Any


def call_viewer(module: str, function: str, *args: Any, **options: Any) -> Any:
    """Calls a function of a module of `ingot.viewer`."""
    return getattr(importlib.import_module(f"ingot.viewer.{module}"), function)(*args, **options)
