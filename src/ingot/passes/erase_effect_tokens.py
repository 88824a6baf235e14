"""Takes tokens out again: effects are ordinary calls, in the order that the tokens kept.

    before                                         after
    token = ingot.make_token()                     _assert = aten._assert_async(ok, "…")
    _assert = ingot_aten._assert_async(token, …)   say = user.say(x)
    say = ingot_user.say(_assert, x)               return (y,)
    return (say, y)      # signature: token ← say, result y

It is for the end of a pipeline: what comes after it keeps nodes in their order.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from ingot import torch_internals as internals
from ingot.ir import effect_tokens, metadata, subgraphs
from ingot.ir.dialects import CAPTURED
from ingot.ir.names import unique
from ingot.ir.outlining import graph_modules
from ingot.ir.program import Program
from ingot.ir.signature import OutputKind
from ingot.passes.manager import register

hop = torch.ops.higher_order
# The arguments of an operator that are inputs of its functions, in the functions' order.
_GROUPS: dict[Any, tuple[int, ...]] = {
    hop.cond: (3,),
    hop.while_loop: (2, 3),
    hop.scan: (1, 2, 3),
    hop.map_impl: (1, 2),
}


@register(takes=CAPTURED)
def erase_effect_tokens(program: Program) -> int:
    """Every call that takes a token becomes the call that it stands for, in every graph; no token is left."""
    return erase_tokens(program)


def erase_tokens(program: Program) -> int:
    """What `erase_effect_tokens` does, for passes that need effects as ordinary calls."""
    nodes = [node for module in graph_modules(program.graph_module) for node in module.graph.nodes]
    count = sum(effect_tokens.remove_token(node.target) is not None for node in nodes)
    unused = sum(node.target is effect_tokens.make_token for node in nodes)
    if not count and not unused:
        return 0
    removed = _Stripping().strip(program.graph_module, set())
    returned = iter(range(len(program.signature.graph_outputs)))
    outputs = program.signature.outputs
    kept = tuple(o for o in outputs if o.kind is OutputKind.LITERAL or next(returned) not in removed)
    program.signature = replace(program.signature, outputs=kept)
    return count or unused


class _Stripping:
    """The removal of tokens from the graphs of one program."""

    def __init__(self) -> None:
        self.done: dict[fx.GraphModule, set[int]] = {}

    def strip(self, module: fx.GraphModule, known: set[fx.Node]) -> set[int]:
        """Removes the tokens that come of `known` ones; returns which of the graph's outputs are gone."""
        if module in self.done:
            return self.done[module]
        dead = list(known)
        names: dict[fx.Node, str] = {}
        removed: set[int] = set()
        for node in list(module.graph.nodes):
            if node.target in (effect_tokens.make_token, effect_tokens.pass_token):
                known.add(node)
                dead.append(node)
            elif node.target is effect_tokens.after:
                node.replace_all_uses_with(node.args[1])
                dead.append(node)
            elif effect_tokens.remove_token(node.target) is not None:
                _unwrap(node, known, dead, names)
            elif node.target in subgraphs.LAYOUTS and any(n in known for n in node.all_input_nodes):
                self._call(module, node, known, dead)
            elif node.op == "output" and isinstance(node.args[0], tuple | list):
                removed = {index for index, value in enumerate(node.args[0]) if value in known}
                node.args = (_drop_items(node.args[0], removed),)
                metadata.set_value(node, _drop_items(metadata.value_of(node), removed))
        for node in reversed(dead):
            module.graph.erase_node(node)
        for node, name in names.items():
            node.name = name
        module.recompile()
        self.done[module] = removed
        return removed

    def _call(self, module: fx.GraphModule, call: fx.Node, known: set[fx.Node], dead: list[fx.Node]) -> None:
        """Takes the tokens out of a call's operands, its functions and its results."""
        layout = subgraphs.LAYOUTS[call.target]
        first = layout.functions[-1] + 1
        groups = _GROUPS.get(call.target)
        given: list[Any] = [n for i in groups for n in call.args[i]] if groups else list(call.args[first:])  # type: ignore[union-attr]
        removed: set[int] = set()
        for attribute in subgraphs.function_attributes(call):
            function = getattr(module, str(attribute.target))
            inputs = [n for n in function.graph.nodes if n.op == "placeholder"]
            if function in self.done:
                removed |= self.done[function]
                continue
            removed |= self.strip(function, {own for own, n in zip(inputs, given, strict=True) if n in known})
        for position in groups or ():
            group: Any = call.args[position]
            left = type(group)(n for n in group if n not in known)
            call.args = (*call.args[:position], left, *call.args[position + 1 :])
        if not groups:
            call.args = (*call.args[:first], *(n for n in call.args[first:] if n not in known))
        for user in list(call.users):
            index: Any = user.args[1]
            if index in removed:
                known.add(user)
                dead.append(user)
            else:
                user.args = (call, index - sum(r < index for r in removed))
        metadata.set_value(call, _drop_items(metadata.value_of(call), removed))
        metadata.set_bindings(
            call, shift_bindings(metadata.bindings_of(call), lambda i: i - sum(r < i for r in removed))
        )


def _unwrap(node: fx.Node, known: set[fx.Node], dead: list[fx.Node], names: dict[fx.Node, str]) -> None:
    op = effect_tokens.remove_token(node.target)
    assert op is not None
    count = len(op._schema.returns)
    with node.graph.inserting_before(node):
        call = node.graph.create_node("call_function", op, node.args[1:], dict(node.kwargs))
    metadata.inherit_origin(call, node)
    dead.append(node)
    names[call] = node.name
    value = metadata.value_of(node)
    if count == 0:
        known.add(node)
        metadata.set_value(call, None)
        return
    metadata.set_value(call, value[1] if count == 1 else tuple(value[1:]))
    bindings = metadata.bindings_of(node)
    inner = {s: path[1:] for s, path in bindings.items()} if bindings and count == 1 else None
    metadata.set_bindings(call, inner or shift_bindings(bindings, lambda i: i - 1))
    for user in list(node.users):
        assert user.target is operator.getitem, f"{user} uses the results of {node} as one value"
        index: Any = user.args[1]
        if index == 0:
            known.add(user)
            dead.append(user)
        elif count == 1:
            user.replace_all_uses_with(call)
            names[call] = user.name
            dead.append(user)
        else:
            user.args = (call, index - 1)


# ---------------------------------------------------------------------- tools of both ways


def name_node(node: fx.Node, name: str) -> None:
    """Gives a node a name that is free in its graph."""
    node.name = unique(name, {other.name for other in node.graph.nodes if other is not node})


def replace_node(node: fx.Node, other: fx.Node) -> None:
    """Lets `other` take a node's users and name, and erases the node."""
    name = node.name
    node.replace_all_uses_with(other)
    node.graph.erase_node(node)
    other.name = name


def output_of(graph: fx.Graph) -> fx.Node:
    return graph.output_node()


def prepend_output(graph: fx.Graph, node: fx.Node) -> None:
    output = output_of(graph)
    results: Any = output.args[0]
    output.args = (type(results)([node, *results]),)
    metadata.set_value(output, tuple(metadata.value_of(n) if isinstance(n, fx.Node) else n for n in (node, *results)))


def shift_items(call: fx.Node, to: fx.Node) -> None:
    """The items of a call become those of `to`, each one further on: a token has come before them."""
    for user in list(call.users):
        assert user.target is operator.getitem, f"{user} uses the results of {call} as one value"
        index: Any = user.args[1]
        user.args = (to, index + 1)


def shift_bindings(bindings: Any, index: Callable[[int], int]) -> Any:
    """Where symbols become known in a tuple whose items have moved."""
    if not bindings:
        return None
    moved = {}
    for symbol, path in bindings.items():
        steps = internals.binding_steps(path[:1])
        whole = steps and steps[0][0] == "item"
        moved[symbol] = (*internals.binding_path([("item", index(path[0].idx))]), *path[1:]) if whole else path
    return moved


def _drop_items(values: Any, removed: set[int]) -> Any:
    if not isinstance(values, tuple | list):
        return values
    return type(values)(value for index, value in enumerate(values) if index not in removed)
