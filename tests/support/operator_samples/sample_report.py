"""A run over torch's operator samples, whatever runs them: its command line, its journal, and the tables of its page.

A journal has one line per sample. A run that is given one goes on where it ended, so it may be ended at any time; of
several lines on one sample the last counts. Operators named on the command line are run again.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from tests import progress
from tests.support.operator_samples.batched_compile import Outcome
from tests.support.operator_samples.samples import EVERY, KINDS, Case, cases

# What both pages say of how results are judged.
JUDGED = (
    "In float64, where nothing is more exact, eager's error is taken from nudged inputs and from float32. Where",
    "eager runs over on its way to a number that its dtype has, that number is right as well.",
)
OUTCOMES = ("passed", "refused", "wrong", "crashed")
Row = dict[str, Any]
Runner = Callable[[Iterable[Case]], Iterator[tuple[Case, Outcome]]]
_REASON = re.compile(r"^ {4}(\S+): (.*?)(?: \(|$)", re.MULTILINE)


def command(what: str, run: Runner, page: Callable[[Sequence[Row], int | None, str], str]) -> None:
    """Runs what the command line asks for and writes the report."""
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("--dtype", nargs="*", default=[_name(dtype) for dtype in EVERY])
    parser.add_argument("--kind", nargs="*", default=list(KINDS))
    parser.add_argument("--ops", nargs="*")
    parser.add_argument("--most", type=int, help="samples of an operator, spread over all of them")
    parser.add_argument("--json", type=Path, help="the journal: one line per sample")
    parser.add_argument("--read", nargs="*", type=Path, help="take outcomes from such files instead of running")
    parser.add_argument("--write", type=Path, help="the report as Markdown")
    parser.add_argument("--note", default="", help="a paragraph of the report on how it came")
    given = parser.parse_args()
    start = time.monotonic()
    rows = read(given.read) if given.read else _run(given, run)
    print(dict(Counter((row["dtype"], row["outcome"]) for row in rows)), f"{time.monotonic() - start:.0f} s")
    if given.write:
        given.write.parent.mkdir(parents=True, exist_ok=True)
        given.write.write_text(page(rows, given.most, given.note), encoding="utf-8")


def read(paths: Sequence[Path]) -> list[Row]:
    """The last outcome of each sample."""
    rows = [json.loads(line) for path in paths if path.exists() for line in path.open(encoding="utf-8")]
    return list({_key(row): row for row in rows}.values())


def _run(given: argparse.Namespace, run: Runner) -> list[Row]:
    journal = [given.json] if given.json else []
    found = {_key(row): row for row in read(journal)}
    known = set() if given.ops else set(found)
    for dtype in given.dtype:  # one after another: the first is whole before the next begins
        chosen = cases(given.ops or None, [getattr(torch, dtype)], given.kind, given.most)
        left = run(case for case in chosen if _key(_row(case)) not in known)
        for case, outcome in progress.count_done(f"samples of {dtype}", left):
            row = {**_row(case), "outcome": outcome.kind, "reason": outcome.reason, "outside": outcome.outside}
            found[_key(row)] = row
            for path in journal:
                with path.open("a", encoding="utf-8") as out:
                    out.write(json.dumps(row) + "\n")
            if outcome.kind in ("wrong", "crashed"):
                print(f"{outcome.kind}: {case}\n    {outcome.reason}", flush=True)
    return list(found.values())


def _row(case: Case) -> Row:
    return {"op": case.op, "number": case.number, "dtype": _name(case.dtype), "kind": case.kind}


def _key(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("op", "number", "dtype", "kind"))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# ---------------------------------------------------------------------- the page


def reasons(row: Row) -> list[tuple[str, str]]:
    """What stood in the way: (operator, why), or the name of the error and its first line."""
    found = _REASON.findall(row["reason"])
    if found:
        return [(target, why) for target, why in found]
    error, _, text = row["reason"].partition(": ")
    return [(error, text.splitlines()[0].split(" {")[0] if text else "")]


def counts(rows: Sequence[Row]) -> list[int]:
    """How many samples had each of the outcomes."""
    return [sum(row["outcome"] == outcome for row in rows) for outcome in OUTCOMES]


def failures(rows: Sequence[Row]) -> list[str]:
    """The sections on what was refused, wrong or crashed."""
    lines = ["", "## Refused", ""]
    lines += ["A refusal names all the operators in the way; a sample is counted with each of them.", ""]
    lines += ["| operator or error | why | samples | of core ATen | met in |", "|---|---|---|---|---|"]
    refused: dict[tuple[str, str], list[Row]] = defaultdict(list)
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
    return lines
