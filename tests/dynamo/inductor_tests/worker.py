"""One process that runs tests of a file: it is sent a line of JSON for each, and answers with one.

python -m tests.dynamo.inductor_tests.worker FILE ANSWERS     ANSWERS is the number of an open pipe
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import sys
import time
import unittest
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from tests.dynamo.inductor_tests.outcome import FAILED, PASSED, SKIPPED, TIMED_OUT, Mode, Reply, describe_graph
from tests.dynamo.inductor_tests.substitution import Substitute, in_place_of_inductor
from tests.support.pytorch_tests import load, tests_of

_MEMORY = 10 << 30
_LONGEST = 1500


class TestTimeout(BaseException):
    """A test took longer than allowed: not an exception that tests expect."""


def name_of(test: unittest.TestCase) -> str:
    return f"{type(test).__name__}.{test._testMethodName}"


def run(test: unittest.TestCase, mode: Mode, seconds: int, substitute: Substitute) -> Reply:
    is_late = False

    def stop(*_: Any) -> None:
        nonlocal is_late
        is_late = True
        raise TestTimeout

    torch._dynamo.reset()
    substitute.mode = mode
    substitute.reports.clear()
    substitute.excess.clear()
    result = unittest.TestResult()
    previous = signal.signal(signal.SIGALRM, stop)
    begun = time.monotonic()
    signal.alarm(seconds)
    with contextlib.suppress(TestTimeout):
        type(test)(test._testMethodName).run(result)
    signal.alarm(0)
    signal.signal(signal.SIGALRM, previous)
    outcome, said = PASSED, ""
    if is_late:
        outcome, said = TIMED_OUT, f"it took more than {seconds} s"
    elif result.skipped:
        outcome, said = SKIPPED, result.skipped[0][1]
    elif not result.wasSuccessful():
        texts = [text for _, text in (*result.failures, *result.errors)]
        outcome, said = FAILED, texts[0].strip()[-_LONGEST:] if texts else "it was expected to fail"
    graphs = tuple(map(describe_graph, substitute.reports))
    return Reply(outcome, said, graphs, round(time.monotonic() - begun, 2), tuple(substitute.excess))


def main() -> None:
    path, answers = Path(sys.argv[1]), int(sys.argv[2])
    sys.argv[1:] = []  # test files read them
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    questions = os.fdopen(os.dup(0))  # tests may read standard input
    everywhere = path.parent.name == "functorch"
    substitute = Substitute(draws_as_eager=everywhere)  # AOTAutograd's tests compare with eager's numbers
    with in_place_of_inductor(substitute, everywhere=everywhere), os.fdopen(answers, "w") as out:

        def answer(what: Any) -> None:
            out.write(json.dumps(what) + "\n")
            out.flush()

        tests = {name_of(test): test for test in tests_of(unittest.defaultTestLoader.loadTestsFromModule(load(path)))}
        answer([*tests])
        for line in questions:
            asked = json.loads(line)
            answer(asdict(run(tests[asked["test"]], asked["mode"], asked["seconds"], substitute)))


if __name__ == "__main__":
    main()
