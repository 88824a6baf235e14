"""From the start of a process to the first result, and its peak of memory: a compiled file without torch, beside
importing torch and loading the same weights, which is where torch has not computed anything yet. The file is run from
Python and from C (start.c); Python with numpy and nothing else stands next to them: nothing that starts with these can
be faster or smaller.

The runtime is imported as pip would have installed it, with its bytecode, as torch and numpy are.

    python benchmarks/start.py     # BERT-base and ResNet-50; writes results/start.json
"""

from __future__ import annotations

import compileall
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parent.parent)  # not this folder: onnx.py would hide the package of its name

import numpy as np
import torch
from safetensors.torch import save_file

import ingot
import ingot_runtime
from benchmarks.models import SUBJECTS, THREADS
from benchmarks.support import report

ROUNDS = 7
MODELS = ("bert-base", "resnet-50")
# The peak of this process alone; getrusage counts that of the process it was forked from.
_PEAK = 'print([int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM")][0])'
WITHOUT_TORCH = f"""
import sys, numpy, ingot_runtime
model = ingot_runtime.load(sys.argv[1], threads={THREADS})
result = model(*map(numpy.load, sys.argv[2:]))
assert "torch" not in sys.modules
{_PEAK}
"""
WITH_TORCH = f"""
import sys, torch
from safetensors.torch import load_file
weights = load_file(sys.argv[1])
{_PEAK}
"""
WITH_NUMPY = f"""
import numpy
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
            compiled, state, site = (Path(folder) / name for name in ("m.ingot", "m.safetensors", "site"))
            with torch.no_grad():
                ingot.compile(model, inputs, threads=THREADS).save(compiled)
            save_file({n: t.contiguous().clone() for n, t in model.state_dict().items()}, state)
            given = [Path(folder) / f"{number}.npy" for number in range(len(inputs))]
            for file, x in zip(given, inputs, strict=True):
                np.save(file, x.numpy())
            install_runtime(site)
            commands = {
                "Ingot": [sys.executable, "-c", WITHOUT_TORCH, compiled, *given],
                "Ingot from C": _from_c(compiled, [x.numpy() for x in inputs], Path(folder)),
                "torch": [sys.executable, "-c", WITH_TORCH, state],
                "numpy": [sys.executable, "-c", WITH_NUMPY],
            }
            rows.append({"model": name, "weights": weights, **_measured(commands, site)})
            _check_c(compiled, given, Path(folder))
    headers = ["model", "torch s", "Ingot s", "C s", "numpy s", "times", "weights MB", "peak MB", "C MB", "numpy's"]
    headers += ["over the weights", "from C"]
    print(report.table(headers, [_cells(row) for row in rows]))
    print(report.write("start", {"rows": rows}))


def install_runtime(site: Path) -> None:
    """Puts the runtime into a folder as pip would, with its bytecode."""
    package = Path(ingot_runtime.__file__).parent
    shutil.copytree(package, site / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    compileall.compile_dir(site, quiet=1)


def _from_c(compiled: Path, inputs: list[Any], folder: Path) -> list[Any]:
    """The command that runs the file from C, as examples/from_c does."""
    subprocess.run([sys.executable, "-m", "ingot_runtime", "extract", compiled, folder / "c"], check=True)
    host = folder / "start"
    source = Path(__file__).with_name("start.c")
    subprocess.run(["cc", "-O1", f"-I{folder / 'c'}", source, "-o", host, "-ldl"], check=True)
    with ingot_runtime.load(compiled, threads=1) as model:
        spec = model.spec
    command: list[Any] = [host, folder / "c" / "model.so", folder / "c" / "weights.bin", THREADS]
    for number, (asked, x) in enumerate(zip(spec.inputs, inputs, strict=True)):
        (folder / f"{number}.bin").write_bytes(x.tobytes())
        command.append(f"in:{asked.dtype.code}:{folder / f'{number}.bin'}:{'x'.join(map(str, x.shape))}")
    for number, output in enumerate(spec.outputs):
        command.append(f"out:{output.dtype.code}:{folder / f'out{number}.bin'}:{output.rank}")
    return command


def _check_c(compiled: Path, given: list[Path], folder: Path) -> None:
    """What C computed is what Python computes, to the last bit."""
    with ingot_runtime.load(compiled, threads=THREADS) as model:
        results = model.run([np.load(file) for file in given])
    for number, result in enumerate(results):
        assert (folder / f"out{number}.bin").read_bytes() == np.ascontiguousarray(result).tobytes()


def _measured(commands: dict[str, list[Any]], site: Path) -> dict[str, Any]:
    seconds: dict[str, list[float]] = {who: [] for who in commands}
    peaks = dict.fromkeys(commands, 0)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])}
    for turn in range(ROUNDS + 1):
        for who, command in commands.items():
            begin = time.perf_counter()
            done = subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True, check=True)
            if turn:  # the first round brings the files into the system's cache
                seconds[who].append(time.perf_counter() - begin)
            peaks[who] = max(peaks[who], int(done.stdout))
    return {"seconds": seconds, "peak": peaks}


def _cells(row: dict[str, Any]) -> list[str]:
    ours, from_c, theirs, numpys = (
        statistics.median(row["seconds"][who]) for who in ("Ingot", "Ingot from C", "torch", "numpy")
    )
    weights, peak, host, least = (
        size / 1e6 for size in (row["weights"], *(row["peak"][who] for who in ("Ingot", "Ingot from C", "numpy")))
    )
    return [row["model"], f"{theirs:.2f}", f"{ours:.2f}", f"{from_c:.2f}", f"{numpys:.2f}", f"{theirs / ours:.1f}",
            f"{weights:.0f}", f"{peak:.0f}", f"{host:.0f}", f"{least:.0f}", f"{peak / weights - 1:+.0%}",
            f"{host / weights - 1:+.0%}"]  # fmt: skip


if __name__ == "__main__":
    main()
