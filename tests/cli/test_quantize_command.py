"""`ingot quantize`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from click.testing import Result
from typer.testing import CliRunner

import ingot
from ingot.cli import app

FACTORIES = Path(__file__).with_name("factories.py")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["quantize", *arguments])


def test_a_factory_with_data_and_a_report(tmp_path: Path) -> None:
    file, page = tmp_path / "q.ingot", tmp_path / "report.html"
    options = ["--data", f"{FACTORIES}:batches", "--float", "conv", "--report", "--html", str(page)]
    result = run(f"{FACTORIES}:net", "-o", str(file), *options)
    assert result.exit_code == 0, result.stderr
    for text in ("int8_static", "factories.py:batches", str(file), "body.0", "own", "calibrate"):
        assert text in result.stdout
    assert "<svg" in page.read_text()
    program = ingot.load(file)
    assert isinstance(program, ingot.Program)
    program.verify()
    names = [str(n.target) for n in program.graph.nodes]
    assert sum("dequantize_per_channel" in name for name in names) == 2  # a tied weight is stored once
    assert program(torch.ones(5, 4), torch.ones(2, 4, 9, 9))[0].shape == (5, 8)


def test_a_saved_program_and_json(tmp_path: Path) -> None:
    program = tmp_path / "program.ingot"
    assert CliRunner().invoke(app, ["capture", f"{FACTORIES}:net", "-o", str(program)]).exit_code == 0
    result = run(str(program), "-o", str(tmp_path / "q.ingot"), "--recipe", "int8_weight_only", "--json")
    assert result.exit_code == 0, result.stderr
    data: Any = json.loads(result.stdout)
    assert data["weights"] > 0 and data["activations"] == 0 and data["report"] is None
    assert data["bytes_after"] < data["bytes_before"]


def test_what_is_wrong_is_reported(tmp_path: Path) -> None:
    result = run(f"{FACTORIES}:net", "-o", str(tmp_path / "q.ingot"), "--recipe", "int3")
    assert result.exit_code == 2 and "int8_static" in result.stderr
    result = run(f"{FACTORIES}:net", "-o", str(tmp_path / "q.ingot"), "--data", f"{FACTORIES}:batchs")
    assert result.exit_code != 0 and "did you mean batches" in result.stderr
