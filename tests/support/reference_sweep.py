"""Loops interpreted before and after every scheduling step, and compared with torch: the zoo, random programs and
networks.

    python -m tests.support.reference_sweep zoo      --journal J.jsonl [--start N --count N --minutes M]
    python -m tests.support.reference_sweep programs --journal J.jsonl [--start N --count N --minutes M]
    python -m tests.support.reference_sweep networks --journal J.jsonl [--start N --count N --minutes M]
    python -m tests.support.reference_sweep report   --journal J.jsonl --write docs/reports/reference_target.md

Each appends a line of JSON per model or program to the journal; what the journal has already is left out. The module
is interpreted as it was lowered for the CPU, after each scheduling pass that changed it, and with its temporaries at
the places that buffer planning gives them; programs of dynamic sizes at four sizes. As it was lowered, and scheduled,
it must be as near to float64 as eager is, as native code must be; after each step it must give what it gave before.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import random
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ingot.api import capture
from ingot.compiler import run_cpu_pipeline
from ingot.errors import CaptureError, InputError, PassError, ScheduleError, UnsupportedOperator
from ingot.ir.program import Program
from ingot.lowering.loop_module import Module, Precision
from ingot.scheduling.buffer_planning import plan
from ingot.targets.cpu.target import CPU
from ingot.targets.reference.interpreted_model import InterpretedModel
from ingot.targets.reference.schedule_check import ScheduleCheck
from tests import progress
from tests.fuzz import networks
from tests.support.oracle import Wrong, in_double, run, worst_ratio
from tests.support.random_programs.differential import Batch, complain, dynamic_shapes, sizes_of
from tests.support.random_programs.programs import make
from tests.support.zoo import ZOO

# What the report calls each kind, by the beginning of its names.
SHOWN = {
    "zoo:static": "zoo, static",
    "zoo:dynamic": "zoo, dynamic",
    "programs": "random programs",
    "networks": "random networks",
}
# Every so many-th random program has a dynamic size.
DYNAMIC = 5


@dataclass(frozen=True, slots=True)
class Row:
    """What became of one model or program. `steps`: how many scheduling steps changed it and were compared."""

    name: str
    outcome: str
    detail: str = ""
    steps: int = 0
    seconds: float = 0.0


def schedule_observed(
    module: Module, disabled: Collection[str] = ()
) -> tuple[Module, list[tuple[str, Module, Module]]]:
    """The scheduled module, and every pass that changed something, with the modules before and after it."""
    seen: list[tuple[str, Module, Module]] = []
    made = CPU.schedule(module, disabled, observe=lambda *one: seen.append(one))
    return made, [one for one in seen if one[1].steps != one[2].steps or one[1].buffers != one[2].buffers]


def compare_steps(
    program: Program, made: Module, seen: list[tuple[str, Module, Module]], inputs: tuple[Any, Any]
) -> int:
    """Interprets the module before and after every step. Raises ScheduleError."""
    check = ScheduleCheck(CPU, program, inputs)
    for name, before, after in seen:
        check.compare(name, before, after)
    check.compare("buffer_planning", made, made, plan(made))
    return len(seen) + 1


# ---------------------------------------------------------------------- the zoo


def judge_model(name: str) -> int:
    """A model of the zoo, "static:bert" or "dynamic:bert". Raises Wrong or ScheduleError."""
    kind, _, model_name = name.partition(":")
    item = next(entry for entry in ZOO if entry.name == model_name)
    model, inputs = item.build(), item.inputs(item.sizes)
    run(model, inputs)  # some keep what they make at the first call
    shapes = item.dynamic if kind == "dynamic" else None
    program = run_cpu_pipeline(capture(model, (), copy.deepcopy(inputs), dynamic_shapes=shapes))
    module = CPU.lower(program)
    made, seen = schedule_observed(module)
    steps = compare_steps(program, made, seen, ((), copy.deepcopy(inputs)))
    if not module.draws:
        for one in (module, made):
            got = run(InterpretedModel(CPU, program, one), inputs)
            worst_ratio(got, run(model, inputs), in_double(model)(**copy.deepcopy(inputs)), "at the example")
    return steps


# ---------------------------------------------------------------------- random programs


def judge_program(name: str) -> int:
    """The random program of a number. Raises Wrong or ScheduleError."""
    draw = random.Random(int(name))
    drawn = make([draw.randrange(2**60) for _ in range(draw.randint(4, 9))], dynamic=int(name) % DYNAMIC == 0)
    program = run_cpu_pipeline(capture(Batch([drawn]), ([drawn.inputs()],), dynamic_shapes=dynamic_shapes([drawn])))
    module = CPU.lower(program)
    made, seen = schedule_observed(module)
    steps = 0
    for size in sizes_of([drawn]):
        steps += compare_steps(program, made, seen, (([drawn.inputs(size)],), {}))
        for one in (module, made):
            given = [drawn.inputs(size)]
            (ours,) = InterpretedModel(CPU, program, one)(given)
            why = complain(drawn, size, ours, given[0])
            if why:
                raise Wrong(f"{why} at size {size}\n{drawn}")
    return steps


def judge_network(name: str) -> int:
    """The random network of a number, in float32 or bfloat16 or quantized. Raises Wrong or ScheduleError."""
    network = networks.make(int(name))
    model, program = networks.capture(network)
    wide = network.wide_model()
    precision: Precision = "bfloat16" if network.mode == "products in bfloat16" else "float32"
    steps = 0
    for variant in network.variants:
        passed = run_cpu_pipeline(program, variant)
        module = CPU.lower(passed, precision, variant)
        made, seen = schedule_observed(module, variant)
        for number, sizes in enumerate(network.every_size):
            args = network.arguments(sizes, number)
            try:
                steps += compare_steps(passed, made, seen, (args, {}))
                results = [list(InterpretedModel(CPU, passed, one)(*args)) for one in (module, made)]
            except InputError:
                if 0 in sizes.values():  # which may be refused
                    continue
                raise
            for got in results:
                why = networks.problem_at(sizes, model, wide, program, network.mode, args, got)
                if why:
                    raise Wrong(f"{why} at {sizes}\n{network}")
    return steps


# ---------------------------------------------------------------------- the run


def judge(kind: str, name: str) -> Row:
    begin = time.perf_counter()
    judges: dict[str, Callable[[str], int]] = {
        "zoo": judge_model,
        "programs": judge_program,
        "networks": judge_network,
    }
    steps, outcome, detail = 0, "right", ""
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            steps = judges[kind](name)
    except (UnsupportedOperator, CaptureError, PassError) as error:
        outcome, detail = "refused", f"{type(error).__name__}: {error}"
    except (Wrong, ScheduleError) as error:
        outcome, detail = "wrong", f"{type(error).__name__}: {error}"
    except Exception as error:
        outcome, detail = "failed", f"{type(error).__name__}: {error}"
    return Row(f"{kind}:{name}", outcome, detail, steps, round(time.perf_counter() - begin, 3))


def name_all(kind: str) -> Iterator[str]:
    if kind == "zoo":
        for item in ZOO:
            yield f"static:{item.name}"
        for item in ZOO:
            if item.dynamic:
                yield f"dynamic:{item.name}"
        return
    number = 0
    while True:
        yield str(number)
        number += 1


def read_journal(journal: Path) -> dict[str, Row]:
    lines = journal.read_text(encoding="utf-8").splitlines() if journal.exists() else []
    rows = [Row(**json.loads(line)) for line in lines]
    return {row.name: row for row in rows}


def sweep(kind: str, journal: Path, start: int, count: int, minutes: float) -> list[Row]:
    """Judges a slice of the models or programs, until the time is over."""
    deadline, done, made = time.monotonic() + 60 * minutes, read_journal(journal), []
    total = sum(1 for _ in itertools.islice(name_all(kind), start + count)) if kind == "zoo" else start + count
    for place, name in enumerate(progress.count_done(kind, name_all(kind), total)):
        if place >= start + count or time.monotonic() > deadline:
            break
        if place < start or f"{kind}:{name}" in done:
            continue
        row = judge(kind, name)
        made.append(row)
        with journal.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(row)) + "\n")
        if row.outcome in ("wrong", "failed"):
            print(f"{row.name}: {row.outcome}: {row.detail[:600]}", flush=True)
    return made


def write_report(rows: dict[str, Row]) -> str:
    lines = [
        "# The reference target",
        "",
        "Written by `python -m tests.support.reference_sweep`. Loops of models, random programs and random networks,",
        "interpreted with NumPy as they were lowered for the CPU, after every scheduling step that changed them, and",
        "with temporaries at their planned places in one array. After a step they give what they gave before; at the",
        "beginning and at the end they are as near to float64 as eager is, as native code must be. Random programs and",
        "networks of dynamic sizes run at several sizes.",
        "",
        "| | interpreted | right | refused by a named error | wrong | scheduling steps compared |",
        "|---|---|---|---|---|---|",
    ]
    for prefix, label in SHOWN.items():
        group = [row for row in rows.values() if row.name.startswith(prefix)]
        counts = Counter(row.outcome for row in group)
        wrong, steps = counts["wrong"] + counts["failed"], sum(row.steps for row in group)
        lines.append(f"| {label} | {len(group)} | {counts['right']} | {counts['refused']} | {wrong} | {steps} |")
    reasons = Counter(row.detail.splitlines()[0] for row in rows.values() if row.outcome == "refused")
    if reasons:
        lines += ["", "Refused:", "", *(f"- {reason} ({count})" for reason, count in sorted(reasons.items()))]
    bad = [row for row in rows.values() if row.outcome in ("wrong", "failed")]
    if bad:
        lines += ["", "Wrong:", "", *(f"- `{row.name}`: {row.detail.splitlines()[0]}" for row in bad)]
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("zoo", "programs", "networks", "report"))
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--count", type=int, default=10**9)
    parser.add_argument("--minutes", type=float, default=10**6)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    bad = 0
    if options.kind != "report":
        rows = sweep(options.kind, options.journal, options.start, options.count, options.minutes)
        counts = Counter(row.outcome for row in rows)
        print(", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())) or "nothing left")
        bad = counts["wrong"] + counts["failed"]
    if options.write:
        options.write.write_text(write_report(read_journal(options.journal)), encoding="utf-8")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
