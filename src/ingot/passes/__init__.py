"""Passes: functions `(program, **options) -> int` that change a program and return how many changes they made."""

from ingot.passes.tracepoints import tracepoints

__all__ = ["tracepoints"]
