"""Judges results that a machine with a GPU sent back, as the sweeps on the GPU do, and writes the rows of journals.

What was decided when programs were prepared, refused for one, is written too. The file of verdicts gets all of it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from tests.targets.cuda.gpu import evidence
from tests.targets.cuda.gpu.journals import DONE, Journal, codes_of, read_rows
from tests.targets.cuda.gpu.prepared.bundles import Arrays, select_arrays
from tests.targets.cuda.gpu.prepared.prepare import FOLDER, WHAT
from tests.targets.cuda.gpu.prepared.results import ROWS, ResultRow, read_results
from tests.targets.cuda.gpu.prepared.results import read_rows as read_result_rows
from tests.targets.cuda.gpu.prepared.text_digest import digest_inputs
from tests.targets.cuda.gpu.prepared.verdicts import VERDICTS, record_verdicts
from tests.targets.cuda.gpu.program_sweep import ProgramSweep
from tests.targets.cuda.gpu.sample_sweep import SampleSweep
from tests.targets.cuda.gpu.saved_calls import tensor_of
from tests.targets.cuda.gpu.sweeps import PATIENCE, BatchedSweep, CallResults, ProgramJudge
from tests.targets.cuda.gpu.workers import add_options, join, run_workers

# Fields of a row of a journal that say who made it.
_STAMP = ("code", "commit", "gpu")
# Outcomes of a preparation that are verdicts.
_DECIDED = ("right", "refused", "wrong", "crashed")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("results", type=Path, nargs="*", help="folders with what `execute` wrote")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the programs were prepared")
    parser.add_argument("--journal", type=Path, default=evidence.JOURNALS)
    parser.add_argument("--known", type=Path, default=VERDICTS, help="the file of verdicts, which gets these")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--units", type=Path, help=argparse.SUPPRESS)
    add_options(parser)


def main(given: argparse.Namespace) -> int:
    os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    evidence.import_torch()
    if given.tokens is not None:
        work(given)
        return 0
    begin = time.time()
    rows = [row for folder in given.results for row in read_result_rows(folder / ROWS)]
    units = sorted({(row["what"], row["unit"]) for row in rows if row["outcome"] != "left out"})
    left_out = len({row["name"] for row in rows if row["outcome"] == "left out"})
    print(f"{len(rows)} rows of {len(units)} units; the results of {left_out} programs were left out", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        listed = Path(folder, "units.json")
        listed.write_text(json.dumps(units), encoding="utf-8")
        command = [sys.executable, "-m", "tests.targets.cuda.gpu.prepared", *sys.argv[1:], f"--units={listed}"]
        run_workers(len(units), given.jobs, command, lambda name, how: print(f"not judged: {name}: {how}", flush=True))
    decided = [hand_on(given.folder / f"{what}.jsonl", given.journal / f"{what}.jsonl") for what in WHAT]
    codes = {row["code"] for row in rows} | {row["code"] for found in decided for row in found}
    bad = 0
    for code in sorted(codes):
        journals = {what: Journal(given.journal / f"{what}.jsonl", {"code": code}) for what in WHAT}
        finish_units(given.folder, journals)
        if "-" not in code:  # else no GPU ran it
            ran = [row for journal in journals.values() for row in journal.rows().values()]
            record_verdicts((row for row in ran if "text" in row or row["outcome"] == "refused"), given.known)
        bad |= evidence.summarize(journals, time.time() - begin)
    return bad


def work(given: argparse.Namespace) -> None:
    """One of the processes that `main` starts: units one after another."""
    torch.set_num_threads(1)
    units, (take, note) = json.loads(given.units.read_text(encoding="utf-8")), join(given)
    rows, read = read_results(given.results)
    sweeps: dict[str, BatchedSweep] = {"samples": SampleSweep((), 1), "programs": ProgramSweep(0, 0)}
    while (number := take()) is not None:
        what, unit = units[number]
        own = [row for row in rows if (row["what"], row["unit"]) == (what, unit) and row["outcome"] != "left out"]
        note(unit)
        signal.alarm(PATIENCE)
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            judge_unit(sweeps[what], unit, own, read, given.journal / f"{what}.jsonl")
        signal.alarm(0)
        note("")


def judge_unit(
    sweep: BatchedSweep, unit: str, rows: Sequence[ResultRow], read: Callable[[str], Arrays], path: Path
) -> None:
    """Writes a row of the journal for each row of results."""
    judges = sweep.judges(unit, {row["name"] for row in rows}, evidence.target_of(False))
    for row in rows:
        outcome, reason = row["outcome"], row["reason"]
        if outcome == "ran":
            judge = judges.get(row["name"])
            if judge is None or digest_inputs(judge) != row["inputs"]:
                print(f"not judged: {row['name']}: this machine has other inputs for it", flush=True)
                continue
            try:
                reason = judge_calls(judge, row, read(row["stem"]))
                outcome = "wrong" if reason else "right"
            except Exception as error:
                outcome, reason = "crashed", f"judging: {type(error).__name__}: {error}"
        more = {key: row[key] for key in ("text", "file", "unit")}
        more |= {key: row[key] for key in ("public", "unsteady") if row[key]}
        more |= {"from_file": True} if outcome == "right" else {}
        Journal(path, {key: row[key] for key in _STAMP}).write(row["name"], outcome, reason, **more)


def judge_calls(judge: ProgramJudge, row: ResultRow, arrays: Arrays) -> str:
    """What is wrong with the results of a program's calls, or ""."""
    for call in range(judge.count()):
        if call in row["refused"]:
            continue
        tensors = [tensor_of(name, array) for name, array in select_arrays(arrays, call, "out").items()]
        results = CallResults(tensors, call in row["written"], row["draws"])
        if problem := judge.problem(call, results):
            return problem
    return ""


def hand_on(prepared: Path, journal: Path) -> list[ResultRow]:
    """Writes to a journal what the preparation decided, unless it has that. Returns the rows."""
    found: list[dict[str, Any]] = []
    for code in codes_of([prepared]):
        known = read_rows([journal], code)
        for row in read_rows([prepared], code).values():
            if row["outcome"] not in _DECIDED:
                continue
            found.append(row)
            if known.get(row["name"], {}).get("outcome") != row["outcome"]:
                fields = {key: value for key, value in row.items() if key not in ("name", "outcome", "reason")}
                stamp = {key: fields.pop(key) for key in _STAMP}
                Journal(journal, stamp).write(row["name"], row["outcome"], row["reason"], **fields)
    return found


def finish_units(folder: Path, journals: dict[str, Journal]) -> None:
    """Notes the units whose programs all have rows now: the sweeps on the GPU do not judge them again."""
    for what, journal in journals.items():
        prepared = Journal(folder / f"{what}.jsonl", journal.stamp)
        judged, done = journal.rows(), journal.done()
        open_units = {
            row["unit"]
            for name, row in prepared.rows().items()
            if row["outcome"] == "prepared" and (name not in judged or judged[name]["outcome"] == "crashed")
        }
        for unit in sorted(prepared.done() - open_units - done):
            journal.write(unit, DONE)
