"""What the schemas of operators say: names and defaults of arguments, which a call writes, and what results alias.

Arguments are identified by their position in the schema.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from torch._ops import OpOverload

from ingot.torch_internals.operators import unannotated_mutations


@functools.cache
def argument_names(op: OpOverload) -> tuple[str, ...]:
    return tuple(argument.name for argument in op._schema.arguments)


def bind_arguments(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """What a call gives, by name, without the defaults of what it leaves out."""
    return {**dict(zip(argument_names(op), args, strict=False)), **kwargs}


def fill_arguments(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Every argument of a call by name, in the schema's order, with its default where the call leaves it out."""
    given = bind_arguments(op, args, kwargs)
    return {argument.name: given.get(argument.name, argument.default_value) for argument in op._schema.arguments}


@functools.cache
def mutated_positions(op: OpOverload) -> tuple[int, ...]:
    """The arguments that an operator writes to, as far as its schema says."""
    infos = [argument.alias_info for argument in op._schema.arguments]
    return tuple(place for place, info in enumerate(infos) if info is not None and info.is_write)


@functools.cache
def aliased_positions(op: OpOverload) -> tuple[int, ...]:
    """The arguments that an operator writes to or returns views of, as far as its schema says."""
    return tuple(place for place, argument in enumerate(op._schema.arguments) if argument.alias_info is not None)


def values_at(op: OpOverload, positions: Sequence[int], args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """What a call gives for some of the arguments; None for one that it leaves out."""
    names = argument_names(op)
    return [args[place] if place < len(args) else kwargs.get(names[place]) for place in positions]


def mutated_values(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """What a call writes to, tensors and lists of them, whether the schema says so or not."""
    return [*unannotated_mutations(op, args), *values_at(op, mutated_positions(op), args, kwargs)]


@functools.cache
def returned_positions(op: OpOverload) -> tuple[int | None, ...]:
    """For each result of an operator the argument that it is, or None for one of its own."""
    arguments, results = op._schema.arguments, op._schema.returns
    sets = {frozenset(a.alias_info.before_set): place for place, a in enumerate(arguments) if a.alias_info}
    return tuple(sets.get(frozenset(r.alias_info.before_set)) if r.alias_info else None for r in results)
