"""Quantized modules: scripted, traced, and traced by the importer itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import ingot
from ingot.errors import CaptureError, UntraceableError
from tests.frontend.torchscript.models_quantized import dynamic, layers, recurrent, rounded, static
from tests.frontend.torchscript.test_models import operators

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*deprecated"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
]


def as_it_is(model: Any) -> Any:
    return model


def traced(model: Any) -> Any:
    return torch.jit.trace(model, torch.randn(2, 3, 14, 14))


@pytest.mark.parametrize("form", [as_it_is, torch.jit.script, traced], ids=["module", "script", "trace"])
def test_static(form: Callable[[Any], Any]) -> None:
    model = static()
    torch.manual_seed(3)
    inputs = [torch.randn(2, 3, 14, 14) for _ in range(5)]
    program = ingot.from_torchscript(form(model), (inputs[0],))
    program.verify()
    assert any("quantize_per_tensor" in str(node.target) for node in program.graph.nodes)
    assert any("dequantize_per_channel" in str(node.target) for node in program.graph.nodes)
    for x in inputs:
        torch.testing.assert_close(program(x), model(x), rtol=0, atol=1e-6)


@pytest.mark.parametrize("form", [as_it_is, torch.jit.script], ids=["module", "script"])
def test_dynamic(form: Callable[[Any], Any]) -> None:
    model = dynamic()
    torch.manual_seed(3)
    inputs = [torch.randn(2, 16) for _ in range(5)]
    program = ingot.from_torchscript(form(model), (inputs[0],))
    program.verify()
    assert "tensor" in operators(program)
    for x in inputs:
        torch.testing.assert_close(program(x), model(x), rtol=1e-5, atol=1e-6)


def test_layers_with_scales_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGOT_CACHE_DIR", str(tmp_path))
    model = layers()
    torch.manual_seed(3)
    inputs = [torch.randn(2, 3, 9, 9) for _ in range(5)]
    program = ingot.from_torchscript(model, (inputs[0],))
    program.verify()
    compiled = ingot.compile(program)
    for x in inputs:
        torch.testing.assert_close(program(x), model(x), rtol=0, atol=1 / 256 + 1e-6)
        torch.testing.assert_close(compiled(x), model(x), rtol=0, atol=1 / 256 + 1e-6)


def test_weights_of_16_bits() -> None:
    model = rounded()
    program = ingot.from_torchscript(torch.jit.script(model), (torch.randn(2, 16),))
    program.verify()
    x = torch.randn(2, 16)
    torch.testing.assert_close(program(x), model(x))


def test_weights_that_nobody_can_look_into_are_refused() -> None:
    with pytest.raises(UntraceableError, match=r"(?s)quantized_lstm.*opaque object of torch.*ingot.quantize"):
        ingot.from_torchscript(recurrent(), (torch.randn(5, 2, 3),))


def test_a_module_needs_arguments_to_be_traced() -> None:
    with pytest.raises(CaptureError, match="traced first"):
        ingot.from_torchscript(static())
