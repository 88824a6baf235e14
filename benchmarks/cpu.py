"""Ingot compared with eager, torch.compile, ONNX Runtime and OpenVINO: the same models, float32, two threads each.

    python benchmarks/cpu.py                       # every model at batch 1 and 8; writes results/cpu.json
    python benchmarks/cpu.py bert resnet --batch 1 # some of them; writes nothing unless --json names a file
    python benchmarks/cpu.py --cold                # cold compile times alone
    python benchmarks/cpu.py --precision bfloat16 --batch 1 --without eager torch.compile "ONNX Runtime" OpenVINO

One process, one model at a time. Peers are prepared first, then take turns, the order changing from round to round;
medians are compared. A turn begins with a pause, for the threads of some peers spin on a core for a while after their
work is done, and with a call that is not counted, which finds the caches full of another peer's weights. The limit is
the model's multiplications over the peak measured here by a plain loop of multiply-adds, or its weights over the
bandwidth measured here, whichever is longer; the best of all measurements, one before each model. Peers get their
models through torch.onnx.export, whose time does not count for them. Compile times are cold, from the model in memory
to its first result: each in a process of its own with empty caches, torch.compile and Ingot in turn.
"""

from __future__ import annotations

import argparse
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
from dataclasses import dataclass, field
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)  # not this folder: onnx.py would hide the package of its name

import torch
from torch import nn

import ingot
from benchmarks.models import SUBJECTS, THREADS, Subject, gflop
from benchmarks.support import report
from benchmarks.support.onnx_peers import onnx_runtime, openvino
from ingot.artifacts.roofline import Roofline, measure_roofline
from ingot.benchmarking import time_interleaved

PAUSE = 0.3  # seconds before each turn
TURN = 0.06  # seconds of counted calls that a turn has at least
NARROW = "Ingot, bfloat16"  # no peer of the others: it computes something coarser
PEERS = ("eager", "torch.compile", "ONNX Runtime", "OpenVINO", "Ingot", NARROW)


@dataclass(slots=True)
class Row:
    """What was measured of one model at one batch: milliseconds by peer, and what else there is to say."""

    name: str
    batch: int
    times: dict[str, float] = field(default_factory=dict)
    compile_seconds: dict[str, float] = field(default_factory=dict)
    compile_peak: dict[str, int] = field(default_factory=dict)  # bytes of the process that compiled and ran it once
    failures: dict[str, str] = field(default_factory=dict)
    error: float = 0.0
    narrow_error: float = 0.0  # of bfloat16, relative, by norms
    gflop: float = 0.0
    weight_bytes: int = 0
    limit: float = 0.0
    file_bytes: int = 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="parts of names; all of them where none is given")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--without", nargs="*", default=[], help="peers to leave out")
    parser.add_argument("--precision", choices=["bfloat16"], help="Ingot once more, multiplying weights in it")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--cold", action="store_true", help="compile times alone")
    parser.add_argument("--child", nargs=2, metavar=("MODEL", "PEER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(THREADS)
    if options.child:
        print(json.dumps(_compile_once(*options.child)))
        return
    limits = Roofline(0, 0)
    rows = []
    for subject in SUBJECTS:
        if options.models and not any(part in subject.name for part in options.models):
            continue
        found = cold(subject, options.without)
        for batch in options.batch:
            if options.cold:
                row = Row(subject.name, batch)
            else:
                limits = _better(limits)
                row = measure(subject, batch, options.rounds, set(options.without), options.precision)
            row.compile_seconds = {peer: one["seconds"] for peer, one in found.items()}
            row.compile_peak = {peer: one["peak"] for peer, one in found.items()}
            rows.append(row)
            print(_line(row), flush=True)
            gc.collect()
    for row in rows:
        row.limit = limits.seconds(row.gflop * 1e9, row.weight_bytes) * 1e3
    print(f"\npeak {limits.flops / 1e9:.0f} GFLOP/s, {limits.bytes / 1e9:.1f} GB/s, {THREADS} threads\n")
    print(report.table(*_table(rows)))
    summary = _summary(rows)
    for name, value in summary.items():
        print(f"{name}: {value:.2f}" if value is not None else f"{name}: nothing to compare")
    if options.json or not options.models:
        found = {
            "peak_gflops": limits.flops / 1e9,
            "bandwidth_gbytes": limits.bytes / 1e9,
            "summary": summary,
            "rows": [{name: getattr(row, name) for name in Row.__slots__} for row in rows],
        }
        print(report.write("cpu", found, options.json))


def _better(limits: Roofline) -> Roofline:
    """The best of what was measured so far and of what is now: a machine that others use has slow moments."""
    measure_roofline.cache_clear()
    now = measure_roofline(THREADS)
    return Roofline(max(limits.flops, now.flops), max(limits.bytes, now.bytes))


def measure(subject: Subject, batch: int, rounds: int, without: set[str], precision: str | None = None) -> Row:
    torch.manual_seed(0)
    model, inputs = subject.build().eval(), subject.inputs(batch)
    row = Row(subject.name, batch)
    with torch.no_grad():
        row.gflop = gflop(model, inputs)
        row.weight_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
        calls = prepared(model, inputs, row, without if precision else without | {NARROW})
        reference = model(*inputs)
        result = calls["Ingot"]() if "Ingot" in calls else reference
        row.error = float((result - reference).abs().max() / reference.abs().max())
        if NARROW in calls:
            row.narrow_error = float((calls[NARROW]() - reference).norm() / reference.norm())
        times = time_interleaved(calls, rounds, pause=PAUSE, least=TURN)
    row.times = {name: statistics.median(found) * 1e3 for name, found in times.items()}
    return row


def prepared(
    model: nn.Module, inputs: tuple[torch.Tensor, ...], row: Row, without: set[str]
) -> dict[str, Callable[[], torch.Tensor]]:
    """A call for every peer that can run the model; what cannot says why in the row."""
    makers = {
        "eager": lambda: lambda: model(*inputs),
        "torch.compile": lambda: _torch_compiled(model, inputs),
        "Ingot": lambda: _ingot(model, inputs, row),
        NARROW: lambda: _ingot_narrow(model, inputs),
    }
    calls: dict[str, Callable[[], torch.Tensor]] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        if not {"ONNX Runtime", "OpenVINO"} <= without:
            try:
                torch.onnx.export(model, inputs, path, dynamo=True, verbose=False)
                makers["ONNX Runtime"] = lambda: onnx_runtime(path, inputs)
                makers["OpenVINO"] = lambda: openvino(path, inputs)
            except Exception as failure:
                row.failures["ONNX Runtime"] = row.failures["OpenVINO"] = f"export: {failure}"[:200]
        for name in PEERS:
            if name in without or name not in makers:
                continue
            try:
                calls[name] = makers[name]()
                calls[name]()
            except Exception as failure:
                calls.pop(name, None)
                row.failures[name] = f"{type(failure).__name__}: {failure}"[:200]
    return calls


def cold(subject: Subject, without: Sequence[str]) -> dict[str, dict[str, float]]:
    """Seconds from the model in memory to its first result, and the peak of memory, in a process for each peer."""
    found: dict[str, dict[str, float]] = {}
    for peer in ("torch.compile", "Ingot"):
        if peer in without:
            continue
        with tempfile.TemporaryDirectory() as folder:
            environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": folder}
            command = [sys.executable, __file__, "--child", subject.name, peer]
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode:
            print(f"    {subject.name}, {peer}: {done.stderr.strip().splitlines()[-1][:200]}", flush=True)
        else:
            found[peer] = json.loads(done.stdout.splitlines()[-1])
    return found


def _compile_once(name: str, peer: str) -> dict[str, float]:
    subject = next(subject for subject in SUBJECTS if subject.name == name)
    torch.manual_seed(0)
    model, inputs = subject.build().eval(), subject.inputs(1)
    with torch.no_grad():
        begin = time.perf_counter()
        if peer == "Ingot":
            ingot.compile(model, inputs, threads=THREADS, cache=False)(*inputs)
        else:
            torch.compile(model)(*inputs)
        seconds = time.perf_counter() - begin
    return {"seconds": seconds, "peak": report.peak_memory()}


def _torch_compiled(model: nn.Module, inputs: tuple[torch.Tensor, ...]) -> Callable[[], torch.Tensor]:
    torch._dynamo.reset()
    compiled = torch.compile(model)
    return lambda: compiled(*inputs)


def _ingot(model: nn.Module, inputs: tuple[torch.Tensor, ...], row: Row) -> Callable[[], torch.Tensor]:
    compiled = ingot.compile(model, inputs, threads=THREADS, cache=False)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.ingot"
        compiled.save(path)
        row.file_bytes = path.stat().st_size
    return lambda: compiled(*inputs)


def _ingot_narrow(model: nn.Module, inputs: tuple[torch.Tensor, ...]) -> Callable[[], torch.Tensor]:
    compiled = ingot.compile(model, inputs, threads=THREADS, cache=False, precision="bfloat16")
    return lambda: compiled(*inputs)


# ---------------------------------------------------------------------- the report


def _best_peer(row: Row) -> float | None:
    others = [row.times[name] for name in ("torch.compile", "ONNX Runtime", "OpenVINO", "eager") if name in row.times]
    return min(others, default=None)


def _summary(rows: list[Row]) -> dict[str, float | None]:
    def ratio(other: Callable[[Row], float | None]) -> list[float]:
        return [t / row.times["Ingot"] for row in rows if "Ingot" in row.times and (t := other(row))]

    against_best = ratio(_best_peer)
    colds = [
        row.compile_seconds["torch.compile"] / row.compile_seconds["Ingot"]
        for row in rows
        if len(row.compile_seconds) == 2
    ]
    return {
        "speed against the best peer, geomean": report.geomean(against_best),
        "speed against the best peer, least": min(against_best, default=None),
        "speed against torch.compile, geomean": report.geomean(ratio(lambda row: row.times.get("torch.compile"))),
        "speed against ONNX Runtime, geomean": report.geomean(ratio(lambda row: row.times.get("ONNX Runtime"))),
        "speed against OpenVINO, geomean": report.geomean(ratio(lambda row: row.times.get("OpenVINO"))),
        "cold compile against torch.compile, geomean": report.geomean(colds),
        "cold compile against torch.compile, least": min(colds, default=None),
        "speed of bfloat16 against float32, geomean": report.geomean(
            [row.times["Ingot"] / row.times[NARROW] for row in rows if {"Ingot", NARROW} <= row.times.keys()]
        ),
        "share of the limit, geomean": report.geomean([r.limit / r.times["Ingot"] for r in rows if "Ingot" in r.times]),
    }  # fmt: skip


def _line(row: Row) -> str:
    times = "  ".join(f"{name} {row.times[name]:.2f}" for name in PEERS if name in row.times)
    failed = "".join(f"\n    {name} failed: {why}" for name, why in row.failures.items())
    narrow = f", of bfloat16 {row.narrow_error:.1e}" if row.narrow_error else ""
    return f"{row.name} batch {row.batch}: {times} ms, error {row.error:.1e}{narrow}{failed}"


def _table(rows: list[Row]) -> tuple[list[str], list[list[str]]]:
    shown = [name for name in PEERS if name != NARROW or any(NARROW in row.times for row in rows)]
    headers = ["model", "batch", *shown, "limit", "best peer / Ingot", "compile s", "torch.compile s", "file MB"]
    lines = []
    for row in rows:
        best = _best_peer(row)
        ours = row.times.get("Ingot")
        lines.append(
            [
                row.name,
                str(row.batch),
                *(f"{row.times[name]:.1f}" if name in row.times else "–" for name in shown),
                f"{row.limit:.1f}",
                f"{best / ours:.2f}" if best and ours else "–",
                f"{row.compile_seconds.get('Ingot', float('nan')):.1f}",
                f"{row.compile_seconds.get('torch.compile', float('nan')):.1f}",
                f"{row.file_bytes / 1e6:.0f}",
            ]
        )
    return headers, lines


if __name__ == "__main__":
    main()
