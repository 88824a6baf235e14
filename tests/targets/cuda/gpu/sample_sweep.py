"""Runs torch's operator samples on the GPU of this machine and says what became of them.

    python -m tests.targets.cuda.gpu.sample_sweep RESULTS.jsonl --dtype float32 bfloat16 --most 2 --jobs 14 --minutes 5

Samples are judged as native code is: an error of at most 4 times eager's own on the CPU. Each is then saved, and a
process without torch must get the same bits from the file. Several processes share the operators. One whose GPU context
is lost, or that hangs, ends; its sample counts as crashed, and the next process goes on behind it.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch
from torch.utils import _pytree as pytree

import ingot
from tests.support.operator_samples.batched_compile import Outcome
from tests.support.operator_samples.sample_report import read
from tests.support.operator_samples.samples import (
    KINDS,
    Case,
    Expectation,
    cases,
    expectation,
    fresh,
    judge,
    operators,
)  # fmt: skip
from tests.targets.cuda.gpu.saved_calls import save_calls
from tests.targets.cuda.gpu.shares import AGAIN, Journal, run_shares

# Seconds that one sample may take to compile and run.
PATIENCE = 120


def run_share(path: Path, names: Sequence[str], dtypes: Sequence[str], most: int, end: float) -> int:
    """Judges the samples of these operators that the journal does not have. Returns what the process ends with."""
    known = {(row["op"], row["number"], row["dtype"], row["kind"]) for row in read([path])}
    journal = Journal(path)
    for dtype in dtypes:
        for case in cases(names, [getattr(torch, dtype)], KINDS, most):
            if (case.op, case.number, dtype, case.kind) in known:
                continue
            if time.time() > end:
                break
            expected = expectation(case)
            if expected is None:
                continue
            row = {"op": case.op, "number": case.number, "dtype": dtype, "kind": case.kind}
            file = journal.begin(row)
            signal.alarm(PATIENCE)
            outcome = run_sample(case, expected, file)
            signal.alarm(0)
            journal.end(row, file, outcome.kind, outcome.reason)
            if outcome.kind == "crashed":
                journal.run_files()
                return AGAIN
    journal.run_files()
    return 0


def run_sample(case: Case, expected: Expectation, file: Path) -> Outcome:
    """Compiles a sample for the GPU and judges it; where it passed, leaves its file and call."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compiled = ingot.compile(case.module, fresh(case), target="cuda", isa="sm_90a", cache=False)
        except ingot.IngotError as error:
            return Outcome("refused", f"{type(error).__name__}: {error}")
        except Exception as error:
            return Outcome("crashed", f"compiling: {type(error).__name__}: {error}\n{traceback.format_exc(limit=-6)}")
        try:
            if compiled.draws:  # its own random numbers, not torch's: only their type can be compared
                expected = Expectation(expected.own, expected.exact, True)
            results = [x.cpu() for x in pytree.tree_leaves(compiled(*fresh(case)))]
            complaint = judge(case, expected, results)
            if not complaint and not compiled.draws:
                save_calls(compiled, file, [(fresh(case), results)])
        except Exception as error:
            return Outcome("crashed", f"running: {type(error).__name__}: {error}\n{traceback.format_exc(limit=-4)}")
    return Outcome("wrong", complaint) if complaint else Outcome("passed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--dtype", nargs="*", default=["float32", "bfloat16"])
    parser.add_argument("--most", type=int, default=2, help="samples of an operator, spread over all of them")
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--minutes", type=float, default=1e6, help="begin no sample after this time")
    parser.add_argument("--share", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--end", type=float, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.share is None:
        asked = [f"--most={given.most}", "--dtype", *given.dtype]
        rows = read(run_shares(__spec__.name, given.results, given.jobs, given.minutes, asked))
        given.results.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        for row in rows:
            if row["outcome"] in ("wrong", "crashed"):
                print(
                    f"{row['outcome']}: {row['op']} {row['number']} {row['dtype']} {row['kind']}: {row['reason'][:600]}"
                )
        print(dict(Counter((row["dtype"], row["outcome"]) for row in rows)))
        print(f"{sum('from_file' in row for row in rows)} of them also from their file, without torch")
        return
    names = sorted(operators())[given.share :: given.jobs]
    sys.exit(run_share(given.results, names, given.dtype, given.most, given.end))


if __name__ == "__main__":
    main()
