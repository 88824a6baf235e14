"""The results of a functional graph: what native code computes, and how each result is made of that.

Native results are contiguous. A result that eager would return with other strides is computed in the order of its
memory, without its expanded dims, and gets its strides afterwards. Results that share memory with an argument, or with
each other, are views of it, made in eager.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch import fx

from ingot import torch_internals as internals
from ingot.dynamo.arguments import UNBACKED_EXAMPLE, evaluate
from ingot.errors import CompileError, format_error
from ingot.ir.metadata import value_of, where

aten = torch.ops.aten


class GraphNotSupported(CompileError):
    """A graph that could be compiled, with another result than eager's or none at all."""


@dataclass(frozen=True, slots=True)
class Order:
    """How a native result lies in memory: which dims have one element for all places, and the dims, outermost first."""

    expanded: tuple[int, ...]
    dims: tuple[int, ...]

    @property
    def is_plain(self) -> bool:
        return not self.expanded and self.dims == tuple(range(len(self.dims)))

    @property
    def inverse(self) -> tuple[int, ...]:
        found = [0] * len(self.dims)
        for place, dim in enumerate(self.dims):
            found[dim] = place
        return tuple(found)

    def strides(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The strides of a tensor of this shape in this order without holes."""
        found, step = [0] * len(shape), 1
        for dim in reversed(self.dims):
            if dim not in self.expanded:
                found[dim] = step
                step *= max(shape[dim], 1)
        return tuple(found)


@dataclass(frozen=True, slots=True)
class ResultSource:
    """Where a result comes from: "value" itself, "argument" or native "result" by number, or a "number" to evaluate.

    With `fake`, it is a tensor of that shape, those strides and that offset in the memory of what it comes from.
    """

    kind: str
    of: Any
    fake: torch.Tensor | None = None
    order: Order | None = None


# A step that finishes a result: its kind, what it is made of, and sizes, strides, offset and dtype where it needs them.
Step = tuple[Any, ...]


class Results:
    """What a graph returns. `computed` are the nodes that native code has to compute, each in its order."""

    def __init__(self, graph: fx.GraphModule, arguments: Sequence[fx.Node], known: Collection[sympy.Basic]) -> None:
        """`known` are the symbols whose values the arguments give."""
        self._known = set(known)
        self.computed: list[tuple[fx.Node, Order | None]] = []
        self._numbers: dict[fx.Node, int] = {}
        self._places = {node: place for place, node in enumerate(arguments)}
        self._arguments = {
            internals.storage_id(value_of(node)): place
            for place, node in reversed(list(enumerate(arguments)))
            if isinstance(value_of(node), torch.Tensor)
        }
        output: Any = graph.graph.output_node().args[0]
        self.is_single = not isinstance(output, list | tuple)
        outputs = [output] if self.is_single else list(output)
        self._owners = _owners(graph, outputs)
        self.sources = [self._source(node) for node in outputs]

    def _source(self, node: Any) -> ResultSource:
        if not isinstance(node, fx.Node):
            return ResultSource("value", node)
        if node in self._places:
            return ResultSource("argument", self._places[node])
        fake = value_of(node)
        if isinstance(fake, torch.SymInt) and internals.expr_of(fake).free_symbols <= self._known:
            return ResultSource("number", fake)
        if not isinstance(fake, torch.Tensor):
            return ResultSource("result", self._compute(node, None))
        if fake.is_complex() or fake.is_neg() or fake.layout is not torch.strided:
            raise _refusal(node, "native code has neither complex nor sparse values")
        memory = internals.storage_id(fake)
        if memory in self._arguments:
            return ResultSource("argument", self._arguments[memory], fake)
        owner = self._owners.get(memory, node)
        order = order_of(value_of(owner))
        if owner is not node:
            if order is None:
                raise _refusal(owner, "several results share its memory, which has holes")
            return ResultSource("view", self._compute(owner, order), fake, order)
        return ResultSource("result", self._compute(node, order), fake, order)

    def _compute(self, node: fx.Node, order: Order | None) -> int:
        if node not in self._numbers:
            self._numbers[node] = len(self.computed)
            self.computed.append((node, order))
        return self._numbers[node]

    def rewrite(self, graph: fx.GraphModule, mapped: Mapping[fx.Node, fx.Node]) -> None:
        """Makes a copy of the graph return what native code computes. `mapped` are the copies of its nodes."""
        output = graph.graph.output_node()
        made = []
        with graph.graph.inserting_before(output):
            for node, order in self.computed:
                copy = mapped[node]
                for dim in order.expanded if order is not None else ():
                    copy = _call(graph.graph, node, aten.slice.Tensor, (copy, dim, 0, 1))
                if order is not None and not order.is_plain:
                    copy = _call(graph.graph, node, aten.permute.default, (copy, list(order.dims)))
                made.append(copy)
        output.args = (tuple(made),)
        graph.graph.eliminate_dead_code()
        graph.recompile()

    def steps(self, values: Mapping[sympy.Basic, int]) -> tuple[Step, ...]:
        """How the results of a call with these sizes are finished."""
        return tuple(self._step(source, values) for source in self.sources)

    def _step(self, source: ResultSource, values: Mapping[sympy.Basic, int]) -> Step:
        fake = source.fake
        if source.kind == "number":
            return ("value", evaluate(source.of, values))
        if fake is None:
            return (source.kind, source.of)
        shape = tuple(evaluate(size, values) for size in fake.shape)
        strides = tuple(evaluate(stride, values) for stride in fake.stride())
        place = (source.of, shape, strides, evaluate(fake.storage_offset(), values), fake.dtype)
        if source.kind == "argument":
            return ("view of argument", *place)
        if source.kind == "view":
            return ("view of result", *place)
        order = source.order
        if 0 in shape:
            return ("empty", *place)
        if order is None:
            return ("copy", *place, None)
        dense = order.strides(shape)
        if any(a != b and size > 1 for a, b, size in zip(dense, strides, shape, strict=True)):
            return ("copy", *place, order.inverse)
        if order.is_plain and dense == strides:
            return ("result", source.of)
        return ("view of result", source.of, shape, strides, 0, fake.dtype)


def finish(steps: Sequence[Step], args: Sequence[Any], made: Sequence[Any]) -> list[Any]:
    """The results of a call, of its arguments and of what native code computed."""
    found: list[Any] = []
    for step in steps:
        kind, of = step[0], step[1]
        if kind == "result":
            found.append(made[of])
        elif kind == "argument":
            found.append(args[of])
        elif kind == "value":
            found.append(of)
        else:
            found.append(_place(kind, args[of] if kind == "view of argument" else made[of], *step[2:]))
    return found


def _place(kind: str, tensor: torch.Tensor, *place: Any) -> torch.Tensor:
    shape, strides, offset, dtype = place[:4]
    if kind == "empty":
        return torch.empty_strided(shape, strides, dtype=dtype, device=tensor.device)
    if kind == "copy":
        logical = tensor if place[4] is None else tensor.permute(place[4]).expand(shape)
        return torch.empty_strided(shape, strides, dtype=dtype, device=tensor.device).copy_(logical)
    if tensor.dtype is dtype:
        return tensor.as_strided(shape, strides, offset)
    made = torch.empty(0, dtype=dtype, device=tensor.device)
    return made.set_(tensor.untyped_storage(), offset, shape, strides)


def order_of(fake: torch.Tensor) -> Order | None:
    """The order of a tensor's memory; None where it has holes, or overlaps other than by expanded dims."""
    sizes = [_hint(size) for size in fake.shape]
    strides = [_hint(stride) for stride in fake.stride()]
    expanded = tuple(dim for dim, size in enumerate(sizes) if size > 1 and strides[dim] == 0)
    dims = tuple(range(len(sizes)))
    step = 1
    for dim in reversed(dims):  # row-major memory first: sizes of 1 have any strides
        if sizes[dim] > 1 and strides[dim] != step:
            break
        step *= max(sizes[dim], 1)
    else:
        return Order((), dims)
    if 0 not in sizes:
        places = {dim: place for place, dim in enumerate(dims)}
        dims = tuple(sorted(dims, key=lambda dim: (-strides[dim] if sizes[dim] > 1 else 1, places[dim])))
    order = Order(expanded, dims)
    dense = order.strides([1 if dim in expanded else size for dim, size in enumerate(sizes)])
    fits = all(
        a == b or size <= 1 or dim in expanded
        for dim, (a, b, size) in enumerate(zip(dense, strides, sizes, strict=True))
    )
    return order if fits or 0 in sizes else None


def _hint(size: Any) -> int:
    hint = internals.hint_of(size)
    if hint is not None:
        return hint
    expr = internals.expr_of(size)
    return int(internals.evaluate_expr(expr, dict.fromkeys(expr.free_symbols, UNBACKED_EXAMPLE)))


def _owners(graph: fx.GraphModule, outputs: Sequence[Any]) -> dict[int, fx.Node]:
    """For memory that several results share, the node that makes it."""
    shared: dict[int, set[fx.Node]] = {}
    for node in outputs:
        if isinstance(node, fx.Node) and isinstance(value_of(node), torch.Tensor):
            shared.setdefault(internals.storage_id(value_of(node)), set()).add(node)
    found: dict[int, fx.Node] = {}
    for node in graph.graph.nodes:
        value = value_of(node)
        if node.op == "call_function" and isinstance(value, torch.Tensor):
            memory = internals.storage_id(value)
            if len(shared.get(memory, ())) > 1:
                found.setdefault(memory, node)
    return found


def _call(graph: fx.Graph, origin: fx.Node, target: Any, args: tuple[Any, ...]) -> fx.Node:
    made = graph.call_function(target, args)
    made.meta.update(origin.meta)
    return made


def _refusal(node: fx.Node, why: str) -> GraphNotSupported:
    return GraphNotSupported(format_error(f"A result cannot be native: {node.name}.", where=where(node), why=why))
