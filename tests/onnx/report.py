"""Runs torch's operator samples as ONNX models and says what became of them.

python -m tests.onnx.report --write docs/reports/onnx_samples.md            all of them
python -m tests.onnx.report --ops sort topk --dtype float32 --most 3        a look at a few
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from tests.native.report import reasons
from tests.native.samples import DTYPES, KINDS, cases
from tests.onnx.samples import run

OUTCOMES = ("passed", "refused", "wrong", "crashed")


def main() -> None:
    parser = argparse.ArgumentParser(description="torch's operator samples as ONNX models")
    parser.add_argument("--dtype", nargs="*", default=[_name(dtype) for dtype in DTYPES])
    parser.add_argument("--kind", nargs="*", default=list(KINDS))
    parser.add_argument("--ops", nargs="*")
    parser.add_argument("--most", type=int, help="samples of an operator, spread over all of them")
    parser.add_argument("--opset", type=int)
    parser.add_argument("--json", type=Path, help="one line a sample")
    parser.add_argument("--read", nargs="*", type=Path, help="take outcomes from such files instead of running")
    parser.add_argument("--write", type=Path, help="the report as Markdown")
    parser.add_argument("--note", default="", help="a paragraph of the report on how it came")
    given = parser.parse_args()
    start = time.monotonic()
    rows = _read(given.read) if given.read else _run(given)
    print(dict(Counter((row["dtype"], row["outcome"]) for row in rows)), f"{time.monotonic() - start:.0f} s")
    if given.write:
        given.write.parent.mkdir(parents=True, exist_ok=True)
        given.write.write_text(markdown(rows, given.most, given.note), encoding="utf-8")


def _read(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """The last outcome of each sample."""
    rows = [json.loads(line) for path in paths for line in path.open()]
    return list({(row["op"], row["number"], row["dtype"], row["kind"]): row for row in rows}.values())


def _run(given: argparse.Namespace) -> list[dict[str, Any]]:
    found = []
    out = given.json.open("w") if given.json else None
    chosen = cases(given.ops or None, [getattr(torch, d) for d in given.dtype], given.kind, given.most)
    for case, outcome in run(chosen, opset=given.opset, classify=True):
        row = {"op": case.op, "number": case.number, "dtype": _name(case.dtype), "kind": case.kind,
               "outcome": outcome.kind, "reason": outcome.reason, "outside": outcome.outside}  # fmt: skip
        found.append(row)
        if out:
            out.write(json.dumps(row) + "\n")
            out.flush()
        if outcome.kind in ("wrong", "crashed"):
            print(f"{outcome.kind}: {case}\n    {outcome.reason}", flush=True)
    return found


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def markdown(rows: Sequence[dict[str, Any]], most: int | None, note: str = "") -> str:
    every = "Every sample" if most is None else f"At most {most} samples, spread over all,"
    lines = [
        "# torch's operator samples as ONNX models",
        "",
        f"{every} of every operator of torch's own table (`op_db`), exported,",
        "checked, run in ONNX Runtime (where it has no kernel: in onnx.reference) and compared with eager in float64:",
        "an error of at most 4 times eager's own; of operators that work element by element, at every element by",
        "itself. Written by `make long-onnx-samples`.",
        "",
        *([note, ""] if note else []),
        "| dtype | inputs | samples | passed | refused | wrong | crashed | refused of core ATen |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for dtype in dict.fromkeys(row["dtype"] for row in rows):
        for kind in KINDS:
            lines += _line(dtype, kind, [row for row in rows if row["dtype"] == dtype and row["kind"] == kind])
    lines += _line("**all**", "all", rows)
    lines += ["", "## Refused", ""]
    lines += ["A refusal names all the operators in the way; a sample is counted with each of them.", ""]
    lines += ["| operator or error | why | samples | of core ATen | met in |", "|---|---|---|---|---|"]
    refused: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        if row["outcome"] == "refused":
            for reason in dict.fromkeys(reasons(row)):
                refused[reason].append(row)
    for (target, why), met in sorted(refused.items()):
        shown = sorted({row["op"] for row in met})
        more = f" and {len(shown) - 6} more" if len(shown) > 6 else ""
        core = sum(not row["outside"] for row in met)
        said = why.replace("|", "/")[:160]
        lines.append(f"| `{target}` | {said} | {len(met)} | {core or 'no'} | {', '.join(shown[:6])}{more} |")
    bad = [row for row in rows if row["outcome"] in ("wrong", "crashed")]
    if bad:
        lines += ["", "## Wrong or crashed", ""]
        lines += [f"- {row['op']}#{row['number']} {row['dtype']} {row['kind']}: {row['reason'][:200]}" for row in bad]
    return "\n".join(lines) + "\n"


def _line(dtype: str, kind: str, rows: Sequence[dict[str, Any]]) -> list[str]:
    """A row of the table, or none if there is nothing to say."""
    if not rows:
        return []
    numbers = [sum(row["outcome"] == outcome for row in rows) for outcome in OUTCOMES]
    core = sum(row["outcome"] == "refused" and not row["outside"] for row in rows)
    return [f"| {dtype} | {kind} | {len(rows)} | {' | '.join(map(str, numbers))} | {core} |"]


if __name__ == "__main__":
    main()
