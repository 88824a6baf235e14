"""What the commands share: the result and nothing else on stdout; progress, warnings and errors on stderr.

A command is a function that returns a Result. `command` runs it, prints the Result as text or as JSON, and turns an
IngotError into its message and an exit code: 1, or the error's own `exit_code`. With --json stdout holds one JSON
document in any case; a failed command's is {"error": {"type": …, "message": …}}.
"""

from __future__ import annotations

import contextlib
import functools
import json
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ParamSpec

import typer
from rich.console import Console, RenderableType
from rich.text import Text

P = ParamSpec("P")

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]

# A file or a pipe has no width, and rich would fold tables at 80 columns there.
_WIDTH_OF_A_PIPE = 160


@dataclass(frozen=True, slots=True)
class Result:
    """What a command found out: for machines, for people (a str is printed as it is), and its exit code."""

    data: dict[str, Any]
    text: tuple[RenderableType, ...]
    exit_code: int = 0


def command(work: Callable[P, Result]) -> Callable[P, None]:
    """Makes a command of a function whose options may include `as_json` and `debug`."""

    @functools.wraps(work)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        from ingot.errors import IngotError

        as_json = bool(kwargs.get("as_json"))
        try:
            # What the user's own code prints must not mix with the result.
            with contextlib.redirect_stdout(sys.stderr):
                result = work(*args, **kwargs)
        except (IngotError, OSError) as error:
            if kwargs.get("debug"):
                traceback.print_exception(error)
            else:
                Console(stderr=True).print(Text(_message(error), style="red"), soft_wrap=True)
            if as_json:
                _print_json({"error": {"type": type(error).__name__, "message": str(error)}})
            raise typer.Exit(getattr(error, "exit_code", 1)) from None
        if as_json:
            _print_json(result.data)
        else:
            _print_text(result.text)
        if result.exit_code:
            raise typer.Exit(result.exit_code)

    return run


def _message(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _print_json(data: dict[str, Any]) -> None:
    print(json.dumps(data, indent=2, ensure_ascii=False))


def _print_text(parts: tuple[RenderableType, ...]) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH_OF_A_PIPE)
    for part in parts:
        if isinstance(part, str | Text):
            # A terminal breaks lines between words; a file or a pipe gets them whole.
            console.print(part, markup=False, highlight=False, soft_wrap=not console.is_terminal)
        else:
            console.print(part)


def human(number: float, unit: str = "") -> str:
    """A number with three figures and a prefix: 22.4 G, 438 MB."""
    prefixes = ["", "k", "M", "G", "T", "P"]
    while abs(number) >= 999.5 and len(prefixes) > 1:
        number /= 1000
        del prefixes[0]
    return f"{number:.3g} {prefixes[0]}{unit}".rstrip()
