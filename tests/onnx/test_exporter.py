"""ingot.export_onnx from end to end: what the file says, what it gives, and what is left when something fails."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ingot
from ingot.errors import OnnxError, OnnxMismatch, UnsupportedByOnnx
from ingot.onnx import convert, file_writer, verification
from ingot.onnx.ort_kernel_types import KERNELS
from ingot.onnx.registry import RULES, exports
from tests.onnx.kernel_table import limits


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = F.gelu(self.up(x))
        return {"hidden": hidden, "logits": self.down(self.norm(hidden))}


def captured(model: nn.Module | None = None, *args: torch.Tensor, **options: Any) -> ingot.Program:
    torch.manual_seed(0)
    given = args or (torch.randn(2, 5, 4),)
    return ingot.capture((model or Small()).eval(), given, **options)


def session(path: Path) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def test_the_file_speaks_the_users_words(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    report = ingot.export_onnx(captured(dynamic_shapes={"x": {0: "batch", 1: "seq"}}), path)
    run = session(path)
    assert [(i.name, i.shape) for i in run.get_inputs()] == [("x", ["batch", "seq", 4])]
    assert [(o.name, o.shape) for o in run.get_outputs()] == [
        ("hidden", ["batch", "seq", 8]),
        ("logits", ["batch", "seq", 4]),
    ]
    nodes = onnx.load(path).graph.node
    assert [node.op_type for node in nodes] == [
        *("Transpose", "MatMul", "Add", "Gelu", "LayerNormalization", "Transpose", "MatMul", "Add")
    ]
    said = {entry.key: entry.value for entry in nodes[4].metadata_props}
    assert said["module"] == "norm" and said["aten"] == "aten.layer_norm.default"
    assert said["source"].startswith("onnx/test_exporter.py:")
    assert report.runner == "ONNX Runtime" and len(report.differences) == 3
    assert report.largest_difference is not None and report.largest_difference < 1e-5


@pytest.mark.parametrize("opset", [18, 19, 20, 21, 22, 23, 24])
def test_every_opset_runs(opset: int, tmp_path: Path) -> None:
    report = ingot.export_onnx(captured(), tmp_path / "m.onnx", opset=opset)
    assert onnx.load(tmp_path / "m.onnx").opset_import[0].version == opset == report.opset


@pytest.mark.parametrize("opset", [17, 99, "20"])
def test_an_opset_that_is_not_written(opset: Any, tmp_path: Path) -> None:
    with pytest.raises(OnnxError, match="cannot be written"):
        ingot.export_onnx(captured(), tmp_path / "m.onnx", opset=opset)
    assert not list(tmp_path.iterdir())


def test_the_same_program_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.onnx", "b.onnx"):
        ingot.export_onnx(captured(), tmp_path / name, verify=False)
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


class Refused(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.special.bessel_j1(x) + torch.linalg.det(x)


def test_all_operators_without_a_rule_are_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedByOnnx) as caught:
        ingot.export_onnx(captured(Refused(), torch.randn(3, 3)), tmp_path / "m.onnx")
    text = str(caught.value)
    assert "special_bessel_j1" in text and "_linalg_det" in text and "test_exporter.py:" in text
    assert not list(tmp_path.iterdir())


class Nothing(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return None, x.shape[0]


def test_a_model_that_gives_nothing(tmp_path: Path) -> None:
    with pytest.raises(OnnxError, match="returns no tensor"):
        ingot.export_onnx(captured(Nothing()), tmp_path / "m.onnx")


@dataclass
class Answer:
    logits: torch.Tensor
    hidden: torch.Tensor | None
    scores: torch.Tensor


torch.export.register_dataclass(Answer)


class Answering(nn.Module):
    def forward(self, x: torch.Tensor) -> Answer:
        return Answer(x * 2, None, x + 1)


def test_fields_of_a_registered_dataclass_are_names(tmp_path: Path) -> None:
    program = captured(Answering())
    assert ingot.export_onnx(program, tmp_path / "m.onnx").outputs == ("logits", "scores")
    again = ingot.from_exported(program.to_exported())
    assert ingot.export_onnx(again, tmp_path / "m.onnx").outputs == ("logits", "scores")
    assert isinstance(again(torch.ones(2, 5, 4)), Answer)


def test_a_second_rule_for_an_operator_raises() -> None:
    target = next(iter(RULES))
    with pytest.raises(ValueError, match="has a second"):
        exports(target)(lambda ex: None)


def test_a_wrong_model_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RULES._rules, torch.ops.aten.gelu.default, lambda ex, x: ex.op("Relu", x))
    (tmp_path / "m.onnx").write_text("what was there before")
    with pytest.raises(OnnxMismatch, match="output hidden is off by"):
        ingot.export_onnx(captured(), tmp_path / "m.onnx")
    assert [file.name for file in tmp_path.iterdir()] == ["m.onnx"]
    assert (tmp_path / "m.onnx").read_text() == "what was there before"


def test_a_missing_folder_is_reported_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convert, "convert", lambda *_: pytest.fail("too late"))
    program = captured()
    with pytest.raises(OnnxError, match="its folder does not exist"):
        ingot.export_onnx(program, tmp_path / "no" / "m.onnx")
    with pytest.raises(OnnxError, match="it is a folder"):
        ingot.export_onnx(program, tmp_path)


def test_a_program_from_torch_export(tmp_path: Path) -> None:
    """Its dims have torch's own names, and begin at 0."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1)).eval()
    dims = {0: torch.export.Dim("batch"), 2: torch.export.Dim("height", min=2, max=40)}
    exported = torch.export.export(model, (torch.randn(2, 3, 8, 8),), dynamic_shapes=(dims,))
    report = ingot.export_onnx(ingot.from_exported(exported), tmp_path / "m.onnx")
    assert len(report.differences) == 3


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 16)
        self.head = nn.Linear(16, 50, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.table(ids))


def test_tied_weights_are_stored_once(tmp_path: Path) -> None:
    ingot.export_onnx(captured(Tied(), torch.tensor([[1, 2, 3]])), tmp_path / "m.onnx")
    stored = onnx.load(tmp_path / "m.onnx").graph.initializer
    assert sum(np.prod(t.dims) == 800 for t in stored) == 1
    assert (tmp_path / "m.onnx").stat().st_size < 2 * 800 * 4


def test_weights_beside_the_file(tmp_path: Path) -> None:
    model = captured(nn.Linear(64, 64), torch.randn(2, 64))
    report = ingot.export_onnx(model, tmp_path / "m.onnx", external_data=True)
    assert [file.name for file in report.files] == ["m.onnx", "m.onnx.data"]
    assert (tmp_path / "m.onnx").stat().st_size < 4000 < (tmp_path / "m.onnx.data").stat().st_size
    assert session(tmp_path / "m.onnx").run(None, {"input": np.zeros((2, 64), np.float32)})[0].shape == (2, 64)
    (stored,) = [
        t for t in onnx.load(tmp_path / "m.onnx", load_external_data=False).graph.initializer if t.dims == [64, 64]
    ]
    assert int({e.key: e.value for e in stored.external_data}["offset"]) % file_writer.ALIGNMENT == 0


@pytest.mark.parametrize("external", [False, True])
def test_stretches_that_threads_write_make_one_file(
    external: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = captured(nn.Linear(64, 64), torch.randn(2, 64))
    ingot.export_onnx(model, tmp_path / "m.onnx", external_data=external)
    whole = [file.read_bytes() for file in sorted(tmp_path.iterdir())]
    monkeypatch.setattr(file_writer, "STRETCH", 1000)
    ingot.export_onnx(model, tmp_path / "m.onnx", external_data=external)
    assert [file.read_bytes() for file in sorted(tmp_path.iterdir())] == whole


def test_who_exports_does_not_wait_for_the_compiler(tmp_path: Path) -> None:
    code = (
        "import sys, torch, ingot\n"
        "program = ingot.capture(torch.nn.Linear(2, 2), (torch.ones(1, 2),))\n"
        "ingot.export_onnx(program, sys.argv[1], verify=False)\n"
        "print(*sorted(name for name in sys.modules if name.startswith(('ingot.targets', 'ingot.lowering'))))"
    )
    command = [sys.executable, "-W", "ignore", "-c", code, str(tmp_path / "m.onnx")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        return x * self.count


def test_a_buffer_that_is_written_goes_in_and_out(tmp_path: Path) -> None:
    ingot.export_onnx(captured(Counter(), torch.ones(2)), tmp_path / "m.onnx")
    run = session(tmp_path / "m.onnx")
    assert [o.name for o in run.get_outputs()] == ["output", "count.out"]
    ones = np.ones(2, np.float32)
    first, count = run.run(None, {"x": ones})
    second, again = run.run(None, {"x": ones, "count": count})
    assert (first == 1).all() and (second == 2).all() and again == 2


def test_the_table_of_kernels_is_that_of_the_pinned_release() -> None:
    pins = Path(__file__).parents[2] / "requirements-dev.txt"
    if f"onnxruntime=={onnxruntime.__version__}" not in pins.read_text().split():
        pytest.skip("the table is made with another ONNX Runtime")
    assert limits() == KERNELS


def test_the_measure_can_say_no() -> None:
    own = torch.tensor([1.0, 2.0])
    assert verification.difference(own + 1e-7, own, own.double())[0] is None
    assert verification.difference(own + 1e-3, own, own.double())[0] is not None
    assert verification.difference(own.double(), own, own.double())[0] is not None
    assert verification.difference(torch.tensor([1, 3]), torch.tensor([1, 2]), torch.tensor([1, 2]))[0] is not None
    assert verification.difference(torch.tensor([1.0, torch.nan]), own, own.double())[0] is not None


class Numbers(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return x * 2, x.shape[0], x.shape[0] * 3, 7


def test_rounding_tolerance_is_capped() -> None:
    """torch's error elsewhere excuses a file up to a limit: past it, a decision fell otherwise there."""
    exact = torch.tensor([1.0, 2.0], dtype=torch.float64)
    own, mine = exact.float() + torch.tensor([2e-6, 0.0]), exact.float() + torch.tensor([4e-5, 0.0])
    assert verification.difference(mine, own, exact)[0] is not None
    assert verification.difference(mine, own, exact, besides=1.2e-5)[0] is None
    assert verification.difference(exact.float() + 1e-3, own, exact, besides=1.0)[0] is not None


def test_results_that_are_numbers(tmp_path: Path) -> None:
    program = captured(Numbers(), torch.randn(3, 2), dynamic_shapes={"x": {0: "n"}})
    report = ingot.export_onnx(program, tmp_path / "m.onnx")
    assert len(report.differences) == 3
    found = session(tmp_path / "m.onnx").run(None, {"x": np.zeros((5, 2), np.float32)})
    assert [int(value) for value in found[1:]] == [5, 15]


def test_a_division_of_no_elements_by_zero(tmp_path: Path) -> None:
    """torch's decomposition of triu_indices divides an empty tensor by the number of columns."""

    class Indices(nn.Module):
        def forward(self) -> torch.Tensor:
            return torch.triu_indices(0, 0)

    ingot.export_onnx(ingot.capture(Indices()), tmp_path / "m.onnx")
