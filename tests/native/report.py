"""Runs torch's operator samples as native code and says what became of them.

python -m tests.native.report --write docs/reports/operator_samples.md      all of them: about half an hour on one core
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
from tests.native.samples import DTYPES, KINDS, OTHERS, cases

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
    parser.add_argument("--note", default="", help="a paragraph of the report on how it came")
    given = parser.parse_args()
    start = time.monotonic()
    rows = [json.loads(line) for path in given.read for line in path.open()] if given.read else _run(given)
    print(dict(Counter((row["dtype"], row["outcome"]) for row in rows)), f"{time.monotonic() - start:.0f} s")
    if given.write:
        given.write.parent.mkdir(parents=True, exist_ok=True)
        given.write.write_text(markdown(rows, given.most, given.note))


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


def markdown(rows: Sequence[dict[str, Any]], most: int | None, note: str = "") -> str:
    every = "Every sample" if most is None else f"At most {most} samples"
    lines = [
        "# torch's operator samples as native code",
        "",
        f"{every} of every operator of torch's own table (`op_db`), compiled and compared with eager in float64:",
        "an error of at most 4 times eager's own; of operators that work element by element, at every element by",
        "itself. A sample is of core ATen if torch's decompositions take it to operators with `torch.Tag.core` alone",
        "(`tests/native/core_set.py` asks). Inputs that are strided, empty or scalar are made of "
        f"{OTHERS} to {2 * OTHERS - 1} samples of",
        "each operator and dtype, or all if there are fewer, where eager takes them. Written by `make long-samples`.",
        "",
        *([note, ""] if note else []),
        "| dtype | inputs | samples | passed | refused | wrong | crashed | passed of all |"
        " of core ATen | passed | refused | passed of core ATen |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    dtypes = list(dict.fromkeys(row["dtype"] for row in rows))
    for dtype in dtypes:
        for kind in KINDS:
            lines += _line(dtype, kind, [row for row in rows if row["dtype"] == dtype and row["kind"] == kind])
        lines += _line(f"**{dtype}**", "all", [row for row in rows if row["dtype"] == dtype])
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
    core = [row["outcome"] for row in rows if not row["outside"]]
    passed = core.count("passed")
    cells = [dtype, kind, len(rows), *numbers, f"{numbers[0] / len(rows):.1%}"]
    cells += [len(core), passed, core.count("refused"), f"{passed / len(core):.1%}" if core else "–"]
    return [f"| {' | '.join(map(str, cells))} |"]


if __name__ == "__main__":
    main()
