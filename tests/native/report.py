"""Runs torch's operator samples and writes what became of them: `python -m tests.native.report [--dtype …] [--ops …]`."""

from __future__ import annotations

import argparse
import json
import re
import time
from collections import Counter
from pathlib import Path

import torch

from tests.native.batches import run
from tests.native.samples import DTYPES, KINDS, cases


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", nargs="*", default=[str(d).removeprefix("torch.") for d in DTYPES])
    parser.add_argument("--kind", nargs="*", default=list(KINDS))
    parser.add_argument("--ops", nargs="*")
    parser.add_argument("--stride", type=int, default=1, help="take every so many-th case")
    parser.add_argument("--most", type=int, help="samples of an operator")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quiet", action="store_true")
    given = parser.parse_args()
    start = time.monotonic()
    found = []
    chosen = cases(given.ops or None, [getattr(torch, d) for d in given.dtype], given.kind, given.most)
    sliced = (case for number, case in enumerate(chosen) if number % given.stride == 0)
    out = given.json.open("w") if given.json else None
    for case, outcome in run(sliced):
        row = {"op": case.op, "number": case.number, "dtype": str(case.dtype), "kind": case.kind,
               "outcome": outcome.kind, "reason": outcome.reason}  # fmt: skip
        found.append(row)
        if out:
            out.write(json.dumps(row) + "\n")
            out.flush()
        if outcome.kind in ("wrong", "crashed") and not given.quiet:
            print(f"{outcome.kind}: {case}\n    {outcome.reason}", flush=True)
    counts = Counter((row["dtype"], row["outcome"]) for row in found)
    print(dict(counts), f"{time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
