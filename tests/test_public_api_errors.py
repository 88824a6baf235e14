"""What is passed to a public entry point by mistake: every one says what it takes, and how to come by it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import ingot
from ingot.errors import CaptureError, NotAProgram, OnnxError, PassError, QuantizeError

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.*is deprecated:DeprecationWarning")

X = torch.randn(2, 3)
RECIPE = ingot.quantize.int8_static()


@pytest.fixture
def model() -> nn.Module:
    return nn.Linear(3, 4)


ENTRY_POINTS: dict[str, Callable[[Any, Path], object]] = {
    "export_onnx": lambda given, folder: ingot.export_onnx(given, folder / "m.onnx"),
    "shapes_of": lambda given, folder: ingot.shapes_of(given),
    "transform": lambda given, folder: ingot.transform(given, [ingot.passes.constant_fold]),
    "rewrite": lambda given, folder: ingot.rewrite(given, torch.relu, torch.sigmoid, (X,)),
    "prepare": lambda given, folder: ingot.quantize.prepare(given, RECIPE),
    "prepare_qat": lambda given, folder: ingot.quantize.prepare_qat(given, RECIPE),
    "report": lambda given, folder: ingot.quantize.report(given, given, [X]),
    "accuracy_control": lambda given, folder: ingot.quantize.accuracy_control(
        given, RECIPE, [X], lambda program: 1.0, max_drop=0.1
    ),
}


@pytest.mark.parametrize("entry_point", ENTRY_POINTS)
def test_model_in_place_of_a_program(entry_point: str, model: nn.Module, tmp_path: Path) -> None:
    with pytest.raises(
        NotAProgram, match=rf"{entry_point} takes a Program, not .*Linear\.\n.*ingot\.capture\(model, args\)"
    ):
        ENTRY_POINTS[entry_point](model, tmp_path)
    assert not list(tmp_path.iterdir())


def test_an_error_says_how_to_make_a_program(model: nn.Module, tmp_path: Path) -> None:
    makers = {
        r"ingot\.from_exported": torch.export.export(model, (X,)),
        r"ingot\.from_torchscript": torch.jit.trace(model, (X,)),
        "attribute `program`": ingot.capture(model, (X,)).module(),
        "module or a function": None,
    }
    for words, given in makers.items():
        with pytest.raises(NotAProgram, match=words) as caught:
            ENTRY_POINTS["export_onnx"](given, tmp_path)
        assert isinstance(caught.value, TypeError)


def test_capture_takes_neither_exported_nor_scripted_models(model: nn.Module) -> None:
    with pytest.raises(CaptureError, match=r"ingot\.from_exported"):
        ingot.capture(torch.export.export(model, (X,)), (X,))
    scripts = [torch.jit.script(model), torch.jit.trace(model, (X,)), torch.jit.script(_doubled)]
    for script in scripts:
        with pytest.raises(CaptureError, match=r"ingot\.from_torchscript\(script, args\)"):
            ingot.capture(script, (X,))
    for script in scripts[:2]:
        with pytest.raises(CaptureError, match=r"(?s)The submodule 1 is TorchScript.*from_torchscript"):
            ingot.capture(nn.Sequential(nn.ReLU(), script), (X,))


def _doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def test_a_scripted_function_inside_of_a_model_is_seen_through() -> None:
    scripted = torch.jit.script(_doubled)

    def model(x: torch.Tensor) -> torch.Tensor:
        return scripted(x) + 1

    assert torch.equal(ingot.capture(model, (X,))(X), X * 2 + 1)


def test_arguments_in_another_order(model: nn.Module, tmp_path: Path) -> None:
    program = ingot.capture(model, (X,))
    with pytest.raises(OnnxError, match=r'export_onnx\(program, "m\.onnx"\)'):
        ingot.export_onnx(program, _any((X,)), _any(tmp_path / "m.onnx"))
    with pytest.raises(PassError, match="a list of passes"):
        ingot.transform(program, _any(ingot.passes.constant_fold))
    with pytest.raises(QuantizeError, match=r"got Linear\.\n.*`prepare`"):
        ingot.quantize.convert(_any(model))


def _any(value: Any) -> Any:
    return value
