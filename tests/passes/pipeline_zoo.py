"""The default pipeline over every model of the capture tests, and the report of it.

    python -m tests.passes.pipeline_zoo                   the zoo, static and dynamic; writes docs/reports/passes_zoo.md
    python -m tests.passes.pipeline_zoo --only bert       some of it; writes nothing

Each model is captured, goes down `passes.DEFAULT_PIPELINE` with `check="numerics"`, and down it a second time, which
must change nothing. The hand-written models of the capture tests: `pytest -p tests.passes.pipeline_plugin
tests/frontend`.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import ingot
from ingot import passes
from ingot.ir import pytree
from ingot.ir.program import Program
from ingot.passes.instrumentation import differential_check
from tests import progress
from tests.frontend.test_zoo import DYNAMIC_REFUSED, REFUSED
from tests.support.zoo import ZOO, Entry

LIMIT = 600  # seconds a model may take


@dataclass(slots=True)
class Outcome:
    """What one model gave. `difference`: of the results, relative to the largest value in each."""

    name: str
    mode: str
    seconds: float
    pipeline_seconds: float = 0.0
    nodes_before: int = 0
    nodes_after: int = 0
    difference: float = 0.0
    failure: str | None = None


def run_pipeline(program: Program) -> Program:
    """The program after the pipeline, its numbers compared after every pass, and nothing left for a second run."""
    core = ingot.transform(program, passes.DEFAULT_PIPELINE, check="numerics")
    assert core.dialect.name == "CORE"
    again = ingot.transform(core, passes.DEFAULT_PIPELINE)
    left = [step.name for step in again.history[len(core.history) :] if step.changes]
    assert not left, f"a second run of {', '.join(left)} changes something"
    return core


def capture_entry(item: Entry, dynamic: bool) -> Program:
    """The entry as the capture tests of the zoo take it: a static one has been called before.

    recurrent-gemma keeps state in plain attributes; it can be captured once they hold tensors that are not read.
    """
    model, inputs = item.build(), item.inputs(item.sizes)
    if not dynamic:
        with torch.no_grad():
            model(**inputs)
    return ingot.capture(model, (), inputs, dynamic_shapes=item.dynamic if dynamic else None)


def modes_of(item: Entry) -> list[str]:
    """The ways in which an entry of the zoo can be captured."""
    if item.name in REFUSED:
        return []
    return ["static", *(["dynamic"] if item.dynamic and item.name not in DYNAMIC_REFUSED else [])]


def relative_difference(program: Program, other: Program) -> float:
    """The largest difference between the results of two programs on the example, against the result's largest value."""
    return max((_relative(a, b) for a, b in zip(_results(program), _results(other), strict=True)), default=0.0)


def _results(program: Program) -> list[torch.Tensor]:
    assert program.example_inputs is not None
    seen = differential_check._observe(program, pytree.flatten(program.example_inputs)[0])
    return [v for name, v in seen.values.items() if name.startswith("result") and isinstance(v, torch.Tensor)]


def _relative(a: torch.Tensor, b: torch.Tensor) -> float:
    wide = torch.complex128 if a.is_complex() else torch.float64
    a, b = a.detach().to(wide), b.detach().to(wide)
    finite = a.isfinite() & b.isfinite()
    if not finite.any():
        return 0.0
    scale = float(a[finite].abs().max())
    return float((a[finite] - b[finite]).abs().max()) / scale if scale else 0.0


# ---------------------------------------------------------------------- the sweep


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raises TimeoutError in what takes longer."""

    def late(number: int, frame: Any) -> None:
        raise TimeoutError(f"took more than {seconds} s")

    old = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, old)


def try_entry(item: Entry, mode: str, limit: int) -> Outcome:
    began = time.perf_counter()
    outcome = Outcome(item.name, mode, 0.0)
    try:
        with limited(limit):
            program = capture_entry(item, mode == "dynamic")
            core = run_pipeline(program)
            outcome.nodes_before, outcome.nodes_after = len(program.graph.nodes), len(core.graph.nodes)
            outcome.pipeline_seconds = sum(step.seconds for step in core.history)
            outcome.difference = relative_difference(program, core)
    except Exception as failure:  # whatever it is, it is a row of the report
        outcome.failure = f"{type(failure).__name__}: {failure}"
    outcome.seconds = time.perf_counter() - began
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(description="Takes the zoo through the default pipeline.")
    parser.add_argument("--only", default="", help="only the models whose name contains this")
    parser.add_argument("--mode", choices=["static", "dynamic"], help="only one mode")
    parser.add_argument("--limit", type=int, default=LIMIT, help="seconds a model may take")
    parser.add_argument("--journal", type=Path, help="a file that keeps outcomes; models in it are not run again")
    parser.add_argument("--report", type=Path, help="the page to write (docs/reports/passes_zoo.md if all models run)")
    parser.add_argument("--no-run", action="store_true", help="only write the page, from the journal")
    options = parser.parse_args()
    if options.report is None and not options.only and options.mode is None:
        options.report = Path(__file__).resolve().parents[2] / "docs" / "reports" / "passes_zoo.md"
    warnings.simplefilter("ignore")
    outcomes = _read(options.journal)
    done = {(o.name, o.mode) for o in outcomes}
    for item in progress.count_done("models", ZOO):
        for mode in modes_of(item):
            wanted = options.only in item.name and options.mode in (None, mode)
            if options.no_run or not wanted or (item.name, mode) in done:
                continue
            outcome = try_entry(item, mode, options.limit)
            outcomes.append(outcome)
            first = (outcome.failure or "ok").splitlines()[0]
            print(f"{item.name:24} {mode:8} {outcome.seconds:7.1f} s  {outcome.difference:.1e}  {first}", flush=True)
            if options.journal:
                with options.journal.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(outcome)) + "\n")
    if options.report:
        options.report.write_text(report(outcomes), encoding="utf-8")
        print(f"written: {options.report}")
    return int(any(o.failure for o in outcomes))


def report(outcomes: list[Outcome]) -> str:
    """The outcomes as a page."""
    rows = ["| | run | failed | slowest | largest relative difference |", "|---|---|---|---|---|"]
    failures = []
    possible = {mode: sum(mode in modes_of(item) for item in ZOO) for mode in ("static", "dynamic")}
    missing = sum(possible.values()) - len(outcomes)
    for mode in ("static", "dynamic"):
        chosen = [o for o in outcomes if o.mode == mode]
        passed = [o for o in chosen if o.failure is None]
        if not chosen:
            continue
        slowest = max(chosen, key=lambda o: o.seconds)
        apart = max(passed, key=lambda o: o.difference, default=slowest)
        rows.append(
            f"| {mode} | {len(chosen)} of {possible[mode]} | {len(chosen) - len(passed)} "
            f"| {slowest.name}, {slowest.seconds:.0f} s | {apart.name}, {apart.difference:.1e} |"
        )
        failures += [f"- {o.name}, {o.mode}: {(o.failure or '').splitlines()[0]}" for o in chosen if o.failure]
    return "\n".join(
        [
            "# The default pipeline on every zoo model",
            "",
            "Written by `make report-passes`. Each model is captured and run through the default pipeline with",
            '`check="numerics"`; a second run must change nothing. Seconds are of capture, passes and checks together.',
            "Outcomes taken from a journal may be of earlier commits.",
            *([f"**Incomplete: {missing} runs are missing.**"] if missing else []),
            "",
            *rows,
            "",
            *(["What failed:", "", *failures] if failures else ["Nothing that was run failed."]),
            "",
        ]
    )


def _read(path: Path | None) -> list[Outcome]:
    if path is None or not path.exists():
        return []
    return [Outcome(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


if __name__ == "__main__":
    sys.exit(main())
