"""What a sweep on the GPU is made of: units of work, and programs that are built together, judged and run again from
their files in a process without torch."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from ingot.artifacts.compiled_model import CompiledModel
from ingot.targets.cuda.target import CudaTarget
from tests.targets.cuda.gpu.batched_build import LoweredProgram, build
from tests.targets.cuda.gpu.journals import DONE, Journal
from tests.targets.cuda.gpu.saved_calls import repeat_without_torch
from tests.targets.cuda.gpu.stages import Stages
from tests.targets.cuda.gpu.workers import AGAIN, Note

# Seconds that one program may take to be compiled or judged, and a batch of them to be built.
PATIENCE, BUILDING = 120, 300
# Of how many programs one is compiled by `ingot.compile`, as users do, with an image of its own.
PUBLIC = 10
# Bytes of memory that must be free for temporary files to lie there.
LEAST_MEMORY = 8 << 30

# Judges a model, leaves its file and calls at the path given if it is right. Returns the outcome and the reason.
Judge = Callable[[CompiledModel, Path], tuple[str, str]]


class ContextLost(Exception):
    """The GPU reported a fault: nothing that follows in this process says anything."""


@dataclass(frozen=True)
class SweptProgram:
    """A program on its way: built with others, or already by itself."""

    name: str
    judge: Judge
    lowered: LoweredProgram | None = None
    compiled: CompiledModel | None = None


@dataclass(frozen=True)
class Place:
    """Where a sweep runs: the target, the journal, and whether models are only built and saved, not called."""

    target: CudaTarget
    journal: Journal
    note: Note
    end: float = float("inf")
    build_only: bool = False
    spent: Stages = field(default_factory=Stages)

    @property
    def is_late(self) -> bool:
        return time.time() > self.end


class Sweep(ABC):
    """One kind of programs. `what` is the journal's name."""

    what: str

    @abstractmethod
    def units(self) -> list[str]:
        """The units of work, in an order in which a part of them says something of all."""

    @abstractmethod
    def run(self, unit: str, place: Place, known: set[str]) -> None:
        """Judges the programs of a unit, or keeps them until there are enough; those that are known are left out."""

    @abstractmethod
    def finish(self, place: Place) -> None:
        """Judges what was kept."""


class BatchedSweep(Sweep):
    """Programs of a process wait until `batch` of them are built at once."""

    batch = 40

    def __init__(self) -> None:
        self._waiting: list[SweptProgram] = []
        self._units: list[str] = []

    @abstractmethod
    def prepare(self, unit: str, place: Place, known: set[str]) -> Sequence[SweptProgram]:
        """The programs of a unit, as far as they can be lowered; others have their rows already."""

    def run(self, unit: str, place: Place, known: set[str]) -> None:
        with place.spent("prepare"):
            self._waiting += self.prepare(unit, place, known)
        self._units.append(unit)
        if len(self._waiting) >= self.batch or place.is_late:
            self.finish(place)

    def finish(self, place: Place) -> None:
        waiting, units, self._waiting, self._units = self._waiting, self._units, [], []
        judge_all(waiting, place)
        for unit in units:
            place.journal.write(unit, DONE)


def judge_all(waiting: Sequence[SweptProgram], place: Place) -> None:
    """Builds and judges programs, and runs the files of those that are right in a process without torch."""
    if not waiting:
        return
    place.note("")
    signal.alarm(BUILDING)
    joined = {one.name: one.lowered for one in waiting if one.lowered is not None}
    with place.spent("build"):
        built = dict(zip(joined, build(list(joined.values()), place.target, place.spent), strict=True))
    signal.alarm(0)
    with tempfile.TemporaryDirectory(prefix="ingot-gpu-") as folder:
        saved: dict[str, SweptProgram] = {}
        lost = False
        for number, one in enumerate(waiting):
            model = one.compiled or built[one.name]
            if isinstance(model, Exception):
                place.journal.write(one.name, "crashed", f"building: {type(model).__name__}: {model}")
                continue
            file = Path(folder) / f"{number:04}.ingot"
            with place.spent("judge"):
                outcome, reason, lost = _judge(one, model, file, place)
            if outcome == "right" and file.exists():
                saved[file.stem] = one
            else:
                place.journal.write(one.name, outcome, reason, **_how(one))
            if lost:
                break
        _run_files(saved, Path(folder), place)
    if lost:
        raise SystemExit(AGAIN)


def _judge(one: SweptProgram, model: CompiledModel, file: Path, place: Place) -> tuple[str, str, bool]:
    """The outcome, why, and whether the GPU's context may be lost."""
    place.note(one.name)
    signal.alarm(PATIENCE)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            if place.build_only:
                model.save(file)
                return "built", "", False
            outcome, reason = one.judge(model, file)
        return outcome, reason, False
    except ContextLost as error:
        return "crashed", str(error), True
    except Exception as error:
        return "crashed", f"judging: {type(error).__name__}: {error}", True
    finally:
        signal.alarm(0)
        place.note("")
        model.close()


def _run_files(saved: dict[str, SweptProgram], folder: Path, place: Place) -> None:
    if not saved:
        return
    with place.spent("without torch"):
        differs = repeat_without_torch(folder)
    for stem, one in saved.items():
        problem = differs.get(stem) or differs.get("")
        if problem:
            place.journal.write(one.name, "wrong", f"without torch: {problem}", **_how(one))
        else:
            place.journal.write(one.name, "right", "", from_file=True, **_how(one))


def _how(one: SweptProgram) -> dict[str, bool]:
    return {"public": True} if one.lowered is None else {}


def use_memory_for_files() -> None:
    """Temporary files lie in memory where there is such a folder: thousands of small ones are written, each synced."""
    folder = Path("/dev/shm")
    if folder.is_dir() and os.access(folder, os.W_OK) and shutil.disk_usage(folder).free > LEAST_MEMORY:
        os.environ["TMPDIR"] = str(folder)
        tempfile.tempdir = str(folder)
