"""Quantizers and specs of torchao, where it is installed; `make test-torchao` runs these and all other cases.

One for each quantizer and each kind of spec.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import ingot
from ingot.quantize import calibrate, convert, prepare, prepare_qat
from tests.quantization import annotation_models, torchao_runner
from tests.quantization.qat_scenarios import Situation

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torchao") is None, reason="torchao is not installed")

# A case for each quantizer and kind of spec; those with batch norm take torchao a minute and are the report's alone.
CHOSEN = {
    *("XNNPACK by tensor, residual, calibrated", "XNNPACK by channel, cat, calibrated", "XNNPACK, linear, trained"),
    *("XNNPACK dynamic, linear, calibrated", "X86Inductor, lstm, calibrated", "X86Inductor dynamic, cat, calibrated"),
    *("X86Inductor with matmul, attention, calibrated", "ArmInductor, residual, calibrated"),
    *("XPUInductor, residual, calibrated", "fixed, by tensor, calibrated", "fixed, by tensor, trained"),
    *("derived bias, by tensor, calibrated", "derived bias, by channel, calibrated"),
    *("shared weights, by channel, calibrated", "shared weights, by tensor, trained"),
    *("shared along a chain, by tensor, calibrated", "shared along a chain, by channel, trained"),
    *("shared by nobody, by tensor, calibrated", "a sum in place, trained"),
}
CASES = [case for case in (*annotation_models.by_quantizer(), *annotation_models.by_spec()) if str(case) in CHOSEN]


@pytest.fixture(autouse=True)
def torchao() -> Iterator[None]:
    with torchao_runner.captures_kept():
        yield


def test_the_cases_are_there() -> None:
    assert len(CASES) == len(CHOSEN)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_as_torchao_does(case: annotation_models.Case) -> None:
    batches = case.batches()
    both = (torchao_runner.trained if case.trains else torchao_runner.calibrated)(case.made(), case.quantizer, batches)
    found = torchao_runner.compare(both, batches[0])
    assert found.pairs[0] == found.pairs[1]
    assert found.training < 1e-5 and found.scales < 1e-6 and found.converted < 1e-3
    if case.trains:
        assert found.own < 1e-3


def test_a_zero_point_between_two_numbers_is_rounded() -> None:
    """torchao's embeddings have such zero points; it rounds values without them and then cuts off."""
    torch.manual_seed(0)
    model, ids = annotation_models.Words().eval(), torch.arange(20).view(1, 20)
    program = ingot.capture(model, (ids,))
    made = convert(calibrate(prepare(program, annotation_models.embedding()), [(ids,)], progress=False))
    weight = next(n for n in made.graph.nodes if n.target is torch.ops.aten.embedding.default).args[0]
    numbers, scales, zeros = (made.state_dict[f"table.weight_{end}"] for end in ("uint8", "scale", "zero_point"))
    assert numbers.dtype is torch.uint8 and weight.target.name().endswith("dequantize_per_channel")
    off = ((numbers - zeros[:, None]) * scales[:, None] - model.table.weight).abs() / scales[:, None]
    assert off.max() <= 0.5 + 1e-3


@pytest.mark.parametrize("per_channel", [False, True])
def test_a_trained_module_computes_what_it_is_converted_to(per_channel: bool) -> None:
    """torch's fused fake-quantizer trains symmetric weights with another scale than the one that is converted."""
    situation = Situation(2, False, True, "relu", per_channel)
    torch.manual_seed(2)
    batches = [(situation.batch(),) for _ in range(3)]
    quantizer = annotation_models.xnnpack(is_per_channel=per_channel, is_qat=True)
    module = prepare_qat(ingot.capture(situation.model(eps=1e-3, momentum=0.03).train(), batches[0]), quantizer)
    torchao_runner.descend(module, batches)
    made = convert(module.eval())
    with torch.no_grad():
        result, simulated = made(*batches[0]), module(*batches[0])
    step = torchao_runner.step_of(made, result)
    assert (result - simulated).abs().max() < 0.01 * step
    (weight,) = [m.inner for name, m in module.named_modules() if name.endswith("_weight")]
    trained, converted = weight.inner.scale.flatten(), weight.find_parameters().scale.flatten()
    assert ((trained / converted - 1).abs() > 1 / 300).all()  # why it has to be taken care of


class Unread(nn.Module):
    """A layer whose result nobody reads, as of a model whose caller wants something else."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.tanh(self.b(x))
        made: torch.Tensor = self.a(x)
        return made


@pytest.mark.parametrize("trains", [False, True])
def test_what_nobody_reads_is_not_shown_to_a_quantizer(trains: bool) -> None:
    """torchao's asks for the readers of a pattern's result, and fails if there is none."""
    x = torch.randn(4, 8)
    program = ingot.capture(Unread().train(trains), (x,))
    quantizer: Any = partial(annotation_models.x86, is_qat=trains)()
    module = (prepare_qat if trains else prepare)(program, quantizer)
    module(x)
    made = convert(module.eval())
    made.verify()
    assert torch.allclose(made(x), program(x), atol=0.1)
