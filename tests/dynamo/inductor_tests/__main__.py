"""Runs tests that PyTorch wrote for Inductor with this backend in Inductor's place, and says what became of them:

    python -m tests.dynamo.inductor_tests ~/pytorch/test/inductor/test_torchinductor.py [-k CpuTests] [--seconds 120]
    python -m tests.dynamo.inductor_tests --repository ~/pytorch --journal JOURNAL.jsonl --write OUTPUT.md

The files come from PyTorch's repository, at the tag of the installed release; with `--repository` they are those of
FILES, and some of the tests of the longest. A test that fails is run again with graphs in eager, and as AOTAutograd
makes them: what fails there, too, asks about Inductor itself and is not comparable. What the journal has is not done
again; `--again` names what is: outcomes, kinds of graphs ("eager", "split"), commits, and parts of names and reasons.

    driver         runs tests in worker processes, and runs a test that fails again in eager
    worker         one process: loads a test file, runs the tests that it is sent
    substitution   what stands in the place of Inductor
    outcome        what became of a test, and of each graph in it
    page           the table of docs/reports
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.dynamo.inductor_tests.driver import ROOT, Driver
from tests.dynamo.inductor_tests.outcome import Outcome
from tests.dynamo.inductor_tests.page import page

# Of each file, one test in how many.
FILES = {
    "inductor/test_torchinductor.py": 1,
    "inductor/test_torchinductor_opinfo.py": 6,
    "inductor/test_flex_attention.py": 4,
    "functorch/test_aotdispatch.py": 6,
    "functorch/test_control_flow.py": 4,
}


def read(journal: Path) -> list[dict[str, Any]]:
    """The last line of each test."""
    lines = [json.loads(line) for line in journal.open(encoding="utf-8")] if journal.exists() else []
    return list({(line["of"], line["test"]): line for line in lines}.values())


def choose(tests: Sequence[str], text: str, every: int) -> list[str]:
    """Those whose names contain the text, and of them one in so many."""
    return [test for test in tests if text in test][::every]


def is_wanted(line: dict[str, Any], again: Sequence[str]) -> bool:
    """Whether one of these is a test's outcome, kind of graph or code, or a part of its name or of what was said."""
    whole = {line["outcome"], line["code"], *(graph["kind"] for graph in line["graphs"])}
    reasons = [reason for graph in line["graphs"] for reason in graph.get("reasons", ())]
    texts = [line["test"], line["said"] if line["outcome"] not in ("passed", "skipped") else "", *reasons]
    return any(what in whole or any(what in text for text in texts) for what in again)


def commit() -> str:
    """The code that runs: its commit, and a plus where files of it changed."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    return git("rev-parse", "--short=9", "HEAD") + ("+" if git("status", "--porcelain", "--", "src") else "")


def run(path: Path, given: argparse.Namespace, every: int, known: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The outcome of each test of a file that is not known, and of those that are wanted again."""
    name = f"{path.parent.name}/{path.name}"
    done = {line["test"] for line in known if line["of"] == name and not is_wanted(line, given.again)}
    code = commit()
    with Driver(path, given.seconds) as driver:
        tests = choose(driver.tests(), given.k, every)
        if given.again:
            tests = [line["test"] for line in known if line["of"] == name and given.k in line["test"]]
        for outcome in driver.run([test for test in tests if test not in done]):
            _say(outcome)
            yield outcome.line() | {"code": code}


def _say(outcome: Outcome) -> None:
    if outcome.outcome not in ("passed", "skipped", "not comparable"):
        last = outcome.said.splitlines()[-1][:200] if outcome.said else ""
        print(f"{outcome.outcome}: {outcome.test}: {last}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--repository", type=Path, default=os.environ.get("PYTORCH_REPOSITORY"))
    parser.add_argument("-k", default="", metavar="TEXT", help="only tests whose names contain this")
    parser.add_argument("--seconds", type=int, default=120, help="for each test")
    parser.add_argument("--every", type=int, help="one test in how many")
    parser.add_argument("--journal", type=Path, help="one line per test")
    parser.add_argument("--again", nargs="*", default=[], metavar="TEXT", help="run again what the journal has of this")
    parser.add_argument("--write", type=Path, help="the page as Markdown, of all that the journal has")
    given = parser.parse_args()
    files = {path.resolve(): given.every or 1 for path in given.paths}
    if not files and given.repository is not None:
        files = {given.repository.resolve() / "test" / name: given.every or every for name, every in FILES.items()}
    lines = read(given.journal) if given.journal else []
    for path, every in files.items():
        for line in run(path, given, every, list(lines)):
            lines.append(line)
            if given.journal:
                with given.journal.open("a", encoding="utf-8") as out:
                    out.write(json.dumps(line) + "\n")
    text = page(list({(line["of"], line["test"]): line for line in lines}.values()))
    if given.write:
        given.write.write_text(text, encoding="utf-8")
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
