"""Trains twelve models compiled and in eager, 200 steps each, and writes the table.

python -m tests.support.training.report --journal JOURNAL.jsonl --write docs/reports/training.md
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests import progress
from tests.support.training.comparison import TIMES, Verdict, compare
from tests.support.training.models import MODELS

STEPS = 200
# One size, both sizes in turn, one size under autocast, and both sizes in turn with one code for all sizes.
WAYS = ("static", "two sizes", "autocast", "dynamic")
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description="training, compiled and in eager")
    parser.add_argument("--journal", type=Path, required=True, help="one line per run; what it has is not done again")
    parser.add_argument("--write", type=Path, help="the report as Markdown")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--ways", nargs="*", default=list(WAYS), choices=WAYS)
    given = parser.parse_args()
    rows = read(given.journal)
    for name in progress.count_done("models", given.models):
        for way in WAYS:
            if way not in given.ways or any(r["model"] == name and r["way"] == way for r in rows):
                continue
            row = run(name, way, given.steps)
            rows.append(row)
            with given.journal.open("a", encoding="utf-8") as out:
                out.write(json.dumps(row) + "\n")
            print(row, flush=True)
    if given.write:
        given.write.write_text(page(rows, given.steps), encoding="utf-8")


def read(journal: Path) -> list[Row]:
    return [json.loads(line) for line in journal.open(encoding="utf-8")] if journal.exists() else []


def run(name: str, way: str, steps: int) -> Row:
    entry = MODELS[name]
    sizes = entry.sizes if way in ("two sizes", "dynamic") else entry.sizes[:1]
    try:
        verdict = compare(entry, steps, sizes=sizes, autocast=way == "autocast", dynamic=way == "dynamic")
    except Exception as error:  # a row of the table says so
        return {"model": name, "way": way, "error": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
    return {"model": name, "way": way, "holds": verdict.holds and verdict.learns, **asdict(verdict)}


def page(rows: Sequence[Row], steps: int) -> str:
    good = sum(bool(row.get("holds")) for row in rows)
    lines = [
        "# Training compared with eager",
        "",
        f"Twelve models train {steps} steps with SGD and momentum, compiled with `training=True` and in eager, on",
        "the same batches: with one size, with two sizes in turn, and under `torch.autocast` in bfloat16. In the way",
        '`dynamic` they train with two sizes in turn through torch.compile (`backend="ingot", dynamic=True`), with one',
        "code for all sizes.",
        "Distances are from eager in float64 (under autocast: from eager without it), relative to the largest loss and",
        "to the largest value of each tensor of the final state, buffers included. The compiled run may be",
        f"{TIMES:.0f} times as far as eager's own. Written by `make report-training`.",
        "",
        f"{good} of {len(rows)} runs are the same training.",
        "",
        "| model | way | loss at the start | at the end | loss: compiled | eager | state: compiled | eager | same |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*lines, *map(_line, rows)]) + "\n"


def _line(row: Row) -> str:
    if "error" in row:
        return f"| {row['model']} | {row['way']} | {row['error'][:160]} | | | | | | no |"
    verdict = Verdict(**{name: row[name] for name in Verdict.__dataclass_fields__})
    numbers = (verdict.loss, verdict.loss_of_eager, verdict.state, verdict.state_of_eager)
    cells = [row["model"], row["way"], f"{verdict.first:.3f}", f"{verdict.last:.3f}"]
    cells += [f"{number:.1e}" for number in numbers]
    return f"| {' | '.join(cells)} | {_yes(row)} |"


def _yes(row: Row) -> str:
    return "yes" if row["holds"] else "no"


if __name__ == "__main__":
    main()
