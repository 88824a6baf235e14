"""How models scale with threads: Ingot compared with eager, torch.compile and ONNX Runtime, float32, batch 1.

    python benchmarks/threads.py                           # 1, 4, 8 and 16 threads; writes results/threads.json
    python benchmarks/threads.py bert --threads 1 2        # some models; writes nothing unless --json names a file
    python benchmarks/threads.py --without torch.compile   # without the peer that takes most of the time to prepare

First every model is prepared in a process of its own, several at a time: it is exported to ONNX, and torch.compile
fills a cache with the code for each number of threads. Then one process per model measures, alone on the machine: at
each number of threads the peers take turns, and medians are compared. Efficiency is the time of one thread over that of
n, divided by n. torchvision's models are left out where it is not installed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parent.parent)  # not this folder: onnx.py would hide the package of its name

import torch

import ingot
from benchmarks.models import SUBJECTS, Subject
from benchmarks.support import report
from benchmarks.support.onnx_peers import onnx_runtime
from ingot.benchmarking import time_interleaved
from ingot_runtime.cpu_features import cores

COUNTS = (1, 4, 8, 16)
PEERS = ("eager", "torch.compile", "ONNX Runtime")
# Of benchmarks/models.py: with torchvision's four these are twelve.
CHOSEN = (
    "convnext-t",
    "vit-b16",
    "bert-base",
    "gpt2",
    "t5-small",
    "llama-200m",
    "llama-200m-decode",
    "whisper-tiny-encoder",
)
VISION = ("resnet50", "mobilenet_v3_large", "efficientnet_b0", "swin_t")
PAUSE, TURN = 0.1, 0.05  # seconds before a turn, and of counted calls in it at least
LONGEST = 600  # seconds for one step of one model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="parts of names; all of them where none is given")
    parser.add_argument("--threads", type=int, nargs="+", default=list(COUNTS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--without", nargs="*", default=[], choices=PEERS, help="peers to leave out")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin no model after this time")
    parser.add_argument("--jobs", type=int, default=max(1, cores() // 4), help="models prepared at a time")
    parser.add_argument("--commit", help="the commit of this tree, where git does not know it")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--step", choices=["prepare", "measure"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    subjects = [s for s in list_subjects() if not given.models or any(part in s.name for part in given.models)]
    if given.step:
        (subject,) = (s for s in subjects if s.name == given.models[0])
        step = {"prepare": prepare, "measure": measure}[given.step]
        print(json.dumps(step(subject, given.folder, given.threads, given.rounds, given.without)))
        return
    end = time.monotonic() + 60 * given.minutes
    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="ingot-threads-") as folder:
        with ThreadPoolExecutor(given.jobs) as pool:
            done = pool.map(lambda subject: run_step("prepare", subject, Path(folder), given), subjects)
            for subject, found in zip(subjects, done, strict=True):
                print(f"{subject.name}: prepared {found}", flush=True)
        for subject in subjects:
            if time.monotonic() > end:
                print(f"{subject.name}: no time was left", flush=True)
                continue
            rows[subject.name] = run_step("measure", subject, Path(folder), given)
            print(f"{subject.name}: {json.dumps(rows[subject.name])}", flush=True)
    summary = summarize(rows, given.threads)
    print(format_table(rows, given.threads))
    print(*(f"{name}: {value}" for name, value in summary.items()), sep="\n")
    if given.json or not given.models:
        state = report.commit(given.commit)
        print(report.write("threads", {**state, "rows": rows, "summary": summary}, given.json))


def list_subjects() -> list[Subject]:
    """The models: of transformers, and of torchvision where it is installed."""
    try:
        from torchvision import models
    except ImportError:
        models = None
    known = {subject.name: subject for subject in SUBJECTS}
    found = [] if models is None else [
        Subject(name, lambda name=name: getattr(models, name)(), lambda n: (torch.randn(n, 3, 224, 224),))
        for name in VISION
    ]  # fmt: skip
    return [*found, *(known[name] for name in CHOSEN)]


def run_step(step: str, subject: Subject, folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Runs a step of a model in a process of its own. Returns what it prints, or why it failed."""
    own = folder / subject.name
    own.mkdir(exist_ok=True)
    command = [sys.executable, __file__, subject.name, "--step", step, "--folder", str(own), "--rounds"]
    command += [str(given.rounds), "--threads", *map(str, given.threads), "--without", *given.without]
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(own / "inductor")}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LONGEST)
    except subprocess.TimeoutExpired:
        return {"failed": f"took longer than {LONGEST} s"}
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines() or [""]
    found: dict[str, Any] = json.loads(lines[-1]) if done.returncode == 0 else {"failed": lines[-1][:300]}
    return found


def build(subject: Subject) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    return subject.build().eval(), subject.inputs(1)


def prepare(
    subject: Subject, folder: Path, threads: Sequence[int], rounds: int, without: Sequence[str]
) -> dict[str, Any]:
    """Exports the model, and fills torch.compile's cache. Returns what failed."""
    model, inputs = build(subject)
    failed: dict[str, Any] = {}
    with torch.no_grad():
        if "ONNX Runtime" not in without:
            try:
                torch.onnx.export(model, inputs, folder / "model.onnx", dynamo=True, verbose=False)
            except Exception as failure:
                failed["ONNX Runtime"] = f"{type(failure).__name__}: {failure}"[:200]
        if "torch.compile" not in without:
            for count in threads:
                compile_inductor(model, inputs, count)()
    return failed


def compile_inductor(
    model: torch.nn.Module, inputs: tuple[torch.Tensor, ...], threads: int
) -> Callable[[], torch.Tensor]:
    """A call of torch.compile's code for so many threads. The number is an option, so that caches know it."""
    torch._dynamo.reset()
    torch.set_num_threads(threads)
    compiled = torch.compile(model, options={"cpp.threads": threads})
    return lambda: compiled(*inputs)


def measure(
    subject: Subject, folder: Path, threads: Sequence[int], rounds: int, without: Sequence[str]
) -> dict[str, Any]:
    """Milliseconds of every peer by the number of threads, the time to compile, and Ingot's error."""
    model, inputs = build(subject)
    found: dict[str, Any] = {"ms": {}, "failed": {}}
    with torch.no_grad():
        reference = model(*inputs)
        for count in threads:
            torch.set_num_threads(count)
            makers: dict[str, Callable[[], Callable[[], torch.Tensor]]] = {
                "eager": lambda: lambda: model(*inputs),
                "torch.compile": lambda count=count: compile_inductor(model, inputs, count),
                "ONNX Runtime": lambda count=count: onnx_runtime(folder / "model.onnx", inputs, count),
                "Ingot": lambda count=count: compile_ingot(model, inputs, count),
            }
            calls: dict[str, Callable[[], torch.Tensor]] = {}
            for name, make in makers.items():
                if name in without:
                    continue
                try:
                    calls[name] = make()
                    calls[name]()
                except Exception as failure:
                    calls.pop(name, None)
                    found["failed"][name] = f"{type(failure).__name__}: {failure}"[:200]
            if "Ingot" in calls:
                found["error"] = float((calls["Ingot"]() - reference).abs().max() / reference.abs().max())
            times = time_interleaved(calls, rounds, pause=PAUSE, least=TURN)
            found["ms"][str(count)] = {name: statistics.median(one) * 1e3 for name, one in times.items()}
    return found


def compile_ingot(model: torch.nn.Module, inputs: tuple[torch.Tensor, ...], threads: int) -> Callable[[], torch.Tensor]:
    compiled = ingot.compile(model, inputs, threads=threads)
    return lambda: compiled(*inputs)


# ---------------------------------------------------------------------- the report


def find_ratio(row: dict[str, Any], threads: int) -> float | None:
    """The time of the best peer over Ingot's; None where one of them is missing."""
    times = dict(row.get("ms", {}).get(str(threads), {}))
    ours = times.pop("Ingot", None)
    return min(times.values()) / ours if ours and times else None


def find_efficiency(row: dict[str, Any], threads: int) -> float | None:
    """Ingot's time with one thread over n times that with n."""
    one, many = (row.get("ms", {}).get(str(count), {}).get("Ingot") for count in (1, threads))
    return one / (threads * many) if one and many else None


def summarize(rows: dict[str, Any], threads: Sequence[int]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for count in threads:
        ratios = [ratio for row in rows.values() if (ratio := find_ratio(row, count)) is not None]
        found[f"{count} threads: speed against the best peer, geomean"] = report.geomean(ratios)
        found[f"{count} threads: speed against the best peer, least"] = min(ratios, default=None)
    slower = [
        f"{name} at {more}"
        for name, row in rows.items()
        for fewer, more in itertools.pairwise(threads)
        if (before := row.get("ms", {}).get(str(fewer), {}).get("Ingot"))
        and (after := row["ms"].get(str(more), {}).get("Ingot"))
        and after > before
    ]
    return found | {"slower with more threads": slower}


def format_table(rows: dict[str, Any], threads: Sequence[int]) -> str:
    headers = ["model", "threads", "Ingot", *PEERS, "best peer / Ingot", "efficiency"]
    lines = []
    for name, row in rows.items():
        for count in threads:
            times = row.get("ms", {}).get(str(count), {})
            numbers = (find_ratio(row, count), find_efficiency(row, count))
            lines.append(
                [
                    name,
                    str(count),
                    *(f"{times[peer]:.2f}" if peer in times else "–" for peer in ("Ingot", *PEERS)),
                    *(f"{number:.2f}" if number is not None else "–" for number in numbers),
                ]
            )
    return report.table(headers, lines)


if __name__ == "__main__":
    main()
