"""Checks that a Program is what everything that reads one takes it to be.

    graph       in each graph names are unique, placeholders come first, one output comes last, and every argument is a
                node of the same graph that comes earlier
    subgraphs   every get_attr names a GraphModule that its graph owns
    targets     every call is of an operator or of a function on sizes
    inputs      the placeholders are the signature's, in its order: parameters, buffers, constants, arguments
    outputs     the graph returns what the signature says, mutations before results, and what is written exists
    trees       the trees of the user's arguments and result have as many leaves as the signature has entries
    state       every parameter, buffer and constant is there, with the dtype and shape of its placeholder
    values      every node that computes something knows its value
    schema      the arguments of an operator are such as its schema declares
    dialect     no node stands where the program's dialect does not allow it; no marker is left
    calls       module calls have names of their own, and their arguments and results exist
    dims        dims have names of their own and ranges that are not empty; nothing else sizes an argument
    fake-run    each node, run on fakes of its arguments' values, gives the dtype, device and shape that it claims

They are checked in this order, and the first that does not hold is raised as a VerifyError. Strides are not a
claim: kernels choose them. Graphs inside graphs (branches, loops, regions) are held to the same.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import sympy
import torch
from torch import fx

from ingot import torch_internals as internals
from ingot.analysis.fake_run import find_failure, symbols_in
from ingot.analysis.schema_check import find_mismatch
from ingot.errors import VerifyError, format_error
from ingot.ir import metadata, symbolic_dims
from ingot.ir.printer import describe_value, neighbourhood, operator_name
from ingot.ir.signature import MUTATION_KINDS, STATE_KINDS, Input, InputKind, Output, OutputKind

if TYPE_CHECKING:
    from ingot.ir.program import Program


class Problem(NamedTuple):
    """One broken invariant: what is wrong, at which node if at one, and why."""

    what: str
    node: fx.Node | None = None
    why: str | None = None


Check = Callable[["Program"], Iterator[Problem]]
_CHECKS: dict[str, Check] = {}


def verify(program: Program, *, fake_run: bool | Collection[fx.Node] = True) -> None:
    """Raises VerifyError if the program breaks an invariant.

    `fake_run` False leaves out the last and longest check; nodes in its place are all that it runs.
    """
    only = fake_run if not isinstance(fake_run, bool) else None if fake_run else ()
    for name, check in _CHECKS.items():
        for problem in _run_on_fakes(program, only) if name == "fake-run" else check(program):
            raise VerifyError(_message(program, name, problem))


def _message(program: Program, check: str, problem: Problem) -> str:
    changed = next((step.name for step in reversed(program.history) if step.changes), None)
    if changed is not None:
        fix = f"the program was changed last by {changed}; look there, or report it"
    else:
        fix = "look at what changed the program since it was captured; if nothing did, report it with the model"
    node = problem.node
    text = format_error(
        problem.what, where=metadata.where(node) if node is not None else None, why=problem.why, fix=fix
    )
    around = f"\n\n{neighbourhood(node)}" if node is not None else ""
    return f"{text}\n  failed check: {check}{around}"


def checks(name: str) -> Callable[[Check], Check]:
    """Registers a check: a function that yields the problems it sees."""

    def register(check: Check) -> Check:
        assert name not in _CHECKS
        _CHECKS[name] = check
        return check

    return register


def graphs_in(module: fx.GraphModule) -> Iterator[fx.GraphModule]:
    """A GraphModule, and the graphs that it and they use."""
    yield module
    for target in dict.fromkeys(str(n.target) for n in module.graph.nodes if n.op == "get_attr"):
        inner = getattr(module, target, None)
        if isinstance(inner, fx.GraphModule):
            yield from graphs_in(inner)


def _nodes(program: Program) -> Iterator[fx.Node]:
    for module in graphs_in(program.graph_module):
        yield from module.graph.nodes


# ---------------------------------------------------------------------- the graph


@checks("graph")
def _check_graph(program: Program) -> Iterator[Problem]:
    for module in graphs_in(program.graph_module):
        nodes = list(module.graph.nodes)
        yield from _check_order(nodes)
        seen: set[fx.Node] = set()
        names: set[str] = set()
        for node in nodes:
            if node.name in names:
                yield Problem(f"Two nodes are called {node.name}.", node)
            for argument in node.all_input_nodes:
                if argument.graph is not module.graph:
                    yield Problem(f"{node.name} uses {argument.name}, which is a node of another graph.", node)
                if argument not in seen:
                    where = "comes later" if argument in nodes else "was erased"
                    yield Problem(f"{node.name} uses {argument.name}, which {where}.", node)
            seen.add(node)
            names.add(node.name)


def _check_order(nodes: list[fx.Node]) -> Iterator[Problem]:
    if not nodes or nodes[-1].op != "output":
        yield Problem("The graph does not end in an output.", nodes[-1] if nodes else None)
    inputs_over = False
    for node in nodes:
        if node.op == "placeholder" and inputs_over:
            yield Problem(f"The placeholder {node.name} stands after nodes that compute.", node)
        if node.op == "output" and node is not nodes[-1]:
            yield Problem("The graph has an output before its end.", node)
        inputs_over = inputs_over or node.op != "placeholder"


@checks("subgraphs")
def _check_subgraphs(program: Program) -> Iterator[Problem]:
    for module in graphs_in(program.graph_module):
        for node in module.graph.nodes:
            if node.op != "get_attr":
                continue
            found = getattr(module, str(node.target), None)
            if not isinstance(found, fx.GraphModule):
                what = "nothing" if found is None else f"a {type(found).__name__}"
                yield Problem(
                    f"{node.name} takes the attribute {node.target}, which is {what} and not a graph.",
                    node,
                    "a program's tensors are inputs of its graph; attributes hold branches, loops and regions",
                )


_SWITCHES: tuple[Any, ...] = (internals.enter_autocast, internals.exit_autocast, internals.set_grad_enabled)
_FUNCTIONS = frozenset({operator.getitem, operator.sub, operator.neg, *_SWITCHES}) | {
    operation.function for operation in symbolic_dims.OPERATIONS.values()
}


@checks("targets")
def _check_targets(program: Program) -> Iterator[Problem]:
    for node in _nodes(program):
        if node.op in ("placeholder", "output", "get_attr"):
            continue
        if node.op != "call_function":
            yield Problem(f"{node.name} is a {node.op} node.", node, "a program calls operators only")
        elif not _is_callable_target(node.target):
            yield Problem(
                f"{node.name} calls {operator_name(node.target)}, neither an operator nor a function on sizes.",
                node,
                "an operator is named with its overload: torch.ops.aten.add.Tensor",
            )


def _is_callable_target(target: Any) -> bool:
    if isinstance(target, internals.OpOverload | internals.HigherOrderOperator) or target in _FUNCTIONS:
        return True
    name = getattr(target, "__name__", "")
    return getattr(math, name, None) is target or (
        name.lstrip("_").startswith("sym_") and getattr(torch, name, None) is target
    )


# ---------------------------------------------------------------------- the signature

_INPUT_ORDER = {InputKind.PARAMETER: 0, InputKind.BUFFER: 1, InputKind.CONSTANT: 2, InputKind.ARGUMENT: 3}


@checks("inputs")
def _check_inputs(program: Program) -> Iterator[Problem]:
    nodes = [node for node in program.graph.nodes if node.op == "placeholder"]
    expected = program.signature.placeholders
    for node, spec in zip(nodes, expected, strict=False):
        if node.name != spec.name or node.target != spec.name:
            other = f" (target {node.target})" if node.target != node.name else ""
            yield Problem(f"The placeholder {node.name}{other} stands where the signature has {spec.name}.", node)
    if len(nodes) > len(expected):
        yield Problem(f"The signature does not know the placeholder {nodes[len(expected)].name}.", nodes[len(expected)])
    if len(nodes) < len(expected):
        yield Problem(f"The signature names {expected[len(nodes)].name}, which is not a placeholder of the graph.")
    by_name = {node.name: node for node in nodes}
    last: Input | None = None
    for spec in (i for i in expected if i.kind in _INPUT_ORDER):
        if last is not None and _INPUT_ORDER[spec.kind] < _INPUT_ORDER[last.kind]:
            yield Problem(
                f"The {spec.kind.value} {spec.name} comes after the {last.kind.value} {last.name}.",
                by_name.get(spec.name),
                "inputs are parameters, then buffers, constants and arguments",
            )
        last = spec


@checks("outputs")
def _check_outputs(program: Program) -> Iterator[Problem]:
    node = next(iter(reversed(program.graph.nodes)))
    returned = node.args[0] if node.args else ()
    if not isinstance(returned, tuple | list):
        yield Problem("The graph returns a value that is not in a tuple.", node)
        return
    expected = program.signature.graph_outputs
    if len(returned) != len(expected):
        yield Problem(f"The graph returns {len(returned)} values, the signature has {len(expected)}.", node)
    for index, (value, spec) in enumerate(zip(returned, expected, strict=True)):
        name = value.name if isinstance(value, fx.Node) else repr(value)
        if name != spec.name:
            yield Problem(f"Output {index} of the graph is {name}, the signature has {spec.name}.", node)
    results_begun = False
    for spec in program.signature.outputs:
        if spec.kind in MUTATION_KINDS:
            yield from _check_mutation(program, spec, results_begun, node)
        results_begun = results_begun or spec.kind in (OutputKind.RESULT, OutputKind.LITERAL)


def _check_mutation(program: Program, spec: Output, results_begun: bool, node: fx.Node) -> Iterator[Problem]:
    if results_begun:
        yield Problem(f"The write to {spec.target} comes after the results.", node)
    if spec.kind is OutputKind.ARGUMENT_MUTATION:
        known = {i.name for i in program.signature.inputs_of_kind(InputKind.ARGUMENT)}
    else:
        known = {str(i.target) for i in program.signature.state_inputs}
    if spec.target not in known:
        what = spec.kind.value.removesuffix("_mutation")
        yield Problem(f"{spec.name} is written to the {what} {spec.target}, which the program does not have.", node)


@checks("trees")
def _check_trees(program: Program) -> Iterator[Problem]:
    signature = program.signature
    sides = (
        ("arguments", signature.in_tree, len(signature.user_inputs)),
        ("result", signature.out_tree, len(signature.user_outputs)),
    )
    for what, tree, count in sides:
        if tree.leaf_count != count:
            yield Problem(f"The tree of the {what} has {tree.leaf_count} leaves, the signature {count}: {tree}.")


@checks("state")
def _check_state(program: Program) -> Iterator[Problem]:
    values = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    for spec in program.signature.inputs:
        held = spec.kind in STATE_KINDS or (spec.kind is InputKind.LITERAL and spec.target is not None)
        if not held:
            continue
        node = values.get(spec.name)
        what = "fixed argument" if spec.kind is InputKind.LITERAL else spec.kind.value
        tensor = program.state_dict.get(str(spec.target), program.constants.get(str(spec.target)))
        if spec.target is None or tensor is None:
            yield Problem(
                f"The {what} {spec.name or spec.target} is {spec.target} in the state, and that is missing.", node
            )
            continue
        fake = metadata.value_of(node) if node is not None else None
        if isinstance(fake, torch.Tensor) and (fake.dtype != tensor.dtype or list(fake.shape) != list(tensor.shape)):
            yield Problem(
                f"The {what} {spec.target} is {describe_value(tensor)}, its placeholder {describe_value(fake)}.", node
            )


# ---------------------------------------------------------------------- nodes


@checks("values")
def _check_values(program: Program) -> Iterator[Problem]:
    for node in _nodes(program):
        if node.op == "placeholder" or (node.op == "call_function" and _returns_something(node.target)):
            known = metadata.has_value(node)
            value = metadata.value_of(node)
            if not known or (value is None and isinstance(node.target, internals.OpOverload | str)):
                yield Problem(f"{node.name} has no value.", node, "a pass that makes a node says what it computes")


def _returns_something(target: Any) -> bool:
    if isinstance(target, internals.OpOverload):
        return bool(target._schema.returns)
    return target not in _SWITCHES


@checks("schema")
def _check_schema(program: Program) -> Iterator[Problem]:
    for node in _nodes(program):
        mismatch = find_mismatch(node) if node.op == "call_function" else None
        if mismatch is not None:
            yield Problem(f"{node.name} does not fit the schema of {node.target}: {mismatch}.", node, _schema(node))


def _schema(node: fx.Node) -> str:
    return f"the schema is {node.target._schema}"  # type: ignore[union-attr]


@checks("dialect")
def _check_dialect(program: Program) -> Iterator[Problem]:
    for node in _nodes(program):
        complaint = program.dialect.violation(node) if node.op == "call_function" else None
        if complaint is not None:
            yield Problem(f"{node.name} may not stand in a {program.dialect.name} program: {complaint}.", node)


@checks("calls")
def _check_calls(program: Program) -> Iterator[Problem]:
    names = {node.name for node in _nodes(program)}
    for path, count in Counter(call.path for call in program.module_calls).items():
        if count > 1:
            yield Problem(f"{count} module calls are called {path!r}.", why='repeated calls are named as "fc@1"')
    for call in program.module_calls:
        signature = call.signature
        if signature is None:
            continue
        sides = (
            ("arguments", signature.inputs, signature.in_tree),
            ("result", signature.outputs, signature.out_tree),
        )
        for what, values, tree in sides:
            if len(values) != tree.leaf_count:
                yield Problem(
                    f"The module call {call.path!r} has {len(values)} values for the {tree.leaf_count} of its {what}."
                )
            for value in values:
                if value.kind != "literal" and value.name not in names:
                    yield Problem(
                        f"The {what} of the module call {call.path!r} names {value.name}, which is not a node."
                    )


@checks("dims")
def _check_dims(program: Program) -> Iterator[Problem]:
    for name, count in Counter(dim.name for dim in program.dims).items():
        if count > 1:
            yield Problem(f"{count} dims are called {name}.")
    for dim in program.dims:
        if dim.high is not None and dim.low > dim.high:
            yield Problem(f"No size is in the range of {dim}.")
    known = {dim.name for dim in program.dims}
    for constraint in program.constraints:
        for symbol in _sort_symbols(constraint.condition.free_symbols):
            if symbolic_dims.name_of(symbol) not in known:
                yield Problem(
                    f"The constraint {constraint} is about {symbolic_dims.name_of(symbol)}, which is not a dim."
                )
    for node in program.graph.nodes:
        if node.op == "placeholder":
            for symbol in _sort_symbols(symbols_in(metadata.value_of(node))):
                if symbolic_dims.name_of(symbol) not in known:
                    yield Problem(
                        f"The input {node.name} has the size {symbolic_dims.name_of(symbol)}, which is not a dim.", node
                    )


def _sort_symbols(symbols: set[sympy.Symbol]) -> list[sympy.Symbol]:
    return sorted(symbols, key=lambda s: str(s.name))


# ---------------------------------------------------------------------- the fake run


@checks("fake-run")
def _check_fake_run(program: Program) -> Iterator[Problem]:
    return _run_on_fakes(program, None)


def _run_on_fakes(program: Program, only: Collection[fx.Node] | None) -> Iterator[Problem]:
    if only is None or only:
        failure = find_failure(program.graph_module, list(_nodes(program)), only)
        if failure is not None:
            yield Problem(*failure)
