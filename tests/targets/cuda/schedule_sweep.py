"""Interprets random programs after every pass of the CUDA schedule: each pass must leave what they compute.

    python -m tests.targets.cuda.schedule_sweep --networks 0 40 --states 0 200

Networks are those of tests/fuzz, state programs write the state that they read. The interpreter runs each module as it
was lowered, after each pass that changed it, and with its temporaries where buffer planning puts them.
"""

from __future__ import annotations

import argparse
import collections
import sys
import traceback
import warnings
from collections.abc import Iterable

import torch

import ingot
from ingot.compiler import run_cpu_pipeline
from ingot.errors import IngotError, ScheduleError
from ingot.lowering.loop_module import Module
from ingot.scheduling.buffer_planning import plan
from ingot.targets.cuda.target import CUDA
from ingot.targets.reference.schedule_check import ScheduleCheck
from tests import progress
from tests.fuzz import networks
from tests.fuzz.verdict import Verdict
from tests.targets.cuda import state_programs


def check_program(program: ingot.Program, changed: collections.Counter[str] | None = None) -> Module:
    """The scheduled program; counts the passes that changed it. Raises ScheduleError."""

    passed = run_cpu_pipeline(program, (), CUDA)
    check = ScheduleCheck(CUDA, passed)

    def observe(name: str, before: Module, after: Module) -> None:
        check.compare(name, before, after)
        if changed is not None and before.steps != after.steps:
            changed[name] += 1

    made = CUDA.schedule(CUDA.lower(passed, "float32"), verify=True, observe=observe)
    check.compare("buffer_planning", made, made, plan(made))
    return made


def check_network(seed: int, changed: collections.Counter[str]) -> Verdict:
    network = networks.make(seed)
    return _check(lambda: check_program(networks.capture(network)[1], changed), str(network))


def check_state(seed: int, changed: collections.Counter[str]) -> Verdict:
    made = state_programs.make(seed)
    return _check(lambda: check_program(ingot.capture(made.model(), made.arguments()), changed), made.text)


def _check(run: object, text: str) -> Verdict:
    assert callable(run)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            run()
        except ScheduleError as error:
            return Verdict("wrong", f"{error}\n{text}")
        except IngotError as error:
            return Verdict("refused", str(error).splitlines()[0])
        except Exception:
            return Verdict("wrong", f"{traceback.format_exc(limit=-6)}\n{text}")
    return Verdict("right")


def main(arguments: Iterable[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="random programs after every pass of the CUDA schedule")
    parser.add_argument("--networks", nargs=2, type=int, default=(0, 0), metavar=("FIRST", "END"))
    parser.add_argument("--states", nargs=2, type=int, default=(0, 0), metavar=("FIRST", "END"))
    given = parser.parse_args(None if arguments is None else list(arguments))
    torch.set_num_threads(1)
    changed: collections.Counter[str] = collections.Counter()
    wrong = 0
    for title, (first, end), check in (
        ("networks", given.networks, check_network),
        ("state programs", given.states, check_state),
    ):
        counts: collections.Counter[str] = collections.Counter()
        for seed in progress.count_done(title, range(first, end)):
            verdict = check(seed, changed)
            counts[verdict.kind] += 1
            if verdict.kind == "wrong":
                print(f"{title} {seed}: {verdict.reason}", flush=True)
        wrong += counts["wrong"]
        print(f"{title}: {dict(counts)}", flush=True)
    print(f"programs that each pass changed: {dict(changed)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
