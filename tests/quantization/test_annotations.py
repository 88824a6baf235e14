"""Annotations of torchao's kind: specs that are shared, derived and fixed. The classes have the names of theirs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import fx, nn

import ingot
from ingot.errors import QuantizeError
from ingot.quantize import calibrate, convert, int8_static, prepare, prepare_qat
from tests.quantization.qat_scenarios import Branching

aten = torch.ops.aten


class MinMax(nn.Module):
    """An observer as torchao has them: called on tensors, then asked for parameters."""

    min_val: torch.Tensor
    max_val: torch.Tensor

    def __init__(self, dtype: torch.dtype, quant_min: int, quant_max: int, **_: Any) -> None:
        super().__init__()
        self.limits = (quant_min, quant_max)
        self.register_buffer("min_val", torch.tensor(float("inf")))
        self.register_buffer("max_val", torch.tensor(float("-inf")))

    @classmethod
    def with_args(cls, **words: Any) -> Callable[[], MinMax]:
        return lambda: cls(**words)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.min_val = torch.minimum(self.min_val, x.detach().min())
        self.max_val = torch.maximum(self.max_val, x.detach().max())
        return x

    def calculate_qparams(self) -> tuple[torch.Tensor, torch.Tensor]:
        largest = torch.maximum(self.max_val, -self.min_val)
        return largest / self.limits[1], torch.tensor(0)


@dataclass(frozen=True)
class QuantizationSpec:
    dtype: torch.dtype = torch.int8
    observer_or_fake_quant_ctr: Any = MinMax
    quant_min: int = -127
    quant_max: int = 127
    qscheme: Any = torch.per_tensor_symmetric
    ch_axis: int | None = None
    is_dynamic: bool = False


@dataclass(frozen=True)
class SharedQuantizationSpec:
    edge_or_node: Any


@dataclass(frozen=True)
class FixedQParamsQuantizationSpec:
    dtype: torch.dtype
    scale: float
    zero_point: int
    quant_min: int = 0
    quant_max: int = 255
    qscheme: Any = torch.per_tensor_affine
    is_dynamic: bool = False


@dataclass(frozen=True)
class DerivedQuantizationSpec:
    derived_from: Any
    derive_qparams_fn: Any
    dtype: torch.dtype = torch.int32
    quant_min: int = -(2**31)
    quant_max: int = 2**31 - 1
    qscheme: Any = torch.per_tensor_symmetric
    ch_axis: int | None = None
    is_dynamic: bool = False


@dataclass
class Annotation:
    input_qspec_map: dict[fx.Node, Any] = field(default_factory=dict)
    output_qspec: Any = None
    allow_implicit_sharing: bool = True


@dataclass
class ByFunction:
    """A quantizer that is one function of the nodes by name."""

    write: Callable[[dict[str, fx.Node]], dict[str, Annotation]]

    def annotate(self, model: fx.GraphModule) -> fx.GraphModule:
        nodes = {n.name: n for n in model.graph.nodes}
        assert all(n.op != "placeholder" for n in nodes.values() if n.name.startswith("p_"))
        for name, annotation in self.write(nodes).items():
            nodes[name].meta["quantization_annotation"] = annotation
        return model

    def validate(self, model: fx.GraphModule) -> None:
        pass


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Conv2d(2, 2, 1), nn.Conv2d(2, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.a(x), self.b(x) * 4], 1).sigmoid()


def parts(program: ingot.Program) -> dict[str, fx.Node]:
    return {n.name: n for n in program.graph.nodes}


X = torch.randn(2, 2, 4, 4, generator=torch.Generator().manual_seed(0))
SPEC = QuantizationSpec()


def test_shared_and_fixed() -> None:
    def write(n: dict[str, fx.Node]) -> dict[str, Annotation]:
        shared = SharedQuantizationSpec((n["conv2d"], n["cat"]))
        return {
            "conv2d": Annotation({n["x"]: SPEC, n["p_a_weight"]: SPEC}),
            "conv2d_1": Annotation({n["x"]: QuantizationSpec(), n["p_b_weight"]: SPEC}),
            "cat": Annotation({n["conv2d"]: SPEC, n["mul"]: shared}, shared),
            "sigmoid": Annotation({}, FixedQParamsQuantizationSpec(torch.uint8, 1 / 256, 0)),
        }

    program = ingot.capture(Net().eval(), (X,))
    for made in (
        convert(calibrate(prepare(program, ByFunction(write)), [(X,)], progress=False)),
        _trained(program, ByFunction(write)),
    ):
        made.verify()
        nodes = parts(made)
        quantizing = [name for name in nodes if name.endswith("_quantized")]
        assert quantizing == [f"{name}_quantized" for name in ("x", "conv2d", "mul", "cat", "sigmoid")]  # x once
        scales = [nodes[f"{name}_quantized"].args[1] for name in ("conv2d", "mul", "cat")]
        assert len(set(scales)) == 1
        expected = float(program(X).detach().logit().abs().max()) / 127
        assert scales[0] == pytest.approx(expected, rel=0.1)
        assert nodes["sigmoid_quantized"].args[1:3] == (1 / 256, 0)
        assert made.signature.outputs[0].name == "sigmoid_dequantized"
        assert torch.allclose(made(X), program(X), atol=0.05)


def _trained(program: ingot.Program, quantizer: Any) -> ingot.Program:
    module = prepare_qat(program, quantizer).train()
    module(X).square().mean().backward()
    return convert(module.eval())


def test_a_derived_bias() -> None:
    def write(n: dict[str, fx.Node]) -> dict[str, Annotation]:
        edges = [(n["x"], n["conv2d"]), (n["p_a_weight"], n["conv2d"])]

        def derive(observers: list[Any]) -> Any:
            (x, _), (w, _) = (observer.calculate_qparams() for observer in observers)
            return x * w, torch.tensor(0)

        bias = DerivedQuantizationSpec(edges, derive)
        return {"conv2d": Annotation({n["x"]: SPEC, n["p_a_weight"]: SPEC, n["p_a_bias"]: bias})}

    program = ingot.capture(Net().eval(), (X,))
    made = convert(calibrate(prepare(program, ByFunction(write)), [(X,)], progress=False))
    made.verify()
    nodes = parts(made)
    x, weight, bias = nodes["conv2d"].args[:3]
    assert bias.args[1] == pytest.approx(x.args[1] * weight.args[1], rel=1e-6)
    stored = made.state_dict["a.bias_int32"]
    assert stored.dtype is torch.int32
    expected = torch.round(program.state_dict["a.bias"].double() / bias.args[1])
    assert (stored - expected).abs().max() <= 1
    torch.testing.assert_close(_trained(program, ByFunction(write))(X), program(X), rtol=0.05, atol=0.05)


class OffByAHundredth(MinMax):
    """A fake-quantizer that trains with a scale of its own, as torch's fused one does with symmetric weights."""

    def __init__(self, **words: Any) -> None:
        super().__init__(**words)
        self.register_buffer("fake_quant_enabled", torch.tensor([1]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        super().forward(x)
        return torch.fake_quantize_per_tensor_affine(x, 1.01 * float(self.calculate_qparams()[0]), 0, *self.limits)


def test_in_eval_mode_a_module_computes_what_is_converted() -> None:
    spec = QuantizationSpec(observer_or_fake_quant_ctr=OffByAHundredth)

    def write(n: dict[str, fx.Node]) -> dict[str, Annotation]:
        return {"conv2d": Annotation({n["x"]: spec, n["p_a_weight"]: spec})}

    module = prepare_qat(ingot.capture(Net().train(), (X,)), ByFunction(write)).train()
    training = module(X)
    seen = {name: tensor.clone() for name, tensor in module.named_buffers()}
    converted = convert(module.eval())
    torch.testing.assert_close(module(2 * X), converted(2 * X), rtol=1e-6, atol=1e-6)
    assert all(torch.equal(tensor, seen[name]) for name, tensor in module.named_buffers())  # eval() learns nothing
    assert (training - module(X)).abs().max() > 1e-4  # training is the fake-quantizer's own
    for quantizer in module.modules():
        if isinstance(quantizer, OffByAHundredth):
            quantizer.fake_quant_enabled.zero_()
    assert (module(2 * X) - converted(2 * X)).abs().max() > 1e-4  # and whoever turns it off has it off


class Fake(MinMax):
    """A fake-quantizer."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        super().forward(x)
        return torch.fake_quantize_per_tensor_affine(x, float(self.calculate_qparams()[0]), 0, *self.limits)


FAKE = QuantizationSpec(observer_or_fake_quant_ctr=Fake)


class Siblings(nn.Module):
    """One convolution in two places, each with a batch norm of its own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.one, self.other = nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2), nn.BatchNorm2d(2)
        nn.init.constant_(self.one.weight, 30.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.other(self.conv(self.one(self.conv(x))))
        return made


def _between(n: dict[str, fx.Node]) -> dict[str, Annotation]:
    """What lies between a convolution and its batch norm is quantized, so one cannot go into the other."""
    convs = (n["conv2d"], n["conv2d_1"])
    return {conv.name: Annotation({conv.args[0]: FAKE, n["p_conv_weight"]: FAKE}, FAKE) for conv in convs}


def _tied(n: dict[str, fx.Node]) -> dict[str, Annotation]:
    """A weight that two operators read cannot take the batch norm of either."""
    convs = (n["conv2d"], n["conv2d_1"])
    return {conv.name: Annotation({conv.args[0]: FAKE, n["p_conv_weight"]: FAKE}) for conv in convs}


@pytest.mark.parametrize("write", [_between, _tied])
def test_a_batch_norm_that_cannot_be_folded_is_not_trained_as_if(write: Any) -> None:
    module = prepare_qat(ingot.capture(Siblings().train(), (X,)), ByFunction(write)).train()
    for _ in range(3):
        module(X).square().mean().backward()
    made = convert(module.eval())
    made.verify()
    assert [t.dtype for t in made.state_dict.values()].count(torch.int8) == 1  # the weight is stored once
    assert sum(n.target is aten.batch_norm.default for n in made.graph.nodes) == 2
    torch.testing.assert_close(made(X), module(X), rtol=1e-4, atol=1e-4)


def test_what_lies_between_a_convolution_and_its_batch_norm_stays_there() -> None:
    class Between(Net):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm2d(2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made: torch.Tensor = self.norm(self.a(x))
            return made

    def write(n: dict[str, fx.Node]) -> dict[str, Annotation]:
        return {"conv2d": Annotation({n["x"]: FAKE, n["p_a_weight"]: FAKE}, FAKE)}

    module = prepare_qat(ingot.capture(Between().train(), (X,)), ByFunction(write)).train()
    for _ in range(3):
        module(X).square().mean().backward()
    made = convert(module.eval())
    assert [n.name for n in made.graph.nodes if n.target is aten.batch_norm.default] == ["batch_norm"]
    assert parts(made)["batch_norm"].args[0].name == "conv2d_dequantized"
    torch.testing.assert_close(made(X), module(X), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("trains", [False, True])
def test_weights_may_share_their_parameters(trains: bool) -> None:
    spec = FAKE if trains else SPEC

    def write(n: dict[str, fx.Node]) -> dict[str, Annotation]:
        shared = SharedQuantizationSpec((n["p_a_weight"], n["conv2d"]))
        return {
            "conv2d": Annotation({n["x"]: spec, n["p_a_weight"]: spec}),
            "conv2d_1": Annotation({n["x"]: spec, n["p_b_weight"]: shared}),
        }

    model = Net()
    with torch.no_grad():
        model.b.weight.mul_(5)
    program = ingot.capture(model.train(trains), (X,))
    if trains:
        made = _trained(program, ByFunction(write))
    else:
        made = convert(calibrate(prepare(program, ByFunction(write)), [(X,)], progress=False))
    scales = [parts(made)[name].args[1].args[1] for name in ("conv2d", "conv2d_1")]
    assert scales[0] == scales[1] == pytest.approx(float(program.state_dict["b.weight"].detach().abs().max()) / 127)


def _linears(n: dict[str, fx.Node]) -> dict[str, Annotation]:
    found = [node for node in n.values() if node.target is aten.linear.default]
    assert all(isinstance(node.args[1], fx.Node) for node in found)
    return {node.name: Annotation({node.args[0]: SPEC, node.args[1]: SPEC}) for node in found}


def test_annotations_reach_every_graph() -> None:
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    program = ingot.capture(Branching().eval(), (x,))
    data = [(x,), (-x,), (2 * x,)]
    made = convert(calibrate(prepare(program, ByFunction(_linears)), data, progress=False))
    made.verify()
    assert sorted(name for name, t in made.state_dict.items() if t.dtype is torch.int8) == [
        *("again.weight_int8", "last.weight_int8", "no.weight_int8", "yes.weight_int8")
    ]
    inside = [n for m in made.graph_module.modules() if isinstance(m, fx.GraphModule) for n in m.graph.nodes]
    assert sum(str(n.target).startswith("quantized_decomposed.quantize_per_tensor") for n in inside) == 4
    for each in (x, -x):
        assert torch.allclose(made(each), program(each), atol=0.05) and not torch.equal(made(each), program(each))
    with torch.no_grad():
        native = ingot.compile(made)
        torch.testing.assert_close(torch.as_tensor(native(x)), made(x), rtol=0.02, atol=0.02)


@pytest.mark.parametrize("ours", [False, True], ids=["annotations", "recipe"])
def test_training_leaves_branches_and_loops_in_float(ours: bool) -> None:
    """torch finds their gradients by tracing, where no observer can learn; regions are called as they are."""

    def write(n: dict[str, fx.Node]) -> dict[str, Annotation]:
        found = [node for node in n.values() if node.target is aten.linear.default]
        return {node.name: Annotation({node.args[0]: FAKE, node.args[1]: FAKE}) for node in found}

    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    recipe: Any = int8_static() if ours else ByFunction(write)
    module = prepare_qat(ingot.capture(Branching().train(), (x,)), recipe).train()
    module(x).square().mean().backward()
    assert all(p.grad is not None for name, p in module.named_parameters() if not name.startswith("no."))
    made = convert(module.eval())
    made.verify()
    assert [name for name, t in made.state_dict.items() if t.dtype is torch.int8] == ["last.weight_int8"]
    torch.testing.assert_close(made(x), module(x), rtol=0.02, atol=0.02)


def test_what_is_not_understood_is_reported() -> None:
    program = ingot.capture(Net().eval(), (X,))

    class OtherSpec:
        dtype, is_dynamic = torch.int8, False

    def strange(n: dict[str, fx.Node]) -> dict[str, Annotation]:
        return {"cat": Annotation({}, OtherSpec())}

    def nothing(n: dict[str, fx.Node]) -> dict[str, Annotation]:
        return {"cat": Annotation({}, SharedQuantizationSpec(n["conv2d"]))}

    with pytest.raises(QuantizeError, match="OtherSpec, which is not known here"):
        prepare(program, ByFunction(strange))
    with pytest.raises(QuantizeError, match="shares the parameters of something that has none"):
        prepare(program, ByFunction(nothing))
    with pytest.raises(QuantizeError, match="neither a recipe nor a Quantizer"):
        prepare(program, 8)  # type: ignore[arg-type]
