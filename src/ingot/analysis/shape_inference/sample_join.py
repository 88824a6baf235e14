"""What the runs of an operator have in common: one type that is right at all sizes that were tried."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import sympy

from ingot.analysis.shape_inference.lattice import UNKNOWN, NumberType, TensorType, TupleType, Type, join
from ingot.analysis.shape_inference.sample_sizes import Sizes, value_of
from ingot.ir import symbolic_dims

T = TypeVar("T")


def join_samples(types: Iterable[Type]) -> Type:
    """The join of one type or more."""
    found: Type | None = None
    for other in types:
        found = other if found is None else join(found, other)
        if found is UNKNOWN:
            break  # what is left can say nothing more
    assert found is not None
    return found


def agreed_type(worked: list[tuple[Sizes, Type]], observed: list[Type], own: Mapping[str, sympy.Symbol]) -> Type:
    """The type that is right at all sizes; dims inferred on symbols are kept where they hold on numbers."""
    sizes = [sizes for sizes, _ in worked]

    def speaks(candidate: Any) -> bool:
        symbols = candidate.free_symbols if isinstance(candidate, sympy.Basic) else ()
        return candidate is not None and all(s.name in own for s in symbols)

    def right(candidate: Any, values: list[Any]) -> bool:
        return all(v is not None and value_of(candidate, s) == v for v, s in zip(values, sizes, strict=True))

    def one(values: list[Any], candidates: list[Any]) -> Any:
        said = [c for c in dict.fromkeys(candidates) if speaks(c)]
        alone = next((c for c in dict.fromkeys([*said, *own.values()]) if right(c, values)), None)
        if alone is not None or not all(isinstance(c, int | sympy.Basic) for c in said):
            return alone
        # An inferred dim may have a bound: a slice that ends beyond the end, one of an empty tensor.
        bounds = [*said, *own.values(), sympy.Integer(0)]
        pairs = [pair for pair in itertools.product(said, bounds) if pair[0] != pair[1]]
        bounded = (symbolic_dims.OPERATIONS[name].build(*pair) for pair in pairs for name in ("max", "min"))
        return next((c for c in bounded if right(c, values)), None)

    def agree(found: list[Type], observed: list[Type]) -> Type:
        if (tensors := _all(TensorType, found, observed)) is not None:
            return agree_tensors(*tensors)
        if (tuples := _all(TupleType, found, observed)) is not None:
            (mine, theirs), length = tuples, len(tuples[1][0].items)
            if any(len(t.items) != length for t in (*mine, *theirs)):
                return UNKNOWN
            return TupleType(
                tuple(agree([f.items[i] for f in mine], [t.items[i] for t in theirs]) for i in range(length))
            )
        if (numbers := _all(NumberType, found, observed)) is not None:
            (got, said), kind = numbers, numbers[1][0].kind
            if any(n.kind is not kind for n in (*got, *said)):
                return UNKNOWN
            return NumberType(kind, one([_plain(f.value) for f in got], [t.value for t in said]))
        return observed[0] if all(t == observed[0] for t in (*found, *observed)) else UNKNOWN

    def agree_tensors(found: list[TensorType], observed: list[TensorType]) -> Type:
        upper = join_samples(observed)
        assert isinstance(upper, TensorType)
        dtype = upper.dtype if all(f.dtype is upper.dtype for f in found) else None
        if len({t.rank for t in (*found, *observed)}) > 1:
            return TensorType(dtype, upper.device, None)
        columns = zip(*(f.dims or () for f in found), strict=True), zip(*(t.dims or () for t in observed), strict=True)
        found_dims = [one([_plain(dim) for dim in mine], list(theirs)) for mine, theirs in zip(*columns, strict=True)]
        return TensorType(dtype, upper.device, tuple(found_dims))

    return agree([result for _, result in worked], observed)


def _all(kind: type[T], found: list[Type], observed: list[Type]) -> tuple[list[T], list[T]] | None:
    """Both lists, if everything in them is of this kind."""
    mine: list[T] = [t for t in found if isinstance(t, kind)]
    theirs: list[T] = [t for t in observed if isinstance(t, kind)]
    return (mine, theirs) if len(mine) == len(found) and len(theirs) == len(observed) else None


def _plain(value: Any) -> Any:
    """A number; None where it is data-dependent."""
    return None if isinstance(value, sympy.Basic) else value


def forget_dims(type_: Type) -> Type:
    """What is left of a type when only ranks are believed."""
    if isinstance(type_, TensorType):
        return TensorType(type_.dtype, type_.device, None if type_.dims is None else (None,) * len(type_.dims))
    if isinstance(type_, TupleType):
        return TupleType(tuple(map(forget_dims, type_.items)))
    return NumberType(type_.kind) if isinstance(type_, NumberType) else type_
