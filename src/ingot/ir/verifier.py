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
    dialect     no node stands where the program's dialect does not allow it; no marker is left
    calls       module calls have names of their own, and their arguments and results exist
    dims        dims have names of their own and ranges that are not empty; nothing else sizes an argument
    fake-run    each node, run on fakes of its arguments' values, gives the dtype, device and shape that it claims

They are checked in this order, and the first that does not hold is raised as a VerifyError. Strides are nobody's
claim: kernels choose them. Graphs inside graphs (branches, loops, regions) are held to the same.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import sympy
import torch
from torch import fx

from ingot import torch_internals as internals
from ingot.errors import VerifyError, format_error
from ingot.ir import metadata, symbolic_dims
from ingot.ir.meta_kernels import on_fakes
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


def verify(program: Program, *, fake_run: bool = True) -> None:
    """Raises VerifyError if the program breaks an invariant. `fake_run` False leaves out the last and longest check."""
    for name, check in _CHECKS.items():
        if name == "fake-run" and not fake_run:
            continue
        for problem in check(program):
            raise VerifyError(_message(program, name, problem))


def _message(program: Program, check: str, problem: Problem) -> str:
    if program.history:
        fix = f"the program was changed last by {program.history[-1].name}; look there, or report it"
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
        yield Problem(f"The signature names {expected[len(nodes)].name}, which is no placeholder of the graph.")
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
            yield Problem(f"{count} module calls are called {path!r}.", why='repeated calls are told apart as "fc@1"')
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
                    yield Problem(f"The {what} of the module call {call.path!r} names {value.name}, which is no node.")


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
                yield Problem(f"The constraint {constraint} is about {symbolic_dims.name_of(symbol)}, which is no dim.")
    for node in program.graph.nodes:
        if node.op == "placeholder":
            for symbol in _sort_symbols(_symbols(metadata.value_of(node))):
                if symbolic_dims.name_of(symbol) not in known:
                    yield Problem(
                        f"The input {node.name} has the size {symbolic_dims.name_of(symbol)}, which is no dim.", node
                    )


def _symbols(value: Any) -> set[sympy.Symbol]:
    """The symbols in a value's sizes."""
    sizes: list[Any] = [size for tensor in metadata.tensors_in(value) for size in tensor.shape]
    sizes.extend(value if isinstance(value, list | tuple) else [value])
    return {symbol for size in sizes if internals.is_symbolic(size) for symbol in size.node.expr.free_symbols}


def _sort_symbols(symbols: set[sympy.Symbol]) -> list[sympy.Symbol]:
    return sorted(symbols, key=lambda s: str(s.name))


# ---------------------------------------------------------------------- the fake run


@checks("fake-run")
def _check_fake_run(program: Program) -> Iterator[Problem]:
    tensors = (t for node in _nodes(program) for t in metadata.tensors_in(metadata.value_of(node)))
    fake = next((t for t in tensors if isinstance(t, internals.FakeTensor)), None)
    if fake is not None:
        yield from _FakeRun(program, fake.fake_mode).problems()


class _FakeRun:
    """Runs every node by itself, on the values that its arguments claim.

    If each node is right given its arguments, the whole is right; and a node that is not is the one to blame, while in
    a run from end to end it would be one of those after it.
    """

    def __init__(self, program: Program, mode: internals.FakeTensorMode) -> None:
        self.program = program
        self.mode = mode
        self.env: internals.ShapeEnv | None = mode.shape_env
        self.known = {s for node in _nodes(program) for s in _symbols(metadata.value_of(node))}
        self.asserted: dict[sympy.Basic, sympy.Basic] = {}  # by the graph so far, or by one around it

    def problems(self) -> Iterator[Problem]:
        # The generator is closed in here: a caller that stops at the first problem must not leave contexts open.
        first = internals.run_isolated(self._first_problem)
        if first is not None:
            yield first

    def _first_problem(self, region: internals.Region) -> Problem | None:
        region.enter(internals.exporting())
        region.enter(internals.discard_guards(self.env))
        region.hold(internals.enable_python_dispatcher())
        region.enter(self.mode)
        for device in ("cpu", "cuda"):
            torch.set_autocast_enabled(device, False)  # what is on around verify() does not belong to the program
        with closing(self._graph(self.program.graph_module)) as problems:
            return next(problems, None)

    def _graph(self, module: fx.GraphModule) -> Generator[Problem]:
        casts: dict[fx.Node, Any] = {}
        grad, asserted = torch.is_grad_enabled(), dict(self.asserted)
        try:
            for node in module.graph.nodes:
                if node.op != "call_function":
                    continue
                if node.target is internals.enter_autocast:
                    casts[node] = internals.enter_autocast(*node.args)
                elif node.target is internals.exit_autocast:
                    internals.exit_autocast(casts.pop(node.args[0]))
                elif node.target is internals.set_grad_enabled:
                    internals.set_grad_enabled(*node.args)
                else:
                    yield from self._inner_graphs(module, node)
                    yield from self._node(module, node)
        finally:
            for cast in reversed(casts.values()):
                internals.exit_autocast(cast)
            internals.set_grad_enabled(grad)
            self.asserted = asserted

    def _inner_graphs(self, module: fx.GraphModule, node: fx.Node) -> Iterator[Problem]:
        for argument in node.all_input_nodes:
            if argument.op == "get_attr":
                with _region(node):
                    yield from self._graph(getattr(module, str(argument.target)))

    def _node(self, module: fx.GraphModule, node: fx.Node) -> Iterator[Problem]:
        target: Any = node.target
        writes = isinstance(target, internals.OpOverload) and target._schema.is_mutable

        def value(argument: fx.Node) -> Any:
            if argument.op == "get_attr":
                return getattr(module, str(argument.target))
            claimed = metadata.value_of(argument)
            return self._copy(claimed) if writes else claimed

        args, kwargs = fx.map_arg(node.args, value), fx.map_arg(node.kwargs, value)
        try:
            with internals.below_autograd():
                computed = on_fakes(target)(*args, **kwargs)
        except Exception as failure:
            reason = (str(failure).strip().splitlines() or [""])[0]
            yield Problem(
                f"{node.name} cannot be run on what its arguments claim to be.",
                node,
                f"{type(failure).__name__}: {reason}",
            )
            return
        claimed = metadata.value_of(node)
        if target is torch.ops.aten._assert_scalar.default and internals.is_symbolic(args[0]):
            condition = internals.expr_to_check(args[0])
            if isinstance(condition, sympy.Eq) and isinstance(condition.lhs, sympy.Symbol):
                self.asserted[condition.lhs] = condition.rhs
        sizes = _Sizes(self.env, self.known, metadata.bindings_of(node) or {}, self.asserted)
        if not sizes.same(claimed, computed):
            yield Problem(
                f"{node.name} claims to be {describe_value(claimed)}, but computes {describe_value(computed)}.", node
            )

    def _copy(self, value: Any) -> Any:
        """A fake that may be written to, so that the one in the program stays as it is."""
        if isinstance(value, list | tuple):
            return type(value)(self._copy(item) for item in value)
        if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
            return value
        return internals.fake_sized(self.mode, value.detach(), value.shape, value.stride())


@contextmanager
def _region(node: fx.Node) -> Iterator[None]:
    """Inside, the modes are those in which a region's operator runs its graph."""
    if node.target is torch.ops.higher_order.wrap_with_autocast:
        device, dtype, enabled, cache = node.args[:4]
        with torch.autocast(str(device), dtype=dtype, enabled=bool(enabled), cache_enabled=cache):  # type: ignore[arg-type]
            yield
    elif node.target is torch.ops.higher_order.wrap_with_set_grad_enabled:
        with internals.grad_mode(bool(node.args[0])):
            yield
    else:
        yield


class _Sizes:
    """Compares values. A run may give an unknown size (u0) another name; it must then do so everywhere."""

    def __init__(
        self,
        env: internals.ShapeEnv | None,
        known: set[sympy.Symbol],
        bindings: Any,
        asserted: dict[sympy.Basic, sympy.Basic],
    ) -> None:
        self.env, self.known, self.asserted = env, known, asserted
        self.bindings = tuple(bindings)
        self.renamed: dict[sympy.Symbol, sympy.Basic] = {}

    def same(self, claimed: Any, computed: Any) -> bool:
        if isinstance(claimed, list | tuple) and isinstance(computed, list | tuple):
            return len(claimed) == len(computed) and all(map(self.same, claimed, computed))
        if isinstance(claimed, torch.Tensor) and isinstance(computed, torch.Tensor):
            return (
                claimed.dtype == computed.dtype
                and claimed.device == computed.device
                and claimed.layout == computed.layout
                and claimed.dim() == computed.dim()
                and all(map(self._same_size, claimed.shape, computed.shape))
            )
        if internals.is_symbolic(claimed) or internals.is_symbolic(computed):
            return self._same_size(claimed, computed)
        return type(claimed) is type(computed) and bool(claimed == computed)

    def _same_size(self, claimed: Any, computed: Any) -> bool:
        if claimed is None or computed is None:
            return False
        a, b = internals.expr_of(claimed), internals.expr_of(computed).xreplace(self.renamed)
        if isinstance(b, sympy.Symbol) and self._is_fresh(b) and self._is_unknown(a):
            self.renamed[b] = a
            return True
        fresh = [symbol for symbol in b.free_symbols if self._is_fresh(symbol)]
        own = [symbol for symbol in a.free_symbols if symbol in self.bindings]
        if len(fresh) == len(own) == 1 and b.xreplace({fresh[0]: own[0]}) == a:  # item() of a bool is u0 == 1
            self.renamed[fresh[0]] = own[0]
            return True
        if a in self.bindings and any(map(internals.is_unbacked, b.free_symbols)):
            return True  # another node asked the same, or told since what this one did not know: 6 - u0 instead of u1
        return internals.surely_equal(self.env, a.xreplace(self.asserted), b.xreplace(self.asserted))

    def _is_fresh(self, symbol: sympy.Symbol) -> bool:
        return symbol not in self.known and internals.is_unbacked(symbol)

    def _is_unknown(self, expr: sympy.Basic) -> bool:
        """Whether a claim may stand for a size that only running the node tells: a symbol, or what is known of it."""
        if isinstance(expr, sympy.Symbol):
            return internals.is_unbacked(expr)
        return any(internals.surely_equal(self.env, symbol, expr) for symbol in self.bindings)
