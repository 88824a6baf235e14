"""Sweeps on the GPU: shares of processes, which begin again if they die, and the journals that they write."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.targets.cuda.gpu.saved_calls import repeat_without_torch

# What a process ends with if another one is to go on behind what its journal has.
AGAIN = 3
# Files that one process without torch runs.
BATCH = 20

Row = dict[str, Any]


def run_shares(module: str, results: Path, jobs: int, minutes: float, arguments: Sequence[str]) -> list[Path]:
    """Runs `python -m MODULE JOURNAL --share K --jobs N --end TIME …` for every share. Returns the journals."""
    end = time.time() + 60 * minutes
    journals = [results.with_suffix(f".{number}.jsonl") for number in range(jobs)]

    def work(number: int) -> None:
        share = [f"--share={number}", f"--jobs={jobs}", f"--end={end}"]
        command = [sys.executable, "-m", module, str(journals[number]), *share, *arguments]
        while time.time() < end and subprocess.run(command, check=False).returncode != 0:
            pass

    workers = [threading.Thread(target=work, args=(number,)) for number in range(jobs)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return journals


class Journal:
    """Rows as they are judged; the last one of a program counts. Files of those that passed run, a batch at a time."""

    def __init__(self, path: Path) -> None:
        self._out = path.open("a", encoding="utf-8", buffering=1)
        self._saved: dict[str, Row] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="ingot-gpu-")

    def begin(self, row: Row) -> Path:
        """Where the program that is judged now may leave a file. It has crashed unless another row of it follows."""
        self._write(row, "crashed", "the process ended")
        return Path(self._folder.name) / f"{len(self._saved)}.ingot"

    def end(self, row: Row, file: Path, outcome: str, reason: str) -> None:
        self._write(row, outcome, reason)
        if file.exists():
            self._saved[file.stem] = row
        if len(self._saved) == BATCH:
            self.run_files()

    def run_files(self) -> None:
        """Runs the files in a process without torch, and begins a new batch."""
        if self._saved:
            differs = repeat_without_torch(Path(self._folder.name))
            for stem, row in self._saved.items():
                problem = differs.get(stem) or differs.get("")
                if problem:
                    self._write(row, "wrong", f"without torch: {problem}")
                else:
                    self._write({**row, "from_file": True}, "passed", "")
        self._folder.cleanup()
        self._folder = tempfile.TemporaryDirectory(prefix="ingot-gpu-")
        self._saved = {}

    def _write(self, row: Row, outcome: str, reason: str) -> None:
        self._out.write(json.dumps({**row, "outcome": outcome, "reason": reason}) + "\n")
