"""The tensors that a model computes with besides its arguments, and what else of it decides about the trace.

    state = ModelState([model])
    key, tensors = state.read()         # at each call: two equal keys, one trace

Tensors are the parameters and buffers as they hang in the modules now, each once, then those of `state.places`: other
attributes that forward reads or sets, and those that functions close over. The key has, of every module, its numbers,
flags, names and hooks, and of every tensor all but its values.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from ingot import torch_internals as internals
from ingot.errors import StateError, format_error
from ingot.frontend.state_snapshot import Snapshot, holders

ATOMS = (bool, int, float, str, type(None), torch.dtype, torch.device, torch.Size)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_MISSING = object()
_TENSORS = (torch.Tensor, nn.Parameter, nn.Buffer)


@dataclass(frozen=True)
class Place:
    """Where a tensor or a number is kept: in a dict or a list, under a key. `name` is how the user writes it."""

    holder: Any
    key: Any
    name: str

    def read(self) -> Any:
        if isinstance(self.holder, dict):
            return self.holder.get(self.key, _MISSING)
        return self.holder[self.key] if self.key < len(self.holder) else _MISSING

    def write(self, value: Any) -> None:
        self.holder[self.key] = value


class ModelState:
    """The state of some modules. `places` grows when a trace meets more of it."""

    def __init__(self, roots: Sequence[nn.Module]) -> None:
        self.roots = tuple(roots)
        self.places: list[Place] = []

    def read(self) -> tuple[Hashable, list[torch.Tensor]]:
        """The key of the state as it is now, and its tensors, each once."""
        tensors: list[torch.Tensor] = []
        numbers: dict[int, int] = {}

        def number(tensor: torch.Tensor) -> int:
            found = numbers.setdefault(id(tensor), len(tensors))
            if found == len(tensors):
                tensors.append(tensor)
            return found

        parts: list[Any] = []
        for module in _modules(self.roots):
            own = vars(module)
            parts.append((id(module), type(module)))
            parts += [item for item in own.items() if type(item[1]) in ATOMS]
            parts += [tuple(map(id, own[hooks].values())) for hooks in _HOOKS if own[hooks]]
            for table in (own["_parameters"], own["_buffers"]):
                parts += [key if tensor is None else (key, number(tensor)) for key, tensor in table.items()]
        for place in self.places:
            value = place.read()
            known = isinstance(value, torch.Tensor)
            parts.append(number(value) if known else value if type(value) in ATOMS else id(value))
        return (tuple(parts), types_of(tensors)), tensors

    def watch(self, place: Place) -> None:
        if not any(place.holder is other.holder and place.key == other.key for other in self.places):
            self.places.append(place)

    def watch_tensor(self, tensor: torch.Tensor) -> None:
        """A tensor that forward reads, neither a parameter nor a buffer: from now on it is read where it hangs."""
        for name, holder in holders(self.container):
            for key, value in _items(holder):
                if value is tensor and not isinstance(holder, tuple | set):
                    self.watch(Place(holder, key, spell(name, key)))
                    return
        self.watch(Place([tensor], 0, "a tensor that a function closes over"))

    @property
    def container(self) -> Any:
        """What reaches all the modules, for those that walk through attributes."""
        return SimpleNamespace(models=list(self.roots)) if len(self.roots) != 1 else self.roots[0]

    def check(self) -> None:
        """Raises StateError where a parameter has no shape yet, or is distributed by the model itself."""
        for root in self.roots:
            for name, module in root.named_modules():
                wrapper = internals.distributes(module)
                if wrapper is not None:
                    raise StateError(
                        format_error(
                            f"{name or 'The model'} exchanges parameters or gradients with other processes: it is made "
                            f"by {wrapper}.",
                            why="what it does besides computing would happen once, when the model is compiled",
                            fix=f"give the compiled model to {wrapper}",
                        )
                    )
            for name, tensor in [*root.named_parameters(), *root.named_buffers()]:
                if nn.parameter.is_lazy(tensor):
                    raise StateError(
                        format_error(
                            f"{name} has no shape yet.",
                            why="its module is lazy: it makes its parameters at the first call",
                            fix="call the model once with these arguments, then compile it",
                        )
                    )


def types_of(tensors: Sequence[torch.Tensor]) -> Hashable:
    """All that a trace depends on but the values, and which of them share memory."""
    memory: dict[int, int] = {}
    return tuple(
        (
            t.shape,
            t.stride() if t.layout is torch.strided else t.layout,
            t.dtype,
            t.device,
            t.requires_grad,
            t.requires_grad and t.is_leaf,
            memory.setdefault(internals.storage_id(t) if t.layout is torch.strided else id(t), len(memory)),
            type(t) if type(t) not in _TENSORS else None,
        )
        for t in tensors
    )


def literal_key(value: Any) -> Hashable:
    """A value that is not a tensor, as a part of a key; None where it cannot be one."""
    if isinstance(value, ATOMS):
        return type(value), repr(value)  # 0.0 and -0.0 are equal, and not the same
    if isinstance(value, complex | bytes | torch.layout | torch.memory_format | enum.Enum | slice | range):
        return type(value), repr(value)
    return (type(value), id(value)) if isinstance(value, type | nn.Module) or callable(value) else None


def _modules(roots: Sequence[nn.Module]) -> Iterator[nn.Module]:
    seen: set[int] = set()
    waiting = list(reversed(roots))
    while waiting:
        module = waiting.pop()
        if id(module) not in seen:
            seen.add(id(module))
            yield module
            waiting.extend(child for child in reversed(module._modules.values()) if child is not None)


# ---------------------------------------------------------------------- what forward changes


@dataclass(frozen=True)
class Change:
    """What forward put somewhere. A tensor is computed anew by each call; any other value is put there by each."""

    place: Place
    value: Any


class Tracked:
    """The modules while they are traced: state tensors are stand-ins, and what forward changes is found and undone."""

    def __init__(self, state: ModelState, stand_ins: dict[int, torch.Tensor]) -> None:
        self._state = state
        self._stand_ins = stand_ins
        self._own = {id(tensor) for tensor in stand_ins.values()}
        self._before = Snapshot(state.container)
        self._before.swap(stand_ins)

    def restore(self) -> None:
        self._before.restore()

    def changes(self) -> list[Change]:
        """What forward changed. Raises StateError for what no call could change in the same way."""
        found: list[Change] = []
        for name, holder in holders(self._state.container):
            before = self._before.previous_value(holder)
            if before is None or isinstance(holder, tuple | set):
                continue
            after = dict(_items(holder))
            for key, old in _items(before):
                new = after.pop(key, _MISSING)
                if new is old or new is self._stand_ins.get(id(old), old) or self._is_copy(old, new):
                    continue
                found.append(self._change(Place(holder, key, spell(name, key)), old, new))
            for key, new in after.items():
                found.append(self._change(Place(holder, key, spell(name, key)), _MISSING, new))
        return [change for change in found if not self._is_kept(change)]

    def _is_copy(self, old: Any, new: Any) -> bool:
        """Tuples of state tensors become tuples of their stand-ins, and equal atoms need not be the same object."""
        return type(old) is type(new) and (type(old) is tuple or (type(old) in ATOMS and old == new))

    def _is_kept(self, change: Change) -> bool:
        """A container of nothing but the state itself, as an LSTM keeps: it is as it was after the call."""
        value = change.value
        parts = list(_items(value)) if isinstance(value, list | dict) else []
        return bool(parts) and all(id(part) in self._own for _, part in parts)

    def _change(self, place: Place, old: Any, new: Any) -> Change:
        if new is _MISSING:
            self._refuse(place, "deletes", "what is gone after one call is there when the next one is compiled")
        if isinstance(new, torch.Tensor):
            if isinstance(old, nn.Parameter):
                self._refuse(place, "replaces the parameter", "a parameter belongs to the optimizer")
            if isinstance(place.holder, list) and old is _MISSING:
                self._refuse(place, "adds a tensor to", "the list would grow at each call")
        elif _has_tensor(new) and not self._is_kept(Change(place, new)):
            self._refuse(place, "keeps tensors in", "only a tensor itself is carried from one call to the next")
        elif isinstance(place.holder, list) and old is _MISSING:
            self._refuse(place, "adds a value to", "the list would grow at each call")
        return Change(place, new)

    def _refuse(self, place: Place, what: str, why: str) -> None:
        raise StateError(
            format_error(
                f"forward {what} {place.name}, which compiled code cannot do.",
                why=why,
                fix="keep what one call leaves for the next in a buffer: self.register_buffer(name, …)",
            )
        )


def _has_tensor(value: Any, seen: tuple[int, ...] = ()) -> bool:
    """Whether a tensor can be reached from a value that is not a module or a function."""
    if isinstance(value, torch.Tensor):
        return True
    if id(value) in seen or isinstance(value, nn.Module | type) or callable(value):
        return False
    if isinstance(value, dict):
        parts = list(value.values())
    elif isinstance(value, list | tuple | set):
        parts = list(value)
    else:
        parts = list(vars(value).values()) if hasattr(value, "__dict__") else []
    return any(_has_tensor(part, (*seen, id(value))) for part in parts)


def _items(holder: Any) -> list[tuple[Any, Any]]:
    return list(holder.items()) if isinstance(holder, dict) else list(enumerate(holder))


def spell(name: str, key: Any) -> str:
    """How the user would write the place: layer.last, layer.cache[0]"""
    if isinstance(key, str) and key.isidentifier() and not name.endswith("]"):
        return f"{name}.{key}" if name else key
    return f"{name}[{key!r}]"
