"""Random programs through the passes, in parts of a hundred: `make fuzz-passes`, to docs/reports/random_programs.md.

    python -m tests.passes.random_programs.sweep --journal FILE --write docs/reports/random_programs.md

A part that is in the journal is not run again. The first program that fails ends the run, as hypothesis cut it down.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests import progress
from tests.passes.random_programs import programs
from tests.passes.random_programs.checks import Order, check_drawn, orders

PARTS, SIZE = 20, 100
FIRST_SEED = 20
SETTINGS: dict[str, Any] = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}


def check_part(part: int) -> int:
    """Draws and checks the programs of one part. Returns how many there were."""
    count = 0

    @seed(FIRST_SEED + part)
    @settings(max_examples=SIZE, phases=[Phase.generate, Phase.shrink], **SETTINGS)
    @given(programs.programs(), orders())
    def run(drawn: programs.Program, order: Order) -> None:
        nonlocal count
        count += 1
        check_drawn(drawn, order)

    run()
    return count


def sweep(journal: Path) -> dict[int, int]:
    """The programs of each part, from the journal or by running it."""
    lines = journal.read_text(encoding="utf-8").splitlines() if journal.exists() else []
    done = {row["part"]: row["programs"] for row in map(json.loads, lines)}
    for part in progress.count_done("parts", range(PARTS)):
        if part not in done:
            done[part] = check_part(part)
            with journal.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"part": part, "programs": done[part]}) + "\n")
    return done


def write_report(parts: dict[int, int]) -> str:
    lines = [
        "# Random programs through the passes",
        "",
        "Written by `make fuzz-passes`. `tests/passes/random_programs/programs.py` draws programs: nested autocast and",
        "grad modes, control flow in control flow, effects, random numbers, custom operators that write, views and",
        'updates in place, shared modules. Each runs through the default pipeline with `check="numerics"` and back',
        "with `erase_effect_tokens`, and through all passes in a random order that their dialects allow, each twice.",
        "Results, arguments, state and the order of effects must be those of eager, on two inputs.",
        "",
        "| programs | seeds | right | wrong |",
        "|---|---|---|---|",
        f"| {sum(parts.values())} | {FIRST_SEED} to {FIRST_SEED + len(parts) - 1} | {sum(parts.values())} | 0 |",
        "",
        "Programs that were wrong before are tests in `tests/passes/random_programs/test_fuzz_regressions.py`.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--write", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parts = sweep(options.journal)
    options.write.write_text(write_report(parts), encoding="utf-8")


if __name__ == "__main__":
    main()
