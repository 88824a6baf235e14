"""The class of every rule table: which function handles which operator, node kind or type.

RULES: Registry[Any, Rule] = Registry("lowering rule")

@RULES.register(aten.relu.default)
def relu(low, x): ...

RULES.get(node.target)      # the rule, or None
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")
R = TypeVar("R")


class Registry(Mapping[K, V]):
    """A table that only grows. A second rule for a key raises a ValueError that names both.

    `kind` says in errors what the table holds: "lowering rule". Keys may have tags, by which `list_tagged` finds them.
    """

    __slots__ = ("_kind", "_rules", "_tags")

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._rules: dict[K, V] = {}
        self._tags: dict[str, set[K]] = {}

    def register(self, *keys: K, tags: Collection[str] = ()) -> Callable[[R], R]:
        """The decorator that adds a rule for these keys. It returns the rule with its own type."""

        def enter(rule: R) -> R:
            for key in keys:
                self.add(key, rule, tags=tags)  # type: ignore[arg-type]
            return rule

        return enter

    def add(self, key: K, rule: V, *, tags: Collection[str] = ()) -> None:
        """Adds the rule for one key."""
        if key in self._rules:
            raise ValueError(f"{key} has a second {self._kind}: {_name(self._rules[key])} and {_name(rule)}")
        self._rules[key] = rule
        for tag in tags:
            self._tags.setdefault(tag, set()).add(key)

    def find(self, operator: Any) -> V | None:
        """The rule of an operator, or None. That of a library which may not be installed has the name as its key."""
        rule = self._rules.get(operator)
        return self._rules.get(str(operator)) if rule is None else rule  # type: ignore[arg-type]

    def list_tagged(self, tag: str) -> frozenset[K]:
        """The keys that were registered with a tag."""
        return frozenset(self._tags.get(tag, ()))

    def has_tag(self, operator: Any, tag: str) -> bool:
        """Whether the rule that `find` gives was registered with a tag."""
        key = operator if operator in self._rules else str(operator)
        return key in self._tags.get(tag, ())

    def __getitem__(self, key: K) -> V:
        return self._rules[key]

    def __iter__(self) -> Iterator[K]:
        return iter(self._rules)

    def __len__(self) -> int:
        return len(self._rules)


def _name(rule: Any) -> str:
    """A function by its module and name; anything else as it prints."""
    name = getattr(rule, "__qualname__", None)
    return repr(rule) if name is None else f"{rule.__module__}.{name}"
