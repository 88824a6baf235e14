"""Completion in a shell: files and the functions in them, names of inputs and dims in a file, and names of choices.

Nothing here imports torch or runs a file: a shell waits for the answer.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import typer

from ingot.config import read_completed_line, replace_completed_line

_BREAKS = (":", "=")


def complete_reference(incomplete: str) -> list[str]:
    """`mo` → `models.py:`, `model.ingot`, `parts/`; `models.py:ma` → `models.py:make`, `models:ma` → `models:make`."""
    place, colon, name = incomplete.partition(":")
    if colon:
        return [f"{place}:{one}" for one in _functions(place) if one.startswith(name)]
    found = _paths(incomplete, (".py", ".ingot", ".pt", ".pt2"))
    return [f"{path}:" if path.endswith(".py") else path for path in found]


def complete_file(incomplete: str) -> list[str]:
    """Files of Ingot, and folders."""
    return _paths(incomplete, (".ingot",))


def complete_inputs(context: typer.Context, incomplete: str) -> list[str]:
    """`--input`: the names of what a compiled file takes, then files of arrays."""
    name, equals, path = incomplete.partition("=")
    if equals:
        return [f"{name}={found}" for found in _paths(path, (".npy",))]
    return [f"{one}=" for one in _names(context, "takes") if one.startswith(incomplete)]


def complete_sizes(context: typer.Context, incomplete: str) -> list[str]:
    """`--size`: the dynamic dims of a file."""
    return [f"{one}=" for one in _names(context, "dims") if one.startswith(incomplete)]


def complete_passes(incomplete: str) -> list[str]:
    """`--passes`: names of passes, with commas between them."""
    before, comma, last = incomplete.rpartition(",")
    folder = Path(__file__).parents[2] / "passes"
    names = sorted(path.stem for path in folder.glob("*.py") if "\n@register(" in path.read_text(encoding="utf-8"))
    return [f"{before}{comma}{name}" for name in names if name.startswith(last)]


def choose_from(names: Sequence[str]) -> Callable[[str], list[str]]:
    """Completion of one of these names."""
    return lambda incomplete: [name for name in names if name.startswith(incomplete)]


def _paths(incomplete: str, suffixes: tuple[str, ...]) -> list[str]:
    typed = Path(incomplete)
    folder = typed if incomplete.endswith("/") else typed.parent
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return []
    start = "" if folder == Path() and not incomplete.startswith("./") else incomplete[: incomplete.rfind("/") + 1]
    found = [(f"{start}{entry.name}", entry) for entry in entries if not entry.name.startswith((".", "__"))]
    return [
        f"{text}/" if entry.is_dir() else text
        for text, entry in found
        if text.startswith(incomplete) and (entry.is_dir() or text.endswith(suffixes))
    ]


def _functions(place: str) -> list[str]:
    from ingot.cli.inputs.file_kinds import list_functions

    path = Path(place if place.endswith(".py") else place.replace(".", "/") + ".py")
    if not path.is_file():
        path = path.with_suffix("") / "__init__.py"
    return list_functions(path) if path.is_file() else []


def _names(context: typer.Context, what: str) -> list[str]:
    """Names of inputs or dims in the file that the command line names; none where it cannot be read."""
    from ingot_runtime.container import open_container, skip_program
    from ingot_runtime.container.manifest import read_spec

    # Where the option that is completed has no value yet, the parser has not come to the arguments.
    named = (context.params.get("file"), context.params.get("reference"), *context.args)
    file = next((one for one in named if one and Path(one).is_file()), None)
    if file is None:
        return []
    with contextlib.suppress(Exception):  # there is nobody to tell
        with open_container(str(file), skip=skip_program) as container:
            if "native" in container.manifest:
                spec = read_spec(container.manifest, container.names, container.path)
                return [one.name for one in spec.inputs] if what == "takes" else [s.name for s in spec.symbols.values()]
        with zipfile.ZipFile(str(file)) as archive:
            dims = json.loads(archive.read("graph.json"))["dims"]
        return [dim["name"] for dim in dims] if what == "dims" else []
    return []


@contextlib.contextmanager
def join_words() -> Iterator[None]:
    """Lets bash complete `file.py:name` and `x=file`, which it takes apart at ":" and "=".

    Words are joined before they are completed, and of what is completed bash gets what stands behind the last break.
    """
    asked = read_completed_line()
    if asked is None:
        yield
        return
    line, current = asked
    between = "\n" if "\n" in line else " "
    words = line.split(between)
    joined: list[str] = []
    place = current
    for number, word in enumerate(words):
        glued = bool(joined) and number > 1 and (word in _BREAKS or words[number - 1] in _BREAKS)
        if glued:
            joined[-1] += word
        else:
            joined.append(word)
        if number == current:
            place = len(joined) - 1
    replace_completed_line(between.join(joined), place)
    typed = joined[place] if place < len(joined) else ""
    cut = max(typed.rfind(mark) for mark in _BREAKS) + 1
    caught = io.StringIO()
    try:
        with contextlib.redirect_stdout(caught):
            yield
    finally:
        for line in caught.getvalue().splitlines():
            # An option's value is completed without the option: --size=ba gives batch=.
            sys.stdout.write(line.removeprefix(typed[:cut]) + "\n")
