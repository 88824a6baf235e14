"""Where steps read and write: inside their buffers, as far as that can be known before run time.

An access is wrong where one point of its loops is certainly outside, whatever the sizes are. What cannot be decided is
accepted. A load with a mask is never wrong: it may read nothing at that point.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ingot.lowering.index_expr import Size, Symbol, product, substitute, symbol
from ingot.lowering.loop_ir import Body, Buffer, Load, MatrixView, Store, StridedView
from ingot.lowering.loop_module import Module
from ingot.lowering.verification.intervals import Interval, interval_of

# The variables around an access, each with the extent of its loop; None where that is not known.
Around = Mapping[str, Size | None]


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a module ahead of its run: its buffers, and the ranges of its symbols."""

    buffers: Mapping[str, Buffer]
    ranges: Mapping[str, Interval]

    @classmethod
    def from_module(cls, module: Module) -> Facts:
        ranges: dict[str, Interval] = {
            name: (source.low, float("inf") if source.high is None else source.high)
            for name, source in module.symbols.items()
        }
        return cls(module.buffers, ranges)

    def surely_negative(self, size: Size) -> bool:
        return interval_of(size, self.ranges)[1] < 0

    def surely_differ(self, one: Size, other: Size) -> bool:
        """Whether two sizes are different for all inputs."""
        if one == other:
            return False
        low, high = interval_of(one - other, self.ranges)
        return low > 0 or high < 0

    def find_outside(self, index: Size, size: Size, around: Around) -> str | None:
        """A point of the loops at which the index is certainly not in [0, size), in words."""
        loops = {name: extent for name, extent in around.items() if extent is not None}
        if isinstance(size, int):
            reach = {name: _interval_of_loop(extent, self.ranges) for name, extent in loops.items()}
            low, high = interval_of(index, {**self.ranges, **reach})
            if low >= 0 and high < size:
                return None
        highest = _corner(index, loops, up=True)
        if interval_of(substitute(index, highest) - size, self.ranges)[0] >= 0:
            return _format_point(highest)
        lowest = _corner(index, loops, up=False)
        if interval_of(substitute(index, lowest), self.ranges)[1] < 0:
            return _format_point(lowest)
        return None

    def find_load_fault(self, body: Body, around: Around) -> str | None:
        for place, op in enumerate(body.ops):
            load = op.attribute
            if isinstance(load, Load) and load.mask is None:
                point = self.find_outside(load.index, self.buffers[load.buffer].size, around)
                if point is not None:
                    return f"%{place} reads {self._format_access(load.buffer, load.index, point)}"
        return None

    def find_store_fault(self, store: Store, around: Around) -> str | None:
        point = self.find_outside(store.index, self.buffers[store.buffer].size, around)
        return None if point is None else f"it writes {self._format_access(store.buffer, store.index, point)}"

    def find_matrix_fault(self, name: str, view: MatrixView, rows: Size, columns: Size, around: Around) -> str | None:
        index = view.offset + symbol("row") * view.rows + symbol("column") * view.columns
        return self._find_view_fault(name, view.buffer, index, {**around, "row": rows, "column": columns})

    def find_strided_fault(self, name: str, view: StridedView, shape: Sequence[Size], around: Around) -> str | None:
        if len(view.strides) != len(shape):
            return f"{name} has {len(view.strides)} strides for {len(shape)} dims"
        index, loops = view.offset, dict(around)
        for dim, (stride, size) in enumerate(zip(view.strides, shape, strict=True)):
            index = index + symbol(f"d{dim}") * stride
            loops[f"d{dim}"] = size
        return self._find_view_fault(name, view.buffer, index, loops)

    def _find_view_fault(self, name: str, buffer: str, index: Size, around: Around) -> str | None:
        if any(extent == 0 for extent in around.values()):
            return None
        point = self.find_outside(index, self.buffers[buffer].size, around)
        return None if point is None else f"{name} is {self._format_access(buffer, index, point)}"

    def find_size_fault(self, buffer: str, needed: Sequence[Size]) -> str | None:
        """Whether a buffer is certainly smaller than what is needed of it."""
        size = self.buffers[buffer].size
        if not self.surely_negative(size - product(tuple(needed))):
            return None
        return f"{buffer} has {size} elements, and {product(tuple(needed))} are needed"

    def _format_access(self, buffer: str, index: Size, point: str) -> str:
        return f"{buffer}[{index}], which is outside its {self.buffers[buffer].size} elements{point}"


def find_range_fault(index: Size, around: Around) -> str | None:
    """A loop variable that an index takes for smaller than its loop makes it: divisions would have been cancelled that
    do not cancel."""
    for found in index.symbols if not isinstance(index, int) else ():
        extent = around.get(found.name)
        if type(found) is not Symbol or extent is None or found.below is None or found.below == extent:
            continue
        if isinstance(extent, int) and isinstance(found.below, int) and extent > found.below:
            return f"{found.name} is taken to be below {found.below} in the index {index}, and its loop has {extent}"
    return None


def _interval_of_loop(extent: Size, ranges: Mapping[str, Interval]) -> Interval:
    return 0, max(interval_of(extent, ranges)[1] - 1, 0)


def _corner(index: Size, loops: Mapping[str, Size], *, up: bool) -> dict[str, Size]:
    """A point of the loops at which the index is about as large, or as small, as it gets."""
    point: dict[str, Size] = {}
    for term, coefficient in index.terms.items() if not isinstance(index, int) else ():
        for atom in term:
            names = [atom.name] if isinstance(atom, Symbol) else sorted(_names(atom.left) | _names(atom.right))
            for name in names:
                if name in loops and name not in point:
                    point[name] = loops[name] - 1 if (coefficient > 0) is up else 0
    return point


def _names(size: Size) -> set[str]:
    return set() if isinstance(size, int) else {found.name for found in size.symbols}


def _format_point(point: Mapping[str, Size]) -> str:
    return f", at {', '.join(f'{name} = {value}' for name, value in sorted(point.items()))}" if point else ""
