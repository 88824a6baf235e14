"""The driver finds the program that kills its process, continues a journal, and trusts no other code's verdicts."""

from __future__ import annotations

import collections
import json
import os
import subprocess
import sys
from pathlib import Path

from tests.fuzz import driver


def test_fatal_programs_are_found_among_others(tmp_path: Path) -> None:
    journal, report = tmp_path / "j.jsonl", tmp_path / "r.md"
    arguments = ["scripted", "--count", "13", "--slice", "6", "--journal", str(journal), "--report", str(report)]
    assert driver.main([*arguments, "--commit", "abc"]) == 1
    rows = driver.read_journal([journal], driver.digest_code())
    assert sorted(rows) == list(range(13))
    kinds = collections.Counter(row.kind for row in rows.values())
    assert kinds == {"right": 8, "refused": 2, "wrong": 1, "crashed": 2}
    assert [seed for seed, row in sorted(rows.items()) if row.kind == "crashed"] == [3, 11]
    assert "-9" in rows[3].reason and "program 3" in rows[3].reason
    text = report.read_text()
    assert "at commit abc" in text and "| 2 | reason \\| 0 |" in text and "## crashed: seed 11" in text
    assert "| right, but narrower than declared | reason |\n|---|---|\n| 1 | reason \\| 0 |" in text


def test_fresh_memory_is_nan() -> None:
    """In a process like those of the generators, for sizes that come from the heap and from pages of their own."""
    code = "import torch; print(all(torch.empty(n).isnan().all() for n in (1, 100, 10**7)))"
    poisoned = os.environ | {"LD_PRELOAD": driver.poisoned_memory()}
    assert subprocess.check_output([sys.executable, "-c", code], text=True, env=poisoned).strip() == "True"


def test_a_journal_is_continued_and_other_code_is_not_believed(tmp_path: Path) -> None:
    journal = tmp_path / "j.jsonl"
    old = {"seed": 1, "kind": "wrong", "reason": "", "code": "of other code", "where": ""}
    mine = {"seed": 0, "kind": "right", "reason": "kept", "code": driver.digest_code(), "where": ""}
    journal.write_text(f'{json.dumps(old)}\n{json.dumps(mine)}\n{{"seed": 2, "ki')
    journal.write_text(journal.read_text() + "\n")
    assert driver.main(["scripted", "--count", "3", "--journal", str(journal)]) == 0
    rows = driver.read_journal([journal], driver.digest_code())
    assert {seed: row.kind for seed, row in rows.items()} == {0: "right", 1: "right", 2: "right"}
    assert rows[0].reason == "kept"


def test_earlier_code_counts_apart_where_it_is_named(tmp_path: Path) -> None:
    journal, report = tmp_path / "j.jsonl", tmp_path / "r.md"
    rows = [
        {"seed": seed, "kind": kind, "reason": "", "code": code, "where": "here"}
        for seed, kind, code in ((0, "right", "before"), (1, "crashed", "before"), (1, "right", driver.digest_code()))
    ]
    journal.write_text("".join(f"{json.dumps(row)}\n" for row in [*rows[1:], rows[0]]))
    assert driver.main(["scripted", "--journal", str(journal), "--report", str(report), "--earlier", "before"]) == 0
    text = report.read_text()
    assert f"| {driver.digest_code()} | here | 1 | 1 | 0 (0.00%) | 0 | 0 |" in text
    assert "| before | here | 1 | 1 | 0 (0.00%) | 0 | 0 |" in text and "| all |  | 2 | 2 |" in text
