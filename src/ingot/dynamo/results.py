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
from ingot.dynamo.arguments import evaluate
from ingot.dynamo.memory_order import Order, example_of, order_of
from ingot.errors import CompileError, format_error
from ingot.ir.metadata import value_of, where

aten = torch.ops.aten


class GraphNotSupported(CompileError):
    """A graph that could be compiled, with another result than eager's or none at all."""


@dataclass(frozen=True, slots=True)
class ResultSource:
    """Where a result comes from: "value" itself, "argument" or native "result" by number, or a "number" to evaluate.

    With `fake`, it is a tensor of that shape, those strides and that offset in the memory of what it comes from. By
    `turns` it is negated, or conjugated, when it is read, where what it comes from is not, or the other way round.
    """

    kind: str
    of: Any
    fake: torch.Tensor | None = None
    order: Order | None = None
    turns: tuple[bool, bool] = (False, False)


# A step that finishes a result: its kind, what it is made of, and sizes, strides, offset and dtype where it needs them.
Step = tuple[Any, ...]


class Results:
    """What a graph returns. `computed` are the nodes that native code has to compute, each in its order."""

    def __init__(
        self, graph: fx.GraphModule, arguments: Sequence[fx.Node], known: Collection[sympy.Basic], writes: bool
    ) -> None:
        """`known` are the symbols whose values the arguments give; `writes` is whether arguments are written to."""
        self._known = set(known)
        self.computed: list[tuple[fx.Node, Order | None]] = []
        self._numbers: dict[fx.Node, int] = {}
        self._nodes = arguments
        self._places = {node: place for place, node in enumerate(arguments)}
        self._arguments = {
            internals.storage_id(value_of(node)): place
            for place, node in reversed(list(enumerate(arguments)))
            if isinstance(value_of(node), torch.Tensor)
        }
        output: Any = graph.graph.output_node().args[0]
        self.is_single = not isinstance(output, list | tuple)
        outputs = [output] if self.is_single else list(output)
        self._owners = _owners(graph, outputs, writes)
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
        if fake.layout is not torch.strided:
            raise _refusal(node, "native code has no sparse values")
        memory = internals.storage_id(fake)
        if memory in self._arguments:
            place = self._arguments[memory]
            return ResultSource("argument", place, fake, turns=_turns(node, self._nodes[place]))
        owner = self._owners.get(memory, node)
        order = order_of(value_of(owner))
        if owner is not node:
            if order is None:
                raise _refusal(owner, "several results share its memory, which has holes")
            return ResultSource("view", self._compute(owner, order), fake, order, _turns(node, owner))
        return ResultSource("result", self._compute(node, order), fake, order)

    @property
    def fakes(self) -> list[Any]:
        """What native code computes, in the order of its results."""
        return [value_of(node) for node, _ in self.computed]

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
            return ("view of argument", *place, source.turns)
        if source.kind == "view":
            return ("view of result", *place, source.turns)
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
        return ("view of result", source.of, shape, strides, 0, fake.dtype, source.turns)


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
        view = tensor.as_strided(shape, strides, offset)
    else:
        view = torch.empty(0, dtype=dtype, device=tensor.device)
        view = view.set_(tensor.untyped_storage(), offset, shape, strides)
    is_negated, is_conjugated = place[4]
    view = torch._neg_view(view) if is_negated else view
    return view.conj() if is_conjugated else view


def _turns(node: fx.Node, owner: fx.Node) -> tuple[bool, bool]:
    """How a tensor is read otherwise than the one whose memory it shares."""
    fake, other = value_of(node), value_of(owner)
    if fake.dtype is not other.dtype:
        if owner.op != "placeholder" and is_lazy(other):  # native code computed what is read, not what eager has there
            raise _refusal(node, "it shares memory in another dtype with what is negated or conjugated when it is read")
        return fake.is_neg(), fake.is_conj()
    return fake.is_neg() != other.is_neg(), fake.is_conj() != other.is_conj()


def is_lazy(fake: torch.Tensor) -> bool:
    """Whether a tensor is negated or conjugated when it is read."""
    return fake.is_neg() or fake.is_conj()


def _owners(graph: fx.GraphModule, outputs: Sequence[Any], writes: bool) -> dict[int, fx.Node]:
    """For memory that several results share, the node that makes it.

    Also for memory in which a result does not begin at the start, where the graph writes to arguments: the result may
    be one of them, which AOTAutograd then makes of the place that the result has.
    """
    shared: dict[int, set[fx.Node]] = {}
    for node in outputs:
        if isinstance(node, fx.Node) and isinstance(value_of(node), torch.Tensor):
            shared.setdefault(internals.storage_id(value_of(node)), set()).add(node)
    found: dict[int, fx.Node] = {}
    for node in graph.graph.nodes:
        value = value_of(node)
        if node.op == "call_function" and isinstance(value, torch.Tensor):
            memory = internals.storage_id(value)
            results = shared.get(memory, ())
            if len(results) > 1 or (writes and any(example_of(value_of(r).storage_offset()) for r in results)):
                found.setdefault(memory, node)
    return found


def _call(graph: fx.Graph, origin: fx.Node, target: Any, args: tuple[Any, ...]) -> fx.Node:
    made = graph.call_function(target, args)
    made.meta.update(origin.meta)
    return made


def _refusal(node: fx.Node, why: str) -> GraphNotSupported:
    return GraphNotSupported(format_error(f"A result cannot be native: {node.name}.", where=where(node), why=why))
