"""The zoo with dynamic dims at size 1: which models run there, of those that eager runs.

    python -m tests.frontend.sizes.size_one_sweep JOURNAL [--part 0/3] [--report FILE]

A model is captured once with its dynamic dims. Each dim is then 1 in turn, and all of them together. What JOURNAL has
is left out, so that a run goes on where the last one stopped.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import ingot
from ingot.errors import InputError
from ingot.ir import pytree
from tests.e2e.test_zoo import every
from tests.support.oracle import run
from tests.support.zoo import Entry, entry

Row = dict[str, Any]


def judge(item: Entry) -> Iterator[tuple[str, str, str]]:
    """For each set of dims that are 1: its name, what became of it, and why."""
    model = item.build()
    names = sorted({name for dims in (item.dynamic or {}).values() for name in dims.values()} & item.sizes.keys())
    program = ingot.capture(model, (), copy.deepcopy(item.inputs(item.sizes)), dynamic_shapes=item.dynamic)
    choices = [{name} for name in names] + ([set(names)] if len(names) > 1 else [])
    for chosen in choices:
        sizes = {name: 1 if name in chosen else size for name, size in item.sizes.items()}
        yield (" and ".join(sorted(chosen)), *_compare(item, model, program, sizes))


def _compare(item: Entry, model: Any, program: Any, sizes: Mapping[str, int]) -> tuple[str, str]:
    try:
        inputs = item.inputs(dict(sizes))
        wanted = run(model, inputs)
    except Exception as failure:
        return "eager fails", str(failure).splitlines()[0] if str(failure) else type(failure).__name__
    try:
        got = run(program, inputs)
    except InputError as refusal:
        return "refused", " ".join(str(refusal).split())
    except Exception as failure:
        return "failed", f"{type(failure).__name__}: {' '.join(str(failure).split())}"
    try:
        for one, other in zip(pytree.flatten(got)[0], pytree.flatten(wanted)[0], strict=True):
            if isinstance(other, torch.Tensor):
                torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4, equal_nan=True)
    except AssertionError as failure:
        return "wrong", str(failure).splitlines()[0]
    return "right", ""


def report(rows: Sequence[Row]) -> str:
    """The table of outcomes, and of every model that is not right."""
    counts = Counter(row["outcome"] for row in rows)
    lines = [
        "# The zoo at size 1",
        "",
        "Every dynamic model of the zoo, captured once; then each dynamic dim is 1 in turn, and all of them together.",
        "A model that eager does not run at these sizes says nothing. Written by",
        "`python -m tests.frontend.sizes.size_one_sweep`.",
        "",
        f"{len({row['name'] for row in rows})} models.",
        "",
        "| outcome | sets of sizes |",
        "|---|---|",
        *(f"| {outcome} | {count} |" for outcome, count in sorted(counts.items())),
        "",
        "| model | dims that are 1 | outcome | why |",
        "|---|---|---|---|",
    ]
    for row in sorted(rows, key=lambda row: (row["name"], row["dims"])):
        if row["outcome"] not in ("right", "eager fails"):
            why = re.sub(r"/\S*/site-packages/", "", row["why"])[:240].replace("|", "/")
            lines.append(f"| {row['name']} | {row['dims']} | {row['outcome']} | {why} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("journal", type=Path)
    parser.add_argument("names", nargs="*", help="models; all if none is given")
    parser.add_argument("--part", default="0/1", help="every so-many-th model, from this one on: 0/3")
    parser.add_argument("--report", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    rows = [json.loads(line) for line in given.journal.read_text().splitlines()] if given.journal.exists() else []
    done = {row["name"] for row in rows}
    first, step = map(int, given.part.split("/"))
    names = given.names or [name.partition(":")[2] for name in every() if name.startswith("dynamic:")][first::step]
    for name in names:
        if name in done and not given.names:
            continue
        try:
            found = list(judge(entry(name)))
        except Exception as failure:
            found = [("", "not captured", f"{type(failure).__name__}: {' '.join(str(failure).split())}")]
        fresh = [{"name": name, "dims": dims, "outcome": outcome, "why": why} for dims, outcome, why in found]
        rows = [row for row in rows if row["name"] != name] + fresh
        with given.journal.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in fresh)
        print(name, *(f"{row['dims']}: {row['outcome']} {row['why'][:300]}" for row in fresh), sep="\n    ", flush=True)
    if given.report:
        given.report.write_text(report(rows) + "\n")


if __name__ == "__main__":
    main()
