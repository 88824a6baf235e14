"""What is to be quantized in a program, as a table: one form for our own recipes and for annotations of others.

A *point* is the value of one node as some of its users read it. Points with one set of parameters are a *group*: the
consumers of one value with one scheme, the two sides of a pooling, everything that is concatenated. A *weight* is an
argument that is part of the program's state; it has no observer, its parameters come from itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from torch import fx

from ingot.program.program import Program
from ingot.quantize.scheme import Parameters, Scheme


@dataclass(frozen=True, slots=True)
class Place:
    """A node, by the path of its graph in the program ("" is the outermost) and its name."""

    graph: str
    node: str

    def __str__(self) -> str:
        return f"{self.graph}.{self.node}" if self.graph else self.node


@dataclass(frozen=True, slots=True)
class Fixed:
    """Parameters that are given."""

    scheme: Scheme
    parameters: Parameters


@dataclass(frozen=True, slots=True)
class Derived:
    """Parameters computed from those of other groups, by `derive`; `sources` are keys of points."""

    scheme: Scheme
    sources: tuple[Any, ...]
    derive: Callable[[list[Any]], tuple[Any, Any]]


@dataclass(slots=True)
class Point:
    """The value of `source` as `users` read it; None: as everybody does, the program's results included."""

    source: Place
    users: list[Place] | None = field(default_factory=list)


@dataclass(slots=True)
class Group:
    """Points that are quantized with one set of parameters. `name` is unique in a table."""

    name: str
    scheme: Scheme
    points: list[Point]
    how: Fixed | Derived | None = None
    sources: tuple[str, ...] = ()  # the names of the groups and weights that a derived one hangs on


@dataclass(frozen=True, slots=True)
class Weight:
    """Argument `index` of `user`, which is state of the program, or computed from it."""

    user: Place
    index: int
    scheme: Scheme


@dataclass(frozen=True, slots=True)
class Table:
    """Everything that is quantized in a program, in the order of its nodes."""

    groups: tuple[Group, ...]
    weights: tuple[Weight, ...]


class Builder:
    """Collects points and joins them into groups. The key of a point is its source and its scheme."""

    def __init__(self) -> None:
        self._points: dict[tuple[Place, Any], Point] = {}
        self._parents: dict[tuple[Place, Any], tuple[Place, Any]] = {}
        self._edges: dict[tuple[Place, Place], tuple[Place, Any]] = {}
        self.weights: dict[tuple[Place, int], Weight] = {}

    def edge(self, source: Place, user: Place, how: Any) -> tuple[Place, Any]:
        """One user of a value reads it quantized."""
        key = self._key(source, how)
        self._edges[source, user] = key
        users = self._points[key].users
        if users is not None and user not in users:
            users.append(user)
        return key

    def output(self, source: Place, how: Any) -> tuple[Place, Any]:
        """Every user of a value reads it quantized."""
        key = self._key(source, how)
        self._points[key].users = None
        return key

    def weight(self, user: Place, index: int, scheme: Scheme) -> None:
        self.weights[user, index] = Weight(user, index, scheme)

    def share(self, one: tuple[Place, Any], other: tuple[Place, Any]) -> None:
        """Two points have the same parameters from now on."""
        self._parents[self.root(one)] = self.root(other)

    def root(self, key: tuple[Place, Any]) -> tuple[Place, Any]:
        while self._parents[key] != key:
            key = self._parents[key]
        return key

    def reads(self, source: Place, user: Place) -> tuple[Place, Any] | None:
        """The point that a user reads a value through, or None if it reads the value as it is."""
        return self._edges.get((source, user))

    def _key(self, source: Place, how: Any) -> tuple[Place, Any]:
        key = (source, how)
        if key not in self._points:
            self._points[key] = Point(source)
            self._parents[key] = key
        return key

    def table(self, order: Iterable[Place]) -> Table:
        """What was collected, by the order of the program's nodes."""
        places = {place: index for index, place in enumerate(order)}
        groups: dict[tuple[Place, Any], Group] = {}
        taken: dict[str, int] = {}
        names: dict[tuple[Place, Any], str] = {}
        for key in sorted(self._points, key=lambda k: places[k[0]]):
            root = self.root(key)
            if root not in groups:
                how = root[1]
                scheme = how if isinstance(how, Scheme) else how.scheme
                base = str(key[0]).replace(".", "_")
                taken[base] = taken.get(base, 0) + 1
                name = base if taken[base] == 1 else f"{base}_{taken[base] - 1}"
                groups[root] = Group(name, scheme, [], how if not isinstance(how, Scheme) else None)
            groups[root].points.append(self._points[key])
            names[key] = groups[root].name
        weights = sorted(self.weights.values(), key=lambda w: (places[w.user], w.index))
        return Table(tuple(groups.values()), tuple(weights))


def modules_by_path(module: fx.GraphModule, path: str = "") -> dict[str, fx.GraphModule]:
    """Every graph of a program by its path, the outermost first."""
    found = {path: module}
    for name, child in module.named_children():
        if isinstance(child, fx.GraphModule):
            found.update(modules_by_path(child, f"{path}.{name}" if path else name))
    return found


def nodes_by_place(program: Program) -> dict[Place, fx.Node]:
    """Every node of a program by its place, in order."""
    modules = modules_by_path(program.graph_module)
    return {Place(path, node.name): node for path, module in modules.items() for node in module.graph.nodes}
