"""Rebuilds the module hierarchy of a captured model from a flat graph.

Each module call becomes a `CallBody`: the nodes of that call, with a `call_submodule` node where it calls a child. A
body is lifted like a Program's graph is; its inputs are

    local state      the parameters and buffers of the module, read from it at each call, so that they may be replaced
    arguments        for a preserved module those of its signature, otherwise every value it takes from outside
    hidden values    what a preserved module's body uses that its signature does not show (a size, an autocast handle)

A preserved module is called as the model called it, so any module with that signature may be put in its place.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import fx, nn

from ingot import torch_internals as internals
from ingot.errors import UnflattenError, format_error
from ingot.interop.module import attach_state, module_at
from ingot.interop.unflattened_modules import CallBody, Unflattened, UnflattenedRoot, call_control, call_submodule
from ingot.ir import metadata, subgraphs
from ingot.ir.names import unique
from ingot.ir.signature import CallSignature, InputKind, ModuleCall

if TYPE_CHECKING:
    from ingot.ir.program import Program


def unflatten(program: Program) -> UnflattenedRoot:
    """The program as a hierarchy of modules. Raises UnflattenError where a preserved call cannot be cut out."""
    root = UnflattenedRoot("", _root_type(program), program.training)
    vars(root)["program"] = program
    calls = {call.path: call for call in program.module_calls}
    for call in program.module_calls:
        _make_module(root, call)
    attach_state(root, program)
    builder = _Builder(program, calls)
    body = builder.root_body()
    root.bodies[""] = body
    for module in root.modules():
        if isinstance(module, Unflattened):
            vars(module)["plans"] = builder.bodies
    for made in builder.bodies.values():
        owner = root.get_submodule(made.path)
        if isinstance(owner, Unflattened):
            owner.bodies[made.call] = made
    return root


def _root_type(program: Program) -> str:
    return next((call.type for call in program.module_calls if call.module == ""), "function")


def _make_module(root: nn.Module, call: ModuleCall) -> None:
    if not call.module:
        return
    *above, key = call.module.split(".")
    owner = module_at(root, above)
    known = owner._modules.get(key)
    if isinstance(known, Unflattened):
        return
    made = Unflattened(call.module, call.type, root.training)
    if known is not None:  # a container that a deeper call made first
        for name, child in known.named_children():
            made.add_module(name, child)
    owner.add_module(key, made)


@dataclass(slots=True)
class _Group:
    """Consecutive nodes of one body: its own, or those of one call of a child."""

    call: str | None
    nodes: list[fx.Node]


@dataclass(slots=True)
class _ChildCall:
    """A child's call as it stands in its caller's body: what is passed to it, and what comes back."""

    body: CallBody
    first: fx.Node
    passed: list[fx.Node]
    outputs: list[fx.Node]


@dataclass(slots=True)
class _Control:
    """A higher-order operator's node, with module calls cut out of its functions.

    A function reads the state of the modules that it calls from those modules, so operands that only carried such
    state in are gone.
    """

    node: fx.Node
    functions: dict[fx.Node, fx.GraphModule]
    operands: list[Any]

    @property
    def passed(self) -> list[fx.Node]:
        kept = subgraphs.replace_shared(self.node, self.operands)
        return [n for n in _nodes_in((kept, self.node.kwargs)) if n not in self.functions]


_Item = fx.Node | _ChildCall | _Control


class _Builder:
    """Cuts a flat graph into bodies, the innermost first: a body only takes in what it, not its children, uses."""

    def __init__(self, program: Program, calls: Mapping[str, ModuleCall]) -> None:
        self.program = program
        self.calls = calls
        self.bodies: dict[str, CallBody] = {}
        self.state_names = _names_by_placeholder(program)

    def root_body(self) -> CallBody:
        graph = self.program.graph
        nodes = [n for n in graph.nodes if n.op not in ("placeholder", "output")]
        output = next(iter(reversed(graph.nodes)))
        placeholders = {n.name: n for n in graph.nodes if n.op == "placeholder"}
        body = CallBody("", "")
        body.arguments = [i.name for i in self.program.signature.inputs_of_kind(InputKind.ARGUMENT)]
        stack = next((metadata.module_stack_of(n) for n in nodes if metadata.module_stack_of(n)), ())
        self._write(
            body,
            self.program.graph_module,
            nodes,
            arguments=[placeholders[name] for name in body.arguments],
            returned=[n for n in output.args[0] if isinstance(n, fx.Node)],
            depth=1 if stack and stack[0].path == "" else 0,
        )
        assert not body.hidden, f"nothing defines {body.hidden}"
        return body

    # ------------------------------------------------------------------ one body

    def _write(
        self,
        body: CallBody,
        owner: fx.GraphModule,
        nodes: list[fx.Node],
        arguments: Sequence[fx.Node],
        returned: Sequence[fx.Node],
        depth: int,
    ) -> list[fx.Node]:
        """Fills a body's graph and returns the nodes whose values are hidden inputs of it."""
        items = self._cut(owner, nodes, returned, depth)
        inside = set(nodes)
        used = [n for item in items for n in (item.all_input_nodes if isinstance(item, fx.Node) else item.passed)]
        outer = [n for n in dict.fromkeys([*used, *returned]) if n not in inside]
        local = {n: name for n in outer if (name := self._local_name(n, body.path)) is not None}
        local.update(self._batch_counters(local))
        hidden = [n for n in outer if n not in local and n not in arguments]
        graph, root = fx.Graph(), nn.Module()
        values: dict[fx.Node, fx.Node] = {}
        for node in (*local, *arguments, *hidden):
            made = _placeholder(graph, node)
            values.setdefault(node, made)
        self._copy_items(graph, root, owner, items, values)
        out = graph.output(tuple(values[n] for n in returned))
        metadata.set_value(out, tuple(metadata.value_of(n) for n in returned))
        body.state = list(local.values())
        body.hidden = [n.name for n in hidden]
        body.outputs = [n.name for n in returned]
        body.graph = internals.LazyGraphModule(root, graph)
        return hidden

    def _cut(self, owner: fx.GraphModule, nodes: list[fx.Node], returned: Iterable[fx.Node], depth: int) -> list[_Item]:
        """The nodes with each run of a child's nodes replaced by a call of it."""
        items: list[_Item] = []
        controlled: set[fx.Node] = set()
        for group in _group_nodes(nodes, depth):
            if group.call is not None:
                items.append(self._cut_call(owner, group, set(returned), depth))
                continue
            for node in group.nodes:
                if node.target in subgraphs.LAYOUTS:
                    items.append(self._cut_control(owner, node, depth))
                    controlled.update(subgraphs.function_attributes(node))
                else:
                    items.append(node)
        return [item for item in items if not isinstance(item, fx.Node) or item not in controlled]

    def _cut_control(self, owner: fx.GraphModule, node: fx.Node, depth: int) -> _Control:
        operands = subgraphs.shared_operands(node)
        functions: dict[fx.Node, fx.GraphModule] = {}
        kept: set[int] = set()
        for attribute in subgraphs.function_attributes(node):
            function: fx.GraphModule = getattr(owner, str(attribute.target))
            for placeholder, operand in zip(subgraphs.shared_placeholders(node, function), operands, strict=True):
                if operand in self.state_names:
                    self.state_names[placeholder] = self.state_names[operand]
            made = self._subgraph(function, depth)
            inner = subgraphs.shared_placeholders(node, made)
            kept.update(i for i, p in enumerate(inner) if p.users or operands[i] not in self.state_names)
            functions[attribute] = made
        for made in functions.values():
            for index, placeholder in enumerate(subgraphs.shared_placeholders(node, made)):
                if index not in kept:
                    made.graph.erase_node(placeholder)
        return _Control(node, functions, [operand for i, operand in enumerate(operands) if i in kept])

    def _copy_items(
        self,
        graph: fx.Graph,
        root: nn.Module,
        owner: fx.GraphModule,
        items: Iterable[_Item],
        values: dict[fx.Node, fx.Node],
    ) -> None:
        for item in items:
            if isinstance(item, _ChildCall):
                _write_call(graph, item, values)
            elif isinstance(item, _Control):
                for attribute, function in item.functions.items():
                    values[attribute] = _attach(graph, root, attribute, function)
                args = subgraphs.replace_shared(item.node, item.operands)
                paths = sorted({path for function in item.functions.values() for path in self._find_called(function)})
                made = values[item.node] = _copy(graph, item.node, args, values)
                if paths and subgraphs.LAYOUTS[item.node.target].shared is not None:  # a region runs its function here
                    made.args, made.target = (item.node.target, paths, *made.args), call_control  # type: ignore[arg-type]
            elif item.op == "get_attr":
                values[item] = _attach(graph, root, item, getattr(owner, str(item.target)))
            else:
                values[item] = _copy(graph, item, item.args, values)

    def _find_called(self, module: fx.GraphModule) -> set[str]:
        """The paths of the modules that a function calls, and of those that they call."""
        found: set[str] = set()
        waiting = [module]
        while waiting:
            for part in waiting.pop().modules():
                for node in part.graph.nodes if isinstance(part, fx.GraphModule) else ():
                    if node.target is call_submodule and node.args[0] not in found:
                        found.add(str(node.args[0]))
                        waiting += [b.graph for b in self.bodies.values() if b.path == node.args[0] and b.graph]
        return found

    def _subgraph(self, module: fx.GraphModule, depth: int) -> fx.GraphModule:
        """A branch or body of control flow, with the module calls inside it cut out too."""
        graph, root = fx.Graph(), nn.Module()
        values = {n: _placeholder(graph, n) for n in module.graph.nodes if n.op == "placeholder"}
        nodes = [n for n in module.graph.nodes if n.op not in ("placeholder", "output")]
        output = next(iter(reversed(module.graph.nodes)))
        items = self._cut(module, nodes, output.all_input_nodes, depth)
        self._copy_items(graph, root, module, items, values)
        made = graph.output(fx.map_arg(output.args[0], lambda n: values[n]))
        metadata.copy_metadata(output, made)
        return internals.LazyGraphModule(root, graph)

    # ------------------------------------------------------------------ a child's call

    def _cut_call(self, owner: fx.GraphModule, group: _Group, returned: set[fx.Node], depth: int) -> _ChildCall:
        assert group.call is not None
        first = group.nodes[0]
        frame = metadata.module_stack_of(first)[depth]
        body = CallBody(unique(group.call, self.bodies), frame.path, self._signature_of(group))
        self.bodies[body.call] = body
        inside = set(group.nodes)
        used_later = [n for n in group.nodes if n in returned or any(u not in inside for u in n.users)]
        if body.signature is None:
            arguments: list[fx.Node] = []
            outputs = used_later
        else:
            by_name = {n.name: n for n in first.graph.nodes}
            arguments = [by_name[v.name] for v in body.signature.inputs if v.kind != "literal"]
            shown = [by_name[v.name] for v in body.signature.outputs if v.kind != "literal"]
            outputs = [*dict.fromkeys([*shown, *used_later])]
        hidden = self._write(body, owner, group.nodes, arguments, outputs, depth + 1)
        if body.signature is None:
            arguments, hidden, body.hidden = hidden, [], []
        body.arguments = [n.name for n in arguments]
        return _ChildCall(body, first, [*arguments, *hidden], outputs)

    def _signature_of(self, group: _Group) -> CallSignature | None:
        """The signature to keep for a call, if it is preserved."""
        call = self.calls.get(str(group.call))
        if call is None or call.signature is None or call.signature.in_tree.kind == "leaf":
            return None
        if call.path in self.bodies:
            raise UnflattenError(
                format_error(
                    f"The call {call.path} is in several pieces, so its signature cannot be kept.",
                    where=metadata.where(group.nodes[0]),
                    why="a pass moved nodes of other modules between its own",
                    fix="unflatten before that pass, or do not preserve this module",
                )
            )
        return call.signature

    def _batch_counters(self, local: Mapping[fx.Node, str]) -> dict[fx.Node, str]:
        """BatchNorm's counters of batches: in eval nothing uses them, but train mode will."""
        by_name = {name: node for node, names in self.state_names.items() for name in names}
        found: dict[fx.Node, str] = {}
        for node, name in local.items():
            if name.endswith("running_mean"):
                full = next(n for n in self.state_names[node] if n.endswith(name))
                counter = by_name.get(f"{full.removesuffix('running_mean')}num_batches_tracked")
                if counter is not None:
                    found[counter] = f"{name.removesuffix('running_mean')}num_batches_tracked"
        return found

    def _local_name(self, node: fx.Node, path: str) -> str | None:
        """The name under `path`, without that path, of the state behind a placeholder; None if it is not there."""
        for name in self.state_names.get(node, ()):
            if not path:
                return name
            if name.startswith(f"{path}."):
                return name[len(path) + 1 :]
        return None


def _names_by_placeholder(program: Program) -> dict[fx.Node, list[str]]:
    """Every name of the tensor behind each state placeholder: a tied tensor has several."""
    by_identity: dict[int, list[str]] = {}
    for name, tensor in (*program.state_dict.items(), *program.constants.items()):
        by_identity.setdefault(id(tensor), []).append(name)
    nodes = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
    return {nodes[i.name]: by_identity[id(program.state_of(i))] for i in program.signature.state_inputs}


def _placeholder(graph: fx.Graph, node: fx.Node) -> fx.Node:
    made = graph.placeholder(node.name)
    made.target = made.name
    metadata.copy_metadata(node, made)
    return made


def _attach(graph: fx.Graph, root: nn.Module, attribute: fx.Node, module: nn.Module) -> fx.Node:
    """A get_attr node for a sub-GraphModule that `root` owns from now on."""
    name = unique(str(attribute.target), root._modules)
    root.add_module(name, module)
    made = graph.create_node("get_attr", name, name=attribute.name)
    metadata.copy_metadata(attribute, made)
    return made


def _copy(graph: fx.Graph, node: fx.Node, args: tuple[Any, ...], values: Mapping[fx.Node, fx.Node]) -> fx.Node:
    made = graph.create_node(
        node.op,
        node.target,
        fx.map_arg(args, lambda n: values[n]),
        fx.map_arg(node.kwargs, lambda n: values[n]),
        name=node.name,
    )
    metadata.copy_metadata(node, made)
    return made


def _nodes_in(argument: Any) -> list[fx.Node]:
    found: list[fx.Node] = []
    fx.map_arg(argument, found.append)
    return found


def _write_call(graph: fx.Graph, call: _ChildCall, values: dict[fx.Node, fx.Node]) -> None:
    passed = [values[n] for n in call.passed]
    node = graph.create_node("call_function", call_submodule, (call.body.path, call.body.call, *passed))
    metadata.inherit_origin(node, call.first)
    metadata.set_value(node, tuple(metadata.value_of(n) for n in call.outputs))
    for index, output in enumerate(call.outputs):
        if output not in values:
            part = graph.create_node("call_function", operator.getitem, (node, index), name=output.name)
            metadata.copy_metadata(output, part)
            values[output] = part


def _group_nodes(nodes: Sequence[fx.Node], depth: int) -> list[_Group]:
    """Runs of nodes by the child call that they are in; a lone node between two runs of one call joins them."""

    def call_of(node: fx.Node) -> str | None:
        stack = metadata.module_stack_of(node)
        return stack[depth].call if len(stack) > depth else None

    calls = [call_of(n) for n in nodes]
    last = {call: i for i, call in enumerate(calls) if call is not None}
    groups: list[_Group] = []
    current: str | None = None
    for index, (node, call) in enumerate(zip(nodes, calls, strict=True)):
        if call is None and current is not None and last[current] > index:
            call = current
        if not groups or groups[-1].call != call:
            groups.append(_Group(call, []))
        groups[-1].nodes.append(node)
        current = call
    return groups
