"""Post-training quantization with fixed scales: the graph, its numbers, and that nothing else changed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ingot
from ingot.errors import QuantizeError
from ingot.quantize import calibrate, convert, int8_static, prepare
from tests.quantization import reference


def quantized(model: nn.Module, data: list[torch.Tensor], recipe: Any = None) -> ingot.Program:
    program = ingot.capture(model.eval(), (data[0],))
    return convert(calibrate(prepare(program, recipe or int8_static()), data))


def operators(program: ingot.Program) -> list[str]:
    nodes = [n for n in program.graph.nodes if n.op == "call_function"]
    return [str(n.target).split(".")[1] for n in nodes]


def agrees(program: ingot.Program, x: torch.Tensor) -> None:
    """The program's integers are those of the reference, up to one step where a float sum fell between two."""
    ours, exact = reference.integers_of(program, x), reference.run(program, x)[1]
    assert ours.keys() == exact.keys() and ours
    for name, numbers in exact.items():
        off = np.abs(ours[name].astype(int) - numbers.astype(int))
        assert off.max() <= 1 and (off > 0).mean() < 0.01, name


def small() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1, dilation=1, bias=False),
        nn.BatchNorm2d(8, eps=1e-3, momentum=0.03),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Dropout(0.1),
        nn.Flatten(),
        nn.Linear(8 * 4, 16),
        nn.ReLU(),
        nn.Linear(16, 4),
    )
    model(torch.randn(16, 3, 8, 8))
    return model


def test_graph_and_numbers() -> None:
    model, x = small(), torch.randn(32, 3, 8, 8)
    program = quantized(model, [x])
    program.verify()
    pair = ["quantize_per_tensor", "dequantize_per_tensor"]
    assert operators(program) == [
        *(*pair, "dequantize_per_channel", "conv2d", "relu", *pair, "max_pool2d", *pair, "flatten", *pair),
        *("dequantize_per_channel", "linear", "relu", *pair, "dequantize_per_channel", "linear"),
    ]
    conv = next(n for n in program.graph.nodes if n.name == "conv2d")
    assert conv.args[3:] == ([2, 2], [1, 1])
    agrees(program, x)
    with torch.no_grad():
        expected, got = model(x), program(x)
    noise = 10 * torch.log10(expected.square().mean() / (expected - got).square().mean())
    assert noise > 30


def test_weights_are_integers() -> None:
    program = quantized(small(), [torch.randn(8, 3, 8, 8)])
    kinds = {name: tensor.dtype for name, tensor in program.state_dict.items() if "weight" in name}
    assert {name for name, kind in kinds.items() if kind is torch.int8} == {
        "0.weight_int8",
        "6.weight_int8",
        "8.weight_int8",
    }
    assert not any(name.endswith("weight") for name in kinds)  # no float weight is left


def test_the_program_given_is_not_changed() -> None:
    model, x = small().eval(), torch.randn(4, 3, 8, 8)
    program = ingot.capture(model, (x,))
    before = str(program)
    prepared = prepare(program, int8_static())
    convert(calibrate(prepared, [x]))
    assert str(program) == before
    assert torch.equal(program(x), model(x))
    assert torch.allclose(prepared(x), model(x), atol=1e-5)  # what is calibrated is the float model


def test_uncalibrated_is_refused() -> None:
    program = ingot.capture(small().eval(), (torch.randn(4, 3, 8, 8),))
    with pytest.raises(QuantizeError, match=r"Nothing is known of the range of .*\n(.*\n)*.*calibrate"):
        convert(prepare(program, int8_static()))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Conv2d(4, 4, 3, padding=1) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.a(x))
        x = torch.relu(self.b(x) + x)
        return self.c(x)


def test_a_shared_activation_is_quantized_once_and_a_sum_joins_in() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 4, 6, 6)
    program = quantized(Residual(), [x])
    program.verify()
    pair = ["quantize_per_tensor", "dequantize_per_tensor"]
    conv = ["dequantize_per_channel", "conv2d"]
    assert operators(program) == [*pair, *conv, "relu", *pair, *conv, *pair, "add", "relu", *pair, *conv]
    agrees(program, x)


class Cat(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 1), nn.Conv2d(8, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c(torch.cat([self.a(x).relu(), self.b(x) * 3], 1))


def test_what_is_concatenated_shares_its_parameters() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 5, 5)
    program = quantized(Cat(), [x])
    agrees(program, x)
    nodes = {n.name: n for n in program.graph.nodes}
    assert nodes["relu_quantized"].args[1:] == nodes["mul_quantized"].args[1:] == nodes["cat_quantized"].args[1:]


def test_the_file_keeps_it(tmp_path: Any) -> None:
    x = torch.randn(4, 3, 8, 8)
    program = quantized(small(), [x])
    program.save(tmp_path / "m.ingot")
    loaded = ingot.load(tmp_path / "m.ingot")
    assert isinstance(loaded, ingot.Program)
    loaded.verify()
    assert torch.equal(loaded(x), program(x))
