"""Matches of a pattern in a graph: which nodes stand for which, and what the variables are.

A match is searched from the pattern's last result backwards, along arguments; then, where that leaves a result out,
forwards along users. Operators must be the same; where the order of two arguments does not matter both orders are
tried. Nodes of a match that are not results of the pattern must have no users outside it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from ingot import torch_internals as internals
from ingot.analysis.side_effects import has_side_effects
from ingot.ir import metadata
from ingot.rewriting.pattern import Pattern, arguments_of

aten = torch.ops.aten

# Operators whose first two arguments may change places.
_COMMUTES = frozenset(
    getattr(getattr(aten, name), overload)
    for name, overload in [
        *((name, "Tensor") for name in ("add", "add_", "mul", "mul_", "eq", "ne")),
        *((name, "Tensor") for name in ("bitwise_and", "bitwise_or", "bitwise_xor")),
        *((name, "default") for name in ("maximum", "minimum", "logical_and", "logical_or", "logical_xor")),
    ]
)


@dataclass(frozen=True, eq=False)
class Match:
    """One place where a pattern is found.

    `nodes` are the program's nodes by those of the pattern; `inputs` what each input of the pattern is: a node, a
    literal, or None; `literals` what the pattern's operators are given there, by operator and argument: the first
    convolution's stride is `literals["conv2d.stride"]`, the second one's `literals["conv2d_1.stride"]`.
    """

    pattern: Pattern
    nodes: Mapping[fx.Node, fx.Node]
    inputs: Mapping[str, Any]
    literals: Mapping[str, Any]

    @property
    def results(self) -> tuple[fx.Node, ...]:
        """The program's nodes that compute what the pattern returns."""
        return tuple(self.nodes[node] for node in self.pattern.results)

    @property
    def as_written(self) -> bool:
        """Whether all literals are those that the pattern itself has."""
        return all(
            value == self.literals[f"{node.name}.{name}"]
            for node in self.pattern.calls
            for name, value in arguments_of(node).items()
            if f"{node.name}.{name}" in self.literals
        )

    def value(self, name: str) -> Any:
        """The fake value of an input, with its shape and type; a literal as it is."""
        found = self.inputs[name]
        return metadata.value_of(found) if isinstance(found, fx.Node) else found


Guard = Callable[[Match], bool]


def matches(pattern: Pattern, module: fx.GraphModule, where: Guard | None = None) -> list[Match]:
    """All matches in one graph that share no node, earlier ones first. `where` may reject a match."""
    found: list[Match] = []
    taken: set[fx.Node] = set()
    anchor = pattern.results[-1]
    order = {node: number for number, node in enumerate(module.graph.nodes)}
    for node in module.graph.nodes:
        if node.op != "call_function" or node.target is not anchor.target or node in taken:
            continue
        for state in _Search(pattern).match(anchor, node):
            match = state.finish()
            own = set(match.nodes.values())
            if own & taken or not _is_closed(match, own) or not _is_undisturbed(match, own, order):
                continue
            if where is None or where(match):
                found.append(match)
                taken |= own
                break
    return found


def _is_closed(match: Match, own: Collection[fx.Node]) -> bool:
    """Whether the inner values of a match have no users outside."""
    results = set(match.results)
    return all(node in results or all(user in own for user in node.users) for node in match.nodes.values())


def _is_undisturbed(match: Match, own: Collection[fx.Node], order: Mapping[fx.Node, int]) -> bool:
    """Whether nothing between the match's nodes writes, has an effect, or switches a mode."""
    places = sorted(order[node] for node in own)
    between = [node for node, place in order.items() if places[0] < place < places[-1] and node not in own]
    return not any(map(has_side_effects, between))


@dataclass
class _Search:
    """What is known so far of one match. Copied where there is more than one way to go on."""

    pattern: Pattern
    nodes: dict[fx.Node, fx.Node] = field(default_factory=dict)
    inputs: dict[str, Any] = field(default_factory=dict)
    literals: dict[str, Any] = field(default_factory=dict)

    def copy(self) -> _Search:
        return _Search(self.pattern, dict(self.nodes), dict(self.inputs), dict(self.literals))

    def finish(self) -> Match:
        inputs = {name: self.inputs.get(name) for name in self.pattern.parameters}
        return Match(self.pattern, self.nodes, inputs, self.literals)

    def match(self, mine: fx.Node, theirs: fx.Node) -> Iterator[_Search]:
        """All ways in which `theirs` computes what `mine` does, the rest of the pattern included."""
        for state in self._node(mine, theirs):
            yield from state._rest()

    def _rest(self) -> Iterator[_Search]:
        """Results that nothing so far leads to are looked for among the users of what is known."""
        missing = next((node for node in self.pattern.calls if node not in self.nodes), None)
        if missing is None:
            yield self
            return
        known = [n for n in missing.all_input_nodes if n in self.nodes or self.pattern.inputs.get(n) in self.inputs]
        if not known:
            return
        seen = self.nodes.get(known[0], self.inputs.get(self.pattern.inputs.get(known[0], "")))
        users = list(seen.users) if isinstance(seen, fx.Node) else []
        for user in users:
            if user.target is missing.target and user not in self.nodes.values():
                for state in self.copy()._node(missing, user):
                    yield from state._rest()

    def _node(self, mine: fx.Node, theirs: Any) -> Iterator[_Search]:
        if mine in self.pattern.inputs:
            if self._bind(self.pattern.inputs[mine], theirs, mine):
                yield self
            return
        if mine in self.nodes:
            if self.nodes[mine] is theirs:
                yield self
            return
        if not isinstance(theirs, fx.Node) or theirs.target is not mine.target or theirs in self.nodes.values():
            return
        asked, given = arguments_of(mine), arguments_of(theirs)
        for order in _orders(mine, asked, given):
            state = self.copy()
            state.nodes[mine] = theirs
            yield from state._arguments(mine, list(asked.items()), order)

    def _arguments(self, mine: fx.Node, asked: list[tuple[str, Any]], given: Mapping[str, Any]) -> Iterator[_Search]:
        if not asked:
            yield self
            return
        (name, value), *rest = asked
        if not isinstance(mine.target, internals.OpOverload) and not isinstance(value, fx.Node):
            if value != given.get(name):  # which of several results: no literal that could vary
                return
            yield from self._arguments(mine, rest, given)
            return
        for state in self._argument(f"{mine.name}.{name}", value, given.get(name)):
            yield from state._arguments(mine, rest, given)

    def _argument(self, name: str, mine: Any, theirs: Any) -> Iterator[_Search]:
        if isinstance(mine, fx.Node):
            yield from self.copy()._node(mine, theirs)
        elif isinstance(mine, list | tuple) and any(isinstance(item, fx.Node) for item in mine):
            if isinstance(theirs, list | tuple) and len(theirs) == len(mine):
                states = [self]
                for place, (ours, other) in enumerate(zip(mine, theirs, strict=True)):
                    states = [s for state in states for s in state._argument(f"{name}.{place}", ours, other)]
                yield from states
        elif _is_literal(theirs) and (mine is None) == (theirs is None):
            state = self.copy()
            number = self.pattern.number(mine)
            if number is None or state._bind(number, theirs, None):
                state.literals[name] = theirs
                yield state

    def _bind(self, name: str, value: Any, mine: fx.Node | None) -> bool:
        """Whether an input of the pattern may be this value; from now on it is."""
        if name in self.inputs:
            known = self.inputs[name]
            return known is value or (not isinstance(known, fx.Node) and type(known) is type(value) and known == value)
        if mine is not None:
            if value is None:
                if name not in self.pattern.optional:
                    return False
            elif not isinstance(value, fx.Node) or not _alike(metadata.value_of(mine), metadata.value_of(value)):
                return False
        self.inputs[name] = value
        return True


def _orders(mine: fx.Node, asked: Mapping[str, Any], given: dict[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield given
    if mine.target not in _COMMUTES or given.get("alpha", 1) != 1 or asked.get("alpha", 1) != 1:
        return
    first, second, *_ = given
    if isinstance(given[second], fx.Node) and isinstance(asked[second], fx.Node):
        yield {**given, first: given[second], second: given[first]}


def _is_literal(value: Any) -> bool:
    """Whether a value is not a tensor: numbers, lists of them, data-dependent sizes."""
    if isinstance(value, fx.Node):
        return internals.is_symbolic(metadata.value_of(value))
    if isinstance(value, list | tuple):
        return all(map(_is_literal, value))
    return True


def _alike(example: Any, value: Any) -> bool:
    """Whether a value has the example's rank and type."""
    if not isinstance(example, torch.Tensor) or not isinstance(value, torch.Tensor):
        return False
    return example.dim() == value.dim() and example.dtype == value.dtype and example.device.type == value.device.type
