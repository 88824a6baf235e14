"""What a GPU counts while each kernel runs: shares of its peaks, bytes of its memory, hits in its cache.

Nsight Compute reads the counters. It runs a compiled file's sample in a process of its own, and each kernel by itself.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ingot.errors import ViewError, format_error
from ingot.viewer.numbers.csv_numbers import read_csv
from ingot.viewer.numbers.number_files import NumberTable

if TYPE_CHECKING:
    from ingot.artifacts.compiled_model import CompiledModel

COUNTERS = {
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "multiprocessors, share of peak",
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": "memory and caches, share of peak",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "memory, share of peak",
    "dram__bytes_read.sum": "read from memory",
    "dram__bytes_write.sum": "written to memory",
    "lts__t_sector_hit_rate.pct": "hits in the L2 cache",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "occupancy",
    "launch__registers_per_thread": "registers per thread",
    "launch__waves_per_multiprocessor": "waves of blocks",
}
_TOOLS = ("ncu", "/usr/local/cuda/bin/ncu")
_CALL = "import sys, ingot_runtime; model = ingot_runtime.load(sys.argv[1]); model.run(model.example())"
# Seconds for all kernels: each runs about ten times, and its memory is put back in between.
_PATIENCE = 900


def count_model(compiled: CompiledModel) -> list[NumberTable]:
    """The counters of a model's kernels, on its example. Raises ViewError."""
    find_tool()
    with tempfile.TemporaryDirectory(prefix="ingot-view-") as folder:
        file = Path(folder, "model.ingot")
        compiled.save(file)
        return count_file(file)


def count_file(file: Path) -> list[NumberTable]:
    """The counters of the kernels of a compiled file that has a sample. Raises ViewError."""
    command = [
        find_tool(), "--csv", "--print-units", "base", "--target-processes", "application-only",
        "--kernel-name", r"regex:^k\d+$", "--metrics", ",".join(COUNTERS), sys.executable, "-c", _CALL, str(file),
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise _error(f"Nsight Compute took more than {_PATIENCE} s", "look at fewer layers of the model") from None
    start = done.stdout.find('"ID"')
    if start < 0:
        raise _explain(done.stdout + done.stderr)
    return [
        replace(table, title=COUNTERS.get(table.title, table.title))
        for table in read_csv(done.stdout[start:], "the counters of Nsight Compute")
    ]


def find_tool() -> str:
    """The path of Nsight Compute. Raises ViewError."""
    found = next((path for path in map(shutil.which, _TOOLS) if path is not None), None)
    if found is None:
        raise _error("Nsight Compute (ncu) is not installed", "install it: it is part of the CUDA toolkit")
    return found


def _explain(said: str) -> ViewError:
    """Why there is no table, by what was said instead."""
    if "ERR_NVGPUCTRPERM" in said:
        return _error(
            "this user may not read the GPU's counters",
            "have the administrator allow it: the driver's option NVreg_RestrictProfilingToAdminUsers=0",
        )
    if "No kernels were profiled" in said:
        return _error("the model ran no kernel on a GPU", 'compile it for target="cuda"')
    lines = [line for line in said.strip().splitlines() if line.strip()]
    return _error(f"Nsight Compute says: {lines[-1][:300] if lines else 'nothing'}", "run ncu by itself to see more")


def _error(why: str, fix: str) -> ViewError:
    return ViewError(format_error("The GPU's counters cannot be shown.", why=why, fix=fix))
