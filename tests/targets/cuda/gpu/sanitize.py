"""Kernels of every kind under NVIDIA's compute-sanitizer, in processes that have no torch and compile nothing.

    python -m tests.targets.cuda.gpu.sanitize [--tool memcheck racecheck synccheck initcheck] [--only NAME …]
        [--minutes 9] [--jobs 12] [--journal DIR] [--commit HASH]

The first step, without the sanitizer, compiles the cases of `cases.py` and samples of operators with kernels of their
own, calls each on the GPU, and saves files, inputs and results. The second runs each file in a process of its own under
a tool, several at once, and compares bits. A line for each tool counts what was found; the exit code is 1 where that is
anything. What the journal has of this code is not run again.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.targets.cuda.gpu import evidence
from tests.targets.cuda.gpu.journals import Journal
from tests.targets.cuda.gpu.race_findings import find_ordered, sort_findings
from tests.targets.cuda.gpu.workers import add_options, join, run_workers

TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
# Operators whose kernels no case has: sorts, scans, scatters, linear algebra, windows, gradients of attention.
SAMPLED = (
    "sort", "topk", "mode", "searchsorted", "cumsum", "cummax", "logcumsumexp", "index_put", "scatter_add", "index_add",
    "linalg.cholesky", "linalg.lu_factor", "linalg.solve_triangular", "linalg.qr", "linalg.svd", "var_mean",
    "nn.functional.max_pool2d", "nn.functional.interpolate.bilinear", "nn.functional.conv_transpose2d", "bucketize",
    "nn.functional.embedding_bag", "gather", "histc", "nn.functional.grid_sample",
)  # fmt: skip
# Seconds for one file under a tool, and to compile a case.
PATIENCE, COMPILING = 420, 120
_SUMMARY = re.compile(r"^=+ (?:ERROR|RACECHECK) SUMMARY: (\d+)", re.MULTILINE)
_EXIT = 86
# That racecheck keeps: bulk copies and their readers are many.
_MOST_HAZARDS = 200_000_000


@dataclass(frozen=True)
class SanitizedFile:
    """A saved model with its calls, in a folder of its own."""

    name: str
    folder: Path


# ---------------------------------------------------------------------- the first step


def compile_all(folder: Path, given: argparse.Namespace) -> list[SanitizedFile]:
    """Compiles, calls and saves everything, in several processes. What cannot be is reported and left out."""
    names = choose_names(given.only)
    command = [sys.executable, "-m", "tests.targets.cuda.gpu.sanitize", *sys.argv[1:], f"--folder={folder}"]
    run_workers(len(names), given.jobs, command, lambda name, how: print(f"not compiled: {name}: {how}", flush=True))
    found = ((name, folder / f"{number:03}") for number, name in enumerate(names))
    return [SanitizedFile(name, own) for name, own in found if (own / "complete").exists()]


def compile_share(given: argparse.Namespace) -> None:
    """One of the processes that `compile_all` starts."""
    target, names, (take, note) = evidence.target_of(given.emulated), choose_names(given.only), join(given)
    while (number := take()) is not None:
        note(names[number])
        signal.alarm(COMPILING)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                _save(names[number], given.folder / f"{number:03}", target)
            except Exception as error:
                print(f"not compiled: {names[number]}: {type(error).__name__}: {str(error)[:300]}", flush=True)
        signal.alarm(0)


def choose_names(only: Sequence[str]) -> list[str]:
    return [name for name in list_names() if not only or any(part in name for part in only)]


def list_names() -> list[str]:
    from tests.targets.cuda.gpu.cases import DTYPES, cases

    cased = [f"case {name}, {str(dtype)[6:]}" for name in cases() for dtype in DTYPES]
    return [*cased, *(f"sample {name}" for name in SAMPLED)]


def _save(name: str, folder: Path, target: Any) -> None:
    import torch
    from torch.utils import _pytree as pytree

    import ingot
    from tests.targets.cuda.gpu.saved_calls import save_calls

    folder.mkdir(parents=True)
    for number, (model, args) in enumerate(_programs(name)):
        with torch.no_grad():
            compiled = ingot.compile(model, copy.deepcopy(args), target=target, isa="sm_90a", cache=False)
            results = [x.cpu() for x in pytree.tree_leaves(compiled(*copy.deepcopy(args)))]
        if not compiled.draws:
            save_calls(compiled, folder / f"{number}.ingot", [(args, results)])
        code = _machine_code(compiled)
        compiled.close()
        (folder / f"{number}.sass").write_text(code)
    (folder / "complete").touch()


def _machine_code(compiled: Any) -> str:
    """As nvdisasm writes it; nothing where that is not installed."""
    from ingot.targets.cuda.build.image_parts import unpack_parts
    from ingot.viewer.assembly.disassemblers import find_nvdisasm, run_tool

    tool = find_nvdisasm()
    if tool is None:
        return ""
    parts = unpack_parts(compiled.libraries["sm_90a"])
    return "".join(run_tool([tool, "-c"], part, "model.cubin") for part in parts)


def _programs(name: str) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    import torch

    kind, _, rest = name.partition(" ")
    if kind == "case":
        from tests.targets.cuda.gpu.cases import cases

        case, _, dtype = rest.rpartition(", ")
        torch.manual_seed(0)
        model, args = cases()[case]
        yield model.eval().to(getattr(torch, dtype)), tuple(arg.to(getattr(torch, dtype)) for arg in args)
        return
    from tests.support.operator_samples.samples import cases as draw_samples
    from tests.support.operator_samples.samples import fresh

    for sample in draw_samples([rest], [torch.float32], ("plain",), 2):
        yield sample.module, fresh(sample)


# ---------------------------------------------------------------------- the second step


def sanitize(file: SanitizedFile, tool: str, sanitizer: Sequence[str], seconds: float = PATIENCE) -> tuple[str, str]:
    """Runs a file under a tool: right, wrong (a finding, or other bits) or crashed, and what was said."""
    import ingot
    from tests.targets.cuda.gpu.saved_calls import WITHOUT_TORCH

    options = ["--tool", tool, "--error-exitcode", str(_EXIT), "--target-processes", "application-only"]
    command = [*sanitizer, *options, sys.executable, "-c", WITHOUT_TORCH, str(file.folder)]
    environment = {**os.environ, "PYTHONPATH": str(Path(ingot.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    environment |= {"NV_COMPUTE_SANITIZER_MAX_RACECHECK_HAZARDS": str(_MOST_HAZARDS)}
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=seconds)
    except subprocess.TimeoutExpired:
        return "crashed", f"took more than {seconds:.0f} s"
    said = done.stdout + done.stderr
    summaries = [int(count) for count in _SUMMARY.findall(said)]
    count, note = sum(summaries), ""
    if tool == "racecheck" and count:
        findings = sort_findings(said, _ordered_accesses(file.folder))
        if findings.is_cut_off and not findings.races:
            return "crashed", "there were more hazards than racecheck lists"
        count = len(findings.races)
        note = f"{findings.unordered} findings about what racecheck cannot order" if findings.unordered else ""
        said = "\n".join([*findings.races, said])
    if count or (done.returncode == _EXIT and not note):
        listed = "\n".join(line for line in said.splitlines() if line.startswith("====="))[:3000]
        return "wrong", f"{count} findings\n{listed}"
    if done.returncode not in (0, _EXIT) or not summaries:
        return "crashed", f"ended with {done.returncode}\n{said[-2000:]}"
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    differs = json.loads(lines[-1]) if lines else {"": "it printed no result"}
    if differs:
        return "wrong", f"other bits: {differs}"
    return "right", note


def _ordered_accesses(folder: Path) -> dict[str, set[int]]:
    """Where the kernels of a folder's models do what racecheck cannot order."""
    found: dict[str, set[int]] = {}
    for file in folder.glob("*.sass"):
        for kernel, offsets in find_ordered(file.read_text()).items():
            found.setdefault(kernel, set()).update(offsets)
    return found


def run_tool(
    tool: str, files: Sequence[SanitizedFile], journal: Journal, sanitizer: Sequence[str], jobs: int, end: float
) -> bool:
    """Runs all files under a tool until the time is over, and prints a line that counts. Whether nothing was found."""
    known = {name for name, row in journal.rows().items() if row["outcome"] != "crashed"}
    began, lock = time.time(), threading.Lock()

    def check(file: SanitizedFile) -> None:
        name = f"{tool} {file.name}"
        if name in known or time.time() > end:
            return
        outcome, reason = sanitize(file, tool, sanitizer, min(PATIENCE, max(20.0, end - time.time())))
        with lock:
            journal.write(name, outcome, reason)
            if outcome != "right":
                print(f"{name}: {outcome}: {reason[:1200]}\n", flush=True)

    with ThreadPoolExecutor(jobs) as pool:
        # What takes minutes under racecheck comes last: kernels without tensor cores, of models made for them.
        list(pool.map(check, sorted(files, key=lambda file: file.name.endswith(", float32"))))
    rows = journal.rows()
    judged = [rows[f"{tool} {file.name}"] for file in files if f"{tool} {file.name}" in rows]
    count = Counter(row["outcome"] for row in judged)
    print(
        f"{tool}: {len(judged)} of {len(files)} files: {count['right']} without a finding and with the same bits,"
        f" {count['wrong']} wrong, {count['crashed']} crashed or cut off; {time.time() - began:.0f} s"
        f"{_describe_unordered(judged)}",
        flush=True,
    )
    return count["wrong"] == count["crashed"] == 0


def _describe_unordered(rows: Sequence[dict[str, Any]]) -> str:
    count = sum(row["outcome"] == "right" and bool(row["reason"]) for row in rows)
    return f"; in {count} of them racecheck reports what it cannot order (race_findings.py)" if count else ""


def find_sanitizer(named: str | None) -> list[str]:
    """The command of the sanitizer; ends this process where there is none."""
    candidates = [named] if named else ["compute-sanitizer", "/usr/local/cuda/bin/compute-sanitizer"]
    for candidate in candidates:
        if found := shutil.which(candidate):
            return [found]
    sys.exit(f"there is no compute-sanitizer: {', '.join(candidates)}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", nargs="+", choices=TOOLS, default=list(TOOLS))
    parser.add_argument("--only", nargs="*", default=[], help="files whose name contains one of these")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin no file after this time")
    parser.add_argument("--jobs", type=int, default=max(1, len(os.sched_getaffinity(0)) - 2))
    parser.add_argument("--journal", type=Path, default=evidence.ROOT / "build" / "evidence" / "cuda")
    parser.add_argument("--commit", default="", help="the commit of this tree, which rows name")
    parser.add_argument("--sanitizer", help="the program, where it is not on the PATH")
    parser.add_argument("--emulated", action="store_true", help="to try this script: an emulated driver, on the CPU")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    add_options(parser)
    given = parser.parse_args()
    if given.tokens is not None:
        evidence.import_torch()
        compile_share(given)
        return 0
    sanitizer = find_sanitizer(given.sanitizer)
    end = time.time() + 60 * given.minutes
    os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    evidence.import_torch()
    if given.emulated:
        evidence.use_emulated_driver()
    journal = Journal(given.journal / "sanitizer.jsonl", evidence.stamp_of(given.commit, emulated=given.emulated))
    with tempfile.TemporaryDirectory(prefix="ingot-sanitize-") as folder:
        began = time.time()
        files = compile_all(Path(folder), given)
        print(f"{len(files)} compiled and called without a tool in {time.time() - began:.0f} s", flush=True)
        clean = [run_tool(tool, files, journal, sanitizer, given.jobs, end) for tool in given.tool]
    return 0 if files and all(clean) else 1


if __name__ == "__main__":
    sys.exit(main())
