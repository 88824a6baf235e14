"""Ingot's int8 beside its float32, and beside ONNX Runtime and OpenVINO on the same QDQ model: two threads for all.

    python benchmarks/quantize.py                  # every model at batch 1; writes results/quantize.json
    python benchmarks/quantize.py bert resnet      # some of them; writes nothing unless --json names a file

One program is quantized by `ingot.quantize.int8_static` and calibrated on the benchmark's own input. Ingot compiles it;
the peers run what `ingot.export_onnx` writes of it, so that all compute the same. As in benchmarks/cpu.py they take
turns, the order changing from round to round, and medians are compared. Weights are random, but batch norms have the
statistics of random images, so that activations fill their ranges as those of a trained model do. `off` is how far
Ingot's result is from the program's own in torch, by norms: a sum that falls between two integers may become either,
and in a deep network of random weights the next layers make that grow; `shaken` is how far the program's own result
moves when its input changes by a millionth. The whole run has two things more: one token of a Llama with weights of 4
bits beside 32 (benchmarks/decoding.py, without its peers), and how long preparing and converting ResNet-50 takes,
beside torchao (benchmarks/preparing.py).
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parent.parent)  # not this folder: onnx.py would hide the package of its name

import torch
from torch import nn

import ingot
from benchmarks import decoding, preparing
from benchmarks.models import SUBJECTS, THREADS, Subject
from benchmarks.support import report
from benchmarks.support.onnx_peers import onnx_runtime, openvino
from ingot.benchmarking import time_interleaved

PAUSE = 0.3  # seconds before each turn
TURN = 0.06  # seconds of counted calls that a turn has at least
MODELS = ("resnet-50", "mobilenet-v2", "bert-base")
FLOAT, INT8 = "Ingot float32", "Ingot int8"
PEERS = ("ONNX Runtime int8", "OpenVINO int8")


@dataclass(slots=True)
class Row:
    """What was measured of one model: milliseconds by peer, seconds of quantizing it, and what else there is to say."""

    name: str
    times: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    off: float = 0.0
    shaken: float = 0.0
    off_float: float = 0.0  # of the quantized program from the float model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="parts of names; all of them where none is given")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(THREADS)
    rows = []
    for subject in SUBJECTS:
        chosen = not options.models or any(part in subject.name for part in options.models)
        if subject.name in MODELS and chosen:
            rows.append(measure(subject, options.rounds))
            print(_line(rows[-1]), flush=True)
            gc.collect()
    print("\n" + report.table(*_table(rows)))
    summary = _summary(rows)
    found: dict[str, Any] = {
        "summary": summary,
        "rows": [{name: getattr(row, name) for name in Row.__slots__} for row in rows],
    }
    if not options.models:
        found["decoding"], found["preparing"] = _decoding(options.rounds), preparing.compared(False, preparing.ROUNDS)
        summary["llama, int4 against float32"] = found["decoding"]["summary"]["int4 against float32"]
        summary["resnet-50, prepare and convert against torchao's"] = found["preparing"]["times_faster"]
    for name, value in summary.items():
        print(f"{name}: {value:.2f}")
    if options.json or not options.models:
        print(report.write("quantize", found, options.json))


def _decoding(rounds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        decoding.prepare(Path(folder), batch=1, peers=False)
        return decoding.measure(Path(folder), rounds)


def measure(subject: Subject, rounds: int) -> Row:
    torch.manual_seed(0)
    model, inputs, row = _settled(subject), subject.inputs(1), Row(subject.name)
    with torch.no_grad():
        program = quantized(model, inputs, row)
        calls = prepared(model, program, inputs, row)
        exact, expected, ours = model(*inputs), program(*inputs), calls[INT8]()
        row.off = float((ours - expected).norm() / expected.norm())
        if inputs[0].is_floating_point():
            moved = program(*(x * (1 + 1e-6) for x in inputs))
            row.shaken = float((moved - expected).norm() / expected.norm())
        row.off_float = float((expected - exact).norm() / exact.norm())
        times = time_interleaved(calls, rounds, pause=PAUSE, least=TURN)
    row.times = {name: statistics.median(found) * 1e3 for name, found in times.items()}
    return row


def _settled(subject: Subject) -> nn.Module:
    """The model with statistics in its batch norms."""
    model = subject.build()
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    if norms:
        for norm in norms:
            norm.momentum = None  # the mean over all batches, of which there is one
            norm.reset_running_stats()
        with torch.no_grad():
            model.train()(*subject.inputs(8))
    return model.eval()


def quantized(model: nn.Module, inputs: tuple[torch.Tensor, ...], row: Row) -> ingot.Program:
    program = ingot.capture(model, inputs)
    begin = time.perf_counter()
    prepared = ingot.quantize.prepare(program, ingot.quantize.int8_static())
    row.seconds["prepare"] = time.perf_counter() - begin
    begin = time.perf_counter()
    ingot.quantize.calibrate(prepared, [inputs])
    row.seconds["calibrate"] = time.perf_counter() - begin
    begin = time.perf_counter()
    made = ingot.quantize.convert(prepared)
    row.seconds["convert"] = time.perf_counter() - begin
    return made


def prepared(
    model: nn.Module, program: ingot.Program, inputs: tuple[torch.Tensor, ...], row: Row
) -> dict[str, Callable[[], torch.Tensor]]:
    """A call for every peer that can run the model; what cannot says why in the row."""
    plain = ingot.compile(model, inputs, threads=THREADS)
    begin = time.perf_counter()
    whole = ingot.compile(program, threads=THREADS, cache=False)
    row.seconds["compile"] = time.perf_counter() - begin
    calls: dict[str, Callable[[], torch.Tensor]] = {FLOAT: lambda: plain(*inputs), INT8: lambda: whole(*inputs)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        ingot.export_onnx(program, path, verify=False)
        for name, make in zip(PEERS, (onnx_runtime, openvino), strict=True):
            try:
                calls[name] = make(path, inputs)
                calls[name]()
            except Exception as failure:
                calls.pop(name, None)
                row.failures[name] = f"{type(failure).__name__}: {failure}"[:200]
    return calls


# ---------------------------------------------------------------------- the report


def _best_peer(row: Row) -> float | None:
    return min((row.times[name] for name in PEERS if name in row.times), default=None)


def _summary(rows: list[Row]) -> dict[str, float]:
    found: dict[str, float] = {}
    for row in rows:
        ours, best = row.times[INT8], _best_peer(row)
        found[f"{row.name}, int8 against float32"] = row.times[FLOAT] / ours
        if best is not None:
            found[f"{row.name}, int8 against the better peer"] = best / ours
    return found


def _line(row: Row) -> str:
    times = "  ".join(f"{name} {ms:.2f}" for name, ms in row.times.items())
    seconds = ", ".join(f"{name} {value:.1f}" for name, value in row.seconds.items())
    failed = "".join(f"\n    {name} failed: {why}" for name, why in row.failures.items())
    off = f"off {row.off:.1e}, shaken {row.shaken:.1e}, from float {row.off_float:.1e}"
    return f"{row.name}: {times} ms; {off}; seconds: {seconds}{failed}"


def _table(rows: list[Row]) -> tuple[list[str], list[list[str]]]:
    names = (FLOAT, INT8, *PEERS)
    lines = []
    for row in rows:
        best, ours = _best_peer(row), row.times[INT8]
        times = [f"{row.times[name]:.2f}" if name in row.times else "–" for name in names]
        ratios = [f"{row.times[FLOAT] / ours:.2f}", f"{best / ours:.2f}" if best is not None else "–"]
        lines.append([row.name, *times, *ratios])
    return ["model", *names, "float32 / int8", "better peer / int8"], lines


if __name__ == "__main__":
    main()
