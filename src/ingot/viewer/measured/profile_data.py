"""A profile as data: every launch with its kernel, its work, and what the machine could do at most."""

from __future__ import annotations

from typing import Any

from ingot.artifacts.compiled_model import CompiledModel
from ingot.codegen.native_source import NativeSource
from ingot.ir.pytree import flatten, unflatten
from ingot.passes.instrumentation.state_copies import clone_tensors
from ingot.viewer.measured.thread_times import measure_threads
from ingot.viewer.stages.loop_stages import add_origin
from ingot.viewer.view_data import NOWHERE, Json, ViewData

REPEAT = 10


def describe_profile(
    view: ViewData,
    compiled: CompiledModel,
    source: NativeSource,
    timed: CompiledModel | None = None,
    repeat: int = REPEAT,
) -> Json:
    """Measures the model on its example inputs. `timed` is the same model with timers in its tasks."""
    args, kwargs = _copy_example(compiled)
    measured = compiled.profile(*args, repeat=repeat, **kwargs)
    threads: list[list[float]] = []
    if timed is not None:
        threads = measure_threads(timed, len(source.launches), *_copy_example(compiled), repeat)
    kernels = {kernel["name"]: number for number, kernel in enumerate(view.kernels)}
    launches: list[Json] = []
    at = 0.0
    for number, (launch, row) in enumerate(zip(source.launches, measured.rows, strict=True)):
        launches.append(
            {
                "kernel": kernels.get(row.kernel, NOWHERE),
                "origin": add_origin(view, launch.origin),
                "seconds": row.seconds,
                "start": at,
                "flops": row.flops,
                "effort": row.effort,
                "bytes": row.bytes,
                "peak": measured.peak_fraction(row),
                "thread_seconds": threads[number] if threads else None,
            }
        )
        at += row.seconds
    return {
        "threads": compiled.threads,
        "repeat": repeat,
        "seconds": measured.seconds,
        "limits": {"flops": measured.limits.flops, "bytes": measured.limits.bytes},
        "launches": launches,
    }


def _copy_example(compiled: CompiledModel) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Copies of the example inputs: a model may write to its arguments."""
    args, kwargs = compiled.program.example_inputs or ((), {})
    leaves, tree = flatten((tuple(args), dict(kwargs)))
    made: tuple[tuple[Any, ...], dict[str, Any]] = unflatten(clone_tensors(leaves), tree)
    return made
