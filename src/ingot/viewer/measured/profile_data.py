"""A profile as data: every launch with its kernel, its work, and what the machine could do at most."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ingot.artifacts.compiled_model import CompiledModel
from ingot.artifacts.profiler import ThreadInterval, follow_one_another
from ingot.codegen.native_source import NativeSource
from ingot.ir.pytree import flatten, unflatten
from ingot.passes.instrumentation.state_copies import clone_tensors
from ingot.viewer.stages.loop_stages import add_origin
from ingot.viewer.view_data import NOWHERE, Json, ViewData

REPEAT = 10


def describe_profile(
    view: ViewData,
    compiled: CompiledModel,
    source: NativeSource,
    repeat: int = REPEAT,
) -> Json:
    """Measures the model on its example inputs."""
    args, kwargs = _copy_example(compiled)
    measured = compiled.profile(*args, repeat=repeat, **kwargs)
    kernels = {kernel["name"]: number for number, kernel in enumerate(view.kernels)}
    launches: list[Json] = []
    for launch, row in zip(source.launches, measured.rows, strict=True):
        launches.append(
            {
                "kernel": kernels.get(row.kernel, NOWHERE),
                "origin": add_origin(view, launch.origin),
                "seconds": row.seconds,
                "flops": row.flops,
                "effort": row.effort,
                "bytes": row.bytes,
                "peak": measured.peak_fraction(row),
                "idle": row.idle,
            }
        )
    return {
        "threads": compiled.threads,
        "repeat": repeat,
        "seconds": measured.seconds,
        "limits": {"flops": measured.limits.flops, "bytes": measured.limits.bytes},
        "launches": launches,
        "intervals": describe_intervals(measured.intervals or follow_one_another(measured.rows)),
    }


def describe_intervals(intervals: Iterable[ThreadInterval]) -> list[Json]:
    """Launch, thread (-1: the launch itself), and nanoseconds of begin and end since the call began."""
    return [
        [one.row, -1 if one.thread is None else one.thread, round(one.begin * 1e9), round(one.end * 1e9)]
        for one in intervals
    ]


def _copy_example(compiled: CompiledModel) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Copies of the example inputs: a model may write to its arguments."""
    args, kwargs = compiled.program.example_inputs or ((), {})
    leaves, tree = flatten((tuple(args), dict(kwargs)))
    made: tuple[tuple[Any, ...], dict[str, Any]] = unflatten(clone_tensors(leaves), tree)
    return made
