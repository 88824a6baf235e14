"""An offset of `as_strided` counts from the start of the memory that a view shows, not from the start of the view."""

from __future__ import annotations

from pathlib import Path

import onnxruntime
import pytest
import torch
from torch import nn

import ingot
from ingot.errors import UnsupportedByOnnx, UnsupportedOperator


class Shown(nn.Module):
    def __init__(self, operator: str, offset: int) -> None:
        super().__init__()
        self.operator, self.offset = operator, offset

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        view, place = (x * 2)[1:], ((2, 2), (1, 2), self.offset)
        if self.operator == "scatter":
            return torch.as_strided_scatter(view, torch.ones(2, 2), *place) + 0
        return (view.as_strided(*place) if self.operator == "view" else torch.as_strided_copy(view, *place)) + 0


@pytest.mark.parametrize("offset", [3, 4, 6, 11])
@pytest.mark.parametrize("operator", ["view", "copy", "scatter"])
def test_offsets_into_memory(operator: str, offset: int) -> None:
    model, x = Shown(operator, offset), torch.randn(5, 4)
    try:
        compiled = ingot.compile(model, (x,))
    except UnsupportedOperator:
        assert offset < 4, "what begins before the view is refused by name"
        return
    assert torch.equal(compiled(x), model(x))


class Moved(nn.Module):
    """Views whose memory passes may be tempted to change: a copy that is not needed, a part of a constant."""

    def __init__(self, given: str) -> None:
        super().__init__()
        self.given = given
        self.register_buffer("table", torch.randn(5, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        table = self.table * 1.0 if self.given == "folded" else torch.arange(20.0).view(5, 4)
        view = (x * 2)[1:].clone() if self.given == "copied" else table[1:]
        source = x[:2, :2]
        return torch.as_strided_scatter(view, source, (2, 2), (1, 2), 7) + view.view(-1).as_strided((4,), (1,), 8).sum()


@pytest.mark.parametrize("given", ["copied", "folded", "made"])
def test_passes_keep_the_place_in_memory(given: str) -> None:
    model, x = Moved(given), torch.randn(5, 4)
    compiled = ingot.compile(model, (x,))
    torch.testing.assert_close(compiled(x), model(x))
    cleaned = [ingot.passes.functionalize, ingot.passes.remove_noops, ingot.passes.constant_fold]
    program = ingot.transform(ingot.capture(model, (x,)), cleaned)
    torch.testing.assert_close(program(x), model(x))


@pytest.mark.parametrize("offset", [3, 4, 6, 11])
def test_offsets_into_memory_in_onnx(offset: int, tmp_path: Path) -> None:
    model, x = Shown("copy", offset), torch.randn(5, 4)
    file = tmp_path / "m.onnx"
    try:
        ingot.export_onnx(ingot.capture(model, (x,)), file)
    except UnsupportedByOnnx:
        assert offset < 4, "what begins before the view is refused by name"
        return
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    assert torch.equal(torch.from_numpy(found), model(x))
