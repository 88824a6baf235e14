"""Sizes of tiles: what the kernels' registers and the nearest cache hold."""

from __future__ import annotations

from ingot.lowering.index_expr import Size

# Columns that a packed weight's panel may have, the best first where none wastes less.
PANELS = (48, 64, 32, 16)
# Rows of the tile that goes with each of them, on a machine with 32 vector registers.
HEIGHTS = (8, 6, 12, 12)
# Channels that the longest vector holds: a multiple of them needs no care at a pixel's end.
LANES = 16
# Queries and keys of a tile of attention.
ATTENTION_TILE = (48, 64)


def panel_width(columns: int, rows: Size | None = None) -> int:
    """The panel that leaves the least of its columns empty. For few rows it is one of which all rows fit in the tile
    at once: such a product is as fast as its weights are read, and they are then read once."""
    fitting = [w for w, high in zip(PANELS, HEIGHTS, strict=True) if isinstance(rows, int) and rows <= high]
    if fitting and rows != 1:
        return fitting[0]
    return min(PANELS, key=lambda width: -(-columns // width) * width)
