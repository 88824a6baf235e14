"""Divides a sweep on the GPU among processes: each has a share and a journal, and begins again if it dies."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

# What a process ends with if another one is to go on behind what its journal has.
AGAIN = 3


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
