"""Runs random networks on the GPU of this machine and says what became of them.

    python -m tests.targets.cuda.gpu.program_sweep RESULTS.jsonl --first 0 --count 2000 --jobs 14 --minutes 5

Networks are those of tests/fuzz, judged as the CPU's are, at every size; one in four is compiled without some of the
CUDA target's passes. Each is then saved, and a process without torch must get the same bits from the file.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

import ingot
from ingot.errors import IngotError
from ingot.targets.cuda.target import CUDA
from tests.fuzz import networks
from tests.fuzz.verdict import Verdict
from tests.targets.cuda.gpu.saved_calls import save_calls
from tests.targets.cuda.gpu.shares import AGAIN, Journal, run_shares

# Seconds that one network may take.
PATIENCE = 120


def check(network: networks.Network, file: Path) -> Verdict:
    """Compiles a network for the GPU, judges it at every size, and leaves its file and calls."""
    try:
        model, program = networks.capture(network)
    except Exception as error:
        return networks.failure(network, error, "capturing")
    draw = random.Random(network.seed)
    off = [name for name in CUDA.optional_passes if draw.random() < 0.4] if draw.random() < 0.25 else []
    precision: Any = "tf32" if network.mode == "products in bfloat16" else "float32"  # judged as the coarser one
    try:
        compiled = ingot.compile(program, target="cuda", precision=precision, cache=False, disable_passes=off)
    except Exception as error:
        return networks.failure(network, error, f"compiling without {off}")
    wide, calls = network.wide_model(), []
    for number, sizes in enumerate(network.every_size):
        args = network.arguments(sizes, number)
        before = [arg.clone() for arg in args]
        try:
            got = [result.cpu() for result in compiled(*args)]
        except Exception as error:
            if isinstance(error, IngotError) and 0 in sizes.values():
                continue
            return Verdict("wrong", f"running at {sizes}: {type(error).__name__}: {error}\nwithout {off}\n{network}")
        problem = networks.problem_at(sizes, model, wide, program, network.mode, before, got)
        if not problem and any(not torch.equal(a, b) for a, b in zip(args, before, strict=True)):
            problem = "an argument was written to"
        if problem:
            return Verdict("wrong", f"{problem}; at {sizes}, without {off}\n{network}")
        calls.append((before, got))
    save_calls(compiled, file, calls)
    compiled.close()
    return Verdict("right")


def run_share(path: Path, seeds: Iterable[int], end: float) -> int:
    """Judges the seeds that the journal does not have. Returns what the process ends with."""
    known = {row["seed"] for row in read(path)}
    journal = Journal(path)
    for seed in seeds:
        if seed in known:
            continue
        if time.time() > end:
            break
        row = {"seed": seed}
        file = journal.begin(row)
        signal.alarm(PATIENCE)
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            verdict = check(networks.make(seed), file)
        signal.alarm(0)
        journal.end(row, file, "passed" if verdict.kind == "right" else verdict.kind, verdict.reason)
        if "running at" in verdict.reason:  # the context may be lost, and all that follows
            journal.run_files()
            return AGAIN
    journal.run_files()
    return 0


def read(journal: Path) -> list[dict[str, Any]]:
    """The last row of each seed."""
    rows = [json.loads(line) for line in journal.open(encoding="utf-8")] if journal.exists() else []
    return list({row["seed"]: row for row in rows}.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--minutes", type=float, default=1e6, help="begin no network after this time")
    parser.add_argument("--share", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--end", type=float, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.share is not None:
        torch.set_num_threads(1)
        seeds = range(given.first, given.first + given.count)[given.share :: given.jobs]
        sys.exit(run_share(given.results, seeds, given.end))
    seeds_asked = [f"--first={given.first}", f"--count={given.count}"]
    journals = run_shares(__spec__.name, given.results, given.jobs, given.minutes, seeds_asked)
    rows = [row for journal in journals for row in read(journal)]
    given.results.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    for row in rows:
        if row["outcome"] in ("wrong", "crashed"):
            print(f"{row['seed']}: {row['outcome']}: {row['reason'][:2000]}\n")
    for reason, count in Counter(row["reason"] for row in rows if row["outcome"] == "refused").most_common():
        print(f"refused {count}: {reason[:200]}")
    print(dict(Counter(row["outcome"] for row in rows)))
    print(f"{sum('from_file' in row for row in rows)} of them also from their file, without torch")


if __name__ == "__main__":
    main()
