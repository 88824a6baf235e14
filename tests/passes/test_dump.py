"""Snapshots of each stage as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import ingot
from ingot import passes
from ingot.errors import PassError


@pytest.fixture
def program() -> ingot.Program:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(inplace=True)).eval()
    return ingot.capture(model, (torch.randn(2, 4),))


def test_one_file_a_stage(program: ingot.Program, tmp_path: Path) -> None:
    folder = tmp_path / "stages"
    core = ingot.transform(
        program, [passes.functionalize, (passes.constant_fold, {"limit_bytes": 7})], snapshots=folder
    )
    files = sorted(folder.iterdir())
    assert [f.name for f in files] == ["00_before.json", "01_functionalize.json", "02_constant_fold.json"]
    before, functional, folded = (json.loads(f.read_text(encoding="utf-8")) for f in files)
    assert before["step"] is None and before["dialect"] == "CAPTURED" and functional["dialect"] == "FUNCTIONAL"
    assert folded["step"]["options"] == {"limit_bytes": "7"} and folded["step"]["changes"] > 0
    assert folded["code"] == str(core)
    targets = [[n["target"] for n in stage["graphs"][0]["nodes"]] for stage in (before, functional, folded)]
    assert "aten.relu_" in targets[0] and "aten.relu_" not in targets[1]
    assert [any("batch_norm" in target for target in stage) for stage in targets] == [True, True, False]
    relu = next(n for n in folded["graphs"][0]["nodes"] if n["target"] == "aten.relu")
    assert relu["inputs"] == ["linear"] and relu["value"] == "f32[2, 4]" and relu["module"] == "2"
    assert relu["source"].rpartition(":")[2].isdigit()


def test_files_of_an_earlier_run_go(program: ingot.Program, tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text("{}")
    ingot.transform(program, [passes.autocast, passes.grad_mode], snapshots=str(tmp_path))
    ingot.transform(program, [passes.functionalize], snapshots=tmp_path)
    assert sorted(f.name for f in tmp_path.iterdir()) == ["00_before.json", "01_functionalize.json", "mine.json"]


def test_a_folder_that_cannot_be(program: ingot.Program, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PassError, match=r"Snapshots cannot be written to .*file\.\n"):
        ingot.transform(program, [passes.autocast], snapshots=tmp_path / "file")
