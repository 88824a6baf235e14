"""What a sweep on the GPU is made of: units of work, and programs that are built together, judged and run again from
their files in a process without torch."""

from __future__ import annotations

import signal
import tempfile
import time
import traceback
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeAlias

import torch
from torch.utils import _pytree as pytree

from ingot.artifacts.compiled_model import CompiledModel
from ingot.errors import IngotError
from ingot.targets.cuda.target import CudaTarget
from tests.targets.cuda.gpu.batched_build import LoweredProgram, build
from tests.targets.cuda.gpu.journals import DONE, Journal
from tests.targets.cuda.gpu.saved_calls import repeat_without_torch, save_calls
from tests.targets.cuda.gpu.stages import Stages
from tests.targets.cuda.gpu.workers import AGAIN, Note

# Seconds that one program may take to be compiled or judged, and a batch of them to be built.
PATIENCE, BUILDING = 120, 300
# Of how many programs one is compiled by `ingot.compile`, as users do, with an image of its own.
PUBLIC = 10


class ContextLost(Exception):
    """The GPU reported a fault: nothing that follows in this process says anything."""


@dataclass(frozen=True)
class CallResults:
    """What one call returned, whether it wrote to an argument, and whether the model draws random numbers."""

    tensors: Sequence[torch.Tensor]
    is_written: bool
    draws: bool


class ProgramJudge(Protocol):
    """The calls of a program, and whether their results are right. Needs no GPU."""

    def count(self) -> int:
        """The number of calls."""

    def arguments(self, number: int) -> tuple[torch.Tensor, ...]:
        """The arguments of a call, as copies that may be written to."""

    def may_refuse(self, number: int) -> bool:
        """Whether the model may raise an IngotError for this call."""

    def problem(self, number: int, results: CallResults) -> str:
        """What is wrong with a call's results, or ""."""

    def describe(self, number: int) -> str:
        """The call, for a message."""


@dataclass(frozen=True)
class SweptProgram:
    """A program of a unit on its way: built with others, or already by itself."""

    name: str
    unit: str
    judge: ProgramJudge
    lowered: LoweredProgram | None = None
    compiled: CompiledModel | None = None


@dataclass(frozen=True)
class Place:
    """Where a sweep runs: the target, the journal, and whether models are only built and saved, not called. `handle`
    takes each batch of programs, and `wants` says which programs are in one."""

    target: CudaTarget
    journal: Journal
    note: Note
    end: float = float("inf")
    build_only: bool = False
    spent: Stages = field(default_factory=Stages)
    handle: BatchHandler | None = None
    wants: Callable[[SweptProgram], bool] = lambda one: True

    @property
    def is_late(self) -> bool:
        return time.time() > self.end


BatchHandler: TypeAlias = Callable[[Sequence[SweptProgram], Place], None]


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

    @abstractmethod
    def judges(self, unit: str, names: Collection[str], target: CudaTarget) -> Mapping[str, ProgramJudge]:
        """The judges of these programs of a unit, without a compilation of them."""

    def run(self, unit: str, place: Place, known: set[str]) -> None:
        with place.spent("prepare"):
            self._waiting += [one for one in self.prepare(unit, place, known) if place.wants(one)]
        self._units.append(unit)
        if len(self._waiting) >= self.batch or place.is_late:
            self.finish(place)

    def finish(self, place: Place) -> None:
        waiting, units, self._waiting, self._units = self._waiting, self._units, [], []
        (place.handle or judge_all)(waiting, place)
        for unit in units:
            place.journal.write(unit, DONE)


def judge_all(waiting: Sequence[SweptProgram], place: Place) -> None:
    """Builds and judges programs, and runs the files of those that are right in a process without torch."""
    with tempfile.TemporaryDirectory(prefix="ingot-gpu-") as folder:
        saved: dict[str, SweptProgram] = {}
        lost = False
        for number, (one, model) in enumerate(build_all(waiting, place)):
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


def build_all(waiting: Sequence[SweptProgram], place: Place) -> Iterator[tuple[SweptProgram, CompiledModel]]:
    """Programs with their models. What cannot be built has its row, and is left out."""
    place.note("")
    signal.alarm(BUILDING)
    joined = {one.name: one.lowered for one in waiting if one.lowered is not None}
    with place.spent("build"):
        built = dict(zip(joined, build(list(joined.values()), place.target, place.spent), strict=True))
    signal.alarm(0)
    for one in waiting:
        model = one.compiled or built[one.name]
        if isinstance(model, Exception):
            place.journal.write(one.name, "crashed", f"building: {type(model).__name__}: {model}")
        else:
            yield one, model


def judge_model(judge: ProgramJudge, model: CompiledModel, file: Path) -> tuple[str, str]:
    """Calls a model; the outcome and the reason. If it is right, its file and its calls are left at `file`."""
    calls = []
    for number in range(judge.count()):
        args, before = judge.arguments(number), judge.arguments(number)
        try:
            got = [result.cpu() for result in pytree.tree_leaves(model(*args))]
        except Exception as error:
            if isinstance(error, IngotError) and judge.may_refuse(number):
                continue
            where = traceback.format_exc(limit=-4)
            text = f"running {judge.describe(number)}: {type(error).__name__}: {error}\n{where}"
            raise ContextLost(text) from error
        is_written = not all(map(torch.equal, args, before))
        if problem := judge.problem(number, CallResults(got, is_written, model.draws)):
            return "wrong", problem
        calls.append((before, got))
    if not model.draws:
        save_calls(model, file, calls)
    return "right", ""


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
            outcome, reason = judge_model(one.judge, model, file)
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
