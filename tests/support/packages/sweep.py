"""Every model of the registry judged, and the report.

    python -m tests.support.packages.sweep JOURNAL.jsonl [PACKAGE or PACKAGE/MODEL …] [--minutes 20] [--again]
    python -m tests.support.packages.sweep JOURNAL.jsonl --report FILE.md

A model has a process of its own with a limit of time and memory; what the journal has is not judged again.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import resource
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.packages.registry import PACKAGES, models_of

SECONDS = 300  # of processor time
MEMORY = 10 * 2**30
Record = dict[str, Any]


def read(journal: Path) -> dict[str, Record]:
    """The last record of each model."""
    if not journal.exists():
        return {}
    rows = [json.loads(line) for line in journal.read_text(encoding="utf-8").splitlines()]
    return {row["model"]: row for row in rows}


def sweep(journal: Path, wanted: Sequence[str], minutes: float, again: bool) -> None:
    """Judges what the journal lacks, package by package, and appends a line for each model."""
    known = [] if again else sorted(read(journal))
    deadline = time.time() + 60 * minutes
    journal.parent.mkdir(parents=True, exist_ok=True)
    for package in PACKAGES:
        some = [one for one in wanted if one.partition("/")[0] == package]
        if (wanted and not some) or time.time() > deadline:
            continue
        command = [sys.executable, "-W", "ignore", "-m", "tests.support.packages.sweep", "--child", package]
        given = json.dumps({"known": known, "wanted": some, "deadline": deadline})
        with (
            journal.open("a", encoding="utf-8") as file,
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child,
        ):
            assert child.stdin is not None and child.stdout is not None
            child.stdin.write(given)
            child.stdin.close()
            for line in child.stdout:
                if line.startswith("{"):
                    file.write(line)
                    file.flush()
        if child.returncode:
            print(f"{package}: ended with {child.returncode}", flush=True)


# ---------------------------------------------------------------------- the process of a package


def _child(package: str) -> None:
    """Imports the package once; each model is judged in a fork of this process."""
    given = json.load(sys.stdin)
    import torch

    from tests.support.packages import stand_ins
    from tests.support.packages.judge import warmed_up

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    stand_ins.install()
    with warmed_up():
        for model in models_of(package):
            if given["wanted"] and not {package, model.label} & {*given["wanted"]}:
                continue
            if model.label not in given["known"] and time.time() < given["deadline"]:
                print(json.dumps(_in_fork(model)), flush=True)


def _in_fork(model: Any) -> Record:
    reading, writing = os.pipe()
    begin = time.time()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _judge_and_leave(model, writing)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        signal.signal(signal.SIGALRM, lambda *_: os.kill(pid, signal.SIGKILL))
        signal.alarm(8 * SECONDS)  # of waiting for other processes too
        lines = [line for line in pipe if line.endswith("\n")]
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        signal.alarm(0)
    record: Record = json.loads(lines[-1]) if lines else {"model": model.label, "step": "starting"}
    if code:
        record["ended"] = code
    record |= {"seconds": round(time.time() - begin, 1), "commit": _commit()}
    return record


@functools.cache
def _commit() -> str:
    """The commit whose code judges, where there is a repository."""
    done = subprocess.run(
        ["git", "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True, cwd=Path(__file__).parent
    )
    return done.stdout.strip()


def _judge_and_leave(model: Any, pipe: int) -> None:
    from tests.support.packages.judge import judge

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 5))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    record: Record = {}

    def keep(row: Record) -> None:
        record.update(row)
        os.write(pipe, (json.dumps(row) + "\n").encode())

    code = 1
    try:
        judge(model, keep)
        code = 0
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        said = f"{type(error).__name__}: {error} at {Path(last.filename).name}:{last.lineno}"
        keep({**record, "model": model.label, "raised": said[:600]})
    finally:
        os._exit(code)


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        _child(sys.argv[2])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("journal", type=Path)
    parser.add_argument("wanted", nargs="*")
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--again", action="store_true", help="also what the journal has")
    parser.add_argument("--report", type=Path)
    given = parser.parse_args()
    if given.report:
        from tests.support.packages import stand_ins
        from tests.support.packages.page import page

        stand_ins.install()
        given.report.write_text(page(read(given.journal)), encoding="utf-8")
    else:
        sweep(given.journal, given.wanted, given.minutes, given.again)


if __name__ == "__main__":
    main()
