"""Operators of torch.jit.optimize_for_inference: oneDNN's layouts and operators, on plain tensors.

Layouts are how one machine likes to hold a tensor, and no part of what a script computes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from ingot import torch_internals as internals
from ingot.frontend.torchscript.interpreter import TorchScriptInterpreter
from ingot.registry import Registry
from ingot.torch_internals import torchscript as ts

aten = torch.ops.aten
RULES: Registry[str, Callable[..., Any]] = Registry("rule")


@RULES.register("prim::ConstantMKLDNNTensor")
def constant(machine: TorchScriptInterpreter, node: ts.Node, inputs: list[Any]) -> Any:
    held = ts.tensor_in(node, "value")

    def plain() -> torch.Tensor:
        assert machine.recorder is not None
        with machine.recorder.pause(), internals.real_tensors(), torch.no_grad():
            return held.to_dense()

    return machine.once(held, plain)


@RULES.register("aten::to_mkldnn", "aten::to_dense")
def convert(machine: TorchScriptInterpreter, node: ts.Node, inputs: list[Any]) -> Any:
    """To a layout and back again are copies, which in-place operators may then write to."""
    if inputs[0].layout is not torch.strided:
        return machine.operate(aten.to_dense.default, (inputs[0],), {})
    return machine.operate(aten.clone.default, (inputs[0],), {})


@RULES.register("prim::mkldnn_convolution")
def convolution(machine: TorchScriptInterpreter, node: ts.Node, inputs: list[Any]) -> Any:
    x, weight, bias, stride, padding, dilation, groups = inputs
    args = (x, weight, bias, stride, padding, dilation, False, [0] * len(stride), groups)
    return machine.operate(aten.convolution.default, args, {})


@RULES.register("prim::BroadcastMKLDNNTensors")
def broadcast(machine: TorchScriptInterpreter, node: ts.Node, inputs: list[Any]) -> Any:
    return machine.operate(aten.broadcast_tensors.default, (inputs,), {})


def _clamp_to_limits(machine: TorchScriptInterpreter, node: ts.Node, x: torch.Tensor) -> Any:
    return torch.clamp(x, ts.number_in(node, "min_val"), ts.number_in(node, "max_val"))


# What oneDNN has operators of its own for; a name with an underscore at its end writes in place.
_COMPUTED: dict[str, Callable[..., Any]] = {
    "MKLDNNHardSwish": lambda machine, node, x: F.hardswish(x),
    "MKLDNNHardSigmoid": lambda machine, node, x: F.hardsigmoid(x),
    "MKLDNNHardTanh": _clamp_to_limits,
    "MKLDNNClamp": _clamp_to_limits,
    "MKLDNNLayerNorm": lambda machine, node, x, shape, weight, bias, eps, *_: F.layer_norm(x, shape, weight, bias, eps),
    "MKLDNNScalarMul": lambda machine, node, x, by: torch.mul(x, by),
}


def _compute(compute: Callable[..., Any], in_place: bool) -> Callable[..., Any]:
    def run(machine: TorchScriptInterpreter, node: ts.Node, inputs: list[Any]) -> Any:
        inputs = [machine.localize(value) for value in inputs]
        made = compute(machine, node, *inputs)
        machine.record_allocation(made, inputs)
        return machine.operate(aten.copy_.default, (inputs[0], made), {}) if in_place else made

    return run


for _name, _function in _COMPUTED.items():
    RULES.register(f"prim::{_name}")(_compute(_function, False))
    RULES.register(f"prim::{_name}_")(_compute(_function, True))
