"""Every model of the zoo compiled and judged, and the table of what became of it.

    python -m tests.native.sweep RESULTS.jsonl [kind:name …]       judge; what RESULTS has already is left out
    python -m tests.native.sweep RESULTS.jsonl --report FILE.md [NOTE]    write the table, with a note on how it came

One process judges a dozen models; one that hangs or crashes is ended, its model noted, and the rest go on.
"""

from __future__ import annotations

import json
import selectors
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.capture.test_zoo import REFUSED
from tests.native.judge import without_torch
from tests.native.test_zoo import every

CHUNK = 12
SECONDS = 300.0
Row = dict[str, Any]


def sweep(names: Sequence[str], results: Path) -> None:
    """Judges these models and appends a line for each to `results`."""
    left = list(names)
    while left:
        with tempfile.TemporaryDirectory(prefix="ingot-zoo-") as folder:
            rows = _chunk(left[:CHUNK], Path(folder))
            left = left[len(rows) :]
            wrong = without_torch(Path(folder))
        for row in rows:
            mine = [line for line in wrong if line.startswith(f"{row['kind']}-{row['name']}")]
            row["from_file"] = row["outcome"] == "right" and not wrong
            if row["outcome"] == "right" and (mine or (wrong and not wrong[0].startswith(("static-", "dynamic-")))):
                row |= {"outcome": "wrong", "detail": f"without torch: {(mine or wrong)[0]}"}
        with results.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)


def _chunk(names: Sequence[str], folder: Path) -> list[Row]:
    """The verdicts on the first of these models, as many as one process came to."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.native.judge", str(folder), *names]
    rows: list[Row] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        selector = selectors.DefaultSelector()
        selector.register(process.stdout, selectors.EVENT_READ)
        deadline = time.monotonic() + SECONDS
        ended = "took too long"
        while selector.select(max(0.0, deadline - time.monotonic())):
            line = process.stdout.readline()
            if not line:
                ended = f"ended the process with {process.wait()}"
                break
            if "begin" in (row := json.loads(line)):
                deadline = time.monotonic() + SECONDS
            else:
                rows.append(row)
        process.kill()
    if len(rows) < len(names):
        kind, _, name = names[len(rows)].partition(":")
        rows.append({"name": name, "kind": kind, "outcome": "failed", "detail": ended, "seconds": 0.0, "ratio": 0.0})
    return rows


# ---------------------------------------------------------------------- the table


def report(rows: Sequence[Row], note: str = "") -> str:
    """The verdicts as a page; what there is no verdict on is named too."""
    lines = ["# The zoo, compiled", ""]
    lines += [
        "Every model of the capture tests as native code, against the same model run by torch in float64: static, and",
        "with dynamic batch and sequence at the example's sizes and three others; then saved, and run from the file in",
        "a process without torch, which must give the same bits (last column). Written by",
        "`python -m tests.native.sweep`.",
        "",
    ]
    lines += [note, ""] if note else []
    kinds = ("static", "dynamic")
    outcomes = ("right", "refused", "wrong", "failed")
    count = Counter((row["kind"], row["outcome"]) for row in rows)
    lines += [f"| | {' | '.join(outcomes)} |", "|---|" + "---|" * len(outcomes)]
    lines += [f"| {kind} | {' | '.join(str(count[kind, outcome]) for outcome in outcomes)} |" for kind in kinds]
    right = [row for row in rows if row["outcome"] == "right"]
    if right:
        worst = max(right, key=lambda row: row["ratio"])
        slowest = max(right, key=lambda row: row["seconds"])
        lines += [
            "",
            f"Largest error, in units of eager float32's own (4 is allowed): {worst['ratio']:.2f}, "
            f"{worst['name']} ({worst['kind']}). "
            f"Slowest to capture and compile: {slowest['name']} ({slowest['kind']}).",
            "",
            f"Refused by capture, which no compiler can help: {', '.join(sorted(REFUSED))}.",
        ]
    draws = sorted({row["name"] for row in right if row.get("random")})
    if draws:
        lines += ["", f"Draw random numbers, so that only the run is judged, not its values: {', '.join(draws)}."]
    others = [row for row in rows if row["outcome"] != "right"]
    if others:
        lines += ["", "## Not compiled", "", "| model | kind | outcome | why |", "|---|---|---|---|"]
        for row in sorted(others, key=lambda row: (row["outcome"], row["name"], row["kind"])):
            lines.append(f"| {row['name']} | {row['kind']} | {row['outcome']} | {_short(row['detail'])} |")
    judged = {f"{row['kind']}:{row['name']}" for row in rows}
    missing = sorted(name for name in every() if name not in judged)
    if missing:
        lines += ["", "## Not judged", "", f"{len(missing)} of {len(missing) + len(judged)}: {', '.join(missing)}."]
    lines += ["", "## Compiled", "", "| model | kind | sizes | error | from its file |", "|---|---|---|---|---|"]
    for row in sorted(right, key=lambda row: (row["name"], row["kind"])):
        file = "the same bits" if row.get("from_file") else "not run"
        lines.append(f"| {row['name']} | {row['kind']} | {row.get('sizes', 1)} | {row['ratio']:.2f} | {file} |")
    return "\n".join(lines) + "\n"


def _short(detail: str) -> str:
    """The reason in one line, without the paths of this machine."""
    found = [line.strip().partition(" (")[0] for line in detail.splitlines() if line.startswith("    ")]
    head = detail.splitlines()[0] if detail else ""
    text = f"{head.partition(':')[0]}: {'; '.join(found)}" if found else head
    return text.replace("|", "\\|")[:300]


def read(results: Path) -> list[Row]:
    """The last verdict on each model."""
    if not results.exists():
        return []
    rows = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    return list({(row["kind"], row["name"]): row for row in rows}.values())


def main() -> None:
    results, *rest = sys.argv[1:]
    if rest[:1] == ["--report"]:
        Path(rest[1]).write_text(report(read(Path(results)), " ".join(rest[2:])), encoding="utf-8")
        return
    known = {f"{row['kind']}:{row['name']}" for row in read(Path(results))}
    sweep([name for name in rest or every() if rest or name not in known], Path(results))


if __name__ == "__main__":
    main()
