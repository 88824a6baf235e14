"""Runs torch's operator samples as native code and says what became of them.

python -m tests.native.report --write docs/reports/operator_samples.md      all of them: hours on one core
python -m tests.native.report --ops sort topk --dtype float32 --most 3      a look at a few
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from tests.native.batches import run
from tests.native.samples import DTYPES, KINDS, cases

OUTCOMES = ("passed", "refused", "wrong", "crashed")
_REASON = re.compile(r"^ {4}(\S+): (.*?)(?: \(|$)", re.MULTILINE)


def main() -> None:
    parser = argparse.ArgumentParser(description="torch's operator samples as native code")
    parser.add_argument("--dtype", nargs="*", default=[_name(dtype) for dtype in DTYPES])
    parser.add_argument("--kind", nargs="*", default=list(KINDS))
    parser.add_argument("--ops", nargs="*")
    parser.add_argument("--most", type=int, help="samples of an operator, spread over all of them")
    parser.add_argument("--json", type=Path, help="one line a sample")
    parser.add_argument("--read", nargs="*", type=Path, help="take outcomes from such files instead of running")
    parser.add_argument("--write", type=Path, help="the report as Markdown")
    given = parser.parse_args()
    start = time.monotonic()
    rows = [json.loads(line) for path in given.read for line in path.open()] if given.read else _run(given)
    print(dict(Counter((row["dtype"], row["outcome"]) for row in rows)), f"{time.monotonic() - start:.0f} s")
    if given.write:
        given.write.parent.mkdir(parents=True, exist_ok=True)
        given.write.write_text(markdown(rows, given.most))


def _run(given: argparse.Namespace) -> list[dict[str, Any]]:
    found = []
    out = given.json.open("w") if given.json else None
    chosen = cases(given.ops or None, [getattr(torch, d) for d in given.dtype], given.kind, given.most)
    for case, outcome in run(chosen, classify=True):
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


def reasons(row: dict[str, Any]) -> list[tuple[str, str]]:
    """What stood in the way: (operator, why), or the name of the error and its first line."""
    found = _REASON.findall(row["reason"])
    if found:
        return [(target, why) for target, why in found]
    error, _, text = row["reason"].partition(": ")
    return [(error, text.splitlines()[0].split(" {")[0] if text else "")]


def markdown(rows: Sequence[dict[str, Any]], most: int | None) -> str:
    counts = Counter((row["dtype"], row["kind"], row["outcome"]) for row in rows)
    every = "Every sample" if most is None else f"At most {most} samples"
    lines = [
        "# torch's operator samples as native code",
        "",
        f"{every} of every operator of torch's own table (`op_db`), compiled and compared with eager in float64:",
        "an error of at most 4 times eager's own. Written by `make long-samples`.",
        "",
        "| dtype | inputs | passed | refused | wrong | crashed | passed of all |",
        "|---|---|---|---|---|---|---|",
    ]
    for dtype in dict.fromkeys(row["dtype"] for row in rows):
        for kind in KINDS:
            numbers = [counts[dtype, kind, outcome] for outcome in OUTCOMES]
            if sum(numbers):
                share = f"{numbers[0] / sum(numbers):.1%}"
                lines.append(f"| {dtype} | {kind} | {' | '.join(map(str, numbers))} | {share} |")
    users: dict[tuple[str, str], set[str]] = defaultdict(set)
    for row in rows:
        if row["outcome"] == "refused":
            for reason in reasons(row):
                users[reason].add(row["op"])
    lines += ["", "## Refused", "", "| operator or error | why | met in |", "|---|---|---|"]
    for (target, why), names in sorted(users.items()):
        shown = sorted(names)
        more = f" and {len(shown) - 6} more" if len(shown) > 6 else ""
        lines.append(f"| `{target}` | {why.replace('|', '/')[:160]} | {', '.join(shown[:6])}{more} |")
    bad = [row for row in rows if row["outcome"] in ("wrong", "crashed")]
    if bad:
        lines += ["", "## Wrong or crashed", ""]
        lines += [f"- {row['op']}#{row['number']} {row['dtype']} {row['kind']}: {row['reason'][:200]}" for row in bad]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
