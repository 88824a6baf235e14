"""Runs tests that PyTorch wrote for Inductor with this backend in Inductor's place, and prints what became of them:

    python -m tests.dynamo.inductor_tests ~/pytorch/test/inductor/test_torchinductor.py [-k CpuTests] [--seconds 120]

The file comes from PyTorch's repository, at the tag of the installed release; it is not part of this project. A test
that fails is run again with graphs in eager: what fails there, too, asks about Inductor itself and is counted apart.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import re
import signal
import sys
import unittest
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import fx

from ingot import dynamo
from ingot.dynamo import GraphReport

Backend = Callable[..., Any]
# What assertions about numbers say.
_WRONG = re.compile(r"Tensor-likes are not|not equal|not close|Scalars are not|mismatch", re.IGNORECASE)
_OPERATOR = re.compile(r"\b(?:aten|prims|[a-z_]+)\.[\w.]+(?=[:\s])")


@dataclass
class Table:
    """What became of graphs and tests."""

    graphs: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    tests: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[str, str, str]] = field(default_factory=list)

    def add_graph(self, report: GraphReport) -> None:
        kind = "native" if report.is_native else "split" if report.native else "eager"
        self.graphs[kind] += 1
        for reason in report.reasons if not report.is_native else ():
            found = _OPERATOR.search(reason)
            self.reasons[found.group() if found else reason.splitlines()[0][:80]] += 1

    def __str__(self) -> str:
        total = sum(self.graphs.values())
        lines = ["| graphs | number | share |", "|---|---|---|"]
        lines += [f"| {kind} | {self.graphs[kind]} | {self.graphs[kind] / max(total, 1):.1%} |" for kind in _KINDS]
        lines += ["", "| reason for eager | graphs |", "|---|---|"]
        lines += [f"| `{reason}` | {count} |" for reason, count in self.reasons.most_common()]
        lines += ["", "| tests | number |", "|---|---|"]
        lines += [f"| {kind} | {count} |" for kind, count in sorted(self.tests.items())]
        lines += ["", *(f"{kind}: {name}: {text}" for kind, name, text in self.failures)]
        return "\n".join(lines)


_KINDS = ("native", "split", "eager")


class TestTimeout(Exception):
    """A test took longer than allowed."""


@contextlib.contextmanager
def in_place_of_inductor(backend: Backend) -> Iterator[None]:
    """Inside, torch.compile without a backend, and calls of compile_fx, reach the backend."""
    from torch._inductor import compile_fx as module

    def compile_fx(graph: fx.GraphModule, inputs: Sequence[Any], *_: Any, **__: Any) -> Any:
        return backend(graph, inputs)

    original = module.compile_fx
    module.compile_fx = compile_fx
    try:
        yield
    finally:
        module.compile_fx = original


def load(path: Path) -> Any:
    """The test file as a module. Its neighbours can be imported, too."""
    for folder in (path.parent, path.parent.parent):
        sys.path.insert(0, str(folder))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _tests(suite: unittest.TestSuite, text: str) -> Iterator[unittest.TestCase]:
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from _tests(item, text)
        elif text in item.id():
            yield item


def _run(test: unittest.TestCase, seconds: int) -> unittest.TestResult:
    def stop(*_: Any) -> None:
        raise TestTimeout(f"it took more than {seconds} s")

    torch._dynamo.reset()
    result = unittest.TestResult()
    previous = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        type(test)(test._testMethodName).run(result)
    except TestTimeout as error:
        result.errors.append((test, str(error)))
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
    return result


def run_file(path: Path, text: str = "", seconds: int = 120) -> Table:
    """Runs the tests of a file whose names contain the text."""
    table = Table()

    def native(graph: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        return dynamo.compile_graph(graph, inputs, options={"on_graph": table.add_graph})

    def eager(graph: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        return graph.forward

    active = [native]
    with in_place_of_inductor(lambda graph, inputs: active[0](graph, inputs)):
        suite = unittest.defaultTestLoader.loadTestsFromModule(load(path))
        for test in _tests(suite, text):
            active[0] = native
            result = _run(test, seconds)
            kind = "passed"
            if result.skipped:
                kind = "skipped"
            elif not result.wasSuccessful():
                said = (result.failures + result.errors)[0][1].strip()
                active[0] = eager
                is_ours = _run(test, seconds).wasSuccessful()
                kind = ("wrong" if _WRONG.search(said) else "failed") if is_ours else "fails in eager, too"
                if is_ours:
                    table.failures.append((kind, test.id(), said.splitlines()[-1][:300]))
            table.tests[kind] += 1
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("-k", default="", metavar="TEXT", help="only tests whose names contain this")
    parser.add_argument("--seconds", type=int, default=120, help="for each test")
    given = parser.parse_args()
    print(run_file(given.path.resolve(), given.k, given.seconds))


if __name__ == "__main__":
    main()
