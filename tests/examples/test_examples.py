"""Every example runs as it stands, says what it promises, and writes nothing where it is run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(folder: Path, *command: str) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("quickstart.py", ["equal to eager: (8, 10)", "IG_KERNEL void k0("]),
        ("dynamic_sizes.py", ["batch 64, length 33", "600 tokens: ", "length"]),
        (
            "functions.py",
            ["ALiBi: equal to eager", "learned relative bias: loss from", "the trained layer: equal to eager"],
        ),
        (
            "custom_pass.py",
            ["changed what the program computes", "approximate_gelu: 2 changes", "with the approximation"],
        ),
        ("quantize.py", ["after training: ", "signal to noise of the results", "left 0 layers", "in training: "]),
        (
            "without_torch.py",
            ["takes  images: float32[batch, 3, 32, 32]", "self-test", "equal to eager: logits, (5, 10)"],
        ),
    ],
)
def test_example(name: str, texts: list[str], tmp_path: Path) -> None:
    said = run(tmp_path, sys.executable, str(EXAMPLES / name))
    for text in texts:
        assert text in said
    assert not list(tmp_path.iterdir())


def test_the_demo(tmp_path: Path) -> None:
    said = run(tmp_path, sys.executable, str(EXAMPLES / "demo.py"), "--small", "--repeat", "1")
    assert said.count("equal to eager") == said.count("without torch: ") == 2
    assert "Ingot" in said and "eager" in said and not list(tmp_path.iterdir())


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_from_c(tmp_path: Path) -> None:
    for name in ("main.c", "model.py", "Makefile"):
        shutil.copy(EXAMPLES / "from_c" / name, tmp_path)
    # The tests may have been started by make, which then says more.
    said = run(tmp_path, "make", "--no-print-directory", f"PYTHON={sys.executable}")
    torchs, _, ours = said.partition("torch:\n")[2].partition("model: ")
    want = [float(word) for line in torchs.splitlines() for word in line.split()]
    have = [float(word) for line in ours.partition("C:\n")[2].splitlines() for word in line.split()]
    assert len(want) == 6 and have == pytest.approx(want, rel=1e-4)
    run(tmp_path, "make", "clean")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["Makefile", "main.c", "model.py"]


def test_every_example_has_a_test() -> None:
    tested = Path(__file__).read_text()
    for file in EXAMPLES.iterdir():
        assert f'"{file.name}"' in tested, file
