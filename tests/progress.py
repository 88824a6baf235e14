"""Progress of the long sweeps: a bar on a terminal's stderr, and nothing elsewhere.

    for item in progress.count_done("zoo", items): ...         one bar for a loop
    with progress.open_bar("fuzz", total) as step: ...         one for threads, which call step()

What runs several sweeps (`python -m tests.evidence`) shows one bar for the journal of each: those of the sweeps are
then left out.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

T = TypeVar("T")
SECONDS = 1.0
_SHOWN_ABOVE = "INGOT_SWEEP_IS_SHOWN"  # set for sweeps whose caller shows a bar


def count_done(name: str, items: Iterable[T], total: int | None = None) -> Iterator[T]:
    """The items; one is done when the next is asked for. `total`: how many there are, where the items do not say."""
    if total is None and isinstance(items, Sized):
        total = len(items)
    with open_bar(name, total) as step:
        for item in items:
            yield item
            step()


@contextlib.contextmanager
def open_bar(name: str, total: int | None = None) -> Iterator[Callable[[], None]]:
    """A bar that a call of what this gives moves on. Nothing but such calls draws it, so processes may be forked."""
    console = Console(stderr=True)
    if not console.is_terminal or _SHOWN_ABOVE in os.environ:
        yield lambda: None
        return
    with _progress(console, "done") as bar:
        task = bar.add_task(name, total=total)
        bar.refresh()

        def step() -> None:
            bar.update(task, advance=1, refresh=True)

        yield step


def _progress(console: Console, unit: str) -> Progress:
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn(f"{{task.completed:,.0f}} {unit}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    # What a sweep prints stays on stdout; on a terminal it goes above the bar.
    return Progress(
        *columns,
        console=console,
        transient=True,
        disable=not console.is_terminal,
        auto_refresh=False,
        redirect_stdout=sys.stdout.isatty(),
    )


def environment_of_sweep() -> dict[str, str]:
    """The environment for a sweep whose journal the caller shows."""
    return os.environ | {_SHOWN_ABOVE: "1"}


def count_of(command: str) -> int | None:
    """How many verdicts a command is to give, where it says so."""
    found = re.findall(r"--count (\d+)", command)
    return sum(map(int, found)) if found else None


def watch(name: str, command: str, journal: Path, is_done: Callable[[float], bool]) -> None:
    """Shows the lines of a journal until `is_done`, which waits for as long as it is given, says so."""
    console = Console(stderr=True)
    shown = console.is_terminal
    with _progress(console, "verdicts") as bar:
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
