"""Every model of the zoo compiled and judged, and the table of what became of it.

    python -m tests.support.zoo_sweep RESULTS.jsonl [kind:name …]       judge; what RESULTS has already is left out
        [--target cuda] [--jobs 16] [--minutes 5]                       for another target; several processes
    python -m tests.support.zoo_sweep RESULTS.jsonl --report FILE.md [NOTE]    write the table, with a note

One process judges a dozen models; one that hangs or crashes is ended, its model noted, and the rest go on.
"""

from __future__ import annotations

import argparse
import json
import queue
import selectors
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests import progress
from tests.e2e.test_zoo import every
from tests.support.oracle import without_torch
from tests.support.zoo_page import Row, left_of, page, read

CHUNK = 12
SECONDS = 300.0
_WRITING = threading.Lock()


def sweep(names: Sequence[str], results: Path, target: str = "cpu", jobs: int = 1, minutes: float = 1e9) -> None:
    """Judges these models and appends a line for each to `results`; begins none after so many minutes."""
    left: queue.SimpleQueue[list[str]] = queue.SimpleQueue()
    size = max(1, min(CHUNK, len(names) // (2 * jobs)))
    for first in range(0, len(names), size):
        left.put(list(names[first : first + size]))
    deadline = time.monotonic() + 60 * minutes

    def work(step: Callable[[], None]) -> None:
        while time.monotonic() < deadline:
            try:
                part = left.get_nowait()
            except queue.Empty:
                return
            _judge(part, results, target, step)

    with progress.open_bar("models", len(names)) as step:
        workers = [threading.Thread(target=work, args=(step,)) for _ in range(jobs)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()


def _judge(names: Sequence[str], results: Path, target: str, step: Callable[[], None]) -> None:
    left = list(names)
    while left:
        with tempfile.TemporaryDirectory(prefix="ingot-zoo-") as folder:
            rows = _chunk(left, Path(folder), target)
            left = left[len(rows) :]
            wrong = without_torch(Path(folder))
        for row in rows:
            mine = [line for line in wrong if line.startswith(f"{row['kind']}-{row['name']}")]
            row["from_file"] = row["outcome"] == "right" and not wrong
            if row["outcome"] == "right" and (mine or (wrong and not wrong[0].startswith(("static-", "dynamic-")))):
                row |= {"outcome": "wrong", "detail": f"without torch: {(mine or wrong)[0]}"}
        with _WRITING, results.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
            for _ in rows:
                step()


def _chunk(names: Sequence[str], folder: Path, target: str) -> list[Row]:
    """The verdicts on the first of these models, as many as one process came to."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.support.oracle", target, str(folder), *names]
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
    """The verdicts as a page."""
    about = [
        "Every model of the capture tests as native code, against the same model run by torch in float64: static, and",
        "with dynamic batch and sequence at the example's sizes and three others; then saved, and run from the file in",
        "a process without torch, which must give the same bits (last column). Written by",
        "`python -m tests.support.zoo_sweep`.",
        *(["", note] if note else []),
    ]
    right = [row for row in rows if row["outcome"] == "right"]
    slowest = max(right, key=lambda row: float(row["seconds"]), default=None)
    remarks = [f"Slowest to capture and compile: {slowest['name']} ({slowest['kind']})."] if slowest else []
    file = ("from its file", lambda row: "the same bits" if row.get("from_file") else "not run")
    return page(
        "The zoo, compiled", about, rows, every(), done="Compiled", maker="compiler", remarks=remarks, column=file
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("names", nargs="*", help="static:bert, dynamic:gpt2 …; with --report, a note")
    parser.add_argument("--report", type=Path)
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=1e9)
    given = parser.parse_args()
    if given.report:
        given.report.write_text(report(read(given.results), " ".join(given.names)), encoding="utf-8")
        return
    names = given.names or left_of(every(), given.results)
    sweep(names, given.results, given.target, given.jobs, given.minutes)


if __name__ == "__main__":
    main()
