"""Verdicts that are committed: which text of each program ran on a GPU, what came of it, and at which commit.

    known = read_verdicts()                 by the program's name
    record_verdicts(rows)                   adds rows of journals; a program has its last verdict only

Journals lie on machines that are given back. A program whose text is known to be right need not run again, whatever
code has changed since: `text_digest.py` says what a text is. A refused program has none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[5]
VERDICTS = ROOT / "docs" / "reports" / "data" / "cuda_programs.txt"
NO_TEXT = "-"
_HEAD = "# Programs that ran on a GPU: name, digest of the text that ran, outcome, commit. Written by judge.\n"


@dataclass(frozen=True)
class KnownVerdict:
    text: str
    outcome: str
    commit: str


def read_verdicts(path: Path = VERDICTS) -> dict[str, KnownVerdict]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    cells = [line.split("\t") for line in lines if line and not line.startswith("#")]
    return {name: KnownVerdict(*rest) for name, *rest in cells}


def record_verdicts(rows: Iterable[dict[str, Any]], path: Path = VERDICTS) -> None:
    """Adds rows of journals to the file, which is sorted by name. A verdict whose text ran before keeps its commit."""
    known = read_verdicts(path)
    for row in rows:
        text = row.get("text", NO_TEXT)
        outcome = "crashed" if "before" in row else row["outcome"]  # a fault that does not come again is a fault
        before = known.get(row["name"])
        if before is None or (before.text, before.outcome) != (text, outcome):
            known[row["name"]] = KnownVerdict(text, outcome, row["commit"][:9])
    lines = [f"{name}\t{one.text}\t{one.outcome}\t{one.commit}\n" for name, one in sorted(known.items())]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_HEAD + "".join(lines), encoding="utf-8")
