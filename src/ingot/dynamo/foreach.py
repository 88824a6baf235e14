"""Operators on lists of tensors, which optimizers call: the same operator on each tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten

_PREFIX = "aten::_foreach_"
# Where the operator on one tensor has another name for a number in the second place.
_OF_NUMBERS = {"maximum": "clamp_min", "minimum": "clamp_max"}
# Those whose last number has a name.
_SCALED = ("addcmul", "addcdiv")


def foreach_form(target: Any) -> Callable[..., list[torch.Tensor]] | None:
    """A function that computes a functional operator on lists by operators on tensors; None for any other operator."""
    schema = getattr(target, "_schema", None)
    if schema is None or not schema.name.startswith(_PREFIX) or schema.is_mutable or not schema.returns:
        return None
    name = schema.name.removeprefix(_PREFIX)
    if name not in ("norm", "powsum", *_SCALED) and not hasattr(aten, name):
        return None

    def apply(*args: Any, **kwargs: Any) -> list[torch.Tensor]:
        return _apply(name, target, *args, **kwargs)

    return apply


def _apply(name: str, target: Any, *args: Any, **kwargs: Any) -> list[torch.Tensor]:
    given = dict(zip((argument.name for argument in target._schema.arguments), args, strict=False)) | kwargs
    lists = {key: value for key, value in given.items() if isinstance(value, list | tuple)}
    scalars = given.get("scalars")
    if isinstance(scalars, torch.Tensor):  # a number for each, in one tensor
        lists["scalars"] = list(scalars.unbind())
    count = max(len(value) for value in lists.values())
    rest = {key: value for key, value in given.items() if key not in lists}
    return [_one(name, {**rest, **{key: value[i] for key, value in lists.items()}}, [*given]) for i in range(count)]


def _one(name: str, given: dict[str, Any], order: list[str]) -> Any:
    positional = [
        given[key] for key in order if key not in ("alpha", "dtype", "value", "ord", "scalars", "non_blocking")
    ]
    scalar = given.get("scalars", given.get("value", 1))
    if name in _SCALED:
        x, first, second = positional
        change = first * second if name == "addcmul" else first / second
        return x + (change if isinstance(scalar, int) and scalar == 1 else change * scalar)
    if name == "norm":
        return torch.linalg.vector_norm(positional[0], given.get("ord", 2), dtype=given.get("dtype"))
    if "scalars" in given:
        positional.append(scalar)
    number = len(positional) > 1 and not isinstance(positional[1], torch.Tensor)
    found: Any = getattr(aten, _OF_NUMBERS.get(name, name) if number else name)
    return found(*positional, alpha=given["alpha"]) if "alpha" in given else found(*positional)
