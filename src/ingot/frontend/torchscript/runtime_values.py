"""Values of a TorchScript graph while it is imported.

Tensors are fakes, and everything else is a plain Python value: a list is a list, None is None. Four kinds are ours:

    RuntimeScalar    a data-dependent number: `int(x.sum())`, or the counter of a loop
    RuntimeString    text with such a number in it
    DynamicList      the items of a list whose length is data-dependent
    UNSET            what TorchScript leaves uninitialized where a path cannot reach its use
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ingot import torch_internals as internals

DTYPES: dict[type, torch.dtype] = {int: torch.int64, float: torch.float64, bool: torch.bool}


class _Unset:
    def __repr__(self) -> str:
        return "<uninitialized>"


UNSET = _Unset()


class RuntimeString(str):
    """Text with a data-dependent value in it, which is unknown while a script is imported: good only for printing."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, eq=False)
class RuntimeScalar:
    """A number known only at run time: as a 0-d tensor, and, for an int, as the symbol that sizes are made of.

    The tensor is a private copy, so that a write to its source does not change it.
    """

    kind: type
    tensor: torch.Tensor
    symbol: Any = None

    @classmethod
    def read(cls, kind: type, tensor: torch.Tensor, private: bool = False) -> Any:
        """int(tensor), float(tensor) or bool(tensor): a plain number where the recorder knows the value.

        `private`: nothing can write to the tensor afterwards.
        """
        known = tensor.item()
        if isinstance(known, int | float | bool):
            return kind(known)
        if kind is bool and tensor.dtype is not torch.bool:
            return cls(bool, tensor.reshape(()) != 0)
        whole = tensor if tensor.dim() == 0 else tensor.reshape(())
        if private and whole.dtype is DTYPES[kind]:
            return cls.from_tensor(kind, whole)
        return cls.from_tensor(kind, whole.to(DTYPES[kind], copy=True))

    @classmethod
    def from_tensor(cls, kind: type, tensor: torch.Tensor) -> RuntimeScalar:
        """The number in a 0-d tensor that has the kind's dtype and is never written to."""
        return cls(kind, tensor, tensor.item() if kind is int else None)


@dataclass(frozen=True, slots=True, eq=False)
class DynamicList:
    """Items of a list of data-dependent length: the first `count` rows of a tensor."""

    tensor: torch.Tensor
    count: Any


@dataclass(slots=True, eq=False)
class Instance:
    """An object of a TorchScript class."""

    kind: Any
    attributes: dict[str, Any]


def is_number(value: Any) -> bool:
    return isinstance(value, int | float | bool | RuntimeScalar) or internals.is_symbolic(value)


def kind_of(value: Any) -> type:
    """int, float or bool."""
    if isinstance(value, RuntimeScalar):
        return value.kind
    for symbolic, kind in ((torch.SymInt, int), (torch.SymFloat, float), (torch.SymBool, bool)):
        if isinstance(value, symbolic):
            return kind
    return type(value)


def number(value: Any) -> Any:
    """A number as operators take it: plain or symbolic."""
    if not isinstance(value, RuntimeScalar):
        return value
    return value.symbol if value.symbol is not None else value.tensor.item()


def numbers(value: Any) -> Any:
    """The value with every RuntimeScalar in it converted by `number`."""
    if isinstance(value, list | tuple):
        return type(value)(*map(numbers, value)) if hasattr(value, "_fields") else type(value)(map(numbers, value))
    if isinstance(value, dict):
        return {key: numbers(item) for key, item in value.items()}
    return number(value)


def as_tensor(value: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A number as a 0-d tensor."""
    dtype = dtype or DTYPES[kind_of(value)]
    if isinstance(value, RuntimeScalar):
        return value.tensor if value.tensor.dtype is dtype else value.tensor.to(dtype)
    if isinstance(value, torch.SymBool):
        return torch.scalar_tensor(torch.sym_ite(value, 1, 0), dtype=torch.int64) != 0
    return torch.scalar_tensor(value, dtype=dtype)


# ---------------------------------------------------------------------- containers


def containers_in(values: Any) -> Iterator[list[Any] | dict[Any, Any]]:
    """Every list and dict that is reachable, those of instances too, each once."""
    seen: set[int] = set()
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        if isinstance(value, Instance):
            value = value.attributes
        if isinstance(value, tuple):
            waiting.extend(value)
        if not isinstance(value, list | dict) or id(value) in seen:
            continue
        seen.add(id(value))
        waiting.extend(value.values() if isinstance(value, dict) else value)
        yield value


class ContainerContents:
    """What containers hold at one moment, to see later what changed, and to put it back."""

    def __init__(self, values: Any) -> None:
        self._held: list[tuple[Any, Any]] = [(c, c.copy()) for c in containers_in(values)]

    def find_changed(self) -> list[Any]:
        return [container for container, held in self._held if not _holds(container, held)]

    def restore(self) -> None:
        for container, held in self._held:
            if not _holds(container, held):
                refill(container, held)


def refill(container: Any, content: Any) -> None:
    """Makes a list or dict hold what another one does."""
    container.clear()
    if isinstance(container, dict):
        container.update(content)
    else:
        container.extend(content)


def _holds(container: Any, held: Any) -> bool:
    if isinstance(container, dict):
        return list(container) == list(held) and all(container[key] is held[key] for key in held)
    return len(container) == len(held) and all(a is b for a, b in zip(container, held, strict=True))


# ---------------------------------------------------------------------- structure


@dataclass(frozen=True, slots=True)
class ValueStructure:
    """How a value is nested, without its leaves."""

    kind: Any
    keys: tuple[Any, ...] = ()
    children: tuple[ValueStructure, ...] = ()


LEAF = ValueStructure(None)


def flatten(value: Any) -> tuple[list[Any], ValueStructure]:
    """The leaves of a value (tensors, numbers, None, text, modules …) and how they are nested."""
    if isinstance(value, Instance):
        leaves, shape = flatten(value.attributes)
        return leaves, ValueStructure((Instance, value.kind), (), (shape,))
    if isinstance(value, dict):
        items, keys = list(value.values()), tuple(value)
    elif isinstance(value, list | tuple):
        items, keys = list(value), ()
    else:
        return [value], LEAF
    parts = [flatten(item) for item in items]
    return [leaf for leaves, _ in parts for leaf in leaves], ValueStructure(
        type(value), keys, tuple(s for _, s in parts)
    )


def unflatten(leaves: Iterator[Any], shape: ValueStructure) -> Any:
    """A value of that shape; takes the leaves that it needs."""
    if shape == LEAF:
        return next(leaves)
    if isinstance(shape.kind, tuple):
        return Instance(shape.kind[1], unflatten(leaves, shape.children[0]))
    items = [unflatten(leaves, child) for child in shape.children]
    if shape.kind is dict:
        return dict(zip(shape.keys, items, strict=True))
    return shape.kind(*items) if hasattr(shape.kind, "_fields") else shape.kind(items)


def map_leaves(function: Callable[[Any], Any], value: Any) -> Any:
    """The value with each leaf replaced."""
    leaves, shape = flatten(value)
    return unflatten(iter([function(leaf) for leaf in leaves]), shape)
