"""The runner of PyTorch's own tests, on a file of ours that looks like one of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent

FILE = """
import unittest
import torch
from torch._inductor.compile_fx import compile_fx


class CpuTests(unittest.TestCase):
    def test_compile(self):
        x = torch.randn(3)
        torch.testing.assert_close(torch.compile(torch.sin)(x), x.sin())

    def test_compile_fx(self):
        x = torch.randn(3)
        graph = torch.fx.symbolic_trace(lambda x: (x.cos(),))
        torch.testing.assert_close(compile_fx(graph, [x])(x)[0], x.cos())

    def test_complex(self):
        x = torch.randn(3, 3)
        run = torch.compile(lambda x: torch.linalg.eigvals(x + 1).abs() * 2)
        torch.testing.assert_close(run(x), torch.linalg.eigvals(x + 1).abs() * 2)

    def test_of_inductor(self):
        self.assertIn("inductor_only", str(torch.compile(torch.sin)(torch.ones(2))))

    def test_skipped(self):
        self.skipTest("no GPU")
"""


def test_the_table(tmp_path: Path) -> None:
    file = tmp_path / "test_like_inductor.py"
    file.write_text(FILE)
    command = (sys.executable, "-m", "tests.dynamo.inductor_tests", str(file), "-k", "CpuTests")
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "| native | 3 | 75.0% |" in lines and "| split | 1 | 25.0% |" in lines
    assert "| passed | 3 |" in lines and "| skipped | 1 |" in lines and "| fails in eager, too | 1 |" in lines
    assert any("linalg_eig" in line for line in lines)
    assert "wrong" not in done.stdout and "failed" not in done.stdout
