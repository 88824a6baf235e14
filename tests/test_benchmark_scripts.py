"""Scripts of benchmarks/ find the packages they import: their own folder has an onnx.py and a cuda.py."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import sizes

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = [path for path in sorted((ROOT / "benchmarks").glob("*.py")) if "__main__" in path.read_text()]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_scripts_leave_their_folder_before_they_import(script: Path) -> None:
    """Python puts a script's folder in front of all others; `sys.path[0] = …` puts the repository there instead."""
    left = False
    statements = [node for node in ast.walk(ast.parse(script.read_text())) if isinstance(node, ast.stmt)]
    for node in sorted(statements, key=lambda node: node.lineno):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "sys.path[0]":
            left = True
        names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        foreign = [name for name in names if name.partition(".")[0] not in sys.stdlib_module_names]
        assert left or not foreign, f"{script.name} imports {', '.join(foreign)} from wherever its own folder leads"


def test_a_script_runs() -> None:
    done = subprocess.run(
        [sys.executable, "benchmarks/accuracy.py", "--help"], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0 and "--write" in done.stdout, done.stderr[-1500:]


def test_a_size_that_takes_longer_than_both_neighbours_is_a_cliff() -> None:
    rows = [
        {"series": series, "size": size, "us_an_element": time}
        for series, times in (("a", (5.0, 2.0, 4.0, 3.0)), ("b", (9.0, 9.0)))
        for size, time in enumerate(times)
    ]
    assert sizes.find_cliffs(rows) == ["a 2: 1.33"]  # the first of a series is none: small sizes cost more anyway
