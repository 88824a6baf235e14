"""What is known of the elements of a mask, and what attention leaves out for it."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ingot
from ingot.onnx.exporter import Exporter
from ingot.onnx.value_ranges import bounds
from ingot.onnx.values import OnnxValue
from tests.onnx.test_rules import Function, exported

X = torch.Tensor
LOWEST = torch.finfo(torch.float32).min


@pytest.fixture
def ex() -> Exporter:
    return Exporter(ingot.capture(Function(torch.relu), (torch.randn(3),)), 20)


def held(ex: Exporter, *numbers: float, dtype: torch.dtype = torch.float32) -> OnnxValue:
    return ex.constant(torch.tensor(numbers, dtype=dtype))


def test_bounds_of_what_is_stored_and_of_what_is_given(ex: Exporter) -> None:
    given = ex.named_input("given", torch.float32, (3,))
    assert bounds(ex, held(ex, -2.0, 5.0)) == (-2.0, 5.0)
    assert bounds(ex, held(ex, -math.inf, 0.0)) == (-math.inf, 0.0)
    assert bounds(ex, held(ex, math.nan, 0.0)) is None
    assert bounds(ex, held(ex)) is None
    assert bounds(ex, given) is None
    assert bounds(ex, ex.op("Greater", given, held(ex, 0.0, 0.0, 0.0))) == (0.0, 1.0)


def test_bounds_go_through_nodes(ex: Exporter) -> None:
    given = ex.named_input("given", torch.float32, (2,))
    seen = ex.op("Greater", given, held(ex, 0.0, 0.0))
    yes, no = held(ex, True, True, dtype=torch.bool), held(ex, False, False, dtype=torch.bool)
    bias = held(ex, -2.0, 5.0)
    chosen = ex.op("Where", seen, bias, ex.number(LOWEST, torch.float32))
    assert bounds(ex, chosen) == (LOWEST, 5.0)
    assert bounds(ex, ex.op("Where", seen, bias, given)) is None
    assert bounds(ex, ex.op("Neg", bias)) is None  # nobody said
    assert bounds(ex, ex.op("Add", bias, bias)) == (-4.0, 10.0)
    assert bounds(ex, ex.op("Mul", bias, bias)) == (-10.0, 25.0)
    assert bounds(ex, ex.op("Sub", bias, bias)) == (-7.0, 7.0)
    assert bounds(ex, ex.op("Add", chosen, chosen)) is None  # one that is too low goes over
    assert bounds(ex, ex.op("Not", yes)) == (0.0, 0.0)
    assert bounds(ex, ex.op("And", yes, seen)) == (0.0, 1.0)
    assert bounds(ex, ex.op("Or", yes, seen)) == (1.0, 1.0)
    assert bounds(ex, ex.op("And", no, seen)) == (0.0, 0.0)
    assert bounds(ex, ex.cast(yes, torch.float32)) == (1.0, 1.0)
    assert bounds(ex, ex.cast(bias, torch.bool)) == (0.0, 1.0)
    assert bounds(ex, ex.cast(held(ex, 2.0, 3.0), torch.bool)) == (1.0, 1.0)
    assert bounds(ex, ex.cast(chosen, torch.float16)) == (-math.inf, 5.0)
    assert bounds(ex, ex.cast(chosen, torch.int32)) is None


def test_bounds_of_a_long_chain_end(ex: Exporter) -> None:
    x = ex.cast(held(ex, 1.0, 2.0), torch.float64)
    for _ in range(5000):
        x = ex.op("Identity", x)
    assert bounds(ex, x) is None


# ---------------------------------------------------------------------- attention


class Masked(nn.Module):
    """Attention to itself with a mask that is made of the sizes."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.register_buffer("hidden", torch.tensor([True, True, False, True, True])[:, None].expand(5, 5).clone())
        self.table = nn.Embedding(3, 1)

    def forward(self, x: X) -> X:
        return F.scaled_dot_product_attention(x, x, x, self.mask(x.shape[0], x.shape[-2]))

    def mask(self, batch: int, length: int) -> X:
        if self.kind == "all":
            return torch.ones(batch, 1, length, length, dtype=torch.bool)
        if self.kind == "all, by numbers":
            return torch.zeros(batch, 1, length, length)
        place = torch.arange(length)
        before = place[:, None] >= place
        if self.kind == "before":
            return before.expand(batch, 1, length, length)
        if self.kind == "hidden":
            return self.hidden.expand(batch, 1, length, length)
        bias = self.table((place[:, None] - place).abs().clamp(max=2)).permute(2, 0, 1)
        lowest = LOWEST if self.kind == "bias" else -math.inf
        return torch.where(before, bias, lowest)


@pytest.mark.parametrize("opset", [20, 23])
@pytest.mark.parametrize(
    ("kind", "dynamic", "adds", "zeros"),
    [
        ("all", False, False, False),
        ("all", True, False, False),
        ("all, by numbers", True, False, False),
        ("before", False, True, False),
        ("before", True, True, True),  # that each sees itself is not known of a comparison
        ("hidden", False, True, True),
        ("bias", False, True, False),
        ("bias", True, True, False),
        ("bias, hidden by -inf", True, True, True),
    ],
)
def test_attention_leaves_out_what_its_mask_does_not_need(
    kind: str, dynamic: bool, adds: bool, zeros: bool, opset: int, tmp_path: Path
) -> None:
    named = {"x": {0: "batch", 2: "seq"}} if dynamic else None
    _, found = exported(tmp_path, Masked(kind), torch.randn(2, 3, 5, 8), opset=opset, dynamic=named)
    assert ("Add" in found) == (adds and opset < 23)
    assert ("ReduceMax" in found) == zeros


class Forgetting(nn.Module):
    """Sees everything in its first call, and nothing of the first place later on."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.ones(4, 4, dtype=torch.bool))

    def forward(self, x: X) -> X:
        result = F.scaled_dot_product_attention(x, x, x, self.seen)
        self.seen[:, 0] = False
        return result


def test_what_calls_write_to_is_not_known(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Forgetting(), torch.randn(1, 2, 4, 8)
    ingot.export_onnx(ingot.capture(model, (x,)), tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"])
    _, seen = session.run(None, {"x": x.numpy()})
    second, _ = session.run(None, {"x": x.numpy(), "seen": seen})
    model(x)
    np.testing.assert_allclose(second, model(x).numpy(), atol=1e-6)


# ---------------------------------------------------------------------- what ONNX Runtime makes of it


def test_the_gelu_of_gpt2_becomes_one_kernel(tmp_path: Path) -> None:
    def gelu(x: X) -> X:
        x = x.exp()  # ONNX Runtime looks for it inside a graph, not at its ends
        gate = torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0)))
        return (0.5 * x * (1.0 + gate)).exp()

    exported(tmp_path, gelu, torch.randn(2, 5, 8))
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    onnxruntime.InferenceSession(str(tmp_path / "m.onnx"), options, providers=["CPUExecutionProvider"])
    assert [node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node] == ["Exp", "FastGelu", "Exp"]
