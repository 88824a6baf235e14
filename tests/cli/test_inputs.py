"""What commands are given: kinds of files, paths that are checked before the work, options that exclude each other,
data to calibrate with."""

from __future__ import annotations

import json
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import Result
from torch import nn
from typer.testing import CliRunner

import ingot
from ingot.cli import app
from ingot.cli.inputs import calibration_data
from ingot.cli.inputs.calibration_data import CalibrationDataError
from ingot.cli.inputs.file_kinds import Kind, identify, list_functions

FACTORIES = Path(__file__).with_name("factories.py")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)))


def refused(*arguments: object, code: int = 2) -> str:
    result = run(*arguments)
    assert result.exit_code == code and not result.stdout and "Traceback" not in result.stderr, result.output
    return " ".join(result.stderr.replace("│", " ").split())


def factory(name: str) -> str:
    return f"{FACTORIES}:{name}"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[Kind | str, Path]:
    """One file of each kind that torch and Ingot write; names say nothing."""
    folder = tmp_path_factory.mktemp("kinds")
    model, x = nn.Linear(4, 2).eval(), torch.ones(3, 4)
    made: dict[Kind | str, Path] = {
        kind: folder / f"{kind.name.lower()}.data"
        for kind in (Kind.SCRIPT, Kind.EXPORTED, Kind.STATE_DICT, Kind.PICKLED, Kind.ONNX, Kind.INGOT, Kind.SAFETENSORS)
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of TorchScript
        torch.jit.save(torch.jit.trace(model, x), made[Kind.SCRIPT])
    with made[Kind.EXPORTED].open("wb") as file:
        torch.export.save(torch.export.export(model, (x,)), file)
    torch.save({"weights": model.state_dict(), "epoch": 3}, made[Kind.STATE_DICT])
    torch.save(model, made[Kind.PICKLED])
    program = ingot.capture(model, (x,))
    program.save(made[Kind.INGOT])
    ingot.export_onnx(program, made[Kind.ONNX], verify=False)
    with zipfile.ZipFile(made[Kind.INGOT]) as archive:
        made[Kind.SAFETENSORS].write_bytes(archive.read("weights.safetensors"))
    made["old"] = folder / "old.data"
    torch.save(model.state_dict(), made["old"], _use_new_zipfile_serialization=False)
    return made


def test_kinds_are_found_by_content(files: dict[Kind | str, Path], tmp_path: Path) -> None:
    for kind, path in files.items():
        assert identify(path) is (Kind.STATE_DICT if kind == "old" else kind), path
    np.savez(tmp_path / "a", x=np.ones(3))
    np.save(tmp_path / "b", np.ones(3))
    (tmp_path / "gguf").write_bytes(b"GGUF\3\0\0\0")
    (tmp_path / "tflite").write_bytes(b"\x1c\0\0\0TFL3\0\0")
    found = [identify(tmp_path / name) for name in ("a.npz", "b.npy", "gguf", "tflite", "")]
    assert found == [Kind.NUMPY, Kind.NUMPY, Kind.GGUF, Kind.TFLITE, Kind.FOLDER]
    assert identify(FACTORIES) is Kind.PYTHON


@pytest.mark.parametrize("data", [b"", b"\n", b"hello\n", b"\x08\x07", b"\x08\xff\xff", b"PK\3\4 broken", b"\0" * 40])
def test_other_files_are_of_no_kind(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    assert identify(path) is None


def test_no_part_of_a_file_runs(tmp_path: Path) -> None:
    """Neither a Python file nor a pickle is executed to find out what it is."""
    script, pickled = tmp_path / "m.py", tmp_path / "m.pt"
    script.write_text("raise SystemExit(1)\ndef make(a=1, *, b=2): ...\ndef other(a): ...\ndef _own(): ...\n")
    assert identify(script) is Kind.PYTHON and list_functions(script) == ["make"]

    class Harmful:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "ran",))

    torch.save(Harmful(), pickled)
    assert identify(pickled) is Kind.PICKLED and not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("kind", "texts"),
    [
        (Kind.SCRIPT, ["a TorchScript file", "ingot capture", "--input", "then use script.ingot"]),
        (Kind.EXPORTED, ["torch.export", "ingot capture", "then use exported.ingot"]),
        (Kind.STATE_DICT, ["weights, and not the model", "load_state_dict(torch.load(", "weights_only=True"]),
        (Kind.PICKLED, ["a pickled module", "if you trust the file"]),
        (Kind.SAFETENSORS, ["safetensors.torch.load_file"]),
        (Kind.ONNX, ["an ONNX model", "Ingot writes ONNX", "file.py:factory"]),
    ],
)
@pytest.mark.parametrize("command", ["compile", "bench", "inspect"])
def test_another_file_gets_a_hint(files: dict[Kind | str, Path], kind: Kind, texts: list[str], command: str) -> None:
    if (kind, command) == (Kind.EXPORTED, "compile"):
        return  # it is read
    said = refused(command, files[kind])
    assert said.startswith("UnsuitableFile: ")
    for text in texts:
        assert text in said


def test_hints_of_other_commands(files: dict[Kind | str, Path], tmp_path: Path) -> None:
    assert "an ONNX model" in refused("run", files[Kind.ONNX])
    assert "There is no file nowhere.onnx" in refused("compile", "nowhere.onnx")
    assert "is a folder" in refused("compile", tmp_path)
    assert f"{FACTORIES}:net" in refused("compile", FACTORIES)
    assert f"{FACTORIES}:net" in refused("capture", FACTORIES)
    empty = tmp_path / "empty.py"
    empty.write_text("import torch\n")
    assert "def factory(): return model" in refused("compile", empty)


def test_capture_reads_what_torch_export_saved(files: dict[Kind | str, Path], tmp_path: Path) -> None:
    made = tmp_path / "m.ingot"
    result = run("capture", files[Kind.EXPORTED], "-o", made)
    assert result.exit_code == 0, result.stderr
    program = ingot.load(made)
    assert isinstance(program, ingot.Program) and program(torch.ones(3, 4)).shape == (3, 2)
    assert "leave --dynamic" in refused("capture", files[Kind.EXPORTED], "--dynamic", "input:0=batch")
    assert "are for a TorchScript file" in refused("capture", factory("pair"), "--input", "x=f32[1]")
    broken = tmp_path / "broken.pt2"
    with zipfile.ZipFile(broken, "w") as archive:
        archive.writestr("m/archive_format", "pt2")
    assert "torch.export.load cannot read" in refused("capture", broken)


def test_compile_reads_what_torch_export_saved(files: dict[Kind | str, Path], tmp_path: Path) -> None:
    made = tmp_path / "m.ingot"
    result = run("compile", files[Kind.EXPORTED], "-o", made)
    assert result.exit_code == 0, result.stderr
    program = torch.export.load(files[Kind.EXPORTED]).module()
    x = torch.randn(3, 4)
    torch.testing.assert_close(ingot.load(made)(x), program(x))


# ---------------------------------------------------------------------- before the work


@pytest.fixture
def unbuilt(tmp_path: Path) -> str:
    """A factory that fails: what is refused before the work never says so."""
    path = tmp_path / "never.py"
    path.write_text("def never():\n    raise RuntimeError('the model was built')\n")
    return f"{path}:never"


@pytest.mark.parametrize(
    ("arguments", "text", "code"),
    [
        (["capture", "-o", "{missing}/m.ingot"], "missing does not exist", 1),
        (["capture", "-o", "{folder}"], "it is a folder", 1),
        (["capture", "-o", "{file}/m.ingot"], "is a file, and not a folder", 1),
        (["capture", "-o", "m.onnx"], "`ingot onnx` writes ONNX files", 2),
        (["capture", "--passes", "nothing_like_that"], "There is no pass", 1),
        (["capture", "--passes", "cse", "--snapshots", "{file}"], "is a file: give a folder", 2),
        (["compile", "-o", "m.c"], "--source writes the C text", 2),
        (["compile", "--program"], "give -o FILE.ingot", 2),
        (["compile", "--source", "a.c", "--loop-ir", "./a.c"], "--source and --loop-ir both name", 2),
        (["compile", "--source", "{missing}/a.c"], "--source", 1),
        (["compile", "--isa", "z80"], "x86-64-v4", 1),
        (["compile", "--target", "cuda", "--isa", "z80"], "sm_80", 1),
        (["compile", "--precision", "tf32"], "which the target 'cuda' has", 1),
        (["bench", "--trace", "{missing}/t.json"], "missing does not exist", 1),
        (["onnx", "-o", "{missing}/m.onnx"], "missing does not exist", 1),
        (["onnx", "-o", "m.ingot"], "writes an ONNX file", 2),
        (["onnx", "-o", "m.onnx", "--opset", "7"], "opset=7 cannot be written", 1),
        (["quantize", "-o", "{missing}/q.ingot"], "missing does not exist", 1),
        (["quantize", "-o", "q.ingot", "--recipe", "int3"], "int8_static", 2),
        (["quantize", "-o", "q.ingot", "--html", "q.ingot"], "both name", 2),
        (["quantize", "-o", "q.ingot", "--data", "{missing}.npz"], "there is no such file", 1),
        (["quantize", "-o", "q.ingot", "--data", "nowhere:batches"], "There is no module nowhere", 2),
        (["quantize", "-o", "q.ingot", "--limit", "0"], "--limit", 2),
        (["verify", "--bisect", "--schedule"], "--bisect and --schedule exclude each other", 2),
        (["verify", "--bisect", "--passes", "cse"], "leave --passes out", 2),
        (["verify", "--precision", "bfloat16"], "give --bisect or --schedule", 2),
        (["verify", "--passes", "csee"], "did you mean 'cse'", 1),
        (["inspect", "--shapes", "--size", "batch=2"], "--size and --depth are for", 2),
    ],
)
def test_what_cannot_end_well_does_not_begin(
    unbuilt: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], text: str, code: int
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    names = {"missing": tmp_path / "missing", "folder": tmp_path, "file": tmp_path / "file"}
    command, *options = (argument.format(**names) for argument in arguments)
    said = refused(command, unbuilt, *options, code=code)
    assert text in said and "the model was built" not in said


def test_run_checks_its_files_first(tmp_path: Path, files: dict[Kind | str, Path]) -> None:
    program = files[Kind.INGOT]
    assert "there is no such file" in refused("run", tmp_path / "m.ingot", code=1)
    assert "nowhere.npy" in refused("run", program, "--input", "x=nowhere.npy", code=1)
    assert "does not exist" in refused("run", program, "-o", tmp_path / "missing" / "o.npz", code=1)


def test_verify_takes_a_saved_program(files: dict[Kind | str, Path]) -> None:
    result = run("verify", files[Kind.INGOT], "--passes", "functionalize,cse", "--json")
    assert result.exit_code == 0, result.stderr
    assert [row["pass"] for row in json.loads(result.stdout)["passes"]] == ["functionalize", "cse"]


# ---------------------------------------------------------------------- data to calibrate with


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor, shift: torch.Tensor, factor: int) -> torch.Tensor:
        return self.layer(x) * factor + shift


@pytest.fixture(scope="module")
def scaled() -> ingot.Program:
    return ingot.capture(Scaled().eval(), (torch.ones(3, 4), torch.ones(2), 3))


def test_arrays_by_name_become_batches(scaled: ingot.Program, tmp_path: Path) -> None:
    path = str(tmp_path / "data.npz")
    x = np.random.default_rng(0).normal(size=(5, 3, 4)).astype(np.float32)
    np.savez(path, x=x, shift=np.zeros(2, np.float32))
    batches = calibration_data.from_file(path, scaled)
    assert batches.count == 5
    for number, (args, kwargs) in enumerate(batches.items):
        np.testing.assert_array_equal(args[0].numpy(), x[number])
        assert args[1].shape == (2,) and args[2] == 3 and kwargs == {}
    limited = batches.take(2)
    assert limited.count == 2 and len(list(limited.items)) == 2


@pytest.mark.parametrize(
    ("arrays", "texts"),
    [
        ({"x": (3, 4)}, ["missing shift", "an array for each of x, shift"]),
        ({"x": (3, 4), "shift": (2,), "y": (1,)}, ["unexpected y"]),
        ({"x": (4,), "shift": (2,)}, ["x: float32[3, 4]", "it has 1 axes, [4]"]),
        ({"x": (2, 3, 5), "shift": (2,)}, ["axis 1 of a batch is 5, and the model takes 4"]),
        ({"x": (2, 3, 4), "shift": (3, 2)}, ["different numbers of batches: x: 2, shift: 3"]),
    ],
)
def test_arrays_that_are_no_batches(
    scaled: ingot.Program, tmp_path: Path, arrays: dict[str, tuple[int, ...]], texts: list[str]
) -> None:
    path = str(tmp_path / "data.npz")
    np.savez(path, **{name: np.zeros(shape, np.float32) for name, shape in arrays.items()})
    with pytest.raises(CalibrationDataError) as raised:
        calibration_data.from_file(path, scaled)
    for text in texts:
        assert text in str(raised.value)


def test_dtypes_and_files_of_something_else(scaled: ingot.Program, tmp_path: Path) -> None:
    path = str(tmp_path / "data.npz")
    np.savez(path, x=np.zeros((3, 4)), shift=np.zeros(2, np.float32))
    with pytest.raises(CalibrationDataError, match=r"it holds float64[\s\S]*x\.astype\('float32'\)"):
        calibration_data.from_file(path, scaled)
    np.save(tmp_path / "one.npy", np.zeros(3))
    for name, data in (("text.npz", b"not an array"), ("one.npy", (tmp_path / "one.npy").read_bytes())):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(CalibrationDataError, match="is not a file of arrays by name"):
            calibration_data.from_file(str(tmp_path / name), scaled)
    with pytest.raises(CalibrationDataError, match="returned a value of type int"):
        calibration_data.from_function(3, "m:f")
    scaled = scaled.copy()
    scaled.example_inputs = None
    with pytest.raises(CalibrationDataError, match="no example inputs"):
        calibration_data.from_example(scaled)


def test_quantize_with_a_file(tmp_path: Path) -> None:
    data = tmp_path / "data.npz"
    np.savez(data, input=np.random.default_rng(0).normal(size=(6, 3, 4)).astype(np.float32))
    result = run("quantize", factory("pair"), "-o", tmp_path / "q.ingot", "--data", data, "--limit", "4", "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["calibrated_on"] == str(data)


def test_a_limit_makes_no_more_batches_than_it_needs(tmp_path: Path) -> None:
    path = tmp_path / "endless.py"
    path.write_text("import torch\n\ndef batches():\n    while True:\n        yield (torch.ones(3, 4),)\n")
    options = ("--data", f"{path}:batches", "--limit", "3", "--report")
    result = run("quantize", factory("pair"), "-o", tmp_path / "q.ingot", *options)
    assert result.exit_code == 0, result.stderr
