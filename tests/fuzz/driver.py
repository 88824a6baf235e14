"""Runs a generator on a range of seeds, in child processes, with a journal that a later run continues.

A child that dies or hangs costs one program, not the run: its seeds are split until one seed alone brings it down, and
that one is "crashed". Fresh memory in a child is full of NaN (`poison.c`).

Journal lines made by other code (a digest of src/ and of this folder) are not used, unless that code is named as an
earlier one: the report then counts each apart.
"""

from __future__ import annotations

import argparse
import atexit
import collections
import functools
import hashlib
import importlib
import importlib.metadata
import json
import os
import platform
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests import progress
from tests.evidence import GPU_ONLY
from tests.fuzz.verdict import Verdict

# The environment variable that gives children what programs run on.
ISA = "INGOT_FUZZ_ISA"
KINDS = ("networks", "operators", "aliasing", "dynamic_shapes")
ROOT = Path(__file__).parents[2]
# Seconds without a verdict after which a child counts as hung.
PATIENCE = 240
# What a child prints in front of a verdict: the code under test may print as well.
MARK = "\x1everdict "


@dataclass(frozen=True)
class Row:
    """One line of a journal."""

    seed: int
    kind: str
    reason: str
    code: str
    where: str  # versions and machine


def describe_machine() -> str:
    cores = len(os.sched_getaffinity(0))
    torch = importlib.metadata.version("torch").partition("+")[0]
    return f"torch {torch}, Python {platform.python_version()}, {cores} cores of {_name_processor()}"


def _name_processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


# What no verdict depends on: programs are judged as native code of the CPU.
APART = (*GPU_ONLY, "src/ingot/onnx", "src/ingot/cli")


def digest_code() -> str:
    """A digest of everything that can change a verdict: the sources and the generators."""
    digest = hashlib.sha256()
    files = [p for folder in ("src", "tests/fuzz", "tests/e2e") for p in (ROOT / folder).rglob("*")]
    apart = [ROOT / folder for folder in APART]
    for path in sorted(p for p in files if p.suffix in (".py", ".h", ".c") and not any(map(p.is_relative_to, apart))):
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def read_journal(paths: Iterable[Path], *codes: str) -> dict[int, Row]:
    """The rows of these journals that one of these codes made, by seed: of the first of them, if several did. A line
    that was cut off is left out."""
    rows: dict[int, Row] = {}
    for path in paths:
        for line in path.read_text().splitlines() if path.exists() else ():
            try:
                row = Row(**json.loads(line))
            except (ValueError, TypeError):
                continue
            known = rows.get(row.seed)
            if row.code in codes and (known is None or codes.index(row.code) <= codes.index(known.code)):
                rows[row.seed] = row
    return rows


# ---------------------------------------------------------------------- the child


def run_child(kind: str) -> None:
    """Checks the seeds that standard input lists and prints each verdict as soon as it is known."""
    seeds = json.load(sys.stdin)
    out = os.fdopen(os.dup(1), "w")
    for seed, verdict in load_generator(kind).check(seeds):
        out.write(MARK + json.dumps([seed, verdict.kind, verdict.reason]) + "\n")
        out.flush()


def load_generator(kind: str) -> Any:
    return importlib.import_module(f"tests.fuzz.{kind}")


# ---------------------------------------------------------------------- the parent


def check_in_child(kind: str, seeds: Sequence[int]) -> Iterator[tuple[int, Verdict]]:
    """The verdicts of these seeds; what kills or hangs a process by itself is crashed."""
    left = list(seeds)
    how = ""
    for seed, verdict in _read_child(kind, left):
        if verdict is None:
            how = seed
        elif seed in left:
            left.remove(seed)
            yield seed, verdict
    if not left:
        return
    if len(left) == 1 and len(seeds) == 1:
        yield left[0], Verdict("crashed", f"{how}\n{load_generator(kind).make(left[0])}")
        return
    # The child may work on several programs at once, so the one at fault is found by halving.
    middle = max(len(left) // 2, 1)
    for part in (left[:middle], left[middle:]):
        if part:
            yield from check_in_child(kind, part)


@functools.cache
def poisoned_memory() -> str:
    """The library of `poison.c`; built once, and removed when this process ends."""
    folder = tempfile.TemporaryDirectory(prefix="ingot-poison-")
    atexit.register(folder.cleanup)
    library = Path(folder.name) / "poison.so"
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", library, Path(__file__).parent / "poison.c"], check=True)
    return str(library)


def _read_child(kind: str, seeds: Sequence[int]) -> Iterator[tuple[Any, Verdict | None]]:
    """Verdicts as a child prints them; at the end, how it ended, with no verdict."""
    heard = time.monotonic()
    hung = threading.Event()

    def watch() -> None:
        while child.poll() is None:
            if time.monotonic() - heard > PATIENCE:
                hung.set()
                child.kill()
            time.sleep(1)

    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz", kind, "--child"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "LD_PRELOAD": poisoned_memory()},
        ) as child,
    ):
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write(json.dumps(list(seeds)))
        child.stdin.close()
        threading.Thread(target=watch, daemon=True).start()
        for line in child.stdout:
            if line.startswith(MARK):
                heard = time.monotonic()
                seed, verdict, reason = json.loads(line.removeprefix(MARK))
                yield seed, Verdict(verdict, reason)
        status = child.wait()
        errors.seek(0)
        yield ("hung" if hung.is_set() else f"the process ended with {status}: {errors.read()[-1500:]}"), None


def run(
    kind: str,
    seeds: Iterable[int],
    journal: Path,
    jobs: int,
    slice_size: int,
    minutes: float,
    earlier: Sequence[str] = (),
) -> None:
    """Checks the seeds that the journal does not have yet and appends to it, for about so many minutes."""
    code, where = digest_code(), describe_machine()
    known = read_journal([journal], code, *earlier)
    missing = [seed for seed in seeds if seed not in known]
    slices: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
    for start in range(0, len(missing), slice_size):
        slices.put(missing[start : start + slice_size])
    journal.parent.mkdir(parents=True, exist_ok=True)
    counts = collections.Counter(row.kind for row in known.values())
    lock = threading.Lock()
    begin = time.monotonic()

    with journal.open("a") as out, progress.open_bar(kind, len(missing)) as step:

        def work() -> None:
            while time.monotonic() - begin < minutes * 60:
                try:
                    part = slices.get_nowait()
                except queue.Empty:
                    return
                for seed, verdict in check_in_child(kind, part):
                    with lock:
                        counts[verdict.kind] += 1
                        out.write(json.dumps(asdict(Row(seed, verdict.kind, verdict.reason, code, where))) + "\n")
                        out.flush()
                        step()
                    if verdict.kind in ("wrong", "crashed"):
                        print(f"{kind} {seed}: {verdict.kind}\n{verdict.reason[:3000]}\n", flush=True)
                with lock:
                    print(f"{kind}: {dict(counts)} after {time.monotonic() - begin:.0f} s", flush=True)

        workers = [threading.Thread(target=work) for _ in range(jobs)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()


# ---------------------------------------------------------------------- the report


def write_report(kind: str, rows: dict[int, Row], path: Path, commit: str) -> None:
    """A page with the counts, the reasons of refusals and of narrower ranges, and whatever is wrong."""
    lines = [
        f"# Random programs: {kind.replace('_', ' ')}",
        "",
        f"Written by `python -m tests.fuzz {kind}` at commit {commit} (sources {digest_code()}).",
        f"`tests/fuzz/{kind}.py` says what is drawn and how it is judged.",
        "",
        "| sources | machine | programs | right | refused by a named error | wrong | crashed |",
        "|---|---|---|---|---|---|---|",
    ]
    every = ("all", "")
    groups = sorted({(row.code, row.where) for row in rows.values()})
    for group in [*groups, every] if len(groups) > 1 else groups:
        count = collections.Counter(row.kind for row in rows.values() if group in ((row.code, row.where), every))
        total = max(count.total(), 1)
        lines.append(
            f"| {' | '.join(group)} | {total:,} | {count['right']:,}"
            f" | {count['refused']:,} ({count['refused'] / total:.2%}) | {count['wrong']:,} | {count['crashed']:,} |"
        )
    lines.append("")
    for verdict, title in (("refused", "refused"), ("right", "right, but narrower than declared")):
        reasons = collections.Counter(row.reason for row in rows.values() if row.kind == verdict and row.reason)
        if reasons:
            lines += [f"| {title} | reason |", "|---|---|"]
            lines += [f"| {n:,} | {_cell(reason)} |" for reason, n in reasons.most_common()]
            lines.append("")
    for row in sorted(rows.values(), key=lambda row: row.seed):
        if row.kind in ("wrong", "crashed"):
            lines += [f"## {row.kind}: seed {row.seed}", "", "```", row.reason, "```", ""]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines).rstrip() + "\n")


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())[:300]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("kind", choices=(*KINDS, "scripted"))
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=0, help="how many seeds; 0 only writes the report")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--slice", type=int, default=200, help="seeds per child process")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no new slice after this time")
    parser.add_argument("--journal", type=Path, nargs="+", help="where verdicts go; further ones are only read")
    parser.add_argument("--earlier", nargs="*", default=[], help="digests of earlier code whose verdicts count too")
    parser.add_argument("--report", type=Path)
    parser.add_argument("--commit", help="the commit that the report names; asked of git if not given")
    parser.add_argument("--isa", help="networks and operators on an emulated Arm processor: aarch64-bf16 and others")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        run_child(options.kind)
        return 0
    if options.isa:
        os.environ[ISA] = options.isa
    journals = options.journal or [ROOT / "build" / f"fuzz_{options.kind}.jsonl"]
    if options.count:
        seeds = range(options.first, options.first + options.count)
        run(options.kind, seeds, journals[0], options.jobs, options.slice, options.minutes, options.earlier)
    rows = read_journal(journals, digest_code(), *options.earlier)
    if options.report:
        commit = options.commit or _ask_git("rev-parse", "--short=12", "HEAD") + (
            " with changes" if _ask_git("status", "--porcelain", "--", "src", "tests") else ""
        )
        write_report(options.kind, rows, options.report, commit)
    return int(any(row.kind in ("wrong", "crashed") for row in rows.values()))


def _ask_git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True).stdout.strip()
