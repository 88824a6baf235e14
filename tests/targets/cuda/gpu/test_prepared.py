"""Programs that are prepared without a GPU, run from their files, and judged elsewhere. Kernels are emulated."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import ingot
from tests.support.cuda_emulation.target import EMULATED, build_driver
from tests.targets.cuda.gpu.batched_build import LoweredProgram, lower
from tests.targets.cuda.gpu.evidence import ROOT, stamp_of
from tests.targets.cuda.gpu.evidence_report import table
from tests.targets.cuda.gpu.journals import Journal, fault_of
from tests.targets.cuda.gpu.prepared import bundles, results, text_digest, verdicts
from tests.targets.cuda.gpu.prepared.judge import judge_unit
from tests.targets.cuda.gpu.prepared.prepare import Packer
from tests.targets.cuda.gpu.prepared.results import ResultRow
from tests.targets.cuda.gpu.program_sweep import ProgramSweep
from tests.targets.cuda.gpu.sample_sweep import SampleSweep
from tests.targets.cuda.gpu.sweeps import BatchedSweep, CallResults, Place, SweptProgram

STAMP = stamp_of("c" * 40, emulated=True)
UNITS = {"programs": ["seed 2", "seed 118"], "samples": ["softmax float32 most 1", "fft.fft float32 most 1"]}


def run_step(*arguments: str | Path) -> str:
    """What a step prints."""
    command = [sys.executable, "-m", "tests.targets.cuda.gpu.prepared", *map(str, arguments)]
    environment = {**os.environ, "INGOT_CUDA_DRIVER": str(build_driver()), "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def place_at(folder: Path, packer: Packer, journal: Journal) -> Place:
    return Place(EMULATED, journal, lambda name: None, handle=packer.pack, wants=packer.wants)


def sweeps() -> dict[str, BatchedSweep]:
    return {"programs": ProgramSweep(0, 0), "samples": SampleSweep(["float32"], 1)}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one bundle, and what ran of it in `results`."""
    folder = tmp_path_factory.mktemp("prepared")
    for what, sweep in sweeps().items():
        journal = Journal(folder / f"{what}.jsonl", STAMP)
        place = place_at(folder, Packer(what, folder, EMULATED, {}, journal), journal)
        for unit in UNITS[what]:
            sweep.run(unit, place, set())
        sweep.finish(place)
    (bundle,) = bundles.arrange_bundles(folder, 1 << 30)
    assert "{'ran': 6} of 6 programs, 0 not run" in run_step(
        "execute", bundle, "--out", folder / "results", "--jobs", "2"
    )
    return folder


def test_results_of_all_steps_are_judged(prepared: Path, tmp_path: Path) -> None:
    journal, known = tmp_path / "journal", tmp_path / "known.txt"
    step = ("judge", prepared / "results", "--folder", prepared, "--journal", journal, "--known", known, "--jobs", "1")
    said = run_step(*step)
    assert "programs: {'right': 2}, 2 also from their file; 2 units done" in said, said
    found = {what: Journal(journal / f"{what}.jsonl", STAMP) for what in UNITS}
    samples = found["samples"].rows()
    assert [samples[name]["outcome"] for name in sorted(samples)][:1] == ["refused"]  # of the complex numbers
    assert {row["outcome"] for row in samples.values()} == {"right", "refused"}
    assert sum(bool(row.get("from_file")) for row in samples.values()) == 4
    row = found["programs"].rows()["network seed 2"]
    assert row["text"] and row["commit"] == "c" * 40 and row["gpu"] and "unsteady" not in row
    assert found["samples"].done() == set(UNITS["samples"])
    assert not known.exists(), "no GPU ran them"


def own_rows(folder: Path, name: str) -> list[ResultRow]:
    return [row for row in results.read_rows(folder / results.ROWS) if row["name"] == name]


def judge_one(folder: Path, rows: Sequence[ResultRow], at: Path) -> ResultRow:
    _, read = results.read_results([folder])
    with torch.no_grad():
        judge_unit(sweeps()["programs"], rows[0]["unit"], rows, read, at)
    return Journal(at, STAMP).rows()[rows[0]["name"]]


def test_another_result_is_wrong(prepared: Path, tmp_path: Path) -> None:
    folder, name = tmp_path / "results", "network seed 118"
    rows = own_rows(prepared / "results", name)
    arrays = dict(results.read_results([prepared / "results"])[1](rows[0]["stem"]))
    first = next(iter(arrays))
    arrays[first] = arrays[first] + arrays[first].dtype.type(1)
    results.save_arrays(tmp_path / "one.npz", arrays)
    assert results.write_results(folder, rows, {rows[0]["stem"]: tmp_path / "one.npz"}) == []
    row = judge_one(folder, rows, tmp_path / "programs.jsonl")
    assert row["outcome"] == "wrong" and row["reason"].startswith("result ") and "from_file" not in row
    assert "without [" in row["reason"] and "class Net" in row["reason"]


def test_an_argument_that_was_written_to_is_wrong(prepared: Path, tmp_path: Path) -> None:
    rows = [{**row, "written": [0]} for row in own_rows(prepared / "results", "network seed 2")]
    row = judge_one(prepared / "results", rows, tmp_path / "programs.jsonl")
    assert row["outcome"] == "wrong" and row["reason"].startswith("an argument was written to; at {")


def test_results_of_other_inputs_are_not_judged(
    prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{**row, "inputs": "0" * 12} for row in own_rows(prepared / "results", "network seed 2")]
    with pytest.raises(KeyError):
        judge_one(prepared / "results", rows, tmp_path / "programs.jsonl")
    assert "not judged: network seed 2" in capsys.readouterr().out


def test_a_crash_before_a_right_result_is_reported(prepared: Path, tmp_path: Path) -> None:
    rows = own_rows(prepared / "results", "network seed 2")
    crash = {**rows[0], "outcome": "crashed", "reason": "the process ended with -11"}
    row = judge_one(prepared / "results", [crash, *rows], tmp_path / "programs.jsonl")
    assert fault_of(row) == "right, but it crashed before: the process ended with -11"
    verdicts.record_verdicts([row], tmp_path / "known.txt")
    assert verdicts.read_verdicts(tmp_path / "known.txt")[row["name"]].outcome == "crashed"


class Scaled(nn.Module):
    def __init__(self, by: float) -> None:
        super().__init__()
        self.by, self.lin = by, nn.Linear(6, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lin(x) * self.by


class ScaledJudge:
    """Of a program with one call."""

    def __init__(self, x: torch.Tensor) -> None:
        self._x = x

    def count(self) -> int:
        return 1

    def arguments(self, number: int) -> tuple[torch.Tensor, ...]:
        return (self._x.clone(),)

    def may_refuse(self, number: int) -> bool:
        return False

    def problem(self, number: int, results: CallResults) -> str:
        return ""

    def describe(self, number: int) -> str:
        return ""


def scaled(by: float) -> LoweredProgram:
    torch.manual_seed(0)
    return lower(ingot.capture(Scaled(by).eval(), (torch.ones(4, 6),)), EMULATED)


def test_a_program_that_ends_its_process_does_not_lose_others(tmp_path: Path) -> None:
    lowered = [scaled(by) for by in (2.0, 3.0, 4.0, 5.0)]
    broken = lowered[1].kernels[0].replace("\n{", "\n{ __builtin_trap();", 1)
    lowered[1] = replace(lowered[1], kernels=(broken, *lowered[1].kernels[1:]))
    journal = Journal(tmp_path / "programs.jsonl", STAMP)
    packer = Packer("programs", tmp_path, EMULATED, {}, journal)
    waiting = [SweptProgram(f"p{n}", f"u{n}", ScaledJudge(torch.ones(4, 6)), one) for n, one in enumerate(lowered)]
    assert all(map(packer.wants, waiting))
    packer.pack(waiting, place_at(tmp_path, packer, journal))
    (bundle,) = bundles.arrange_bundles(tmp_path, 1 << 30)
    (pack,) = bundles.find_packs([bundle])
    (tmp_path / "files").mkdir()
    programs = bundles.unpack(pack, tmp_path / "files")
    damaged = (tmp_path / "files" / f"{programs[2].stem}.ingot").read_bytes()[:-100]
    files = [damaged if n == 2 else (tmp_path / "files" / f"{one.stem}.ingot").read_bytes() for n, one in
             enumerate(programs)]  # fmt: skip
    arrays = [dict(np.load(tmp_path / "files" / f"{one.stem}.npz")) for one in programs]
    bundles.write_pack(pack, list(zip(programs, files, arrays, strict=True)))
    said = run_step("execute", bundle, "--out", tmp_path / "results", "--jobs", "1")
    assert "{'ran': 2, 'crashed': 2} of 4 programs" in said and "p1: crashed: the process ended with -" in said, said
    rows, read = results.read_results([tmp_path / "results"])
    outcomes = {name: [row["outcome"] for row in rows if row["name"] == name] for name in ("p0", "p1", "p2", "p3")}
    assert outcomes == {"p0": ["ran"], "p1": ["crashed"] * 2, "p2": ["crashed"] * 2, "p3": ["ran"]}
    (values,) = read(next(row["stem"] for row in rows if row["name"] == "p3")).values()
    torch.manual_seed(0)
    torch.testing.assert_close(torch.from_numpy(values), Scaled(5.0)(torch.ones(4, 6)).detach())


def test_a_program_whose_text_is_known_to_be_right_is_left_out(tmp_path: Path) -> None:
    known = tmp_path / "known.txt"
    one = SweptProgram("network seed 9", "seed 9", ScaledJudge(torch.ones(4, 6)), scaled(2.0))
    journal = Journal(tmp_path / "programs.jsonl", STAMP)
    packer = Packer("programs", tmp_path, EMULATED, {}, journal)
    assert packer.wants(one) and not journal.rows()
    text = packer.digest(one)
    assert len(text) == text_digest.LENGTH
    verdicts.record_verdicts([{"name": one.name, "text": text, "outcome": "right", "commit": "a" * 40}], known)
    again = Packer("programs", tmp_path, EMULATED, verdicts.read_verdicts(known), journal)
    assert not again.wants(one)
    row = journal.rows()[one.name]
    assert (row["outcome"], row["ran_at"], row["text"], row["from_file"]) == ("right", "a" * 9, text, True)
    others = [
        replace(one, lowered=scaled(3.0)),
        replace(one, judge=ScaledJudge(torch.zeros(4, 6))),
        replace(one, name="network seed 10"),
    ]
    assert all(map(again.wants, others))


def test_a_text_does_not_depend_on_comments_and_places() -> None:
    one, weights = scaled(2.0).source, np.arange(4.0)
    digest = text_digest.digest_text(one, weights, "in", EMULATED)
    other = replace(
        one,
        device=f"// more\n{one.device.replace('/*', '/* much', 1)}",
        host=one.host.replace('ig_sites[] = {"', 'ig_sites[] = {"file.py:3", "', 1),
    )
    assert other.device != one.device and other.host != one.host
    assert text_digest.digest_text(other, weights, "in", EMULATED) == digest
    changed = replace(one, device=one.device.replace("float", "double", 1))
    texts = [text_digest.digest_text(changed, weights, "in", EMULATED)]
    texts += [text_digest.digest_text(one, weights + 1, "in", EMULATED)]
    texts += [text_digest.digest_text(one, weights, "others", EMULATED)]
    assert len({digest, *texts}) == 4
    stripped = text_digest.strip_comments('a /* " */ = "/* no */";  // it\'s\n\n  c = \'"\'; /* x */')
    assert stripped == 'a = "/* no */";\nc = \'"\';'


def test_bundles_have_a_size_limit_and_are_not_changed_later(tmp_path: Path) -> None:
    def add(*names: str) -> None:
        (tmp_path / bundles.PACKS).mkdir(exist_ok=True)
        for name in names:
            (tmp_path / bundles.PACKS / f"{name}{bundles.SUFFIX}").write_bytes(bytes(40))

    add("a", "b", "c")
    assert [one.name for one in bundles.arrange_bundles(tmp_path, 100)] == ["bundle-01", "bundle-02"]
    add("d")
    assert [one.name for one in bundles.arrange_bundles(tmp_path, 100)] == ["bundle-03"]
    assert bundles.arrange_bundles(tmp_path, 100) == []
    packs = {pack.name.split(".")[0]: pack.parent.name for pack in bundles.find_packs([tmp_path])}
    assert packs == {"a": "bundle-01", "b": "bundle-01", "c": "bundle-02", "d": "bundle-03"}


def test_results_that_exceed_the_limits_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "ARCHIVE_BYTES", 40_000)
    monkeypatch.setattr(results, "TOTAL_BYTES", 70_000)
    sizes = {"a": 20_000, "large": 40_000, "b": 20_000, "c": 5_000, "d": 30_000}
    files = {stem: tmp_path / stem for stem in sizes}
    for stem, size in sizes.items():
        files[stem].write_bytes(bytes(size))
    rows = [{"stem": stem, "outcome": "ran"} for stem in sizes]
    assert results.write_results(tmp_path / "out", rows, files) == ["large", "d"]
    archives = sorted((tmp_path / "out").glob("*.tar"))
    assert len(archives) == 2 and max(one.stat().st_size for one in archives) <= 40_960
    written = [json.loads(line) for line in (tmp_path / "out" / results.ROWS).read_text().splitlines()]
    assert [row["outcome"] for row in written] == ["ran", "left out", "ran", "ran", "left out"]


def test_the_machine_with_the_gpu_needs_no_torch(tmp_path: Path) -> None:
    text = (
        "import sys; from tests.targets.cuda.gpu.prepared import execute;"
        "sys.exit(any(name in sys.modules for name in ('torch', 'ingot')))"
    )
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    assert subprocess.run([sys.executable, "-c", text], env=environment, cwd=ROOT).returncode == 0


def test_verdicts_are_sorted_and_keep_their_first_commit(tmp_path: Path) -> None:
    path = tmp_path / "data" / "known.txt"
    rows = [
        {"name": "network seed 2", "text": "b" * 12, "outcome": "right", "commit": "1" * 40},
        {"name": "add#0 float32 plain", "outcome": "refused", "commit": "1" * 40},
    ]
    verdicts.record_verdicts(rows, path)
    later = [{**row, "commit": "2" * 40} for row in rows]
    verdicts.record_verdicts([*later, {**later[0], "name": "network seed 10", "outcome": "wrong"}], path)
    lines = path.read_text().splitlines()[1:]
    assert lines == [
        "add#0 float32 plain\t-\trefused\t111111111",
        f"network seed 10\t{'b' * 12}\twrong\t222222222",
        f"network seed 2\t{'b' * 12}\tright\t111111111",
    ]
    text = table([tmp_path], {}, path)
    assert "| random networks | `by text` | 111111111, 222222222 | 2 | 1 | 1 | 0 | 1 | 0 |" in text
    assert "| operator samples, float32 | `by text` | 111111111 | 1 | 0 | 0 | 1 | 0 | 0 |" in text
    assert f"- programs `network seed 10`, code `by text`: wrong: text {'b' * 12} at commit 222222222" in text
