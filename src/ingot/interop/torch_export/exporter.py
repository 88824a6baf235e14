"""Program → torch.export's ExportedProgram. What differs between the two is listed in `torch_export`."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch import fx, nn
from torch.export import ExportedProgram, ModuleCallEntry, ModuleCallSignature
from torch.export import graph_signature as torch_signature

from ingot import torch_internals as internals
from ingot.errors import ConversionError, format_error
from ingot.interop.torch_export.values import Environment, graph_modules
from ingot.ir import metadata, symbolic_dims
from ingot.ir.clone import copy_graph_module
from ingot.ir.dialects import CAPTURED
from ingot.ir.names import identifier, unique
from ingot.ir.program import Program
from ingot.ir.pytree import Tree, class_named, leaf_paths
from ingot.ir.regions import wrap_switches
from ingot.ir.signature import CallSignature, Input, InputKind, ModuleCall, Output, OutputKind, Value

_INPUT_KINDS = {
    InputKind.PARAMETER: torch_signature.InputKind.PARAMETER,
    InputKind.BUFFER: torch_signature.InputKind.BUFFER,
    InputKind.CONSTANT: torch_signature.InputKind.CONSTANT_TENSOR,
    InputKind.TOKEN: torch_signature.InputKind.TOKEN,
}
_OUTPUT_KINDS = {
    OutputKind.RESULT: torch_signature.OutputKind.USER_OUTPUT,
    OutputKind.LITERAL: torch_signature.OutputKind.USER_OUTPUT,
    OutputKind.BUFFER_MUTATION: torch_signature.OutputKind.BUFFER_MUTATION,
    OutputKind.PARAMETER_MUTATION: torch_signature.OutputKind.PARAMETER_MUTATION,
    OutputKind.ARGUMENT_MUTATION: torch_signature.OutputKind.USER_INPUT_MUTATION,
    OutputKind.TOKEN: torch_signature.OutputKind.TOKEN,
}

# The regions of control flow, and their names in torch; {} is the operator.
_REGIONS = {
    "true_graph": "true_graph",
    "false_graph": "false_graph",
    "cond_graph": "{}_cond_graph",
    "body_graph": "{}_body_graph",
    "combine_graph": "{}_combine_graph",
}
_NUMBER = re.compile(r"_\d+$")

# What the text of a graph may hold besides tensors.
_LITERALS = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(...),
    slice,
    range,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)


def to_exported(program: Program) -> ExportedProgram:
    """The program as torch.export has it: torch can run, save and decompose it.

    A dataclass among the arguments or results is registered with torch.export.register_dataclass, since torch takes
    and returns only registered classes. Constraints become torch's guards, which `ep.module()` checks. Of what torch
    cannot express, this is left out: the signature of a preserved call whose values only exist inside a region, and
    the check that a tensor fixed by `concrete_args` has its value.
    """
    with internals.real_tensors():  # a fake mode of the caller's is not the one that this program's fakes belong to
        return _convert(program)


def _convert(program: Program) -> ExportedProgram:
    module = copy_graph_module(program.graph_module)
    environment = Environment()
    environment.move(module)
    _spell_as_torch(module)
    signature, in_spec, out_spec = _signature(program, module, environment)
    state, constants = _state(program)
    ranges = _ranges(program, module, environment)
    _declare_guards(program, module, signature, environment)
    wrap_switches(module)  # torch.export runs bare switches, but neither saves nor decomposes them
    for node in (n for inner in graph_modules(module) for n in inner.graph.nodes):
        if not metadata.module_stack_of(node) and node.op in ("call_function", "get_attr"):
            metadata.set_module_stack(node, ())  # torch wants one of every node, if only an empty one
    names = _argument_names(program)
    root = ModuleCallEntry("", ModuleCallSignature([], [], in_spec, out_spec, forward_arg_names=names))
    present = {node.name for node in module.graph.nodes}
    calls = [_module_call(call, present) for call in program.module_calls if call.path]
    try:
        return ExportedProgram(
            root=module,
            graph=module.graph,
            graph_signature=signature,
            state_dict=state,
            range_constraints=ranges,
            module_call_graph=[root, *calls],
            example_inputs=program.example_inputs,
            constants=constants,
            verifiers=[internals.export_verifier("TRAINING" if program.dialect is CAPTURED else "ATEN")],
        )
    except internals.export_violation() as violation:
        raise ConversionError(
            format_error("torch.export does not take this program.", why=str(violation).strip())
        ) from violation


def _spell_as_torch(module: fx.GraphModule) -> None:
    """Gives regions of control flow, and messages of run-time checks, the names and words that torch has for them."""
    for inner in list(graph_modules(module)):
        counts: Counter[str] = Counter()
        users = [node for node in inner.graph.nodes if node.op == "get_attr"]
        found = {node.target: getattr(inner, node.target, None) for node in users if "." not in node.target}
        renamed: dict[str, str] = {}
        for target, child in found.items():
            base = _REGIONS.get(_NUMBER.sub("", target))
            if base is not None and isinstance(child, fx.GraphModule):
                user = next(user for node in users if node.target == target for user in node.users)
                base = base.format(getattr(user.target, "__name__", "body"))
                renamed[target] = f"{base}_{counts[base]}"
                counts[base] += 1
        for target in renamed:
            delattr(inner, target)
        for target, name in renamed.items():
            inner.add_module(name, found[target])
        for node in inner.graph.nodes:
            if node.op == "get_attr" and node.target in renamed:
                node.target = renamed[node.target]
            elif node.target is torch.ops.aten._assert_scalar.default and node.args[1].startswith("expected "):
                said = node.args[1].removeprefix("expected ")
                text = f"Runtime assertion failed for expression {said} on node '{node.args[0]}'"
                node.args = (node.args[0], text)


# ---------------------------------------------------------------------- signature


def _signature(
    program: Program, module: fx.GraphModule, environment: Environment
) -> tuple[torch_signature.ExportGraphSignature, internals.TreeSpec, internals.TreeSpec]:
    ours = program.signature
    paths = leaf_paths(ours.in_tree)
    in_spec, kept = _spec(ours.in_tree, list(zip(ours.user_inputs, paths, strict=True)), lambda leaf: leaf[0])
    out_spec, results = _spec(ours.out_tree, list(ours.user_outputs), lambda leaf: leaf)
    nodes = {node.name: node for node in module.graph.nodes}
    inputs = [_state_input(i) for i in ours.inputs if i.kind in _INPUT_KINDS]
    literals = _Literals(program, module, environment)
    for i, path in reversed(kept):
        node = nodes[i.name] if i.kind is InputKind.ARGUMENT else literals.placeholder(i, path)
        literals.before = node
        inputs.insert(len(ours.inputs) - len(ours.user_inputs), _user_input(i, node))
    outputs = [*(o for o in ours.outputs if o.kind not in (OutputKind.RESULT, OutputKind.LITERAL)), *results]
    returned = tuple(o.value if o.kind is OutputKind.LITERAL else nodes[o.name] for o in outputs)
    module.graph.erase_node(module.graph.output_node())
    module.graph.output(returned).name = "output"
    specs = [_output(o, nodes) for o in outputs]
    return torch_signature.ExportGraphSignature(inputs, specs), in_spec, out_spec


class _Literals:
    """Makes the placeholders, unused, that torch has for constant arguments; from the last one to the first."""

    def __init__(self, program: Program, module: fx.GraphModule, environment: Environment) -> None:
        self.program, self.graph, self.environment = program, module.graph, environment
        self.names = {node.name for node in module.graph.nodes}
        self.before = next(n for n in module.graph.nodes if n.op != "placeholder")

    def placeholder(self, spec: Input, path: tuple[str | int, ...]) -> fx.Node:
        _, position, *rest = path
        names = self.program.parameter_names
        if path[0] == 0 and isinstance(position, int):
            position = names[position] if position < len(names) else f"arg{position}"
        name = unique(identifier("_".join(str(step) for step in (position, *rest))), self.names)
        self.names.add(name)
        with self.graph.inserting_before(self.before):
            node = self.graph.placeholder(name)
        node.name = name
        value = spec.value if spec.target is None else self.environment.move_value(self.program.constants[spec.target])
        if isinstance(value, torch.ScriptObject):
            raise _unknown_object(value, f"takes, as {'.'.join(map(str, (position, *rest)))},")
        metadata.set_value(node, value)
        return node


def _state_input(spec: Input) -> torch_signature.InputSpec:
    kind = _INPUT_KINDS[spec.kind]
    if spec.kind is InputKind.TOKEN:
        return torch_signature.InputSpec(kind, torch_signature.TokenArgument(spec.name), None)
    persistent = spec.persistent if spec.kind is InputKind.BUFFER else None
    return torch_signature.InputSpec(kind, torch_signature.TensorArgument(spec.name), spec.target, persistent)


def _user_input(spec: Input, node: fx.Node) -> torch_signature.InputSpec:
    if spec.kind is InputKind.LITERAL and spec.target is None:
        arg: Any = torch_signature.ConstantArgument(node.name, spec.value)
    else:
        arg = _argument(node)
    return torch_signature.InputSpec(torch_signature.InputKind.USER_INPUT, arg, None)


def _output(spec: Output, nodes: Mapping[str, fx.Node]) -> torch_signature.OutputSpec:
    if spec.kind is OutputKind.LITERAL:
        if not isinstance(spec.value, _LITERALS):
            raise _unknown_object(spec.value, "returns")
        arg: Any = torch_signature.ConstantArgument("", spec.value)  # type: ignore[arg-type]
    elif spec.kind is OutputKind.TOKEN:
        arg = torch_signature.TokenArgument(spec.name)
    else:
        arg = _argument(nodes[spec.name])
    return torch_signature.OutputSpec(_OUTPUT_KINDS[spec.kind], arg, spec.target)


def _argument(node: fx.Node) -> Any:
    value = metadata.value_of(node)
    for cls, argument in (
        (torch.SymInt, torch_signature.SymIntArgument),
        (torch.SymFloat, torch_signature.SymFloatArgument),
        (torch.SymBool, torch_signature.SymBoolArgument),
    ):
        if isinstance(value, cls):
            return argument(node.name)
    return torch_signature.TensorArgument(node.name)


def _argument_names(program: Program) -> list[str]:
    """The names of the arguments that the program is called with, in order; torch makes a forward of them."""
    args, kwargs = program.signature.in_tree.children
    known = program.parameter_names
    names: list[str] = [str(key) for key in kwargs.keys]
    positional: list[str] = []
    for index in range(len(args.children)):
        name = known[index] if index < len(known) else f"arg{index}"
        positional.append(unique(name, {*names, *positional}))
    return [*positional, *names]


# ---------------------------------------------------------------------- trees


def _spec(tree: Tree, leaves: Sequence[Any], input_of: Any) -> tuple[internals.TreeSpec, list[Any]]:
    """The TreeSpec of a tree, and the leaves that torch has a place for: a dataclass's None fields have none."""
    kept: list[Any] = []
    spec = _branch(tree, iter(leaves), kept, input_of)
    return spec, kept


def _branch(tree: Tree, leaves: Iterator[Any], kept: list[Any], input_of: Any) -> internals.TreeSpec:
    if tree.kind == "leaf":
        kept.append(next(leaves))
        return internals.leaf_spec()
    cls = tree.cls or class_named(tree.kind, tree.name)
    if tree.kind == "dataclass":
        return _dataclass(tree, cls, leaves, kept, input_of)
    children = [_branch(child, leaves, kept, input_of) for child in tree.children]
    if tree.kind in ("tuple", "list"):
        return internals.branch_spec(tuple if tree.kind == "tuple" else list, None, children)
    if tree.kind == "dict" and cls in (dict, OrderedDict):
        return internals.branch_spec(cls, list(tree.keys), children)
    if tree.kind == "dict" and cls is defaultdict:
        return internals.branch_spec(cls, [None, list(tree.keys)], children)  # what its default was is not in a tree
    if tree.kind == "namedtuple" and cls is not None:
        return internals.branch_spec(internals.namedtuple_kind, cls, children)
    if tree.kind == "registered" and cls is not None and internals.registered_container(cls) is not None:
        kind = internals.namedtuple_kind if hasattr(cls, "_fields") and issubclass(cls, tuple) else cls
        return internals.branch_spec(kind, tree.context, children)
    raise _unknown_class(tree, cls)


def _dataclass(
    tree: Tree, cls: type | None, leaves: Iterator[Any], kept: list[Any], input_of: Any
) -> internals.TreeSpec:
    if cls is None or not all(f.init for f in dataclasses.fields(cls)):
        raise _unknown_class(tree, cls)
    internals.register_dataclass(cls)
    specs: dict[str, internals.TreeSpec | None] = {}
    for key, child in zip(tree.keys, tree.children, strict=True):
        inside: list[Any] = []
        spec = _branch(child, leaves, inside, input_of)
        absent = child.kind == "leaf" and _is_none(input_of(inside[0]))
        specs[str(key)] = None if absent else spec
        kept.extend([] if absent else inside)
    # What torch remembers of an instance is its own affair: ask its rule, with specs in the place of the fields.
    blank: Any = object.__new__(cls)
    for name, found in specs.items():
        object.__setattr__(blank, name, found)
    present, context = internals.flatten_rule(cls)(blank)
    return internals.branch_spec(cls, context, list(present))


def _is_none(leaf: Input | Output | Value) -> bool:
    if isinstance(leaf, Value):
        return leaf.kind == "literal" and leaf.literal is None
    literal = leaf.kind in (InputKind.LITERAL, OutputKind.LITERAL)
    return literal and leaf.target is None and leaf.value is None


def _unknown_object(value: object, verb: str) -> ConversionError:
    return ConversionError(
        format_error(
            f"The program {verb} a {type(value).__qualname__}, which torch.export's form cannot hold.",
            why="values that are not tensors are part of the graph's text there",
            fix="let the model take and return tensors, numbers, text and containers of them",
        )
    )


def _unknown_class(tree: Tree, cls: type | None) -> ConversionError:
    name = tree.name.replace(":", ".")
    if cls is None:
        return ConversionError(
            format_error(
                f"The program takes or returns a {name}, which is not imported here.",
                fix=f"import {tree.name.partition(':')[0]} before converting",
            )
        )
    return ConversionError(
        format_error(
            f"The program takes or returns a {name}, and torch's pytree does not know that class.",
            why="torch.export takes and returns only registered classes",
            fix=f"register it before capturing: torch.utils._pytree.register_pytree_node({cls.__qualname__}, …)",
        )
    )


# ---------------------------------------------------------------------- module calls


def _module_call(call: ModuleCall, present: set[str]) -> ModuleCallEntry:
    signature = call.signature
    if signature is None or not all(v.name in present for v in (*signature.inputs, *signature.outputs) if v.name):
        return ModuleCallEntry(call.path)
    return ModuleCallEntry(call.path, _call_signature(signature))


def _call_signature(signature: CallSignature) -> ModuleCallSignature:
    in_spec, inputs = _spec(signature.in_tree, signature.inputs, lambda leaf: leaf)
    out_spec, outputs = _spec(signature.out_tree, signature.outputs, lambda leaf: leaf)
    return ModuleCallSignature([_call_value(v) for v in inputs], [_call_value(v) for v in outputs], in_spec, out_spec)


def _call_value(value: Value) -> Any:
    if value.kind == "literal":
        return torch_signature.ConstantArgument("", value.literal)
    if value.kind == "size":
        return torch_signature.SymIntArgument(value.name)
    return torch_signature.TensorArgument(value.name)


# ---------------------------------------------------------------------- state


def _state(program: Program) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The tensors by name; buffers are copied, once where two names share one, and parameters are nn.Parameters."""
    parameters = {i.target for i in program.signature.inputs_of_kind(InputKind.PARAMETER)}
    buffers = {i.target for i in program.signature.inputs_of_kind(InputKind.BUFFER)}
    fixed = {i.target for i in program.signature.inputs_of_kind(InputKind.LITERAL)}
    made: dict[int, torch.Tensor] = {}

    def own(name: str, tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in made:
            if name in buffers:
                made[id(tensor)] = tensor.detach().clone()
            elif name in parameters and not isinstance(tensor, nn.Parameter):
                made[id(tensor)] = nn.Parameter(tensor, requires_grad=tensor.requires_grad)
            elif name not in parameters and isinstance(tensor, nn.Parameter):
                made[id(tensor)] = tensor.detach()  # torch puts constants where only buffers and plain tensors may be
        return made.get(id(tensor), tensor)

    state = {name: own(name, tensor) for name, tensor in program.state_dict.items()}
    constants = {name: own(name, tensor) for name, tensor in program.constants.items() if name not in fixed}
    return state, constants


# ---------------------------------------------------------------------- sizes


def _ranges(program: Program, module: fx.GraphModule, environment: Environment) -> dict[Any, Any]:
    """The range of every symbol, and of every expression that is the size of an input: torch looks those up too."""
    env = environment.env
    declared = {dim.name: dim for dim in program.dims}
    for symbol in environment.free_symbols:
        dim = declared.get(symbolic_dims.name_of(symbol))
        if dim is not None:
            internals.narrow(env, symbol, dim.low, dim.high)
    ranges: dict[Any, Any] = {symbol: env.var_to_range[symbol] for symbol in environment.free_symbols}
    for node in module.graph.nodes:
        for _, expr in _sizes(node) if node.op == "placeholder" else ():
            if expr.free_symbols and expr not in ranges:
                ranges[expr] = internals.bound_sympy(expr, env.var_to_range)
    return ranges


def _sizes(node: fx.Node) -> list[tuple[str, sympy.Expr]]:
    """A placeholder's sizes: how Python asks for one (".size()[0]", "" for an int), and its expression."""
    value = metadata.value_of(node)
    if internals.is_symbolic(value):
        return [("", internals.expr_of(value))]
    shape = value.shape if isinstance(value, torch.Tensor) else ()
    return [(f".size()[{dim}]", internals.expr_of(size)) for dim, size in enumerate(shape)]


def _declare_guards(program: Program, module: fx.GraphModule, signature: Any, environment: Environment) -> None:
    """Hands the program's constraints to torch, which prints them as Python text over L['x'].size()[0].

    Without example inputs torch checks nothing at a call, so there is nothing to hand over.
    """
    sources: dict[sympy.Symbol, str] = {}
    if program.constraints and program.example_inputs is not None:
        args, kwargs = program.example_inputs
        given = (*args, *(kwargs[str(key)] for key in program.signature.in_tree.children[1].keys))
        places = internals.leaf_spellings(dict(zip(_argument_names(program), given, strict=True)))
        users = [i for i in signature.input_specs if i.kind is torch_signature.InputKind.USER_INPUT]
        nodes = {node.name: node for node in module.graph.nodes if node.op == "placeholder"}
        asked = [
            (f"L{place}{text}", expr)
            for place, i in zip(places, users, strict=True)
            for text, expr in _sizes(nodes[i.arg.name])
        ]
        sources = _sources(asked)
    internals.declare_guards(environment.env, sources, [c.condition for c in program.constraints])


def _sources(asked: Sequence[tuple[str, sympy.Expr]]) -> dict[sympy.Symbol, str]:
    """Where each symbol is found: a size that is the symbol itself, or the solution of one that is linear in it."""
    sources = {expr: text for text, expr in reversed(asked) if isinstance(expr, sympy.Symbol)}
    for text, expr in asked:
        for symbol in expr.free_symbols if len(expr.free_symbols) == 1 else ():
            scale, offset = expr.coeff(symbol), expr.subs(symbol, 0)
            if symbol not in sources and expr == scale * symbol + offset:
                sources[symbol] = f"(({text} - ({offset})) // {scale})"
    return sources
