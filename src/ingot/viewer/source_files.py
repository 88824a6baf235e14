"""The text of the user's files that nodes come from.

The file that a program was loaded from may name any file of this machine. Text is read of Python source only that is
part of this process: a module that was imported, a file below the current folder or on the import path, or what a
notebook keeps without a file. So a page that is passed on cannot carry anything else.
"""

from __future__ import annotations

import linecache
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

# A longer file, and what comes after this many characters in all, is shown around the lines that nodes name only.
WHOLE_FILE = 1500
ALL_FILES = 1_000_000
_AROUND = 8


class SourceFiles:
    """Files by the paths that nodes name, and the lines of each that are named."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self._places: dict[str, int] = {}
        self._named: list[set[int]] = []
        self._readable: dict[str, bool] = {}

    def add(self, path: str, line: int) -> int:
        """The file's number; the line is one that will be shown."""
        place = self._places.setdefault(path, len(self.paths))
        if place == len(self.paths):
            self.paths.append(path)
            self._named.append(set())
        self._named[place].add(line)
        return place

    def is_readable(self, path: str) -> bool:
        """Whether a page may show text of this file."""
        known = self._readable.get(path)
        if known is None:
            known = self._readable[path] = _is_readable(path)
        return known

    def hides(self, path: str) -> bool:
        """Whether there is text under this path that a page may not show."""
        return not self.is_readable(path) and bool(linecache.getlines(path))

    def to_json(self) -> list[dict[str, Any]]:
        names = shorten_paths(self.paths)
        left = ALL_FILES
        made: list[dict[str, Any]] = []
        for path, name, named in zip(self.paths, names, self._named, strict=True):
            text = [line.rstrip("\n") for line in linecache.getlines(path)] if self.is_readable(path) else []
            size = sum(map(len, text))
            whole = bool(text) and len(text) <= WHOLE_FILE and size <= left
            some = None if whole or not text else _lines_near(text, named)
            left -= size if whole else sum(map(len, (some or {}).values()))
            made.append({"path": name, "name": short_path(name), "text": text if whole else None, "lines": some})
        return made


def short_path(path: str) -> str:
    """The last two components, as printed programs and kernels have them."""
    return "/".join(path.replace("\\", "/").split("/")[-2:])


def shorten_paths(paths: Iterable[str]) -> list[str]:
    """As many components from the end as tell each path from the others; two at least."""
    parts = [path.replace("\\", "/").split("/") for path in paths]
    lengths = [2] * len(parts)
    while True:
        names = ["/".join(part[-length:]) for part, length in zip(parts, lengths, strict=True)]
        again = [
            place
            for place, name in enumerate(names)
            if names.count(name) > 1 and lengths[place] < len(parts[place])
        ]  # fmt: skip
        if not again:
            return names
        for place in again:
            lengths[place] += 1


def _lines_near(text: list[str], named: set[int]) -> dict[str, str]:
    """The lines around those that are named."""
    shown = {near for line in named for near in range(line - _AROUND, line + _AROUND + 1)}
    return {str(line): text[line - 1] for line in sorted(shown) if 1 <= line <= len(text)}


def _is_readable(path: str) -> bool:
    if not os.path.exists(path):
        # linecache looks for such a path in other folders too; what a notebook keeps there has no time of change.
        entry = linecache.cache.get(path)
        return entry is not None and len(entry) == 4 and entry[1] is None
    if any(getattr(module, "__file__", None) == path for module in list(sys.modules.values())):
        return True
    if not path.endswith(".py"):
        return False
    found = Path(os.path.realpath(path))
    folders = [str(Path.cwd()), *(folder for folder in sys.path if folder)]
    return any(found.is_relative_to(os.path.realpath(folder)) for folder in folders)
