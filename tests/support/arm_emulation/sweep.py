"""Operators and models of the CPU target for Arm processors, run in an emulator, and the page of what became of them.

    python -m tests.support.arm_emulation.sweep JOURNAL --write FILE.md [--minutes 60] [--every 4]      make test-arm

The journal has a line per verdict; what it has already is left out. `--every` takes one model of so many.
"""

from __future__ import annotations

import argparse
import functools
import json
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from tests.e2e.test_zoo import every
from tests.support.arm_emulation.emulator import PROCESSORS, EmulatedMachine, find_missing
from tests.support.arm_emulation.target import EMULATED
from tests.support.operator_samples.batched_compile import run
from tests.support.operator_samples.samples import cases, operators
from tests.support.oracle import judge, quick_compiler, verdict_on

Row = dict[str, Any]
ISAS = tuple(PROCESSORS)
DTYPES = (torch.float32, torch.bfloat16, torch.int64)
OPERATORS = 48  # in one library
OUTCOMES = {"operators": ("passed", "refused", "wrong", "crashed"), "models": ("right", "refused", "wrong", "failed")}


def plan_operators() -> list[Row]:
    """Groups of operators, each in one instruction set, which its number decides."""
    names = sorted(operators())
    groups = [names[first : first + OPERATORS] for first in range(0, len(names), OPERATORS)]
    return [{"operators": group, "isa": ISAS[number % len(ISAS)]} for number, group in enumerate(groups)]


def plan_models(step: int) -> list[Row]:
    """Models, each in one instruction set."""
    return [{"model": name, "isa": ISAS[number % len(ISAS)]} for number, name in enumerate(every()[::step])]


def _key(row: Row) -> tuple[str, str]:
    return (row["model"] if "model" in row else row["operators"][0], row["isa"])


def run_operators(row: Row) -> Row:
    chosen = [case for name in row["operators"] for case in cases([name], DTYPES, most=1, kinds=("plain",))]
    outcomes = {str(case): outcome for case, outcome in run(chosen, machine=EmulatedMachine(row["isa"]))}
    bad = {name: outcome.reason[:300] for name, outcome in outcomes.items() if outcome.kind in ("wrong", "crashed")}
    return {**row, "counts": Counter(outcome.kind for outcome in outcomes.values()), "bad": bad}


def run_model(row: Row) -> Row:
    with quick_compiler(), tempfile.TemporaryDirectory() as folder:
        verdict = verdict_on(row["model"], functools.partial(judge, folder=Path(folder), target=EMULATED[row["isa"]]))
    return {**row, "outcome": verdict.outcome, "detail": verdict.detail[:300], "ratio": verdict.ratio}


def sweep(journal: Path, minutes: float, step: int) -> None:
    deadline = time.monotonic() + 60 * minutes
    known = {_key(row) for row in read(journal)}
    for row in [*plan_operators(), *plan_models(step)]:
        if time.monotonic() > deadline:
            return
        if _key(row) not in known:
            done = run_model(row) if "model" in row else run_operators(row)
            with journal.open("a", encoding="utf-8") as file:
                file.write(json.dumps(done) + "\n")


def read(journal: Path) -> list[Row]:
    if not journal.exists():
        return []
    return [json.loads(line) for line in journal.read_text(encoding="utf-8").splitlines()]


def report(rows: Sequence[Row]) -> str:
    """The verdicts as a page."""
    tables = {
        "operators": [row for row in rows if "operators" in row],
        "models": [row for row in rows if "model" in row],
    }
    asked = {"operators": len(plan_operators()), "models": len(every())}
    what = {
        "operators": f"groups of at most {OPERATORS} operators, one sample of each operator and dtype, each group in"
        " one instruction set",
        "models": "models of the zoo, each in one instruction set",
    }
    lines = [
        "# Arm processors",
        "",
        "Native code for Arm processors, cross-compiled and run by qemu in user mode: torch's operator samples in",
        "float32, bfloat16 and int64, and models of the zoo, against torch in float64 as everywhere else: an error of",
        "at most 4 times eager's own. Nothing here has run on such a processor, and no time is measured. qemu plays "
        + ", ".join(f"{cpu} for `{isa}`" for isa, cpu in PROCESSORS.items())
        + ". Written by `make test-arm`.",
    ]
    for name, part in tables.items():
        kinds = OUTCOMES[name]
        lines += ["", f"## {name.capitalize()}", "", f"{len(part)} of {asked[name]} {what[name]}.", ""]
        lines += [f"| instruction set | {' | '.join(kinds)} |", f"|---|{'---|' * len(kinds)}"]
        for isa in ISAS:
            counts: Counter[str] = Counter()
            for row in part:
                if row["isa"] == isa:
                    counts.update(row["counts"] if "counts" in row else [row["outcome"]])
            lines.append(f"| `{isa}` | {' | '.join(str(counts[kind]) for kind in kinds)} |")
    right = [row for row in tables["models"] if row["outcome"] == "right"]
    if right:
        worst = max(right, key=lambda row: float(row["ratio"]))
        lines += ["", f"Largest error of a model, in units of eager's own: {worst['ratio']:.2f}, {worst['model']}."]
        lines += ["", "Right: " + ", ".join(sorted(row["model"] for row in right)) + "."]
    bad = [f"- {name}, `{row['isa']}`: {reason}" for row in tables["operators"] for name, reason in row["bad"].items()]
    bad += [
        f"- {row['model']}, `{row['isa']}`, {row['outcome']}: {row['detail']}"
        for row in tables["models"]
        if row["outcome"] != "right"
    ]
    lines += ["", "## Not right", "", *(line.replace("\n", " ") for line in bad or ["Nothing."])]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("journal", type=Path)
    parser.add_argument("--write", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--every", type=int, default=1)
    given = parser.parse_args()
    missing = find_missing()
    if missing is not None:
        raise SystemExit(missing)
    torch.set_num_threads(1)
    sweep(given.journal, given.minutes, given.every)
    given.write.write_text(report(read(given.journal)), encoding="utf-8")


if __name__ == "__main__":
    main()
