"""Quantized models as ONNX: QuantizeLinear and DequantizeLinear around the float operators, and the same numbers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import onnx
import pytest

import ingot
from benchmarks.models import SUBJECTS
from tests.support.zoo import entry

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")


RECIPES = {
    "static": ingot.quantize.int8_static(),
    "dynamic": ingot.quantize.int8_dynamic(kinds=("linear", "conv", "embedding")),
    "symmetric": ingot.quantize.int8_dynamic(activation_dtype="int8", symmetric=True),
    "by token": ingot.quantize.int8_dynamic(per_token=True),
    "weights": ingot.quantize.int8_weight_only(),
    "weights of 4 bits": ingot.quantize.int4_weight_only(group_size=8),
}


# These are for linear layers, of which the ResNets here have none.
OF_LINEARS = ("symmetric", "by token", "weights of 4 bits")


def recipes(name: str) -> list[str]:
    return [recipe for recipe in RECIPES if recipe not in OF_LINEARS or not name.startswith("resnet")]


# One of each kind of node that quantization writes, and both models; `make test-slow` takes all.
FAST = (
    ("resnet", "static"),
    ("bert", "static"),
    ("bert", "dynamic"),
    ("bert", "by token"),
    ("bert", "weights of 4 bits"),
)


def pairs() -> list[object]:
    every = [(name, recipe) for name in ("resnet", "bert") for recipe in recipes(name)]
    return [pair if pair in FAST else pytest.param(*pair, marks=pytest.mark.slow) for pair in every]


@pytest.mark.parametrize(("name", "recipe"), pairs())
def test_models_of_ingots_own_quantization(name: str, recipe: str, tmp_path: Path) -> None:
    item = entry(name)
    data = [item.inputs(item.sizes) for _ in range(2)]
    program = ingot.capture(item.build(), (), data[0], dynamic_shapes=item.dynamic)
    prepared = ingot.quantize.prepare(program, RECIPES[recipe])
    for inputs in data:
        prepared(**inputs)
    converted = ingot.quantize.convert(prepared)
    report = ingot.export_onnx(converted, tmp_path / "m.onnx")
    assert report.runner == "ONNX Runtime" and len(report.differences) == 3
    model = onnx.load(tmp_path / "m.onnx")
    kinds = Counter(node.op_type for node in model.graph.node)
    stored = Counter(t.data_type for t in model.graph.initializer)
    if recipe == "weights of 4 bits":
        count = sum("dequantize_per_channel_group" in str(n.target) for n in converted.graph.nodes)
        assert stored[onnx.TensorProto.INT4] == kinds["DequantizeLinear"] == count and report.opset == 21
    else:
        assert kinds["DequantizeLinear"] and stored[onnx.TensorProto.INT8]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "recipe"), [(n, r) for n in ("resnet-50", "bert-base") for r in recipes(n)])
def test_full_size(name: str, recipe: str, tmp_path: Path) -> None:
    """The models of the benchmarks. Verification holds the file against what torch's own rounding does to them."""
    subject = next(subject for subject in SUBJECTS if subject.name == name)
    inputs = subject.inputs(1)
    prepared = ingot.quantize.prepare(ingot.capture(subject.build().eval(), inputs), RECIPES[recipe])
    prepared(*inputs)
    report = ingot.export_onnx(ingot.quantize.convert(prepared), tmp_path / "m.onnx")
    assert report.runner == "ONNX Runtime" and all(found.ratio < 2 for found in report.differences)
    assert any(node.op_type == "DequantizeLinear" for node in onnx.load(tmp_path / "m.onnx").graph.node)
