"""The benchmark of functions runs, on sizes that take no time, and says what it found beside what is needed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks import functions
from benchmarks.support import report


def test_it_measures_what_it_is_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)  # seconds for each function
    monkeypatch.setattr(functions, "PAUSE", 0.0)
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    threads = torch.get_num_threads()
    try:
        found = functions.main(
            [*("--lengths", "32"), *("--functions", "trivial", "causal"), *("--scans", "1×16×8"), *("--memory", "64")]
        )
    finally:
        torch.set_num_threads(threads)
    names = {figure.name.split(",")[0] for figure in found}
    assert {"forward", "compile", "ingot ÷ sdpa", "causal ÷ trivial at 1×8×32×64", "scan"} <= names
    assert all(figure.found > 0 for figure in found)
    assert not list(tmp_path.iterdir())  # a part of it is not a result


def test_a_figure_tells_whether_it_is_what_is_needed() -> None:
    good, bad = functions.Figure("speed", 1.6, least=1.5), functions.Figure("share", 0.7, most=0.6)
    assert good.holds and str(good) == "speed: 1.60 (needed: at least 1.5)"
    assert not bad.holds and "MISSED" in str(bad)


def test_memory_that_grows_with_the_length_is_linear_and_other_memory_is_not() -> None:
    rows = [{"shape": "a", "function": "alibi", "ms": dict.fromkeys(("ingot", "compiled flex", "eager"), 1.0)}]
    rows[0]["compile_s"] = {"ingot": 1.0, "compiled flex": 10.0}
    for power, holds in ((1, True), (2, False)):
        memory = [{"length": n, "kib": n**power} for n in (512, 1024, 8192)]
        assert functions._summary(rows, [], memory)[-1].holds is holds
