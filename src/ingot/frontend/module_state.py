"""Swaps a module's parameters and buffers for fakes while it is captured, and puts everything back.

Whatever forward does to the module, it looks untouched afterwards: parameters, buffers, and every attribute. What
forward did to buffers is reported, so that the graph can do it too; a tensor stored anywhere else is an error, since
a Program would forget it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ingot import torch_internals as internals
from ingot.errors import StateError, format_error
from ingot.frontend.state_snapshot import Snapshot, holders


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
        self._before = Snapshot(None)
        self._slots: dict[tuple[int, str], tuple[dict[str, Any], str, Entry]] = {}
        self.set_at: dict[tuple[int, str], str] = {}
        if root is not None:
            self._collect(root, parameters=True)
            self._collect(root, parameters=False)

    def _collect(self, root: nn.Module, parameters: bool) -> None:
        for path, module in root.named_modules(remove_duplicate=False):
            table = module._parameters if parameters else module._buffers
            for key, tensor in table.items():
                if tensor is None or not internals.is_strided(tensor):
                    continue  # a sparse tensor is a constant where forward uses it
                name = f"{path}.{key}" if path else key
                if nn.parameter.is_lazy(tensor):
                    raise StateError(
                        format_error(
                            f"{name} has no shape yet.",
                            why=f"{type(module).__name__} is lazy: it makes its parameters at the first call",
                            fix="call the model once with these arguments, then capture it",
                        )
                    )
                persistent = parameters or key not in module._non_persistent_buffers_set
                entry = self._by_id.get(id(tensor))
                if entry is None:
                    entry = Entry(name, tensor, self.fake_of(tensor), parameters, persistent)
                    self._by_id[id(tensor)] = entry
                    self.entries.append(entry)
                self.names[name] = entry
                self._slots.setdefault((id(table), key), (table, key, entry))

    def fake_of(self, tensor: torch.Tensor) -> torch.Tensor:
        if internals.is_plain(tensor):
            return internals.fake_dense(self.mode, tensor, tensor.requires_grad)
        return self.mode.from_tensor(tensor, static_shapes=True)

    def name_of_attribute(self, tensor: torch.Tensor) -> str | None:
        """The path of a tensor that is a plain attribute of a module."""
        for path, module in self.root.named_modules() if self.root is not None else ():
            for key, value in vars(module).items():
                if value is tensor:
                    return f"{path}.{key}" if path else key
        return None

    def swap(self, region: internals.Region) -> None:
        """In the region, the module holds fakes. Afterwards it holds what it held before, whatever happened."""
        self._before = Snapshot(self.root)
        region.defer(self._before.restore)
        # A module may hold its parameters in a list of its own too, as the LSTM does.
        self._before.swap({id(entry.tensor): entry.fake for entry in self.entries})

    def assigned_buffers(self) -> list[tuple[Entry, torch.Tensor]]:
        """The buffers that forward put another tensor into; call while still swapped."""
        assigned: dict[str, tuple[Entry, torch.Tensor]] = {}
        kept = {id(entry) for table, key, entry in self._slots.values() if table.get(key) is entry.fake}
        for table, key, entry in self._slots.values():
            now = table.get(key)
            if now is entry.fake:
                continue
            place = self.set_at.get((id(table), key))
            if id(entry) in kept or assigned.get(entry.name, (entry, now))[1] is not now:
                raise StateError(
                    format_error(
                        f"forward replaces {entry.name} under one of its names and not under the others.",
                        where=place,
                        why="a tensor of the state under several names is one tensor in a Program",
                        fix="write into the buffer in place, or give each name a buffer of its own",
                    )
                )
            if now is None or entry.is_parameter or now.shape != entry.fake.shape or now.dtype != entry.fake.dtype:
                what = "removes" if now is None else "replaces" if entry.is_parameter else "reshapes"
                raise StateError(
                    format_error(
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

    def check_stored(self, origin: Callable[[torch.Tensor], str], varies: Callable[[torch.Tensor], bool]) -> None:
        """Raises StateError if forward stored a tensor outside the buffers; call while still swapped.

        `origin` says at which line a tensor was computed, and `varies` whether it may differ from call to call: what
        does not is a cache, which a Program does without.
        """
        own = {id(entry.fake) for entry in self.entries}
        slots = self._slots.keys()
        for name, holder in holders(self.root):
            before = self._before.previous_value(holder)
            for key, stored in _items(holder):
                if not isinstance(stored, internals.FakeTensor) or id(stored) in own or (id(holder), key) in slots:
                    continue
                old = _tensors(before)
                if isinstance(_get(before, key), torch.Tensor) and id(_get(before, key)) not in self.read_constants:
                    continue  # recomputed before each use (weight_norm's hook), so nothing is carried over
                if not varies(stored) and not any(id(tensor) in self.read_constants for tensor in old):
                    continue
                raise StateError(
                    format_error(
                        f"forward stores a tensor in {_spell(name, holder, key)}, which a Program cannot keep.",
                        where=self.set_at.get((id(holder), key)) or origin(stored),
                        why="only buffers carry state from one call to the next",
                        fix="make it a buffer in __init__: self.register_buffer(name, …, persistent=False)",
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
                    format_error(
                        f"forward writes {first} or {name}, which share memory.",
                        why="a Program keeps tensors of the state apart, so a write to one would not reach the other",
                        fix=f"make {name} a view of {first} inside forward",
                    )
                )

    def keep(self, region: internals.Region, written: set[int]) -> None:
        """After the region the module is as before, and so are its buffers and the parameters that `written` names."""
        before = Snapshot(self.root)
        saved = {
            entry.tensor: entry.tensor.detach().clone()
            for entry in self.entries
            if not entry.is_parameter or internals.storage_id(entry.fake) in written
        }
        plain = {t: t.detach().clone() for _, holder in holders(self.root) for t in _tensors(holder) if t not in saved}
        plain = {t: value for t, value in plain.items() if id(t) not in self._by_id}

        def restore() -> None:
            before.restore()
            with torch.no_grad():
                for tensor, value in (plain | saved).items():
                    tensor.copy_(value)

        region.defer(restore)


def _items(holder: Any) -> list[tuple[Any, Any]]:
    if isinstance(holder, dict):
        return list(holder.items())
    return list(enumerate(holder))


def _tensors(holder: Any) -> list[torch.Tensor]:
    return [] if holder is None else [item for _, item in _items(holder) if isinstance(item, torch.Tensor)]


def _get(holder: Any, key: Any) -> Any:
    if isinstance(holder, dict):
        return holder.get(key)
    return holder[key] if isinstance(holder, list) and key < len(holder) else None


def _spell(name: str, holder: Any, key: Any) -> str:
    """How the user would write the place: layer.cache["k"], layer.last"""
    if isinstance(holder, dict) and isinstance(key, str) and key.isidentifier() and not name.endswith("]"):
        return f"{name}.{key}" if name else key
    return f"{name}[{key!r}]"


def _shape(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}[{', '.join(map(str, tensor.shape))}]"
