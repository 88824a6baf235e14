"""The collection of evidence from a GPU: journals, processes that die, programs that are built together, the report.
Nothing here needs a GPU: kernels are emulated."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import ingot
from tests.support.cuda_emulation.target import EMULATED, build_driver
from tests.targets.cuda.gpu import batched_build, evidence, sanitize
from tests.targets.cuda.gpu.code_digest import digest_code
from tests.targets.cuda.gpu.evidence_report import BEGIN, END, table, write_report
from tests.targets.cuda.gpu.journals import DONE, Journal, codes_of, fault_of, read_rows, stamp
from tests.targets.cuda.gpu.stages import Stages, add_up
from tests.targets.cuda.gpu.workers import run_workers


def journal_at(path: Path, code: str = "one") -> Journal:
    return Journal(path, {"code": code, "commit": "c" * 40, "gpu": "none"})


def test_the_last_row_of_the_same_code_counts(tmp_path: Path) -> None:
    path = tmp_path / "new" / "samples.jsonl"
    old, new = journal_at(path, "old"), journal_at(path, "new")
    old.write("a", "right")
    new.write("a", "crashed", "the process ended")
    new.write("a", "right", from_file=True)
    new.write("unit", DONE)
    with path.open("a") as file:
        file.write('{"name": "b", "outcome": "ri')  # cut off
    assert {name: row["outcome"] for name, row in new.rows().items()} == {"a": "right"}
    assert new.rows()["a"]["from_file"] and new.done() == {"unit"} and old.done() == set()
    assert codes_of([path]) == ["new", "old"]
    assert read_rows([tmp_path / "none.jsonl"], "new") == {}


def test_a_fault_that_does_not_repeat_is_reported(tmp_path: Path) -> None:
    journal = journal_at(tmp_path / "programs.jsonl")
    journal.write("a", "crashed", "an illegal address\nmore")
    journal.write("a", "right", from_file=True)
    journal.write("a", "right", from_file=True)
    journal.write("b", "right")
    assert fault_of(journal.rows()["a"]) == "right, but it crashed before: an illegal address\nmore"
    assert fault_of(journal.rows()["b"]) == ""
    assert "- programs `a`, code `one`: right, but it crashed before: an illegal address" in table([tmp_path], {})


def test_a_program_that_ends_its_process_is_tried_twice(tmp_path: Path) -> None:
    journal = journal_at(tmp_path / "programs.jsonl")
    journal.write("once", "crashed")
    journal.write("twice", "crashed")
    journal.write("twice", "crashed")
    journal.write("refused", "refused")
    assert evidence.known_programs(journal) == {"twice", "refused"}


def test_a_part_of_the_work_has_the_same_share_of_every_kind() -> None:
    lists = {"zoo": [f"z{n}" for n in range(10)], "programs": [f"p{n}" for n in range(1000)]}
    first = evidence.interleave(lists)[:505]
    assert [sum(what == kind for what, _ in first) for kind in ("zoo", "programs")] == [5, 500]
    assert len(evidence.interleave(lists)) == 1010


def test_the_digest_covers_sources_and_no_tests(tmp_path: Path) -> None:
    for name in ("src/ingot/a.py", "src/ingot/targets/cuda/k.cuh", "src/ingot/cli/c.py", "tests/fuzz/test_a.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    digest: Callable[[Path], str] = digest_code.__wrapped__
    before = digest(tmp_path)
    (tmp_path / "src/ingot/cli/c.py").write_text("2")
    (tmp_path / "tests/fuzz/test_a.py").write_text("2")
    assert digest(tmp_path) == before
    (tmp_path / "src/ingot/targets/cuda/k.cuh").write_text("2")
    assert digest(tmp_path) != before
    assert stamp("abc")["code"] == digest_code()


WORKER = """
import argparse, os, pathlib, signal, sys
from tests.targets.cuda.gpu.workers import AGAIN, add_options, join

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=pathlib.Path)
add_options(parser)
given = parser.parse_args()
take, note = join(given)
while (number := take()) is not None:
    note(f"unit {number}")
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    (given.folder / str(number)).touch()
    note("")
    if number == 5:
        sys.exit(AGAIN)
"""


def test_a_process_that_dies_loses_one_unit(tmp_path: Path) -> None:
    lost: list[tuple[str, str]] = []
    command = [sys.executable, "-c", WORKER, str(tmp_path)]
    run_workers(12, 3, command, lambda name, how: lost.append((name, how)))
    assert lost == [("unit 3", "the process ended with -9")]
    assert sorted(int(file.name) for file in tmp_path.iterdir()) == [n for n in range(12) if n != 3]


def test_processes_that_all_die_at_once_end_the_run() -> None:
    lost: list[str] = []
    command = [sys.executable, "-c", "import os; os._exit(7)"]
    run_workers(100, 2, command, lambda name, how: lost.append(how))
    assert lost == ["the process ended with 7"] * len(lost) and len(lost) < 10


def test_stages_of_all_processes_are_added_up(tmp_path: Path) -> None:
    for _ in range(2):
        spent = Stages()
        with spent("build"), spent("NVRTC"):
            pass
        spent.clock["build"], spent.processors["build"] = 10.0, 3.0
        spent.write(tmp_path / "stages.log")
    assert "2 processes" in add_up(tmp_path / "stages.log", 0.0)
    assert "build 20 (6)" in add_up(tmp_path / "stages.log", 0.0) and "NVRTC 0 (0)" in add_up(
        tmp_path / "stages.log", 0
    )
    assert "0 processes" in add_up(tmp_path / "stages.log", 1e12) and "0 processes" in add_up(tmp_path / "none", 0.0)


class Scaled(nn.Module):
    def __init__(self, by: float) -> None:
        super().__init__()
        self.by, self.lin = by, nn.Linear(6, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.lin(x) * self.by).softmax(-1).cumsum(0)


def test_programs_that_are_built_together_compute_what_each_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INGOT_CUDA_DRIVER", str(build_driver()))
    x = torch.randn(4, 6)
    models = [Scaled(2.0).eval(), Scaled(3.0).eval(), Scaled(2.0).eval()]
    lowered = [batched_build.lower(ingot.capture(model, (x,)), EMULATED) for model in models]
    text, prefixes = batched_build.join_kernels(lowered)
    assert prefixes[0] == "m0_" and prefixes[1] == "m1_" and " k0(" not in text
    for number, (model, built) in enumerate(zip(models, batched_build.build(lowered, EMULATED), strict=True)):
        assert not isinstance(built, Exception)
        torch.testing.assert_close(built(x), model(x))
        built.save(tmp_path / f"{number}.ingot")
        loaded = ingot.load(tmp_path / f"{number}.ingot")
        assert callable(loaded)
        torch.testing.assert_close(loaded(x), model(x))
        built.close()


def test_a_program_that_does_not_compile_is_found_by_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(4, 6)
    lowered = [batched_build.lower(ingot.capture(Scaled(by).eval(), (x,)), EMULATED) for by in (2.0, 3.0, 4.0)]
    bad = lowered[1].kernels[0]
    broken = batched_build.LoweredProgram(
        lowered[1].program,
        lowered[1].module,
        lowered[1].source,
        lowered[1].library,
        (bad.replace("\n{", "\n{ nonsense;", 1), *lowered[1].kernels[1:]),
    )
    made = batched_build.build([lowered[0], broken, lowered[2]], EMULATED)
    assert [isinstance(one, Exception) for one in made] == [False, True, False]


def test_a_kernel_that_is_written_otherwise_is_not_renamed_in_silence() -> None:
    with pytest.raises(AssertionError, match="kernel 0 is not written as it was"):
        batched_build.rename_kernel("__global__ void other(int k0)", 0, "m0_")


def test_the_report_has_a_line_for_each_kind_and_code(tmp_path: Path) -> None:
    folder, page = tmp_path / "journals", tmp_path / "cuda.md"
    samples = journal_at(folder / "samples.jsonl", "abc")
    samples.write("add#0 float32 plain", "right", from_file=True)
    samples.write("add#0 bfloat16 plain", "wrong", "result 0: at [1]: 2\nmore")
    journal_at(folder / "samples.jsonl", "emulated-abc").write("mul#0 float32 plain", "right")
    journal_at(folder / "zoo.jsonl", "abc").write("static:bert", "right", from_file=True)
    journal_at(folder / "sanitizer.jsonl", "abc").write("memcheck case softmax, float32", "right")
    page.write_text(f"# Title\n\n{BEGIN}\nold\n{END}\n\nbehind\n")
    write_report([folder], {"samples": 3}, page)
    text = page.read_text()
    assert (
        text.startswith(f"# Title\n\n{BEGIN}\n| what") and text.endswith(f"\n{END}\n\nbehind\n") and "old" not in text
    )
    assert "| operator samples, float32 | `abc` | ccccccccc | 1 | 1 | 1 | 0 | 0 | 0 |" in text
    assert "| operator samples, bfloat16 | `abc` | ccccccccc | 1 | 0 | 0 | 0 | 1 | 0 |" in text
    assert "| models of the zoo, static and dynamic, static | `abc`" in text and "emulated" not in text
    assert "| compute-sanitizer, memcheck | `abc`" in text
    assert "- samples `add#0 bfloat16 plain`, code `abc`: wrong: result 0: at [1]: 2" in text
    assert text.count("mul#0") == 0 and "All there are: 3 operators and dtypes." in text
    page.write_text("# no comments\n")
    with pytest.raises(ValueError, match="does not have both"):
        write_report([folder], {}, page)
    assert "| right |" in table([tmp_path / "nothing"], {})


SANITIZERS = {
    "right": ('shift 6; "$@"; echo "========= ERROR SUMMARY: 0 errors"', "right", ""),
    "finding": ('echo "========= ERROR SUMMARY: 2 errors"; exit 86', "wrong", "2 findings"),
    "hazard": ('echo "========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)"', "wrong", "1 findings"),
    "silent": ("exit 0", "crashed", "ended with 0"),
    "dead": ('echo "========= ERROR SUMMARY: 0 errors"; exit 3', "crashed", "ended with 3"),
    "bits": ('echo "{\\"0\\": \\"other\\"}"; echo "========= ERROR SUMMARY: 0 errors"', "wrong", "other bits"),
}


@pytest.mark.parametrize("kind", SANITIZERS)
def test_what_a_sanitizer_says(kind: str, tmp_path: Path) -> None:
    script, outcome, reason = SANITIZERS[kind]
    tool = tmp_path / "tool"
    tool.write_text(f"#!/bin/bash\n{script}\n")
    tool.chmod(0o755)
    (tmp_path / "files").mkdir()
    found = sanitize.sanitize(sanitize.SanitizedFile("one", tmp_path / "files"), "memcheck", [str(tool)])
    assert found[0] == outcome and found[1].startswith(reason), found


def test_a_tool_goes_on_where_its_journal_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [sanitize.SanitizedFile(name, tmp_path) for name in ("a", "b")]
    journal = journal_at(tmp_path / "sanitizer.jsonl")
    journal.write("memcheck a", "right")
    tool = tmp_path / "tool"
    tool.write_text('#!/bin/bash\nshift 6; "$@"; echo "========= ERROR SUMMARY: 1 error"; exit 86\n')
    tool.chmod(0o755)
    assert not sanitize.run_tool("memcheck", files, journal, [str(tool)], 1, float("inf"))
    assert "memcheck: 2 of 2 files: 1 without a finding and with the same bits, 1 wrong" in capsys.readouterr().out
    assert [json.loads(line)["name"] for line in journal.path.read_text().splitlines()] == ["memcheck a", "memcheck b"]
    assert sanitize.run_tool("racecheck", files, journal, [str(tool)], 1, 0.0), "no time: nothing was found"
