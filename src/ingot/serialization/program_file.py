"""A Program as one file, and back.

    m.ingot
    ├── manifest.json          who wrote it, and the hash of every other member
    ├── graph.json             graph, signature, trees, module calls, dims, constraints, history
    ├── weights.safetensors    parameters, buffers and constants; tied ones once
    └── example.safetensors    the tensors of the example arguments, unless they are large

The same program produces the same bytes. A file is data: nothing in it is unpickled, evaluated or imported, and
everything is checked before it is used. What differs from run to run (how long a pass took) is left out.
"""

from __future__ import annotations

import dataclasses
import sys
from os import PathLike
from typing import Any

import torch
from torch import fx

from ingot import torch_internals as internals
from ingot.errors import DamagedFile, SaveError, UnsupportedSchema, VerifyError, format_error
from ingot.ir import dialects, metadata, pytree
from ingot.ir.program import PassRecord, Program
from ingot.ir.pytree import Tree
from ingot.ir.signature import CallSignature, Input, InputKind, ModuleCall, Output, OutputKind, Signature, Value
from ingot.ir.symbolic_dims import Constraint, Dim
from ingot.serialization.graph import GraphReader, GraphWriter
from ingot.serialization.tensors import TensorWriter, read_tensors
from ingot.serialization.values import Cursor, Json, Malformed, Unwritable, read_plain, write_plain
from ingot_runtime import Container, Member, open_container, write_container
from ingot_runtime.container import canonical_json

PROGRAM_SCHEMA = 1
GRAPH, WEIGHTS, EXAMPLE = "graph.json", "weights.safetensors", "example.safetensors"
EXAMPLE_LIMIT = 64 << 20  # bytes; larger example arguments are dropped

_TREE_KINDS = {kind: kind for kind in ("tuple", "list", "dict", "namedtuple", "dataclass", "registered", "object")}
# Every other class is looked up when it is needed: it may be imported between now and then.
_BUILT_IN = {
    ("tuple", "tuple"): tuple,
    ("tuple", "torch.Size"): torch.Size,
    ("list", "list"): list,
    ("dict", "dict"): dict,
}
_INPUT_KINDS = {kind.value: kind for kind in InputKind}
_OUTPUT_KINDS = {kind.value: kind for kind in OutputKind}
_RECOPY = "copy or download the file again, or write it again with Ingot"


def save(program: Program, path: str | PathLike[str]) -> None:
    """Writes the program to one file, atomically. Raises SaveError for what a file cannot hold, and writes nothing."""
    with internals.real_tensors():  # also where the caller has a fake mode on; the tensors are read as they are written
        members, fields = pack(program)
        write_container(path, members, {"kind": "program", **fields})


def pack(program: Program) -> tuple[dict[str, Member], dict[str, Json]]:
    """The members that a file has for a program, and what its manifest says about its writer. Raises SaveError."""
    members: dict[str, Member] = {}
    weights, example = TensorWriter(), _example(program)
    graphs = GraphWriter()
    document: dict[str, Json] = {
        "program_schema": PROGRAM_SCHEMA,
        "graph": graphs.write(program.graph_module),
        "signature": _write_signature(program.signature),
        "module_calls": [_write_call(call) for call in program.module_calls],
        "dims": [_fields_of(dim) for dim in program.dims],
        "constraints": [_write_constraint(constraint, graphs) for constraint in program.constraints],
        "parameter_names": list(program.parameter_names),
        "training": program.training,
        "dialect": [program.dialect.name, *program.dialect.kept],
        "history": [_write_step(step) for step in program.history],
        "state_dict": [[name, _add(weights, name, tensor)] for name, tensor in program.state_dict.items()],
        "constants": [[name, _add(weights, name, tensor)] for name, tensor in program.constants.items()],
        "example": None,
        **graphs.tables(),
        "symbols": _or_save_error(lambda: graphs.values.symbols(), "the sizes of the program"),
    }
    document["tensors"], members[WEIGHTS] = _or_save_error(weights.finish, "the parameters, buffers and constants")
    if example is not None:
        arguments, tensors = example
        records, members[EXAMPLE] = _or_save_error(tensors.finish, "the example arguments")
        document["example"] = {"arguments": arguments, "tensors": records}
    try:
        members[GRAPH] = canonical_json.encode(document)
    except (ValueError, RecursionError) as failure:  # a lone surrogate in a text, a number of 4,300 digits
        raise SaveError(format_error(f"The program holds something that JSON cannot: {failure}.")) from None
    # The package is loaded, or this module would not be; importing it here would make the layers a circle.
    producer = {"ingot": vars(sys.modules["ingot"]).get("__version__", "unknown"), "torch": torch.__version__}
    return members, {"producer": producer}


def load(path: str | PathLike[str]) -> Program:
    """The program that a file holds.

    Raises a FileError for what is wrong with the file, or where it cannot be opened. Weights are not copied: they
    are pages of the file, and writing to one makes it private to this process.
    """
    with open_container(path) as container:
        return read(container)


def read(container: Container, *, custom_operators: bool = True) -> Program:
    """The program of an open file, which must be writable, verified. Raises a FileError.

    Without `custom_operators` it may call operators of torch and Ingot only, whatever else this process registered.
    """
    try:
        with internals.real_tensors():
            program = _read_program(_decode(container), container, custom_operators)
            _verify(program)
            return program
    except (Malformed, VerifyError) as failure:
        problem = str(failure)
    except RecursionError:
        problem = "it is nested too deeply"
    raise DamagedFile("the program is not what Ingot writes", problem, _RECOPY, path=container.path, member=GRAPH)


# ---------------------------------------------------------------------- writing


def _or_save_error(write: Any, where: str) -> Any:
    try:
        return write()
    except Unwritable as failure:
        raise SaveError(
            format_error(
                f"A file cannot hold {failure}.",
                where=where,
                fix="use plain values: None, numbers, text, dtypes, devices, and lists, tuples and dicts of them",
            )
        ) from None


def _fields_of(record: Any) -> Json:
    return {f.name: getattr(record, f.name) for f in dataclasses.fields(record)}


def _add(writer: TensorWriter, name: str, tensor: torch.Tensor) -> int:
    try:
        return writer.add(name, tensor)
    except Unwritable as failure:
        raise SaveError(
            format_error(
                f"A file cannot hold {failure}.",
                where=f"the tensor {name}",
                fix="give the model a plain tensor with values in its place, and capture it again",
            )
        ) from None


def _write_signature(signature: Signature) -> Json:
    return {
        "inputs": [
            _fields_of(i) | {"kind": i.kind.value, "value": _literal(i.value, f"the argument {i.name or n}")}
            for n, i in enumerate(signature.inputs)
        ],
        "outputs": [
            _fields_of(o) | {"kind": o.kind.value, "value": _literal(o.value, f"the result {o.name or n}")}
            for n, o in enumerate(signature.outputs)
        ],
        "in_tree": _write_tree(signature.in_tree, "the arguments"),
        "out_tree": _write_tree(signature.out_tree, "the result"),
    }


def _literal(value: Any, where: str) -> Json:
    return _or_save_error(lambda: write_plain(value), where)


def _write_tree(node: Tree, where: str) -> Json:
    if node.kind == "leaf":
        return None
    for key in node.keys:
        if type(key) not in (str, int, bool):
            raise SaveError(format_error(f"A file cannot hold a dict key that is a {type(key).__name__}.", where=where))
    context = _or_save_error(
        lambda: write_plain(node.context), f"what the class {node.name} is rebuilt from in {where}"
    )
    children = [_write_tree(child, where) for child in node.children]
    return {"kind": node.kind, "name": node.name, "keys": list(node.keys), "children": children, "context": context}


def _write_call(call: ModuleCall) -> Json:
    signature = call.signature
    written = None
    if signature is not None:
        where = f"the call of {call.path}"
        written = {
            "inputs": [_write_value(value, where) for value in signature.inputs],
            "outputs": [_write_value(value, where) for value in signature.outputs],
            "in_tree": _write_tree(signature.in_tree, where),
            "out_tree": _write_tree(signature.out_tree, where),
        }
    return _fields_of(call) | {"signature": written}


def _write_value(value: Value, where: str) -> Json:
    return _fields_of(value) | {"literal": _literal(value.literal, where)}


def _write_constraint(constraint: Constraint, graphs: GraphWriter) -> Json:
    condition = _or_save_error(lambda: graphs.values.expression(constraint.condition), f"the constraint {constraint}")
    return {"condition": condition, "source": constraint.source}


def _write_step(step: PassRecord) -> Json:
    def option(value: Any) -> Json:
        try:
            return write_plain(value)
        except Unwritable:
            return f"<{type(value).__qualname__}>"  # for people to read; a repr may hold an address

    options = [[name, option(value)] for name, value in step.options]
    return {
        "name": step.name,
        "changes": step.changes,
        "nodes_before": step.nodes_before,
        "nodes_after": step.nodes_after,
        "options": options,
    }


def _example(program: Program) -> tuple[list[int], TensorWriter] | None:
    """Which tensor each argument is in the example, and the tensors, where they can be kept."""
    if program.example_inputs is None:
        return None
    leaves, shape = pytree.flatten(program.example_inputs)
    if shape != program.signature.in_tree:
        return None
    writer = TensorWriter()
    pairs = zip(leaves, program.signature.user_inputs, strict=True)
    try:
        arguments = [writer.add(spec.name, leaf) for leaf, spec in pairs if spec.kind is InputKind.ARGUMENT]
    except Unwritable:
        return None
    return (arguments, writer) if writer.size <= EXAMPLE_LIMIT else None


# ---------------------------------------------------------------------- reading


def _read_program(cursor: Cursor, container: Container, custom_operators: bool) -> Program:
    _check_schema(cursor, container.path)
    (
        _, graph, signature_at, calls, dims, constraints, names, training, dialect, history,
        state, constants_at, example, sources, stacks, symbols, tensors_at,
    ) = cursor.fields(
        "program_schema", "graph", "signature", "module_calls", "dims", "constraints", "parameter_names", "training",
        "dialect", "history", "state_dict", "constants", "example", "sources", "stacks", "symbols", "tensors",
    )  # fmt: skip
    graphs = GraphReader(symbols, sources, stacks, container.path, custom=custom_operators)
    module = graphs.read(graph)
    signature = _read_signature(signature_at)
    tensors = read_tensors(tensors_at, container.read(WEIGHTS), container.path, WEIGHTS)
    state_dict, constants = _read_state(state, tensors), _read_state(constants_at, tensors)
    _check_signature(signature_at, signature, module, {**constants, **state_dict})
    conditions = tuple(_read_constraint(constraint, graphs) for constraint in constraints.items())
    graphs.values.env.seal(constraint.condition for constraint in conditions)
    return Program(
        graph_module=module,
        signature=signature,
        state_dict=state_dict,
        constants=constants,
        module_calls=tuple(_read_call(call) for call in calls.items()),
        dims=tuple(_read_dim(dim) for dim in dims.items()),
        constraints=conditions,
        parameter_names=tuple(name.text() for name in names.items()),
        example_inputs=_read_example(example, signature, constants, container),
        training=training.boolean(),
        dialect=_read_dialect(dialect),
        history=tuple(_read_step(step) for step in history.items()),
    )


def _read_dialect(cursor: Cursor) -> dialects.Dialect:
    items = cursor.items()
    if not items:
        cursor.wrong("a dialect")
    named = items[0].one_of(dialects.BY_NAME, "a dialect")
    kept = [item.text() for item in items[1:]]
    return dialects.core(kept) if named is dialects.CORE and kept else named


def _verify(program: Program) -> None:
    """Everything that reads a program, the compiler among them, believes what verify() checks."""
    try:
        program.verify()
    except (VerifyError, RecursionError):
        raise
    except Exception as failure:  # running a node on fakes of junk raises whatever torch and sympy like
        raise Malformed(f"it cannot be verified ({type(failure).__name__}: {str(failure)[:200]})") from failure


def _decode(container: Container) -> Cursor:
    try:
        return Cursor(canonical_json.decode(bytes(container.read(GRAPH))))
    except ValueError as failure:
        raise Malformed(f"it is not JSON: {failure}") from None


def _check_schema(cursor: Cursor, path: str) -> None:
    schema = cursor.value.get("program_schema") if isinstance(cursor.value, dict) else None
    if type(schema) is not int or schema < 1:
        cursor.wrong("a program with a schema")
    if schema != PROGRAM_SCHEMA:
        newer = schema > PROGRAM_SCHEMA
        raise UnsupportedSchema(
            f"the program is of schema {schema}, this release reads schema {PROGRAM_SCHEMA}",
            why=f"it was written by {'a newer' if newer else 'an older'} release of Ingot",
            fix="update Ingot" if newer else "write the file again with this release",
            path=path,
            member=GRAPH,
        )


def _read_signature(cursor: Cursor) -> Signature:
    inputs, outputs, in_tree, out_tree = cursor.fields("inputs", "outputs", "in_tree", "out_tree")
    return Signature(
        tuple(_read_input(item) for item in inputs.items()),
        tuple(_read_output(item) for item in outputs.items()),
        _read_tree(in_tree),
        _read_tree(out_tree),
    )


def _read_input(cursor: Cursor) -> Input:
    kind, name, target, value, persistent = cursor.fields("kind", "name", "target", "value", "persistent")
    return Input(
        kind.one_of(_INPUT_KINDS, "a kind of input"),
        name.text(),
        target.optional(Cursor.text),
        read_plain(value),
        persistent.boolean(),
    )


def _read_output(cursor: Cursor) -> Output:
    kind, name, target, value = cursor.fields("kind", "name", "target", "value")
    read = kind.one_of(_OUTPUT_KINDS, "a kind of output")
    return Output(read, name.text(), target.optional(Cursor.text), read_plain(value))


def _read_tree(cursor: Cursor) -> Tree:
    if cursor.value is None:
        return pytree.LEAF
    kind, name, keys_at, children_at, context = cursor.fields("kind", "name", "keys", "children", "context")
    keys = [key.value if isinstance(key.value, str | int) else key.wrong("a key") for key in keys_at.items()]
    children = tuple(_read_tree(child) for child in children_at.items(len(keys)))
    if len(set(keys)) != len(keys):
        keys_at.wrong("keys that are there once")
    read, named = kind.one_of(_TREE_KINDS, "a kind of container"), name.text()
    return Tree(read, named, tuple(keys), children, read_plain(context), _BUILT_IN.get((read, named)))


def _read_call(cursor: Cursor) -> ModuleCall:
    path, module, kind, signature = cursor.fields("path", "module", "type", "signature")
    return ModuleCall(path.text(), module.text(), kind.text(), signature.optional(_read_call_signature))


def _read_call_signature(cursor: Cursor) -> CallSignature:
    inputs, outputs, in_tree, out_tree = cursor.fields("inputs", "outputs", "in_tree", "out_tree")
    values = [tuple(_read_value(item) for item in side.items()) for side in (inputs, outputs)]
    return CallSignature(values[0], values[1], _read_tree(in_tree), _read_tree(out_tree))


def _read_value(cursor: Cursor) -> Value:
    kind, name, literal = cursor.fields("kind", "name", "literal")
    return Value(kind.text(), name.text(), read_plain(literal))


def _read_dim(cursor: Cursor) -> Dim:
    name, low, high, auto = cursor.fields("name", "low", "high", "auto")
    return Dim(name.text(), low.integer(0), high.optional(lambda c: c.integer(0)), auto.boolean())


def _read_constraint(cursor: Cursor, graphs: GraphReader) -> Constraint:
    condition, source = cursor.fields("condition", "source")
    return Constraint(graphs.values.expression(condition), source.text())


def _read_step(cursor: Cursor) -> PassRecord:
    name, changes, before, after, options_at = cursor.fields(
        "name", "changes", "nodes_before", "nodes_after", "options"
    )
    pairs = [option.items(2) for option in options_at.items()]
    options = tuple((key.text(), read_plain(value)) for key, value in pairs)
    return PassRecord(name.text(), changes.integer(), 0.0, before.integer(), after.integer(), options)


def _read_state(cursor: Cursor, tensors: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    pairs = [pair.items(2) for pair in cursor.items()]
    state = {name.text(): tensors[index.integer(0, len(tensors) - 1)] for name, index in pairs}
    return state if len(state) == len(pairs) else cursor.wrong("names that are there once")


def _check_signature(
    cursor: Cursor, signature: Signature, module: fx.GraphModule, state: dict[str, torch.Tensor]
) -> None:
    """The graph, the signature, the trees and the state must be of one program; verify() looks closer."""
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    if [i.name for i in signature.placeholders] != [node.name for node in placeholders]:
        cursor.wrong("a signature for the arguments of the graph")
    returned = next(iter(reversed(module.graph.nodes))).args[0]
    if not isinstance(returned, tuple) or len(returned) != len(signature.graph_outputs):
        cursor.wrong("a signature for what the graph returns")
    sides = signature.in_tree.children
    if [side.kind for side in sides] != ["tuple", "dict"] or not all(isinstance(key, str) for key in sides[1].keys):
        cursor.wrong("a signature with positional and keyword arguments")
    if signature.in_tree.leaf_count != len(signature.user_inputs):
        cursor.wrong("a signature with a place for every argument")
    if signature.out_tree.leaf_count != len(signature.user_outputs):
        cursor.wrong("a signature with a place for every result")
    for spec in signature.inputs:
        needed = spec in signature.state_inputs
        if (needed or (spec.kind is InputKind.LITERAL and spec.target is not None)) and spec.target not in state:
            cursor.wrong(f"a signature whose tensors are there: {spec.target!r} is not")
    for spec, node in zip(signature.placeholders, placeholders, strict=True):
        value = metadata.value_of(node)
        if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT):
            tensor = state[str(spec.target)]
            if not isinstance(value, torch.Tensor) or (value.dtype, value.shape) != (tensor.dtype, tensor.shape):
                cursor.wrong(f"a signature whose tensors fit: {spec.target!r} is not what the graph takes")
        elif spec.kind is InputKind.ARGUMENT and not isinstance(value, torch.Tensor):
            cursor.wrong(f"a signature whose arguments are tensors: {spec.name!r} is none")
    known = {node.name for node in placeholders} | state.keys()
    for output in signature.outputs:
        if output.target is not None and output.target not in known:
            cursor.wrong(f"a signature whose mutations have a target: {output.target!r} is none")


def _read_example(
    cursor: Cursor, signature: Signature, constants: dict[str, torch.Tensor], container: Container
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    if cursor.value is None:
        return None
    arguments_at, tensors_at = cursor.fields("arguments", "tensors")
    tensors = read_tensors(tensors_at, container.read(EXAMPLE), container.path, EXAMPLE)
    count = len(signature.inputs_of_kind(InputKind.ARGUMENT))
    given = iter([tensors[index.integer(0, len(tensors) - 1)] for index in arguments_at.items(count)])
    if not _rebuilds_quietly(signature.in_tree):
        return None
    leaves = [
        next(given)
        if spec.kind is InputKind.ARGUMENT
        else (spec.value if spec.target is None else constants[spec.target])
        for spec in signature.user_inputs
    ]
    try:
        args, kwargs = pytree.unflatten(leaves, signature.in_tree)
    except Exception:  # the class of an argument is not what it was when the file was written
        return None
    return args, kwargs


def _rebuilds_quietly(node: Tree) -> bool:
    """Whether a value can be rebuilt without code of a class that only the file has chosen."""
    if node.kind in ("dataclass", "registered", "object"):
        cls = pytree.class_named(node.kind, node.name)
        if cls is not None and internals.registered_container(cls) is None and hasattr(cls, "__post_init__"):
            return False
    return all(_rebuilds_quietly(child) for child in node.children)
