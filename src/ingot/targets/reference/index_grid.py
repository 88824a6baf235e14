"""Points of loops as arrays: an index is evaluated at all of them at once.

A loop's variable is an array that has the loop's extent in one dim and 1 in all others, so that an expression is as
large as the loops that it depends on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ingot.lowering.index_expr import Atom, Div, MinMax, Size, Symbol
from ingot.targets.base import Fault

IntArray: TypeAlias = NDArray[np.int64]
# Which of a grid's outer points a point belongs to: the place of a local buffer.
LANE = "@lane"


@dataclass(frozen=True, slots=True)
class IndexGrid:
    """Points in row-major order; each variable is an array that broadcasts to `shape`."""

    shape: tuple[int, ...]
    variables: Mapping[str, IntArray]

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    def extend(self, names: Sequence[str], extents: Sequence[int]) -> IndexGrid:
        """With loops inside those that it has."""
        rank, more = len(self.shape), len(names)
        variables = {name: array.reshape(*array.shape, *(1,) * more) for name, array in self.variables.items()}
        for place, (name, extent) in enumerate(zip(names, extents, strict=True)):
            shape = [1] * (rank + more)
            shape[rank + place] = extent
            variables[name] = np.arange(extent, dtype=np.int64).reshape(shape)
        return IndexGrid((*self.shape, *extents), variables)

    def split(self, most: int, axes: int | None = None) -> Iterator[tuple[tuple[slice, ...], IndexGrid]]:
        """Parts of at most so many points, in order, cut along the first `axes` dims; with the place of each part."""
        yield from self._split(most, len(self.shape) if axes is None else axes, (slice(None),) * len(self.shape))

    def _split(self, most: int, axes: int, at: tuple[slice, ...]) -> Iterator[tuple[tuple[slice, ...], IndexGrid]]:
        axis = next((axis for axis in range(axes) if self.shape[axis] > 1), None)
        if self.size <= most or axis is None:
            yield at, self
            return
        extent, begin = self.shape[axis], at[axis].start or 0
        middle = extent // 2
        for first, last in ((0, middle), (middle, extent)):
            cut = slice(first, last)
            variables = {
                name: array[(slice(None),) * axis + (cut,)] if array.shape[axis] > 1 else array
                for name, array in self.variables.items()
            }
            shape = (*self.shape[:axis], last - first, *self.shape[axis + 1 :])
            there = (*at[:axis], slice(begin + first, begin + last), *at[axis + 1 :])
            yield from IndexGrid(shape, variables)._split(most, axes, there)


def make_grid(names: Sequence[str], extents: Sequence[int]) -> IndexGrid:
    return IndexGrid((), {}).extend(names, extents)


def pick_points(names: Sequence[str], extents: Sequence[int], points: IntArray) -> IndexGrid:
    """Some of the points of loops, by their places in row-major order, as a grid of one dim."""
    places = np.unravel_index(points, tuple(extents)) if extents else ()
    variables = {name: place.astype(np.int64) for name, place in zip(names, places, strict=True)}
    return IndexGrid((points.size,), {**variables, LANE: np.arange(points.size, dtype=np.int64)})


def halve(count: int) -> tuple[IntArray, IntArray]:
    """All numbers below `count` in two parts that neighbours, near or far, seldom share.

    Points that must not depend on each other are evaluated part by part: who reads what a point of the other part
    writes finds it missing.
    """
    points = np.arange(count, dtype=np.int64)
    mixed = (points.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(63)
    return points[mixed == 1], points[mixed == 0]


def evaluate_index(size: Size, values: Mapping[str, Any]) -> Any:
    """An expression where symbols are numbers or arrays."""
    if isinstance(size, int):
        return size
    total: Any = 0
    for term, coefficient in size.terms.items():
        value: Any = coefficient
        for atom in term:
            value = value * _evaluate_atom(atom, values)
        total = total + value
    return total


def _evaluate_atom(atom: Atom, values: Mapping[str, Any]) -> Any:
    if isinstance(atom, Symbol):
        if atom.name not in values:
            raise Fault(f"nothing gives {atom.name} a value")
        return values[atom.name]
    left, right = evaluate_index(atom.left, values), evaluate_index(atom.right, values)
    if isinstance(atom, MinMax):
        if isinstance(left, int) and isinstance(right, int):
            return max(left, right) if atom.which == "max" else min(left, right)
        return np.maximum(left, right) if atom.which == "max" else np.minimum(left, right)
    if np.any(np.asarray(right) == 0):
        raise Fault(f"{atom} divides by 0")
    return left // right if isinstance(atom, Div) else left % right
