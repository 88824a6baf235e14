"""`ingot view`, as a user runs it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import Result
from torch import nn
from typer.testing import CliRunner

import ingot
from ingot import quantize
from ingot.cli import app
from ingot.viewer import page
from tests.viewer import models

MODELS = Path(models.__file__)


@pytest.fixture(autouse=True)
def assets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script of one line in place of the page's own, which these tests do not need."""

    def read(name: str) -> str:
        return {"app.js": "run();", "app.css": ""}[name]

    monkeypatch.setattr(page, "read_asset", read)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["view", *arguments])


def _data_of(path: Path) -> Any:
    found = re.search(r'id="view-data">(.*?)</script>', path.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_a_factory_is_exported(tmp_path: Path) -> None:
    result = run(f"{MODELS}:gate", "--dynamic", "x:0=batch", "--export", str(tmp_path / "p.html"), "--json")
    assert result.exit_code == 0, result.stderr
    facts = json.loads(result.stdout)
    assert facts["title"] == "Gate" and facts["stages"][0] == "captured" and facts["stages"][-1] == "model.c"
    assert facts["file"]["bytes"] == (tmp_path / "p.html").stat().st_size
    data = _data_of(tmp_path / "p.html")
    assert data["dims"][0]["name"] == "batch" and data["origin"] == "factory" and data["profile"] is None
    assert data["reference"] == "viewer/models.py:gate"  # no folder of this machine
    assert data["stages"][0]["seconds"] > 0


def test_numbers_and_profile(tmp_path: Path) -> None:
    result = run(
        f"{MODELS}:mlp", "--check", "numerics", "--profile", "--threads", "1", "--export", str(tmp_path / "p.html")
    )
    assert result.exit_code == 0, result.stderr
    assert "stages of Mlp" in result.stdout
    data = _data_of(tmp_path / "p.html")
    assert data["profile"]["threads"] == 1 and data["stages"][-1]["check"]["agrees"] and data["stats"]


def test_numbers_of_the_users(tmp_path: Path) -> None:
    (tmp_path / "n.json").write_text('{"latency": {"first": 1.5, "gone": 2}}')
    (tmp_path / "n.csv").write_text("kernel,cycles\nk0,12\n")
    files = ["--numbers", str(tmp_path / "n.json"), "--numbers", str(tmp_path / "n.csv")]
    result = run(f"{MODELS}:mlp", *files, "--export", str(tmp_path / "p.html"))
    assert result.exit_code == 0, result.stderr
    assert "note: Numbers 'latency': 1 name is not those of nodes, modules or kernels: 'gone'." in result.stdout
    latency, cycles = _data_of(tmp_path / "p.html")["numbers"]
    assert latency["modules"] == {"first": 1.5} and cycles["kernels"] == {"k0": 12.0}


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("n.csv", "name,time\na,nan\n", "line 2"),
        ("n.json", "{", "not JSON"),
        ("gone.csv", None, "there is no such file"),
    ],
)
def test_wrong_numbers_stop_before_anything_is_built(tmp_path: Path, name: str, text: str | None, why: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    result = run("nothing:factory", "--numbers", str(tmp_path / name), "--export", str(tmp_path / "p.html"))
    assert result.exit_code in (1, 2) and why in result.stderr and name in result.stderr, result.stderr
    assert not (tmp_path / "p.html").exists()


def test_values_of_weights(tmp_path: Path) -> None:
    for more, count in (([], 0), (["--weights"], 4)):
        result = run(f"{MODELS}:mlp", *more, "--export", str(tmp_path / "p.html"))
        assert result.exit_code == 0, result.stderr
        weights = _data_of(tmp_path / "p.html")["weights"]
        assert len(weights) >= count and all(item["data"] for item in weights) and bool(weights) == bool(count)
    result = run(f"{MODELS}:mlp", "--weights")
    assert result.exit_code == 2 and "--export" in result.stderr


def test_programs_and_compiled_files(tmp_path: Path) -> None:
    model, args, _ = models.mlp()
    program = ingot.capture(model, args)
    program.save(tmp_path / "program.ingot")
    compiled = ingot.compile(program)
    compiled.save(tmp_path / "compiled.ingot")
    compiled.save(tmp_path / "both.ingot", program=True)
    for name, origin, stages in (("program", "program", 27), ("compiled", "compiled", 1), ("both", "compiled", 20)):
        result = run(str(tmp_path / f"{name}.ingot"), "--export", str(tmp_path / "p.html"))
        assert result.exit_code == 0, result.stderr
        data = _data_of(tmp_path / "p.html")
        assert data["origin"] == origin and len(data["stages"]) >= stages
        assert ("note: " in result.stdout) == (name == "compiled")


def test_the_profile_of_a_compiled_file(tmp_path: Path) -> None:
    model, args, _ = models.mlp()
    ingot.compile(model, args).save(tmp_path / "m.ingot")
    result = run(str(tmp_path / "m.ingot"), "--profile", "--threads", "1", "--export", str(tmp_path / "p.html"))
    assert result.exit_code == 0, result.stderr
    data = _data_of(tmp_path / "p.html")
    assert [data["origins"][launch["origin"]]["module"] for launch in data["profile"]["launches"]] == [
        "first",
        "second",
    ]
    assert [kernel["launches"] for kernel in data["kernels"]] == [1, 1]
    assert data["profile"]["seconds"] > 0 and "times alone" in result.stdout


def test_two_models_side_by_side(tmp_path: Path) -> None:
    result = run(f"{MODELS}:mlp", "--against", f"{MODELS}:gate", "--export", str(tmp_path / "p.html"))
    assert result.exit_code == 0, result.stderr
    data = _data_of(tmp_path / "p.html")
    assert data["title"] == "Mlp" and data["compare"]["title"] == "Gate"
    assert data["profile"]["launches"] and data["compare"]["profile"]["launches"]
    assert len(data["compare"]["kernels"]) > max(launch["kernel"] for launch in data["compare"]["profile"]["launches"])


def test_what_a_quantized_program_loses(tmp_path: Path) -> None:
    x = torch.randn(8, 16)
    program = ingot.capture(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).eval(), (x,))
    program.save(tmp_path / "float.ingot")
    prepared = quantize.calibrate(quantize.prepare(program, quantize.int8_static()), [x], progress=False)
    quantize.convert(prepared).save(tmp_path / "int8.ingot")
    page_file = tmp_path / "p.html"
    command = (str(tmp_path / "int8.ingot"), "--float", str(tmp_path / "float.ingot"), "--export", str(page_file))
    np.savez(tmp_path / "d.npz", input=np.ones((3, 8, 16), np.float32))
    for more in ((), ("--data", f"{MODELS}:batches"), ("--data", str(tmp_path / "d.npz"))):
        result = run(*command, *more)
        assert result.exit_code == 0, result.stderr
        assert [layer["operator"] for layer in _data_of(page_file)["quantization"]["layers"]] == ["linear", "linear"]
    result = run(*command, "--data", str(tmp_path / "gone.npz"))
    assert result.exit_code == 1 and "gone.npz" in result.stderr
    result = run(str(tmp_path / "int8.ingot"), "--float", str(tmp_path / "nothing.ingot"), "--export", str(page_file))
    assert result.exit_code == 2 and "There is no file" in result.stderr


def test_a_file_of_torch_export(tmp_path: Path) -> None:
    model, args, _ = models.mlp()
    torch.export.save(torch.export.export(model, args), tmp_path / "m.pt2")
    result = run(str(tmp_path / "m.pt2"), "--export", str(tmp_path / "p.html"))
    assert result.exit_code == 0, result.stderr
    data = _data_of(tmp_path / "p.html")
    assert data["stages"][0]["counts"]["nodes"] == 3 and data["stages"][-1]["name"] == "model.c"
    assert data["reference"] == f"{tmp_path.name}/m.pt2"


def test_snapshots(tmp_path: Path) -> None:
    shots = str(tmp_path / "shots")
    done = CliRunner().invoke(app, ["capture", f"{MODELS}:gate", "--passes", "autocast", "--snapshots", shots])
    assert done.exit_code == 0
    result = run(shots, "--profile", "--export", str(tmp_path / "p.html"))
    assert result.exit_code == 0 and "note: Nothing was run" in result.stdout
    assert [stage["name"] for stage in _data_of(tmp_path / "p.html")["stages"]] == ["before", "autocast"]


@pytest.mark.parametrize(
    ("reference", "what", "hint"),
    [
        ("nothing.ingot", "There is no file nothing.ingot", "looked in"),
        ("nothing.onnx", "There is no file nothing.onnx", "looked in"),
        ("some/where", "does not name a factory", "pkg.module:factory"),
        ("m.py", "m.py names a Python file", "m.py:make"),
        ("m.safetensors", "is a file of tensors in safetensors", "write a factory"),
        ("./m.txt", "neither a factory nor a file of Ingot", "write pkg.module:factory"),
        ("empty", "empty holds no snapshots", "ingot capture"),
        ("bad.ingot", "bad.ingot", ""),
        ("bad.onnx", "bad.onnx is not an ONNX file", "export the model again"),
        ("no.such.module:make", "There is no module", ""),
        ("nothing", "does not name a factory", "pkg.module:factory"),
    ],
)
def test_wrong_targets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference: str, what: str, hint: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "m.py").write_text("def make():\n    return 1\n")
    (tmp_path / "m.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    for name in ("m.txt", "bad.ingot", "bad.onnx"):
        (tmp_path / name).write_text("nothing of use")
    result = run(reference, "--export", "p.html")
    assert result.exit_code in (1, 2) and result.stdout == ""
    assert what in result.stderr and hint in result.stderr
    assert not (tmp_path / "p.html").exists()
    result = run(reference, "--export", "p.html", "--json")
    assert what in json.loads(result.stdout)["error"]["message"]


@pytest.mark.parametrize("export", ["no/such/folder/p.html", "."])
def test_pages_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, export: str) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("a.module:that_is_never_imported", "--export", export)
    assert result.exit_code == 1 and "cannot be written" in result.stderr


def test_an_installation_without_the_page_says_so_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(page, "SCRIPT", "nothing.js")
    result = run("a.module:that_is_never_imported", "--no-open")
    assert result.exit_code == 2 and "make viewer" in result.stderr


def test_dims_are_for_factories(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"")
    result = run(str(tmp_path / "m.onnx"), "--dynamic", "x:0=batch", "--export", str(tmp_path / "p.html"))
    assert result.exit_code == 2 and "--dynamic is for a factory" in result.output


_SERVE = """
import signal
import sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
from ingot.viewer import page, server
read = lambda name: {"app.js": "run();", "app.css": ""}[name]
page.read_asset = server.read_asset = read
from ingot.cli import app
app(sys.argv[1:])
"""


def test_a_page_is_served_until_it_is_interrupted() -> None:
    command = [sys.executable, "-c", _SERVE, "view", f"{MODELS}:mlp", "--no-open"]
    served = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ})
    try:
        assert served.stderr is not None
        found = None
        for line in served.stderr:
            found = re.search(r"http://127\.0\.0\.1:\d+/[\w-]+/", line)
            if found is not None:
                break
        assert found is not None
        with urllib.request.urlopen(found[0] + "view.json", timeout=10) as answer:
            assert json.load(answer)["title"] == "Mlp"
        served.send_signal(signal.SIGINT)
        output, errors = served.communicate(timeout=30)
        assert served.returncode == 0 and output == "" and "Traceback" not in errors
    finally:
        served.kill()
        served.wait()


def test_a_port_that_is_taken(monkeypatch: pytest.MonkeyPatch, plain_assets: None) -> None:
    import socket

    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        result = run(f"{MODELS}:mlp", "--no-open", "--port", str(other.getsockname()[1]))
    assert result.exit_code == 2 and "Nothing can be served on port" in result.stderr
