"""Completion in a shell: files, functions, names in files, choices."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import ingot
from ingot.cli import app, compile, main, quantize
from ingot.cli.inputs import completion
from ingot.codegen.build.isa import GROUPS, ISAS, PORTABLE
from ingot.quantization.recipes import RECIPES


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module of factories, a saved program, and others' files."""
    monkeypatch.chdir(tmp_path)
    Path("models.py").write_text("import os\n\ndef make(): ...\ndef make_large(x=1): ...\ndef takes(x): ...\n")
    Path("models.txt").touch()
    Path("parts").mkdir()
    Path("parts", "heads.py").write_text("def head(): ...\n")
    program = ingot.capture(torch.nn.Linear(4, 2), (torch.ones(3, 4),), dynamic_shapes={"input": {0: "batch"}})
    program.save("program.ingot")
    return tmp_path


def complete(shell: str, *words: str, incomplete: str) -> list[str]:
    """What the command answers a shell; the shell's own part is `words` after the command's name."""
    line = ["ingot", *words, incomplete]
    if shell == "bash":
        given = {"_INGOT_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(line), "COMP_CWORD": str(len(line) - 1)}
    else:
        given = {"_INGOT_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": " ".join(line)}
    shown = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
        for name, value in given.items():
            patch.setenv(name, value)
        main()
    return shown.getvalue().split()


def test_references(folder: Path) -> None:
    assert completion.complete_reference("mo") == ["models.py:"]
    assert completion.complete_reference("") == ["models.py:", "parts/", "program.ingot"]
    assert completion.complete_reference("parts/h") == ["parts/heads.py:"]
    assert completion.complete_reference("./pro") == ["./program.ingot"]
    assert completion.complete_reference("models.py:make") == ["models.py:make", "models.py:make_large"]
    assert completion.complete_reference("parts.heads:") == ["parts.heads:head"]
    assert completion.complete_reference("nowhere/x") == completion.complete_reference("nowhere.py:") == []


def test_bash_gets_what_stands_behind_its_breaks(folder: Path) -> None:
    assert complete("bash", "compile", "models.py", ":", incomplete="make_") == ["make_large"]
    assert complete("bash", "compile", "models.py", incomplete=":") == ["make", "make_large"]
    assert complete("bash", "inspect", "program.ingot", "--size", incomplete="b") == ["batch="]
    assert "clear" in complete("bash", "cache", incomplete="")
    assert complete("bash", "compile", "--prec", incomplete="--prec") == ["--precision"]


def test_zsh(folder: Path) -> None:
    assert '"models.py' in " ".join(complete("zsh", "compile", incomplete="mod"))


def test_lists_are_those_of_the_code() -> None:
    assert (
        set(compile.ISAS) == {*ISAS, *GROUPS} and compile.ISAS[:4] == PORTABLE and set(quantize.RECIPES) == set(RECIPES)
    )
    versions = ["x86-64-v4-amx", "x86-64-v4-bf16", "x86-64-v4", "x86-64-v4-macos"]
    assert completion.choose_from(compile.ISAS)("x86-64-v4") == versions
    names = set(completion.complete_passes(""))
    assert {"functionalize", "decompose"} <= names <= set(ingot.passes.REGISTRY)
    assert completion.complete_passes("functionalize,dec") == [
        "functionalize,decompose",
        "functionalize,decompose_complex",
    ]


def test_help_of_compile_lists_instruction_sets() -> None:
    shown = " ".join(CliRunner().invoke(app, ["compile", "--help"], env={"COLUMNS": "120"}).stdout.split())
    for name in compile.ISAS:
        assert name in shown


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_in_a_bash(folder: Path) -> None:
    """The script that `ingot --show-completion` prints, called as bash calls it."""
    command = folder / "ingot"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m ingot.cli "$@"\n')
    command.chmod(0o755)
    script = subprocess.run(
        (sys.executable, "-c", "import sys; sys.argv = ['ingot']; from ingot.cli import main; main()"),
        env={**os.environ, "_INGOT_COMPLETE": "source_bash"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    asked = "COMP_WORDS=(ingot compile models.py : make_); COMP_CWORD=4; _ingot_completion ingot; echo ${COMPREPLY[@]}"
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    done = subprocess.run(("bash", "-c", f"{script}\n{asked}"), env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == "make_large", done.stderr
