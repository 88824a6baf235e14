"""Runs tests that PyTorch wrote for torch.export with Ingot in export's place, and says what became of them:

    python -m tests.interop.export_tests ~/pytorch/test/export/test_export.py … [-k TEXT] [--journal FILE --report FILE]

The files come from PyTorch's repository, at the tag of the installed release; they are not part of this project. Each
test runs in a process of its own, first with torch: a test that does not pass there, or that never calls export, says
nothing about Ingot. `torch.export.export(model, args)` is then `ingot.capture(model, args).to_exported()`, and torch's
converter of TorchScript is `ingot.from_torchscript`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import resource
import signal
import traceback
import unittest
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

import ingot
from tests.interop.export_test_reasons import REASONS
from tests.support.pytorch_tests import load, tests_of

_MEMORY = 8 << 30
_SEED = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a test: passed, failed, skipped, timeout or crashed; how often it exported; its last words."""

    kind: str
    calls: int = 0
    text: str = ""
    details: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """One test with torch and with Ingot. A test that is not comparable is not run with Ingot."""

    file: str
    test: str
    torch: Outcome
    ingot: Outcome | None

    @property
    def kind(self) -> str:
        if self.torch.kind != "passed":
            return f"{self.torch.kind} with torch itself"
        if not self.torch.calls:
            return "does not call export"
        assert self.ingot is not None
        return self.ingot.kind


class Replacement:
    """Stands in the place of torch.export.export and of torch's converter, and counts the calls."""

    def __init__(self) -> None:
        self.calls = 0
        self.with_torch = True
        self._export = torch.export.export

    def export(
        self,
        mod: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        dynamic_shapes: Any = None,
        strict: bool = False,
        preserve_module_call_signature: Sequence[str] = (),
        prefer_deferred_runtime_asserts_over_guards: bool = False,
    ) -> ExportedProgram:
        self.calls += 1
        options = {
            "dynamic_shapes": dynamic_shapes,
            "strict": strict,
            "preserve_module_call_signature": preserve_module_call_signature,
        }
        if self.with_torch:
            options["prefer_deferred_runtime_asserts_over_guards"] = prefer_deferred_runtime_asserts_over_guards
            return self._export(mod, args, kwargs, **options)  # type: ignore[arg-type]
        return ingot.capture(mod, args, kwargs, **options).to_exported()  # type: ignore[arg-type]

    def converter(self, original: type) -> type:
        replacement = self

        class Converter:
            """Has the interface of torch's converter: all dims of all tensors are automatic."""

            def __init__(self, script: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None) -> None:
                self.script, self.args, self.kwargs = script, args, kwargs

            def convert(self) -> ExportedProgram:
                replacement.calls += 1
                if replacement.with_torch:
                    converted: ExportedProgram = original(self.script, self.args, self.kwargs).convert()
                    return converted
                return ingot.from_torchscript(self.script, self.args, self.kwargs, dynamic_shapes="auto").to_exported()

        return Converter


def _replace(module: Any, replacement: Replacement) -> None:
    torch.export.export = replacement.export  # type: ignore[assignment]
    for name, value in list(vars(module).items()):
        if value is replacement._export:
            setattr(module, name, replacement.export)
        elif name == "TS2EPConverter":
            setattr(module, name, replacement.converter(value))


def _run_here(test: unittest.TestCase, replacement: Replacement) -> Outcome:
    torch.manual_seed(_SEED)
    result = unittest.TestResult()
    unittest.TestSuite([test]).run(result)
    calls = replacement.calls
    if result.skipped or result.expectedFailures or result.unexpectedSuccesses:
        return Outcome("skipped", calls)
    if result.wasSuccessful():
        return Outcome("passed", calls)
    details = (result.failures + result.errors)[0][1].strip()
    return Outcome("failed", calls, _last_words(details), details[-6000:])


def _last_words(details: str) -> str:
    """The line of a traceback that names the exception, and what it says in its first lines."""
    lines = details.partition("\nTo execute this test")[0].splitlines()
    starts = [i for i, line in enumerate(lines) if line and not line[0].isspace() and "Error" in line.split(":")[0]]
    start = starts[-1] if starts else max(len(lines) - 1, 0)
    return " ".join(line.strip() for line in lines[start : start + 4])[:400]


def _child(test: unittest.TestCase, replacement: Replacement, seconds: int, sender: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
    quiet = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(quiet, stream)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    try:
        outcome = _run_here(test, replacement)
    except BaseException as failure:
        outcome = Outcome("failed", replacement.calls, repr(failure)[:400], traceback.format_exc()[-6000:])
    sender.send(outcome)


def _run(test: unittest.TestCase, replacement: Replacement, seconds: int) -> Outcome:
    """A test in a process of its own, that may use so many seconds of a processor."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_child, args=(test, replacement, seconds, sender))
    process.start()
    sender.close()
    try:
        outcome: Outcome = receiver.recv() if receiver.poll(10 * seconds) else Outcome("timeout")
    except EOFError:
        process.join()
        kind = "timeout" if process.exitcode == -signal.SIGXCPU else "crashed"
        outcome = Outcome(kind, text=f"exit code {process.exitcode}")
    process.kill()
    process.join()
    return outcome


def _run_file(path: Path, given: argparse.Namespace, known: Mapping[str, Row]) -> Iterator[Row]:
    """Runs the tests of a file that were asked for; the baseline is taken from `known` where it is there."""
    replacement = Replacement()
    module = load(path)
    _replace(module, replacement)
    chosen = [test for test in tests_of(unittest.defaultTestLoader.loadTestsFromModule(module)) if given.k in test.id()]
    for test in chosen:
        name = test.id().removeprefix(f"{path.stem}.")
        before = known.get(f"{path.stem}.{name}")
        if given.resume and before is not None:
            continue
        if given.failed and (before is None or before.ingot is None or before.kind == "passed"):
            continue
        replacement.with_torch = True
        baseline = before.torch if before is not None else _run(test, replacement, given.seconds)
        replacement.with_torch = False
        comparable = baseline.kind == "passed" and baseline.calls > 0
        yield Row(path.stem, name, baseline, _run(test, replacement, given.seconds) if comparable else None)


# ---------------------------------------------------------------------- journal and report


def _read(journal: Path | None) -> dict[str, Row]:
    rows: dict[str, Row] = {}
    for line in journal.read_text().splitlines() if journal is not None and journal.exists() else ():
        raw = json.loads(line)
        found = Outcome(**raw["ingot"]) if raw["ingot"] else None
        rows[f"{raw['file']}.{raw['test']}"] = Row(raw["file"], raw["test"], Outcome(**raw["torch"]), found)
    return rows


def report(rows: Sequence[Row]) -> str:
    """The table of files, and every failure with its reason."""
    files = sorted({row.file for row in rows})
    counts = {file: Counter(row.kind for row in rows if row.file == file) for file in files}
    lines = [
        "# PyTorch's tests of torch.export",
        "",
        f"PyTorch {torch.__version__.partition('+')[0]} has tests of torch.export. They run here with",
        "`ingot.capture(…).to_exported()` in the place of `torch.export.export`, and with `ingot.from_torchscript` in",
        "the place of torch's converter. A test is comparable if it calls export and passes with torch itself.",
        "The command is `python -m tests.interop.export_tests FILE … --journal FILE --report FILE`.",
        "",
        "| file | tests | comparable | passed | failed | of these, about torch's own text or configuration |",
        "|---|---|---|---|---|---|",
    ]
    total = Counter[str]()
    for file in files:
        here = [row for row in rows if row.file == file]
        comparable = [row for row in here if row.ingot is not None]
        failed = [row for row in comparable if row.kind != "passed"]
        named = [row for row in failed if f"{row.file}.{row.test}" in REASONS]
        figures = (len(here), len(comparable), len(comparable) - len(failed), len(failed), len(named))
        for column, figure in enumerate(figures):
            total[str(column)] += figure
        lines.append(f"| `{file}.py` | {' | '.join(map(str, figures))} |")
    lines.append(f"| all | {' | '.join(str(total[str(column)]) for column in range(5))} |")
    lines += ["", "Not comparable:", "", "| why | tests |", "|---|---|"]
    others = sum(counts.values(), Counter[str]())
    lines += [f"| {kind} | {count} |" for kind, count in sorted(others.items()) if " " in kind]
    lines += ["", "## Failures", ""]
    for named in (False, True):
        failed = [
            row for row in rows if row.ingot and row.kind != "passed" and (f"{row.file}.{row.test}" in REASONS) == named
        ]
        lines += [
            f"{len(failed)} that compare torch's own text, names or configuration:"
            if named
            else f"{len(failed)} that are Ingot's to close:",
            "",
        ]
        lines += ["| test | what happens |", "|---|---|"] if failed else []
        for row in failed:
            assert row.ingot is not None
            words = REASONS.get(f"{row.file}.{row.test}") or f"{row.ingot.kind}: {row.ingot.text}"
            lines.append(f"| `{row.file}.{row.test}` | {_cell(words)} |")
        lines.append("")
    return "\n".join(lines)


def _cell(text: str) -> str:
    said = " ".join(text.split()).partition(" where: ")[0]
    own = said.partition("\\n\\nTo execute this test")[0]  # as an exception's argument is spelled
    words = re.sub(r"/\S*/", "", own)[:200].replace("|", "\\|").replace("`", "'").replace("<", "&lt;")
    return f"`{words}`" if ":" in words else words


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("-k", default="", metavar="TEXT", help="only tests whose names contain this")
    parser.add_argument("--seconds", type=int, default=90, help="of a processor, for each test")
    parser.add_argument("--journal", type=Path, help="keeps results; torch's own are not run again")
    parser.add_argument("--failed", action="store_true", help="only tests that the journal has as failed")
    parser.add_argument("--resume", action="store_true", help="only tests that the journal does not have")
    parser.add_argument("--report", type=Path, help="writes the report of all that the journal has")
    parser.add_argument("--details", action="store_true", help="prints the tracebacks")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rows = _read(given.journal)
    for path in given.paths:
        before = dict(rows)
        for row in _run_file(path.resolve(), given, before):
            rows[f"{row.file}.{row.test}"] = row
            if row.ingot is not None:
                print(f"{row.kind:8} {row.file}.{row.test}  {row.ingot.text}", flush=True)
                if given.details and row.kind != "passed":
                    print(row.ingot.details, flush=True)
            if given.journal:
                with given.journal.open("a") as file:
                    file.write(json.dumps(asdict(row)) + "\n")
    print(Counter(row.kind for row in rows.values()))
    if given.report:
        given.report.write_text(report(sorted(rows.values(), key=lambda row: (row.file, row.test))) + "\n")


if __name__ == "__main__":
    main()
