"""The walk that lowering and the ONNX exporter share, with values that are text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import fx

import ingot
from ingot.analysis.graph_interpreter import GraphInterpreter

aten = torch.ops.aten


class Refused(Exception):
    pass


class Text(GraphInterpreter):
    """Calls as text; `sin` is refused when it is met, `cos` has no rule, and float64 cannot be a value."""

    refusals = (Refused,)

    def evaluate(self, node: fx.Node) -> Any:
        assert self.node is node
        if node.target is aten.sin.default:
            raise Refused("no sines")
        name = str(node.target).split(".")[1] if "aten" in str(node.target) else "call"
        return f"{name}({', '.join(map(str, map(self.argument, node.args)))})"

    def symbolic(self, value: Any) -> Any:
        return f"<{value}>"

    def stand_in(self, value: Any) -> Any:
        return f"?{list(value.shape)}"

    def explain_rule(self, node: fx.Node) -> str | None:
        return "no rule" if node.target is aten.cos.default else None

    def explain_tensor(self, tensor: torch.Tensor) -> str | None:
        return "float64" if tensor.dtype is torch.float64 else None

    def unsupported_error(self, found: Sequence[tuple[fx.Node, str]]) -> Exception:
        return ValueError("; ".join(f"{node.target}: {reason}" for node, reason in found))


class Model(torch.nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


def interpreter(function: Any, dynamic_shapes: Any = None) -> Text:
    text = Text(ingot.capture(Model(function), (torch.ones(2, 3),), dynamic_shapes=dynamic_shapes))
    text.values = {node: node.name for node in text.program.graph.nodes if node.op == "placeholder"}
    return text


def test_values_are_made_in_order() -> None:
    text = interpreter(lambda x: torch.cat([x.relu(), x.neg()]))
    assert text.run(text.program.graph) == ("cat(['relu(x)', 'neg(x)'])",)


def test_every_refused_node_is_in_one_error() -> None:
    text = interpreter(lambda x: (x.sin().relu(), x.neg().sin()))
    with pytest.raises(ValueError, match=r"^aten\.sin\.default: no sines; aten\.sin\.default: no sines$"):
        text.run(text.program.graph)
    assert "relu(?[2, 3])" in text.values.values()


def test_what_has_no_rule_is_told_before_the_walk() -> None:
    text = interpreter(lambda x: (x.cos(), x.double().relu(), x.relu()))
    with pytest.raises(ValueError) as caught:
        text.check_supported()
    reasons = str(caught.value).split("; ")
    assert reasons[0] == "aten.cos.default: no rule"
    assert len(reasons) > 1 and all(reason.endswith(": float64") for reason in reasons[1:])
    interpreter(lambda x: x.relu()).check_supported()


def test_nested_graphs_are_looked_at_too() -> None:
    text = interpreter(lambda x: torch.cond(x.sum() > 0, lambda v: v.cos(), lambda v: v.neg(), (x,)))
    with pytest.raises(ValueError, match=r"aten\.cos\.default: no rule"):
        text.check_supported()


def test_arguments() -> None:
    text = interpreter(lambda x: x.relu(), ({0: "rows"},))
    node = next(iter(text.program.graph.nodes))
    size = node.meta["val"].shape[0]
    assert text.argument(node) == "x"
    assert text.argument((node, [size, 2], {"key": node})) == ("x", [f"<{size}>", 2], {"key": "x"})
    assert text.argument(fx.immutable_collections.immutable_list([node])) == ["x"]
    assert text.argument(None) is None
