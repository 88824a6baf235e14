"""How long each thread works in each launch, from a copy of the C text that takes the time of every task.

The copy differs in one function of the runtime library, `ig_launch`: with a profile asked for, each task is called
through one that adds its time to a place of the launch and the worker, behind the seconds of the launches. Where the
text is another one, as for a GPU, nothing is measured.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from ingot.artifacts.compiled_model import CompiledModel
from ingot.artifacts.tensor_exchange import native_of
from ingot.codegen.native_source import NativeSource

_BEFORE = "__attribute__((noinline, unused)) static void ig_launch("
_CALL = "    ig_parallel(run->pool, task, &call, total, grain < 1 ? 1 : grain);\n"
_TASK = """\
typedef struct { ig_task task; void *context; double *busy; } ig_timed;

static void ig_time_task(void *context, int64_t begin, int64_t end, int worker)
{
    const ig_timed *const timed = context;
    const double at = ig_now();
    timed->task(timed->context, begin, end, worker);
    if (worker < %(threads)d) timed->busy[worker] += ig_now() - at;
}

"""
_TIMED_CALL = """\
    if (run->seconds) {
        ig_timed timed = {task, &call, run->seconds + %(launches)d + (int64_t)launch * %(threads)d};
        ig_parallel(run->pool, ig_time_task, &timed, total, grain < 1 ? 1 : grain);
    } else
"""


def add_timers(source: NativeSource, threads: int) -> Any:
    """The source with timers, None where it has no place for them."""
    text = source.text
    if not dataclasses.is_dataclass(source) or text.count(_BEFORE) != 1 or text.count(_CALL) != 1:
        return None
    numbers = {"threads": threads, "launches": len(source.launches)}
    text = text.replace(_BEFORE, _TASK % numbers + _BEFORE).replace(_CALL, _TIMED_CALL % numbers + _CALL)
    return dataclasses.replace(source, text=text)


def measure_threads(
    timed: CompiledModel, launches: int, args: Sequence[Any], kwargs: Mapping[str, Any], repeat: int
) -> list[list[float]]:
    """The seconds that each thread works in each launch: medians. `timed` is of a source with timers."""
    threads = timed.threads
    leaves = [native_of(leaf) for leaf in timed.model.leaves(args, kwargs)]
    runs = [timed.model.profile(leaves, launches * (1 + threads))[launches:] for _ in range(repeat + 1)][1:]
    medians = [statistics.median(times) for times in zip(*runs, strict=True)]
    return [medians[first : first + threads] for first in range(0, len(medians), threads)]
