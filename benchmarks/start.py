"""From the start of a process to the first result, and its peak of memory: a compiled file without torch, beside
importing torch and loading the same weights, which is where torch has not computed anything yet.

    python benchmarks/start.py     # BERT-base and ResNet-50; writes results/start.json
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch
from safetensors.torch import save_file

import ingot
from benchmarks import report
from benchmarks.models import SUBJECTS, THREADS

ROUNDS = 7
MODELS = ("bert-base", "resnet-50")
# The peak of this process alone; getrusage counts that of the process it was forked from.
_PEAK = 'print([int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM")][0])'
WITHOUT_TORCH = f"""
import sys, numpy, ingot_runtime
model = ingot_runtime.load(sys.argv[1], threads={THREADS})
result = model(*numpy.load(sys.argv[2]).values())
assert "torch" not in sys.modules
{_PEAK}
"""
WITH_TORCH = f"""
import sys, torch
from safetensors.torch import load_file
weights = load_file(sys.argv[1])
{_PEAK}
"""


def main() -> None:
    rows = []
    for name in MODELS:
        subject = next(subject for subject in SUBJECTS if subject.name == name)
        torch.manual_seed(0)
        model, inputs = subject.build().eval(), subject.inputs(1)
        weights = sum(t.numel() * t.element_size() for t in model.state_dict().values())
        with tempfile.TemporaryDirectory() as folder:
            compiled, state, given = (Path(folder) / file for file in ("m.ingot", "m.safetensors", "inputs.npz"))
            with torch.no_grad():
                ingot.compile(model, inputs, threads=THREADS).save(compiled)
            save_file({n: t.contiguous().clone() for n, t in model.state_dict().items()}, state)
            np.savez(given, *(x.numpy() for x in inputs))
            rows.append(_measured(name, weights, (compiled, given), (state,)))
    headers = ["model", "torch s", "Ingot s", "times", "weights MB", "Ingot's peak MB", "over the weights"]
    print(report.table(headers, [_cells(row) for row in rows]))
    print(report.write("start", {"rows": rows}))


def _measured(name: str, weights: int, ours: tuple[Path, ...], theirs: tuple[Path, ...]) -> dict[str, Any]:
    seconds: dict[str, list[float]] = {"Ingot": [], "torch": []}
    peaks: dict[str, int] = {}
    for turn in range(ROUNDS + 1):
        for who, code, files in (("Ingot", WITHOUT_TORCH, ours), ("torch", WITH_TORCH, theirs)):
            begin = time.perf_counter()
            done = subprocess.run(
                [sys.executable, "-c", code, *map(str, files)],
                env=os.environ,
                capture_output=True,
                text=True,
                check=True,
            )
            if turn:  # the first round brings the files into the system's cache
                seconds[who].append(time.perf_counter() - begin)
            peaks[who] = max(peaks.get(who, 0), int(done.stdout))
    return {"model": name, "weights": weights, "seconds": seconds, "peak": peaks}


def _cells(row: dict[str, Any]) -> list[str]:
    ours, theirs = (statistics.median(row["seconds"][who]) for who in ("Ingot", "torch"))
    weights, peak = row["weights"], row["peak"]["Ingot"]
    return [row["model"], f"{theirs:.2f}", f"{ours:.2f}", f"{theirs / ours:.1f}", f"{weights / 1e6:.0f}",
            f"{peak / 1e6:.0f}", f"{peak / weights - 1:+.0%}"]  # fmt: skip


if __name__ == "__main__":
    main()
