"""Puts effects in an order that dependence alone keeps: each takes the last token and makes the next.

    before                                    after
    _assert = aten._assert_async(ok, "…")     token = ingot.make_token()
    say = user.say(x)                         _assert = ingot_aten._assert_async(token, ok, "…")
    return (y,)                               say = ingot_user.say(_assert, x)
                                              return (say, y)      # signature: token ← say, result y

A branch takes a token and gives one back, whether it has effects or not; a loop carries it from round to round.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from ingot import torch_internals as internals
from ingot.errors import PassError, format_error
from ingot.ir import effect_tokens, functional_custom_ops, metadata, subgraphs
from ingot.ir.clone import copy_graph_module
from ingot.ir.dialects import CAPTURED
from ingot.ir.names import unique
from ingot.ir.outlining import drop_unused, graph_modules
from ingot.ir.program import Program
from ingot.ir.signature import Output, OutputKind
from ingot.passes.erase_effect_tokens import (
    erase_tokens,
    name_node,
    output_of,
    prepend_output,
    replace_node,
    shift_bindings,
    shift_items,
)
from ingot.passes.manager import register

hop = torch.ops.higher_order
_DECLARED: set[internals.OpOverload] = set()
# The literals that say that an operator, though it may draw, does not: at a rate of nothing, or not in training.
_RATES, _SWITCHES = ("p", "dropout_p", "dropout"), ("train", "training")


def declare_effect(op: Any) -> None:
    """Declares that calls of a custom operator have side effects: none is removed, duplicated or reordered.

    `op` is an overload, or an operator with all its overloads.
    """
    packet = getattr(op, "_opoverload", op)  # what torch.library.custom_op gives
    overloads = [packet] if isinstance(packet, internals.OpOverload) else _overloads_of(packet)
    _DECLARED.update(overloads)


def _overloads_of(packet: Any) -> list[internals.OpOverload]:
    if not hasattr(packet, "overloads"):
        raise PassError(
            format_error(f"{packet!r} is not an operator.", fix="give torch.ops.namespace.name, or one overload of it")
        )
    return [getattr(packet, name) for name in packet.overloads()]


@register(takes=CAPTURED)
def insert_effect_tokens(program: Program, *, random: bool = False) -> int:
    """Every effect, in every graph, takes a token and gives one; the last is an output. `random`: draws are effects.

    Assertions, prints, declared operators and custom operators that return nothing are effects; writes are not:
    functionalize sees to them. Run again on a program with tokens, it puts new effects into the chain.
    """
    return thread_tokens(program, random)


def thread_tokens(program: Program, random: bool) -> int:
    """What `insert_effect_tokens` does, for passes that make effects."""
    modules = list(graph_modules(program.graph_module))
    kind = _Kind(random or _draws_have_tokens(program))
    if not any(kind.holds(node) for module in modules for node in module.graph.nodes):
        return 0
    erase_tokens(program)
    nodes = (node for module in graph_modules(program.graph_module) for node in module.graph.nodes)
    threading = _Threading(kind, metadata.fake_mode_of(nodes))
    graph = program.graph
    last_input = [node for node in graph.nodes if node.op == "placeholder"][-1:]
    with graph.inserting_after(last_input[0]) if last_input else graph.inserting_before(next(iter(graph.nodes))):
        first = graph.create_node("call_function", effect_tokens.make_token)
    name_node(first, "token")
    metadata.set_value(first, threading.token_value())
    last = threading.thread(program.graph_module, first)
    prepend_output(graph, last)
    signature = program.signature
    program.signature = replace(signature, outputs=(Output(OutputKind.TOKEN, last.name), *signature.outputs))
    return threading.count


@contextmanager
def strip_tokens(program: Program) -> Iterator[None]:
    """Inside, effects are ordinary calls, for a pass that replaces operators; afterwards those there have tokens.

    So do effects that an operator turns out to be made of. A program without tokens stays without, and nothing is done.
    """
    random = _draws_have_tokens(program)
    erased = erase_tokens(program)
    yield
    if erased:
        thread_tokens(program, random)


# ---------------------------------------------------------------------- what an effect is


@dataclass(frozen=True, slots=True)
class _Kind:
    """Which nodes are effects without a token."""

    random: bool

    def holds(self, node: fx.Node) -> bool:
        op = node.target
        if not isinstance(op, internals.OpOverload) or effect_tokens.remove_token(op) is not None:
            return False
        known = functional_custom_ops.origin_of(op) or op
        if known in _DECLARED or internals.is_declared_effectful(known):
            return True
        if _is_draw(op, node):
            return self.random
        return not op._schema.returns and not op._schema.is_mutable

    def within(self, module: fx.GraphModule) -> bool:
        return any(self.holds(node) for inner in graph_modules(module) for node in inner.graph.nodes)


def _draws_have_tokens(program: Program) -> bool:
    modules = graph_modules(program.graph_module)
    return any(
        _is_draw(effect_tokens.remove_token(node.target), node) for module in modules for node in module.graph.nodes
    )


def _is_draw(op: Any, node: fx.Node) -> bool:
    """Whether a call of an operator takes numbers from the random generator."""
    if not isinstance(op, internals.OpOverload) or torch.Tag.nondeterministic_seeded not in op.tags:
        return False
    own = node.args if op is node.target else node.args[1:]
    values = internals.fill_arguments(op, own, node.kwargs)
    off = any(values.get(name) is False for name in _SWITCHES)
    return not off and not any(type(values.get(name)) in (int, float) and values[name] == 0 for name in _RATES)


# ---------------------------------------------------------------------- tokens in


# Where the token stands among the arguments of an operator that takes functions, and of the functions.
_PLACES: dict[Any, tuple[int, Callable[[fx.Node], int]]] = {
    hop.cond: (3, lambda call: 0),
    hop.while_loop: (2, lambda call: 0),
    hop.scan: (1, lambda call: 0),
    hop.map_impl: (2, lambda call: len(call.args[1])),  # type: ignore[arg-type]
    hop.wrap_with_autocast: (5, lambda call: 0),
    hop.wrap_with_set_grad_enabled: (2, lambda call: 0),
}
_REGIONS = (hop.wrap_with_autocast, hop.wrap_with_set_grad_enabled)


class _Threading:
    """One token on its way through the graphs of a program."""

    def __init__(self, kind: _Kind, mode: internals.FakeTensorMode) -> None:
        self.kind, self.mode = kind, mode
        self.count = 0

    def token_value(self) -> torch.Tensor:
        with self.mode:
            return effect_tokens.new_token()

    def thread(self, module: fx.GraphModule, token: fx.Node) -> fx.Node:
        """Leads the token through a graph's effects, in their order; returns the last one."""
        for node in list(module.graph.nodes):
            if self.kind.holds(node):
                token = self._wrap(_split_write(node), token)
                self.count += 1
            elif node.op == "call_function":
                functions = [n for n in node.all_input_nodes if n.op == "get_attr"]
                if any(self.kind.within(getattr(module, str(f.target))) for f in functions):
                    token = self._call(module, node, token)
        module.recompile()
        return token

    def _wrap(self, node: fx.Node, token: fx.Node) -> fx.Node:
        op: Any = node.target
        graph, value, name = node.graph, metadata.value_of(node), node.name
        count = len(op._schema.returns)
        with graph.inserting_before(node):
            call = graph.create_node(
                "call_function", effect_tokens.add_token(op), (token, *node.args), dict(node.kwargs)
            )
        metadata.inherit_origin(call, node)
        metadata.set_bindings(call, _inner(metadata.bindings_of(node)) if count == 1 else _move(node))
        if count == 0:
            metadata.set_value(call, self.token_value())
            replace_node(node, call)
            return call
        metadata.set_value(call, (self.token_value(), *((value,) if count == 1 else value)))
        made = _item(call, 0, node)
        if count == 1:
            replace_node(node, _item(call, 1, node))
            name_node(call, f"{name}_effect")
        else:
            shift_items(node, call)
            replace_node(node, call)
        name_node(made, "token")
        return made

    def _call(self, module: fx.GraphModule, call: fx.Node, token: fx.Node) -> fx.Node:
        """Hands the token to the functions of a call, and takes it back from its results."""
        if call.target not in _PLACES:
            raise PassError(
                format_error(
                    f"{call.name} calls a function that has an effect, and no order of its calls is defined.",
                    where=metadata.where(call),
                    why=f"{call.target} may call it any number of times, in any order",
                    fix="move the effect out of that function",
                )
            )
        held, place = _PLACES[call.target]
        for number, index in enumerate(subgraphs.LAYOUTS[call.target].functions):
            function = _own_function(module, call, index)
            made = self._placeholder(function, place(call))
            last = self.thread(function, made)
            if call.target is hop.while_loop and number == 0:
                self._hold_condition(function, made, last)
            else:
                prepend_output(function.graph, self._passed(function.graph, last) if last is made else last)
            function.recompile()
        if call.target in _REGIONS:
            call.args = (*call.args[:held], token, *call.args[held:])
        else:
            group: Any = call.args[held]
            call.args = (*call.args[:held], type(group)([token, *group]), *call.args[held + 1 :])
        shift_items(call, call)
        value = self.token_value()
        if call.target is hop.map_impl:  # one of each step
            with self.mode:
                value = torch.ops.aten.expand.default(value, [metadata.value_of(call.args[1][0]).shape[0], 0])  # type: ignore[index,arg-type]
        metadata.set_value(call, (value, *metadata.value_of(call)))
        metadata.set_bindings(call, _move(call))
        made = _item(call, 0, call.next)
        name_node(made, "token")
        return self._passed(call.graph, made, made.next) if call.target is hop.map_impl else made

    def _placeholder(self, function: fx.GraphModule, place: int) -> fx.Node:
        nodes = list(function.graph.nodes)
        with function.graph.inserting_before(nodes[place]):
            made = function.graph.placeholder("token")
        name_node(made, "token")
        made.target = made.name
        metadata.set_value(made, self.token_value())
        return made

    def _passed(self, graph: fx.Graph, token: fx.Node, before: fx.Node | None = None) -> fx.Node:
        with graph.inserting_before(before or output_of(graph)):
            made = graph.create_node("call_function", effect_tokens.pass_token, (token,))
        name_node(made, "token")
        metadata.set_value(made, self.token_value())
        return made

    def _hold_condition(self, function: fx.GraphModule, first: fx.Node, last: fx.Node) -> None:
        """A condition returns no token: whether to go on is what depends on its effects."""
        if last is first:
            return
        output = output_of(function.graph)
        single: Any = output.args[0]
        going = single[0] if isinstance(single, tuple | list) else single
        with function.graph.inserting_before(output):
            if not isinstance(metadata.value_of(going), torch.Tensor):
                number = going
                going = function.graph.create_node(
                    "call_function", torch.ops.aten.scalar_tensor.default, (number,), {"dtype": torch.bool}
                )
                with self.mode:
                    metadata.set_value(going, torch.empty((), dtype=torch.bool))
                metadata.inherit_origin(going, number)
            held = function.graph.create_node("call_function", effect_tokens.after, (last, going))
        name_node(held, "after")
        metadata.copy_metadata(going, held)
        output.args = ((held,) if isinstance(single, tuple | list) else held,)


def _split_write(node: fx.Node) -> fx.Node:
    """A draw into a tensor becomes a draw, which is returned, and a write; so does a custom operator that writes."""
    op: Any = node.target
    if functional_custom_ops.has_form(op):
        return _on_copies(node)
    if not op._schema.is_mutable or not _is_draw(op, node):
        return node
    found = _functional_form(op)
    if found is None:
        raise PassError(
            format_error(
                f"{node.name} writes random numbers to its argument, and {op} has no functional form.",
                where=metadata.where(node),
                fix="run functionalize first, then insert_effect_tokens with random=True",
            )
        )
    graph = node.graph
    with graph.inserting_before(node):
        draw = graph.create_node("call_function", found, _positional(node), dict(node.kwargs))
        write = graph.create_node("call_function", torch.ops.aten.copy_.default, (node.args[0], draw))
    for made in (draw, write):
        metadata.copy_metadata(node, made)
    name_node(draw, found._opname)
    replace_node(node, write)
    return draw


def _on_copies(node: fx.Node) -> fx.Node:
    """A custom operator works on copies of what it writes to, which are then written."""
    functional_custom_ops.check_apart(node)
    op: Any = node.target
    graph, origins = node.graph, functional_custom_ops.returned_positions(op)
    arguments = functional_custom_ops.arguments_of(op, node.args, node.kwargs)
    places = functional_custom_ops.mutated_positions(op)
    given, value = [arguments[place] for place in places], metadata.value_of(node)
    values = [value] if len(origins) == 1 else list(value or ())
    own = [v for v, origin in zip(values, origins, strict=True) if origin is None]
    made = (*own, *(fx.map_arg(g, metadata.value_of) for g in given))
    with graph.inserting_before(node):
        call = graph.create_node(
            "call_function", functional_custom_ops.make_functional(op), node.args, dict(node.kwargs)
        )
    metadata.inherit_origin(call, node)
    metadata.set_bindings(call, metadata.bindings_of(node))
    metadata.set_value(call, made[0] if len(made) == 1 else made)
    items = [call] if len(made) == 1 else [_item(call, index, node) for index in range(len(made))]
    for target, copy in zip(given, items[len(own) :], strict=True):
        _write_back(target, copy, node)
    results = [items.pop(0) if origin is None else arguments[origin] for origin in origins]
    if len(origins) == 1:
        node.replace_all_uses_with(results[0])
    for user in list(node.users):
        user.replace_all_uses_with(results[user.args[1]])  # type: ignore[index]
        graph.erase_node(user)
    name = node.name
    graph.erase_node(node)
    name_node(results[0] if len(origins) == 1 and origins[0] is None else call, name)
    return call


def _write_back(target: Any, copy: fx.Node, before: fx.Node) -> None:
    pairs = [(target, copy)]
    if isinstance(target, list | tuple):
        pairs = [(item, _item(copy, index, before)) for index, item in enumerate(target)]
    for to, item in pairs:
        with before.graph.inserting_before(before):
            write = before.graph.create_node("call_function", torch.ops.aten.copy_.default, (to, item))
        metadata.copy_metadata(to, write)
        metadata.inherit_origin(write, before)


def _positional(node: fx.Node) -> tuple[Any, ...]:
    """A node's arguments with the defaults that it leaves out; another operator may have none."""
    schema = node.target._schema  # type: ignore[union-attr]
    left = [a for a in schema.arguments[len(node.args) :] if not a.kwarg_only and a.name not in node.kwargs]
    return (*node.args, *(a.default_value for a in left))


def _functional_form(op: internals.OpOverload) -> internals.OpOverload | None:
    """The operator that takes the same arguments and writes none of them."""
    wanted = _parameters(op)
    base = op._opname.removesuffix("_")
    for name in (base, f"{base}_functional"):
        packet = getattr(getattr(torch.ops, op.namespace), name, None)
        for found in _overloads_of(packet) if packet is not None else ():
            if _parameters(found) == wanted and not found._schema.is_mutable and len(found._schema.returns) == 1:
                return found
    return None


def _parameters(op: internals.OpOverload) -> list[tuple[str, str]]:
    """What an operator takes. The tensor is called self where it is written, and may be called input elsewhere."""
    return [(a.name if i else "", str(a.type)) for i, a in enumerate(op._schema.arguments)]


def _item(call: fx.Node, index: int, before: fx.Node) -> fx.Node:
    with call.graph.inserting_before(before):
        made = call.graph.create_node("call_function", operator.getitem, (call, index))
    metadata.inherit_origin(made, call)
    metadata.set_value(made, metadata.value_of(call)[index])
    return made


def _inner(bindings: Any) -> Any:
    """Where symbols become known, now that the value is the second of two."""
    first = internals.binding_path([("item", 1)])
    return {symbol: (*first, *path) for symbol, path in bindings.items()} if bindings else None


def _move(node: fx.Node) -> Any:
    return shift_bindings(metadata.bindings_of(node), lambda index: index + 1)


def _own_function(module: fx.GraphModule, call: fx.Node, index: int) -> fx.GraphModule:
    """A function of a call, copied if others call it too: they may have no token to give."""
    attribute: Any = call.args[index]
    function = getattr(module, str(attribute.target))
    others = [n for n in module.graph.nodes if n.op == "get_attr" and n.target == attribute.target]
    if len(others) == 1 and len(attribute.users) == 1 and sum(a is attribute for a in call.args) == 1:
        return function  # type: ignore[no-any-return]
    name = unique(str(attribute.target), module._modules)
    module.add_module(name, copy_graph_module(function))
    with module.graph.inserting_before(call):
        made = module.graph.create_node("get_attr", name)
    metadata.copy_metadata(attribute, made)
    call.args = (*call.args[:index], made, *call.args[index + 1 :])
    if not attribute.users:
        module.graph.erase_node(attribute)
        drop_unused(module, str(attribute.target))
    return getattr(module, name)  # type: ignore[no-any-return]
