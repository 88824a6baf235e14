"""Reports name the layer that loses; accuracy control leaves it in float."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import ingot
from ingot.errors import QuantizeError
from ingot.quantize import accuracy_control, calibrate, convert, int4_weight_only, int8_static, prepare, report
from tests.quantization.qat_scenarios import Branching


def spoiled() -> nn.Module:
    """Three linear layers; one value of what the middle one reads is so large that all others are lost."""
    torch.manual_seed(0)

    class Spoiled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.middle, self.last = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 4)
            with torch.no_grad():
                self.first.bias[0] = 3000.0
                self.middle.weight[:, 0] = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(torch.relu(self.middle(self.first(x))))

    return Spoiled().eval()


def test_the_layer_that_loses_is_named(capsys: Any, tmp_path: Any) -> None:
    x = torch.randn(64, 16)
    program = ingot.capture(spoiled(), (x,))
    quantized = convert(calibrate(prepare(program, int8_static(observer="minmax")), [x]))
    made = report(program, quantized, [x], html=tmp_path / "report.html")
    assert [layer.path for layer in made.layers] == ["first", "middle", "last"]
    assert [layer.path for layer in made.worth_leaving] == ["middle"]
    by_name = {layer.path: layer for layer in made.layers}
    assert by_name["first"].own > 35 and by_name["last"].own > 35
    assert by_name["last"].total < by_name["last"].own - 10  # it is given what the middle one lost
    assert by_name["first"].range_use == pytest.approx(1.0, abs=0.02)
    printed = capsys.readouterr().out
    assert "middle*" in printed and "█" in printed
    assert "middle" in (tmp_path / "report.html").read_text()


def test_own_noise_is_that_of_the_layer_alone() -> None:
    """Against the same computed by hand."""
    x = torch.randn(64, 16)
    program = ingot.capture(spoiled(), (x,), dynamic_shapes={"x": {0: "batch"}})
    quantized = convert(prepare(program, int4_weight_only(group_size=16)))
    made = report(program, quantized, [x[:32], x[32:]], show=False)
    model, layer = spoiled(), made.layers[1]
    with torch.no_grad():
        inside = model.first(x)
        weight = model.middle.weight
        scale = weight.abs().amax(1, keepdim=True) / 7.5
        rounded = torch.round(weight / scale).clamp(-8, 7) * scale
        exact, noisy = model.middle(inside), nn.functional.linear(inside, rounded, model.middle.bias)
    expected = 10 * torch.log10(exact.square().sum() / (exact - noisy).square().sum())
    assert layer.path == "middle" and layer.own == pytest.approx(float(expected), abs=0.01)
    assert layer.range_use is None


def test_accuracy_control_leaves_as_little_as_it_takes() -> None:
    x = torch.randn(64, 16)
    program = ingot.capture(spoiled(), (x,))
    expected = program(x).detach()

    def evaluate(candidate: ingot.Program) -> float:
        return -float((candidate(x).detach() - expected).abs().mean() / expected.abs().mean())

    recipe = int8_static(observer="minmax")
    made = accuracy_control(program, recipe, [x], evaluate, max_drop=0.03)
    assert made.in_float == ("linear_1",) and made.drop <= 0.03
    assert [count for count, _ in made.trials] == [0, 1]
    made.program.verify()
    loose = accuracy_control(program, recipe, [x], evaluate, max_drop=10.0)
    assert loose.in_float == () and len(loose.trials) == 1
    strict = accuracy_control(program, recipe, [x], evaluate, max_drop=0.0)
    assert len(strict.in_float) == 3 and strict.drop <= 0.0


def test_layers_in_branches_loops_and_regions() -> None:
    """They are compared call by call; the one that loses is named, and accuracy control leaves it in float."""
    model = Branching().eval()
    with torch.no_grad():
        model.yes.bias[0] = 3000.0  # so that all else that the loop reads is lost, and the loop does not need it
        model.no.bias[0] = 3000.0
        model.again.weight[:, 0] = 0
    x = torch.randn(32, 4, generator=torch.Generator().manual_seed(0))
    data = [x + 1, x - 1]  # once each branch
    program = ingot.capture(model, (x,))
    recipe = int8_static(observer="minmax")
    quantized = convert(calibrate(prepare(program, recipe), data, progress=False))
    made = report(program, quantized, data, show=False)
    assert sorted(layer.path for layer in made.layers) == ["again", "last", "no", "yes"]
    own = {layer.path: layer.own for layer in made.layers}
    assert own["yes"] > 30 and own["no"] > 30 and own["last"] > 30
    loop = made.worth_leaving[0]
    assert loop.path == "again" and loop.own < 20
    assert loop.node.endswith(".linear") and loop.range_use == pytest.approx(1.0, abs=0.02)
    expected = [program(each).detach() for each in data]

    def evaluate(candidate: ingot.Program) -> float:
        return -max(float((candidate(e).detach() - y).abs().max()) for e, y in zip(data, expected, strict=True))

    controlled = accuracy_control(program, recipe, data, evaluate, max_drop=0.05, progress=False)
    assert controlled.in_float == (loop.node,) and controlled.drop <= 0.05


def test_there_must_be_something_to_report() -> None:
    x = torch.randn(4, 16)
    program = ingot.capture(spoiled(), (x,))
    with pytest.raises(QuantizeError, match="no quantized layer"):
        report(program, program, [x])
    with pytest.raises(QuantizeError, match="no data"):
        report(program, convert(prepare(program, int4_weight_only())), [])
