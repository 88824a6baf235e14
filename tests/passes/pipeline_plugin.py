"""A pytest plugin: whatever a test captures goes through the default pipeline, and the test fails where that fails.

    pytest -p tests.passes.pipeline_plugin tests/frontend

So the hand-written models of the capture tests need no second list. `PIPELINE_JOURNAL` names a file that gets a line
for each program.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import ingot
from ingot import api
from ingot.ir.program import Program
from tests.passes.pipeline_zoo import Outcome, relative_difference, run_pipeline


@pytest.fixture(autouse=True)
def pipeline(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Wraps `ingot.capture`. What goes wrong in the pipeline is raised when the test is over, for it may expect
    errors."""
    problems: list[Exception] = []
    capture: Callable[..., Program] = api.capture

    def captured(*args: Any, **kwargs: Any) -> Program:
        program = capture(*args, **kwargs)
        mode = "dynamic" if program.dims else "static"
        outcome = Outcome(request.node.name, mode, 0.0, nodes_before=len(program.graph.nodes))
        began = time.perf_counter()
        try:
            core = run_pipeline(program)
            outcome.nodes_after = len(core.graph.nodes)
            outcome.difference = relative_difference(program, core)
        except Exception as problem:
            outcome.failure = f"{type(problem).__name__}: {problem}"
            problems.append(problem)
        outcome.seconds = time.perf_counter() - began
        if path := os.environ.get("PIPELINE_JOURNAL"):
            with Path(path).open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(outcome)) + "\n")
        return program

    monkeypatch.setattr(api, "capture", captured)
    monkeypatch.setattr(ingot, "capture", captured)
    yield
    if problems:
        raise problems[0]
