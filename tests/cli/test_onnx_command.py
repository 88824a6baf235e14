"""`ingot onnx`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
from click.testing import Result
from typer.testing import CliRunner

from ingot.cli import app

FACTORIES = Path(__file__).with_name("factories.py")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["onnx", *arguments])


def factory(name: str) -> str:
    return f"{FACTORIES}:{name}"


def test_it_says_what_it_did(tmp_path: Path) -> None:
    file = tmp_path / "m.onnx"
    result = run(factory("pair"), "-o", str(file), "--dynamic", "input:0=batch[1,64]")
    assert result.exit_code == 0, result.stderr
    for text in ("opset 20", "input", "batch in [1, 64]", str(file), "batch = 3", "largest difference", "convert"):
        assert text in result.stdout
    onnx.checker.check_model(str(file))


def test_json_and_other_options(tmp_path: Path) -> None:
    file = tmp_path / "m.onnx"
    result = run(factory("net"), "-o", str(file), "--opset", "18", "--external-data", "--json")
    assert result.exit_code == 0, result.stderr
    data: Any = json.loads(result.stdout)
    assert data["opset"] == 18 and data["takes"] == ["x", "image"] and len(data["files"]) == 2
    assert data["verified"] == {"by": "ONNX Runtime", "random": False} and data["largest_difference"] < 1e-5
    assert list(data["seconds"])[2:] == ["capture", "passes", "convert", "write", "check", "run"]


def test_without_verifying(tmp_path: Path) -> None:
    result = run(factory("pair"), "-o", str(tmp_path / "m.onnx"), "--no-verify", "--json")
    data = json.loads(result.stdout)
    assert data["verified"] is None and data["differences"] == [] and (tmp_path / "m.onnx").exists()


def test_a_saved_program(tmp_path: Path) -> None:
    program = tmp_path / "program.ingot"
    assert CliRunner().invoke(app, ["capture", factory("branch"), "-o", str(program)]).exit_code == 0
    result = run(str(program), "-o", str(tmp_path / "m.onnx"), "--json")
    assert result.exit_code == 0, result.stderr
    kinds = {node.op_type for node in onnx.load(tmp_path / "m.onnx").graph.node}
    assert "If" in kinds and json.loads(result.stdout)["differences"]


def test_failures_are_reported_and_leave_nothing(tmp_path: Path) -> None:
    result = run(factory("pair"), "-o", str(tmp_path / "m.onnx"), "--opset", "7")
    assert result.exit_code == 1 and "opset=7 cannot be written" in result.stderr
    assert not list(tmp_path.iterdir())
