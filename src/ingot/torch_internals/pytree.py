"""torch's pytree: containers, and the specs that torch.export keeps."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch.utils import _pytree


def registered_container(cls: type) -> Any:
    """torch's pytree rule for a class, or None."""
    return None if cls in _dataclasses_registered_here else _pytree.SUPPORTED_NODES.get(cls)


# Dataclasses that only torch.export's form needs to be containers for torch: to our own trees they stay dataclasses.
_dataclasses_registered_here: set[type] = set()


TreeSpec = _pytree.TreeSpec


namedtuple_kind: Any = namedtuple  # what torch's pytree calls the type of every named tuple


def register_dataclass(cls: type) -> None:
    """Makes a dataclass a container for torch, in its saved files too, and nothing new for our trees."""
    if _pytree.SUPPORTED_NODES.get(cls) is None:
        _pytree.register_dataclass(cls, serialized_type_name=f"{cls.__module__}.{cls.__qualname__}")
        _dataclasses_registered_here.add(cls)


def is_registered_here(cls: type) -> bool:
    return cls in _dataclasses_registered_here


def leaf_spec() -> TreeSpec:
    return _pytree.treespec_leaf()


def branch_spec(cls: Any, context: Any, children: Sequence[TreeSpec]) -> TreeSpec:
    return TreeSpec(cls, context, list(children))


def branch_parts(spec: TreeSpec) -> tuple[Any, Any, list[TreeSpec]] | None:
    """The type, context and children of a branch, or None for a leaf."""
    return None if spec.is_leaf() else (spec.type, spec.context, spec.children())


def flatten_rule(cls: type) -> Callable[[Any], tuple[Iterable[Any], Any]]:
    return _pytree.SUPPORTED_NODES[cls].flatten_fn


def leaf_spellings(value: Mapping[str, Any]) -> list[str]:
    """How torch spells the way to each leaf of the arguments: ['x'], ['cache'][0], ['batch'].ids"""
    return [_pytree.keystr(path) for path, _ in _pytree.tree_leaves_with_path(value)]
