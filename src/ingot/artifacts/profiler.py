"""Where a compiled model's time goes, kernel by kernel and module by module."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ingot.artifacts.roofline import Roofline
from ingot_runtime.device_model import DeviceModel
from ingot_runtime.files import write_file
from ingot_runtime.model import Model
from ingot_runtime.native.cuda_activity import KernelRecord
from ingot_runtime.native.native_library import Interval

_TRACED_RUNS = 5


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """One launch of a kernel: seconds (median of the runs), and the work it must do at least.

    `effort` is `flops` as operations on float32, of which one takes as long as two on bfloat16 or four on bytes. `idle`
    is the share of the threads' time in which they had nothing to do, None where it is not known.
    """

    kernel: str
    op: str
    module: str
    source: str
    seconds: float
    flops: int
    effort: int
    bytes: int
    idle: float | None = None

    @property
    def gflops(self) -> float:
        return self.flops / self.seconds / 1e9 if self.seconds else 0.0

    @property
    def gbytes(self) -> float:
        return self.bytes / self.seconds / 1e9 if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class ThreadInterval:
    """When a thread worked on the launch of a row, in seconds from the start of the call. `thread` is None for the
    launch itself: from when it was started until all threads were done."""

    row: int
    thread: int | None
    begin: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class Profile:
    """Kernel launches in the order they ran. `limits` is the measured peak of this machine. `intervals` are of one run,
    that of median time; of a GPU they are there where CUPTI is installed, and begin with the first kernel."""

    rows: tuple[ProfileRow, ...]
    limits: Roofline
    threads: int = 1
    intervals: tuple[ThreadInterval, ...] = ()

    @property
    def seconds(self) -> float:
        """The time of all launches."""
        return sum(row.seconds for row in self.rows)

    def peak_fraction(self, row: ProfileRow) -> float:
        """The least time that the row's work takes on this machine, over the time it took. Bytes that a cache holds
        may come faster than from memory: above 1 a row was not held up by memory at all."""
        return self.limits.seconds(row.effort, row.bytes) / row.seconds if row.seconds else 0.0

    def group_by_kernel(self) -> list[ProfileRow]:
        """One row per kernel, the longest first."""
        return _group_rows(self.rows, lambda row: row.kernel)

    def group_by_module(self, depth: int | None = None) -> list[ProfileRow]:
        """One row per module, cut to `depth` parts of its path, the longest first."""
        return _group_rows(self.rows, lambda row: ".".join(row.module.split(".")[:depth]))

    def chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """Writes a file that chrome://tracing and Perfetto show: when each thread worked on which kernel, and above
        them the launches. Without intervals, the launches follow one another."""
        has_threads = any(interval.thread is not None for interval in self.intervals)
        names = {number: f"thread {number}" for number in range(self.threads if has_threads else 0)}
        lanes: dict[int | None, int] = {None: self.threads, **{number: number for number in names}}
        events: list[dict[str, Any]] = []
        for place, (lane, name) in enumerate([(lanes[None], "launches"), *names.items()]):
            events.append(_describe_lane(lane, "thread_name", {"name": name}))
            events.append(_describe_lane(lane, "thread_sort_index", {"sort_index": place}))
        for interval in self.intervals or follow_one_another(self.rows):
            row = self.rows[interval.row]
            arguments: dict[str, Any] = {"kernel": row.kernel, "module": row.module, "source": row.source}
            if interval.thread is None:
                arguments |= {"GFLOP/s": row.gflops, "GB/s": row.gbytes, "of peak": self.peak_fraction(row)}
                arguments |= {} if row.idle is None else {"idle": row.idle}
            events.append(
                {
                    "name": f"{row.op} {row.kernel}",
                    "ph": "X",
                    "pid": 0,
                    "tid": lanes[interval.thread],
                    "ts": interval.begin * 1e6,
                    "dur": interval.seconds * 1e6,
                    "args": arguments,
                }
            )
        write_file(path, json.dumps({"traceEvents": events}), "the trace")

    def __str__(self) -> str:
        shows_idle = any(row.idle is not None for row in self.rows)
        idle_title = f"{'idle':>7}" if shows_idle else ""
        lines = [
            f"{'kernel':<8}{'ms':>9}{'share':>8}{'calls':>7}{'GFLOP/s':>10}{'GB/s':>8}{'of peak':>9}{idle_title}  op"
        ]
        calls = {kernel: 0 for kernel in {row.kernel for row in self.rows}}
        for row in self.rows:
            calls[row.kernel] += 1
        for row in self.group_by_kernel():
            share = row.seconds / self.seconds if self.seconds else 0.0
            idle = f"{row.idle or 0:>7.0%}" if shows_idle else ""
            lines.append(
                f"{row.kernel:<8}{row.seconds * 1e3:>9.3f}{share:>8.1%}{calls[row.kernel]:>7}{row.gflops:>10.1f}"
                f"{row.gbytes:>8.1f}{self.peak_fraction(row):>9.0%}{idle}  {row.op}  {row.module}"
            )
        peak = (
            f"peak: {self.limits.flops / 1e9:.0f} GFLOP/s of float32, {self.limits.bytes / 1e9:.0f} GB/s, measured here"
        )
        return "\n".join([*lines, f"{'all':<8}{self.seconds * 1e3:>9.3f}  {peak}"])


def _describe_lane(lane: int, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "ph": "M", "pid": 0, "tid": lane, "args": arguments}


def follow_one_another(rows: Sequence[ProfileRow]) -> list[ThreadInterval]:
    """Launches of which only their times are known, without anything between them."""
    made: list[ThreadInterval] = []
    for number, row in enumerate(rows):
        begin = made[-1].end if made else 0.0
        made.append(ThreadInterval(number, None, begin, begin + row.seconds))
    return made


def trace_model(
    model: Model, leaves: Sequence[Any], launches: Sequence[str], threads: int
) -> tuple[ThreadInterval, ...]:
    """When each thread, or the GPU, worked on which launch, in one of several runs: that of median time. Launches are
    given as their kernels' names."""
    if isinstance(model, DeviceModel):
        runs = [place_records(model.record_kernels(leaves), launches) for _ in range(1 + _TRACED_RUNS)][1:]
    else:
        traced = (model.trace(leaves, len(launches) * (1 + threads)) for _ in range(_TRACED_RUNS))
        runs = [[_convert(interval) for interval in run] for run in traced]
    return tuple(sorted(runs, key=lambda run: max((interval.end for interval in run), default=0.0))[_TRACED_RUNS // 2])


def _convert(interval: Interval) -> ThreadInterval:
    return ThreadInterval(
        interval.launch, None if interval.thread < 0 else interval.thread, interval.begin, interval.end
    )


def place_records(records: Sequence[KernelRecord], launches: Sequence[str]) -> list[ThreadInterval]:
    """What a GPU ran, as intervals of launches. Launches follow one another; in loops they begin again."""
    made: list[ThreadInterval] = []
    following = 0
    for record in records:
        places = (*range(following, len(launches)), *range(following))
        found = next((place for place in places if launches[place] == record.name), None)
        if found is None:  # of another model that ran meanwhile
            continue
        following = found + 1
        begin, end = ((time - records[0].begin) / 1e9 for time in (record.begin, record.end))
        made.append(ThreadInterval(found, None, begin, end))
    return made


def idle_shares(intervals: Sequence[ThreadInterval], launches: int, threads: int) -> list[float | None]:
    """Of each launch, the share of its threads' time in which they did not work; None of one that did not run, and of
    launches on a GPU."""
    if all(interval.thread is None for interval in intervals):
        return [None] * launches
    spans, busy = [0.0] * launches, [0.0] * launches
    for interval in intervals:
        (spans if interval.thread is None else busy)[interval.row] += interval.seconds
    return [
        max(0.0, 1 - worked / (threads * span)) if span > 0 else None for span, worked in zip(spans, busy, strict=True)
    ]


def _group_rows(rows: Iterable[ProfileRow], key: Callable[[ProfileRow], str]) -> list[ProfileRow]:
    groups: dict[str, list[ProfileRow]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    made = [
        ProfileRow(
            group[0].kernel,
            group[0].op,
            group[0].module,
            group[0].source,
            sum(row.seconds for row in group),
            sum(row.flops for row in group),
            sum(row.effort for row in group),
            sum(row.bytes for row in group),
            _mean_idle(group),
        )
        for group in groups.values()
    ]
    return sorted(made, key=lambda row: -row.seconds)


def _mean_idle(rows: Sequence[ProfileRow]) -> float | None:
    known = [row for row in rows if row.idle is not None]
    seconds = sum(row.seconds for row in known)
    return sum(row.idle * row.seconds for row in known if row.idle is not None) / seconds if seconds else None


def medians(runs: Sequence[Sequence[float]]) -> list[float]:
    return [statistics.median(times) for times in zip(*runs, strict=True)]
