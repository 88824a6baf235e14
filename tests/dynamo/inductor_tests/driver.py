"""Runs tests in worker processes. What ends a worker, or takes too long, is a result of the test that did it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.dynamo.inductor_tests.outcome import (
    BASELINES,
    CRASHED,
    FAILED,
    NOT_COMPARABLE,
    PASSED,
    SKIPPED,
    TIMED_OUT,
    WRONG,
    Mode,
    Outcome,
    Reply,
    is_wrong,
)

ROOT = Path(__file__).resolve().parents[3]
# A process that ran this many tests is replaced: what torch.compile keeps grows.
_TESTS_OF_A_WORKER = 150
# How long a worker may take to load a file, and to end a test after its time.
_LOADING, _ENDING = 300, 30


class Worker:
    """A process that runs the tests of one file."""

    def __init__(self, path: Path) -> None:
        reading, writing = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.dynamo.inductor_tests.worker", str(path), str(writing)],
            cwd=ROOT, pass_fds=(writing,), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True, text=True,
            env={**os.environ, "PYTORCH_PRINT_REPRO_ON_FAILURE": "0"},
        )  # fmt: skip
        os.close(writing)
        self._answers = reading
        self._read = b""
        self.has_run = 0
        self.tests: list[str] = self._answer(_LOADING)

    def ask(self, test: str, mode: Mode, seconds: int) -> Reply:
        """What becomes of a test. Raises EOFError where the process ends, TimeoutError where it does not answer."""
        assert self._process.stdin is not None
        self.has_run += 1
        try:
            self._process.stdin.write(json.dumps({"test": test, "mode": mode, "seconds": seconds}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise EOFError from error
        found = self._answer(seconds + _ENDING)
        return Reply(**found | {"graphs": tuple(found["graphs"]), "excess": tuple(found["excess"])})

    def _answer(self, seconds: float) -> Any:
        while b"\n" not in self._read:
            if not select.select([self._answers], [], [], seconds)[0]:
                raise TimeoutError
            block = os.read(self._answers, 1 << 16)
            if not block:
                raise EOFError
            self._read += block
        line, _, self._read = self._read.partition(b"\n")
        return json.loads(line)

    @property
    def why_it_ended(self) -> str:
        try:
            code = self._process.wait(5)
        except subprocess.TimeoutExpired:
            return "it closed its pipe"
        return signal.Signals(-code).name if code < 0 else f"exit status {code}"

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._answers)


class Driver:
    """The tests of one file, in as many workers as it takes."""

    def __init__(self, path: Path, seconds: int) -> None:
        self._path = path
        self._seconds = seconds
        self._worker: Worker | None = None

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        self._replace()

    def _replace(self) -> None:
        if self._worker is not None:
            self._worker.end()
        self._worker = None

    def _start(self) -> Worker:
        if self._worker is not None and self._worker.has_run >= _TESTS_OF_A_WORKER:
            self._replace()
        self._worker = self._worker or Worker(self._path)
        return self._worker

    def tests(self) -> list[str]:
        return self._start().tests

    def run(self, tests: Sequence[str]) -> Iterator[Outcome]:
        for test in tests:
            yield self._judge(test, self._ask(test, "native"))

    def _ask(self, test: str, mode: Mode) -> Reply:
        worker = self._start()
        try:
            reply = worker.ask(test, mode, self._seconds)
        except EOFError:
            why = worker.why_it_ended
            self._replace()
            return Reply(CRASHED, why)
        except TimeoutError:
            self._replace()
            return Reply(TIMED_OUT, f"it took more than {self._seconds} s and did not stop")
        if reply.outcome == TIMED_OUT:  # it may hold locks, or have left anything half done
            self._replace()
        return reply

    def _is_rounding(self, test: str) -> bool:
        """Whether no result of a graph of a test is farther from float64 than eager's."""
        reply = self._ask(test, "measured")
        return bool(reply.graphs) and not reply.excess and reply.outcome in (PASSED, FAILED)

    def _judge(self, test: str, reply: Reply) -> Outcome:
        outcome, baseline = reply.outcome, ""
        is_about_values = outcome == FAILED and is_wrong(reply.said)
        if outcome not in (PASSED, SKIPPED):
            baseline = next((mode for mode in BASELINES if self._ask(test, mode).outcome != PASSED), "")
        if is_about_values and not baseline and self._is_rounding(test):
            baseline = "float64"
        if baseline:
            outcome = NOT_COMPARABLE
        elif is_about_values:
            outcome = WRONG
        name = f"{self._path.parent.name}/{self._path.name}"
        return Outcome(name, test, outcome, reply.said, baseline, reply.graphs, reply.seconds)
