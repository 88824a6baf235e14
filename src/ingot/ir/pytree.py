"""Nested arguments and results as a flat list of leaves and a `Tree` that says how they were nested.

    Tree   := LEAF | Branch(kind, name, keys, children)
    kind   := tuple | list | dict | namedtuple | dataclass | registered | object

A tree can be compared, printed, and written to a file. Classes are kept by name: a tree that comes from a file finds
its classes among the modules already imported, and where a class is not there its value comes back as a `ResultRecord`.
Nothing is ever imported because a file says so.

None, numbers and strings are leaves like tensors are; the signature distinguishes literals from tensors.
"""

from __future__ import annotations

import dataclasses
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch

from ingot import torch_internals as internals
from ingot.errors import StructureError, UntraceableError, format_error

Path = tuple[str | int, ...]

_LITERALS = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.layout)
_DICTS: tuple[type, ...] = (dict, OrderedDict, defaultdict)


@dataclass(frozen=True, slots=True)
class Tree:
    """One place in a nested value; `kind` is "leaf" or one of the kinds above."""

    kind: str
    name: str = ""
    keys: tuple[str | int, ...] = ()
    children: tuple[Tree, ...] = ()
    context: Any = None
    cls: type | None = field(default=None, compare=False, repr=False)

    @property
    def leaf_count(self) -> int:
        return 1 if self.kind == "leaf" else sum(child.leaf_count for child in self.children)

    def __str__(self) -> str:
        if self.kind == "leaf":
            return "*"
        inside = ", ".join(
            f"{key}: {child}" if isinstance(key, str) else str(child)
            for key, child in zip(self.keys, self.children, strict=True)
        )
        opening, closing = {"tuple": ("(", ")"), "list": ("[", "]"), "dict": ("{", "}")}.get(self.kind, ("(", ")"))
        prefix = "" if self.kind in ("tuple", "list", "dict") else self.name.rsplit(".", 1)[-1]
        return f"{prefix}{opening}{inside}{closing}"


LEAF = Tree("leaf")


class ResultRecord(dict[str, Any]):
    """Stands in for a result class that is not imported here: fields by key and by attribute."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


def flatten(value: Any) -> tuple[list[Any], Tree]:
    """The leaves of `value`, in order, and its tree."""
    leaves: list[Any] = []
    return leaves, _flatten(value, leaves, ())


def _flatten(value: Any, leaves: list[Any], inside: tuple[int, ...]) -> Tree:
    cls = type(value)
    if isinstance(value, torch.Tensor) or cls in _LITERALS or internals.is_symbolic(value):
        leaves.append(value)
        return LEAF
    if id(value) in inside:
        raise UntraceableError(
            format_error(
                f"A {cls.__name__} holds itself, so its tensors cannot be listed.",
                fix="pass the tensors themselves, or register the class with torch.utils._pytree",
            )
        )
    parts = _parts(value, cls)
    if parts is None:
        leaves.append(value)
        return LEAF
    kind, keys, values, context = parts
    inside = (*inside, id(value))
    children = tuple(_flatten(item, leaves, inside) for item in values)
    return Tree(kind, name_of_class(cls), tuple(keys), children, context, cls)


def _parts(value: Any, cls: type) -> tuple[str, Iterable[str | int], Iterable[Any], Any] | None:
    """How to take `value` apart: its kind, a key for each part, the parts, and what else is needed to rebuild it."""
    if cls is tuple or cls is list or cls is torch.Size:
        return "tuple" if cls is not list else "list", range(len(value)), value, None
    if cls in _DICTS and all(isinstance(key, str | int) for key in value):
        return "dict", value.keys(), value.values(), None
    registered = internals.registered_container(cls)
    if registered is not None:
        values, context = registered.flatten_fn(value)
        values = list(values)
        return "registered", keys_of_parts(cls, context, len(values)), values, context
    if isinstance(value, tuple) and hasattr(cls, "_fields"):
        return "namedtuple", cls._fields, value, None
    if dataclasses.is_dataclass(cls):
        names = [f.name for f in dataclasses.fields(cls)]
        return "dataclass", names, [getattr(value, name) for name in names], None
    if isinstance(value, Mapping) and all(isinstance(key, str | int) for key in value):
        return "dict", value.keys(), value.values(), None
    attributes = getattr(value, "__dict__", None)
    if attributes is not None and not _is_opaque(value) and _holds_tensor(attributes.values(), set()):
        return "object", list(attributes), list(attributes.values()), None
    return None


def keys_of_parts(cls: type, context: Any, count: int) -> Iterable[str | int]:
    """A key for each part of a registered container: the names that its context holds, or numbers.

    Torch's rule for dataclasses holds two lists, the names of the fields that are given and of those that are None.
    """
    fields = context[0] if dataclasses.is_dataclass(cls) and isinstance(context, list) and context else None
    for names in (context, fields):
        if isinstance(names, list | tuple) and len(names) == count and all(isinstance(name, str) for name in names):
            return names
    return range(count)


def _is_opaque(value: Any) -> bool:
    return isinstance(value, type | torch.nn.Module) or callable(value)


def _holds_tensor(values: Iterable[Any], seen: set[int]) -> bool:
    for value in values:
        if isinstance(value, torch.Tensor):
            return True
        if id(value) in seen or isinstance(value, _LITERALS):
            continue
        seen.add(id(value))
        if isinstance(value, Mapping):
            inner: Iterable[Any] = value.values()
        elif isinstance(value, list | tuple | set):
            inner = value
        elif hasattr(value, "__dict__") and not _is_opaque(value):
            inner = vars(value).values()
        else:
            continue
        if _holds_tensor(inner, seen):
            return True
    return False


def unflatten(leaves: Sequence[Any], tree: Tree) -> Any:
    """The nested value whose leaves are `leaves`."""
    iterator = iter(leaves)
    value = _unflatten(iterator, tree)
    assert next(iterator, tree) is tree, "more leaves than the tree has slots"
    return value


def _unflatten(leaves: Iterator[Any], tree: Tree) -> Any:
    if tree.kind == "leaf":
        return next(leaves)
    values = [_unflatten(leaves, child) for child in tree.children]
    if tree.kind == "tuple":
        return torch.Size(values) if tree.name == "torch.Size" else tuple(values)
    if tree.kind == "list":
        return values
    named = dict(zip(tree.keys, values, strict=True))
    cls = tree.cls or class_named(tree.kind, tree.name)
    if tree.kind == "dict" and cls in (None, dict, defaultdict):
        return named
    if cls is None:
        return _record(named)
    return _REBUILD[tree.kind](cls, tree, values, named)


def _record(named: dict[str | int, Any]) -> ResultRecord:
    return ResultRecord({str(key): value for key, value in named.items()})


def _rebuild_registered(cls: type, tree: Tree, values: list[Any], named: dict[str | int, Any]) -> Any:
    registered = internals.registered_container(cls)
    if registered is None:
        return _rebuild_dataclass(cls, tree, values, named) if dataclasses.is_dataclass(cls) else _record(named)
    return registered.unflatten_fn(values, tree.context)


def _rebuild_dataclass(cls: type, tree: Tree, values: list[Any], named: dict[str | int, Any]) -> Any:
    fields = dataclasses.fields(cls)
    built = cls(**{f.name: named[f.name] for f in fields if f.init and f.name in named})
    for f in fields:
        if not f.init:
            object.__setattr__(built, f.name, named[f.name])
    return built


def _rebuild_object(cls: type, tree: Tree, values: list[Any], named: dict[str | int, Any]) -> Any:
    built: Any = object.__new__(cls)
    vars(built).update(named)
    return built


_REBUILD: dict[str, Callable[[type, Tree, list[Any], dict[str | int, Any]], Any]] = {
    "dict": lambda cls, tree, values, named: cls(named),
    "namedtuple": lambda cls, tree, values, named: cls(*values),
    "registered": _rebuild_registered,
    "dataclass": _rebuild_dataclass,
    "object": _rebuild_object,
}


def leaf_paths(tree: Tree, at: Path = ()) -> list[Path]:
    """Where each leaf is, e.g. ("past", 0, "keys")."""
    if tree.kind == "leaf":
        return [at]
    return [path for key, child in zip(tree.keys, tree.children, strict=True) for path in leaf_paths(child, (*at, key))]


def format_path(path: Path) -> str:
    """A path as the user would write it: past[0].keys"""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += f".{step}" if text else step
    return text or "the value"


def check_same(expected: Tree, got: Tree, at: Path = ()) -> None:
    """Raises StructureError naming the first place where the two trees differ."""
    if expected == got:
        return
    if (expected.kind, expected.name) != (got.kind, got.name):
        raise StructureError(
            format_error(
                f"{format_path(at)} is {_describe(got)}, but the program was captured with {_describe(expected)}.",
                fix="call the program with the structure it was captured with, or capture again with this one",
            )
        )
    if expected.keys != got.keys:
        missing = [str(k) for k in expected.keys if k not in got.keys]
        extra = [str(k) for k in got.keys if k not in expected.keys]
        detail = "; ".join(
            f"{label} {', '.join(names)}" for label, names in (("missing", missing), ("unexpected", extra)) if names
        )
        raise StructureError(
            format_error(
                f"{format_path(at)} has other parts than the program was captured with: {detail or 'another order'}.",
                fix="call the program with the structure it was captured with, or capture again with this one",
            )
        )
    for key, mine, theirs in zip(expected.keys, expected.children, got.children, strict=True):
        check_same(mine, theirs, (*at, key))
    if expected.context != got.context:
        raise StructureError(
            format_error(
                f"{format_path(at)} is a {expected.name} with other settings than the program was captured with.",
                why=f"captured with {expected.context!r}, called with {got.context!r}",
            )
        )


def _describe(tree: Tree) -> str:
    if tree.kind == "leaf":
        return "a single value"
    return f"a {tree.name.rsplit('.', 1)[-1]} of {len(tree.children)}"


def name_of_class(cls: type) -> str:
    """How a tree names a class: "module:qualname", or the plain name of a builtin."""
    if cls.__module__ == "builtins":
        return cls.__qualname__
    return "torch.Size" if cls is torch.Size else f"{cls.__module__}:{cls.__qualname__}"


def class_named(kind: str, name: str) -> type | None:
    """The class of that name, if it is already imported and is of a kind that can be rebuilt without its own code.

    Importing it, or calling an arbitrary constructor, would run what a file chose.
    """
    module_name, _, qualname = name.rpartition(":")
    found: Any = sys.modules.get(module_name or "builtins")
    for part in qualname.split("."):
        found = vars(found).get(part) if isinstance(found, type | ModuleType) else None  # getattr may import
    if not isinstance(found, type):
        return None
    allowed = {
        "dict": found in _DICTS or (issubclass(found, dict) and found.__init__ is dict.__init__),
        "namedtuple": issubclass(found, tuple) and hasattr(found, "_fields"),
        "dataclass": dataclasses.is_dataclass(found),
        "registered": internals.registered_container(found) is not None or dataclasses.is_dataclass(found),
        "object": getattr(found, "__new__", None) is object.__new__ and not hasattr(found, "__del__"),
    }
    return found if allowed.get(kind, False) else None
