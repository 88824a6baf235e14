"""Turns the markers around preserved module calls into those calls' signatures.

before                                                       after
tracepoint = tracepoint(x, 2, kind="module_call_inputs", …)  linear = aten.linear(x, p_fc_weight)
getitem = tracepoint[0]                                      return (linear,)
linear = aten.linear(getitem, p_fc_weight)
tracepoint_1 = tracepoint(linear, kind="module_call_outputs", …)    module_calls: fc(x, 2) -> linear
return (tracepoint_1[0],)
"""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any

from torch import fx

from ingot import torch_internals as internals
from ingot.errors import VerifyError, format_error
from ingot.ir import metadata
from ingot.ir.dialects import CAPTURED
from ingot.ir.outlining import graph_modules, name_apart
from ingot.ir.program import Program
from ingot.ir.signature import CallSignature, ModuleCall, Value
from ingot.passes.manager import register

INPUTS, OUTPUTS = "module_call_inputs", "module_call_outputs"


@register(takes=CAPTURED)
def tracepoints(program: Program) -> int:
    """Removes every marker, in every region, and writes what it marked into `program.module_calls`."""
    found: dict[tuple[str, str], tuple[Value, ...]] = {}
    count = 0
    modules = list(graph_modules(program.graph_module))
    markers = [n for module in modules for n in module.graph.nodes if n.target is internals.tracepoint]
    name_apart(program.graph_module, [n for marker in markers for n in marker.all_input_nodes])
    for module in modules:
        renamed: dict[str, str] = {}
        marked: dict[tuple[str, str], tuple[Value, ...]] = {}
        for node in list(module.graph.nodes):
            if node.target is internals.tracepoint:
                marked[_call_of(node), str(node.kwargs["kind"])] = tuple(_value(argument) for argument in node.args)
                renamed.update(_bypass(node))
                count += 1
        if not marked:
            continue
        found.update({key: tuple(_resolve(value, renamed) for value in values) for key, values in marked.items()})
        if module is program.graph_module:
            program.signature = program.signature.rename_nodes(
                {old: _last(new, renamed) for old, new in renamed.items()}
            )
        module.recompile()
    program.module_calls = tuple(_set_signature(call, found) for call in program.module_calls)
    return count


def _call_of(node: fx.Node) -> str:
    """Which call a marker belongs to: the innermost one of its module stack, under the name it was called by."""
    call = node.kwargs.get("call")
    if call is not None:
        return str(call)
    stack = metadata.module_stack_of(node)
    if not stack:
        raise VerifyError(
            format_error(
                f"The marker {node.name} is in no module, so it is not known whose call it marks.",
                where=metadata.where(node),
                why="its module stack is missing",
                fix="keep nodes' metadata when moving markers, or run ingot.passes.tracepoints first",
            )
        )
    frame = stack[-1]
    _, _, repeat = frame.call.rpartition("@")
    return f"{frame.path}@{repeat}" if "@" in frame.call else frame.path


def _value(argument: Any) -> Value:
    if not isinstance(argument, fx.Node):
        return Value("literal", literal=argument)
    return Value("size" if internals.is_symbolic(metadata.value_of(argument)) else "tensor", argument.name)


def _bypass(marker: fx.Node) -> dict[str, str]:
    """Lets every user of the marker's results use its arguments, and erases it."""
    renamed: dict[str, str] = {}
    for user in list(marker.users):
        assert user.target is operator.getitem, f"{user} uses the marker {marker} as a value"
        index = user.args[1]
        assert isinstance(index, int)
        argument = marker.args[index]
        if isinstance(argument, fx.Node):
            user.replace_all_uses_with(argument)
            renamed[user.name] = argument.name
        user.graph.erase_node(user)
    marker.graph.erase_node(marker)
    return renamed


def _last(name: str, renamed: dict[str, str]) -> str:
    while name in renamed:
        name = renamed[name]
    return name


def _resolve(value: Value, renamed: dict[str, str]) -> Value:
    return replace(value, name=_last(value.name, renamed)) if value.name else value


def _set_signature(call: ModuleCall, found: dict[tuple[str, str], tuple[Value, ...]]) -> ModuleCall:
    inputs, outputs = found.get((call.path, INPUTS)), found.get((call.path, OUTPUTS))
    if inputs is None or outputs is None or call.signature is None:
        return call
    return replace(call, signature=CallSignature(inputs, outputs, call.signature.in_tree, call.signature.out_tree))
