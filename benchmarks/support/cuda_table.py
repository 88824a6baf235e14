"""The tables of docs/reports/cuda.md, from benchmarks/results/cuda.json.

python benchmarks/support/cuda_table.py            print them
python benchmarks/support/cuda_table.py --write    put them into the report
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[0] = str(ROOT)

from benchmarks.support import marked_text
from benchmarks.support.inductor import MODES

RESULTS = ROOT / "benchmarks" / "results" / "cuda.json"
REPORT = ROOT / "docs" / "reports" / "cuda.md"
BEGIN, END = "<!-- tables of cuda.json: begin -->", "<!-- tables of cuda.json: end -->"
# Milliseconds of a call that a row is to take at most, and how many times as fast as torch.compile it is to be.
GOALS = {
    "BERT-base b1 s128": (0.40, 2.0),
    "BERT-base b8 s512": (1.75, 1.3),
    "ResNet-50 b4": (0.40, 1.9),
    "ResNet-50 b32": (1.4, 1.3),
    "Llama 0.84B, one token": (0.55, 2.0),
    "Llama 0.84B, prefill 512": (1.9, 1.25),
    "ALiBi attention, S = 1024": (None, 1.2),
    "ALiBi attention, S = 4096": (None, 1.2),
    "ALiBi attention, S = 16384": (None, 1.2),
}
# How many times as fast as torch.compile a row is to be compiled.
COMPILE_GOAL = 4.0


def tables(results: dict[str, Any]) -> str:
    """Speed, errors and compile time of every row that was measured."""
    rows = {name: row for name, row in results["rows"].items() if "failed" not in row}
    state = " with uncommitted changes" if results["dirty"] else ""
    lines = [
        f"{results['device']}, {results['machine']['cpu']}, torch {results['machine']['torch']}, commit"
        f" `{str(results['commit'])[:9]}`{state}.",
        "",
        "| | call (goal), ms | back-to-back | host | launches | torch.compile: mode | call | back-to-back |"
        " SDPA: call | back-to-back | ratio: call (goal) | back-to-back | share of roofline |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        mode = better_mode(row)
        ours, peer, sdpa = row["Ingot"], row.get(mode), row.get("SDPA")
        goal, ratio = GOALS.get(name, (None, None))
        lines.append(
            f"| {name} | {_time(ours, 'call')}{_goal(goal)} | {_time(ours, 'back-to-back')} | {_time(ours, 'host')} |"
            f" {row['launches']} | {_name_mode(row, mode)} | {_time(peer, 'call')} | {_time(peer, 'back-to-back')} |"
            f" {_time(sdpa, 'call')} |"
            f" {_time(sdpa, 'back-to-back')} | {_ratio(peer, ours, 'call')}{_goal(ratio)} |"
            f" {_ratio(peer, ours, 'back-to-back')} | {row['share of roofline']:.0%} |"
        )
    counts = sorted({row["errors"].get("inputs", 1) for row in rows.values()})
    several = f"; mean of {' or '.join(map(str, counts))} inputs" if counts != [1] else ""
    lines += [
        "",
        "torch.compile's better mode is the one with the shorter call, of both where a row has no †.",
        "",
        f"| error, of the largest value{several} | largest: Ingot | eager | mean: Ingot | eager |",
        "|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        found = row["errors"]
        kinds = ("Ingot", "eager", "Ingot, mean", "eager, mean")
        lines.append(f"| {name} | " + " | ".join(f"{found[kind]:.5f}" for kind in kinds) + " |")
    lines += [
        "",
        "| cold compile, s | Ingot | torch.compile | ratio (goal) | Ingot, no GPU in sight | ratio (goal) |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        spent = row["compile"]
        peer = min((spent[mode] for mode in MODES if mode in spent), default=None)
        apart = spent.get("Ingot, no GPU")
        lines.append(
            f"| {name} | {spent['Ingot']:.1f} | {_seconds(peer)} | {_times(peer, spent['Ingot'])} | {_seconds(apart)} |"
            f" {_times(peer, apart)} |"
        )
    failed = [f"- {name}: {row['failed'].splitlines()[0]}" for name, row in results["rows"].items() if "failed" in row]
    return "\n".join([*lines, *(["", "Failed:", "", *failed] if failed else [])])


def better_mode(row: dict[str, Any]) -> str:
    """torch.compile's mode with the shorter call in the same run; nothing where it was left out."""
    found = [mode for mode in MODES if mode in row]
    return min(found, key=lambda mode: float(row[mode]["call, ms"]), default="")


def _name_mode(row: dict[str, Any], mode: str) -> str:
    return f"{mode}{'' if all(other in row for other in MODES) else ' †'}" if mode else "–"


def _time(times: dict[str, float] | None, kind: str) -> str:
    return "–" if times is None else f"{times[f'{kind}, ms']:.3f}"


def _ratio(peer: dict[str, float] | None, ours: dict[str, float], kind: str) -> str:
    return "–" if peer is None else f"{peer[f'{kind}, ms'] / ours[f'{kind}, ms']:.2f}"


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def _times(peer: float | None, ours: float | None) -> str:
    return "–" if peer is None or ours is None else f"{peer / ours:.1f} ({COMPILE_GOAL:g})"


def _goal(value: float | None) -> str:
    return "" if value is None else f" ({value:g})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    made = tables(json.loads(RESULTS.read_text(encoding="utf-8")))
    if not parser.parse_args().write:
        print(made)
        return
    marked_text.replace(REPORT, BEGIN, END, made)


if __name__ == "__main__":
    main()
