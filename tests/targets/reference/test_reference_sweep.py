"""The sweep over interpreted loops: it goes on where it stopped, and says what was wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingot.errors import ScheduleError
from ingot.targets.reference.schedule_check import ScheduleCheck
from tests.support.reference_sweep import Row, judge, main, name_all, read_journal, write_report


def test_a_slice_is_judged_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal, report = tmp_path / "journal.jsonl", tmp_path / "report.md"
    assert main(["programs", "--start", "4", "--count", "2", "--journal", str(journal)]) == 0
    assert [row.outcome for row in read_journal(journal).values()] == ["right", "right"]
    assert all(row.steps for row in read_journal(journal).values())
    assert main(["programs", "--start", "4", "--count", "2", "--journal", str(journal), "--write", str(report)]) == 0
    assert "nothing left" in capsys.readouterr().out
    assert "| random programs | 2 | 2 | 0 | 0 |" in report.read_text(encoding="utf-8")


def test_what_is_wrong_and_what_is_refused_is_listed() -> None:
    rows = [
        Row("zoo:static:a", "wrong", "Wrong: at the example\nmore", 3),
        Row("zoo:dynamic:b", "refused", "UnsupportedOperator: none\nmore"),
    ]
    text = write_report({row.name: row for row in rows})
    assert "| zoo, static | 1 | 0 | 0 | 1 | 3 |" in text
    assert "- UnsupportedOperator: none (1)" in text and "- `zoo:static:a`: Wrong: at the example\n" in text


def test_a_wrong_step_is_a_wrong_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ScheduleError("as it must be")

    monkeypatch.setattr(ScheduleCheck, "compare", refuse)
    row = judge("programs", "4")
    assert (row.outcome, row.detail) == ("wrong", "ScheduleError: as it must be")
    assert judge("zoo", "static:none").outcome == "failed"
    assert {"static:bert", "dynamic:bert"} <= set(name_all("zoo"))
