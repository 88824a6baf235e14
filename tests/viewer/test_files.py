"""Views of files: programs, compiled models, snapshots and ONNX; and what a file may not make a page show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import ingot
from ingot.errors import OnnxUnavailable, ViewError
from ingot.ir import metadata
from ingot.passes.instrumentation.dump import Snapshots
from ingot.viewer.collection import ViewOptions, collect_program
from ingot.viewer.files.compiled_file import collect_compiled, parse_origin
from ingot.viewer.files.onnx_file import collect_onnx
from ingot.viewer.files.snapshot_folder import collect_snapshots
from ingot.viewer.source_files import SourceFiles
from ingot_runtime.container import open_container
from tests.viewer import models
from tests.viewer.views import graph_stages, lines_of, nodes_of


def _gate() -> ingot.Program:
    model, args, _ = models.gate()
    return ingot.capture(model, args, dynamic_shapes={"x": {0: "batch"}})


# ---------------------------------------------------------------------- snapshots


def _snapshots(folder: Path) -> Path:
    ingot.transform(_gate(), [ingot.passes.autocast, ingot.passes.functionalize], check=None, snapshots=folder)
    return folder


def test_a_folder_of_snapshots(tmp_path: Path) -> None:
    data = collect_snapshots(_snapshots(tmp_path / "shots")).to_json()
    stages = graph_stages(data)
    assert [stage["name"] for stage in stages] == ["before", "autocast", "functionalize"]
    assert [stage["group"] for stage in stages] == ["capture", "passes", "passes"]
    assert [graph["path"] for graph in stages[0]["graphs"]] == ["", "true_graph", "false_graph"]
    assert [graph["caller"] for graph in stages[0]["graphs"]] == [None, "cond", "cond"]
    assert stages[1]["changes"] == 1 and stages[1]["delta"]["added"]
    known = {data["nodes"][index]["name"]: data["nodes"][index] for index in nodes_of(stages[0])}
    assert known["linear"]["target"] == "aten.linear" and known["linear"]["inputs"][0] == "x"
    assert data["types"][known["linear"]["type"]]["dims"] == ["batch", 8]
    module, file, _ = data["places"][known["linear"]["place"]]
    assert data["modules"][module]["path"] == "fc" and data["files"][file]["name"] == "viewer/models.py"
    shown = {link: text for link, text in lines_of(data, stages[0]["texts"][0]) if link >= 0}
    relu = next(index for index in nodes_of(stages[0]) if data["nodes"][index]["name"] == "relu")
    assert shown[relu].strip().startswith("relu: ")


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(ViewError, match="holds no snapshots"):
        collect_snapshots(tmp_path)


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"schema": 2}', '{"schema": 1}', '{"schema": 1, "graphs": [3]}', "[" * 9999]
)
def test_files_that_are_not_snapshots(tmp_path: Path, text: str) -> None:
    (tmp_path / "00_before.json").write_text(text)
    with pytest.raises(ViewError, match="is not a snapshot of a program"):
        collect_snapshots(tmp_path)


# ---------------------------------------------------------------------- compiled models


def test_a_compiled_file_without_a_program(tmp_path: Path) -> None:
    model, args, _ = models.mlp()
    compiled = ingot.compile(model, args, dynamic_shapes={"x": {0: "batch"}})
    compiled.save(tmp_path / "m.ingot")
    with open_container(tmp_path / "m.ingot") as container:
        data = collect_compiled(container, tmp_path / "m.ingot").to_json()
    (stage,) = data["stages"]
    assert "\n".join(text for _, text in lines_of(data, stage["texts"][0])) == compiled.source
    assert len(data["kernels"]) == compiled.kernels
    first = data["origins"][data["kernels"][0]["origins"][0]]
    assert first["op"] == "linear.default" and first["module"] == "first"
    assert [item["name"] for item in data["inputs"]] == ["x"] and data["dims"][0]["name"] == "batch"
    assert "compiled.save(path, program=True)" in data["notes"][0]


def test_what_the_comment_of_a_kernel_says() -> None:
    whole = parse_origin("linear.default  layers.0.fc  nets/model.py:12")
    assert (whole.op, whole.module, whole.source) == ("linear.default", "layers.0.fc", "nets/model.py:12")
    assert parse_origin("cond").op == "cond"
    assert parse_origin("add.Tensor  m.py:3").source == "m.py:3"
    assert parse_origin("add.Tensor  block").module == "block"


# ---------------------------------------------------------------------- ONNX


class Choice(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x.tanh() - 1, (x,))


def test_an_onnx_file(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    program = ingot.capture(Choice(), (torch.ones(2, 3),), dynamic_shapes={"x": {0: "batch"}})
    ingot.export_onnx(program, tmp_path / "m.onnx", verify=False)
    data = collect_onnx(tmp_path / "m.onnx").to_json()
    (stage,) = data["stages"]
    assert stage["detail"].startswith("opset ") and stage["counts"]["nodes"] > 3
    assert len(stage["graphs"]) == 3  # the branches are nested graphs
    inner = stage["graphs"][1]
    assert inner["parent"] == "" and inner["caller"] in {data["nodes"][i]["name"] for i in nodes_of(stage)}
    choice = next(data["nodes"][i] for i in nodes_of(stage) if data["nodes"][i]["target"] == "If")
    assert choice["kind"] == "call" and len(choice["regions"]) == 2
    assert data["types"][data["inputs"][0]["type"]]["dims"] == ["batch", 3]
    names = {node["target"] for node in data["nodes"]}
    assert {"If", "Tanh"} <= names
    tanh = next(node for node in data["nodes"] if node["target"] == "Tanh")
    _, file, line = data["places"][tanh["place"]]
    assert data["files"][file]["name"] == "viewer/test_files.py" and line > 0  # as the exporter wrote it


def test_hostile_names_in_an_onnx_file(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    name = "</script>\n<img src=x onerror=alert(1)>"
    helper = onnx.helper
    value = [helper.make_tensor_value_info(text, 1, [name, 2]) for text in ("x", name)]
    node = helper.make_node("Relu", ["x"], [name], name=name, domain="")
    for key in ("module", "source"):
        node.metadata_props.append(onnx.StringStringEntryProto(key=key, value=f"{name}/etc/passwd:1"))
    onnx.save(helper.make_model(helper.make_graph([node], name, value[:1], value[1:])), tmp_path / "m.onnx")
    data = collect_onnx(tmp_path / "m.onnx").to_json()
    assert data["title"] == name
    assert all("\n" not in text for text in data["lines"]["strings"])
    assert all(file["text"] is None and file["lines"] is None for file in data["files"])


@pytest.mark.parametrize("content", [b"", b"x", b"not a model", b"\x08\x0a" * 3])
def test_files_that_are_not_onnx(tmp_path: Path, content: bytes) -> None:
    pytest.importorskip("onnx")
    (tmp_path / "m.onnx").write_bytes(content)
    with pytest.raises(ViewError, match="is not an ONNX file"):
        collect_onnx(tmp_path / "m.onnx")


def test_without_the_onnx_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    with pytest.raises(OnnxUnavailable, match=r"pip install 'ingot\[onnx\]'"):
        collect_onnx(tmp_path / "m.onnx")


# ---------------------------------------------------------------------- what a page may not hold


def test_a_program_cannot_show_other_files_of_this_machine(tmp_path: Path) -> None:
    """The file that a program was loaded from may name any file as its source."""
    secret = tmp_path / "secret.txt"
    secret.write_text("the password is hunter2\n" * 50)
    hidden = tmp_path / "settings.py"
    hidden.write_text("PASSWORD = 'hunter2'\n" * 50)
    program = _gate()
    for node, path in zip(list(program.graph.nodes)[5:], [secret, hidden] * 9, strict=False):
        metadata.set_source(node, metadata.Source(str(path), 1, "forward"))
    program.save(tmp_path / "m.ingot")
    loaded = ingot.load(tmp_path / "m.ingot")
    assert isinstance(loaded, ingot.Program)
    assert "hunter2" in str(loaded)  # on this machine's terminal they are shown
    data = collect_program(loaded, ViewOptions()).to_json()
    assert "hunter2" not in json.dumps(data)
    assert "secret.txt" in json.dumps(data["files"])
    assert str(tmp_path) not in json.dumps(data)


def test_snapshots_cannot_show_other_files_of_this_machine(tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("hunter2\n")
    folder = _snapshots(tmp_path / "shots")
    for path in folder.glob("*.json"):
        data: Any = json.loads(path.read_text())
        for node in data["graphs"][0]["nodes"]:
            node["source"] = f"{secret}:1"
        path.write_text(json.dumps(data))
    assert "hunter2" not in json.dumps(collect_snapshots(folder).to_json())


def test_which_files_may_be_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    for folder in (own, other):
        folder.mkdir()
        (folder / "m.py").write_text("x = 1\n")
        (folder / "m.txt").write_text("x = 1\n")
    (own / "link.py").symlink_to(other / "m.py")
    monkeypatch.chdir(own)
    files = SourceFiles()
    assert files.is_readable(str(own / "m.py")) and files.is_readable(__file__)
    for path in (own / "m.txt", other / "m.py", other / "m.txt", own / "link.py", Path("../other/m.py")):
        assert not files.is_readable(str(path)), path
    assert not files.is_readable("nothing.py") and not files.hides("nothing.py")
    assert files.hides(str(other / "m.py"))


def test_the_snapshots_that_are_shown_are_those_that_the_passes_write(tmp_path: Path) -> None:
    program = _gate()
    Snapshots(tmp_path)("before", program)
    (stage,) = collect_snapshots(tmp_path).to_json()["stages"]
    assert stage["counts"]["nodes"] == collect_program(program, ViewOptions()).to_json()["stages"][0]["counts"]["nodes"]
