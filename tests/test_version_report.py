"""The report of the suite by torch version."""

from __future__ import annotations

from pathlib import Path

from tests.version_report import Run, merge, read_junit, section

JUNIT = """<?xml version="1.0" encoding="utf-8"?>
<testsuites><testsuite name="pytest" tests="5">
<testcase classname="tests.test_a" name="test_one" time="0.1" />
<testcase classname="tests.test_a" name="test_two" time="0.1"><failure message="no">no</failure></testcase>
<testcase classname="tests.test_b" name="test_three[1]" time="0.1"><error message="failed on setup">no</error></testcase>
<testcase classname="tests.test_b" name="test_four" time="0.1"><skipped type="pytest.skip" message="no gcc">x</skipped></testcase>
<testcase classname="tests.test_b" name="test_five" time="0.1"><skipped type="pytest.skip" message="no gcc">x</skipped></testcase>
</testsuite></testsuites>
"""  # noqa: E501


def test_outcomes_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "junit.xml"
    file.write_text(JUNIT)
    run = read_junit(file)
    assert run == Run(1, ("tests.test_a::test_two",), ("tests.test_b::test_three[1]",), (("no gcc", 2),))
    assert not run.complete


def test_a_run_replaces_the_row_of_its_own_environment() -> None:
    failing, passing = Run(1, ("a::b",), (), (("no gcc", 2),)), Run(4_000, (), (), ())
    document = merge("", *section(failing, "2.11.0", "CPU", "abc", [("numpy", "2.5.2")]))
    document = merge(document, *section(passing, "2.13.0", "CPU", "abc", [("numpy", "2.4.6")]))
    assert "- `a::b`" in document and "- 2 × no gcc" in document
    rows = [line for line in document.splitlines() if line.startswith("| 2.")]
    assert [row.split(" | ")[0] for row in rows] == ["| 2.13.0", "| 2.11.0"]

    document = merge(document, *section(passing, "2.11.0", "CPU", "def", [("numpy", "2.5.2")]))
    assert "a::b" not in document and document.count("## torch 2.11.0") == 1
    assert "| CPU | 4,000 | 0 | 0 | 0 | def |" in document and "| CPU | 4,000 | 0 | 0 | 0 | abc |" in document
    assert merge(document, *section(passing, "2.11.0", "CPU", "def", [("numpy", "2.5.2")])) == document
