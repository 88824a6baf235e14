"""Evidence from a GPU, collected over sessions: samples, random networks and the zoo, on all cores of this machine.

    python -m tests.targets.cuda.gpu.evidence --what zoo samples programs --minutes 9 --journal DIR --commit HASH
    python -m tests.targets.cuda.gpu.evidence --journal DIR [DIR …] --report          the table of docs/reports/cuda.md
    python -m tests.targets.cuda.gpu.evidence --build-only --count 20 --what programs   without a GPU: build and save
    python -m tests.targets.cuda.gpu.evidence --emulated --count 4 --what programs      without a GPU: run, on the CPU

A journal in DIR has a line for each program (`journals.py`). What this code has judged is not judged again: a call that
was cut off is gone on with by the next one, also on another machine, where DIR is brought along. Kinds of programs take
turns, so that a call that is cut off has a part of each. A program that ends its process is tried twice.

Samples and networks can be compiled and judged on another machine: `prepared/` has files run here and nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.targets.cuda.gpu.journals import Journal, fault_of, read_rows, stamp
from tests.targets.cuda.gpu.stages import Stages, add_up
from tests.targets.cuda.gpu.workers import Note, add_options, join, run_workers, use_memory_for_files

if TYPE_CHECKING:
    from ingot.targets.cuda.target import CudaTarget
    from tests.targets.cuda.gpu.sweeps import Place, Sweep

ROOT = Path(__file__).resolve().parents[4]
WHAT = ("zoo", "samples", "programs")
# How often the units that a dying process has left are given out again, and how often a program may end a process.
ROUNDS, CRASHES = 3, 2
# Seconds before the time is over in which what was begun is judged.
MARGIN = 40.0
# Where journals lie by default, and where in their folder processes say what they spent their time on.
JOURNALS = ROOT / "build" / "evidence" / "cuda"
STAGES = "stages.log"


def main() -> int:
    given = parse(sys.argv[1:])
    # One thread for each process: sixteen processes with sixteen threads each wait for one another.
    os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    if given.report:
        from tests.targets.cuda.gpu.evidence_report import write_report

        print(write_report(given.journal, {one.what: len(one.units()) for one in make_sweeps(given)}))
        return 0
    if given.tokens is not None:
        work_on_gpu(given)
        return 0
    if given.emulated:
        use_emulated_driver()
    begin = time.time()
    folder = given.journal[0]
    sweeps = make_sweeps(given)
    journals = open_journals(given, sweeps)
    end = begin + max(1.0, 60 * given.minutes - MARGIN)
    collect(sweeps, journals, given, end)
    print(add_up(folder / STAGES, begin))
    return summarize(journals, time.time() - begin)


def open_journals(given: argparse.Namespace, sweeps: Sequence[Sweep]) -> dict[str, Journal]:
    stamped = stamp_of(given.commit, given.build_only, given.emulated)
    return {one.what: Journal(given.journal[0] / f"{one.what}.jsonl", stamped) for one in sweeps}


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--journal", type=Path, nargs="+", default=[JOURNALS])
    parser.add_argument("--build-only", action="store_true", help="compile and save, and call nothing")
    parser.add_argument("--report", action="store_true", help="write the table into docs/reports/cuda.md")
    add_selection(parser, WHAT)
    return parser.parse_args(arguments)


def add_selection(parser: argparse.ArgumentParser, what: Sequence[str]) -> None:
    """Which programs are run or prepared, for how long, and in how many processes."""
    parser.add_argument("--what", nargs="+", choices=what, default=list(what))
    parser.add_argument("--minutes", type=float, default=1e6, help="end after this time")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--commit", default="", help="the commit of this tree, which rows name")
    parser.add_argument("--only", nargs="*", default=[], help="operators, or models of the zoo (static:bert)")
    parser.add_argument("--dtype", nargs="*", default=["float32", "bfloat16"], help="of samples")
    parser.add_argument("--most", type=int, default=1, help="samples of an operator, spread over all of them")
    parser.add_argument("--first", type=int, default=0, help="the first seed of programs")
    parser.add_argument("--count", type=int, default=2000, help="how many programs")
    parser.add_argument("--emulated", action="store_true", help="kernels run on the CPU, by an emulated driver")
    parser.add_argument("--units", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--end", type=float, help=argparse.SUPPRESS)
    add_options(parser)


def import_torch() -> None:
    """Makes torch what processes that share a GPU need it to be: of one thread, and without a GPU of its own."""
    import torch

    torch.set_num_threads(1)
    # torch's own tests ask for GPUs when they are imported, and take memory of them.
    vars(torch.cuda).update(is_available=lambda: False, device_count=lambda: 0)
    use_memory_for_files()


def use_emulated_driver() -> None:
    from tests.support.cuda_emulation.target import build_driver

    os.environ["INGOT_CUDA_DRIVER"] = str(build_driver())


def make_sweeps(given: argparse.Namespace) -> list[Sweep]:
    """What is asked for. Imports torch."""
    import_torch()
    made: list[Sweep] = []
    if "zoo" in given.what:
        from tests.targets.cuda.gpu.zoo_sweep import ZooSweep

        made.append(ZooSweep(given.only))
    if "samples" in given.what:
        from tests.targets.cuda.gpu.sample_sweep import SampleSweep

        made.append(SampleSweep(given.dtype, given.most, given.only))
    if "programs" in given.what:
        from tests.targets.cuda.gpu.program_sweep import ProgramSweep

        made.append(ProgramSweep(given.first, given.count))
    return made


def collect(
    sweeps: Sequence[Sweep],
    journals: dict[str, Journal],
    given: argparse.Namespace,
    end: float,
    module: str = "tests.targets.cuda.gpu.evidence",
) -> None:
    """Has processes of this module work on what the journals do not have, until the time is over."""
    units = {one.what: one.units() for one in sweeps}
    before: tuple[int, ...] = ()
    for _ in range(ROUNDS):
        left = interleave({w: [u for u in units[w] if u not in journals[w].done()] for w in units})
        now = (len(left), *(len(journal.rows()) + len(journal.crashes()) for journal in journals.values()))
        if not left or time.time() > end or now == before:
            return
        before = now
        print(f"{len(left)} units of {sum(map(len, units.values()))} are left", flush=True)

        def lost(noted: str, how: str) -> None:
            what, _, name = noted.partition("\t")
            if name:
                journals[what].write(name, "crashed", how)
            print(f"lost {noted or 'a process'}: {how}", flush=True)

        with tempfile.TemporaryDirectory() as folder:
            listed = Path(folder, "units.json")
            listed.write_text(json.dumps(left), encoding="utf-8")
            command = [sys.executable, "-m", module, *sys.argv[1:]]
            run_workers(len(left), given.jobs, [*command, f"--units={listed}", f"--end={end}"], lost)


def work_on_gpu(given: argparse.Namespace) -> None:
    """One of the processes that `collect` starts."""
    from tests.targets.cuda.gpu.sweeps import Place

    sweeps, target = make_sweeps(given), target_of(given.emulated)
    if not given.build_only:
        check_device(target)
    journals = open_journals(given, sweeps)

    def place_of(what: str, note: Note, spent: Stages) -> Place:
        return Place(target, journals[what], note, given.end, given.build_only, spent)

    work(given, sweeps, journals, place_of)


def work(
    given: argparse.Namespace,
    sweeps: Sequence[Sweep],
    journals: dict[str, Journal],
    place_of: Callable[[str, Note, Stages], Place],
) -> None:
    """Takes units one after another, until none is left or the time is over."""
    take, note = join(given)
    left, spent = json.loads(given.units.read_text(encoding="utf-8")), Stages()
    known = {what: known_programs(journal) for what, journal in journals.items()}

    def note_program(what: str) -> Note:
        return lambda name: note(f"{what}\t{name}" if name else "")

    places = {one.what: place_of(one.what, note_program(one.what), spent) for one in sweeps}
    by_name = {one.what: one for one in sweeps}
    try:
        while time.time() < given.end and (number := take()) is not None:
            what, unit = left[number]
            by_name[what].run(unit, places[what], known[what])
        for one in sweeps:
            one.finish(places[one.what])
    finally:
        spent.write(next(iter(journals.values())).path.with_name(STAGES))


def check_device(target: CudaTarget) -> None:
    """Raises where no model can be run on the GPU: all that follows would be noted as crashed."""
    import torch

    import ingot

    class Doubled(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + x

    x = torch.arange(8.0)
    compiled = ingot.compile(Doubled(), (x,), target=target, isa="sm_90a", cache=False)
    assert torch.equal(compiled(x), x + x)


def interleave(lists: dict[str, list[str]]) -> list[tuple[str, str]]:
    """All units; a part from the beginning has the same share of each list."""
    placed = [
        ((number + 0.5) / len(units), what, unit) for what, units in lists.items() for number, unit in enumerate(units)
    ]
    return [(what, unit) for _, what, unit in sorted(placed, key=lambda one: one[0])]


def known_programs(journal: Journal) -> set[str]:
    """Programs that are not judged again: those that ended their process only once are."""
    crashes: Counter[str] = Counter(journal.crashes())
    return {name for name, row in journal.rows().items() if row["outcome"] != "crashed" or crashes[name] >= CRASHES}


def summarize(journals: dict[str, Journal], seconds: float) -> int:
    """Prints what is known now. Returns whether anything is wrong."""
    bad = 0
    for what, journal in journals.items():
        rows = read_rows([journal.path], journal.stamp["code"])
        for row in rows.values():
            if fault := fault_of(row):
                bad += 1
                print(f"{what} {row['name']}: {fault[:700]}\n")
        count = Counter(row["outcome"] for row in rows.values())
        files = sum(bool(row.get("from_file")) for row in rows.values())
        print(f"{what}: {dict(count)}, {files} also from their file; {len(journal.done())} units done")
    print(f"{seconds:.0f} s")
    return int(bad > 0)


def stamp_of(commit: str, build_only: bool = False, emulated: bool = False) -> dict[str, Any]:
    """What rows of this run name."""
    made = stamp(commit, gpu_name())
    if build_only or emulated:  # not evidence of a GPU
        made |= {"code": f"{'built' if build_only else 'emulated'}-{made['code']}", "gpu": "none"}
    return made


def gpu_name() -> str:
    """The GPU's name."""
    try:
        asked = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=60)
    except OSError:
        return "unknown"
    return done.stdout.strip().splitlines()[0] if done.returncode == 0 and done.stdout.strip() else "unknown"


def target_of(emulated: bool) -> CudaTarget:
    if emulated:
        from tests.support.cuda_emulation.target import EMULATED

        return EMULATED
    from ingot.targets.cuda.target import CUDA

    return CUDA


if __name__ == "__main__":
    sys.exit(main())
