"""The runner of PyTorch's own tests of torch.export, on a file of ours that looks like one of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent

FILE = """
import os
import unittest
import torch
from torch._export.converter import TS2EPConverter
from torch.export import export


class Linear(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)

    def forward(self, x):
        return self.linear(x)


class TestExport(unittest.TestCase):
    def test_export(self):
        model, x = Linear(), torch.randn(4, 3)
        torch.testing.assert_close(export(model, (x,), strict=True).module()(x), model(x))

    def test_converter(self):
        model, x = torch.nn.ReLU(), torch.randn(4, 3)
        program = TS2EPConverter(torch.jit.trace(model, (x,)), (x,)).convert()
        torch.testing.assert_close(program.module()(x), model(x))

    def test_of_torch(self):
        program = torch.export.export(Linear(), (torch.randn(4, 3),))
        self.assertFalse(hasattr(program.module(), "from_ingot"))
        self.assertEqual(torch.export.export.__self__.with_torch, True)

    def test_crash(self):
        export(Linear(), (torch.randn(4, 3),))
        if not torch.export.export.__self__.with_torch:
            os.abort()

    def test_slow(self):
        export(Linear(), (torch.randn(4, 3),))
        while not torch.export.export.__self__.with_torch:
            pass

    def test_without(self):
        self.assertEqual(1, 1)

    def test_failing(self):
        self.assertEqual(1, 2)

    def test_skipped(self):
        self.skipTest("no GPU")
"""


def test_each_kind(tmp_path: Path) -> None:
    file, journal, report = tmp_path / "test_like_export.py", tmp_path / "journal", tmp_path / "report.md"
    file.write_text(FILE)
    command = [sys.executable, "-m", "tests.interop.export_tests", str(file), "--seconds", "20"]
    command += ["--journal", str(journal), "--report", str(report)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    found = {row["test"].partition(".")[2]: row for row in map(json.loads, journal.read_text().splitlines())}
    kinds = {name: row["ingot"] and row["ingot"]["kind"] for name, row in found.items()}
    assert kinds == {
        "test_export": "passed",
        "test_converter": "passed",
        "test_of_torch": "failed",
        "test_crash": "crashed",
        "test_slow": "timeout",
        "test_without": None,
        "test_failing": None,
        "test_skipped": None,
    }
    text = report.read_text()
    assert "| `test_like_export.py` | 8 | 5 | 2 | 3 | 0 |" in text
    assert "| does not call export | 1 |" in text and "| failed with torch itself | 1 |" in text
    assert "| `test_like_export.TestExport.test_of_torch` |" in text

    again = subprocess.run([*command, "--failed"], capture_output=True, text=True, cwd=ROOT, check=False)
    assert again.returncode == 0, again.stderr
    assert "passed" not in again.stdout.partition("Counter")[0]
