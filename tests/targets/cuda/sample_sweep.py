"""Runs torch's operator samples through emulated kernels and says what became of them.

    python -m tests.targets.cuda.sample_sweep --dtype float32 --most 2
    python -m tests.targets.cuda.sample_sweep --ops sort topk --dtype bfloat16

Samples are judged as native code is. Products, convolutions and attention are interpreted where no kernel writer is
for them. A sample is refused where a named error of Ingot says why.
"""

from __future__ import annotations

import itertools
import os
import pickle
import signal
import traceback
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

import ingot
from ingot.compiler import run_cpu_pipeline
from ingot.ir.program import Program
from ingot.lowering.loop_module import Module
from ingot.targets.cuda.codegen import extern_kernels, loops, mask_blocks, reductions, scan
from tests.support.cuda_emulation.emulated_model import EmulatedModel, build_models, lower_for_cuda
from tests.support.operator_samples.batched_compile import Outcome
from tests.support.operator_samples.sample_report import command
from tests.support.operator_samples.samples import Case, Expectation, expectation, fresh, judge
from tests.support.sample_sweep import markdown

WRITERS = (extern_kernels, loops, mask_blocks, reductions, scan)
BATCH = 48
# Seconds that one sample may run.
PATIENCE = 60


@dataclass(frozen=True)
class Part:
    case: Case
    expected: Expectation
    program: Program
    module: Module


def run(cases: Iterable[Case]) -> Iterator[tuple[Case, Outcome]]:
    """Each case with its outcome. Cases that eager refuses are left out."""
    iterator = iter(cases)
    while group := tuple(itertools.islice(iterator, BATCH)):
        yield from _run_batch(group)


def _run_batch(group: Sequence[Case]) -> Iterator[tuple[Case, Outcome]]:
    made = [(case, _prepare(case)) for case in group]
    outcomes = _run_parts([one for _, one in made if isinstance(one, Part)])
    for case, one in made:
        if isinstance(one, Part):
            yield case, outcomes.pop(0)
        elif one is not None:
            yield case, one


def _prepare(case: Case) -> Part | Outcome | None:
    expected = expectation(case)
    if expected is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            program = run_cpu_pipeline(ingot.capture(case.module, fresh(case)))
            module = lower_for_cuda(program)
        except ingot.IngotError as error:
            return Outcome("refused", f"{type(error).__name__}: {error}")
        except Exception as error:
            return Outcome("crashed", f"compiling: {type(error).__name__}: {error}\n{traceback.format_exc(limit=-6)}")
    if module.draws:  # its own random numbers, not torch's: only their type can be compared
        expected = Expectation(expected.own, expected.exact, True)
    return Part(case, expected, program, module)


def _run_parts(parts: Sequence[Part]) -> list[Outcome]:
    """Runs the parts in a child; halves tell which one does not compile."""
    if not parts:
        return []
    try:
        models = build_models([(part.program, part.module) for part in parts])
    except Exception as error:
        if len(parts) == 1:
            return [Outcome("crashed", f"compiling: {type(error).__name__}: {str(error)[:1500]}")]
        middle = len(parts) // 2
        return [*_run_parts(parts[:middle]), *_run_parts(parts[middle:])]
    outcomes: list[Outcome] = []
    while len(outcomes) < len(parts):
        outcomes += _run_forked(parts[len(outcomes) :], models[len(outcomes) :])
    return outcomes


def _run_forked(parts: Sequence[Part], models: Sequence[EmulatedModel]) -> list[Outcome]:
    """The outcomes of the first parts, up to one that ends the process: a kernel's mistake does."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        torch.set_num_threads(1)
        with os.fdopen(writer, "wb") as out:
            for part, model in zip(parts, models, strict=True):
                signal.alarm(PATIENCE)
                pickle.dump(_judge(part, model), out)
                out.flush()
        os._exit(0)
    os.close(writer)
    outcomes: list[Outcome] = []
    with os.fdopen(reader, "rb") as said:
        while len(outcomes) < len(parts):
            try:
                outcomes.append(pickle.load(said))
            except EOFError:
                break
    _, status = os.waitpid(child, 0)
    if len(outcomes) < len(parts):
        died = os.waitstatus_to_exitcode(status)
        outcomes.append(Outcome("crashed", f"running: the process ended with {died}"))
    return outcomes


def _judge(part: Part, model: EmulatedModel) -> Outcome:
    try:
        results = model.run([x.contiguous() for x in fresh(part.case)])
        complaint = judge(part.case, part.expected, results)
    except Exception as error:
        return Outcome("wrong", f"running: {type(error).__name__}: {error}\n{traceback.format_exc(limit=-4)}")
    return Outcome("wrong", complaint) if complaint else Outcome("passed")


if __name__ == "__main__":
    command("torch's operator samples through emulated CUDA kernels", run, markdown)
