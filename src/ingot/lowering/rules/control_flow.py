"""Branches, loops, regions and effects: steps that hold steps.

What goes into a branch or loop is in memory before; what comes out is written to buffers that both branches, or every
turn, share.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from ingot import torch_internals as internals
from ingot.errors import UnsupportedOperator
from ingot.ir.metadata import module_path_of, source_of, value_of
from ingot.lowering import tensor_views
from ingot.lowering.index_expr import Expr, Size, size_symbol, symbol
from ingot.lowering.loop_body import BodyBuilder
from ingot.lowering.loop_ir import Assert, BindSymbol, Body, For, If, Loop, Stmt, While
from ingot.lowering.lower import Lowering, lowers
from ingot.lowering.subgraph_lowering import lower_results
from ingot.lowering.tensor_views import Deferred, Index, Strided, TensorValue, contiguous_strides
from ingot.lowering.unsupported import LoweringUnsupported, dtype_name

aten = torch.ops.aten
hop = torch.ops.higher_order


# ---------------------------------------------------------------------- subgraphs


def finalize_result(low: Lowering, operands: Sequence[Any]) -> list[Any]:
    """Operands in memory: a branch may not be the first to compute what others need too."""
    return [low.realize(o) if isinstance(o, TensorValue) else o for o in operands]


def lower_inside(
    low: Lowering, graph_module: fx.GraphModule, operands: Sequence[Any], turn: tuple[Size, Size] = (0, 1)
) -> tuple[list[Stmt], list[Any]]:
    """The steps of a subgraph, and its results. `turn` is the iteration of a loop that they are, and of how many."""
    placeholders = [n for n in graph_module.graph.nodes if n.op == "placeholder"]
    for node, value in zip(placeholders, operands, strict=True):
        low.values[node] = value
    outer, low.steps = low.steps, []
    around, low.turn = low.turn, low.turn * turn[1] + turn[0]
    try:
        result = low.run(graph_module.graph)
        return low.steps, list(result) if isinstance(result, (tuple, list)) else [result]
    finally:
        low.steps, low.turn = outer, around


def append_writes(low: Lowering, steps: list[Stmt], results: Sequence[Any], targets: Sequence[Any]) -> list[Stmt]:
    """The steps, and then each result written to its target."""
    outer, low.steps = low.steps, steps
    try:
        ready = [low.realize(low.scalar(r)) if t is not None else None for r, t in zip(results, targets, strict=True)]
        for value, target in zip(ready, targets, strict=True):
            if target is not None and value is not None:
                low.write(target, value)
        return low.steps
    finally:
        low.steps = outer


def memory(low: Lowering, shape: Sequence[Size], dtype: str, order: Sequence[int] | None = None) -> TensorValue:
    """Memory for a tensor, its dims physically in `order`."""
    order = list(order or range(len(shape)))
    physical = [shape[d] for d in order]
    steps = contiguous_strides(physical)
    strides = tuple(steps[order.index(d)] for d in range(len(shape)))
    return TensorValue(shape, dtype, Strided(low.buffer("temporary", dtype, physical).name, 0, strides))


def allocate_like(low: Lowering, value: Any) -> TensorValue | None:
    """Memory for a value of this type; None for None."""
    if isinstance(value, torch.Tensor):
        return memory(low, low.shape_of(value), dtype_name(value.dtype))
    if isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool):
        return memory(low, (), "int64")
    if value is None:
        return None
    raise LoweringUnsupported(f"a {type(value).__name__} as a result of a branch or loop")


def truth(low: Lowering, value: Any) -> Body:
    ops = BodyBuilder()
    tensor = low.scalar(value)
    return ops.finish([ops.cast(tensor.load(ops, (0,) * tensor.rank), "bool")])


def bind_carried_number(low: Lowering, node: fx.Node, home: TensorValue) -> tuple[Any, list[Stmt]]:
    """A carried number as a size, and the step that reads it at the beginning of each iteration."""
    value = value_of(node)
    if not isinstance(value, torch.SymInt):
        return home, []
    expr = value.node.expr
    if not expr.is_Symbol:
        raise LoweringUnsupported(f"a loop that carries the number {expr}")
    name = low.symbol_of(expr)
    ops = BodyBuilder()
    return low.symbolic(value), [BindSymbol(name, ops.finish([home.load(ops, ())]), low.origin)]


# ---------------------------------------------------------------------- branches


@lowers(hop.cond)
def cond(low: Lowering, predicate: Any, yes: fx.GraphModule, no: fx.GraphModule, operands: Sequence[Any] = ()) -> Any:
    outs = value_of(low.node)
    operands = finalize_result(low, operands)
    if isinstance(predicate, TensorValue):
        low.realize(predicate)
    targets = [allocate_like(low, out) for out in outs]
    branches = []
    for branch in (yes, no):
        steps, results = lower_inside(low, branch, operands)
        branches.append(tuple(append_writes(low, steps, results, targets)))
    low.steps.append(If(truth(low, predicate), branches[0], branches[1], low.origin))
    return collect_results(low, outs, targets)


def collect_results(low: Lowering, outs: Sequence[Any], targets: Sequence[TensorValue | None]) -> list[Any]:
    """Targets as values of the surrounding graph: a number becomes a size."""
    made: list[Any] = []
    for out, target in zip(outs, targets, strict=True):
        if isinstance(out, torch.SymInt) and target is not None:
            if out.node.expr.is_Symbol:
                low.bind(low.symbol_of(out.node.expr), target)
            made.append(low.symbolic(out))
        else:
            made.append(out if target is None or isinstance(out, int) else target)
    return made


# ---------------------------------------------------------------------- loops

# Turns of a while_loop that draw numbers of their own, whatever loops are around it.
TURNS = 1 << 32


@lowers(hop.while_loop)
def while_loop(
    low: Lowering, test: fx.GraphModule, body: fx.GraphModule, carried: Sequence[Any], additional: Sequence[Any] = ()
) -> Any:
    operands, more = finalize_result(low, carried), finalize_result(low, additional)
    homes: list[TensorValue] = []
    for operand in operands:
        tensor = low.scalar(operand)
        home = memory(low, tensor.shape, tensor.dtype)
        low.write(home, tensor)
        homes.append(home)
    draws, (at, count, turned) = low.draws, _count(low)
    parts: list[tuple[list[Stmt], list[Any]]] = []
    for graph in (test, body):
        nodes = [n for n in graph.graph.nodes if n.op == "placeholder"]
        given, first = [], []
        for node, home in zip(nodes, homes, strict=False):
            value, steps = bind_carried_number(low, node, home)
            given.append(value)
            first += steps
        steps, results = lower_inside(low, graph, [*given, *more], (at, TURNS))
        parts.append(([*first, *steps], results))
    (test_steps, (again,)), (steps, results) = parts
    outer, low.steps = low.steps, test_steps
    if isinstance(again, TensorValue):
        low.realize(again)
    low.steps = outer
    # Every result is in memory before the first home is overwritten: each may read all of them.
    kept = append_writes(low, steps, results, [memory(low, h.shape, h.dtype) for h in homes])
    copies = [s.stores[0].buffer for s in kept[len(kept) - len(homes) :]]  # type: ignore[union-attr]
    outer, low.steps = low.steps, kept
    for home, name in zip(homes, copies, strict=True):
        low.write(home, TensorValue(home.shape, home.dtype, Strided(name, 0, contiguous_strides(home.shape))))
    if low.draws > draws:
        low.write(count, low.scalar(at + 1))
        test_steps.insert(0, turned)
    low.steps = outer
    if low.draws > draws:
        low.write(count, low.scalar(0))
    low.steps.append(While(tuple(test_steps), truth(low, again), tuple(kept), low.origin))
    return collect_results(low, value_of(low.node), homes)


def _count(low: Lowering) -> tuple[Size, TensorValue, Stmt]:
    """The number of an iteration, its memory, and the step that reads it when an iteration begins."""
    name, home = low.new_symbol(), memory(low, (), "int64")
    ops = BodyBuilder()
    return size_symbol(name, below=TURNS), home, BindSymbol(name, ops.finish([home.load(ops, ())]), low.origin)


@lowers(hop.map_impl)
def map_(low: Lowering, function: fx.GraphModule, xs: Sequence[TensorValue], extra: Sequence[Any] = ()) -> Any:
    """A function of elements is computed where its results are read; another one in a loop over the places."""
    try:
        return _elements_of_map(low, function, [low.materialize_if_expensive(x) for x in xs], extra)
    except (UnsupportedOperator, LoweringUnsupported):
        pass
    inputs, more = finalize_result(low, xs), finalize_result(low, extra)
    stacked = [allocate_like(low, out) for out in value_of(low.node)]
    name = low.new_symbol()
    at = size_symbol(name, below=inputs[0].shape[0])
    slices = [tensor_views.select(x, 0, at) for x in inputs]
    steps, results = lower_inside(low, function, [*slices, *more], (at, inputs[0].shape[0]))
    steps = append_writes(low, steps, results, [tensor_views.select(s, 0, at) if s else None for s in stacked])
    low.steps.append(For(Loop(name, inputs[0].shape[0]), tuple(steps), low.origin))
    return stacked


def _elements_of_map(low: Lowering, function: fx.GraphModule, xs: Sequence[TensorValue], extra: Sequence[Any]) -> Any:
    def results(place: Size) -> list[TensorValue]:
        slices = [tensor_views.select(x, 0, place) for x in xs]
        return [low.scalar(r) for r in lower_results(function, [*slices, *extra], around=low)]

    def stack_results(number: int, out: torch.Tensor, first: TensorValue) -> TensorValue:
        def load(ops: BodyBuilder, index: Index) -> int:
            return results(index[0])[number].load(ops, index[1:])

        return TensorValue(low.shape_of(out), first.dtype, Deferred(load, first.cost))

    outs = value_of(low.node)
    tried = results(symbol("place", below=xs[0].shape[0]))  # raises for what is not elementwise
    return [stack_results(number, out, first) for number, (out, first) in enumerate(zip(outs, tried, strict=True))]


# ---------------------------------------------------------------------- regions


@lowers(hop.wrap_with_set_grad_enabled)
def grad_region(low: Lowering, enabled: bool, function: fx.GraphModule, *operands: Any) -> Any:
    """Native code has no gradients: the region is its steps."""
    steps, results = lower_inside(low, function, operands)
    low.steps += steps
    return results


# ---------------------------------------------------------------------- effects


def _message(low: Lowering, message: str) -> str:
    source, path = source_of(low.node), module_path_of(low.node)
    where = ", ".join(part for part in (str(source) if source else "", f"in {path}" if path else "") if part)
    return f"{message}\n  where: {where}" if where else message


@lowers(aten._assert_async.msg, aten._assert_async.default, aten._assert_scalar.default)
def assert_(low: Lowering, value: Any, message: str = "An assertion of the model does not hold.") -> None:
    if isinstance(value, TensorValue):
        low.realize(value)
    low.steps.append(Assert(truth(low, value), _message(low, message), origin=low.origin))


@lowers(aten.sym_constrain_range.default, aten.sym_constrain_range_for_size.default)
def constrain(low: Lowering, value: Any, *, min: int | None = None, max: int | None = None) -> None:
    if min is None and low.node.target is aten.sym_constrain_range_for_size.default:
        min = 0
    for name, limit in (("ge", min), ("le", max)):
        if limit is not None and isinstance(value, Expr):
            ops = BodyBuilder()
            holds = ops.call(name, ops.index(value), ops.const(limit, "int64"))
            words = "at least" if name == "ge" else "at most"
            message = _message(low, f"A value must be {words} {limit}.")
            low.steps.append(Assert(ops.finish([holds]), message, origin=low.origin))


@lowers(aten._local_scalar_dense.default, aten.item.default)
def item(low: Lowering, x: TensorValue) -> None:
    """A tensor's one value as a number; the symbol that stands for it takes the value here."""
    value = value_of(low.node)
    expr = internals.expr_to_check(value)
    if isinstance(value, torch.SymBool) and len(expr.free_symbols) == 1 and not expr.is_Symbol:
        (number,) = expr.free_symbols  # torch writes the truth of a tensor as a number that is 1
        low.bind(low.symbol_of(number), x)
        return
    if not expr.is_Symbol:
        return
    if isinstance(value, torch.SymInt):
        low.bind(low.symbol_of(expr), x)
    else:
        low.numbers[expr] = low.realize(tensor_views.reshape(x, (), low.hint))
