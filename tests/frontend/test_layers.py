"""Layers of torch.nn, and what they do to their own weights."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ingot
from ingot.ir.metadata import value_of
from tests.frontend.checks import assert_same, check
from tests.frontend.test_operations import x


@pytest.mark.parametrize(
    ("make", "shapes"),
    [
        (lambda: nn.LSTM(4, 6, num_layers=2, batch_first=True, bidirectional=True, dropout=0.5), [(2, 5, 4)]),
        (lambda: nn.GRU(4, 6), [(5, 2, 4)]),
        (lambda: nn.RNNCell(4, 6), [(2, 4)]),
        (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), [(2, 5, 8)]),
        (lambda: nn.TransformerDecoderLayer(8, 2, 16), [(5, 2, 8), (3, 2, 8)]),
        (lambda: nn.Transformer(8, 2, 1, 1, 16, batch_first=True), [(2, 5, 8), (2, 3, 8)]),
        (
            lambda: nn.Sequential(nn.Conv1d(4, 6, 3, padding=1), nn.InstanceNorm1d(6, track_running_stats=True)),
            [(2, 4, 9)],
        ),
        (lambda: nn.Sequential(nn.ConvTranspose2d(3, 4, 3, 2), nn.GroupNorm(2, 4), nn.PReLU()), [(1, 3, 5, 5)]),
        (lambda: nn.Bilinear(4, 4, 3), [(2, 4), (2, 4)]),
        (lambda: nn.Sequential(nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(2), nn.Flatten()), [(1, 3, 9, 9)]),
    ],
    ids=["lstm", "gru", "rnn-cell", "encoder", "decoder", "transformer", "instance-norm", "deconv", "bilinear", "pool"],
)
@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
def test_layers(make: Any, shapes: list[tuple[int, ...]], train: bool) -> None:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = make().train(train)
    check(model, [x(*shape) for shape in shapes])


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_any_number_of_steps(layer: Any, batch_first: bool, dtype: torch.dtype) -> None:
    """Of a recurrent layer, which stays whole; what torch lays out it lays out so."""
    torch.manual_seed(0)
    model = layer(4, 6, 2, batch_first=batch_first, bidirectional=True).to(dtype)
    program = ingot.capture(model, (x(2, 5, 4).to(dtype),), dynamic_shapes={"input": {0: "a", 1: "b"}})
    program.verify()
    given = x(3, 7, 4).to(dtype)
    assert_same(program(given), model(given))
    claimed, own = value_of(program.graph.output_node().args[0][0]), model(given)[0]
    assert claimed.is_contiguous() == own.is_contiguous()


def test_multihead_attention() -> None:
    model = nn.MultiheadAttention(8, 2, batch_first=True)
    mask = torch.tensor([[False, False, True], [False, False, False]])
    check(model, (x(2, 3, 8), x(2, 3, 8), x(2, 3, 8)), {"key_padding_mask": mask})
    check(model.eval(), (x(2, 3, 8), x(2, 3, 8), x(2, 3, 8)), {"need_weights": False})


def test_packed_sequence() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.GRU(4, 6, batch_first=True)

        def forward(self, a: torch.Tensor) -> torch.Tensor:
            return F.log_softmax(self.rnn(a)[0][:, -1], -1)

    check(Model(), (x(2, 5, 4),))


def test_weight_norm_both_ways() -> None:
    torch.manual_seed(0)
    new = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
    check(nn.Sequential(new, nn.ReLU(), new), (x(),))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        old = nn.utils.weight_norm(nn.Linear(4, 4))
    program = ingot.capture(old, (x(),))
    assert torch.equal(program(x()), old(x()))


@pytest.mark.parametrize("train", [True, False])
def test_spectral_norm_updates_its_vectors(train: bool) -> None:
    torch.manual_seed(0)
    check(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)).train(train), (x(),))


def test_initialised_lazy_layer() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = nn.LazyLinear(3)
    model(x())
    check(model, (x(),))
