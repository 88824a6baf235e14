"""torch.export's ExportedProgram → Program. What differs between the two is listed in `torch_export`."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export import graph_signature as torch_signature

from ingot import torch_internals as internals
from ingot.errors import ConversionError, format_error
from ingot.interop.torch_export.values import Environment, correct_autocast, graph_modules
from ingot.interop.train_eval import FLAGS
from ingot.ir import metadata
from ingot.ir import symbolic_dims as dims_
from ingot.ir.clone import copy_graph_module
from ingot.ir.dialects import CAPTURED, CORE, FUNCTIONAL, Dialect
from ingot.ir.program import Program
from ingot.ir.pytree import LEAF, Tree, keys_of_parts, leaf_paths, name_of_class
from ingot.ir.signature import CallSignature, Input, InputKind, ModuleCall, Output, OutputKind, Signature, Value
from ingot.ir.symbolic_dims import Constraint, Dim

_STATE_KINDS = {
    torch_signature.InputKind.PARAMETER: InputKind.PARAMETER,
    torch_signature.InputKind.BUFFER: InputKind.BUFFER,
    torch_signature.InputKind.CONSTANT_TENSOR: InputKind.CONSTANT,
    torch_signature.InputKind.TOKEN: InputKind.TOKEN,
}
_ORDER = (InputKind.TOKEN, InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT)
_OUTPUT_KINDS = {
    torch_signature.OutputKind.USER_OUTPUT: OutputKind.RESULT,
    torch_signature.OutputKind.BUFFER_MUTATION: OutputKind.BUFFER_MUTATION,
    torch_signature.OutputKind.PARAMETER_MUTATION: OutputKind.PARAMETER_MUTATION,
    torch_signature.OutputKind.USER_INPUT_MUTATION: OutputKind.ARGUMENT_MUTATION,
    torch_signature.OutputKind.TOKEN: OutputKind.TOKEN,
}
_NONE_INPUT, _NONE_OUTPUT, _NONE_VALUE = Input(InputKind.LITERAL), Output(OutputKind.LITERAL), Value("literal")


def from_exported(exported: ExportedProgram) -> Program:
    """Converts torch.export's ExportedProgram to a Program. Raises ConversionError if a Program cannot express it."""
    if not isinstance(exported, ExportedProgram):
        raise ConversionError(
            format_error(
                f"from_exported takes a torch.export.ExportedProgram, not {type(exported).__name__}.",
                fix="use ingot.capture for a module or a function",
            )
        )
    module = copy_graph_module(exported.graph_module)
    environment = Environment()
    environment.move(module)
    correct_autocast(module, environment.mode)
    for inner in graph_modules(module):
        for node in inner.graph.nodes:
            _clean(node)
    entries = {entry.fqn: entry.signature for entry in exported.module_call_graph}
    root = entries[""]
    signature = _signature(exported, module, root)
    module.recompile()
    sizes = _sizes(module, signature)
    state, constants = _state(exported, signature)
    names = tuple(root.forward_arg_names or ())[: len(signature.in_tree.children[0].children)]
    constraints = _constraints(exported, signature, sizes, root.forward_arg_names or ())
    environment.env.seal(constraint.condition for constraint in constraints)
    return Program(
        graph_module=module,
        signature=signature,
        state_dict=state,
        constants=constants,
        module_calls=_module_calls(module, entries),
        dims=_dims(exported, sizes),
        constraints=constraints,
        parameter_names=names,
        example_inputs=exported.example_inputs,
        training=_is_training(module),
        dialect=_dialect(exported, module),
    )


def _clean(node: fx.Node) -> None:
    """Leaves what ours knows of a node, and names module calls as ours does."""
    metadata.strip(node)
    if node.op not in ("call_function", "get_attr"):
        return
    stack = [
        # torch's key of a call is "L__self__fc@1", or in strict mode an object's id and "@1"; its value is "fc".
        dataclasses.replace(
            frame, call=f"{frame.path}@{frame.call.rpartition('@')[2]}" if "@" in frame.call else frame.path
        )
        for frame in metadata.module_stack_of(node)
        if not frame.call.startswith("_empty_nn_module_stack")  # stands where torch lost the stack
    ]
    metadata.set_module_stack(node, stack)


# ---------------------------------------------------------------------- signature


def _signature(exported: ExportedProgram, module: fx.GraphModule, root: Any) -> Signature:
    specs = exported.graph_signature
    first = next(n for n in module.graph.nodes if n.op != "placeholder")
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
    state: list[Input] = []
    users: list[Input] = []
    for spec, node in zip(specs.input_specs, placeholders, strict=True):
        if spec.kind is torch_signature.InputKind.USER_INPUT:
            users.append(_user_input(spec.arg, node))
        elif spec.kind in _STATE_KINDS:
            persistent = spec.persistent is not False
            state.append(Input(_STATE_KINDS[spec.kind], node.name, spec.target, persistent=persistent))
        else:
            raise _custom_object(spec.arg)
    # run_decompositions puts buffers that it found to be constants where it found them: among the others.
    state.sort(key=lambda i: _ORDER.index(i.kind))
    nodes = {node.name: node for node in placeholders}
    for i in (*state, *users):
        if i.name:
            first.prepend(nodes[i.name])
    outputs = [_output(spec) for spec in specs.output_specs]
    _set_outputs(module.graph, outputs)
    results = [o for o in outputs if o.kind in (OutputKind.RESULT, OutputKind.LITERAL)]
    mutations = [o for o in outputs if o.kind not in (OutputKind.RESULT, OutputKind.LITERAL)]
    inputs, in_tree = _build_tree(root.in_spec, users, _NONE_INPUT)
    returned, out_tree = _build_tree(root.out_spec, results, _NONE_OUTPUT)
    return Signature((*state, *inputs), (*mutations, *returned), in_tree, out_tree)


def _user_input(arg: Any, node: fx.Node) -> Input:
    if isinstance(arg, torch_signature.ConstantArgument):
        _bake(node, arg.value)
        return Input(InputKind.LITERAL, value=arg.value)
    if isinstance(arg, torch_signature.TensorArgument | torch_signature.SymIntArgument):
        return Input(InputKind.ARGUMENT, node.name)
    raise _custom_object(arg)


def _bake(node: fx.Node, value: Any) -> None:
    """Removes the placeholder of a constant. torch leaves it unused as a rule, but does not promise to."""
    for user in list(node.users):
        user.args = fx.map_arg(user.args, lambda n: value if n is node else n)
        user.kwargs = fx.map_arg(user.kwargs, lambda n: value if n is node else n)
    node.graph.erase_node(node)


def _output(spec: torch_signature.OutputSpec) -> Output:
    kind = _OUTPUT_KINDS.get(spec.kind)
    if kind is None:
        raise ConversionError(
            format_error(
                f"The program returns gradients ({spec.kind.name} {spec.arg.name}); a Program holds only a forward.",
                fix="export the model's forward without joint loss",
            )
        )
    if isinstance(spec.arg, torch_signature.ConstantArgument):
        return Output(OutputKind.LITERAL, value=spec.arg.value)
    if isinstance(spec.arg, torch_signature.CustomObjArgument):
        raise _custom_object(spec.arg)
    return Output(kind, spec.arg.name, spec.target)


def _set_outputs(graph: fx.Graph, outputs: Sequence[Output]) -> None:
    """Makes the graph return the nodes of its outputs and no constants."""
    node = graph.output_node()
    given: Any = node.args[0]
    kept = tuple(n for n, o in zip(given, outputs, strict=True) if o.kind is not OutputKind.LITERAL)
    node.args = (kept,)
    metadata.set_value(node, tuple(metadata.value_of(n) for n in kept))


def _custom_object(arg: Any) -> ConversionError:
    return ConversionError(
        format_error(
            f"{arg.name} is a {type(arg).__name__}, and a Program takes only tensors, ints and literals.",
            why=getattr(arg, "class_fqn", None),
            fix="pass the object's tensors themselves",
        )
    )


# ---------------------------------------------------------------------- trees


def _build_tree(spec: internals.TreeSpec, leaves: Sequence[Any], none: Any) -> tuple[list[Any], Tree]:
    """The tree of a TreeSpec, and the leaves with `none` where torch leaves a dataclass's None fields out."""
    out: list[Any] = []
    rest = iter(leaves)
    shape = _tree(spec, rest, out, none)
    assert next(rest, out) is out, "more leaves than the spec has slots"
    return out, shape


def _tree(spec: internals.TreeSpec, leaves: Iterator[Any], out: list[Any], none: Any) -> Tree:
    parts = internals.branch_parts(spec)
    if parts is None:
        out.append(next(leaves))
        return LEAF
    cls, context, specs = parts
    if isinstance(cls, type) and internals.is_registered_here(cls):
        return _dataclass_tree(cls, context, specs, leaves, out, none)
    children = tuple(_tree(child, leaves, out, none) for child in specs)
    if cls in (tuple, list):
        return Tree(cls.__name__, cls.__name__, tuple(range(len(children))), children, None, cls)
    if cls in (dict, OrderedDict, defaultdict):
        keys = context[1] if cls is defaultdict else context
        return Tree("dict", name_of_class(cls), tuple(keys), children, None, cls)
    if cls is internals.namedtuple_kind:
        cls = context
        if internals.registered_container(cls) is None:
            return Tree("namedtuple", name_of_class(cls), tuple(cls._fields), children, None, cls)
    keys = keys_of_parts(cls, context, len(children))
    return Tree("registered", name_of_class(cls), tuple(keys), children, context, cls)


def _dataclass_tree(
    cls: type, context: Any, specs: Sequence[internals.TreeSpec], leaves: Iterator[Any], out: list[Any], none: Any
) -> Tree:
    present, _ = context
    by_name = dict(zip(present, specs, strict=True))
    names = tuple(f.name for f in dataclasses.fields(cls))
    children: list[Tree] = []
    for name in names:
        if name in by_name:
            children.append(_tree(by_name[name], leaves, out, none))
        else:
            out.append(none)
            children.append(LEAF)
    return Tree("dataclass", name_of_class(cls), names, tuple(children), None, cls)


# ---------------------------------------------------------------------- module calls


def _module_calls(module: fx.GraphModule, entries: Mapping[str, Any]) -> tuple[ModuleCall, ...]:
    types = {
        frame.call: frame.type
        for inner in graph_modules(module)
        for node in inner.graph.nodes
        for frame in metadata.module_stack_of(node)
    }
    # torch lists the calls of the outermost graph alone; those inside regions are known by their nodes.
    signatures = {**entries, **{call: None for call in types if call not in entries}}
    return tuple(
        ModuleCall(fqn, fqn.partition("@")[0], types.get(fqn, ""), _call_signature(signature) if fqn else None)
        for fqn, signature in signatures.items()
    )


def _call_signature(signature: Any) -> CallSignature | None:
    if signature is None:
        return None
    inputs, in_tree = _build_tree(signature.in_spec, [_value(arg) for arg in signature.inputs], _NONE_VALUE)
    outputs, out_tree = _build_tree(signature.out_spec, [_value(arg) for arg in signature.outputs], _NONE_VALUE)
    return CallSignature(tuple(inputs), tuple(outputs), in_tree, out_tree)


def _value(arg: Any) -> Value:
    if isinstance(arg, torch_signature.ConstantArgument):
        return Value("literal", literal=arg.value)
    if isinstance(arg, torch_signature.TensorArgument):
        return Value("tensor", arg.name)
    if isinstance(arg, torch_signature.CustomObjArgument | torch_signature.TokenArgument):
        raise _custom_object(arg)
    return Value("size", arg.name)


# ---------------------------------------------------------------------- state


def _state(exported: ExportedProgram, signature: Signature) -> tuple[dict[str, Any], dict[str, Any]]:
    """The tensors by name; buffers are copied, once where two names share one."""
    buffers = {i.target for i in signature.inputs_of_kind(InputKind.BUFFER)}
    copies: dict[int, torch.Tensor] = {}

    def own(name: str, tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in copies and name in buffers:
            copies[id(tensor)] = tensor.detach().clone()
        return copies.get(id(tensor), tensor)

    state = {name: own(name, tensor) for name, tensor in exported.state_dict.items()}
    constants = {name: own(name, t) for name, t in exported.constants.items() if isinstance(t, torch.Tensor)}
    return state, constants


# ---------------------------------------------------------------------- sizes

Sizes = dict[str, list[tuple[str, Any]]]


def _sizes(module: fx.GraphModule, signature: Signature) -> Sizes:
    """For each argument its symbolic sizes: how Python asks for one (".size()[0]", "" for an int), and what it is."""
    values = {n.name: metadata.value_of(n) for n in module.graph.nodes if n.op == "placeholder"}
    found: Sizes = {}
    for i in signature.inputs_of_kind(InputKind.ARGUMENT):
        value = values[i.name]
        asked = (
            [("", value)]
            if not isinstance(value, torch.Tensor)
            else [(f".size()[{dim}]", size) for dim, size in enumerate(value.shape)]
        )
        found[i.name] = [(text, internals.expr_of(size)) for text, size in asked]
    return found


def _dims(exported: ExportedProgram, sizes: Sizes) -> tuple[Dim, ...]:
    symbols = {s: None for sized in sizes.values() for _, expr in sized for s in _symbols(expr)}
    dims: list[Dim] = []
    for symbol in symbols:
        found = exported.range_constraints.get(symbol)
        low, high = (0, None) if found is None else internals.bounds(found)
        dims.append(Dim(dims_.name_of(symbol), low, high))
    return tuple(dims)


def _symbols(expr: sympy.Basic) -> list[sympy.Symbol]:
    return sorted(expr.free_symbols, key=lambda s: str(s.name))


def _constraints(
    exported: ExportedProgram, signature: Signature, sizes: Sizes, names: Sequence[str]
) -> tuple[Constraint, ...]:
    """What torch checks at each call beyond ranges. It keeps that as Python text over L['x'].size()[0]."""
    known: dict[str, sympy.Basic] = {}
    leaves = zip(signature.user_inputs, leaf_paths(signature.in_tree), strict=True)
    for position, (i, path) in enumerate(leaves):
        if i.kind is InputKind.ARGUMENT:
            for place in _places(path, position, names):
                known.update({f"{place}{text}": expr for text, expr in sizes[i.name]})
    constraints: list[Constraint] = []
    for text in internals.guards_of(exported):
        condition = _condition(text, known)
        if condition != sympy.true:
            constraints.append(Constraint(condition, "torch.export's guard"))
    return tuple(constraints)


def _places(path: tuple[str | int, ...], position: int, names: Sequence[str]) -> list[str]:
    """The ways in which torch may spell an argument: by name, with an index for *args, or in strict mode by number."""
    side, key, *rest = path
    name = names[key] if side == 0 and isinstance(key, int) and key < len(names) else str(key)
    # A field of a dataclass is an attribute, a key of a dict is an item; only one of the two spellings occurs.
    tails = {
        "".join(f"[{step!r}]" for step in rest),
        "".join(f".{step}" if isinstance(step, str) else f"[{step}]" for step in rest),
    }
    starts = [f"L['{name}']"]
    repeated = re.fullmatch(r"(.+)_(\d+)", name)
    if repeated is not None:
        starts.append(f"L['{repeated[1]}'][{repeated[2]}]")
    return [f"L['flat_args'][{position}]", *(f"{start}{tail}" for start in starts for tail in sorted(tails))]


# Python's operators, as torch prints guards with them, in the words of dims.OPERATIONS.
_BINARY: dict[type, str] = {
    ast.Add: "add",
    ast.Mult: "mul",
    ast.FloorDiv: "floordiv",
    ast.Mod: "mod",
    ast.Div: "truediv",
    ast.Pow: "pow",
    ast.LShift: "lshift",
    ast.RShift: "rshift",
}
_COMPARE: dict[type, str] = {
    ast.Eq: "eq",
    ast.NotEq: "ne",
    ast.Lt: "lt",
    ast.LtE: "le",
    ast.Gt: "gt",
    ast.GtE: "ge",
}
_CALLS = {
    "max": "max",
    "min": "min",
    "float": "float",
    "round": "round",
    "math.ceil": "ceil",
    "math.floor": "floor",
    "math.trunc": "trunc",
    "math.sqrt": "sqrt",
    "math.log2": "log2",
}


def _condition(text: str, known: Mapping[str, sympy.Basic]) -> sympy.Basic:
    symbols: dict[str, sympy.Basic] = dict(known)

    def read(node: ast.expr) -> Any:
        spelled = ast.unparse(node)
        if spelled in known:
            return spelled
        match node:
            case ast.Constant(value=bool() | int() | float()):
                return node.value
            case ast.BinOp(op=ast.Sub()):
                return ["add", read(node.left), ["mul", -1, read(node.right)]]
            case ast.BinOp() if type(node.op) in _BINARY:
                return [_BINARY[type(node.op)], read(node.left), read(node.right)]
            case ast.UnaryOp(op=ast.USub()):
                return ["mul", -1, read(node.operand)]
            case ast.UnaryOp(op=ast.Not()):
                return ["not", read(node.operand)]
            case ast.BoolOp():
                return ["and" if isinstance(node.op, ast.And) else "or", *map(read, node.values)]
            case ast.Compare(ops=[op], comparators=[right]) if type(op) in _COMPARE:
                return [_COMPARE[type(op)], read(node.left), read(right)]
            case ast.IfExp():
                return ["where", read(node.test), read(node.body), read(node.orelse)]
            case ast.Call() if ast.unparse(node.func) in _CALLS:
                return [_CALLS[ast.unparse(node.func)], *map(read, node.args)]
        raise ConversionError(
            format_error(
                f"torch.export checks a condition that ours cannot express: {spelled}.",
                why=f"the whole condition is {text}",
                fix="export with narrower dynamic shapes, so that torch need not check it",
            )
        )

    return dims_.from_json(read(ast.parse(text.strip(), mode="eval").body), symbols)


# ---------------------------------------------------------------------- what kind of program it is


def _is_training(module: fx.GraphModule) -> bool:
    """Whether an operator of the graph has its training flag set; an ExportedProgram does not say."""
    for inner in graph_modules(module):
        for node in inner.graph.nodes:
            index = FLAGS.get(node.target)
            if index is not None and index < len(node.args) and node.args[index] is True:
                return True
    return False


def _dialect(exported: ExportedProgram, module: fx.GraphModule) -> Dialect:
    """The strictest dialect that no node complains of.

    Before run_decompositions it is CAPTURED whatever the nodes say: there aten.batch_norm writes to its buffers, and
    its schema does not say.
    """
    if exported.dialect == "TRAINING":
        return CAPTURED
    nodes = [node for inner in graph_modules(module) for node in inner.graph.nodes]
    for dialect in (CORE, FUNCTIONAL):
        if all(dialect.violation(node) is None for node in nodes):
            return dialect
    return CAPTURED
