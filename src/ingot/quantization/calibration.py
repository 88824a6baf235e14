"""Running a prepared program on data, so that its quantizers learn the ranges of its values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sized
from typing import Any

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ingot.errors import QuantizeError, format_error
from ingot.quantization.prepare import PreparedProgram


def feed(model: Callable[..., Any], item: Any) -> Any:
    """Calls a model with one item of data: a tuple or list is its arguments, a dict its keyword arguments."""
    if isinstance(item, tuple | list):
        return model(*item)
    if isinstance(item, dict):
        return model(**item)
    return model(item)


def calibrate(
    prepared: PreparedProgram,
    data: Iterable[Any],
    *,
    limit: int | None = None,
    call: Callable[[Any, Any], Any] = feed,
    progress: bool = True,
) -> PreparedProgram:
    """Runs the prepared program on at most `limit` items of `data` and returns it. Shows progress on a terminal.

    An item is a tuple of arguments, a dict of keyword arguments, or the one argument; `call(prepared, item)` runs
    another kind. Raises QuantizeError if there is no data.
    """
    total = len(data) if isinstance(data, Sized) else None
    if limit is not None:
        total = limit if total is None else min(limit, total)
    count = 0
    with torch.no_grad(), bar("calibrating", total, shown=progress) as step:
        for item in data:
            if limit is not None and count >= limit:
                break
            call(prepared, item)
            count += 1
            step()
    if not count:
        raise QuantizeError(format_error("There is no data to calibrate with.", fix="give one item at least"))
    return prepared


class bar:
    """A progress bar on a terminal, and nothing elsewhere; entering it returns the function that takes a step."""

    def __init__(self, what: str, total: int | None, *, shown: bool = True) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), transient=True
        )
        self._progress.disable = not shown or not self._progress.console.is_terminal
        self._task = self._progress.add_task(what, total=total)

    def __enter__(self) -> Callable[[], None]:
        self._progress.start()
        return lambda: self._progress.advance(self._task)

    def __exit__(self, *_: object) -> None:
        self._progress.stop()
