"""Which accesses are aligned: how many neighbours one instruction may move."""

from __future__ import annotations

from collections.abc import Iterable

from ingot.lowering.index_expr import Size, as_expr
from ingot.lowering.loop_ir import MatrixView

# Bytes that one instruction moves at most. Buffers, those of callers too, begin at a multiple of it.
MOST_BYTES = 16
# 16-bit elements of a piece that one instruction copies.
PIECE = MOST_BYTES // 2


def is_multiple(size: Size, of: int) -> bool:
    """Whether a size is a multiple of a number for certain, whatever its symbols are."""
    return all(coefficient % of == 0 for coefficient in as_expr(size).terms.values())


def count_neighbours(sizes: Iterable[Size], most: int) -> int:
    """The largest power of two up to `most` that divides all of these."""
    given, count = list(sizes), most
    while count > 1 and not all(is_multiple(size, count) for size in given):
        count //= 2
    return count


def lies_in_pieces(matrix: MatrixView, width: int) -> bool:
    """Whether rows of 16-bit elements are whole pieces of 16 bytes, each of which begins at a multiple."""
    whole = width % PIECE == 0 and is_multiple(matrix.rows, PIECE) and is_multiple(matrix.offset, PIECE)
    return whole and matrix.columns == 1
