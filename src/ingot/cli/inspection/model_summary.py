"""What a program consists of, by module: parameters, FLOPs, bytes written, operators.

Inner graphs count too: both branches of a cond as nodes, the costlier one as work; the body of a scan or map once for
each step; the body of a while_loop once, since its number of iterations is unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from ingot import torch_internals as internals
from ingot.analysis import flops
from ingot.cli.inspection.symbol_values import SymbolValues, UnknownSize
from ingot.ir import metadata
from ingot.ir.program import Program
from ingot.ir.signature import InputKind

aten = torch.ops.aten
hop = torch.ops.higher_order


@dataclass(frozen=True, slots=True)
class OpStats:
    """What one node does. `known` is False where it depends on a size that is known only at run time."""

    path: str
    operator: str
    flops: int
    bytes: int
    opaque: bool
    known: bool


@dataclass(frozen=True, slots=True)
class SummaryRow:
    """One module with all that is inside it; the root's path is empty."""

    path: str
    type: str
    parameters: int = 0
    parameter_bytes: int = 0
    flops: int = 0
    bytes: int = 0
    nodes: int = 0

    @property
    def depth(self) -> int:
        return len(self.path.split(".")) if self.path else 0


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """Everything `ingot inspect` shows. `rows` are in the order of execution, a module before what it holds."""

    rows: tuple[SummaryRow, ...]
    operators: Mapping[str, int]
    state_bytes: Mapping[InputKind, int]
    sizes: Mapping[str, int]
    opaque: Mapping[str, int]
    unknown: int
    loops: int

    @property
    def total(self) -> SummaryRow:
        return self.rows[0]


def take(program: Program, chosen: Mapping[str, int] | None = None) -> ModelSummary:
    """Counts a program at its example's sizes, or at those chosen by dim name. Raises SizeError for a bad choice."""
    sizes = SymbolValues(program, chosen or {})
    work = _measure(program.graph_module, sizes, "")
    state: dict[InputKind, int] = dict.fromkeys((InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT), 0)
    for spec in program.signature.state_inputs:
        state[spec.kind] += sizes.bytes_of(program.state_of(spec))
    operators = Counter(item.operator for item in work)
    return ModelSummary(
        rows=tuple(_rows(program, work)),
        operators=dict(sorted(operators.items(), key=lambda pair: (-pair[1], pair[0]))),
        state_bytes=state,
        sizes=sizes.by_name,
        opaque=dict(sorted(Counter(item.operator for item in work if item.opaque).items())),
        unknown=sum(not item.known for item in work),
        loops=operators[_name(hop.while_loop)],
    )


# ---------------------------------------------------------------------- nodes


def _measure(module: fx.GraphModule, sizes: SymbolValues, outer: str) -> list[OpStats]:
    work: list[OpStats] = []
    for node in module.graph.nodes:
        if node.op != "call_function":
            continue
        path = metadata.module_path_of(node) if metadata.module_stack_of(node) else outer
        inner = [_measure(child, sizes, path) for child in _graphs(module, node)]
        known, flops, written = True, 0, 0
        try:
            flops, written = _flops(node, sizes), _count_bytes_written(node, sizes, bool(inner))
            times = _repeats(node, inner, sizes)
        except UnknownSize:
            known, times = False, [1] * len(inner)
        work.append(OpStats(path, _name(node.target), flops, written, _is_opaque(node, bool(inner)), known))
        for items, count in zip(inner, times, strict=True):
            work.extend(replace(item, flops=item.flops * count, bytes=item.bytes * count) for item in items)
    return work


def _graphs(module: fx.GraphModule, node: fx.Node) -> list[fx.GraphModule]:
    """The inner graphs that a node runs."""
    attributes = [getattr(module, str(n.target), None) for n in node.all_input_nodes if n.op == "get_attr"]
    return [found for found in attributes if isinstance(found, fx.GraphModule)]


def _flops(node: fx.Node, sizes: SymbolValues) -> int:
    if not flops.has_rule(node.target):
        return 0

    def shape(argument: fx.Node) -> Any:
        return sizes.shapes(metadata.value_of(argument))

    args: Any = fx.map_arg(node.args, shape)
    kwargs: Any = fx.map_arg(node.kwargs, shape)
    return flops.flops(node.target, args, kwargs, sizes.shapes(metadata.value_of(node)))


_DROPOUTS = frozenset(
    {
        aten.dropout.default,
        aten.alpha_dropout.default,
        aten.feature_dropout.default,
        aten.feature_alpha_dropout.default,
    }
)


def _count_bytes_written(node: fx.Node, sizes: SymbolValues, has_graphs: bool) -> int:
    """The bytes of the tensors that a node makes or fills; none for a view of a tensor that is there already."""
    target, value = node.target, metadata.value_of(node)
    if isinstance(target, internals.HigherOrderOperator):
        return 0 if has_graphs and not flops.has_rule(target) else sizes.bytes_of(value)
    if not isinstance(target, internals.OpOverload) or not metadata.tensors_in(value):
        return 0
    if target in _DROPOUTS and node.args[2:] == (False,):
        return 0
    if target.is_view and not _copies(node, sizes):
        return 0
    return sizes.bytes_of(value)


def _copies(node: fx.Node, sizes: SymbolValues) -> bool:
    """Whether an operator that may return a view (reshape, contiguous, to) makes a copy of these strides instead."""
    inputs: list[torch.Tensor] = []

    def stand_in(argument: fx.Node) -> Any:
        made = sizes.stand_in(metadata.value_of(argument))
        inputs.extend(metadata.tensors_in(made))
        return made

    args: Any = fx.map_arg(node.args, stand_in)
    kwargs: Any = fx.map_arg(node.kwargs, stand_in)
    try:
        made = node.target(*args, **kwargs)  # type: ignore[operator]
    except (RuntimeError, NotImplementedError):
        # A meta tensor cannot move to another device; there the dtype decides.
        return any(tensor.dtype != inputs[0].dtype for tensor in metadata.tensors_in(metadata.value_of(node)))
    storages = {internals.storage_id(tensor) for tensor in inputs}
    return not all(internals.storage_id(tensor) in storages for tensor in metadata.tensors_in(made))


def _is_opaque(node: fx.Node, has_graphs: bool) -> bool:
    """Whether a node may do arithmetic that we cannot see: a custom operator, a higher-order one without graphs."""
    target = node.target
    if flops.has_rule(target):
        return False
    if isinstance(target, internals.HigherOrderOperator):
        return not has_graphs
    return isinstance(target, internals.OpOverload) and target.namespace not in ("aten", "prims")


def _name(target: Any) -> str:
    if isinstance(target, internals.HigherOrderOperator):
        return str(target.name())
    return str(target) if isinstance(target, internals.OpOverload) else str(getattr(target, "__name__", target))


# ---------------------------------------------------------------------- inner graphs


Repeats = Callable[[fx.Node, Sequence[Sequence[OpStats]], SymbolValues], list[int]]


def _repeats(node: fx.Node, inner: Sequence[Sequence[OpStats]], sizes: SymbolValues) -> list[int]:
    """How often a node runs each of its inner graphs."""
    rule = _REPEATS.get(node.target)
    return [1] * len(inner) if rule is None else rule(node, inner, sizes)


def _costlier(node: fx.Node, inner: Sequence[Sequence[OpStats]], sizes: SymbolValues) -> list[int]:
    costs = [(sum(item.flops for item in items), sum(item.bytes for item in items)) for items in inner]
    chosen = costs.index(max(costs))
    return [int(index == chosen) for index in range(len(inner))]


def _each_step(position: int) -> Repeats:
    """A rule for an operator that takes the tensors it goes through as argument `position`."""

    def rule(node: fx.Node, inner: Sequence[Sequence[OpStats]], sizes: SymbolValues) -> list[int]:
        through: Any = node.args[position]
        steps = sizes.shape(metadata.value_of(through[0]))[0]
        return [steps] * len(inner)

    return rule


def _never(node: fx.Node, inner: Sequence[Sequence[OpStats]], sizes: SymbolValues) -> list[int]:
    """A score function runs inside the kernel, on scalars."""
    return [0] * len(inner)


_REPEATS: dict[Any, Repeats] = {
    hop.cond: _costlier,
    hop.scan: _each_step(2),
    hop.associative_scan: _each_step(1),
    hop.map_impl: _each_step(1),
    hop.flex_attention: _never,
}


# ---------------------------------------------------------------------- modules


def _rows(program: Program, work: Sequence[OpStats]) -> Iterator[SummaryRow]:
    types = {call.module: call.type for call in program.module_calls}
    totals: dict[str, SummaryRow] = {}
    children: dict[str, list[str]] = {}

    def add(path: str, amount: SummaryRow) -> None:
        for place in _lineage(path):
            if place not in totals:
                totals[place] = SummaryRow(place, types.get(place, "").rsplit(".", 1)[-1])
                if place:
                    children.setdefault(place.rpartition(".")[0], []).append(place)
            known = totals[place]
            totals[place] = replace(
                known,
                parameters=known.parameters + amount.parameters,
                parameter_bytes=known.parameter_bytes + amount.parameter_bytes,
                flops=known.flops + amount.flops,
                bytes=known.bytes + amount.bytes,
                nodes=known.nodes + amount.nodes,
            )

    add("", SummaryRow("", ""))
    for item in work:
        add(item.path, SummaryRow(item.path, "", flops=item.flops, bytes=item.bytes, nodes=1))
    for name, tensor in program.parameters().items():
        owner = name.rpartition(".")[0]
        size = tensor.numel() * tensor.element_size()
        add(owner, SummaryRow(owner, "", parameters=tensor.numel(), parameter_bytes=size))

    def walk(path: str) -> Iterator[SummaryRow]:
        yield totals[path]
        for child in children.get(path, ()):
            yield from walk(child)

    yield from walk("")


def _lineage(path: str) -> Iterator[str]:
    """A module's path after those of all modules around it: "", "a", "a.b"."""
    yield ""
    end = -1
    while path and end < len(path):
        end = path.find(".", end + 1)
        end = len(path) if end < 0 else end
        yield path[:end]
