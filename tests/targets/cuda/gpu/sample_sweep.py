"""torch's operator samples on the GPU.

A sample is judged as native code is: an error of at most 4 times eager's own on the CPU. A unit of work is an operator
in a dtype.
"""

from __future__ import annotations

import signal
import traceback
import warnings
from collections.abc import Collection, Mapping, Sequence

import torch

import ingot
from ingot.targets.cuda.target import CudaTarget
from tests.support.operator_samples.samples import (
    KINDS,
    Case,
    Expectation,
    cases,
    expectation,
    fresh,
    judge,
    operators,
)  # fmt: skip
from tests.targets.cuda.gpu.batched_build import ARCHITECTURE, lower
from tests.targets.cuda.gpu.sweeps import PATIENCE, PUBLIC, BatchedSweep, CallResults, Place, ProgramJudge, SweptProgram

# A stride through the sorted operators that no number of them has as a divisor: neighbours are alike.
_STRIDE = 211


class SampleSweep(BatchedSweep):
    what = "samples"

    def __init__(self, dtypes: Sequence[str], most: int, only: Sequence[str] = ()) -> None:
        super().__init__()
        self._dtypes, self._most, self._only = dtypes, most, only

    def units(self) -> list[str]:
        names = [name for name in sorted(operators()) if not self._only or name in self._only]
        names = [names[number * _STRIDE % len(names)] for number in range(len(names))]
        assert len(set(names)) == len(names)
        return [
            f"{name} {dtype} most {self._most}"
            for name in names
            for dtype in self._dtypes
            if getattr(torch, dtype) in operators()[name].supported_dtypes("cpu")
        ]

    def prepare(self, unit: str, place: Place, known: set[str]) -> list[SweptProgram]:
        found = []
        place.note(unit)
        signal.alarm(PATIENCE)
        drawn = cases_of(unit)
        for number, case in enumerate(drawn):
            if case.name in known:
                continue
            place.note(case.name)
            signal.alarm(PATIENCE)
            made = _prepare(unit, case, place, is_public=(hash_of(unit) + number) % PUBLIC == 0)
            if made is not None:
                found.append(made)
        signal.alarm(0)
        return found

    def judges(self, unit: str, names: Collection[str], target: CudaTarget) -> Mapping[str, ProgramJudge]:
        drawn = [(case, expectation(case)) for case in cases_of(unit) if case.name in names]
        return {case.name: SampleJudge(case, expected) for case, expected in drawn if expected is not None}


def cases_of(unit: str) -> list[Case]:
    name, dtype, _, most = unit.rsplit(" ", 3)
    return list(cases([name], [getattr(torch, dtype)], KINDS, int(most)))


def hash_of(text: str) -> int:
    """A number that is the same in every process."""
    return sum(map(ord, text))


def _prepare(unit: str, case: Case, place: Place, is_public: bool) -> SweptProgram | None:
    """The sample, lowered or compiled; None where eager refuses it or its row is written."""
    expected = expectation(case)
    if expected is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if is_public:
                compiled = ingot.compile(case.module, fresh(case), target=place.target, isa=ARCHITECTURE, cache=False)
                return SweptProgram(case.name, unit, SampleJudge(case, expected), compiled=compiled)
            program = ingot.capture(case.module, fresh(case))
            return SweptProgram(case.name, unit, SampleJudge(case, expected), lower(program, place.target))
        except ingot.IngotError as error:
            place.journal.write(case.name, "refused", f"{type(error).__name__}: {error}")
        except Exception as error:
            where = traceback.format_exc(limit=-6)
            place.journal.write(case.name, "crashed", f"compiling: {type(error).__name__}: {error}\n{where}")
    return None


class SampleJudge:
    """A sample, which is called once."""

    def __init__(self, case: Case, expected: Expectation) -> None:
        self._case, self._expected = case, expected

    def count(self) -> int:
        return 1

    def arguments(self, number: int) -> tuple[torch.Tensor, ...]:
        return fresh(self._case)

    def may_refuse(self, number: int) -> bool:
        return False

    def problem(self, number: int, results: CallResults) -> str:
        expected = self._expected
        if results.draws:  # its own random numbers, not torch's: only their type can be compared
            expected = Expectation(expected.own, expected.exact, True)
        return judge(self._case, expected, results.tensors) or ""

    def describe(self, number: int) -> str:
        return str(self._case)
