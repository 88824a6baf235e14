"""Processes and folders, for tests."""

from __future__ import annotations

import contextlib
import os
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def fork() -> int:
    """os.fork, where a test runner has threads: Python warns of them, and the children here use none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def in_child(work: Callable[[], object]) -> int:
    """Runs `work` in a forked process; its exit code, or the signal that ended it, negative."""
    pid = fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            with contextlib.suppress(OSError):
                traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def wait_for(happened: Callable[[], bool]) -> None:
    """Returns once it has happened; fails if it does not."""
    deadline = time.monotonic() + 20
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)
