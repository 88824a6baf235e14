"""Computes ahead of time what does not depend on the arguments, and folds batch norm into what comes before it.

before                                                          after
exp = aten.exp(c_table)                                         mul = aten.mul(x, c_folded)
mul = aten.mul(x, exp)                                          conv = aten.conv2d(mul, p_conv_folded_weight,
conv = aten.conv2d(mul, p_conv_weight, None)                                       p_conv_folded_bias)
norm = aten.batch_norm(conv, w, b, mean, var, False, 0.1, 1e-5, True)
"""

from __future__ import annotations

import operator
from collections import ChainMap, Counter
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from ingot import torch_internals as internals
from ingot.analysis.alias import escaping
from ingot.analysis.side_effects import has_side_effects
from ingot.ir import metadata, subgraphs
from ingot.ir.dialects import FUNCTIONAL
from ingot.ir.memory_places import names_place_in_memory, place_of
from ingot.ir.names import identifier, unique
from ingot.ir.program import Program
from ingot.ir.signature import MUTATION_KINDS, STATE_KINDS, Input, InputKind
from ingot.passes.cse import follow, named_values
from ingot.passes.dce import remove_unused
from ingot.passes.fold_batch_norm import fold_batch_norms, operator_of
from ingot.passes.manager import register

aten = torch.ops.aten

_ORDER = (InputKind.TOKEN, InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT)
_PREFIX = {InputKind.PARAMETER: "p", InputKind.BUFFER: "b", InputKind.CONSTANT: "c"}
# A graph of these is smaller than what they make.
_SMALLER_AS_A_CALL = frozenset(
    (
        *("arange", "ones", "zeros", "full", "eye", "linspace", "scalar_tensor"),
        *("ones_like", "zeros_like", "full_like", "expand", "repeat"),
    )
)
_COPIES = (aten.clone.default, aten.alias.default, aten.detach.default, aten.lift_fresh_copy.default)


@register(takes=FUNCTIONAL, exact=False, computes=True)
def constant_fold(
    program: Program, *, parameters: bool = False, batch_norm: bool = True, limit_bytes: int = 1 << 20
) -> int:
    """Folds constants, in every graph; with `parameters`, parameters and buffers that are never written as well.

    A result that is larger than what it is made of by more than `limit_bytes` stays a computation. `batch_norm` in
    evaluation goes into the convolution or linear layer before it, if that one serves nothing else.
    """
    folding = Folding(program, parameters, limit_bytes)
    root = Level(program.graph_module)
    count = sum(fold_batch_norms(folding, level) for level in levels(root)) if batch_norm else 0
    folding.write_signature()
    follow(program, folding.names)
    count += folding.fold_constants(root, folding.known_inputs())
    count += remove_unused(program) if count else 0  # operands that regions do not need any more
    return count + folding.drop_unused()


@dataclass(frozen=True, slots=True)
class Level:
    """A graph, and for one inside another the node that calls it and the functions that this node takes."""

    module: fx.GraphModule
    parent: Level | None = None
    call: fx.Node | None = None
    functions: tuple[fx.GraphModule, ...] = ()

    def inputs(self) -> dict[fx.Node, Any]:
        """For each placeholder that receives an operand as it is, the operand."""
        assert self.call is not None
        placeholders = subgraphs.shared_placeholders(self.call, self.module)
        return dict(zip(placeholders, subgraphs.shared_operands(self.call), strict=True))


def _inner_levels(level: Level) -> Iterator[Level]:
    """The graphs that a graph's nodes call; one that several nodes share is left alone."""
    references = Counter(str(n.target) for n in level.module.graph.nodes if n.op == "get_attr")
    for node in list(level.module.graph.nodes):
        if node.target in subgraphs.LAYOUTS:
            attributes = subgraphs.function_attributes(node)
            if all(references[str(a.target)] == 1 and len(a.users) == 1 for a in attributes):
                functions = tuple(getattr(level.module, str(a.target)) for a in attributes)
                for function in functions:
                    yield Level(function, level, node, functions)


def levels(level: Level) -> Iterator[Level]:
    """A graph and every graph inside it that one node alone calls."""
    yield level
    for inner in _inner_levels(level):
        yield from levels(inner)


class Folding:
    """One run of the pass over one program. No batch norm goes into layers whose nodes are called as one of `apart`."""

    def __init__(
        self, program: Program, parameters: bool, limit_bytes: int, apart: Collection[str] = frozenset()
    ) -> None:
        self.program, self.parameters, self.limit, self.apart = program, parameters, limit_bytes, apart
        self.names: dict[str, str] = {}
        self.named = named_values(program)
        self.written = {o.target for o in program.signature.outputs if o.kind in MUTATION_KINDS}
        self.specs = {i.name: i for i in program.signature.inputs if i.kind in STATE_KINDS}
        inputs = [n for n in program.graph.nodes if n.op == "placeholder"]
        self.placeholders = {n.name: n for n in inputs}
        self._behind: dict[str, list[Input]] = {}  # state to come behind other state, in the order it was added
        self.used = {n.name for n in inputs if n.users}
        self.mode = metadata.fake_mode_of(inputs)

    # ------------------------------------------------------------------ state

    def state(self, level: Level, node: Any) -> Input | None:
        """The state that a placeholder of a graph stands for, if it is never written."""
        while isinstance(node, fx.Node) and node.op == "placeholder" and level.parent is not None:
            node, level = level.inputs().get(node), level.parent
        spec = self.specs.get(node.name) if isinstance(node, fx.Node) and node.op == "placeholder" else None
        return spec if spec is not None and spec.target not in self.written else None

    def tensor(self, level: Level, node: Any) -> torch.Tensor | None:
        spec = self.state(level, node)
        return self.program.state_of(spec).detach() if spec is not None else None

    def used_once(self, level: Level, node: fx.Node) -> bool:
        """Whether a placeholder has one user, and the operand behind it no other either."""
        while level.parent is not None:
            index = list(level.inputs()).index(node)
            others = [subgraphs.shared_placeholders(level.call, f)[index] for f in level.functions]  # type: ignore[arg-type]
            if sum(len(other.users) for other in others) != 1:
                return False
            operand = level.inputs()[node]
            if subgraphs.shared_operands(level.call).count(operand) != 1:  # type: ignore[arg-type]
                return False
            node, level = operand, level.parent
        return len(node.users) == 1

    def place(self, level: Level, tensor: torch.Tensor, key: str, kind: InputKind, after: Input | None) -> fx.Node:
        """A tensor as new state: its placeholder in a graph, handed down through the graphs around."""
        if level.parent is None:
            return self._add_state(tensor, key, kind, after)
        outer = self.place(level.parent, tensor, key, kind, after)
        call = level.call
        assert call is not None
        found: fx.Node | None = None
        for function in level.functions:
            inputs = [n for n in function.graph.nodes if n.op == "placeholder"]
            taken = {n.name for n in function.graph.nodes}
            first = next(iter(function.graph.nodes))
            with function.graph.inserting_after(inputs[-1]) if inputs else function.graph.inserting_before(first):
                made = function.graph.placeholder(unique(outer.name, taken))
            made.target = made.name
            metadata.copy_metadata(outer, made)
            found = made if function is level.module else found
            function.recompile()
        call.args = subgraphs.replace_shared(call, [*subgraphs.shared_operands(call), outer])
        assert found is not None
        return found

    def _add_state(self, tensor: torch.Tensor, key: str, kind: InputKind, after: Input | None) -> fx.Node:
        """Behind the state `after`, or else the last of its kind."""
        program, graph = self.program, self.program.graph
        if key in program.state_dict or key in program.constants:
            key = unique(key, ChainMap(program.state_dict, program.constants))
        name = f"{_PREFIX[kind]}_{identifier(key)}"
        index = 0
        if after is not None:
            place = graph.inserting_after(self.placeholders[after.name])
        else:
            self.write_signature()
            inputs = program.signature.inputs
            before = _ORDER[: _ORDER.index(kind) + 1]
            index = next((i for i in range(len(inputs), 0, -1) if inputs[i - 1].kind in before), 0)
            rest = (self.placeholders[i.name] for i in inputs[index:] if i.kind is not InputKind.LITERAL)
            place = graph.inserting_before(next(rest, None) or _first_call(graph))
        with place:
            node = graph.placeholder(name)
        if node.name != name:  # one that was taken once, if not now
            name = unique(name, {n.name for n in graph.nodes if n is not node})
            node.name = name
        node.target = name
        spec = Input(kind, name, key)
        self.placeholders[name] = node
        metadata.set_value(node, internals.fake_dense(self.mode, tensor, tensor.requires_grad))
        if after is not None:
            self._behind.setdefault(after.name, []).append(spec)
        else:
            inputs = (*program.signature.inputs[:index], spec, *program.signature.inputs[index:])
            program.signature = replace(program.signature, inputs=inputs)
        self.specs[name] = spec
        (program.constants if kind is InputKind.CONSTANT else program.state_dict)[key] = tensor
        return node

    def write_signature(self) -> None:
        """Puts state that was added behind other state into the signature: once for all of it, since a signature is
        as long as the model."""
        if not self._behind:
            return
        inputs: list[Input] = []
        waiting = list(reversed(self.program.signature.inputs))
        while waiting:
            inputs.append(waiting.pop())
            waiting += self._behind.pop(inputs[-1].name, ())  # the last that was added comes first
        self.program.signature = replace(self.program.signature, inputs=tuple(inputs))

    def drop_unused(self) -> int:
        """Drops constants that no node uses, and the state that none uses any more; returns how many."""
        self.write_signature()
        program = self.program
        nodes = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
        gone = [
            spec
            for name, spec in self.specs.items()
            if (spec.kind is InputKind.CONSTANT or name in self.used) and not nodes[name].users
            if name not in self.named and spec.target not in self.written
        ]
        dropped = {spec.name for spec in gone}
        kept = tuple(i for i in program.signature.inputs if i.name not in dropped)
        program.signature = replace(program.signature, inputs=kept)
        tensors = {id(program.state_of(spec)) for spec in gone}
        targets = {i.target for i in kept}
        for spec in gone:
            program.graph.erase_node(nodes[spec.name])
        for held in (program.state_dict, program.constants):
            for key in [k for k, t in held.items() if id(t) in tensors and k not in targets]:
                del held[key]
        return len(gone)

    # ------------------------------------------------------------------ constants

    def known_inputs(self) -> dict[fx.Node, Any]:
        kinds = STATE_KINDS if self.parameters else {InputKind.CONSTANT}
        found = {}
        for node in self.program.graph.nodes:
            spec = self.specs.get(node.name) if node.op == "placeholder" else None
            if spec is not None and spec.kind in kinds and spec.target not in self.written:
                found[node] = self.program.state_of(spec).detach()
        return found

    def fold_constants(self, level: Level, given: dict[fx.Node, Any], modes: tuple[Any, ...] = ()) -> int:
        """Folds in a graph, where the values of the nodes in `given` are known, and in the graphs that it calls."""
        graph = level.module.graph
        known: dict[fx.Node, Any] = dict(given)
        with ExitStack() as stack:
            stack.enter_context(internals.restore_modes())
            stack.enter_context(torch.no_grad())
            for device, dtype, enabled, cache in modes:
                stack.enter_context(torch.autocast(device, dtype, enabled, cache))
            for node in graph.nodes:
                if self._foldable(node, known):
                    args, kwargs = (fx.map_arg(a, lambda n: known[n]) for a in (node.args, node.kwargs))
                    known[node] = node.target(*args, **kwargs)
        escapes = escaping(graph)
        addresses_memory = any(map(names_place_in_memory, graph.nodes))
        needed: list[fx.Node] = []
        for node in reversed(list(known)):
            if node in given or all(user in known for user in node.users):
                continue
            moves = addresses_memory and place_of(node) != 0  # a constant begins at the start of its memory
            if node in escapes or moves or not self._worth_keeping(node, known[node]):
                del known[node]
            else:
                needed.append(node)
        for node in reversed(needed):
            made = self._constant(level, node, known)
            node.replace_all_uses_with(made, delete_user_cb=lambda user: user not in known)
        count = 0
        for node in reversed(graph.nodes):
            if node.op == "call_function" and node in known:
                graph.erase_node(node)
                count += 1
        level.module.recompile()
        for inner in _inner_levels(level):
            values = {p: known[o] for p, o in inner.inputs().items() if isinstance(o, fx.Node) and o in known}
            call = inner.call
            assert call is not None
            region = call.target is torch.ops.higher_order.wrap_with_autocast
            count += self.fold_constants(inner, values, (*modes, call.args[:4]) if region else modes)
        return count

    def _constant(self, level: Level, node: fx.Node, known: dict[fx.Node, Any]) -> fx.Node:
        """The placeholder of a node's value: a new one, unless the node only copies a constant."""
        source: Any = node
        while source.target in _COPIES:
            source = source.args[0]
        if source.op == "placeholder":
            return source  # type: ignore[no-any-return]
        tensor = known[node].detach().clone()
        made = self.place(level, tensor, "folded", InputKind.CONSTANT, None)
        metadata.inherit_origin(made, node)
        known[made] = tensor
        return made

    def _foldable(self, node: fx.Node, known: dict[fx.Node, Any]) -> bool:
        """Whether a node's value can be computed now, and is no larger than it may be."""
        target: Any = node.target
        if node.op != "call_function" or any(n not in known for n in node.all_input_nodes):
            return False
        if target is operator.getitem or node.name in self.named:
            return node.name not in self.named
        if not isinstance(target, internals.OpOverload) or has_side_effects(node) or metadata.bindings_of(node):
            return False
        if operator_of(target).startswith(("empty", "new_empty")):
            return False  # its contents may be private and must not get into a file
        if _is_dequantize(node) and _serves_products(node):
            return False  # integers are smaller, and are multiplied as they are
        value = metadata.value_of(node)
        tensors = metadata.tensors_in(value)
        parts = list(value) if isinstance(value, list | tuple) else [value]
        if len(tensors) != len(parts) or not all(isinstance(s, int) for t in tensors for s in t.shape):
            return False
        size = sum(t.numel() * t.element_size() for t in tensors)
        return size <= self.limit + sum(_bytes(known[n]) for n in node.all_input_nodes)

    def _worth_keeping(self, node: fx.Node, value: Any) -> bool:
        if not isinstance(value, torch.Tensor) or not internals.is_plain(value):
            return False
        return not isinstance(node.target, internals.OpOverload) or operator_of(node.target) not in _SMALLER_AS_A_CALL


# Who multiplies a dequantized weight, or picks from it; and who hands it on.
_PRODUCTS = frozenset(("linear", "matmul", "mm", "addmm", "bmm", "baddbmm", "embedding"))
_TURNS = frozenset(("t", "transpose", "permute"))


def _is_dequantize(node: Any) -> bool:
    return isinstance(node, fx.Node) and str(node.target).startswith("quantized_decomposed.dequantize_")


def _serves_products(node: fx.Node) -> bool:
    """Whether all that is made of dequantized numbers are products; convolutions, if the other side is integers too."""

    def serves(user: fx.Node) -> bool:
        name = operator_of(user.target) if isinstance(user.target, internals.OpOverload) else ""
        if name in _TURNS:
            return _serves_products(user)
        return name in _PRODUCTS or (name.startswith("conv") and _is_dequantize(user.args[0]))

    return all(map(serves, node.users))


def _bytes(value: Any) -> int:
    return sum(t.numel() * t.element_size() for t in metadata.tensors_in(value))


def _first_call(graph: fx.Graph) -> fx.Node:
    found: fx.Node = next(n for n in graph.nodes if n.op != "placeholder")
    return found
