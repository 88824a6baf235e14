"""What to quantize in a program, as a table: one form for our own recipes and for annotations of others.

A *point* is the value of one node as some of its users read it. Points with one set of parameters are a *group*: the
consumers of one value with one scheme, the two sides of a pooling, everything that is concatenated. A *weight* is an
argument that is part of the program's state; it has no observer, its parameters come from itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import fx

from ingot.ir.names import identifier, unique
from ingot.ir.program import Program
from ingot.passes.constant_fold import Level, levels
from ingot.quantization.qscheme import Parameters, Scheme

hop = torch.ops.higher_order


@dataclass(frozen=True, slots=True)
class Edge:
    """A node, by the path of its graph in the program ("" is the outermost) and its name."""

    graph: str
    node: str

    def __str__(self) -> str:
        return f"{self.graph}.{self.node}" if self.graph else self.node


@dataclass(frozen=True, slots=True)
class Fixed:
    """Parameters that are given."""

    parameters: Parameters


@dataclass(frozen=True, slots=True)
class ObserverSpec:
    """A foreign observer or fake-quantizer: called on tensors; calculate_qparams() returns its parameters."""

    make: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Derived:
    """Parameters that `derive` computes from the modules of other groups and weights, given by name."""

    sources: tuple[str, ...]
    derive: Callable[[list[Any]], tuple[Any, Any]]


How: TypeAlias = Fixed | ObserverSpec | Derived | None


@dataclass(slots=True)
class QuantizationPoint:
    """The value of `source` as `users` read it; None: as everybody does, the program's results included."""

    source: Edge
    users: list[Edge] | None = field(default_factory=list)


@dataclass(slots=True)
class Group:
    """Points that are quantized with one set of parameters. `name` is unique in a table."""

    name: str
    scheme: Scheme
    points: list[QuantizationPoint]
    how: How = None


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """Argument `index` of `user`, which is state of the program; `transposed` against how it is stored.

    Weights of one `family` have one set of parameters; by itself a weight is its own.
    """

    name: str
    user: Edge
    index: int
    scheme: Scheme
    how: How = None
    transposed: bool = False
    family: str = ""


@dataclass(frozen=True, slots=True)
class QuantizationPlan:
    """Everything that is quantized in a program, in the order of its nodes."""

    groups: tuple[Group, ...]
    weights: tuple[QuantizedWeight, ...]

    def points(self) -> list[tuple[Group, QuantizationPoint]]:
        """Every point with its group: those that everybody reads come first, others are put upon them."""
        pairs = [(group, point) for group in self.groups for point in group.points]
        return sorted(pairs, key=lambda pair: pair[1].users is not None)


Key: TypeAlias = tuple[Edge, Scheme]


class Builder:
    """Collects points and joins them into groups. The key of a point is its source and its scheme."""

    def __init__(self) -> None:
        self._points: dict[Key, QuantizationPoint] = {}
        self._parents: dict[Key, Key] = {}
        self._edges: dict[tuple[Edge, Edge], Key] = {}
        self._weights: list[tuple[Edge, int, Scheme, bool]] = []

    def edge(self, source: Edge, user: Edge, scheme: Scheme) -> Key:
        """One user of a value reads it quantized."""
        key = (source, scheme)
        if key not in self._points:
            self._points[key] = QuantizationPoint(source)
            self._parents[key] = key
        users = self._points[key].users
        assert users is not None
        if user not in users:
            users.append(user)
        self._edges[source, user] = key
        return key

    def weight(self, user: Edge, index: int, scheme: Scheme, transposed: bool = False) -> None:
        self._weights.append((user, index, scheme, transposed))

    def share(self, one: Key, other: Key) -> None:
        """Two points have the same parameters from now on."""
        self._parents[self._root(one)] = self._root(other)

    def reads(self, source: Edge, user: Edge) -> Key | None:
        """The point that a user reads a value through, or None if it reads the value as it is."""
        return self._edges.get((source, user))

    def _root(self, key: Key) -> Key:
        while self._parents[key] != key:
            key = self._parents[key]
        return key

    def table(self, order: Iterable[Edge]) -> QuantizationPlan:
        """What was collected, by the order of the program's nodes."""
        places = {place: index for index, place in enumerate(order)}
        groups: dict[Key, Group] = {}
        taken: set[str] = set()
        for key in sorted(self._points, key=lambda k: places[k[0]]):
            root = self._root(key)
            if root not in groups:
                groups[root] = Group(name_in(taken, key[0]), key[1], [])
            groups[root].points.append(self._points[key])
        ordered = sorted(self._weights, key=lambda w: (places[w[0]], w[1]))
        weights = [
            QuantizedWeight(name_in(taken, user, "_weight"), user, index, scheme, transposed=transposed)
            for user, index, scheme, transposed in ordered
        ]
        return QuantizationPlan(tuple(groups.values()), tuple(weights))


def name_in(taken: set[str], place: Edge, end: str = "") -> str:
    """A name for the quantizer at a place that no other has; modules have no attribute that begins in this way."""
    made = unique(f"at_{identifier(str(place))}{end}", taken)
    taken.add(made)
    return made


def modules_by_path(module: fx.GraphModule, path: str = "") -> dict[str, fx.GraphModule]:
    """Every graph of a program by its path, the outermost first."""
    found = {path: module}
    for name, child in module.named_children():
        if isinstance(child, fx.GraphModule):
            found.update(modules_by_path(child, f"{path}.{name}" if path else name))
    return found


def levels_by_path(program: Program, *, training: bool = False) -> dict[str, Level]:
    """The graphs of a program that one node alone calls, by their paths, the outermost first.

    For `training`, without branches and the bodies of loops: torch finds their gradients by tracing them, and there a
    quantizer cannot learn.
    """
    paths = {id(module): path for path, module in modules_by_path(program.graph_module).items()}
    found = {paths[id(level.module)]: level for level in levels(Level(program.graph_module))}
    return {path: level for path, level in found.items() if not (training and _is_traced(level))}


def _is_traced(level: Level) -> bool:
    if level.call is None or level.parent is None:
        return False
    return level.call.target not in (hop.wrap_with_autocast, hop.wrap_with_set_grad_enabled) or _is_traced(level.parent)


def nodes_by_place(program: Program) -> dict[Edge, fx.Node]:
    """Every node of a program by its place, in order."""
    modules = modules_by_path(program.graph_module)
    return {Edge(path, node.name): node for path, module in modules.items() for node in module.graph.nodes}
