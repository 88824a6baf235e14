"""Every command as a user runs it: results on stdout, everything else on stderr, exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from ingot import __version__
from ingot.cli import app, doctor, system_info
from ingot.cli.capture import parse_dynamic
from ingot.cli.console import human
from ingot.cli.inspect import parse_sizes

FACTORIES = Path(__file__).with_name("factories.py")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def run_json(*arguments: str) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def factory(name: str) -> str:
    return f"{FACTORIES}:{name}"


# ---------------------------------------------------------------------- the command itself


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["capture", "--help"], ["inspect", "--help"]])
def test_help_and_version_do_not_import_torch(arguments: list[str]) -> None:
    script = (
        "import sys\n"
        "from ingot.cli import app\n"
        f"try: app({arguments!r})\n"
        "except SystemExit as end: code = end.code\n"
        "print(sorted({'torch', 'numpy', 'sympy'} & set(sys.modules)), code, file=sys.stderr)\n"
    )
    done = subprocess.run((sys.executable, "-c", script), capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[] 0"
    assert done.stdout.strip()


def test_version_and_bare_call() -> None:
    assert run("--version").stdout == f"ingot {__version__}\n"
    assert "capture" in run().output


def test_unknown_command() -> None:
    assert run("melt").exit_code == 2


# ---------------------------------------------------------------------- capture


def test_capture_prints_a_summary() -> None:
    result = run("capture", factory("net"))
    assert result.exit_code == 0, result.stderr
    for text in ("nodes", "parameters", "264", "all fixed", "verified", "capture"):
        assert text in result.stdout
    assert "prints this" not in result.stdout
    assert "the factory prints this" in result.stderr and "forward prints this" in result.stderr


def test_capture_json() -> None:
    data = run_json("capture", factory("net"), "--dynamic", "x:0=batch[1,64]", "--preserve", "body")
    assert data["nodes"] == 5
    assert data["parameters"] == 264
    assert data["parameter_bytes"] == data["state_bytes"] == 4 * 264
    assert data["dims"] == [{"name": "batch", "low": 1, "high": 64}]
    assert data["inputs"] == ["x", "image"]
    assert data["preserved"] == ["body"]
    assert data["verified"] is True and data["file"] is None
    assert {"build", "capture", "verify"} <= data["seconds"].keys()
    assert "code" not in data


def test_capture_prints_code() -> None:
    result = run("capture", factory("net"), "--print", "--no-verify")
    assert result.exit_code == 0, result.stderr
    assert "aten.linear" in result.stdout and "prints this" not in result.stdout
    data = run_json("capture", factory("net"), "--print", "--no-verify")
    assert data["code"].strip() == result.stdout.strip()
    assert data["verified"] is False


def test_capture_keeps_snapshots_of_passes(tmp_path: Path) -> None:
    data = run_json("capture", factory("net"), "--passes", "functionalize,decompose", "--snapshots", str(tmp_path))
    assert [step["pass"] for step in data["passes"]] == ["tracepoints", "functionalize", "decompose"]
    assert sorted(f.name for f in tmp_path.iterdir()) == [
        "00_before.json",
        "01_functionalize.json",
        "02_decompose.json",
    ]
    assert run("capture", factory("net"), "--snapshots", str(tmp_path)).exit_code == 2


def test_capture_takes_a_pair() -> None:
    assert run_json("capture", factory("pair"))["parameters"] == 10


def test_capture_and_inspect_a_file(tmp_path: Path) -> None:
    saved = tmp_path / "net.ingot"
    data = run_json("capture", factory("net"), "--dynamic", "x:0=batch", "-o", str(saved))
    assert data["file"] == {"path": str(saved), "bytes": saved.stat().st_size}
    loaded = run_json("inspect", str(saved), "--size", "batch=5")
    fresh = run_json("inspect", factory("net"))
    for key in ("total", "modules", "operators"):
        assert loaded[key] == fresh[key]
    assert loaded["sizes"] == {"batch": 5}


def test_a_file_in_a_missing_folder(tmp_path: Path) -> None:
    result = run("capture", factory("pair"), "-o", str(tmp_path / "missing" / "m.ingot"))
    assert result.exit_code == 1
    assert "missing" in result.stderr and "Traceback" not in result.stderr


def test_a_module_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "ingot_cli_test_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "models.py").write_text(FACTORIES.read_text())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert run_json("capture", "ingot_cli_test_package.models:pair")["parameters"] == 10


def test_dynamic_declarations() -> None:
    assert parse_dynamic([]) == {}
    assert parse_dynamic(["x:0=batch", "x:1=2*seq + 1", "cache.0:-1=past[1,64]", "cache.1:2=past", "y=auto"]) == {
        "x": {0: "batch", 1: "2*seq + 1"},
        "cache": {"0": {-1: ("past", 1, 64)}, "1": {2: ("past", 1, 64)}},
        "y": "auto",
    }
    assert parse_dynamic(["x:0=batch[2,]"]) == {"x": {0: ("batch", 2, None)}}


@pytest.mark.parametrize(
    "texts",
    [["x"], ["x:0"], ["x=batch"], ["x:a=batch"], ["x:0=a", "x:0=b"], ["x:0=a[1,2]", "y:0=a[1,3]"], ["x:0=2*a[1,2]"]],
)
def test_bad_dynamic_declarations(texts: list[str]) -> None:
    with pytest.raises(typer.BadParameter):
        parse_dynamic(texts)
    result = run("capture", factory("net"), *(part for text in texts for part in ("--dynamic", text)))
    assert result.exit_code == 2 and not result.stdout


# ---------------------------------------------------------------------- inspect


def test_inspect() -> None:
    result = run("inspect", factory("net"))
    assert result.exit_code == 0, result.stderr
    for text in ("(whole model)", "body", "Conv2d", "aten.linear.default", "elementwise operators are left out"):
        assert text in result.stdout
    assert "aten.linear.default" not in run("inspect", factory("net"), "--no-ops").stdout


def test_inspect_depth() -> None:
    paths = {d: [row["path"] for row in run_json("inspect", factory("net"), "--depth", d)["modules"]] for d in "012"}
    assert paths["0"] == [""]
    assert paths["1"] == ["", "body", "tied", "conv"]
    assert paths["2"] == [row["path"] for row in run_json("inspect", factory("net"))["modules"]]


def test_inspect_json() -> None:
    data = run_json("inspect", factory("net"))
    conv = 2 * (2 * 8 * 4 * 4) * 2 * 9
    assert data["total"]["flops"] == 2 * 5 * 4 * 8 + 2 * (2 * 5 * 8 * 8) + conv
    assert data["total"]["state_bytes"] == {"parameter": 4 * 264, "buffer": 0, "constant": 0}
    assert data["operators"] == {"aten.linear.default": 3, "aten.conv2d.default": 1, "aten.relu.default": 1}
    assert data["modules"][0] == {
        "path": "",
        "type": "Net",
        "parameters": 264,
        "parameter_bytes": 4 * 264,
        "flops": data["total"]["flops"],
        "nodes": 5,
        "bytes_written": data["total"]["bytes_written"],
    }
    assert data["sizes"] == {}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["nowhere.ingot"], "There is no file nowhere.ingot"),
        ([factory("net"), "--size", "batch=2"], "no dynamic dim 'batch'"),
        ([factory("net"), "--size", "batch"], "NAME=SIZE"),
        ([factory("net"), "--depth", "-1"], "--depth"),
    ],
)
def test_inspect_errors(arguments: list[str], text: str) -> None:
    result = run("inspect", *arguments)
    assert result.exit_code == 2
    assert text in result.stderr and not result.stdout


def test_inspect_shapes() -> None:
    values = {row["value"]: row for row in run_json("inspect", factory("net"), "--shapes")["values"]}
    assert values["x"]["type"] == "f32[5, 4]" and values["conv2d"]["type"] == "f32[2, 8, 4, 4]"
    assert "body_0_weight" not in str(list(values)) and values["conv2d"]["operator"] == "aten.conv2d.default"
    assert "factories.py" in values["conv2d"]["source"] and values["conv2d"]["why_not_more"] == ""


def test_inspect_shapes_of_other_arguments() -> None:
    result = run("inspect", factory("net"), "--shape", "x=rows,4", "--shape", "image=?,4,9,?")
    assert result.exit_code == 0, result.stderr
    for text in ("f32[rows, 8]", "f32[?, 8, 4, ?]", "results differ between sizes or ranks"):
        assert text in result.stdout
    any_rank = run_json("inspect", factory("net"), "--shape", "x=...")["values"]
    assert any_rank[0]["type"] == "f32[…]"


@pytest.mark.parametrize(
    ("shape", "text", "code"),
    [
        ("x=5,-4", "NAME=DIM", 2),
        ("x", "NAME=DIM", 2),
        ("y=5,4", "no argument y", 1),
        ("x=5,3", "aten.linear.default cannot work on f32[5, 3]", 1),
    ],
)
def test_inspect_impossible_shapes(shape: str, text: str, code: int) -> None:
    result = run("inspect", factory("net"), "--shape", shape)
    assert result.exit_code == code and text in result.stderr and not result.stdout


def test_inspect_something_else(tmp_path: Path) -> None:
    other = tmp_path / "other.ingot"
    other.write_text("not a program")
    result = run("inspect", str(other), "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["error"]["type"] == "NotAnIngotFile"


def test_sizes() -> None:
    assert parse_sizes(["batch=8", "seq = 16"]) == {"batch": 8, "seq": 16}


# ---------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("reference", "error", "texts"),
    [
        ("factories", "ReferenceSyntaxError", ["pkg.module:factory"]),
        ("a/b:net", "ReferenceSyntaxError", ["neither a module nor a .py file"]),
        ("no_such_package.models:net", "ReferenceMissing", ["no module no_such_package.models"]),
        ("json.nowhere:net", "ReferenceMissing", ["no module json.nowhere"]),
        ("no_such_file.py:net", "ReferenceMissing", ["no file no_such_file.py"]),
        (factory("nett"), "FactoryMissing", ["no attribute 'nett'", "did you mean net"]),
        (factory("not_a_function"), "FactoryMissing", ["not a function but of type int"]),
        (factory("takes_arguments"), "FactoryMissing", ["without arguments", "size"]),
        (factory("raises"), "FactoryFailed", ["ValueError: no such checkpoint", "factories.py:", "raise ValueError"]),
        (factory("raises_inside_torch"), "FactoryFailed", ["factories.py:", "view(2)"]),
        (factory("returns_model"), "FactoryResultError", ["of type Linear", "(model, args, kwargs)"]),
        (factory("returns_four"), "FactoryResultError", ["4 values"]),
        (factory("returns_no_model"), "FactoryResultError", ["of type int, which cannot be called"]),
        (factory("returns_tensor_args"), "FactoryResultError", ["args of type Tensor", "(x,)"]),
        (factory("returns_dict_args"), "FactoryResultError", ["(model, (), kwargs)"]),
        (factory("returns_list_kwargs"), "FactoryResultError", ["kwargs of type list"]),
    ],
)
def test_wrong_references(reference: str, error: str, texts: list[str]) -> None:
    result = run("capture", reference)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"{error}: ") and "Traceback" not in result.stderr
    assert not result.stdout
    for text in texts:
        assert text in result.stderr


def test_a_module_that_does_not_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    for text, said in [("import no_such_thing\n", "no_such_thing"), ("x = (\n", "SyntaxError"), ("1 / 0\n", "Zero")]:
        path = tmp_path / "ingot_cli_test_broken.py"
        path.write_text(text)
        result = run("capture", f"{path}:net")
        assert result.exit_code == 2
        assert result.stderr.startswith("ModuleFailed: ") and said in result.stderr and f"{path}:1" in result.stderr
    monkeypatch.chdir(tmp_path)
    result = run("capture", "ingot_cli_test_broken:net")
    assert result.stderr.startswith("ModuleFailed: ") and f"{path}:1" in result.stderr


def test_an_error_of_ingot() -> None:
    result = run("capture", factory("reads_data"))
    assert result.exit_code == 1
    assert result.stderr.startswith("DataDependentError: ") and "factories.py" in result.stderr
    assert "Traceback" not in result.stderr and not result.stdout
    assert "Traceback" in run("capture", factory("reads_data"), "--debug").stderr
    error = json.loads(run("capture", factory("reads_data"), "--json").stdout)["error"]
    assert error["type"] == "DataDependentError" and error["message"]


# ---------------------------------------------------------------------- doctor


def test_doctor() -> None:
    data = run_json("doctor")
    assert data["ok"] is True and data["problems"] == []
    assert data["ingot"] == __version__
    assert data["packages"]["torch"] == system_info.version_of("torch")
    assert data["processor"]["cores"] >= data["processor"]["usable"] >= 1
    assert any(compiler["works"] for compiler in data["compilers"])
    text = run("doctor")
    assert text.exit_code == 0
    assert "Everything that is needed is here." in text.stdout and not text.stderr


def test_doctor_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a file"
    file.touch()
    monkeypatch.setenv("INGOT_CACHE_DIR", str(file / "cache"))
    monkeypatch.setattr(system_info, "compilers", lambda named: ())
    monkeypatch.setattr(
        doctor,
        "PACKAGES",
        (doctor.Package("torch", "99", "captures"), doctor.Package("no-such-package", None, "a test")),
    )
    result = run("doctor", "--json")
    assert result.exit_code == 1
    problems = {problem["what"]: problem for problem in json.loads(result.stdout)["problems"]}
    assert problems.keys() == {"torch", "no-such-package", "C compiler", "cache"}
    assert "older than 99" in problems["torch"]["found"] and "torch>=99" in problems["torch"]["fix"]
    assert "ziglang" in problems["C compiler"]["fix"]
    assert "INGOT_CACHE_DIR" in problems["cache"]["fix"]
    text = run("doctor")
    assert text.exit_code == 1 and "what to do: " in text.stdout
    monkeypatch.setenv("INGOT_DISABLE_CACHE", "1")
    assert "cache" not in {p["what"] for p in json.loads(run("doctor", "--json").stdout)["problems"]}


def test_a_compiler_that_does_not_work(tmp_path: Path) -> None:
    script = tmp_path / "cc"
    script.write_text("#!/bin/sh\necho 'out of order' >&2\nexit 3\n")
    script.chmod(0o755)
    assert system_info.try_compiler((str(script),)) == "it exits with 3: out of order"
    script.write_text("#!/bin/sh\nexit 0\n")
    problem = system_info.try_compiler((str(script),))
    assert problem is not None and "OSError" in problem
    missing = system_info.try_compiler((str(tmp_path / "nothing"),))
    assert missing is not None and "FileNotFoundError" in missing


def test_doctor_looks_at_the_compiler_that_will_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", str(tmp_path / "my-cc"))
    data = json.loads(run("doctor", "--json").stdout)
    assert [compiler["name"] for compiler in data["compilers"]] == ["my-cc"]
    assert "C compiler" in {problem["what"] for problem in data["problems"]}


def test_processors(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("model name\t: Fast One\nflags\t\t: fpu avx2 avx512f avx512_vnni\n\nmodel name\t: Other\n")
    found = system_info.processor(info)
    assert found.model == "Fast One" and {"avx2", "avx512f", "avx512_vnni"} <= set(found.instruction_sets)
    info.write_text("Features\t: fp asimd\n")
    assert "neon" in system_info.processor(info).instruction_sets
    assert system_info.processor(tmp_path / "nothing").model


# ---------------------------------------------------------------------- progress and numbers


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a pseudo-terminal")
def test_progress_is_for_terminals_and_stays_off_stdout() -> None:
    ours, theirs = os.openpty()
    command = (sys.executable, "-m", "ingot.cli", "doctor", "--json")
    environment = {**os.environ, "TERM": "xterm"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, env=environment)
    os.close(theirs)
    output, _ = process.communicate(timeout=60)
    shown = b""
    try:
        while part := os.read(ours, 65536):
            shown += part
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    assert json.loads(output)["ok"] is True
    assert "trying C compilers" in shown.decode()


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (1056, "1.06 kB"), (999_600, "1 MB"), (4.38e8, "438 MB")],
)
def test_human_numbers(number: float, text: str) -> None:
    assert human(number, "B") == text
