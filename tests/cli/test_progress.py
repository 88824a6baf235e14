"""Progress: bars on a terminal's stderr, nothing where stderr is a file or a pipe, and stdout for the result alone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ingot.cli.progress import Stages
from tests import progress

FACTORIES = Path(__file__).with_name("factories.py")
NEEDS_TERMINAL = pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a pseudo-terminal")


def run_on_terminal(*command: str, width: int = 80) -> tuple[str, str]:
    """(stdout, what a terminal on stderr was shown, without its control codes)."""
    ours, theirs = os.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": str(width), "INGOT_CHECK": ""}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, env=environment)
    os.close(theirs)
    shown = b""
    try:
        while part := os.read(ours, 65536):
            shown += part
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, shown.decode()
    return output.decode(), re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())


def test_nothing_is_written_where_there_is_no_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    stages = Stages(2)
    with stages("one", "doing one", 3) as step:
        step("first")
        step()
    with stages("two", "doing two", still=True) as step:
        step()
    progress.watch("sweep", "", Path("nothing"), lambda seconds: True)
    assert capfd.readouterr() == ("", "")
    assert stages.seconds.keys() == {"one", "two"}


def test_a_stage_that_comes_twice_is_counted_together() -> None:
    stages = Stages()
    for _ in range(2):
        with stages("again", "doing it again"):
            pass
    assert list(stages.seconds) == ["again"]


@NEEDS_TERMINAL
def test_compile_shows_stages_and_passes_and_json_stays_pure(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "ingot.cli", "compile", f"{FACTORIES}:net", "--json")
    saved = ("-o", str(tmp_path / "m.ingot"))
    output, shown = run_on_terminal(*command, *saved)
    assert json.loads(output)["kernels"] >= 3
    for text in ("1/9 importing torch", "4/9 running passes", "7/9 compiling C", "9/9 running the example"):
        assert text in shown
    assert re.search(r"running passes: \w+ ", shown)
    assert "forward prints this" in shown and "━" in shown
    assert all(len(line) <= 80 for line in re.split(r"[\r\n]+", shown))


@NEEDS_TERMINAL
def test_calibration_and_rounds_are_counted(tmp_path: Path) -> None:
    quantize = ("quantize", f"{FACTORIES}:net", "-o", str(tmp_path / "q.ingot"), "--data", f"{FACTORIES}:batches")
    _, shown = run_on_terminal(sys.executable, "-m", "ingot.cli", *quantize)
    assert "calibrating" in shown and "2/2" in shown
    bench = ("bench", f"{FACTORIES}:pair", "--repeat", "3", "--peer", "eager", "--json")
    output, shown = run_on_terminal(sys.executable, "-m", "ingot.cli", *bench)
    assert "timing" in shown and "3/3" in shown and len(json.loads(output)["rows"]) == 2


SWEEP = "from tests import progress\nfor number in progress.count_done('programs', range(4)): print(number)\n"


@NEEDS_TERMINAL
def test_a_sweep_that_is_run_directly_shows_its_bar(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    output, shown = run_on_terminal(sys.executable, "-c", SWEEP)
    assert output.split() == ["0", "1", "2", "3"], "what is printed stays on stdout"
    assert "programs" in shown and "100%" in shown and "4 done" in shown
    journal = ("--count", "3", "--slice", "3", "--jobs", "1", "--journal", str(tmp_path / "j.jsonl"))
    output, shown = run_on_terminal(sys.executable, "-m", "tests.fuzz", "aliasing", *journal)
    assert "aliasing: {" in output and "aliasing" in shown and "3 done" in shown
    monkeypatch.setenv("INGOT_SWEEP_IS_SHOWN", "1")
    assert run_on_terminal(sys.executable, "-c", SWEEP)[1] == "", "its caller has one"


def test_a_sweep_writes_nothing_where_there_is_no_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    assert list(progress.count_done("programs", iter("ab"))) == ["a", "b"]
    with progress.open_bar("programs") as step:
        step()
    assert capfd.readouterr() == ("", "")


@NEEDS_TERMINAL
def test_onnx_verification_and_sweeps(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    journal.write_text("one\ntwo\n")
    code = (
        "from pathlib import Path\n"
        "from ingot.cli.progress import Stages\n"
        "from ingot.cli.onnx import DOING\n"
        "from tests import progress\n"
        "with Stages(8).hook(DOING)('run'): pass\n"
        f"progress.watch('fuzz', 'sweep --count 4', Path({str(journal)!r}), lambda seconds: True)\n"
    )
    output, shown = run_on_terminal(sys.executable, "-c", code)
    assert not output and "1/8 running it in ONNX Runtime" in shown
    assert "fuzz" in shown and "50%" in shown and "2 verdicts" in shown
