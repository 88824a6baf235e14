"""The runner of PyTorch's own tests, on a file of ours that looks like one of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent

FILE = """
import os
import signal
import time
import unittest
import torch
from torch._inductor.compile_fx import compile_fx


def run_by_ingot():
    return compile_fx.__self__.mode == "native"


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

    def test_wrong(self):
        self.assertFalse(run_by_ingot(), "Scalars are not equal!")

    def test_rounding(self):
        x = torch.rand(1000)
        total = torch.compile(torch.sum)(x)
        if run_by_ingot() or compile_fx.__self__.mode == "measured":
            self.assertEqual(total, total + 1e-3, "Tensor-likes are not close!")

    def test_crash(self):
        if run_by_ingot():
            os.kill(os.getpid(), signal.SIGSEGV)

    def test_sleep(self):
        if run_by_ingot():
            time.sleep(1000)

    def test_skipped(self):
        self.skipTest("no GPU")
"""


def run(file: Path, *more: str) -> str:
    command = (sys.executable, "-m", "tests.dynamo.inductor_tests", str(file), *more)
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_page(tmp_path: Path) -> None:
    file = tmp_path / "test_like_inductor.py"
    file.write_text(FILE)
    journal = tmp_path / "journal.jsonl"
    page = run(file, "-k", "CpuTests", "--seconds", "20", "--journal", str(journal))
    name = f"`{tmp_path.name}/test_like_inductor.py`"
    assert f"| {name} | 9 | 1 | 2 | 6 | 3 | 1 | 0 | 1 | 1 |" in page
    assert f"| {name} | 3 | 2 | 1 | 0 | 66.7 | 0 |" in page
    assert "linalg_eig" in page
    assert "| `CpuTests.test_crash` | crashed | SIGSEGV |" in page
    assert "| `CpuTests.test_sleep` | timed out | it took more than 20 s |" in page
    outcomes = {line["test"]: line["outcome"] for line in map(json.loads, journal.read_text().splitlines())}
    assert outcomes["CpuTests.test_of_inductor"] == "not comparable"
    assert outcomes["CpuTests.test_rounding"] == "not comparable"
    assert outcomes["CpuTests.test_wrong"] == "wrong"
    assert len(journal.read_text().splitlines()) == 9
    assert run(file, "-k", "CpuTests", "--journal", str(journal)) == page, "what the journal has is not done again"
    assert len(journal.read_text().splitlines()) == 9
    run(file, "--journal", str(journal), "--again", "linalg_eig", "skipped")
    assert len(journal.read_text().splitlines()) == 11
    run(file, "--journal", str(journal), "--again", "split")
    assert len(journal.read_text().splitlines()) == 12
