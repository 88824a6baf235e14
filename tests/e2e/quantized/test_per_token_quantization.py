"""Dynamic quantization by the token: integers as torch chooses them, to the last one, and products of them.

A product's sums are integers, which are exact; what is left are the two scales: a few roundings of the result. Where
torch's own rows of floats are multiplied it is torch that is off, by K · 2⁻²⁴ Σ|x||w|.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ingot
from ingot.targets.cpu.schedule.statements import PackedGemm
from tests.support.pipeline_fixtures import assemble, lowered
from tests.support.weight_only_layers import quantized

INT8 = torch.int8
CHOICES = {
    "asymmetric": quantized.choose_qparams_per_token_asymmetric.default,
    "symmetric": quantized.choose_qparams_per_token.default,
}


class Tokens(nn.Module):
    """A linear layer of rows that are quantized each by itself; gives the integers as well."""

    def __init__(self, choice: str, depth: int, columns: int) -> None:
        super().__init__()
        self.choose = CHOICES[choice]
        self.register_buffer("codes", torch.randint(-127, 128, (columns, depth)).to(INT8))
        self.register_buffer("scales", torch.rand(columns) / 100)
        self.register_buffer("zeros", torch.zeros(columns, dtype=torch.int64))
        self.bias = nn.Parameter(torch.randn(columns))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scale, zero = self.choose(x, INT8)
        scale, zero = scale.double(), zero.long()  # symmetric ones are float32, though torch says otherwise
        numbers = quantized.quantize_per_token(x, scale, zero, -128, 127, INT8)
        rows = quantized.dequantize_per_token(numbers, scale, zero, -128, 127, INT8, torch.float32)
        weight = quantized.dequantize_per_channel(self.codes, self.scales, self.zeros, 0, -128, 127, INT8)
        return F.linear(rows, weight, self.bias), numbers


def rows(*shape: int) -> torch.Tensor:
    """Rows of all sizes, one of zeros, one that is positive throughout, one with a single large number."""
    x = torch.randn(*shape) * 10.0 ** torch.randint(-3, 4, (*shape[:-1], 1))
    flat = x.view(-1, shape[-1])
    for row, value in zip(flat, (0.0, None, 1e4), strict=False):
        row.copy_(row.abs() + 1 if value is None else torch.zeros_like(row))
        row[0] = value if value is not None else row[0]
    return x


@pytest.mark.parametrize("choice", CHOICES)
def test_rows_are_quantized_each_by_itself(choice: str) -> None:
    torch.manual_seed(0)
    model = Tokens(choice, 77, 50).eval()
    program, module = lowered(model, (rows(2, 5, 77),), dynamic_shapes={"x": {0: "batch", 1: "length"}})
    assert [step.factors for step in module.steps if isinstance(step, PackedGemm)] == ["int8"]
    made = assemble(program, module, threads=2)
    for shape in ((2, 5, 77), (1, 1, 77), (3, 9, 77)):
        x = rows(*shape)
        with torch.no_grad():
            (ours, numbers), (theirs, same) = made(x), model(x)
            weight = (model.codes * model.scales[:, None]).abs()
            bound = 80 * 2**-24 * (x.abs() @ weight.T + model.bias.abs())
        assert torch.equal(numbers, same)
        assert ((ours - theirs).abs() <= 2 * bound + 1e-30).all()


def test_a_recipe_by_tokens_runs() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(48, 96), nn.GELU(), nn.Linear(96, 20)).eval(), torch.randn(7, 48)
    prepared = ingot.quantize.prepare(ingot.capture(model, (x,)), ingot.quantize.int8_dynamic(per_token=True))
    program = ingot.quantize.convert(prepared)
    with torch.no_grad():
        torch.testing.assert_close(ingot.compile(program, (x,))(x), program(x), rtol=1e-4, atol=1e-4)
        assert (program(x) - model(x)).norm() < 0.05 * model(x).norm()
