"""Random networks on the GPU.

Networks are those of tests/fuzz, judged as the CPU's are, at every size; one in four is compiled without some of the
CUDA target's passes. A unit of work is a seed.
"""

from __future__ import annotations

import random
import signal
import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import nn

import ingot
from ingot.targets.cuda.target import CudaTarget
from tests.fuzz import networks
from tests.targets.cuda.gpu.batched_build import ARCHITECTURE, lower
from tests.targets.cuda.gpu.sweeps import PATIENCE, PUBLIC, BatchedSweep, CallResults, Place, ProgramJudge, SweptProgram


class ProgramSweep(BatchedSweep):
    what = "programs"
    batch = 16

    def __init__(self, first: int, count: int) -> None:
        super().__init__()
        self._seeds = range(first, first + count)

    def units(self) -> list[str]:
        return [f"seed {seed}" for seed in self._seeds]

    def prepare(self, unit: str, place: Place, known: set[str]) -> list[SweptProgram]:
        name = name_of(unit)
        if name in known:
            return []
        place.note(name)
        signal.alarm(PATIENCE)
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            found = _prepare(unit, network_of(unit), place)
        signal.alarm(0)
        return [found] if found else []

    def judges(self, unit: str, names: Collection[str], target: CudaTarget) -> Mapping[str, ProgramJudge]:
        network = network_of(unit)
        off = passes_off(network, target)
        # Only a quantized program is compared with itself, run by eager.
        model, program = networks.capture(network) if network.mode.startswith("int") else (network.model(), None)
        return {name_of(unit): NetworkJudge(network, model, program, off)}


def name_of(unit: str) -> str:
    return f"network {unit}"


def network_of(unit: str) -> networks.Network:
    return networks.make(int(unit.split()[1]))


def passes_off(network: networks.Network, target: CudaTarget) -> list[str]:
    """The passes that this network is compiled without."""
    draw = random.Random(network.seed)
    return [name for name in target.optional_passes if draw.random() < 0.4] if draw.random() < 0.25 else []


def _prepare(unit: str, network: networks.Network, place: Place) -> SweptProgram | None:
    name = name_of(unit)
    precision: Any = "tf32" if network.mode == "products in bfloat16" else "float32"  # judged as the coarser one
    off = passes_off(network, place.target)
    doing = "capturing"
    try:
        model, program = networks.capture(network)
        doing = f"compiling without {off}"
        check = NetworkJudge(network, model, program, off)
        if network.seed % PUBLIC:
            return SweptProgram(name, unit, check, lower(program, place.target, precision, off))
        compiled = ingot.compile(
            program, target=place.target, isa=ARCHITECTURE, precision=precision, cache=False, disable_passes=off
        )
        return SweptProgram(name, unit, check, compiled=compiled)
    except Exception as error:
        verdict = networks.failure(network, error, doing)
        place.journal.write(name, verdict.kind, verdict.reason)
        return None


class NetworkJudge:
    """A network at each of its sizes. `program` is needed only for a quantized network."""

    def __init__(
        self, network: networks.Network, model: nn.Module, program: ingot.Program | None, off: Sequence[str]
    ) -> None:
        self._network, self._model, self._program, self._off = network, model, program, off
        self._wide: nn.Module | None = None

    def count(self) -> int:
        return len(self._network.every_size)

    def arguments(self, number: int) -> tuple[torch.Tensor, ...]:
        return self._network.arguments(self._network.every_size[number], number)

    def may_refuse(self, number: int) -> bool:
        return 0 in self._network.every_size[number].values()

    def problem(self, number: int, results: CallResults) -> str:
        self._wide = self._wide or self._network.wide_model()
        mode, args, sizes = self._network.mode, self.arguments(number), self._network.every_size[number]
        problem = networks.problem_at(sizes, self._model, self._wide, self._program, mode, args, results.tensors)
        if not problem and results.is_written:
            problem = "an argument was written to"
        return f"{problem}; {self.describe(number)}" if problem else ""

    def describe(self, number: int) -> str:
        return f"at {self._network.every_size[number]}, without {self._off}\n{self._network}"
