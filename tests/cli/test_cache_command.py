"""`ingot cache ls` and `ingot cache clear`."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ingot.cli import app


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with a library of today, an old one, an old failure, and work that goes on."""
    made = tmp_path / "cache"
    monkeypatch.setenv("INGOT_CACHE_DIR", str(made))
    for name, days in (
        ("libraries/ab/ab1.so", 0),
        ("libraries/cd/cd1.so", 10),
        ("failed/x/said.txt", 9),
        ("work/w", 0),
    ):
        file = made / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"x" * 1000)
        then = time.time() - 86400 * days - 60
        os.utime(file, (then, then))
        if name.startswith("failed"):
            os.utime(file.parent, (then, then))
    (made / "locks").mkdir()
    (made / "locks" / "ab1.lock").touch()
    return made


def run(*arguments: str) -> Any:
    done = CliRunner().invoke(app, ["cache", *arguments, "--json"])
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def test_ls(folder: Path) -> None:
    data = run("ls")
    assert data["folder"] == str(folder) and data["bytes"] == 4000 and not data["disabled"]
    libraries, failed, work = data["contents"]
    assert libraries["entries"] == 2 and libraries["oldest_days"] == pytest.approx(10, abs=0.1)
    assert failed["entries"] == 1 and work["entries"] == 1
    text = CliRunner().invoke(app, ["cache", "ls"]).stdout
    assert str(folder) in text and "10 days ago" in text and "compiled libraries" in text and "1 minute ago" in text


def test_ls_where_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGOT_CACHE_DIR", str(tmp_path / "none"))
    monkeypatch.setenv("INGOT_DISABLE_CACHE", "1")
    data = run("ls")
    assert data["bytes"] == 0 and data["disabled"] and not (tmp_path / "none").exists()
    assert run("clear")["removed"] == 0


def test_clear_by_age_and_whole(folder: Path) -> None:
    assert run("clear", "--older-than", "5", "--dry-run")["removed"] == 2
    assert (folder / "libraries/cd/cd1.so").exists()
    assert run("clear", "--older-than", "5")["removed"] == 2
    assert (folder / "libraries/ab/ab1.so").exists() and not (folder / "failed/x").exists()
    data = run("clear")
    assert data["removed"] == 1 and data["bytes"] == 1000
    assert (folder / "work/w").exists() and (folder / "locks/ab1.lock").exists()  # a process may be at work
    assert CliRunner().invoke(app, ["cache", "clear", "--older-than", "-1"]).exit_code == 2


def test_clear_follows_no_links(folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "aa").mkdir(parents=True)
    (outside / "aa" / "kept.so").touch()
    (folder / "libraries" / "ee").symlink_to(outside / "aa")
    (folder / "failed" / "link").symlink_to(outside)
    run("clear")
    assert (outside / "aa" / "kept.so").exists()
