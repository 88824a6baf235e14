"""A generator whose verdicts are known, for the tests of the driver: some seeds kill their process."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence

from tests.fuzz.verdict import Verdict

FATAL = (3, 11)
WRONG = (5,)
REFUSED = (7, 8)
NARROWED = (9,)


def make(seed: int) -> str:
    return f"program {seed}"


def check(seeds: Sequence[int]) -> Iterator[tuple[int, Verdict]]:
    print("the code under test prints as well", flush=True)
    for seed in seeds:
        if seed in FATAL:
            os.kill(os.getpid(), signal.SIGKILL)
        yield seed, Verdict(_kind(seed), f"reason | {seed // 10}" if seed in REFUSED + NARROWED else "")


def _kind(seed: int) -> str:
    return "wrong" if seed in WRONG else "refused" if seed in REFUSED else "right"
