"""The table "Right or wrong" of docs/reports/cuda.md, from journals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.support import marked_text
from tests.targets.cuda.gpu.journals import OUTCOMES, Row, codes_of, fault_of, read_rows
from tests.targets.cuda.gpu.prepared.verdicts import VERDICTS, read_verdicts

ROOT = Path(__file__).resolve().parents[4]
REPORT = ROOT / "docs" / "reports" / "cuda.md"
BEGIN, END = "<!-- table of the journals: begin -->", "<!-- table of the journals: end -->"
TITLES = {
    "zoo": "models of the zoo, static and dynamic",
    "samples": "operator samples",
    "programs": "random networks",
    "sanitizer": "compute-sanitizer",
}


def write_report(
    folders: Sequence[Path], units: Mapping[str, int] | None = None, report: Path = REPORT, known: Path = VERDICTS
) -> str:
    """Puts the table between the comments of the report. `units` are how many units of work there are of each kind."""
    text = table(folders, units or {}, known)
    marked_text.replace(report, BEGIN, END, text)
    return text


def table(folders: Sequence[Path], units: Mapping[str, int], known: Path = VERDICTS) -> str:
    """A row for each kind and code, the latest first, and one for the committed verdicts on texts; what is wrong is
    listed behind it."""
    lines = [
        "| what ran on the GPU | code | commit | programs | right | also from their file | refused | wrong | crashed |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    faults: list[str] = []
    for what, title in TITLES.items():
        paths = [folder / f"{what}.jsonl" for folder in folders]
        for code in codes_of(paths):
            if "-" in code:  # built or emulated: no GPU ran it
                continue
            rows = read_rows(paths, code)
            for part, own in _split(what, title, rows).items():
                lines.append(_line(part, code, own))
            faults += _faults(what, code, rows)
        verdicts = _committed(what, known)
        lines += [_line(part, "by text", own) for part, own in _split(what, title, verdicts).items()]
        faults += _faults(what, "by text", verdicts)
    if units:
        counts = ", ".join(f"{count:,} {_unit(what)}" for what, count in units.items())
        lines += ["", f"All there are: {counts}."]
    return "\n".join([*lines, *(["", *faults] if faults else [])])


def _split(what: str, title: str, rows: Mapping[str, Row]) -> dict[str, list[Row]]:
    """The rows of a kind by what its line says: samples by dtype, models by kind, findings by tool."""
    found: dict[str, list[Row]] = {}
    for name, row in rows.items():
        part = {"samples": _dtype, "zoo": _kind, "sanitizer": _tool}.get(what, lambda name: "")(name)
        found.setdefault(f"{title}{', ' if part else ''}{part}", []).append(row)
    return dict(sorted(found.items()))


def _committed(what: str, known: Path) -> dict[str, Row]:
    """The committed verdicts of a kind, as rows. Every one of them is of a file."""
    return {
        name: {
            "outcome": one.outcome,
            "commit": one.commit,
            "from_file": one.outcome == "right",
            "reason": f"text {one.text} at commit {one.commit}",
        }
        for name, one in read_verdicts(known).items()
        if what == ("programs" if name.startswith("network ") else "samples")
    }


def _dtype(name: str) -> str:
    return next((word for word in reversed(name.split()) if word[-1].isdigit() or word == "bool"), "")


def _kind(name: str) -> str:
    return name.partition(":")[0]


def _tool(name: str) -> str:
    return name.partition(" ")[0]


def _unit(what: str) -> str:
    return {"samples": "operators and dtypes", "zoo": "models", "programs": "networks"}.get(what, what)


def _line(title: str, code: str, rows: Sequence[Row]) -> str:
    count = Counter(row["outcome"] for row in rows)
    commits = sorted({str(row.get("ran_at") or row.get("commit", ""))[:9] for row in rows} - {""})
    files = sum(bool(row.get("from_file")) for row in rows)
    right, refused, wrong, crashed = (count[outcome] for outcome in OUTCOMES)
    cells = [title, f"`{code}`", ", ".join(commits) or "–"]
    cells += [f"{number:,}" for number in (len(rows), right, files, refused, wrong, crashed)]
    return f"| {' | '.join(cells)} |"


def _faults(what: str, code: str, rows: Mapping[str, Row]) -> list[str]:
    lines = []
    for name, row in sorted(rows.items()):
        if fault := fault_of(row):
            first = " ".join(fault.split("\n", 1)[0].split())[:220]
            lines.append(f"- {what} `{name}`, code `{code}`: {first}")
        if row.get("unsteady"):
            lines.append(f"- {what} `{name}`, code `{code}`: {row['unsteady']}")
    return lines
