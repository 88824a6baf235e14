"""Progress of the long sweeps: a bar on a terminal's stderr, and nothing elsewhere.

A sweep writes one line to its journal for each verdict, so whoever runs it can show how far it is: the code of a sweep
itself, which its evidence depends on, knows nothing of it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

SECONDS = 1.0


def count_of(command: str) -> int | None:
    """How many verdicts a command is to give, where it says so."""
    found = re.findall(r"--count (\d+)", command)
    return sum(map(int, found)) if found else None


def watch(name: str, command: str, journal: Path, is_done: Callable[[float], bool]) -> None:
    """Shows the lines of a journal until `is_done`, which waits for as long as it is given, says so."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.completed:,.0f} verdicts"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    shown = console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=not shown, auto_refresh=False) as bar:
        task = bar.add_task(name, total=count_of(command))
        while True:
            done = is_done(SECONDS if shown else 3600.0)
            if shown:
                bar.update(task, completed=count_lines(journal), refresh=True)
            if done:
                return


def count_lines(journal: Path) -> int:
    """The lines of a file, 0 where there is none."""
    try:
        with journal.open("rb") as file:
            return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))
    except OSError:
        return 0


def wait_until(deadline: float, seconds: float) -> float:
    """How long to wait: `seconds`, or what is left."""
    return max(0.0, min(seconds, deadline - time.monotonic()))
