"""Decomposed closures: what functions close over, so that each call may pass other tensors.

    part = decompose_closure(score_mod)
    part.key                     equal for functions that do the same with tensors of the same types
    part.tensors                 what it closes over, in order
    part.rebuilt(others)         the same function, closed over other tensors

A closed-over number, string or type is part of the key. Anything else that cannot be inspected is distinguished by
identity.
"""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import nn

Rebuild: TypeAlias = Callable[[Sequence[torch.Tensor]], Any]
_PLAIN = (int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device, type)


@dataclass(frozen=True)
class ClosureSpec:
    """`kept` are the objects that the key names by identity: they must live as long as the key does."""

    key: Hashable
    tensors: tuple[torch.Tensor, ...]
    rebuilt: Rebuild
    kept: tuple[Any, ...]


def decompose_closure(value: Any) -> ClosureSpec:
    walk = _ClosureWalk()
    key, rebuilt = walk.take(value)
    return ClosureSpec(key, tuple(walk.tensors), rebuilt, tuple(walk.kept))


class _ClosureWalk:
    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self.kept: list[Any] = []
        self._open: set[int] = set()

    def take(self, value: Any) -> tuple[Hashable, Rebuild]:
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, _PLAIN):
            return (type(value).__name__, repr(value) if isinstance(value, float) else value), lambda _: value
        if id(value) in self._open:  # it holds itself
            return self._opaque(value)
        self._open.add(id(value))
        try:
            return self._compound(value)
        finally:
            self._open.discard(id(value))

    def _compound(self, value: Any) -> tuple[Hashable, Rebuild]:
        if isinstance(value, types.FunctionType) and _is_users(value):
            return self._function(value)
        if isinstance(value, types.MethodType):
            owner, function = self.take(value.__self__), self.take(value.__func__)
            return ("method", owner[0], function[0]), lambda ts: types.MethodType(function[1](ts), owner[1](ts))
        if isinstance(value, functools.partial):
            parts = [self.take(part) for part in (value.func, value.args, value.keywords)]

            def partial(ts: Sequence[torch.Tensor]) -> Any:
                func, args, keywords = (part[1](ts) for part in parts)
                return functools.partial(func, *args, **keywords)

            return ("partial", *(part[0] for part in parts)), partial
        if type(value) in (tuple, list):
            items = [self.take(item) for item in value]
            kind = type(value)
            return (kind.__name__, *(i[0] for i in items)), lambda ts: kind(i[1](ts) for i in items)
        if type(value) is dict and all(isinstance(name, str) for name in value):
            return self._table("dict", value, dict)
        if isinstance(value, nn.Module):
            return self._table(("module", type(value)), vars(value), functools.partial(_replace_attributes, value))
        return self._opaque(value)

    def _tensor(self, value: torch.Tensor) -> tuple[Hashable, Rebuild]:
        place = next((n for n, known in enumerate(self.tensors) if known is value), len(self.tensors))
        if place == len(self.tensors):
            self.tensors.append(value)
        return ("tensor", place), lambda tensors: tensors[place]

    def _opaque(self, value: Any) -> tuple[Hashable, Rebuild]:
        self.kept.append(value)
        return ("object", id(value)), lambda _: value

    def _table(
        self, name: Hashable, values: dict[str, Any], make: Callable[[dict[str, Any]], Any]
    ) -> tuple[Hashable, Rebuild]:
        items = {key: self.take(item) for key, item in values.items()}
        keys = tuple((key, item[0]) for key, item in items.items())
        return (name, *keys), lambda tensors: make({key: item[1](tensors) for key, item in items.items()})

    def _function(self, function: types.FunctionType) -> tuple[Hashable, Rebuild]:
        code = function.__code__
        cells = [self.take(_content(cell)) for cell in function.__closure__ or ()]
        rest = self.take([function.__defaults__, function.__kwdefaults__])
        used = {n: function.__globals__[n] for n in sorted(_names(code)) if n in function.__globals__}
        used = {n: v for n, v in used.items() if isinstance(v, (*_PLAIN, torch.Tensor)) or _is_users(v)}
        named = {n: self.take(v) for n, v in used.items()}

        def rebuild(tensors: Sequence[torch.Tensor]) -> Any:
            scope = {**function.__globals__, **{n: part[1](tensors) for n, part in named.items()}}
            closure = tuple(types.CellType(part[1](tensors)) for part in cells)
            defaults, named_defaults = rest[1](tensors)
            made = types.FunctionType(code, scope, function.__name__, defaults, closure)
            made.__kwdefaults__ = named_defaults
            return made

        keys = (*(part[0] for part in cells), rest[0], *((n, part[0]) for n, part in named.items()))
        return ("function", code, *keys), rebuild


def _is_users(value: Any) -> bool:
    """Whether to look into a function; torch's own have nothing that changes."""
    return isinstance(value, types.FunctionType) and not (value.__module__ or "").startswith(("torch.", "math"))


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a name that is not bound yet
        return None


def _names(code: types.CodeType) -> set[str]:
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= _names(constant)
    return found


def _replace_attributes(module: nn.Module, attributes: dict[str, Any]) -> nn.Module:
    """A module like this one with other tensors; what is not a parameter any more is a plain attribute."""
    made = copy.copy(module)
    made.__dict__ = {**attributes}
    return made
