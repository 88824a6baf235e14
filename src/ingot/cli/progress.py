"""The stages of a command: a bar on a terminal, nothing elsewhere, and the seconds that each stage took."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, Task, TextColumn, TimeElapsedColumn
from rich.table import Column
from rich.text import Text


@dataclass(slots=True)
class Step:
    """What a stage tells as its parts are done: `step()`, or `step("decompose")` with the name of the part."""

    _tell: Callable[[int, str], None] = lambda done, detail: None
    done: int = field(default=0, init=False)

    def __call__(self, detail: str = "") -> None:
        self.done += 1
        self._tell(self.done, detail)


class Stages:
    """The stages of a command, `count` of them where that is known.

    On a terminal a stage is a line on stderr: its number, what it does, a bar where it has parts that are counted, and
    the time. The line goes when the stage ends. Elsewhere nothing is written.
    """

    def __init__(self, count: int | None = None) -> None:
        self.count = count
        self.seconds: dict[str, float] = {}
        self._begun = 0

    @contextlib.contextmanager
    def __call__(self, name: str, doing: str, total: int | None = None, *, still: bool = False) -> Iterator[Step]:
        """One stage: `name` is its key in `seconds`, `doing` what a person reads meanwhile, `total` its parts.

        A stage that measures time is `still`: the line changes only when a part is done, and no thread draws it.
        """
        self._begun += 1
        begin = time.perf_counter()
        with _line(self._number(doing), total, still) as step:
            yield step
        self.seconds[name] = round(self.seconds.get(name, 0.0) + time.perf_counter() - begin, 4)

    def hook(
        self, doing: Mapping[str, str], totals: Mapping[str, int] | None = None
    ) -> Callable[[str], AbstractContextManager[Step]]:
        """`on_stage` of ingot.compile and ingot.export_onnx: `doing` has what a person reads, by stage."""
        return lambda stage: self(stage, doing[stage], (totals or {}).get(stage))

    def _number(self, doing: str) -> str:
        if self.count is None:
            return doing
        return f"{self._begun}/{max(self.count, self._begun)} {doing}"


class _CountColumn(TextColumn):
    """How many parts of how many are done; nothing where they are not counted."""

    def __init__(self) -> None:
        super().__init__("")

    def render(self, task: Task) -> Text:
        return Text("" if task.total is None else f"{task.completed:.0f}/{task.total:.0f}", "progress.percentage")


@contextlib.contextmanager
def _line(doing: str, total: int | None, still: bool) -> Iterator[Step]:
    console = Console(stderr=True)
    if not console.is_terminal or console.is_dumb_terminal:
        yield Step()
        return
    described = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis"))
    columns = (SpinnerColumn(), described, BarColumn(bar_width=20), _CountColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, auto_refresh=not still) as progress:
        task = progress.add_task(doing, total=total)
        progress.refresh()

        def tell(done: int, detail: str) -> None:
            text = f"{doing}: {detail}" if detail else doing
            progress.update(task, completed=min(done, total or done), description=text, refresh=still)

        yield Step(tell)
