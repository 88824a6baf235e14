"""What processes of a sweep spend their time on: seconds on the clock and of processors, by stage.

    spent = Stages()
    with spent("build"): ...
    spent.write(path)                 a line of this process
    add_up([path], since)             the sums of all processes, as text

A stage that takes far more on the clock than of processors waits: for the GPU, a disk, or cores that others use.
"""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def processor_seconds() -> float:
    """Of this process and of those that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


class Stages:
    def __init__(self) -> None:
        self.clock: dict[str, float] = {}
        self.processors: dict[str, float] = {}

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        clock, processors = time.monotonic(), processor_seconds()
        try:
            yield
        finally:
            self.clock[stage] = self.clock.get(stage, 0.0) + time.monotonic() - clock
            self.processors[stage] = self.processors.get(stage, 0.0) + processor_seconds() - processors

    def write(self, path: Path) -> None:
        row = {"at": time.time(), "clock": self.clock, "processors": self.processors}
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(file, (json.dumps(row) + "\n").encode())
        finally:
            os.close(file)


def add_up(path: Path, since: float) -> str:
    """The sums of processes that ended after this time."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    rows = [row for row in map(json.loads, lines) if row["at"] >= since]
    names = list(dict.fromkeys(name for row in rows for name in row["clock"]))

    def total(kind: str, name: str) -> float:
        return sum(row[kind].get(name, 0.0) for row in rows)

    parts = [f"{name} {total('clock', name):.0f} ({total('processors', name):.0f})" for name in names]
    return f"{len(rows)} processes, seconds on the clock (of processors): {', '.join(parts)}"
