"""Runs the files of bundles on the GPU of this machine, in several processes, and packs what they return.

Needs the standard library, NumPy and ingot_runtime. Every call is made twice: a row says where the bits differ. Device
memory is filled with NaN before a model is opened, so that an element that no kernel writes is not right by chance. A
program that ends its process is tried twice.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ingot_runtime
from ingot_runtime import BFloat16Array, DeviceArray
from ingot_runtime.native.cuda_driver import find_driver
from tests.targets.cuda.gpu.evidence import gpu_name
from tests.targets.cuda.gpu.prepared.bundles import Arrays, array_name, find_packs, select_arrays, unpack
from tests.targets.cuda.gpu.prepared.results import ROWS, ResultRow, read_rows, save_arrays, write_results
from tests.targets.cuda.gpu.prepared.verdicts import VERDICTS, read_verdicts
from tests.targets.cuda.gpu.workers import AGAIN, add_options, join, run_workers, use_memory_for_files

# Seconds that a program may take, and those that are left for packing what was returned.
PATIENCE, MARGIN = 60, 20.0
# Device memory that is filled with NaN: blocks, and bytes of each.
_BLOCKS, _BLOCK_BYTES = 16, 1 << 20
_REASON = 2000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundles", type=Path, nargs="*", help="folders of packs")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "build/prepared/results")))
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--minutes", type=float, default=9, help="end after this time")
    parser.add_argument("--skip-known", action="store_true", help="leave out programs whose text is known to be right")
    parser.add_argument("--known", type=Path, default=VERDICTS, help="the file of verdicts")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--listed", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--end", type=float, help=argparse.SUPPRESS)
    add_options(parser)


def main(given: argparse.Namespace) -> int:
    if given.tokens is not None:
        work(given)
        return 0
    find_driver().devices()  # raises DeviceUnavailable, which every program would
    begin = time.time()
    end = begin + max(1.0, 60 * given.minutes - MARGIN)
    use_memory_for_files()
    with tempfile.TemporaryDirectory(prefix="ingot-execute-") as name:
        folder = Path(name)
        with ThreadPoolExecutor(given.jobs) as threads:
            packs = threads.map(lambda pack: unpack(pack, folder), find_packs(given.bundles))
            programs = [asdict(one) for pack in packs for one in pack]
        if given.skip_known:
            known = {(name, one.text) for name, one in read_verdicts(given.known).items() if one.outcome == "right"}
            programs = [one for one in programs if (one["name"], one["text"]) not in known]
        print(f"{len(programs)} programs were unpacked in {time.time() - begin:.0f} s", flush=True)
        run_all(programs, folder, given.jobs, end)
        rows = read_rows(folder / ROWS)
        if crashed := {row["stem"] for row in rows if row["outcome"] == "crashed"}:
            run_all([one for one in programs if one["stem"] in crashed], folder, given.jobs, end)
            rows = read_rows(folder / ROWS)
        gpu = gpu_name()
        ran = [row["stem"] for row in rows if row["outcome"] == "ran"]
        rows = [{**row, "gpu": gpu} for row in rows]
        left_out = write_results(given.out, rows, {stem: folder / f"{stem}.out.npz" for stem in ran})
        summarize(programs, rows, left_out, time.time() - begin)
    return 0


def summarize(
    programs: Sequence[ResultRow], rows: Sequence[ResultRow], left_out: Sequence[str], seconds: float
) -> None:
    last = {row["stem"]: row for row in rows}
    for row in rows:
        if row["outcome"] == "crashed" or row["unsteady"]:
            print(f"{row['name']}: {row['outcome']}: {row['reason'][:500] or row['unsteady']}")
    count = Counter(row["outcome"] for row in last.values())
    print(
        f"{dict(count)} of {len(programs)} programs, {len(programs) - len(last)} not run; the results of"
        f" {len(left_out)} are left out; {seconds:.0f} s"
    )


def run_all(programs: Sequence[ResultRow], folder: Path, jobs: int, end: float) -> None:
    """Appends a row for each program that ran before the end to the rows of the folder."""

    def lost(noted: str, how: str) -> None:
        if noted:
            append_row(folder, {**programs[int(noted)], "outcome": "crashed", "reason": how, "unsteady": ""})
        else:
            print(f"lost a process: {how}", flush=True)

    listed = folder / "programs.json"
    listed.write_text(json.dumps(programs), encoding="utf-8")
    command = [sys.executable, "-m", "tests.targets.cuda.gpu.prepared", "execute"]
    run_workers(len(programs), jobs, [*command, f"--folder={folder}", f"--listed={listed}", f"--end={end}"], lost)


def append_row(folder: Path, row: ResultRow) -> None:
    """In one write, so that rows of several processes do not mix."""
    file = os.open(folder / ROWS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, (json.dumps(row) + "\n").encode())
    finally:
        os.close(file)


def work(given: argparse.Namespace) -> None:
    """One of the processes that `run_all` starts: programs one after another."""
    programs, (take, note) = json.loads(given.listed.read_text(encoding="utf-8")), join(given)
    while time.time() < given.end and (number := take()) is not None:
        one = programs[number]
        note(str(number))
        signal.alarm(PATIENCE)
        try:
            found = run_program(one, given.folder)
        except Exception as error:  # the context may be lost, and all that follows
            reason = f"{type(error).__name__}: {error}"
            append_row(given.folder, {**one, "outcome": "crashed", "reason": reason[:_REASON], "unsteady": ""})
            raise SystemExit(AGAIN) from None
        append_row(given.folder, {**one, **found})
        signal.alarm(0)
        note("")


def run_program(one: ResultRow, folder: Path) -> dict[str, Any]:
    """Runs a file on its calls, and saves the results beside it. Which calls were refused, and which wrote to an
    argument, by number; and where the second run of a call has other bits."""
    with np.load(folder / f"{one['stem']}.npz", allow_pickle=False) as stored:
        given = {name: stored[name] for name in stored.files}
    fill_device_memory()
    made: dict[str, NDArray[Any]] = {}
    refused, written, unsteady = [], [], ""
    with ingot_runtime.load(folder / f"{one['stem']}.ingot") as model:
        for call, may_refuse in enumerate(one["refusable"]):
            inputs = select_arrays(given, call, "in")
            try:
                results, is_written = run_call(model, inputs, call)
            except ingot_runtime.IngotError:
                if not may_refuse:
                    raise
                refused.append(call)
                continue
            again, _ = run_call(model, inputs, call)
            made |= results
            if is_written:
                written.append(call)
            if not one["draws"]:
                unsteady = unsteady or compare_bits(results, again)
    save_arrays(folder / f"{one['stem']}.out.npz", made)
    return {"outcome": "ran", "reason": "", "refused": refused, "written": written, "unsteady": unsteady}


def fill_device_memory() -> None:
    """Leaves NaN in device memory that is free: all bits are set."""
    ones = np.full(_BLOCK_BYTES // 4, np.uint32(0xFFFFFFFF)).view(np.float32)
    blocks = [DeviceArray.from_numpy(ones) for _ in range(_BLOCKS)]
    del blocks


def run_call(model: ingot_runtime.Model, inputs: Arrays, call: int) -> tuple[dict[str, NDArray[Any]], bool]:
    """The results of a call by name, and whether it wrote to an argument."""
    copies = [np.array(array, order="C") for array in inputs.values()]
    leaves: list[Any] = [
        BFloat16Array(copy) if name.endswith(".bfloat16") else copy for name, copy in zip(inputs, copies, strict=True)
    ]
    results = {}
    for place, (result, asked) in enumerate(zip(model.run(leaves), model.spec.outputs, strict=True)):
        is_bfloat16 = isinstance(result, BFloat16Array)
        bits = result.bits if is_bfloat16 else np.asarray(result, asked.dtype.numpy)
        results[array_name(call, "out", place, is_bfloat16)] = bits
    written = any(copy.tobytes() != array.tobytes() for copy, array in zip(copies, inputs.values(), strict=True))
    return results, written


def compare_bits(first: Arrays, second: Arrays) -> str:
    """Where the results of two runs of a call differ, or ""."""
    for name, one in first.items():
        other = second[name]
        if one.shape != other.shape:
            return f"{name}: {list(one.shape)}, then {list(other.shape)}"
        if one.tobytes() != other.tobytes():
            width = one.dtype.itemsize
            bytes_of = [np.frombuffer(x.tobytes(), np.uint8).reshape(-1, width) for x in (one, other)]
            count = int((bytes_of[0] != bytes_of[1]).any(1).sum())
            return f"{name}: {count} of {one.size} elements have other bits in a second run"
    return ""
