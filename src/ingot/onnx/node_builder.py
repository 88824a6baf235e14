"""Nodes in onnx-ir's words: what their schemas allow, their attributes and shapes, and which of them are needed."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import onnx
import onnx_ir as ir
import sympy
import torch
from onnx_ir.tensor_adapters import TorchTensor

from ingot.ir import symbolic_dims
from ingot.onnx.dtypes import BY_CODE, CODES
from ingot.onnx.ort_kernel_types import KERNELS
from ingot.onnx.values import Size


@functools.cache
def schema_of(kind: str, opset: int) -> onnx.defs.OpSchema:
    return onnx.defs.get_schema(kind, opset, "")


@functools.cache
def list_allowed_types(kind: str, opset: int, variable: str) -> tuple[frozenset[torch.dtype], frozenset[torch.dtype]]:
    """The types that a variable of an operator may be by its schema, and those that kernels have."""
    schema = schema_of(kind, opset)
    constraint = next((c for c in schema.type_constraints if c.type_param_str == variable), None)
    names = constraint.allowed_type_strs if constraint is not None else []
    legal = frozenset(BY_CODE[code] for code, name in CODES.items() if f"tensor({name})" in names)
    limited = KERNELS.get(kind, {}).get(variable)
    kernels = legal if limited is None else legal & frozenset(BY_CODE[code] for code in limited.split())
    return legal, kernels


@functools.cache
def find_fixed_type(kind: str, opset: int, type_str: str) -> torch.dtype:
    """The type of a result that no input has: the only one that the schema allows."""
    for code, name in CODES.items():
        if type_str == f"tensor({name})":
            return BY_CODE[code]
    legal, _ = list_allowed_types(kind, opset, type_str)
    assert len(legal) == 1, f"{kind}: say the result's type"
    return next(iter(legal))


def find_used_nodes(nodes: Sequence[ir.Node], outputs: Sequence[ir.Value]) -> list[ir.Node]:
    """The nodes that something reads, in order; the others let go of what they read."""
    wanted = set(outputs)
    kept = []
    for node in reversed(nodes):
        if any(value.uses() or value in wanted for value in node.outputs):
            kept.append(node)
        else:
            for place in range(len(node.inputs)):
                node.replace_input_with(place, None)
    return kept[::-1]


def onnx_shape(sizes: Sequence[Size]) -> ir.Shape:
    """A shape as ONNX spells it: numbers, and expressions of the dims by their names."""
    return ir.Shape([size if isinstance(size, int) else _format_size(size) for size in sizes])


@functools.lru_cache(maxsize=4096)
def _format_size(size: sympy.Expr) -> str:
    return symbolic_dims.format_dim(size)


def attribute(name: str, value: Any) -> ir.Attr:
    """A Python value as an attribute of a node."""
    if isinstance(value, ir.Graph):
        return ir.AttrGraph(name, value)
    if isinstance(value, torch.Tensor):
        return ir.AttrTensor(name, TorchTensor(value))
    if isinstance(value, bool | int):
        return ir.AttrInt64(name, int(value))
    if isinstance(value, float):
        return ir.AttrFloat32(name, value)
    if isinstance(value, str):
        return ir.AttrString(name, value)
    assert isinstance(value, list | tuple), value
    if value and all(isinstance(v, str) for v in value):
        return ir.AttrStrings(name, list(value))
    if any(isinstance(v, float) for v in value):
        return ir.AttrFloat32s(name, [float(v) for v in value])
    return ir.AttrInt64s(name, [int(v) for v in value])
