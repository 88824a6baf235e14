"""A snapshot of a module's mutable state: its attributes, and the lists, dicts and plain objects they refer to.

`holders` walks it, `Snapshot` keeps it and puts it back. Other modules count, registered or not; tensors, functions and
what belongs to torch itself do not. `keep_memories_clean` sees to functions that remember their results.
"""

from __future__ import annotations

import functools
import sys
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from ingot import torch_internals as internals

_DICTS = (dict, OrderedDict, defaultdict)
_LISTS = (list, deque)
_ATOMS = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)
_OPAQUE = (type, torch.Tensor, types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.ModuleType)
_MISSING = object()

# Where a module keeps what it shows as its own attributes.
TABLES = ("_parameters", "_buffers", "_modules")


def holders(root: nn.Module | None) -> Iterator[tuple[str, Any]]:
    """Each container that can be reached from a module once, with a name a person would use for it."""
    seen: set[int] = set()
    # Last in, first out, with parents ahead of children: a thing is named by the shortest way that leads to it.
    waiting: deque[tuple[str, Any]] = deque([("", root)] if root is not None else [])
    while waiting:
        name, value = waiting.popleft()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if type(value) in _DICTS:
            yield name, value
            parts = [(f"{name}[{key!r}]", item) for key, item in value.items()]
        elif type(value) in _LISTS or type(value) is tuple:
            yield name, value
            parts = [(f"{name}[{index}]", item) for index, item in enumerate(value)]
        elif type(value) is set:
            yield name, value
            parts = [(name, item) for item in value]
        else:
            own = vars(value)
            yield name, own
            parts = [(part, item) for key, item in own.items() for part, item in _name_items(name, key, item)]
        waiting.extend((part, item) for part, item in parts if _is_holder(item))


def _name_items(name: str, key: str, item: Any) -> Iterator[tuple[str, Any]]:
    """An attribute under the name that the user gave it: module.weight, not module._parameters['weight']."""
    prefix = f"{name}." if name else ""
    yield (name if key in TABLES else f"{prefix}{key}"), item
    if key == "_modules":
        yield from ((f"{prefix}{child}", module) for child, module in item.items())


def _is_holder(value: Any) -> bool:
    cls = type(value)
    if cls in _ATOMS or isinstance(value, _OPAQUE):
        return False
    if cls in _DICTS or cls in _LISTS or cls is tuple or cls is set or isinstance(value, nn.Module):
        return True
    return hasattr(value, "__dict__") and not cls.__module__.startswith(("torch.", "builtins", "functools"))


class Snapshot:
    """What every reachable container holds now."""

    def __init__(self, root: nn.Module | None) -> None:
        self._kept: list[tuple[Any, Any]] = []
        self._copies: dict[int, Any] = {}
        for _, holder in holders(root):
            if type(holder) is not tuple:
                copied = holder.copy()
                self._kept.append((holder, copied))
                self._copies[id(holder)] = copied

    def previous_value(self, holder: Any) -> Any:
        """What a container held, or None where it is new."""
        return self._copies.get(id(holder))

    def swap(self, replacements: dict[int, torch.Tensor]) -> None:
        """Puts another tensor wherever one of the given ids stands."""

        def replace(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return replacements.get(id(value), value)
            if type(value) is tuple and any(isinstance(item, torch.Tensor | tuple) for item in value):
                return tuple(replace(item) for item in value)
            return value

        for holder, copied in self._kept:
            if isinstance(holder, dict):
                changed = {key: new for key, item in copied.items() if (new := replace(item)) is not item}
                holder.update(changed)
            elif type(holder) in _LISTS:
                for index, item in enumerate(copied):
                    if (new := replace(item)) is not item:
                        holder[index] = new

    def restore(self) -> None:
        """Puts everything back."""
        for holder, copied in self._kept:
            if isinstance(holder, dict):
                if len(holder) != len(copied) or any(holder.get(k, _MISSING) is not v for k, v in copied.items()):
                    holder.clear()
                    holder.update(copied)
            elif type(holder) is set:
                if holder != copied:
                    holder.clear()
                    holder.update(copied)
            elif len(holder) != len(copied) or any(a is not b for a, b in zip(holder, copied, strict=True)):
                holder.clear()
                holder.extend(copied)


# ---------------------------------------------------------------------- memoized functions

_Memoized = type(functools.lru_cache(lambda: None))


def keep_memories_clean(region: internals.Region, model: Callable[..., Any]) -> None:
    """After the region no function under functools.lru_cache that the model's code names remembers a fake."""
    before = [(function, function.cache_info().misses) for function in _find_memoized_functions(model)]

    def clean() -> None:
        for function, misses in before:
            if function.cache_info().misses not in (0, misses):  # 0 once it is cleared
                function.cache_clear()

    region.defer(clean)


def _find_memoized_functions(model: Callable[..., Any]) -> list[Any]:
    """The memoized functions in the classes of a model's modules and in the files that these classes come from."""
    modules = model.modules() if isinstance(model, nn.Module) else ()
    classes = {cls for module in modules for cls in type(module).__mro__ if not cls.__module__.startswith("torch.")}
    files = {cls.__module__ for cls in classes} | {getattr(model, "__module__", "")}
    spaces = [vars(cls) for cls in classes] + [vars(sys.modules[file]) for file in files if file in sys.modules]
    found: dict[int, Any] = {}
    for entry in [value for space in spaces for value in list(space.values())]:
        # Told apart by their types alone: other objects may raise when any attribute is read.
        kind: type = type(entry)
        value = entry
        if issubclass(kind, staticmethod | classmethod | types.MethodType):
            value = entry.__func__
        elif issubclass(kind, property):
            value = entry.fget
        cells = value.__closure__ or () if issubclass(type(value), types.FunctionType) else ()
        for candidate in (value, *(cell.cell_contents for cell in cells if _is_filled(cell))):
            if issubclass(type(candidate), _Memoized):
                found[id(candidate)] = candidate
    return list(found.values())


def _is_filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False
