"""A model in train mode that is compiled for inference warns once, and only where it makes a difference."""

from __future__ import annotations

import warnings
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

import ingot
from ingot.errors import TrainModeWarning, UnsupportedOperator

X = torch.ones(2, 4, 3)


class Attention(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5 if self.training else 0.0)


class Inside(nn.Module):
    """Dropout inside a region."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return self.dropout(x) * 2  # type: ignore[no-any-return]


def warned(model: nn.Module | ingot.Program) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", TrainModeWarning)
        with suppress(UnsupportedOperator):  # attention with dropout, say
            ingot.compile(model, () if isinstance(model, ingot.Program) else (X,))
    return [one for one in found if one.category is TrainModeWarning]


@pytest.mark.parametrize(
    "layer", [nn.Dropout(0.5), nn.BatchNorm1d(4), Attention(), Inside()], ids=lambda layer: type(layer).__name__
)
def test_layers_that_act_by_the_mode(layer: nn.Module) -> None:
    model = nn.Sequential(nn.Linear(3, 3), layer)
    (said,) = warned(model)
    text = str(said.message)
    assert "model.eval()" in text and "training=True" in text and "where:" in text
    assert said.filename == __file__, "it points at the call of compile"
    assert not warned(model.eval())


@pytest.mark.parametrize(
    "layer",
    [nn.Linear(3, 3), nn.Dropout(0.0), nn.BatchNorm1d(4, track_running_stats=False), nn.LayerNorm(3)],
    ids=lambda layer: type(layer).__name__,
)
def test_a_mode_that_makes_no_difference(layer: nn.Module) -> None:
    assert not warned(nn.Sequential(nn.Linear(3, 3), layer))


def test_a_model_in_eval_mode_that_draws_on_purpose() -> None:
    class Drawing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return functional.dropout(x, 0.5, training=True)

    assert not warned(Drawing().eval())


def test_programs_and_onnx_files(tmp_path: Path) -> None:
    program = ingot.capture(nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)), (X,))
    assert len(warned(program)) == 1
    with pytest.warns(TrainModeWarning, match="train mode"):
        ingot.export_onnx(program, tmp_path / "m.onnx", verify=False)


def test_training_and_torch_compile_do_not_warn() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))
    with warnings.catch_warnings():
        warnings.simplefilter("error", TrainModeWarning)
        ingot.compile(model, (X,), training=True)
        torch.compile(model, backend="ingot")(X)
