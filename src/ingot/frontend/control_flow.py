"""Higher-order operators: torch.cond, while_loop, scan, map, associative_scan, and regions.

Each function that such an operator takes is recorded into a sub-GraphModule. What the function closes over, tensors and
symbolic sizes alike, becomes an extra operand; where an operator takes several functions, they all take the same ones.
A rule, one an operator, says which operands each function gets and where extra operands go.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import fx

from ingot import torch_internals as internals
from ingot.analysis.side_effects import SWITCHES, op_has_side_effects
from ingot.errors import CaptureError, UntraceableError, format_error
from ingot.frontend.graph_builder import Frame
from ingot.frontend.source_locations import user_place
from ingot.frontend.tracer import GraphTracer
from ingot.ir import metadata, pytree
from ingot.registry import Registry

hop = torch.ops.higher_order
Rule = Callable[..., Any]
_RULES: Registry[internals.HigherOrderOperator, Rule] = Registry("capture rule")
# The decorator of a rule `(recorder, operator, *args, **kwargs) -> output`.
records = _RULES.register


def install_rules(recorder: type[GraphTracer] = GraphTracer) -> None:
    """Makes torch hand every higher-order operator to its rule while a recorder of that class is active."""
    from ingot.frontend import flex_attention  # noqa: F401  registers its rules here

    for op in internals.higher_order_operators().values():
        if not internals.has_rule(op, recorder):
            op.py_impl(recorder)(_entry(op))


def _entry(op: internals.HigherOrderOperator) -> Rule:
    def enter(recorder: GraphTracer, *args: Any, **kwargs: Any) -> Any:
        rule = _RULES.get(op)
        if rule is None:
            raise UntraceableError(
                format_error(
                    f"The higher-order operator {op.name()} cannot be captured.",
                    where=recorder.user_place(),
                    fix="call the function it wraps directly",
                )
            )
        recorder.sync_grad_mode()
        with recorder:
            return rule(recorder, op, *args, **kwargs)

    return enter


class Subgraphs:
    """Records the functions of one operator and makes their extra inputs agree."""

    def __init__(self, recorder: GraphTracer) -> None:
        self.recorder = recorder
        self.frames: list[tuple[str, Frame, int]] = []
        self.outputs: list[list[Any]] = []

    def record(self, name: str, function: Callable[..., Any], inputs: Sequence[Any], names: str = "arg") -> list[Any]:
        """Runs `function` on stand-ins for `inputs` in a graph of its own and returns the leaves of its result."""
        recorder = self.recorder
        with recorder.subframe() as frame:
            stand_ins = [_stand_in(recorder, value) for value in inputs]
            for index, value in enumerate(stand_ins):
                node = frame.placeholder(f"{names}{index}", value)
                if internals.is_symbolic(value):
                    frame.expressions[internals.expr_to_check(value)] = node
            leaves, _ = pytree.flatten(function(*stand_ins))
            results = [recorder.argument(leaf) for leaf in leaves]
            recorder.sync_grad_mode()  # a region may end here
            frame.graph.output(tuple(results))
            metadata.set_value(_output_of(frame.graph), tuple(leaves))
            self.frames.append((name, frame, len(inputs)))
        self.outputs.append(leaves)
        return leaves

    def finish(self) -> tuple[list[fx.GraphModule], list[Any]]:
        """The GraphModules, each with the union of the extra inputs at its end, and those inputs' values."""
        extra: list[Any] = []
        for _, frame, _ in self.frames:
            for value in frame.lifted:
                if not any(_same(value, other) for other in extra):
                    extra.append(value)
        return [self._module(frame, extra) for _, frame, _ in self.frames], extra

    def _module(self, frame: Frame, extra: list[Any]) -> fx.GraphModule:
        placeholders = [node for node in frame.graph.nodes if node.op == "placeholder"]
        own = len(placeholders) - len(frame.lifted)
        by_value = list(zip(frame.lifted, placeholders[own:], strict=True))
        last = placeholders[own - 1] if own else None
        for value in extra:
            node = next((n for known, n in by_value if _same(known, value)), None)
            if node is None:
                node = frame.placeholder("unused", value)
            if last is not None:
                last.append(node)
            else:
                first = next(iter(frame.graph.nodes))
                if first is not node:
                    first.prepend(node)
            last = node
        prune(frame.graph, self.recorder.kept)
        return internals.LazyGraphModule(frame.root, frame.graph)

    def attributes(self, modules: Sequence[fx.GraphModule]) -> list[fx.Node]:
        """get_attr nodes for the GraphModules in the graph around them."""
        nodes = []
        for (name, _, _), module in zip(self.frames, modules, strict=True):
            node = self.recorder.frame.submodule(module, name)
            self.recorder.annotate(node, None)
            nodes.append(node)
        return nodes


def _stand_in(recorder: GraphTracer, value: Any) -> Any:
    """A fresh fake like `value`, so that the inner graph does not mistake it for the outer one."""
    if isinstance(value, torch.Tensor):
        with recorder.pause():
            return recorder.run(torch.ops.aten.detach.default, (value,), {})
    return value


def _same(a: Any, b: Any) -> bool:
    if internals.is_symbolic(a) and internals.is_symbolic(b):
        return bool(a.node.expr == b.node.expr)
    return a is b


def _is_operand(node: fx.Node, value: torch.Tensor) -> bool:
    """Whether a value that a node of a branch returns is one of its inputs, perhaps written to."""
    placeholders = [n for n in node.graph.nodes if n.op == "placeholder"]
    return node in placeholders or any(metadata.value_of(n) is value for n in placeholders)


def _output_of(graph: fx.Graph) -> fx.Node:
    return graph.output_node()


def record_call(
    recorder: GraphTracer,
    op: Any,
    node_args: tuple[Any, ...],
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
) -> Any:
    """Computes the operator's value on fakes with nothing recorded, and writes its node."""
    # A number that one step reads is not a result; before torch 2.12 the fake kernels of these report it.
    per_step = op in (hop.scan, hop.map_impl)
    unreported = internals.ignore_fresh_symbols(recorder.env) if per_step else nullcontext()
    with recorder.pause(), recorder.checks.ignore(), unreported:
        out = recorder.run(op, args, kwargs or {})
    recorder.append(op, node_args, kwargs or {}, out, name=op.name())
    return out


# ---------------------------------------------------------------------- rules


@records(hop.cond)
def _cond(recorder: GraphTracer, op: Any, pred: Any, true_fn: Any, false_fn: Any, operands: Sequence[Any]) -> Any:
    graphs = Subgraphs(recorder)
    true_out = graphs.record("true_graph", true_fn, operands)
    false_out = graphs.record("false_graph", false_fn, operands)
    for branch, (_, frame, _), out in zip(("true", "false"), graphs.frames, graphs.outputs, strict=True):
        if any(isinstance(leaf, torch.Tensor) and _is_operand(frame.nodes[id(leaf)], leaf) for leaf in out):
            raise CaptureError(
                format_error(
                    f"The {branch} branch of torch.cond returns one of its operands, or a tensor from outside it.",
                    where=recorder.user_place(),
                    why="torch.cond does not take such a branch either: a result must not share memory with an operand",
                    fix="return a copy: x.clone()",
                )
            )
    if [_kind(value) for value in true_out] != [_kind(value) for value in false_out]:
        raise CaptureError(
            format_error(
                f"The branches of torch.cond return {_describe(true_out)} and {_describe(false_out)}.",
                where=recorder.user_place(),
                why="what follows the branches is one graph, whichever of them ran",
                fix="make both branches return the same structure, with the same dtypes and ranks",
            )
        )
    modules, extra = graphs.finish()
    pred_node = recorder.argument(pred)
    values = (*operands, *extra)
    nodes = recorder.argument(values)
    return record_call(recorder, op, (pred_node, *graphs.attributes(modules), nodes), (pred, *modules, values))


@records(hop.while_loop)
def _while_loop(
    recorder: GraphTracer,
    op: Any,
    cond_fn: Any,
    body_fn: Any,
    carried: Sequence[Any],
    additional: Sequence[Any],
    **kw: Any,
) -> Any:
    # A carried int changes between iterations, so inside the loop it is an unbacked size.
    inside = [_unknown_int(recorder) if isinstance(c, int | torch.SymInt) else c for c in carried]
    graphs = Subgraphs(recorder)
    graphs.record("cond_graph", cond_fn, (*inside, *additional))
    body_out = graphs.record("body_graph", body_fn, (*inside, *additional))
    _check_carry(recorder, "while_loop", carried, body_out)
    unwrap_single_output(graphs.frames[0][1].graph)
    modules, extra = graphs.finish()
    values = (tuple(carried), (*additional, *extra))
    nodes = tuple(recorder.argument(group) for group in values)
    return record_call(recorder, op, (*graphs.attributes(modules), *nodes), (*modules, *values), kw or None)


@records(hop.scan)
def _scan(
    recorder: GraphTracer, op: Any, combine: Any, init: list[Any], xs: list[Any], additional_inputs: Any = ()
) -> Any:
    graphs = Subgraphs(recorder)
    slices = [_first_slice(recorder, x) for x in xs]
    out = graphs.record("combine_graph", combine, (*init, *slices, *additional_inputs))
    _check_carry(recorder, "scan", init, out[: len(init)])
    modules, extra = graphs.finish()
    values = (list(init), list(xs), (*additional_inputs, *extra))
    nodes = tuple(recorder.argument(group) for group in values)
    return record_call(recorder, op, (*graphs.attributes(modules), *nodes), (*modules, *values))


@records(hop.associative_scan)
def _associative_scan(recorder: GraphTracer, op: Any, combine: Any, xs: list[Any], additional_inputs: Any = ()) -> Any:
    graphs = Subgraphs(recorder)
    slices = [_first_slice(recorder, x) for x in (*xs, *xs)]
    graphs.record("combine_graph", combine, (*slices, *additional_inputs))
    modules, extra = graphs.finish()
    values = (list(xs), (*additional_inputs, *extra))
    nodes = tuple(recorder.argument(group) for group in values)
    return record_call(recorder, op, (*graphs.attributes(modules), *nodes), (*modules, *values))


@records(hop.map_impl)
def _map(recorder: GraphTracer, op: Any, function: Any, xs: Sequence[Any], pos_args: Sequence[Any]) -> Any:
    graphs = Subgraphs(recorder)
    slices = [_first_slice(recorder, x) for x in xs]
    graphs.record("body_graph", function, (*slices, *pos_args))
    modules, extra = graphs.finish()
    values = (list(xs), [*pos_args, *extra])
    nodes = tuple(recorder.argument(group) for group in values)
    return record_call(recorder, op, (*graphs.attributes(modules), *nodes), (*modules, *values))


@records(internals.tracepoint)
def _tracepoint(recorder: GraphTracer, op: Any, *args: Any, **kwargs: Any) -> Any:
    """A marker passes its arguments through: the same tensors are now known as its results."""
    recorder.append(op, recorder.argument(args), kwargs, args, name="tracepoint")
    return args


# ---------------------------------------------------------------------- parts of rules


def _unknown_int(recorder: GraphTracer) -> Any:
    with internals.ignore_fresh_symbols(recorder.env):
        return recorder.env.create_unbacked_symint()


def _first_slice(recorder: GraphTracer, x: torch.Tensor) -> torch.Tensor:
    """What one step sees of a scanned tensor: its own memory, with the strides of `x.select(0, i)`."""
    with recorder.pause():
        step = recorder.run(torch.ops.aten.select.int, (x, 0, 0), {})
        fresh = {"dtype": x.dtype, "device": x.device}
        made: torch.Tensor = recorder.run(torch.ops.aten.empty_strided.default, (step.shape, step.stride()), fresh)
        return made


def unwrap_single_output(graph: fx.Graph) -> None:
    """A condition or a score function returns its value, not a tuple of one."""
    output = _output_of(graph)
    (results,) = output.args
    assert isinstance(results, tuple)
    if len(results) == 1:
        output.args = (results[0],)
        metadata.set_value(output, metadata.value_of(output)[0])


def _kind(value: Any) -> Any:
    """What must agree between two branches."""
    return (value.dtype, value.dim()) if isinstance(value, torch.Tensor) else "number"


def _describe(values: Sequence[Any]) -> str:
    shapes = [
        f"{str(v.dtype).removeprefix('torch.')}[{', '.join(map(str, v.shape))}]"
        if isinstance(v, torch.Tensor)
        else "int"
        for v in values
    ]
    return ", ".join(shapes) or "nothing"


def _check_carry(recorder: GraphTracer, name: str, before: Sequence[Any], after: Sequence[Any]) -> None:
    if _describe(before) != _describe(after):
        raise CaptureError(
            format_error(
                f"A {name} carries {_describe(before)} in and {_describe(after)} out.",
                where=recorder.user_place(),
                why="each iteration takes what the previous one returned",
                fix="let each iteration return tensors of the shape and dtype that it takes",
            )
        )


def call_directly(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Any:
    """What torch.cond and its kin call instead of compiling themselves.

    The operators take and return flat lists, the user's functions nested ones: this is where they are nested and
    flattened.
    """
    in_tree: pytree.Tree | None = None
    if function.__name__ == "_cond_op_wrapper":
        flat, in_tree = pytree.flatten(tuple(args[3]))
        args = (*args[:3], tuple(flat))
    results: list[tuple[list[Any], pytree.Tree]] = []

    def flatten_results(inner: Callable[..., Any]) -> Callable[..., Any]:
        def run(*leaves: Any) -> list[Any]:
            out, out_tree = pytree.flatten(inner(*(leaves if in_tree is None else pytree.unflatten(leaves, in_tree))))
            results.append((out, out_tree))
            return [leaf for leaf in out if _is_value(leaf)]

        return run

    out = function(*(flatten_results(a) if callable(a) else a for a in args), **(kwargs or {}))
    leaves, out_tree = results[-1]
    if in_tree is not None:
        true, false = results[-2:]
        _check_branches(true, false, user_place())
    values = iter(out)
    return pytree.unflatten([next(values) if _is_value(leaf) else leaf for leaf in leaves], out_tree)


def scan_directly(
    recorder: GraphTracer, original: Callable[[], Any], function: Callable[..., Any], xs: Sequence[torch.Tensor]
) -> Any:
    """An associative scan of elements as its operator; one that mixes elements as torch writes it out."""
    seen = _Elementwise()
    with recorder.pause(), seen:
        slices = [recorder.run(torch.ops.aten.select_copy.int, (x, 0, 0), {}) for x in xs]
        function(*slices, *slices)
    if not seen.holds:
        return original()
    return list(hop.associative_scan(function, list(xs), ()))


class _Elementwise(internals.DispatchMode):
    """Whether every operator inside works on each element by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.holds = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.holds &= torch.Tag.pointwise in func.tags or func in _NEUTRAL or func.namespace == "prim"
        return func(*args, **(kwargs or {}))


_aten = torch.ops.aten
_NEUTRAL = frozenset({_aten.select_copy.int, _aten.detach.default, _aten.alias.default, _aten.lift_fresh.default})


def _check_branches(true: tuple[list[Any], pytree.Tree], false: tuple[list[Any], pytree.Tree], place: str) -> None:
    literals = [[leaf for leaf in leaves if not _is_value(leaf)] for leaves, _ in (true, false)]
    if true[1] != false[1] or literals[0] != literals[1]:
        raise CaptureError(
            format_error(
                f"The branches of torch.cond return different structures: {true[1]} and {false[1]}.",
                where=place,
                why="what follows the branches is one graph, whichever of them ran",
                fix="make both branches return the same structure and the same constants",
            )
        )


def _is_value(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) or internals.is_symbolic(leaf) or type(leaf) in (int, float, bool)


def prune(graph: fx.Graph, kept: Collection[fx.Node] = ()) -> None:
    """Erases unused nodes without side effects: no write, no random draw, no assertion. `kept` stay."""
    for node in reversed(graph.nodes):
        if not node.users and node not in kept and node.op in ("call_function", "get_attr") and not _acts(node):
            graph.erase_node(node)


def _acts(node: fx.Node) -> bool:
    target = node.target
    if node.op == "get_attr":
        return False
    if isinstance(target, internals.OpOverload):
        return op_has_side_effects(target, node)
    if isinstance(target, internals.HigherOrderOperator):
        return True
    return target in SWITCHES
