"""Programs and values in other float types: float64 as the reference, float32 to see how far rounding goes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from ingot import torch_internals as internals
from ingot.ir import metadata
from ingot.ir.outlining import graph_modules
from ingot.ir.program import Program
from ingot.passes.decompositions.float64_quantization import EXACT

WIDE = {
    **dict.fromkeys((torch.float16, torch.bfloat16, torch.float32), torch.float64),
    **dict.fromkeys((torch.complex32, torch.complex64), torch.complex128),
}
NARROW = {torch.float64: torch.float32, torch.complex128: torch.complex64}


def cast_value(leaf: Any, to: Mapping[torch.dtype, torch.dtype]) -> Any:
    return leaf.to(to[leaf.dtype]) if isinstance(leaf, torch.Tensor) and leaf.dtype in to else leaf


def widen_value(leaf: Any) -> Any:
    return cast_value(leaf, WIDE)


def convert_to_float64(program: Program, *, values: bool = False) -> Program:
    """The program with every number as float64 or complex128: state, dtype literals, and autocast switched off.

    `values`: the values that its nodes know as well, for a pass that reads them.
    """
    wide = recast_program(program, WIDE)
    for module in graph_modules(wide.graph_module):
        for node in module.graph.nodes:
            node.target = EXACT.get(str(node.target), node.target)
            if values:
                metadata.set_value(node, _wide_value(metadata.value_of(node)))
            if node.target in (internals.enter_autocast, torch.ops.higher_order.wrap_with_autocast):
                node.args = (*node.args[:2], False, *node.args[3:])
        module.recompile()
    return wide


def recast_program(program: Program, to: Mapping[torch.dtype, torch.dtype]) -> Program:
    """The program with its state and its dtype literals in other types."""
    made = program.copy()
    for module in graph_modules(made.graph_module):
        for node in module.graph.nodes:
            node.args, node.kwargs = _literals(node.args, to), _literals(node.kwargs, to)
        module.recompile()
    cast = {id(t): cast_value(t.detach(), to) for t in (*made.state_dict.values(), *made.constants.values())}
    made.state_dict = {name: cast[id(t)] for name, t in made.state_dict.items()}
    made.constants = {name: cast[id(t)] for name, t in made.constants.items()}
    return made


def _wide_value(value: Any) -> Any:
    """A node's recorded value as it is in float64."""
    if isinstance(value, torch.Tensor) and value.dtype in WIDE:
        with internals.fake_mode_of(value) or contextlib.nullcontext(), torch.no_grad():
            return value.to(WIDE[value.dtype])
    if type(value) in (list, tuple):
        return type(value)(_wide_value(item) for item in value)
    return value


def _literals(argument: Any, to: Mapping[torch.dtype, torch.dtype]) -> Any:
    if isinstance(argument, torch.dtype):
        return to.get(argument, argument)
    if isinstance(argument, list | tuple):
        return type(argument)(_literals(item, to) for item in argument)
    if isinstance(argument, dict):
        return {key: _literals(item, to) for key, item in argument.items()}
    return argument


@contextlib.contextmanager
def default_to_float64(wide: bool) -> Iterator[None]:
    """Inside, tensors that are made without a dtype are in float64 too, if `wide`."""
    old = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64 if wide and old in WIDE else old)
    try:
        yield
    finally:
        torch.set_default_dtype(old)
