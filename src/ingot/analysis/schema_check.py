"""Whether a call's arguments are such as its operator's schema declares: their number, their names, their types.

    aten::relu(Tensor self) -> Tensor
    aten.relu(x)             fits
    aten.relu(x, 2, 3)       "it takes 1 positional argument, and is given 3"
    aten.relu("x")           "self is 'x', and must be a Tensor"

Types are as torch converts them when it calls an operator: a number is a Tensor, an int is a float, None an undefined
Tensor. A node fits wherever a Tensor or a number does: whether it computes one is what the fake run shows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import fx

from ingot import torch_internals as internals

# Whether a value may be given where a type is declared.
Accepts = Callable[[Any], bool]

_INTEGERS = (int, torch.SymInt, torch.SymBool)
_NUMBERS = (*_INTEGERS, float, torch.SymFloat)
_SCALARS = (*_NUMBERS, complex)
# By the name that a schema has for a type. A single-element Tensor stands for its number.
_TYPES: dict[str, tuple[type, ...]] = {
    "Tensor": (torch.Tensor, *_SCALARS, type(None)),
    "int": (*_INTEGERS, torch.Tensor),
    "SymInt": (*_INTEGERS, torch.Tensor),
    "float": (*_NUMBERS, torch.Tensor),
    "complex": (*_SCALARS, torch.Tensor),
    "number": (*_SCALARS, torch.Tensor),
    "Scalar": (*_SCALARS, torch.Tensor),
    "bool": (*_INTEGERS, torch.Tensor),
    "str": (str,),
    "ScalarType": (torch.dtype, int),
    "Layout": (torch.layout, int),
    "MemoryFormat": (torch.memory_format, int),
    "Device": (torch.device, str),
    "Generator": (torch.Generator,),
}


def find_mismatch(node: fx.Node) -> str | None:
    """What is wrong with the arguments of a call of an operator, or None."""
    op = node.target
    if not isinstance(op, internals.OpOverload):
        return None
    declared = op._schema.arguments
    positional = [argument for argument in declared if not argument.kwarg_only]
    if len(node.args) > len(positional):
        count = f"{len(positional)} positional argument{'s' * (len(positional) != 1)}"
        return f"it takes {count}, and is given {len(node.args)}"
    given = dict(zip((argument.name for argument in positional), node.args, strict=False))
    for name, value in node.kwargs.items():
        if name in given:
            return f"it is given {name} twice"
        given[name] = value
    for argument in declared:
        if argument.name not in given:
            if not argument.has_default_value():
                return f"it needs the argument {argument.name}"
            continue
        value = given.pop(argument.name)
        declared_type = str(argument.real_type)
        if not _accepts(declared_type)(value):
            return f"{argument.name} is {value!r}, and must be {_name_type(declared_type)}"
    if given:
        known = ", ".join(argument.name for argument in declared)
        return f"it has no argument {next(iter(given))}; its arguments are {known or 'none'}"
    return None


@cache
def _accepts(declared: str) -> Accepts:
    """What may be given where a schema declares a type; anything where it is one that no table has."""
    inner = declared.partition("[")[2].removesuffix("]")
    if declared.startswith("Optional["):
        some = _accepts(inner)
        return lambda value: value is None or some(value)
    if declared.startswith("List["):
        item = _accepts(inner)
        # A number may stand for a list of as many equal ones as the operator needs.
        return lambda value: all(map(item, value)) if isinstance(value, list | tuple) else item(value)
    types = _TYPES.get(declared)
    if types is None:
        return lambda value: True
    computed = torch.Tensor in types
    return lambda value: computed if isinstance(value, fx.Node) else isinstance(value, types)


def _name_type(declared: str) -> str:
    return f"{'an' if declared[0] in 'aeiouAEIOU' else 'a'} {declared}"
