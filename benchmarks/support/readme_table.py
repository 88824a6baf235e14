"""The benchmark table of README.md, from benchmarks/results/cpu.json.

python benchmarks/support/readme_table.py            print it
python benchmarks/support/readme_table.py --write    put it into README.md
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "cpu.json"
README = ROOT / "README.md"
BEGIN, END = "<!-- benchmark table: begin -->", "<!-- benchmark table: end -->"
PEERS = ("eager", "torch.compile", "ONNX Runtime", "OpenVINO")


def speedup(row: dict[str, Any]) -> float:
    """How many times faster than the fastest peer."""
    times = row["times"]
    return float(min(times[peer] for peer in PEERS if peer in times) / times["Ingot"])


def table(results: dict[str, Any]) -> str:
    """The table, what it was measured on, and the means over all models and batches."""
    batches = sorted({row["batch"] for row in results["rows"]})
    rows = {(row["name"], row["batch"]): row for row in results["rows"]}
    first = batches[0]
    speedups = [f"speedup over best peer, batch {batch}" for batch in batches]
    lines = [
        "| " + " | ".join([f"ms per call, batch {first}", "Ingot", *PEERS, *speedups]) + " |",
        "|" + "|".join(["---", *["---:"] * (1 + len(PEERS) + len(batches))]) + "|",
    ]
    for name in dict.fromkeys(row["name"] for row in results["rows"]):
        times = rows[name, first]["times"]
        cells = [f"{times[kind]:.1f}" if kind in times else "–" for kind in ("Ingot", *PEERS)]
        cells += [f"{speedup(rows[name, batch]):.2f}×" for batch in batches if (name, batch) in rows]
        lines.append("| " + " | ".join([name, *cells]) + " |")
    machine, summary = results["machine"], results["summary"]
    state = " with uncommitted changes" if results["dirty"] else ""
    lines += [
        "",
        f"Measured on an {machine['cpu']} ({machine['threads']} threads, {machine['system']}, Python"
        f" {machine['python']}, torch {machine['torch']}) at commit"
        f" `{results['commit'][:9]}`{state}. float32, medians.",
        f"Geometric mean over all models and batches: {summary['speed against the best peer, geomean']:.2f}× the best"
        f" peer (least {summary['speed against the best peer, least']:.2f}×),"
        f" {summary['speed against torch.compile, geomean']:.2f}× `torch.compile`."
        f" Cold compilation: {summary['cold compile against torch.compile, geomean']:.1f}× faster than `torch.compile`"
        f" (least {summary['cold compile against torch.compile, least']:.1f}×).",
    ]
    return "\n".join(lines)


def replaced(text: str, made: str) -> str:
    """The README with this table between its markers."""
    before, _, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise SystemExit(f"{README.name} lacks the lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{made}\n{END}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the table into README.md")
    options = parser.parse_args()
    made = table(json.loads(RESULTS.read_text(encoding="utf-8")))
    if not options.write:
        print(made)
        return
    README.write_text(replaced(README.read_text(encoding="utf-8"), made), encoding="utf-8")


if __name__ == "__main__":
    main()
