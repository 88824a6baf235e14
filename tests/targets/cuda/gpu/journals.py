"""Journals of what ran on a GPU: a line per program, which names the code, the commit and the machine.

    journal = Journal(folder / "samples.jsonl", stamp())
    journal.write("add#0 float32 plain", "right")
    read_rows([path], digest_code())                      the last row of each program that this code made

Several processes append to one file, a line at a time. Lines of other code are kept and not used: evidence is collected
over sessions. A line that was cut off is left out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.targets.cuda.gpu.code_digest import digest_code

OUTCOMES = ("right", "refused", "wrong", "crashed")
# What a unit of work is called when all of its programs have rows.
DONE = "done"
_REASON = 4000

Row = dict[str, Any]


def stamp(commit: str = "", gpu: str = "") -> Row:
    """What every row of this run names."""
    return {"code": digest_code(), "commit": commit, "gpu": gpu}


@dataclass(frozen=True, slots=True)
class Journal:
    path: Path
    stamp: Row

    def write(self, name: str, outcome: str, reason: str = "", **more: Any) -> None:
        """Appends a row in one write, so that rows of several processes do not mix."""
        row = {"name": name, "outcome": outcome, "reason": reason[:_REASON], **more, **self.stamp}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(file, (json.dumps(row) + "\n").encode())
        finally:
            os.close(file)

    def rows(self) -> dict[str, Row]:
        """The last row of each program that this code made."""
        return read_rows([self.path], self.stamp["code"])

    def done(self) -> set[str]:
        """The units of work that this code has finished."""
        return {
            row["name"] for row in _lines([self.path]) if row["outcome"] == DONE and row["code"] == self.stamp["code"]
        }

    def crashes(self) -> list[str]:
        """The name of a program for every time that it ended its process."""
        own = (row for row in _lines([self.path]) if row["code"] == self.stamp["code"])
        return [row["name"] for row in own if row["outcome"] == "crashed"]


def read_rows(paths: Iterable[Path], code: str) -> dict[str, Row]:
    """The last row of each program that this code made, by name. One that crashed before has the reason under "before":
    a fault that does not come again is a fault."""
    rows: dict[str, Row] = {}
    for row in _lines(paths):
        if row["code"] != code or row["outcome"] == DONE:
            continue
        known = rows.get(row["name"])
        if known is not None and known["outcome"] == "crashed" and row["outcome"] != "crashed":
            row["before"] = known["reason"] or "it ended its process"
        elif known is not None and "before" in known:
            row["before"] = known["before"]
        rows[row["name"]] = row
    return rows


def fault_of(row: Row) -> str:
    """What is wrong with a program, or was: nothing where it never was."""
    if row["outcome"] in ("wrong", "crashed"):
        return f"{row['outcome']}: {row['reason']}"
    return f"{row['outcome']}, but it crashed before: {row['before']}" if "before" in row else ""


def codes_of(paths: Iterable[Path]) -> list[str]:
    """The code of every row, the one of the last row first."""
    return list(dict.fromkeys(row["code"] for row in reversed(list(_lines(paths)))))


def _lines(paths: Iterable[Path]) -> Iterator[Row]:
    for path in paths:
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else ():
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict) and {"name", "outcome", "code"} <= row.keys():
                yield row
