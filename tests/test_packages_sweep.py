"""The sweep over models of other packages: its judge, its processes, its journal and its page, on models of our own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.packages import page as pages
from tests.support.packages import sweep
from tests.support.packages.entry import Model, edges, integers, normal
from tests.support.packages.judge import Record, judge

ROOT = Path(__file__).resolve().parent.parent


def _records(model: Model) -> Record:
    kept: list[Record] = []
    judge(model, lambda row: kept.append(json.loads(json.dumps(row))))
    return kept[-1]


def _linear() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU())


def test_a_model_that_is_right_with_every_size() -> None:
    record = _records(Model("own", "linear", _linear, (normal("batch", 4),), {"batch": 2}))
    assert record["step"] == "done"
    for mode in ("static", "dynamic"):
        row = record[mode]
        assert (row["capture"], row["export"], row["native"], row["onnx"]) == ("ok", "ok", "right", "right")
        assert row["capture_seconds"] > 0 and row["export_seconds"] > 0
    assert record["static"]["sizes"] == 1 and record["dynamic"]["sizes"] == 5


class _OfData(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if float(x.sum()) > 0 else -x


class _Branches(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.shape[0] > 8 else x


def test_what_cannot_be_captured_is_tried_with_torch_compile_too() -> None:
    record = _records(Model("own", "data", _OfData, (normal(3),), {}))
    assert "DataDependent" in record["static"]["capture"] and record["static"]["export"] != "ok"
    assert "dynamo" in record["static"] and "native" not in record["static"] and "dynamic" not in record


def test_a_size_that_eager_runs_and_the_program_refuses_is_not_right() -> None:
    record = _records(Model("own", "branches", _Branches, (normal("n", 4),), {"n": 3}))
    assert record["static"]["native"] == "right"
    assert record["dynamic"].get("native") == "narrow" or record["dynamic"]["capture"] != "ok"


def test_sizes_are_multiples_where_a_shape_says_so() -> None:
    model = Model("own", "graph", _linear, (normal("nodes", 4), edges("8*some", "nodes"), integers("nodes")),
                  {"nodes": 5, "some": 2})  # fmt: skip
    assert [tuple(one.shape) for one in model.args()] == [(5, 4), (2, 16), (5,)]
    assert [tuple(one.shape) for one in model.args({"some": 3})] == [(5, 4), (2, 24), (5,)]
    assert int(model.args({"nodes": 1})[1].max()) == 0
    assert [label for label, _ in model.other_sizes()] == ["1", "2", "odd", "large"]
    assert str(model.dynamic()[1][1]) == "8*some"


# ---------------------------------------------------------------------- processes


def _ends() -> nn.Module:
    os.kill(os.getpid(), 9)
    raise AssertionError


def _raises() -> nn.Module:
    raise ValueError("no such model")


def test_a_model_that_ends_its_process_or_raises_is_noted() -> None:
    """In a process of its own: this one may hold more memory than a model is allowed to have."""
    script = (
        "import json; from tests import test_packages_sweep as own; from tests.support.packages.sweep import _in_fork\n"
        "cases = ((own._ends, ()), (own._raises, ()), (own._linear, (own.normal(2, 4),)))\n"
        "print(json.dumps([_in_fork(own.Model('own', 'model', make, args, {})) for make, args in cases]))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-1500:]
    ended, raised, right = json.loads(done.stdout.splitlines()[-1])
    assert ended["ended"] == -9 and ended["step"] == "building"
    assert "ValueError: no such model" in raised["raised"]
    assert right.get("static", {}).get("native") == "right" and right["seconds"] > 0, right


def test_the_last_record_of_a_model_counts(tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    journal.write_text('{"model": "a/x", "step": "starting"}\n{"model": "a/x", "step": "done"}\n')
    assert sweep.read(journal) == {"a/x": {"model": "a/x", "step": "done"}}
    assert sweep.read(tmp_path / "none") == {}


# ---------------------------------------------------------------------- the page


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    def own() -> Iterator[Model]:
        yield from (Model("own", name, _linear, (), {}) for name in ("one", "two", "three", "four"))

    monkeypatch.setattr(pages, "PACKAGES", {"own": own})


def test_the_page_counts_and_names(registry: Any) -> None:
    times = {"capture_seconds": 1.0, "export_seconds": 4.0}
    right = {"capture": "ok", "export": "ok", "native": "right", "onnx": "right"} | times
    refused = {"capture": "CaptureError: no | way", "export": "ok", "export_seconds": 1.0}
    wrong = right | {"native": "wrong", "native_detail": "other numbers", "capture_seconds": 4.0}
    rows = [
        {"model": "own/one", "step": "done", "static": right, "dynamic": wrong},
        {"model": "own/two", "step": "done", "static": refused},
        {"model": "own/three", "step": "compiling", "static": {"capture": "ok"}, "ended": -9},
    ]
    text = pages.page({str(row["model"]): row for row in rows})
    assert "| static | 3 | 2 | 2 | 1 | 1 (50.0%) |" in text
    assert "| dynamic | 1 | 1 | 1 | 0 | 0 (0.0%) | 0 | 0 | 1 |" in text
    assert "geometric mean 0.25 of 1" in text and "geometric mean 1.00 of 1" in text
    assert "| own/two | static | CaptureError: no \\| way | ok | – |" in text
    assert "| own/one | dynamic | wrong | other numbers |" in text
    assert "| own/three | compiling | ended with -9 |" in text
    assert "Crashed or out of time or memory: 1: own/three." in text
    assert "1 of 4: own/four." in text
    assert "Judged by an unknown commit (3 models)." in text
