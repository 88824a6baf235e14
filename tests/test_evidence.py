"""Evidence names the code that it speaks of, goes on where it was stopped, and does not outlive a change."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from ingot_runtime.cpu_features import architecture
from tests import evidence
from tests.evidence import ENTRIES, Entry, State


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one covered file, in the place of this one."""
    monkeypatch.setattr(evidence, "ROOT", tmp_path)
    monkeypatch.setattr(evidence, "WORK", tmp_path / "build")
    (tmp_path / ".gitignore").write_text("build/\n")
    (tmp_path / "src").mkdir()
    commit(tmp_path, "1")
    return tmp_path


def commit(project: Path, text: str, file: str = "src/code.py") -> str:
    (project / file).write_text(text)
    identity = ["-c", "user.name=n", "-c", "user.email=e"]
    for arguments in (["init", "-q"], ["add", "-A"], [*identity, "commit", "-q", "-m", text]):
        subprocess.run(["git", *arguments], cwd=project, check=True)
    return evidence._git("rev-parse", "HEAD")


def entry(command: str, output: str = "report.md") -> Entry:
    return Entry("one", output, command, ("src",))


def test_a_report_names_its_commit_and_grows_old(project: Path) -> None:
    one = entry("echo '# Title' > {output}; echo >> {output}; echo text >> {output}")
    assert evidence.is_old(one)
    assert evidence.make(one, 60) == "made"
    head = evidence._git("rev-parse", "HEAD")
    assert (project / "report.md").read_text() == f"# Title\n\nEvidence of commit {head}.\n\ntext\n"
    assert not evidence.is_old(one)
    commit(project, "other", "notes.txt")
    assert not evidence.is_old(one), "nothing that it covers changed"
    (project / "src/ingot_runtime").mkdir()
    commit(project, "only runs on a GPU", "src/ingot_runtime/device_model.py")
    assert not evidence.is_old(one), "what runs on a GPU says nothing of the CPU"
    commit(project, "2")
    assert evidence.is_old(one)
    assert evidence.commits_since(head, one.covers) == 1


def test_changes_that_are_not_committed_are_said(project: Path) -> None:
    (project / "src" / "code.py").write_text("changed")
    one = entry('echo "{{}}" > {output}', "result.json")
    assert evidence.make(one, 60) == "made"
    assert json.loads((project / "result.json").read_text())["dirty"] is True
    assert evidence.is_old(one)


def test_a_journal_is_kept_until_the_code_changes(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "_STOP", 1)  # a shell in the background ignores the first signal
    one = entry("echo line >> {journal}; cp {journal} {output}; exec sleep 0")
    slow = entry("echo line >> {journal}; exec sleep 60")
    assert evidence.make(slow, 1) == "stopped"
    assert evidence.make(one, 60) == "made"
    assert (project / "report.md").read_text().count("line") == 2, "it went on"
    commit(project, "other", "notes.txt")
    assert evidence.make(one, 60) == "made"
    assert (project / "report.md").read_text().count("line") == 3, "another commit, the same code"
    commit(project, "2")
    assert evidence.make(one, 60) == "made"
    assert (project / "report.md").read_text().count("line") == 1, "other code"


def test_a_command_that_fails_or_writes_nothing(project: Path) -> None:
    assert evidence.make(entry("exit 3"), 60) == "failed"
    assert evidence.make(entry("true"), 60) == "failed"


def test_a_stamp_is_replaced(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Title\n\ntext\n")
    for state in (State("a" * 40, dirty=True), State("b" * 40, dirty=False)):
        evidence.stamp(page, state)
        assert evidence.stamped(page) == state
    assert page.read_text() == f"# Title\n\nEvidence of commit {'b' * 40}.\n\ntext\n"


def test_the_table() -> None:
    assert len({one.name for one in ENTRIES}) == len({one.output for one in ENTRIES}) == len(ENTRIES)
    for one in ENTRIES:
        one.command.format(python="python", output="o", journal="j")
        missing = [path for path in one.covers if not (evidence.ROOT / path).exists() and path != "tests/fuzz"]
        assert not missing, f"{one.name} covers what is not there"
    reports = {f"docs/reports/{path.name}" for path in (evidence.ROOT / "docs" / "reports").glob("*.md")}
    by_hand = {
        f"docs/reports/{name}.md"
        for name in ("index", "cache", "cuda", "fuzz_before_fixes", "random_programs", "torch_versions", "viewer")
    }
    assert reports - by_hand <= {one.output for one in ENTRIES}
    results = {f"benchmarks/results/{path.name}" for path in (evidence.ROOT / "benchmarks/results").glob("*.json")}
    assert results <= {one.output for one in ENTRIES}
    assert evidence.status().count("\n") == len(ENTRIES)


def test_what_needs_a_gpu_is_left_out_without_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    one = Entry("kernels", "kernels.json", "false", ("src",), needs_gpu=True)
    monkeypatch.setattr(evidence, "ENTRIES", (one,))
    monkeypatch.setattr(evidence, "GPU", tmp_path / "none")
    assert evidence.run([], 1, force=True) == 0
    assert capsys.readouterr().out == "kernels: needs a GPU\n"
    monkeypatch.setattr(evidence, "GPU", tmp_path)
    assert evidence.run([], 1, force=True) == 1
    capsys.readouterr()
    foreign = "aarch64" if architecture() != "aarch64" else "x86-64"
    monkeypatch.setattr(evidence, "ENTRIES", (replace(one, needs_gpu=False, needs_isa=foreign),))
    assert evidence.run([], 1, force=True) == 0
    assert capsys.readouterr().out == f"kernels: needs a machine for {foreign}\n"
