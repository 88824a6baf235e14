"""The types of a whole program.

Graphs are walked in order, each operator typed by its own kernel. Control flow is where types meet:

    cond               the join of its branches; a branch that cannot work on these types is never left
    while_loop, scan   what is carried is joined with an iteration's result until nothing changes. The first ones forget
                       the sizes that change, the next one forgets all sizes of what still changes, and the last one
                       forgets everything: five iterations at most
    map                its graph, on a row
    regions            their graph, under their autocast

A node whose arguments have the types that capture saw has the type that capture saw: it was typed in the same way then,
and what was assumed of dims is a constraint that every call of the program is checked for.

What is resized in place, and everything that shares memory with it, has no known shape anywhere: a node's type holds
for the whole run, and before the resize it was another one.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from torch import fx

from ingot import torch_internals as internals
from ingot.analysis.shape_inference.input_specs import Spec, argument_types, symbol
from ingot.analysis.shape_inference.lattice import (
    UNKNOWN,
    Dim,
    LiteralType,
    NumberType,
    TensorType,
    TupleType,
    Type,
    join,
    symbols_of,
    type_of,
    widen,
)
from ingot.analysis.shape_inference.operator_types import Bounds, InfeasibleTypes, InferredType, UnknownReason, answer
from ingot.analysis.shape_inference.resize_aliasing import find_resized
from ingot.errors import ShapeError, format_error
from ingot.ir import metadata, pytree, symbolic_dims
from ingot.ir.program import Program, check_program
from ingot.registry import Registry

hop = torch.ops.higher_order
MOST_ROUNDS = 5


@dataclass(slots=True)
class Inferred:
    """The type of every node, inner graphs' included, by the node itself or by a name of the outermost graph.

    A node that no run gets to, behind one that always fails in a branch or a loop, has none; `failures` says which one
    that is, and why. `unknown_reasons` says why the types of operators are incomplete.
    """

    types: dict[fx.Node, Type] = field(default_factory=dict)
    outputs: tuple[Type, ...] = ()
    unknown_reasons: dict[fx.Node, UnknownReason] = field(default_factory=dict)
    failures: dict[fx.Node, ShapeError] = field(default_factory=dict)
    rounds: int = 0  # the most that a loop took
    _names: dict[str, fx.Node] = field(default_factory=dict)

    def __getitem__(self, node: fx.Node | str) -> Type:
        return self.types[self._names[node] if isinstance(node, str) else node]

    def __contains__(self, node: object) -> bool:
        return node in self.types or node in self._names


def shapes_of(program: Program, inputs: Mapping[str, Spec] | None = None) -> Inferred:
    """Infers dtype, device, rank and dims of every value of a program, for every call.

    `inputs` maps argument names to shapes other than the captured ones: a tuple of dims, each a number, a name, an
    expression of names, or None (unknown); None instead of a tuple is an unknown rank. Raises ShapeError, with the
    user's line, if an operator rejects values of such types.
    """
    check_program(program, "shapes_of")
    types = argument_types(program, inputs)
    sizes = [s for type_ in types if isinstance(type_, TensorType) for s in symbols_of(type_)]
    analysis = _Analysis({symbol(dim.name): (dim.low, dim.high) for dim in program.dims}, sizes)
    outputs = analysis.run(program.graph_module, types)
    found = Inferred(analysis.types, tuple(outputs), analysis.unknown_reasons, analysis.failures, analysis.rounds)
    found._names = {node.name: node for node in program.graph.nodes}
    return found


class _Analysis:
    """One walk over a program."""

    def __init__(self, declared: Bounds, sizes: Iterable[sympy.Symbol]) -> None:
        self.types: dict[fx.Node, Type] = {}
        self.unknown_reasons: dict[fx.Node, UnknownReason] = {}
        self.failures: dict[fx.Node, ShapeError] = {}
        self.rounds = 0
        self.autocasts: list[tuple[Any, ...]] = []
        self._declared = declared.keys()
        # Nothing is known of a data-dependent number until it is the size of something.
        self._bounds: dict[sympy.Symbol, tuple[int, int | None]] = {**dict.fromkeys(sizes, (0, None)), **declared}
        self._depth = 0
        self._cache: dict[str, InferredType | InfeasibleTypes] = {}

    def run(self, module: fx.GraphModule, inputs: Sequence[Type]) -> list[Type]:
        """Types every node of a graph and returns the types of its results."""
        outer = list(self.autocasts)
        try:
            return self._run(module, inputs)
        finally:
            self.autocasts = outer

    def inner(self, module: Any, inputs: Sequence[Type]) -> list[Type]:
        """The same for a branch or a body, in which a data-dependent size may differ each time."""
        self._depth += 1
        try:
            return self.run(module, inputs)
        finally:
            self._depth -= 1

    def _run(self, module: fx.GraphModule, inputs: Sequence[Type]) -> list[Type]:
        given = iter(inputs)
        lost = find_resized(module.graph)
        for node in module.graph.nodes:
            if node.op == "placeholder":
                found = next(given)
            elif node.op == "get_attr":
                found = type_of(getattr(module, str(node.target), None))
            elif node.op == "call_function":
                self._learn(node)
                self.failures.pop(node, None)  # of an earlier iteration
                try:
                    found = self._call(node)
                except ShapeError as failure:
                    self.failures[node] = failure
                    raise
            elif node.op == "output":
                results = self._type_argument(node.args[0])
                return [_as_type(item) for item in (results if isinstance(results, list) else [results])]
            else:
                found = UNKNOWN
            self.types[node] = _shapeless(found) if node in lost else found
        raise AssertionError("a graph has an output")

    def _type_argument(self, argument: Any) -> Any:
        """An argument with types in place of nodes."""
        if isinstance(argument, fx.Node):
            return self.types[argument]
        if isinstance(argument, list | tuple):
            return [self._type_argument(item) for item in argument]
        return argument

    def _call(self, node: fx.Node) -> Type:
        target: Any = node.target
        args, kwargs = (
            self._type_argument(node.args),
            {key: self._type_argument(value) for key, value in node.kwargs.items()},
        )
        if target is operator.getitem and isinstance(args[0], TupleType) and isinstance(args[1], int):
            return self._item(node, args[0], args[1])
        if target is operator.getitem and args[0] is UNKNOWN and (part := _Part.from_node(node)) is not None:
            made: Any = node.args[0]
            taken = {key: self._type_argument(value) for key, value in made.kwargs.items()}
            return self._operator(node, part, self._type_argument(made.args), taken)
        if target in _RULES:
            return _RULES[target](self, args)
        if self._matches_capture(node):
            return type_of(metadata.value_of(node))
        if isinstance(target, internals.HigherOrderOperator):
            return UNKNOWN
        return self._name_unbacked_size(node, self._operator(node, target, args, kwargs))

    def _item(self, node: fx.Node, values: TupleType, index: int) -> Type:
        if index < len(values.items):
            return values.items[index]
        made = node.args[0]
        assert isinstance(made, fx.Node)
        count = f"{len(values.items)} value{'s' * (len(values.items) != 1)}"
        raise ShapeError(
            format_error(
                f"{made.target} returns {count}, but the program reads value {index + 1}.",
                where=metadata.where(made),
                why=f"it returns {values}; when the program was captured there were more",
                fix="change the shapes that go in, or capture the program with such shapes",
            )
        )

    def _matches_capture(self, node: fx.Node) -> bool:
        """Whether what was recorded of a node holds: it came of arguments of these types, in sizes that are named."""
        if self.autocasts or not metadata.has_value(node):
            return False
        for argument in node.all_input_nodes:
            known = self.types[argument]
            if argument.op != "get_attr" and known != type_of(metadata.value_of(argument)):
                return False
            if not symbols_of(known) <= self._declared:
                return False
        return not self._depth or symbols_of(type_of(metadata.value_of(node))) <= self._declared

    def _operator(self, node: fx.Node, target: Any, args: list[Any], kwargs: dict[str, Any]) -> Type:
        key = f"{target}|{args}|{kwargs}|{self.autocasts}"
        if key not in self._cache:
            function = self._wrap_autocast(target)
            try:
                # The meta device knows no autocast.
                self._cache[key] = answer(function, args, kwargs, self._bounds, on_meta=not self.autocasts)
            except InfeasibleTypes as refused:
                self._cache[key] = refused
        found = self._cache[key]
        if not isinstance(found, InfeasibleTypes):
            self.unknown_reasons.pop(node, None)  # of an earlier iteration
            if found.unknown_reason is not None:
                self.unknown_reasons[node] = found.unknown_reason
            return found.type
        taken = ", ".join(str(a) for a in args if isinstance(a, TensorType | NumberType | TupleType))
        raise ShapeError(
            format_error(
                f"{target} cannot work on {taken or 'these arguments'}.",
                where=metadata.where(node),
                why=str(found).strip().splitlines()[0],
                fix="change the shapes that go in, or the line",
            )
        ) from found

    def _wrap_autocast(self, target: Callable[..., Any]) -> Callable[..., Any]:
        if not self.autocasts:
            return target
        settings = list(self.autocasts)

        def run(*args: Any, **kwargs: Any) -> Any:
            with ExitStack() as stack:
                for device, dtype, enabled, cache in settings:
                    stack.enter_context(torch.autocast(device, dtype=dtype, enabled=enabled, cache_enabled=cache))
                return target(*args, **kwargs)

        return run

    def _learn(self, node: fx.Node) -> None:
        """A data-dependent number of a node is 0 or more, where it is a size or was asserted to be."""
        bound = metadata.bindings_of(node)
        if not bound:
            return
        leaves = pytree.flatten(metadata.value_of(node))[0]
        numbers = [leaf for leaf in leaves if isinstance(leaf, torch.SymInt)]
        for found in bound:
            if not any(internals.may_be_negative(number, found) for number in numbers):
                self._bounds.setdefault(symbol(symbolic_dims.name_of(found)), (0, None))

    def _name_unbacked_size(self, node: fx.Node, found: Type) -> Type:
        """A data-dependent size has the name that the program gave it, where only one node defines it."""
        if self._depth or not metadata.bindings_of(node):
            return found
        bound = frozenset(symbol(symbolic_dims.name_of(s)) for s in metadata.bindings_of(node))
        return _restore_names(found, type_of(metadata.value_of(node)), bound)


@dataclass(frozen=True, slots=True)
class _Part:
    """One of the values that an operator returns. How many there are may be unknown; one that is read exists."""

    target: internals.OpOverload
    index: int

    @classmethod
    def from_node(cls, node: fx.Node) -> _Part | None:
        made, index = node.args
        target = made.target if isinstance(made, fx.Node) else None
        return cls(target, index) if isinstance(target, internals.OpOverload) and isinstance(index, int) else None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.target(*args, **kwargs)[self.index]

    def __str__(self) -> str:
        return f"{self.target}[{self.index}]"


# ---------------------------------------------------------------------- graphs inside

Rule = Callable[[_Analysis, list[Any]], Type]
_RULES: Registry[Any, Rule] = Registry("typing rule")


@_RULES.register(hop.cond)
def _cond(analysis: _Analysis, args: list[Any]) -> Type:
    _, true, false, operands = args
    found: list[Type] = []
    refusal: ShapeError | None = None
    for side in (true, false):
        try:
            found.append(TupleType(tuple(analysis.inner(side.value, _types(operands)))))
        except ShapeError as failure:  # taking this branch raises
            refusal = refusal or failure
    if not found:
        assert refusal is not None
        raise refusal
    return found[0] if len(found) == 1 else join(*found)


@_RULES.register(hop.while_loop)
def _while_loop(analysis: _Analysis, args: list[Any]) -> Type:
    condition, body, carried, additional = args

    def turn(now: list[Type]) -> list[Type]:
        analysis.inner(condition.value, [*now, *_types(additional)])
        return analysis.inner(body.value, [*now, *_types(additional)])

    # It is evaluated before the first iteration too: if it fails, so does the loop.
    analysis.inner(condition.value, [*_types(carried), *_types(additional)])
    try:
        return TupleType(tuple(_iterate_to_fixpoint(analysis, turn, _types(carried))))
    except _LoopNeverRuns as never:  # it fails, or ends before its first iteration
        return TupleType(tuple(never.carried))


@_RULES.register(hop.scan)
def _scan(analysis: _Analysis, args: list[Any]) -> Type:
    combine, initial, rows, additional = args
    inputs = [*map(_row, _types(rows)), *_types(additional)]
    stacked: list[Type] = []

    def turn(now: list[Type]) -> list[Type]:
        after = analysis.inner(combine.value, [*now, *inputs])
        stacked[:] = [_stack(_count(rows), one) for one in after[len(now) :]]
        return after[: len(now)]

    try:
        return TupleType((*_iterate_to_fixpoint(analysis, turn, _types(initial)), *stacked))
    except _LoopNeverRuns as never:  # every scan has an iteration: torch rejects one over no rows
        raise never.failure from never.failure.__cause__


@_RULES.register(hop.map_impl)
def _map(analysis: _Analysis, args: list[Any]) -> Type:
    function, rows, extra = args
    after = analysis.inner(function.value, [*map(_row, _types(rows)), *_types(extra)])
    return TupleType(tuple(_stack(_count(rows), one) for one in after))


@_RULES.register(hop.associative_scan)
def _associative_scan(analysis: _Analysis, args: list[Any]) -> Type:
    combine, rows, additional = args
    lefts = [*map(_row, _types(rows))]
    # The combined value has the type of its operands, or the operator raises.
    analysis.inner(combine.value, [*lefts, *lefts, *_types(additional)])
    return TupleType(tuple(_types(rows)))


class _LoopNeverRuns(Exception):
    """A loop's first iteration fails; what is carried is as at the start."""

    def __init__(self, carried: list[Type], failure: ShapeError) -> None:
        super().__init__()
        self.carried = carried
        self.failure = failure


def _iterate_to_fixpoint(
    analysis: _Analysis, turn: Callable[[list[Type]], list[Type]], start: list[Type]
) -> list[Type]:
    """What is carried, in every iteration: a fixpoint, reached in at most MOST_ROUNDS."""
    now = start
    for round_ in range(1, MOST_ROUNDS + 1):
        analysis.rounds = max(analysis.rounds, round_)
        try:
            after = turn(now)
        except ShapeError as failure:
            raise _LoopNeverRuns(now, failure) from failure
        joined = [join(one, other) for one, other in zip(now, after, strict=True)]
        if joined == now:
            return now
        if round_ == MOST_ROUNDS - 2:
            joined = [widen(new) if new != old else old for old, new in zip(now, joined, strict=True)]
        if round_ == MOST_ROUNDS - 1:
            joined = [UNKNOWN for _ in joined]
        now = joined
    raise AssertionError("what is unknown stays unknown")


def _row(type_: Type) -> Type:
    """One row of a tensor."""
    if not isinstance(type_, TensorType):
        return UNKNOWN
    return TensorType(type_.dtype, type_.device, type_.dims[1:] if type_.dims else None)


def _count(rows: Sequence[Any]) -> Dim:
    """How many rows there are: all have the same number."""
    counts = [t.dims[0] for t in _types(rows) if isinstance(t, TensorType) and t.dims]
    return next((count for count in counts if count is not None), None)


def _stack(count: Dim, row: Type) -> Type:
    """Rows, one above the other."""
    if not isinstance(row, TensorType):
        return UNKNOWN
    return TensorType(row.dtype, row.device, None if row.dims is None else (count, *row.dims))


@_RULES.register(hop.wrap_with_set_grad_enabled)
def _grad_region(analysis: _Analysis, args: list[Any]) -> Type:
    return TupleType(tuple(analysis.run(args[1].value, _types(args[2:]))))


@_RULES.register(hop.wrap_with_autocast)
def _autocast_region(analysis: _Analysis, args: list[Any]) -> Type:
    *autocast, function = args[:5]
    analysis.autocasts.append(tuple(autocast))
    try:
        return TupleType(tuple(analysis.run(function.value, _types(args[5:]))))
    finally:
        analysis.autocasts.pop()


@_RULES.register(internals.enter_autocast)
def _enter_autocast(analysis: _Analysis, args: list[Any]) -> Type:
    analysis.autocasts.append(tuple(args))
    return LiteralType(None)


@_RULES.register(internals.exit_autocast)
def _exit_autocast(analysis: _Analysis, args: list[Any]) -> Type:
    analysis.autocasts.pop()
    return LiteralType(None)


@_RULES.register(internals.set_grad_enabled)
def _set_grad_enabled(analysis: _Analysis, args: list[Any]) -> Type:
    return LiteralType(None)


def _types(values: Sequence[Any]) -> list[Type]:
    return list(map(_as_type, values))


def _as_type(value: Any) -> Type:
    if isinstance(value, TensorType | NumberType | TupleType | LiteralType) or value is UNKNOWN:
        return value
    if isinstance(value, list | tuple):
        return TupleType(tuple(map(_as_type, value)))
    return type_of(value)


def _shapeless(type_: Type) -> Type:
    if isinstance(type_, TensorType):
        return TensorType(type_.dtype, type_.device, None)
    return TupleType(tuple(map(_shapeless, type_.items))) if isinstance(type_, TupleType) else type_


def _restore_names(found: Type, recorded: Type, names: frozenset[sympy.Symbol]) -> Type:
    if isinstance(found, TensorType) and isinstance(recorded, TensorType) and found.rank == recorded.rank:
        pairs = zip(found.dims or (), recorded.dims or (), strict=True)
        named = tuple(theirs if mine is None and theirs in names else mine for mine, theirs in pairs)
        return TensorType(found.dtype, found.device, named if found.dims is not None else None)
    if isinstance(found, NumberType) and isinstance(recorded, NumberType) and found.value is None:
        return NumberType(found.kind, recorded.value if recorded.value in names else None)
    if isinstance(found, TupleType) and isinstance(recorded, TupleType) and len(found.items) == len(recorded.items):
        pairs_ = zip(found.items, recorded.items, strict=True)
        return TupleType(tuple(_restore_names(mine, theirs, names) for mine, theirs in pairs_))
    return found
