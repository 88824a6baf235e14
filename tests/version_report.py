"""The suite on the torch that is installed, as a row of docs/reports/torch_versions.md.

    python -m tests.version_report --write docs/reports/torch_versions.md --machine "CPU, 2 cores"

A run replaces the row of the same torch, Python and machine and keeps the others, so that one file collects the runs of
several machines.
"""

from __future__ import annotations

import argparse
import platform
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.support.report import commit
from ingot_runtime.cpu_features import cores

PACKAGES = ("transformers", "numpy", "onnx", "onnx-ir", "onnxruntime", "onnxscript", "safetensors")

TITLE = """# The suite by torch version

Written by `python -m tests.version_report`, which runs `pytest -m "not slow"` on the torch that is installed. CI runs
on one of these versions; the others are run by hand.

| torch | Python | machine | passed | failed | errors | skipped | commit |
|---|---|---|---|---|---|---|---|
"""


@dataclass(frozen=True)
class Run:
    """What one run of the suite came to."""

    passed: int
    failed: tuple[str, ...]
    errors: tuple[str, ...]
    skipped: tuple[tuple[str, int], ...]  # the reason, and how many tests have it

    @property
    def complete(self) -> bool:
        return self.passed > 0 and not self.failed and not self.errors


def read_junit(path: Path) -> Run:
    """The outcomes in a file that `pytest --junitxml` wrote. A test that fails in its teardown also is an error."""
    failed, errors = [], []
    reasons: Counter[str] = Counter()
    passed = 0
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        name = f"{case.get('classname', '')}::{case.get('name', '')}"
        kinds = {child.tag: child for child in case if child.tag in ("failure", "error", "skipped")}
        if "failure" in kinds:
            failed.append(name)
        if "error" in kinds:
            errors.append(name)
        if "skipped" in kinds:
            reasons[kinds["skipped"].get("message", "")] += 1
        passed += not kinds
    return Run(passed, tuple(failed), tuple(errors), tuple(sorted(reasons.items())))


def section(run: Run, torch: str, machine: str, at: str, packages: Sequence[tuple[str, str]]) -> tuple[str, str]:
    """A row of the table, and the text below it that says more."""
    python = platform.python_version()
    numbers = (run.passed, len(run.failed), len(run.errors), sum(count for _, count in run.skipped))
    row = f"| {torch} | {python} | {machine} | {' | '.join(f'{n:,}' for n in numbers)} | {at} |"
    text = [f"## torch {torch}, Python {python}, {machine}", "", ", ".join(f"{n} {v}" for n, v in packages) + "."]
    for title, names in (("Failed", run.failed), ("Errors", run.errors)):
        if names:
            text += ["", f"{title}:", "", *(f"- `{name}`" for name in names)]
    if run.skipped:
        text += ["", "Skipped:", "", *(f"- {count:,} × {_one_line(reason)}" for reason, count in run.skipped)]
    return row, "\n".join(text)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def merge(document: str, row: str, text: str) -> str:
    """The report with this row and its text in place of those of the same torch, Python and machine."""
    sections = {_heading(part): part.strip() for part in re.split(r"^(?=## )", document, flags=re.M)[1:]}
    rows = {_key(line): line for line in document.splitlines() if line.startswith("| ") and _key(line)[0] != "torch"}
    rows[_key(row)], sections[_heading(text)] = row, text
    ordered = sorted(rows, key=lambda key: (_numbers(key[0]), _numbers(key[1]), key[2]), reverse=True)
    kept = [sections[heading] for heading in (f"torch {t}, Python {p}, {m}" for t, p, m in ordered)]
    return TITLE + "\n".join(rows[key] for key in ordered) + "\n\n" + "\n\n".join(kept) + "\n"


def _heading(part: str) -> str:
    return part.splitlines()[0].removeprefix("## ")


def _key(row: str) -> tuple[str, str, str]:
    torch, python, machine = (cell.strip() for cell in row.strip("|").split("|")[:3])
    return torch, python, machine


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version.split("+")[0])))


def _packages() -> Iterator[tuple[str, str]]:
    for name in PACKAGES:
        try:
            yield name, metadata.version(name)
        except metadata.PackageNotFoundError:
            yield name, "not installed"


def _commit() -> str:
    at = commit()
    return "unknown" if at["commit"] is None else at["commit"][:9] + (" and changes" if at["dirty"] else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, required=True, help="the report; rows of other versions in it are kept")
    parser.add_argument("--machine", default=f"{platform.machine()}, {cores()} cores", help="the kind of machine")
    parser.add_argument("--commit", help="of the code under test, where there is no repository to ask")
    parser.add_argument("--junit", type=Path, help="outcomes of a run that is over, instead of running the suite")
    parser.add_argument("--processes", type=int, default=2, help="how many tests run at a time")
    parser.add_argument("tests", nargs="*", help="files and options for pytest; the whole suite by default")
    options = parser.parse_args()
    at = options.commit or _commit()
    with tempfile.TemporaryDirectory() as folder:
        junit = options.junit or Path(folder) / "junit.xml"
        if options.junit is None:
            pytest = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", f"--junitxml={junit}"]
            subprocess.run([*pytest, "-n", str(options.processes), *options.tests], check=False)
        run = read_junit(junit)
    row, text = section(run, metadata.version("torch"), options.machine, at, list(_packages()))
    before = options.write.read_text() if options.write.exists() else ""
    options.write.write_text(merge(before, row, text))
    print(row)
    sys.exit(0 if run.complete else 1)


if __name__ == "__main__":
    main()
