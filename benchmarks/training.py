"""A training step of eight models: Ingot, both ways, compared with eager and torch.compile; float32.

    python benchmarks/training.py                    # every model at batch 1 and 16; writes results/training.json
    python benchmarks/training.py gpt2 --batch 1     # some of them; writes nothing unless --json names a file
    python benchmarks/training.py --cold             # cold compile times and peaks of memory alone
    python benchmarks/training.py --threads 16

A step is forward, backward, and a step of AdamW. Compiled peers compile the optimizer's step as well. Each peer has a
model of its own with the same weights. All are prepared first, then take turns, the order changing from round to round;
medians are compared, and the gradients of the first step. Cold compile is the time from the model in memory to the end
of the first step, at the largest batch, in a process of its own with empty caches; its peak of memory is that after
three steps.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parent.parent)  # not this folder: onnx.py would hide the package of its name

import torch
from torch import nn

import ingot
from benchmarks.support import report
from benchmarks.support.training_models import SUBJECTS, Batch, TrainingSubject
from ingot.benchmarking import time_interleaved

OURS = ("Ingot", "training=True")  # torch.compile(backend="ingot"), ingot.compile(training=True)
PEERS = ("eager", "torch.compile", *OURS)
PAUSE, TURN = 0.3, 0.06  # seconds before a turn, and of counted steps in it at least
STEPS = 3  # before the peak of memory is read

Step = Callable[[], object]


@dataclass(slots=True)
class Row:
    """What was measured of one model at one batch: milliseconds by peer, and what else there is to say."""

    name: str
    batch: int
    times: dict[str, float] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)  # of the first gradients against eager's, relative, by norms
    compile_seconds: dict[str, float] = field(default_factory=dict)
    compile_peak: dict[str, int] = field(default_factory=dict)  # bytes
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def speed(self) -> float | None:
        """The time of the better peer over that of torch.compile(backend="ingot")."""
        others = [self.times[name] for name in ("eager", "torch.compile") if name in self.times]
        return min(others) / self.times["Ingot"] if others and "Ingot" in self.times else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="parts of names; all of them where none is given")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--without", nargs="*", default=[], choices=PEERS, help="peers to leave out")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--cold", action="store_true", help="compile times and peaks of memory alone")
    parser.add_argument("--child", nargs=2, metavar=("MODEL", "PEER"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(given.threads)
    if given.child:
        print(json.dumps(_compile_once(*given.child, max(given.batch))))
        return
    rows = []
    for subject in SUBJECTS:
        if given.models and not any(part in subject.name for part in given.models):
            continue
        found = cold(subject, given.without, max(given.batch), given.threads)
        for batch in given.batch:
            row = Row(subject.name, batch) if given.cold else measure(subject, batch, given.rounds, given.without)
            row.compile_seconds = {peer: one["seconds"] for peer, one in found.items()}
            row.compile_peak = {peer: int(one["peak"]) for peer, one in found.items()}
            rows.append(row)
            print(_line(row), flush=True)
            gc.collect()
    print("\n" + report.table(*_table(rows)))
    summary = summarize(rows)
    for name, value in summary.items():
        print(f"{name}: {value:.2f}" if value is not None else f"{name}: nothing to compare")
    if given.json or not (given.models or given.cold):
        result = {"summary": summary, "rows": [asdict(row) for row in rows]}
        print(report.write("training", result, given.json))


def measure(subject: TrainingSubject, batch: int, rounds: int, without: Sequence[str]) -> Row:
    torch.manual_seed(0)
    model, inputs = subject.build().train(), subject.inputs(batch)
    row = Row(subject.name, batch)
    calls: dict[str, Step] = {}
    exact: list[torch.Tensor] = []
    for peer in PEERS:
        if peer in without and peer != "eager":
            continue
        own = copy.deepcopy(model)
        try:
            calls[peer] = prepare(peer, own, inputs)
            calls[peer]()
        except Exception as failure:
            calls.pop(peer, None)
            row.failures[peer] = f"{type(failure).__name__}: {failure}"[:200]
            continue
        gradients = [p.grad.detach().clone() for p in own.parameters() if p.grad is not None]
        exact = exact or gradients  # of eager, which is the first
        row.errors[peer] = _distance(gradients, exact)
    if "eager" in without:
        del calls["eager"]
    times = time_interleaved(calls, rounds, pause=PAUSE, least=TURN)
    row.times = {name: statistics.median(found) * 1e3 for name, found in times.items()}
    return row


def prepare(peer: str, model: nn.Module, inputs: Batch) -> Step:
    """A training step by a peer, which is compiled at its first call if not before."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    call: Any = model
    update: Any = optimizer.step
    if peer == "torch.compile":
        call, update = torch.compile(model), torch.compile(optimizer.step)
    elif peer in OURS:
        options = {"cache": False}
        update = torch.compile(optimizer.step, backend="ingot", options=options)
        if peer == "Ingot":
            call = torch.compile(model, backend="ingot", options=options)
        else:
            call = ingot.compile(model, inputs, training=True, threads=torch.get_num_threads(), cache=False)

    def step() -> object:
        optimizer.zero_grad()
        loss = call(*inputs)
        loss.backward()
        update()
        return loss

    return step


def cold(subject: TrainingSubject, without: Sequence[str], batch: int, threads: int) -> dict[str, dict[str, float]]:
    """Seconds from the model in memory to the end of the first step, and the peak of memory, by peer."""
    found: dict[str, dict[str, float]] = {}
    for peer in PEERS:
        if peer in without:
            continue
        with tempfile.TemporaryDirectory() as folder:
            environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": folder}
            command = [sys.executable, __file__, "--child", subject.name, peer]
            command += ["--batch", str(batch), "--threads", str(threads)]
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode:
            said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
            print(f"    {subject.name}, {peer}: {said[-1][:200]}", flush=True)
        else:
            found[peer] = json.loads(done.stdout.splitlines()[-1])
    return found


def _compile_once(name: str, peer: str, batch: int) -> dict[str, float]:
    subject = next(subject for subject in SUBJECTS if subject.name == name)
    torch.manual_seed(0)
    model, inputs = subject.build().train(), subject.inputs(batch)
    begin = time.perf_counter()
    step = prepare(peer, model, inputs)
    step()
    seconds = time.perf_counter() - begin
    for _ in range(STEPS - 1):
        step()
    return {"seconds": seconds, "peak": report.peak_memory()}


def _distance(found: Sequence[torch.Tensor], exact: Sequence[torch.Tensor]) -> float:
    difference = sum(float((a - b).square().sum()) for a, b in zip(found, exact, strict=True))
    return float((difference / sum(float(b.square().sum()) for b in exact)) ** 0.5)


# ---------------------------------------------------------------------- the report


def summarize(rows: Sequence[Row]) -> dict[str, float | None]:
    speeds = [row.speed for row in rows if row.speed is not None]
    compiled = [row for row in rows if {"torch.compile", "Ingot"} <= row.compile_seconds.keys()]
    quick = [row.compile_seconds["torch.compile"] / row.compile_seconds["Ingot"] for row in compiled]
    memory = [row.compile_peak["Ingot"] / row.compile_peak["torch.compile"] for row in compiled]
    return {
        "speed against the better peer, geomean": report.geomean(speeds),
        "speed against the better peer, least": min(speeds, default=None),
        "cold compile against torch.compile, geomean": report.geomean(quick),
        "cold compile against torch.compile, least": min(quick, default=None),
        "peak memory over torch.compile's, largest": max(memory, default=None),
    }


def _line(row: Row) -> str:
    times = "  ".join(f"{name} {row.times[name]:.2f}" for name in PEERS if name in row.times)
    errors = ", ".join(f"{row.errors[name]:.1e}" for name in PEERS[1:] if name in row.errors)
    failed = "".join(f"\n    {name} failed: {why}" for name, why in row.failures.items())
    return f"{row.name} batch {row.batch}: {times} ms, errors {errors}{failed}"


def _table(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    compiled = PEERS[1:]
    headers = ["model", "batch", *(f"{name} ms" for name in PEERS), "better peer / Ingot"]
    headers += [f"{name} compile s" for name in compiled] + [f"{name} MB" for name in PEERS]
    lines = []
    for row in rows:
        cells = [row.name, str(row.batch)]
        cells += [f"{row.times[name]:.1f}" if name in row.times else "–" for name in PEERS]
        cells.append(f"{row.speed:.2f}" if row.speed else "–")
        cells += [f"{row.compile_seconds[name]:.1f}" if name in row.compile_seconds else "–" for name in compiled]
        cells += [f"{row.compile_peak[name] / 1e6:.0f}" if name in row.compile_peak else "–" for name in PEERS]
        lines.append(cells)
    return headers, lines


if __name__ == "__main__":
    main()
