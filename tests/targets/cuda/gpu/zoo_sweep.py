"""Models of the zoo on the GPU, static and dynamic, judged as the CPU's are (tests/support/oracle.py).

A unit of work is a model. A process without torch runs the files of several.
"""

from __future__ import annotations

import contextlib
import functools
import signal
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.e2e.test_zoo import every
from tests.support.oracle import Verdict, judge, quick_compiler, verdict_on, without_torch
from tests.targets.cuda.gpu.batched_build import ARCHITECTURE
from tests.targets.cuda.gpu.journals import DONE
from tests.targets.cuda.gpu.sweeps import Place, Sweep
from tests.targets.cuda.gpu.workers import AGAIN

# Seconds for one model, and models whose files one process without torch runs.
PATIENCE, BATCH = 240, 4
# Through the list, so that its parts are alike: models of a kind stand together in it.
_STRIDE = 5


class ZooSweep(Sweep):
    what = "zoo"

    def __init__(self, only: Sequence[str] = ()) -> None:
        self._only = only
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._waiting: list[Verdict] = []

    def units(self) -> list[str]:
        names = [name for name in every() if not self._only or name in self._only]
        return [name for first in range(_STRIDE) for name in names[first::_STRIDE]]

    def run(self, unit: str, place: Place, known: set[str]) -> None:
        if unit in known:  # it has ended its process twice
            place.journal.write(unit, DONE)
            return
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="ingot-zoo-")
        place.note(unit)
        signal.alarm(PATIENCE)
        with warnings.catch_warnings(), quick_compiler("-O0"), _optimize_nothing(), place.spent("zoo"):
            warnings.simplefilter("ignore")
            check = functools.partial(
                judge,
                folder=Path(self._folder.name),
                target=place.target,
                isa=ARCHITECTURE,
                run_model=not place.build_only,
            )
            verdict = verdict_on(unit, check)
        signal.alarm(0)
        place.note("")
        if verdict.outcome == "failed":  # the GPU's context may be lost, and all that follows
            place.journal.write(unit, "crashed", verdict.detail)
            self.finish(place)
            raise SystemExit(AGAIN)
        if verdict.outcome == "right" and not place.build_only:
            self._waiting.append(verdict)
        else:
            built = place.build_only and verdict.outcome == "right"
            place.journal.write(unit, "built" if built else verdict.outcome, verdict.detail)
            place.journal.write(unit, DONE)
        if len(self._waiting) >= BATCH or place.is_late:
            self.finish(place)

    def finish(self, place: Place) -> None:
        waiting, folder, self._waiting, self._folder = self._waiting, self._folder, [], None
        if folder is None:
            return
        with folder, place.spent("zoo without torch"):
            wrong = without_torch(Path(folder.name)) if waiting else []
        stems = {f"{one.kind}-{one.name}": one for one in waiting}
        strange = [line for line in wrong if not any(line.startswith(stem) for stem in stems)]
        for stem, one in stems.items():
            mine = [line for line in wrong if line.startswith((f"{stem}.", f"{stem}:"))] or strange
            name = f"{one.kind}:{one.name}"
            if mine:
                place.journal.write(name, "wrong", f"without torch: {mine[0]}")
            else:
                place.journal.write(name, "right", "", from_file=bool(one.sizes), ratio=one.ratio, sizes=one.sizes)
            place.journal.write(name, DONE)


@contextlib.contextmanager
def _optimize_nothing() -> Iterator[None]:
    """The host's library launches: how it is optimized says nothing of what is computed."""
    from ingot.targets.cuda import target

    before = target._HOST_FLAGS
    target._HOST_FLAGS = ("-O0",)
    try:
        yield
    finally:
        target._HOST_FLAGS = before
