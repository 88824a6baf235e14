"""Processes that share a list of work: forked from one that has imported all and has never touched a GPU.

    run_workers(units, jobs, work)            work(take, note) in each process

`take()` gives the number of the next unit, or None; `note(name)` says what is being worked on. Of a process that dies
or hangs the name is told to `lost`, and another process takes its place. A fork costs milliseconds, where a new process
would import torch for seconds.
"""

from __future__ import annotations

import mmap
import os
import signal
import struct
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass

# What a process ends with if another one is to go on: its context on the GPU is lost.
AGAIN = 3
_NAME = 512
_TOKEN = struct.Struct("<i")

Take = Callable[[], int | None]
Note = Callable[[str], None]


@dataclass(frozen=True)
class Worker:
    pid: int
    noted: mmap.mmap


def run_workers(count: int, jobs: int, work: Callable[[Take, Note], None], lost: Callable[[str, str], None]) -> None:
    """Runs `work` in so many processes until all units are taken. `lost` is told what a process that died was working
    on, and how it ended."""
    reader, writer = os.pipe()
    os.write(writer, b"".join(_TOKEN.pack(number) for number in range(count)))
    os.close(writer)

    def take() -> int | None:
        token = os.read(reader, _TOKEN.size)
        return _TOKEN.unpack(token)[0] if len(token) == _TOKEN.size else None

    unexplained = 0
    running = {worker.pid: worker for worker in (_fork(work, take) for _ in range(min(jobs, count)))}
    while running:
        pid, status = os.wait()
        worker = running.pop(pid, None)
        if worker is None:
            continue
        code = os.waitstatus_to_exitcode(status)
        name = worker.noted[:_NAME].rstrip(b"\0").decode(errors="replace")
        worker.noted.close()
        if code == 0:
            continue
        if code != AGAIN:
            how = "took too long" if code == -signal.SIGALRM else f"the process ended with {code}"
            lost(name, how)
            unexplained += not name
        if unexplained > 2 * jobs:  # every process dies before it does anything
            continue
        again = _fork(work, take)
        running[again.pid] = again
    os.close(reader)


def _fork(work: Callable[[Take, Note], None], take: Take) -> Worker:
    noted = mmap.mmap(-1, _NAME)

    def note(name: str) -> None:
        noted[:_NAME] = name.encode()[:_NAME].ljust(_NAME, b"\0")

    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, of which this process has none that matter
        pid = os.fork()
    if pid:
        return Worker(pid, noted)
    code = 1
    try:
        work(take, note)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
