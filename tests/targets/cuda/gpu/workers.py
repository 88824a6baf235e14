"""Processes that share a list of work.

    run_workers(units, jobs, command, lost)       starts `command` with the options of `add_options` for each process
    take, note = join(given)                      in such a process

`take()` gives the number of the next unit, or None; `note(name)` says what is being worked on. When a process dies or
hangs, `lost` is called with the name, and another one takes its place. Processes are new ones, not forks: torch asks
the GPU's driver for devices when parts of it are imported, and the driver does not work in a fork of such a process.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

# What a process ends with if another one is to go on: its context on the GPU is lost.
AGAIN = 3
# Bytes of memory that must be free for temporary files to lie there.
LEAST_MEMORY = 8 << 30
_TOKEN = struct.Struct("<i")

Take = Callable[[], int | None]
Note = Callable[[str], None]


@dataclass(frozen=True)
class Worker:
    process: subprocess.Popen[bytes]
    noted: Path


def add_options(parser: argparse.ArgumentParser) -> None:
    """What a process of `run_workers` is started with."""
    parser.add_argument("--tokens", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--noted", type=Path, help=argparse.SUPPRESS)


def join(given: argparse.Namespace) -> tuple[Take, Note]:
    """The two functions of a process that `run_workers` started."""

    def take() -> int | None:
        token = os.read(given.tokens, _TOKEN.size)
        return _TOKEN.unpack(token)[0] if len(token) == _TOKEN.size else None

    def note(name: str) -> None:
        given.noted.write_text(name, encoding="utf-8")

    return take, note


def run_workers(count: int, jobs: int, command: Sequence[str], lost: Callable[[str, str], None]) -> None:
    """Starts so many processes, and others for those that die, until all units are taken. For each that died, `lost` is
    called with what it was working on, and how it ended."""
    reader, writer = os.pipe()
    os.write(writer, b"".join(_TOKEN.pack(number) for number in range(count)))
    os.close(writer)
    unexplained = 0
    with tempfile.TemporaryDirectory() as folder:
        noted = [Path(folder, str(number)) for number in range(min(jobs, count))]
        running = [_start(command, reader, one) for one in noted]
        while running:
            time.sleep(0.05)
            for worker in [one for one in running if one.process.poll() is not None]:
                running.remove(worker)
                code = worker.process.returncode
                if code == 0:
                    continue
                if code != AGAIN:
                    name = worker.noted.read_text(encoding="utf-8")
                    how = "took too long" if code == -signal.SIGALRM else f"the process ended with {code}"
                    lost(name, how)
                    unexplained += not name
                if unexplained <= 2 * jobs:  # else every process dies before it does anything
                    running.append(_start(command, reader, worker.noted))
    os.close(reader)


def _start(command: Sequence[str], reader: int, noted: Path) -> Worker:
    noted.write_text("", encoding="utf-8")
    options = [f"--tokens={reader}", f"--noted={noted}"]
    return Worker(subprocess.Popen([*command, *options], pass_fds=(reader,)), noted)


def use_memory_for_files() -> None:
    """Temporary files lie in memory where there is such a folder: thousands of small ones are written, each synced."""
    folder = Path("/dev/shm")
    if folder.is_dir() and os.access(folder, os.W_OK) and shutil.disk_usage(folder).free > LEAST_MEMORY:
        os.environ["TMPDIR"] = str(folder)
        tempfile.tempdir = str(folder)
