"""`ingot compile`, `ingot run` and `ingot bench`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import Result
from typer.testing import CliRunner

import ingot
import ingot_runtime
from ingot.benchmarking import time_interleaved
from ingot.cli import app, peers
from ingot.codegen.build.isa import PORTABLE
from ingot_runtime import cpu_features

FACTORIES = Path(__file__).with_name("factories.py")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def run_json(*arguments: str) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def plain(text: str) -> str:
    """A message without the frame and the line breaks that a terminal of 80 columns gives it."""
    return " ".join(text.replace("│", " ").split())


def factory(name: str) -> str:
    return f"{FACTORIES}:{name}"


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The linear layer of `pair`, with a batch of any size."""
    file = tmp_path_factory.mktemp("compiled") / "pair.ingot"
    run_json("compile", factory("pair"), "-o", str(file), "--dynamic", "input:0=batch[1,64]")
    return file


# ---------------------------------------------------------------------- compile


def test_compile_prints_a_summary(tmp_path: Path) -> None:
    file, source, loops = tmp_path / "m.ingot", tmp_path / "m.c", tmp_path / "m.txt"
    result = run(
        "compile", factory("net"), "-o", str(file), "--source", str(source), "--dynamic", "x:0=batch", "--threads", "1",
        "--loop-ir", str(loops),
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    for text in ("x: float32[batch, 4]", "kernels", "lines of C", str(file), "largest difference", "capture", "cc "):
        assert text in result.stdout
    assert "prints this" not in result.stdout
    assert "ingot_run" in source.read_text()
    assert "symbol n0 = dim 0 of x" in loops.read_text() and "packed_gemm m=n0 " in loops.read_text()
    assert str(loops) in result.stdout
    with ingot_runtime.load(file) as model:
        assert model.self_test() < 1e-4
        assert [output.name for output in model.spec.outputs] == ["0", "1"]


def test_compile_json(tmp_path: Path) -> None:
    file = tmp_path / "m.ingot"
    data = run_json("compile", factory("net"), "-o", str(file), "--isa", "x86-64", "--isa", "plain", "--no-cache")
    assert data["file"] == {"path": str(file), "bytes": file.stat().st_size}
    assert {"x86-64", "plain"} <= set(data["instruction_sets"])
    assert data["kernels"] >= 3 and data["source_lines"] > 100
    assert data["takes"] == ["x: float32[5, 4]", "image: float32[2, 4, 9, 9]"]
    assert data["gives"] == ["0: float32[5, 8]", "1: float32[2, 8, 4, 4]"]
    assert 0 <= data["largest_difference"] < 1e-4
    assert list(data["seconds"])[2:] == ["capture", "passes", "lower", "emit", "cc", "save", "check"]
    with ingot_runtime.open_container(file) as container:
        assert {"native/x86-64.so", "native/plain.so"} <= set(container.names)


@pytest.mark.skipif(cpu_features.architecture() != "x86_64", reason="a library of x86-64 is run")
def test_compile_portable(tmp_path: Path) -> None:
    """One file for every x86-64 with AVX2, with the weights once; the runtime loads the best library."""
    single, file = tmp_path / "single.ingot", tmp_path / "m.ingot"
    run_json("compile", factory("net"), "-o", str(single))
    data = run_json("compile", factory("net"), "-o", str(file), "--isa", "portable")
    assert set(PORTABLE) <= set(data["instruction_sets"]) and 0 <= data["largest_difference"] < 1e-4
    with ingot_runtime.open_container(file) as container, ingot_runtime.open_container(single) as other:
        assert {f"native/{name}.so" for name in PORTABLE} <= set(container.names)
        assert {name for name in container.names if not name.startswith("native/")} == {
            name for name in other.names if not name.startswith("native/")
        }
    with ingot_runtime.load(file) as model:
        assert model.isa == cpu_features.best(data["instruction_sets"])


def test_compile_a_saved_program(tmp_path: Path) -> None:
    program, file = tmp_path / "program.ingot", tmp_path / "m.ingot"
    run_json("capture", factory("pair"), "-o", str(program), "--dynamic", "input:0=batch")
    data = run_json("compile", str(program), "-o", str(file))
    assert data["takes"] == ["input: float32[batch, 4]"] and data["dims"] == ["batch from 1 on"]
    refused = run("compile", str(program), "--dynamic", "input:0=batch")
    assert refused.exit_code == 2 and "has its dynamic dims already" in refused.stderr


def test_compile_without_a_file_only_tries() -> None:
    result = run("compile", factory("pair"))
    assert result.exit_code == 0 and "-o FILE.ingot" in result.stdout


def test_a_model_that_draws_is_not_checked(tmp_path: Path) -> None:
    result = run("compile", factory("noisy"), "-o", str(tmp_path / "m.ingot"))
    if result.exit_code == 1 and "UnsupportedOperator" in result.stderr:
        pytest.skip("native code does not draw random numbers yet")
    assert result.exit_code == 0, result.stderr
    assert "draws random numbers" in result.stdout


def test_a_check_that_fails_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(self: Any) -> float:
        raise ingot_runtime.SelfTestFailed("it is off by 3")

    monkeypatch.setattr(ingot_runtime.Model, "self_test", wrong)
    result = run("compile", factory("pair"), "-o", str(tmp_path / "m.ingot"))
    assert result.exit_code == 1 and result.stderr.startswith("SelfTestFailed: it is off by 3")
    assert run("compile", factory("pair"), "-o", str(tmp_path / "m.ingot"), "--no-check").exit_code == 0


def test_compile_errors(tmp_path: Path, compiled: Path) -> None:
    def refused(*arguments: str, code: int = 1) -> str:
        result = run("compile", *arguments)
        assert result.exit_code == code and not result.stdout and "Traceback" not in result.stderr, result.stderr
        return result.stderr

    operators = refused(factory("not_compilable"), "-o", str(tmp_path / "m.ingot"))
    assert operators.startswith("UnsupportedOperator: ")
    assert "linalg_eig" in operators and "_fft_r2c" in operators and "factories.py" in operators
    assert not list(tmp_path.iterdir())
    whole = tmp_path / "whole.ingot"
    assert run("compile", factory("pair"), "-o", str(whole), "--program").exit_code == 0
    assert run("compile", str(whole), "-o", str(tmp_path / "again.ingot")).exit_code == 0  # from the program inside
    assert refused(str(compiled), code=2).startswith("AlreadyCompiled: ")
    assert refused("nowhere.ingot", code=2).startswith("ReferenceMissing: ")
    assert refused(factory("nett"), code=2).startswith("FactoryMissing: ")
    assert refused(factory("reads_data")).startswith("DataDependentError: ")
    assert "x86-64-v4" in refused(factory("pair"), "--isa", "z80")
    missing = refused(factory("pair"), "-o", str(tmp_path / "missing" / "m.ingot"))
    assert missing.startswith("MissingFolder: ") and "missing does not exist" in missing
    assert "DIM=NAME" in refused(factory("pair"), "--dynamic", "input", code=2)
    refused(factory("pair"), "--threads", "0", code=2)


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    result = run("compile", factory("pair"), "--json")
    assert result.exit_code == 1
    error = json.loads(result.stdout)["error"]
    assert error["type"] == "NoCompiler" and "no-such-compiler" in error["message"]


# ---------------------------------------------------------------------- run


def test_run(compiled: Path, tmp_path: Path) -> None:
    x, output = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32), tmp_path / "out.npz"
    np.save(tmp_path / "x.npy", x)
    result = run("run", str(compiled), "--input", f"input={tmp_path / 'x.npy'}", "-o", str(output))
    assert result.exit_code == 0, result.stderr
    assert "output" in result.stdout and "7×2" in result.stdout
    with ingot_runtime.load(compiled) as model:
        np.testing.assert_array_equal(np.load(output)["output"], model(x))
    data = run_json("run", str(compiled), "--input", f"input={tmp_path / 'x.npy'}")
    assert data["results"] == [{"name": "output", "dtype": "float32", "shape": [7, 2]}] and data["output"] is None


def test_run_several_results_and_bfloat16(tmp_path: Path) -> None:
    file, output = tmp_path / "m.ingot", tmp_path / "out.npz"
    run_json("compile", factory("mixed"), "-o", str(file))
    np.save(tmp_path / "x.npy", np.arange(6, dtype=np.float32).reshape(2, 3))
    data = run_json("run", str(file), "--input", f"x={tmp_path / 'x.npy'}", "--output", str(output))
    assert [row["name"] for row in data["results"]] == ["sum", "rounded"]
    assert np.load(output)["sum"].tolist() == [9, 36] and np.load(output)["rounded"].dtype == np.float32


def test_run_does_without_torch(compiled: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((2, 4), np.float32))
    script = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "from ingot.cli import app\n"
        f"app(['run', {str(compiled)!r}, '--input', 'input={tmp_path / 'x.npy'}'])\n"
    )
    done = subprocess.run((sys.executable, "-c", script), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "2×2" in done.stdout


@pytest.mark.parametrize(
    ("inputs", "texts"),
    [
        ([], ["missing input", "float32[batch, 4]"]),
        (["input={x}", "other={x}"], ["unexpected other"]),
        (["input"], ["names no value"]),
        (["input={doubles}"], ["float64", "float32"]),
        (["input={many}"], ["65", "batch"]),
        (["input={text}"], ["cannot be read", "numpy.save"]),
        (["input={nowhere}"], ["nowhere.npy"]),
    ],
)
def test_run_errors(compiled: Path, tmp_path: Path, inputs: list[str], texts: list[str]) -> None:
    files = {name: tmp_path / f"{name}.npy" for name in ("x", "doubles", "many", "text", "nowhere")}
    np.save(files["x"], np.ones((2, 4), np.float32))
    np.save(files["doubles"], np.ones((2, 4)))
    np.save(files["many"], np.ones((65, 4), np.float32))
    files["text"].write_text("not an array")
    given = [part for text in inputs for part in ("--input", text.format(**files))]
    result = run("run", str(compiled), *given, "-o", str(tmp_path / "out.npz"))
    assert result.exit_code == 1 and not result.stdout and "Traceback" not in result.stderr
    for text in texts:
        assert text in result.stderr
    assert not (tmp_path / "out.npz").exists()


def test_an_index_out_of_range_is_shown_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "m.ingot"
    run_json("compile", factory("embedding"), "-o", str(file))
    np.save(tmp_path / "x.npy", np.array([[1, -3, 12]]))
    result = run("run", str(file), "--input", f"input={tmp_path / 'x.npy'}")
    assert result.exit_code == 1 and result.stderr.startswith("IndexOutOfRange: ")
    assert "index -3 is out of range for a dim of 10 elements (valid: 0 to 9)" in result.stderr
    assert "input holds int64 from -3 (at [0, 1]) to 12 (at [0, 2])" in result.stderr


def test_run_of_a_program_says_that_it_is_not_compiled(tmp_path: Path) -> None:
    run_json("capture", factory("pair"), "-o", str(tmp_path / "p.ingot"))
    result = run("run", str(tmp_path / "p.ingot"))
    assert result.exit_code == 1 and result.stderr.startswith("NotCompiled: ")
    assert run("run", str(tmp_path / "nothing.ingot")).exit_code == 1


# ---------------------------------------------------------------------- bench


def test_bench() -> None:
    threads = torch.get_num_threads()
    data = run_json("bench", factory("pair"), "--repeat", "3", "--threads", "1", "--peer", "eager")
    assert [row["name"] for row in data["rows"]] == ["ingot", "eager"]
    for row in data["rows"]:
        assert 0 < row["min_ms"] <= row["median_ms"] <= row["max_ms"]
    assert data["largest_difference"] < 1e-5 and data["threads"] == 1 and data["repeat"] == 3
    assert torch.get_num_threads() == threads
    text = run("bench", factory("pair"), "--repeat", "1", "--peer", "eager")
    assert text.exit_code == 0 and "median ms" in text.stdout and "times as long" in text.stdout
    assert "█" * 16 in text.stdout and "1 round" in text.stdout


def test_bench_against_every_peer() -> None:
    """Every peer that is installed has a row, or a reason why it has none; all have the same threads."""
    data = run_json(
        "bench", factory("pair"), "--repeat", "2", "--threads", "1", "--peer", "onnxruntime", "--peer", "openvino"
    )
    assert data["left_out"] == {}
    assert [row["name"] for row in data["rows"]] == ["ingot", "eager", "onnxruntime", "openvino"]
    assert data["left_out"] == {} and data["largest_difference"] < 1e-5


def test_a_peer_that_cannot_take_a_model_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(subject: peers.Subject) -> Any:
        raise RuntimeError("no kernel for this\nand more")

    monkeypatch.setitem(peers._PREPARE, "torch.compile", fails)
    data = run_json("bench", factory("pair"), "--repeat", "1", "--peer", "torch.compile")
    assert [row["name"] for row in data["rows"]] == ["ingot", "eager"]
    assert data["left_out"] == {"torch.compile": "RuntimeError: no kernel for this"}
    monkeypatch.setattr(peers, "PEERS", {**peers.PEERS, "openvino": "no_such_package"})
    assert not peers.is_installed("openvino") and peers.is_installed("eager")


@pytest.mark.filterwarnings("ignore")
def test_torch_compile_is_a_peer() -> None:
    model = torch.nn.Linear(4, 2).eval()
    args = (torch.randn(3, 4),)
    program = ingot.capture(model, args)
    call = peers.prepare("torch.compile", peers.Subject(model, program, args, {}, 1, Path()))
    torch.testing.assert_close(call(), model(*args))


def test_bench_profile(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    data = run_json("bench", factory("pair"), "--repeat", "2", "--peer", "eager", "--profile", "--trace", str(trace))
    assert data["profile"] and all(row["seconds"] >= 0 and row["kernel"].startswith("k") for row in data["profile"])
    assert sum(row["flops"] for row in data["profile"]) > 0
    events = [event for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"]
    assert {row["kernel"] for row in data["profile"]} <= {event["name"].split()[-1] for event in events}
    assert all(event["dur"] >= 0 for event in events)
    text = run("bench", factory("pair"), "--repeat", "1", "--peer", "eager", "--profile")
    assert text.exit_code == 0 and "GFLOP/s" in text.stdout and "by module" in text.stdout


def test_bench_of_files(compiled: Path, tmp_path: Path) -> None:
    data = run_json("bench", str(compiled), "--repeat", "2")
    assert [row["name"] for row in data["rows"]] == ["ingot"] and data["largest_difference"] is None
    program = tmp_path / "p.ingot"
    run_json("capture", factory("pair"), "-o", str(program))
    assert len(run_json("bench", str(program), "--repeat", "2", "--peer", "eager")["rows"]) == 2
    for options in (["--profile"], ["--peer", "eager"], ["--precision", "bfloat16"], ["--dynamic", "x:0=batch"]):
        refused = run("bench", str(compiled), *options)
        assert refused.exit_code == 2 and "is compiled, and holds no model" in plain(refused.stderr)


def test_kinds_take_turns() -> None:
    called: list[str] = []
    times = time_interleaved({"a": lambda: called.append("a"), "b": lambda: called.append("b")}, 2)
    assert called == list("aabbbbaa") and {name: len(taken) for name, taken in times.items()} == {"a": 2, "b": 2}
    rounds: list[int] = []
    time_interleaved({"a": lambda: None}, 3, on_round=lambda: rounds.append(1))
    assert len(rounds) == 3
    assert len(time_interleaved({"a": lambda: None}, 1, least=1e-4)["a"]) > 1


def test_a_file_says_what_it_is_multiplied_in(tmp_path: Path, compiled: Path) -> None:
    narrow = tmp_path / "narrow.ingot"
    result = run("compile", factory("pair"), "-o", str(narrow), "--precision", "bfloat16")
    assert result.exit_code == 0 and "multiplied in bfloat16" in result.stdout, result.stderr
    for file, said in ((narrow, "bfloat16"), (compiled, "float32")):
        shown, data = run("inspect", str(file)), json.loads(run("inspect", str(file), "--json").stdout)
        assert shown.exit_code == 0 and "takes" in shown.stdout
        assert ("multiplied in bfloat16" in shown.stdout) == (said == "bfloat16") and data["precision"] == said
    assert run("compile", factory("pair"), "--precision", "int3").exit_code == 2
    refused = run("compile", factory("pair"), "--precision", "tf32")
    assert refused.exit_code and "which the target 'cuda' has" in refused.stderr
    assert run("bench", factory("pair"), "--repeat", "1", "--peer", "eager", "--precision", "bfloat16").exit_code == 0


def test_bench_errors() -> None:
    result = run("bench", factory("not_compilable"))
    assert result.exit_code == 1 and result.stderr.startswith("UnsupportedOperator: ")
    assert run("bench", factory("pair"), "--repeat", "0").exit_code == 2
    unknown = run("bench", factory("pair"), "--peer", "tvm")
    assert unknown.exit_code == 2 and "torch.compile" in unknown.stderr


# ---------------------------------------------------------------------- the command itself


@pytest.mark.parametrize("name", ["compile", "run", "bench"])
def test_help_does_not_import_torch(name: str) -> None:
    script = (
        "import sys\n"
        "from ingot.cli import app\n"
        f"try: app([{name!r}, '--help'])\n"
        "except SystemExit as end: code = end.code\n"
        "print(sorted({'torch', 'numpy', 'sympy'} & set(sys.modules)), code, file=sys.stderr)\n"
    )
    environment = {**os.environ, "COLUMNS": "120"}
    done = subprocess.run((sys.executable, "-c", script), capture_output=True, text=True, check=True, env=environment)
    assert done.stderr.strip() == "[] 0" and "--threads" in done.stdout
