"""`ingot cache ls` and `ingot cache clear`: the libraries that compile keeps between runs."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from ingot.cli.console import AsJson, Debug, Result, command, human
from ingot.config import Settings

# Folders of the cache, and what lies in each; the locks stay, since another process may hold one.
_INNER = {"libraries": "compiled libraries", "failed": "sources that a compiler rejected", "work": "unfinished work"}
_DAY = 86400.0
# What a compiler works on is not older.
_WORK_SECONDS = 6 * 3600.0


@dataclass(frozen=True, slots=True)
class CachedFile:
    """A file or a folder of the cache: a library, what is left of a failure, or work."""

    path: Path
    inner: str
    bytes: int
    used: float


@command
def ls(as_json: AsJson = False, debug: Debug = False) -> Result:
    """Show where the cache is, what it holds, and when that was last used."""
    from ingot.codegen.build.cache import LIMIT

    folder = _folder()
    entries = list(_entries(folder))
    now = time.time()
    rows = []
    for inner, what in _INNER.items():
        found = [one for one in entries if one.inner == inner]
        ages = [(now - one.used) / _DAY for one in found]
        rows.append(
            {
                "what": what,
                "entries": len(found),
                "bytes": sum(one.bytes for one in found),
                "newest_days": round(min(ages), 2) if ages else None,
                "oldest_days": round(max(ages), 2) if ages else None,
            }
        )
    total = sum(one.bytes for one in entries)
    disabled = Settings.from_environment().disable_cache
    data = {"folder": str(folder), "disabled": disabled, "bytes": total, "limit": LIMIT, "contents": rows}
    table = Table("holds", box=None, padding=(0, 2, 0, 0))
    for column in ("entries", "size", "last used", "first used"):
        table.add_column(column, justify="right")
    for row, inner in zip(rows, _INNER, strict=True):
        used = [one.used for one in entries if one.inner == inner]
        last, first = (_age(now - max(used)), _age(now - min(used))) if used else ("", "")
        size = human(sum(one.bytes for one in entries if one.inner == inner), "B")
        table.add_row(str(row["what"]), f"{row['entries']:,}", size, last, first)
    note = "It is not used: INGOT_DISABLE_CACHE is set." if disabled else "`ingot cache clear` empties it."
    used_of = f"{human(total, 'B')} of at most {human(LIMIT, 'B')}; what was not used for longest goes first."
    return Result(data, (str(folder), table, f"{used_of} {note}"))


@command
def clear(
    older_than: Annotated[
        float | None,
        typer.Option("--older-than", metavar="DAYS", min=0, help="Only what was not used for so many days."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> Result:
    """Remove what the cache holds. Processes that run are not disturbed: they compile again what they miss."""
    folder = _folder()
    before = None if older_than is None else time.time() - older_than * _DAY
    chosen = [one for one in _entries(folder) if (before is None or one.used < before) and not _may_be_in_use(one)]
    removed = [one for one in chosen if dry_run or _remove(one.path)]
    size = sum(one.bytes for one in removed)
    data = {"folder": str(folder), "removed": len(removed), "bytes": size, "dry_run": dry_run}
    left = len(chosen) - len(removed)
    done = "would be removed" if dry_run else "removed"
    text = f"{len(removed):,} {'entry' if len(removed) == 1 else 'entries'}, {human(size, 'B')}, {done} from {folder}"
    if left:
        text += f"\n{left:,} could not be removed: this user may not write there"
    return Result(data | {"left": left}, (text,), exit_code=1 if left else 0)


def _may_be_in_use(one: CachedFile) -> bool:
    """Whether a process may be compiling there. Its library, once it is whole, is read at once and not again."""
    return one.inner == "work" and one.used > time.time() - _WORK_SECONDS


def _folder() -> Path:
    return Settings.from_environment().cache_dir.expanduser().absolute()


def _entries(folder: Path) -> Iterator[CachedFile]:
    """What lies in the folders of a cache; links are left alone, whatever they lead to."""
    for inner in _INNER:
        place = folder / inner
        if place.is_symlink() or not place.is_dir():
            continue
        found = place.glob("*/*.so") if inner == "libraries" else place.iterdir()
        for path in sorted(found):
            with contextlib.suppress(OSError):
                status = path.lstat()
                if not stat.S_ISLNK(status.st_mode) and not path.parent.is_symlink():
                    size = _size(path) if stat.S_ISDIR(status.st_mode) else status.st_size
                    yield CachedFile(path, inner, size, status.st_mtime)


def _size(folder: Path) -> int:
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(root, name)).st_size
    return total


def _remove(path: Path) -> bool:
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    except FileNotFoundError:  # another process was faster
        return True
    except OSError:
        return False
    return True


def _age(seconds: float) -> str:
    """How long ago something was: "3 days ago"."""
    for unit, length in (("day", _DAY), ("hour", 3600.0), ("minute", 60.0)):
        count = int(seconds / length)
        if count:
            return f"{count} {unit}{'' if count == 1 else 's'} ago"
    return "just now"
