"""Matrices of attention as maps of tensors: boxes of their rows are copied by one instruction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ingot.lowering.index_expr import Expr, bounds, substitute, symbol
from ingot.lowering.loop_ir import Loop, MatrixView
from ingot.targets.cuda.codegen.kernel import TensorMap
from ingot.targets.cuda.codegen.kernel_writer import CudaKernelWriter

# Elements of a line, of 16 bits each, and of what steps must be multiples of.
LINE, STEP = 64, 8
# Dims besides a matrix's own that a copy has coordinates for.
OUTER = 2


@dataclass(frozen=True, slots=True)
class BoxCopy:
    """A matrix inside a tensor, and the tensor's other coordinates at a point of the batch."""

    map: TensorMap
    coordinates: tuple[Expr, ...]

    def declare(self, out: CudaKernelWriter, name: str) -> str:
        """A function that copies the box at a column and a row."""
        places = "".join(f", (int)({out.size(place)})" for place in self.coordinates)
        out.open(f"const auto {name} = [&](const ig_place to, const int x, const int y, const ig_place barrier)")
        out.line(f"ig_copy_box(to, {out.tensor_map(self.map)}, x, y{places}, barrier);")
        out.close()
        out.lines[-1] += ";"
        return name


def find_box_copy(
    matrix: MatrixView, dtype: str, batch: Sequence[Loop], sizes: tuple[int, int], box_rows: int
) -> BoxCopy | None:
    """A copy of boxes of so many rows; `sizes` are the matrix's rows and columns. None where no map describes it."""
    known = {loop.variable: symbol(loop.variable, below=loop.extent) for loop in batch}
    offset = substitute(matrix.offset, known)
    terms = dict(offset.terms) if isinstance(offset, Expr) else {(): offset}
    begin = terms.pop((), 0)
    places = [Expr({term: 1}) for term in terms]
    extents = [bounds(place)[1] for place in places]
    steps = [matrix.rows, *terms.values()]
    if len(places) > OUTER or any(len(term) != 1 for term in terms) or begin < 0 or begin % STEP or matrix.columns != 1:
        return None
    if any(not isinstance(step, int) or step <= 0 or step % STEP for step in steps):
        return None
    if any(high is None for high in extents):
        return None
    shape = (sizes[1], sizes[0], *((high or 0) + 1 for high in extents))
    box = (LINE, box_rows, *[1] * len(places))
    return BoxCopy(TensorMap(matrix.buffer, begin, dtype, shape, tuple(steps), box), tuple(places))
