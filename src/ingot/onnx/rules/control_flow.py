"""Branches, loops, regions and effects: nodes that hold graphs.

A graph inside a node sees the values around it by their names, so what a branch or a loop's body is given as it is
needs no input of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import torch
from torch import fx

from ingot.ir.metadata import value_of
from ingot.onnx.exporter import Exporter
from ingot.onnx.node_builder import find_used_nodes
from ingot.onnx.registry import OnnxUnsupported, exports
from ingot.onnx.values import OnnxValue

aten = torch.ops.aten
hop = torch.ops.higher_order


# ---------------------------------------------------------------------- graphs


def export_inside(ex: Exporter, module: fx.GraphModule, operands: Sequence[Any]) -> list[Any]:
    """The results of a graph with these operands, written where we are."""
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
    for node, value in zip(placeholders, operands, strict=True):
        ex.values[node] = _as_number(ex, node, value)
    result = ex.run(module.graph)
    return list(result) if isinstance(result, tuple | list) else [result]


def _as_number(ex: Exporter, node: fx.Node, value: Any) -> Any:
    """A tensor where the graph has a number: it binds the number's symbol."""
    fake = value_of(node)
    if isinstance(value, OnnxValue) and isinstance(fake, torch.SymInt | torch.SymFloat | torch.SymBool):
        ex.sizes.bind(fake.node.expr, value)
        return ex.symbolic(fake)
    return value


def as_tensor(ex: Exporter, value: Any) -> OnnxValue:
    """A result of a graph: numbers are tensors of rank 0."""
    if isinstance(value, OnnxValue):
        return value
    if isinstance(value, bool):
        return ex.number(value, torch.bool)
    if isinstance(value, float):
        return ex.number(value, torch.float64)
    if value is None:
        raise OnnxUnsupported("None as a result of a branch or loop")
    return OnnxValue(ex.operand(value, torch.int64).value, torch.int64, ())


def close_graph(ex: Exporter, results: Sequence[OnnxValue], inputs: Sequence[OnnxValue], name: str) -> ir.Graph:
    """The graph of what was written in this scope. Its outputs are values of its own, each once."""
    named = [ex.renamed(part, f"{ex.node.name}.{name}.{place}") for place, part in enumerate(results)]
    return ir.Graph(
        [part.value for part in inputs],
        [part.value for part in named],
        nodes=find_used_nodes(ex.scope.nodes, [part.value for part in named]),
        name=ex.unique(f"{ex.node.name}.{name}"),
    )


# ---------------------------------------------------------------------- branches


@exports(hop.cond, moves_data=True)
def cond(
    ex: Exporter, predicate: Any, yes: fx.GraphModule, no: fx.GraphModule, operands: Sequence[Any] = ()
) -> list[OnnxValue]:
    outs = value_of(ex.node)
    test = ex.operand(predicate, torch.bool)
    test = ex.reshape(test, []) if isinstance(predicate, OnnxValue) and predicate.rank else test
    graphs = []
    for name, branch in (("then", yes), ("else", no)):
        with ex.inner_scope():
            results = [as_tensor(ex, part) for part in export_inside(ex, branch, operands)]
            graphs.append(
                close_graph(ex, [_cast_result(ex, p, o) for p, o in zip(results, outs, strict=True)], [], name)
            )
    return ex.plain("If", [test], [_dtype(out) for out in outs], then_branch=graphs[0], else_branch=graphs[1])


def _cast_result(ex: Exporter, part: OnnxValue, out: Any) -> OnnxValue:
    return ex.cast(part, _dtype(out))


def _dtype(value: Any) -> torch.dtype:
    if isinstance(value, torch.Tensor):
        return value.dtype
    if isinstance(value, bool | torch.SymBool):
        return torch.bool
    return torch.float64 if isinstance(value, float | torch.SymFloat) else torch.int64


# ---------------------------------------------------------------------- loops


def _carry(ex: Exporter, operand: OnnxValue, name: str) -> OnnxValue:
    return ex.named_input(f"{ex.node.name}.{name}", operand.dtype, operand.shape or ())


@exports(hop.while_loop, moves_data=True)
def while_loop(
    ex: Exporter, test: fx.GraphModule, body: fx.GraphModule, carried: Sequence[Any], additional: Sequence[Any] = ()
) -> list[OnnxValue]:
    """ONNX's Loop evaluates the condition before, and at the end of, each iteration."""
    start = [as_tensor(ex, operand) for operand in carried]
    (first,) = export_inside(ex, test, [*start, *additional])
    with ex.inner_scope():
        turn = ex.named_input(f"{ex.node.name}.turn", torch.int64, ())
        going = ex.named_input(f"{ex.node.name}.going", torch.bool, ())
        state = [_carry(ex, part, "carried") for part in start]
        results = [as_tensor(ex, part) for part in export_inside(ex, body, [*state, *additional])]
        results = [ex.cast(part, old.dtype) for part, old in zip(results, start, strict=True)]
        (again,) = export_inside(ex, test, [*results, *additional])
        graph = close_graph(ex, [_truth(ex, again), *results], [turn, going, *state], "body")
    return ex.plain("Loop", [None, _truth(ex, first), *start], [part.dtype for part in start], body=graph)


def _truth(ex: Exporter, value: Any) -> OnnxValue:
    test = ex.operand(value, torch.bool)
    return ex.reshape(test, []) if isinstance(value, OnnxValue) and value.rank else test


def _scan(
    ex: Exporter,
    function: fx.GraphModule,
    init: Sequence[OnnxValue],
    xs: Sequence[OnnxValue],
    additional: Sequence[Any],
) -> list[OnnxValue]:
    """ONNX's Scan: state, and a slice of each x, to new state and a slice of each result."""
    with ex.inner_scope():
        state = [_carry(ex, part, "carried") for part in init]
        slices = [ex.named_input(f"{ex.node.name}.slice", x.dtype, x.sizes[1:]) for x in xs]
        results = [as_tensor(ex, part) for part in export_inside(ex, function, [*state, *slices, *additional])]
        kept = [ex.cast(part, old.dtype) for part, old in zip(results, init, strict=False)]
        results = [*kept, *results[len(kept) :]]
        graph = close_graph(ex, results, [*state, *slices], "body")
    dtypes = [part.dtype for part in results]
    return ex.plain("Scan", [*init, *xs], dtypes, body=graph, num_scan_inputs=len(xs))


@exports(hop.scan, moves_data=True)
def scan(
    ex: Exporter, combine: fx.GraphModule, init: Sequence[Any], xs: Sequence[OnnxValue], additional: Sequence[Any] = ()
) -> list[OnnxValue]:
    return _scan(ex, combine, [as_tensor(ex, part) for part in init], xs, additional)


@exports(hop.map_impl, moves_data=True)
def map_(ex: Exporter, function: fx.GraphModule, xs: Sequence[OnnxValue], extra: Sequence[Any] = ()) -> list[OnnxValue]:
    return _scan(ex, function, [], xs, extra)


@exports(hop.associative_scan, moves_data=True)
def associative_scan(
    ex: Exporter, combine: fx.GraphModule, xs: Sequence[OnnxValue], additional: Sequence[Any] = ()
) -> list[OnnxValue]:
    """One place after another: each is the last one combined with the next input; the first is itself.

    Over all places and not those behind the first, of which there may be none: ONNX Runtime has no empty Scan.
    """
    zero, length = ex.number(0, torch.int64), xs[0].sizes[0]
    first = [OnnxValue(ex.op("Gather", x, zero, axis=0).value, x.dtype, x.sizes[1:]) for x in xs]
    with ex.inner_scope():
        state = [_carry(ex, part, "carried") for part in first]
        slices = [ex.named_input(f"{ex.node.name}.slice", x.dtype, x.sizes[1:]) for x in xs]
        place = ex.named_input(f"{ex.node.name}.place", torch.int64, ())
        combined = [as_tensor(ex, part) for part in export_inside(ex, combine, [*state, *slices, *additional])]
        begun = ex.op("Greater", place, zero)
        made = [
            ex.op("Where", begun, ex.cast(new, here.dtype), here) for new, here in zip(combined, slices, strict=True)
        ]
        graph = close_graph(ex, [*made, *made], [*state, *slices, place], "body")
    dtypes = [x.dtype for x in (*xs, *xs)]
    given = [*first, *xs, ex.range(length)]
    return ex.plain("Scan", given, dtypes, body=graph, num_scan_inputs=len(xs) + 1)[len(xs) :]


# ---------------------------------------------------------------------- regions and effects


@exports(hop.wrap_with_set_grad_enabled, moves_data=True)
def grad_region(ex: Exporter, enabled: bool, function: fx.GraphModule, *operands: Any) -> list[Any]:
    """A file has no gradients: the region is its nodes."""
    return export_inside(ex, function, operands)


@exports(aten._assert_async.msg, aten._assert_async.default, aten._assert_scalar.default, moves_data=True)
def assertion(ex: Exporter, truth: Any, message: str = "") -> None:
    """ONNX has no assertions: the report says which ones are missing."""
    if ex.node.args[0] is not True:  # what the graph says: a condition that was checked before is known to hold
        ex.dropped.append((ex.node, message))


@exports(aten.sym_constrain_range.default, aten.sym_constrain_range_for_size.default, moves_data=True)
def range_check(ex: Exporter, value: Any, *, min: int | None = None, max: int | None = None) -> None:
    """An assertion, too."""
    if isinstance(ex.node.args[0], fx.Node):
        ex.dropped.append((ex.node, f"a value between {min} and {max}"))


@exports(aten._assert_tensor_metadata.default, moves_data=True)
def fact(ex: Exporter, *_: Any, **__: Any) -> None:
    """What capture knew already: there is nothing left to ask when it runs."""


@exports(aten._local_scalar_dense.default, aten.item.default, moves_data=True)
def item(ex: Exporter, x: OnnxValue) -> OnnxValue:
    """A tensor's one value as a number."""
    value = value_of(ex.node)
    dtype = torch.int64 if isinstance(value, torch.SymInt) else torch.float64
    dtype = torch.bool if isinstance(value, torch.SymBool) else dtype
    made = ex.cast(ex.reshape(x, []), dtype)
    return OnnxValue(made.value, dtype, ())
