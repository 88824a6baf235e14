"""Where a compiled model's time goes, kernel by kernel and module by module."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ingot.artifacts.roofline import Roofline
from ingot_runtime.files import write_file


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """One launch of a kernel: seconds (median of the runs), and the work it must do at least.

    `effort` is `flops` as operations on float32, of which one takes as long as two on bfloat16 or four on bytes.
    """

    kernel: str
    op: str
    module: str
    source: str
    seconds: float
    flops: int
    effort: int
    bytes: int

    @property
    def gflops(self) -> float:
        return self.flops / self.seconds / 1e9 if self.seconds else 0.0

    @property
    def gbytes(self) -> float:
        return self.bytes / self.seconds / 1e9 if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class Profile:
    """Kernel launches in the order they ran. `limits` is the measured peak of this machine."""

    rows: tuple[ProfileRow, ...]
    limits: Roofline

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
        """Writes a file that chrome://tracing and Perfetto show."""
        events, at = [], 0.0
        for row in self.rows:
            arguments = {"module": row.module, "source": row.source, "GFLOP/s": row.gflops, "GB/s": row.gbytes,
                         "of peak": self.peak_fraction(row)}  # fmt: skip
            events.append(
                {
                    "name": f"{row.op} {row.kernel}",
                    "ph": "X",
                    "pid": 0,
                    "tid": 0,
                    "ts": at * 1e6,
                    "dur": row.seconds * 1e6,
                    "args": arguments,
                }
            )
            at += row.seconds
        write_file(path, json.dumps({"traceEvents": events}), "the trace")

    def __str__(self) -> str:
        lines = [f"{'kernel':<8}{'ms':>9}{'share':>8}{'calls':>7}{'GFLOP/s':>10}{'GB/s':>8}{'of peak':>9}  op"]
        calls = {kernel: 0 for kernel in {row.kernel for row in self.rows}}
        for row in self.rows:
            calls[row.kernel] += 1
        for row in self.group_by_kernel():
            share = row.seconds / self.seconds if self.seconds else 0.0
            lines.append(
                f"{row.kernel:<8}{row.seconds * 1e3:>9.3f}{share:>8.1%}{calls[row.kernel]:>7}{row.gflops:>10.1f}"
                f"{row.gbytes:>8.1f}{self.peak_fraction(row):>9.0%}  {row.op}  {row.module}"
            )
        peak = (
            f"peak: {self.limits.flops / 1e9:.0f} GFLOP/s of float32, {self.limits.bytes / 1e9:.0f} GB/s, measured here"
        )
        return "\n".join([*lines, f"{'all':<8}{self.seconds * 1e3:>9.3f}  {peak}"])


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
        )
        for group in groups.values()
    ]
    return sorted(made, key=lambda row: -row.seconds)


def medians(runs: Sequence[Sequence[float]]) -> list[float]:
    return [statistics.median(times) for times in zip(*runs, strict=True)]
