"""What every benchmark ends with: a plain text table, and a JSON file that says on what and on which commit."""

from __future__ import annotations

import json
import platform
import resource
import subprocess
import sys
from collections.abc import Mapping, Sequence
from math import exp, log
from pathlib import Path
from typing import Any

import torch

from ingot_runtime.cpu_features import cores

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"


def machine() -> dict[str, Any]:
    """The processor and the software that the numbers depend on; nothing that identifies the machine's owner."""
    return {
        "cpu": _cpu_field("model name") or platform.processor() or platform.machine(),
        "mhz": float(_cpu_field("cpu MHz") or 0) or None,
        "cores": cores(),
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }


def commit(given: str | None = None) -> dict[str, Any]:
    """The commit the tree stands at and whether the tree differs from it, results aside; None outside a repository.
    One that is `given`, where a commit's tree was sent to a machine without its repository, is taken as it is."""
    if given:
        return {"commit": given, "dirty": False}
    head = _git("rev-parse", "HEAD")
    changes = _git("status", "--porcelain", "--", ".", ":(exclude)benchmarks/results")
    return {"commit": head, "dirty": None if changes is None else bool(changes)}


def peak_memory() -> int:
    """The most bytes of memory that this process had at a time, without those of the process that started it."""
    status = Path("/proc/self/status")
    if status.exists():
        (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def geomean(values: Sequence[float]) -> float | None:
    """The geometric mean, or None where there is nothing to take it of."""
    return exp(sum(map(log, values)) / len(values)) if values else None


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The rows under their headers, as text: the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        first, *rest = (
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return "  ".join([first, *rest]).rstrip()

    return "\n".join([line(headers), line(["-" * width for width in widths]), *map(line, rows)])


def write(name: str, measured: Mapping[str, Any], path: Path | None = None) -> Path:
    """Writes `measured`, with machine and commit, to `path` or `results/<name>.json`, whole or not at all."""
    path = path or RESULTS / f"{name}.json"
    document = {"benchmark": name, "machine": machine(), **commit(), **measured}
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(path.name + ".tmp")
    draft.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    draft.replace(path)
    return path


def _cpu_field(name: str) -> str | None:
    """What Linux says of the first processor under this name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), None)


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
