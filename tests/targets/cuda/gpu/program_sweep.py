"""Random networks on the GPU.

Networks are those of tests/fuzz, judged as the CPU's are, at every size; one in four is compiled without some of the
CUDA target's passes. A unit of work is a seed.
"""

from __future__ import annotations

import random
import signal
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

import ingot
from ingot.artifacts.compiled_model import CompiledModel
from ingot.errors import IngotError
from tests.fuzz import networks
from tests.targets.cuda.gpu.batched_build import ARCHITECTURE, lower
from tests.targets.cuda.gpu.saved_calls import save_calls
from tests.targets.cuda.gpu.sweeps import PATIENCE, PUBLIC, BatchedSweep, ContextLost, Place, SweptProgram


class ProgramSweep(BatchedSweep):
    what = "programs"
    batch = 16

    def __init__(self, first: int, count: int) -> None:
        super().__init__()
        self._seeds = range(first, first + count)

    def units(self) -> list[str]:
        return [f"seed {seed}" for seed in self._seeds]

    def prepare(self, unit: str, place: Place, known: set[str]) -> list[SweptProgram]:
        name = f"network {unit}"
        if name in known:
            return []
        place.note(name)
        signal.alarm(PATIENCE)
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            found = _prepare(name, networks.make(int(unit.split()[1])), place)
        signal.alarm(0)
        return [found] if found else []


def passes_off(network: networks.Network, place: Place) -> list[str]:
    """The passes that this network is compiled without."""
    draw = random.Random(network.seed)
    return [name for name in place.target.optional_passes if draw.random() < 0.4] if draw.random() < 0.25 else []


def _prepare(name: str, network: networks.Network, place: Place) -> SweptProgram | None:
    precision: Any = "tf32" if network.mode == "products in bfloat16" else "float32"  # judged as the coarser one
    off = passes_off(network, place)
    doing = "capturing"
    try:
        model, program = networks.capture(network)
        doing = f"compiling without {off}"
        check = NetworkJudge(network, model, program, off)
        if network.seed % PUBLIC:
            return SweptProgram(name, check, lower(program, place.target, precision, off))
        compiled = ingot.compile(
            program, target=place.target, isa=ARCHITECTURE, precision=precision, cache=False, disable_passes=off
        )
        return SweptProgram(name, check, compiled=compiled)
    except Exception as error:
        verdict = networks.failure(network, error, doing)
        place.journal.write(name, verdict.kind, verdict.reason)
        return None


class NetworkJudge:
    def __init__(self, network: networks.Network, model: nn.Module, program: ingot.Program, off: list[str]) -> None:
        self._network, self._model, self._program, self._off = network, model, program, off

    def __call__(self, compiled: CompiledModel, file: Path) -> tuple[str, str]:
        network, calls = self._network, []
        wide = network.wide_model()
        for number, sizes in enumerate(network.every_size):
            args = network.arguments(sizes, number)
            before = [arg.clone() for arg in args]
            try:
                got = [result.cpu() for result in compiled(*args)]
            except Exception as error:
                if isinstance(error, IngotError) and 0 in sizes.values():
                    continue
                text = f"running at {sizes}: {type(error).__name__}: {error}\nwithout {self._off}\n{network}"
                raise ContextLost(text) from error
            problem = networks.problem_at(sizes, self._model, wide, self._program, network.mode, before, got)
            if not problem and any(not torch.equal(a, b) for a, b in zip(args, before, strict=True)):
                problem = "an argument was written to"
            if problem:
                return "wrong", f"{problem}; at {sizes}, without {self._off}\n{network}"
            calls.append((before, got))
        save_calls(compiled, file, calls)
        return "right", ""
