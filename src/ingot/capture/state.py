"""Swaps a module's parameters and buffers for fakes while it is captured, and puts everything back.

Whatever forward does to the module, it looks untouched afterwards: parameters, buffers, and every attribute. What
forward did to buffers is reported, so that the graph can do it too; a tensor stored anywhere else is an error, since
a Program would forget it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ingot import torch_internals as internals
from ingot.errors import StateError, explain

_INTERNAL = frozenset(vars(nn.Module()))


@dataclass(slots=True)
class Entry:
    """One parameter or buffer: its first name, its tensor, the fake that stands in for it."""

    name: str
    tensor: torch.Tensor
    fake: torch.Tensor
    is_parameter: bool
    persistent: bool


class ModuleState:
    """The state of a module, and where each piece of it hangs."""

    def __init__(self, root: nn.Module | None, mode: internals.FakeTensorMode) -> None:
        self.root = root
        self.mode = mode
        self.entries: list[Entry] = []
        self.names: dict[str, Entry] = {}
        self.read_constants: set[int] = set()
        self._by_id: dict[int, Entry] = {}
        self._before: dict[int, dict[str, Any]] = {}
        self._slots: dict[tuple[int, str], tuple[dict[str, Any], str, Entry, nn.Module]] = {}
        self.set_at: dict[tuple[int, str], str] = {}
        if root is not None:
            self._collect(root, parameters=True)
            self._collect(root, parameters=False)

    def _collect(self, root: nn.Module, parameters: bool) -> None:
        for path, module in root.named_modules(remove_duplicate=False):
            table = module._parameters if parameters else module._buffers
            for key, tensor in table.items():
                if tensor is None:
                    continue
                name = f"{path}.{key}" if path else key
                persistent = parameters or key not in module._non_persistent_buffers_set
                entry = self._by_id.get(id(tensor))
                if entry is None:
                    entry = Entry(name, tensor, self.fake_of(tensor), parameters, persistent)
                    self._by_id[id(tensor)] = entry
                    self.entries.append(entry)
                self.names[name] = entry
                self._slots.setdefault((id(table), key), (table, key, entry, module))

    def fake_of(self, tensor: torch.Tensor) -> torch.Tensor:
        if internals.is_plain(tensor):
            return internals.fake_dense(self.mode, tensor, tensor.requires_grad)
        return self.mode.from_tensor(tensor, static_shapes=True)  # type: ignore[no-any-return]

    def name_of_attribute(self, tensor: torch.Tensor) -> str | None:
        """The path of a tensor that hangs on a module as a plain attribute."""
        for path, module in self.root.named_modules() if self.root is not None else ():
            for key, value in vars(module).items():
                if value is tensor:
                    return f"{path}.{key}" if path else key
        return None

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """Inside, the module holds fakes. Afterwards it holds what it held before, whatever happened."""
        attributes = [(module, _snapshot(module)) for module in (self.root.modules() if self.root is not None else ())]
        self._before = {id(module): own for module, (own, _) in attributes}
        tables = {id(table): (table, dict(table)) for table, *_ in self._slots.values()}
        for table, key, entry, _ in self._slots.values():
            table[key] = entry.fake
        for module, _ in attributes:
            self._swap_references(module)
        try:
            yield
        finally:
            for table, before in tables.values():
                table.clear()
                table.update(before)
            for module, snapshot in attributes:
                _restore(module, snapshot)

    def _swap_references(self, module: nn.Module) -> None:
        """A module may hold its parameters in a list of its own too, as the LSTM does."""
        own = vars(module)
        for key in [key for key in own if key not in _INTERNAL]:
            own[key] = self._swapped_value(own[key])

    def _swapped_value(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            entry = self._by_id.get(id(value))
            return value if entry is None else entry.fake
        if type(value) is list:
            value[:] = [self._swapped_value(item) for item in value]
        elif type(value) is dict:
            value.update({key: self._swapped_value(item) for key, item in value.items()})
        elif type(value) is tuple and any(isinstance(item, torch.Tensor) for item in value):
            value = tuple(self._swapped_value(item) for item in value)
        return value

    def assigned_buffers(self) -> list[tuple[Entry, torch.Tensor]]:
        """The buffers that forward put another tensor into; call while still swapped."""
        assigned: dict[str, tuple[Entry, torch.Tensor]] = {}
        kept = {id(entry) for table, key, entry, _ in self._slots.values() if table.get(key) is entry.fake}
        for table, key, entry, module in self._slots.values():
            now = table.get(key)
            if now is entry.fake:
                continue
            place = self.set_at.get((id(module), key))
            if id(entry) in kept or assigned.get(entry.name, (entry, now))[1] is not now:
                raise StateError(
                    explain(
                        f"forward replaces {entry.name} under one of its names and not under the others.",
                        where=place,
                        why="a tensor of the state under several names is one tensor in a Program",
                        fix="write into the buffer in place, or give each name a buffer of its own",
                    )
                )
            if now is None or entry.is_parameter or now.shape != entry.fake.shape or now.dtype != entry.fake.dtype:
                what = "removes" if now is None else "replaces" if entry.is_parameter else "reshapes"
                raise StateError(
                    explain(
                        f"forward {what} {'the parameter' if entry.is_parameter else 'the buffer'} {entry.name}.",
                        where=place,
                        why=f"it was {_shape(entry.fake)} and {'is gone' if now is None else f'becomes {_shape(now)}'}",
                        fix="compute the value in a local variable; a parameter belongs to the optimizer"
                        if entry.is_parameter
                        else "give the buffer its final shape in __init__ and write into it in place",
                    )
                )
            assigned[entry.name] = (entry, now)
        return list(assigned.values())

    def check_attributes(self, origin: Callable[[torch.Tensor], str]) -> None:
        """Raises StateError if forward stored a tensor in a plain attribute; call while still swapped.

        `origin` says at which line a tensor was computed.
        """
        for path, module in self.root.named_modules() if self.root is not None else ():
            for key, value in vars(module).items():
                stored = None if key in _INTERNAL else self._foreign_fake(value)
                if stored is None:
                    continue
                before = self._before[id(module)].get(key)
                if isinstance(before, torch.Tensor) and id(before) not in self.read_constants:
                    continue  # computed anew before each use (weight_norm's hook), so nothing is carried over
                raise StateError(
                    explain(
                        f"forward stores a tensor in {f'{path}.' if path else ''}{key}, which a Program cannot keep.",
                        where=self.set_at.get((id(module), key)) or origin(stored),
                        why="only buffers carry state from one call to the next",
                        fix=f'make it a buffer in __init__: self.register_buffer("{key}", …, persistent=False)',
                    )
                )

    def check_overlaps(self, written: set[int], constants: Mapping[str, torch.Tensor]) -> None:
        """Raises StateError if forward writes a tensor of the state that shares memory with another one."""
        own = {entry.name: entry.tensor for entry in self.entries}
        writes = {internals.storage_id(e.tensor) for e in self.entries if internals.storage_id(e.fake) in written}
        writes |= {internals.storage_id(tensor) for tensor in constants.values()} & written
        owners: dict[int, str] = {}
        for name, tensor in (own | dict(constants)).items():
            memory = internals.storage_id(tensor)
            first = owners.setdefault(memory, name)
            if first != name and memory in writes and tensor.numel():
                raise StateError(
                    explain(
                        f"forward writes {first} or {name}, which share memory.",
                        why="a Program keeps each tensor of the state by itself, so one would not follow the other",
                        fix=f"make {name} a view of {first} inside forward",
                    )
                )

    @contextmanager
    def put_back(self, written: set[int]) -> Iterator[None]:
        """Afterwards the module's attributes, its buffers, and the parameters that `written` names are as before."""
        attributes = [(module, _snapshot(module)) for module in (self.root.modules() if self.root is not None else ())]
        saved = {
            entry.tensor: entry.tensor.detach().clone()
            for entry in self.entries
            if not entry.is_parameter or internals.storage_id(entry.fake) in written
        }
        plain = {t: t.detach().clone() for _, (own, _) in attributes for t in own.values() if isinstance(t, torch.Tensor)}
        tables = [(table, dict(table)) for table, *_ in self._slots.values()]
        try:
            yield
        finally:
            for table, before in tables:
                table.clear()
                table.update(before)
            for module, snapshot in attributes:
                _restore(module, snapshot)
            with torch.no_grad():
                for tensor, value in (plain | saved).items():
                    tensor.copy_(value)

    def _foreign_fake(self, value: Any) -> torch.Tensor | None:
        """A fake in it that does not stand for a parameter or buffer."""
        if isinstance(value, internals.FakeTensor):
            return value if all(value is not entry.fake for entry in self.entries) else None
        items = value.values() if type(value) is dict else value if type(value) in (list, tuple, set) else ()
        return next((found for item in items if (found := self._foreign_fake(item)) is not None), None)


def _snapshot(module: nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
    """A module's attributes, and the contents of the lists and dicts among them."""
    own = dict(vars(module))
    containers = {k: v for k, v in own.items() if type(v) in (list, dict, set) and k not in _INTERNAL}
    return own, {key: value.copy() for key, value in containers.items()}


def _restore(module: nn.Module, snapshot: tuple[dict[str, Any], dict[str, Any]]) -> None:
    before, contents = snapshot
    now = vars(module)
    for key in [key for key in now if key not in before]:
        del now[key]
    for key, value in before.items():
        if now.get(key) is not value:
            now[key] = value
    for key, value in contents.items():
        container = before[key]
        container.clear()
        container.extend(value) if isinstance(container, list) else container.update(value)


def _shape(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}[{', '.join(map(str, tensor.shape))}]"
