"""ONNX files of Ingot and of torch.onnx.export: how long the export takes, and how fast ONNX Runtime runs the result.

    python benchmarks/onnx.py                  # every model at full size; writes results/onnx.json
    python benchmarks/onnx.py bert --rounds 5  # some of them; writes nothing unless --json names a file

Export: from the model in memory to the file on disk, imports included, each in a process of its own, in turn, both
from bytecode as an installed package is. `torch.onnx.export` verifies nothing by default, so neither side's time has
that in it; what Ingot's own verifying takes (onnx's checker, and ONNX Runtime against torch in float32 and float64) is
reported with it. No weight is all zeros or all ones, as those of a model that was never trained: an exporter may leave
such ones out, and the time would be that of another model. Run: both files in one process with two threads each,
taking turns, the order changing from round to round. A turn begins with a pause, for threads of a session spin on a
core for a while after their work is done, and with a call that is not counted. What the machine gives drifts by more
than the files differ, so it is the two turns of one round that are compared: "quicker" is the median over rounds.
Sessions are opened anew a few times, for where their weights lie is worth some percent too.
"""

from __future__ import annotations

import argparse
import compileall
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)  # this file would hide the package of its name

import torch

import ingot
from benchmarks.models import SUBJECTS, THREADS, Subject
from benchmarks.support import report
from ingot.benchmarking import time_interleaved

GOAL = 4.0  # times faster than torch.onnx.export, as a geometric mean
PAUSE = 0.3  # seconds before each turn
TURN = 0.12  # seconds of counted calls that a turn has at least
OPENINGS = 4  # times that both sessions are opened
SIDES = ("torch", "ingot")


@dataclass(slots=True)
class Row:
    """One model: export seconds of each side, run milliseconds of each file, nodes, and how far the two results are.

    `ratios` are torch's milliseconds over Ingot's, round by round.
    """

    name: str
    export_seconds: dict[str, list[float]] = field(default_factory=dict)
    verify_seconds: list[float] = field(default_factory=list)
    run_ms: dict[str, float] = field(default_factory=dict)
    ratios: list[float] = field(default_factory=list)
    nodes: dict[str, int] = field(default_factory=dict)
    difference: float | None = None
    failures: dict[str, str] = field(default_factory=dict)

    def export(self, side: str) -> float | None:
        found = self.export_seconds.get(side)
        return statistics.median(found) if found else None

    @property
    def verified(self) -> float | None:
        """Ingot's export with all of its checks."""
        ours = self.export("ingot")
        return ours + statistics.median(self.verify_seconds) if ours and self.verify_seconds else None

    @property
    def faster(self) -> float | None:
        theirs, ours = self.export("torch"), self.export("ingot")
        return theirs / ours if theirs and ours else None

    @property
    def quicker(self) -> float | None:
        return statistics.median(self.ratios) if self.ratios else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="parts of names; all of them where none is given")
    parser.add_argument("--rounds", type=int, default=20, help="turns of each file")
    parser.add_argument("--exports", type=int, default=3, help="exports of each side")
    parser.add_argument("--opset", type=int, help="of Ingot's file; its default if not given")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--add", action="store_true", help="to the rows that the file has of other models")
    parser.add_argument("--child", nargs=3, metavar=("MODEL", "SIDE", "FILE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(THREADS)
    if options.child:
        print(json.dumps(_export_once(*options.child, options.opset)))
        return
    compileall.compile_dir(Path(ingot.__file__).parents[1], quiet=2)
    rows = _known(options.json or report.RESULTS / "onnx.json") if options.add else []
    for subject in SUBJECTS:
        if options.models and not any(part in subject.name for part in options.models):
            continue
        made = measure(subject, options.rounds, options.exports, options.opset)
        rows = [*(row for row in rows if row.name != subject.name), made]
        print(_line(made), flush=True)
        if (
            options.json or options.add or not options.models
        ):  # after each, so that a run that is ended early leaves what it found
            found = {"summary": _summary(rows), "rows": [{n: getattr(row, n) for n in Row.__slots__} for row in rows]}
            written = report.write("onnx", found, options.json)
        gc.collect()
    print()
    print(report.table(*_table(rows)))
    for name, value in _summary(rows).items():
        print(f"{name}: {value:.2f}" if value is not None else f"{name}: nothing to compare")
    if options.json or options.add or not options.models:
        print(written)


def _known(file: Path) -> list[Row]:
    """The rows of an earlier run; each has both sides of its own run."""
    return [Row(**row) for row in json.loads(file.read_text())["rows"]] if file.exists() else []


def _summary(rows: list[Row]) -> dict[str, float | None]:
    quicker = [r.quicker for r in rows if r.quicker]
    return {
        "export, times faster than torch.onnx.export, geomean": report.geomean([r.faster for r in rows if r.faster]),
        "export and verifying, times faster than torch.onnx.export without, geomean": report.geomean(
            [theirs / r.verified for r in rows if r.verified and (theirs := r.export("torch"))]
        ),
        "run, times faster than torch's file, geomean": report.geomean(quicker),
        "run, times faster than torch's file, least": min(quicker, default=None),
    }


def measure(subject: Subject, rounds: int, exports: int, opset: int | None) -> Row:
    row = Row(subject.name)
    with tempfile.TemporaryDirectory() as folder:
        files = {side: Path(folder) / side / "model.onnx" for side in SIDES}
        for file in files.values():
            file.parent.mkdir()
        for turn in range(exports):
            for side in SIDES if turn % 2 else reversed(SIDES):
                _export(row, subject.name, side, files[side], opset)
        _run(row, subject, files, rounds)
    return row


def _export(row: Row, name: str, side: str, file: Path, opset: int | None) -> None:
    command = [sys.executable, __file__, "--child", name, side, str(file)]
    command += [] if opset is None else ["--opset", str(opset)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        row.failures[side] = done.stderr.strip().splitlines()[-1][:200]
        return
    found = json.loads(done.stdout.splitlines()[-1])
    row.export_seconds.setdefault(side, []).append(found["seconds"])
    if side == "ingot":
        row.verify_seconds.append(found["verifying"])
    row.nodes[side] = found["nodes"]


def _export_once(name: str, side: str, file: str, opset: int | None) -> dict[str, float]:
    import onnx

    model, inputs = _built(next(subject for subject in SUBJECTS if subject.name == name))
    verifying = 0.0

    @contextmanager
    def watch(stage: str) -> Iterator[None]:
        nonlocal verifying
        start = time.perf_counter()
        yield
        verifying += time.perf_counter() - start if stage in ("check", "run") else 0.0

    with torch.no_grad():
        begin = time.perf_counter()
        if side == "ingot":
            ingot.export_onnx(ingot.capture(model, inputs), file, opset=opset, on_stage=watch)
        else:
            torch.onnx.export(model, inputs, file, dynamo=True, verbose=False)
        seconds = time.perf_counter() - begin - verifying
    nodes = len(onnx.load(file, load_external_data=False).graph.node)
    return {"seconds": seconds, "verifying": verifying, "nodes": nodes}


def _built(subject: Subject) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """The model, with no weight that is one number throughout, and its inputs; the same in every process."""
    torch.manual_seed(0)
    model = subject.build().eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.numel() > 1 and bool((weight == weight.flatten()[0]).all()):
                weight += 0.02 * torch.randn_like(weight)
    return model, subject.inputs(1)


def _run(row: Row, subject: Subject, files: dict[str, Path], rounds: int) -> None:
    _, inputs = _built(subject)
    times: dict[str, list[float]] = {side: [] for side in SIDES}
    for opening in range(OPENINGS):
        calls = {}
        for side in SIDES[:: 1 if opening % 2 else -1]:
            try:
                calls[side] = _session(files[side], inputs)
            except Exception as failure:
                row.failures.setdefault(side, f"{type(failure).__name__}: {failure}"[:200])
        results = {side: call() for side, call in calls.items()}
        if len(results) == 2:
            scale = abs(results["torch"]).max()
            row.difference = float(abs(results["ingot"] - results["torch"]).max() / scale)
        for turn in range(-(-rounds // OPENINGS)):
            order = list(calls)[:: 1 if turn % 2 else -1]
            found = time_interleaved({side: calls[side] for side in order}, 1, pause=PAUSE, least=TURN)
            if len(found) == 2:
                row.ratios.append(statistics.median(found["torch"]) / statistics.median(found["ingot"]))
            for side, taken in found.items():
                times[side] += taken
    row.run_ms = {side: statistics.median(found) * 1e3 for side, found in times.items() if found}


def _session(file: Path, inputs: tuple[torch.Tensor, ...]) -> Callable[[], object]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    feed = {given.name: x.numpy() for given, x in zip(session.get_inputs(), inputs, strict=True)}
    return lambda: session.run(None, feed)[0]


def _line(row: Row) -> str:
    export = "  ".join(f"{side} {row.export(side):.2f} s" for side in SIDES if row.export(side) is not None)
    run = "  ".join(f"{side} {row.run_ms[side]:.2f} ms" for side in SIDES if side in row.run_ms)
    failed = "".join(f"\n    {side} failed: {why}" for side, why in row.failures.items())
    return f"{row.name}: export {export}; run {run}; difference {row.difference}{failed}"


def _table(rows: list[Row]) -> tuple[list[str], list[list[str]]]:
    headers = [
        "model",
        "torch export s",
        "Ingot export s",
        "faster",
        "verified s",
        "torch run ms",
        "Ingot run ms",
        "quicker",
        "nodes",
    ]

    def shown(value: float | None, digits: int = 2) -> str:
        return "–" if value is None else f"{value:.{digits}f}"

    lines = []
    for row in rows:
        lines.append(
            [
                row.name,
                *(shown(row.export(side)) for side in SIDES),
                shown(row.faster, 1),
                shown(row.verified),
                *(shown(row.run_ms.get(side)) for side in SIDES),
                shown(row.quicker),
                f"{row.nodes.get('torch', 0)} / {row.nodes.get('ingot', 0)}",
            ]
        )
    return headers, lines


if __name__ == "__main__":
    main()
