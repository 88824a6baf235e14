"""Tiles of products, as data, and which one is the fastest for a product by a model of an H200.

The numbers of the model are the machine's: what its tensor cores multiply, what a multiprocessor gets from the second
level of the cache, how long a read takes. They choose, and mean nothing else: every tile computes the same sums.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from ingot.lowering.dtypes import BYTES
from ingot.targets.cuda.schedule.statements import GemmTile

# Algorithms that have tiles.
TileAlgorithm: TypeAlias = Literal["tensor", "warpgroup", "simt"]

# Multiprocessors of an H200.
PROCESSORS = 132
# Shared memory that the blocks of a multiprocessor may have.
SHARED_BYTES = 227 << 10
# Rows, or columns, of a product that is read once by warps.
FEW_ROWS = 8
# Parts of the terms that blocks may share, at most.
MOST_PARTS = 16

# Rows, columns, bytes of depth, stages, warps down and along.
TENSOR_TILES = (
    GemmTile(128, 256, 128, 4, 2, 4),
    GemmTile(128, 128, 128, 3, 2, 2),
    GemmTile(128, 64, 128, 4, 2, 2),
    GemmTile(64, 128, 128, 4, 2, 2),
    GemmTile(64, 64, 128, 6, 2, 2),
    GemmTile(64, 32, 128, 8, 2, 2),
    GemmTile(32, 64, 128, 8, 2, 2),
    GemmTile(32, 32, 128, 8, 2, 2),
    GemmTile(16, 64, 128, 8, 1, 4),
    GemmTile(16, 32, 128, 8, 1, 2),
)
# Rows, columns, bytes of depth, stages, sums of a thread down and along.
SIMT_TILES = (
    GemmTile(128, 128, 64, 3, 8, 8),
    GemmTile(64, 64, 64, 4, 8, 4),
    GemmTile(32, 64, 64, 4, 4, 4),
    GemmTile(32, 32, 64, 4, 4, 2),
)
# The same for sums of 8 bytes.
WIDE_TILES = (
    GemmTile(64, 64, 128, 3, 4, 4),
    GemmTile(32, 32, 128, 4, 4, 2),
)

# Of the model: multiply-adds and bytes per microsecond of one multiprocessor, microseconds of a read, of an epilogue,
# and of the second kernel where blocks share terms. The rate of warps on tensor cores, the epilogue and the second
# kernel are what an H200 showed; the others are estimates.
_TENSOR_RATE = 1.3e6
_WARPGROUP_RATE = 2.4e6
_SIMT_RATE = 0.2e6
_CACHE_RATE = 42e3
_CACHE_RATE_ALONE = 60e3
_READ_TIME = 0.8
_EPILOGUE_TIME = 0.6
_LAUNCH_TIME = 2.5
# Bytes that an epilogue reads and writes for a sum, and sums of a thread whose reads are under way at a time.
_EPILOGUE_BYTES = 3
_EPILOGUE_SUMS = 32
# Sums of a warp at which shared memory is as fast as the tensor cores: rows · columns / (rows + columns).
_FULL_WARP = 20.0
# Registers and threads of a multiprocessor, and the registers of a thread besides its sums.
_REGISTERS = 1 << 16
_THREADS = 2048
_OTHER_REGISTERS = 72


@dataclass(frozen=True, slots=True)
class TileChoice:
    """A tile, the algorithm that computes it, and in how many parts its terms are computed."""

    tile: GemmTile
    algorithm: TileAlgorithm
    split_k: int


def is_warpgroup_tile(tile: GemmTile) -> bool:
    """Whether groups of four warps can compute a tile: 64 rows each, lines of 128 bytes, columns of one instruction."""
    groups, rest = divmod(tile.down * tile.along, 4)
    return not rest and tile.rows % (64 * groups) == 0 and tile.columns in (64, 128, 256) and tile.depth == 128


def choose_tile(
    algorithm: TileAlgorithm, points: int, m: int, n: int, k: int, element: int, sums: str, *, may_split: bool = True
) -> TileChoice:
    """The fastest tile for so many products of m × n sums of k terms, of elements of so many bytes. By "warpgroup",
    tiles that are not for groups of warps are computed by warps."""
    best: tuple[float, int, int] | None = None
    tiles: tuple[GemmTile, ...] = TENSOR_TILES
    if algorithm == "simt":
        tiles = WIDE_TILES if BYTES[sums] == 8 else SIMT_TILES
    chosen = TileChoice(tiles[0], algorithm, 1)
    for number, tile in enumerate(tiles):
        by = "tensor" if algorithm == "warpgroup" and not is_warpgroup_tile(tile) else algorithm
        blocks = max(points * -(-m // tile.rows) * -(-n // tile.columns), 1)
        steps = max(-(-k * element // tile.depth), 1)
        most = min(MOST_PARTS, steps // 2, 2 * PROCESSORS // blocks) if may_split and blocks < PROCESSORS else 1
        for part in range(1, max(most, 1) + 1):
            trimmed = trim_stages(tile, -(-steps // part))
            time = _estimate(trimmed, by, blocks * part, -(-steps // part), element)
            if part > 1:
                time += _LAUNCH_TIME + 2 * part * points * m * n * 4 / (PROCESSORS * _CACHE_RATE)
            # Of tiles that are about as fast, the one that computes the least besides the sums, then the largest.
            rank = (round(time, 1), blocks * tile.rows * tile.columns, number)
            if best is None or rank < best:
                best, chosen = rank, TileChoice(trimmed, by, part)
    return chosen


def trim_stages(tile: GemmTile, steps: int) -> GemmTile:
    """The tile with no more stages than a block of so many steps can use: shared memory is left for other blocks."""
    return replace(tile, stages=max(2, min(tile.stages, steps + 1)))


def count_threads(algorithm: str, tile: GemmTile) -> int:
    """The threads of a block that computes a tile."""
    if algorithm in ("tensor", "warpgroup"):
        return 32 * tile.down * tile.along
    return tile.rows // tile.down * (tile.columns // tile.along)


def _count_resident(tile: GemmTile, algorithm: TileAlgorithm) -> int:
    """How many blocks a multiprocessor runs at a time."""
    threads = count_threads(algorithm, tile)
    shared = max((tile.rows + tile.columns) * tile.depth * tile.stages, tile.rows * (tile.columns + 8) * 4) + 1024
    registers = min(255, tile.rows * tile.columns // threads + _OTHER_REGISTERS)
    return max(min(SHARED_BYTES // shared, _THREADS // threads, _REGISTERS // (threads * registers)), 1)


def _estimate(tile: GemmTile, algorithm: TileAlgorithm, blocks: int, steps: int, element: int) -> float:
    """Microseconds that blocks of so many steps take. Those that run on one multiprocessor share what it multiplies and
    reads in a time, and wait at the same time."""
    together = min(_count_resident(tile, algorithm), -(-blocks // PROCESSORS))
    rounds = -(-blocks // (PROCESSORS * together))
    stage = (tile.rows + tile.columns) * tile.depth
    bandwidth = min(_CACHE_RATE_ALONE, _CACHE_RATE * PROCESSORS / min(blocks, PROCESSORS))
    multiplications = tile.rows * tile.columns * (tile.depth / element)
    step = max(multiplications / _find_rate(tile, algorithm, element), stage / bandwidth)
    busy = steps * step + tile.rows * tile.columns * _EPILOGUE_BYTES / bandwidth
    turns = 1 + tile.rows * tile.columns / (count_threads(algorithm, tile) * _EPILOGUE_SUMS)
    waiting = _READ_TIME + steps * max(step, _READ_TIME / max(tile.stages - 1, 1)) + _EPILOGUE_TIME * turns
    return rounds * max(together * busy, waiting)


def _find_rate(tile: GemmTile, algorithm: TileAlgorithm, element: int) -> float:
    """Multiply-adds of one multiprocessor in a microsecond."""
    if algorithm == "simt":
        return _SIMT_RATE * min(1.0, tile.down * tile.along / 32)
    if algorithm == "warpgroup":
        return _WARPGROUP_RATE * 2 / element
    high, wide = tile.rows / tile.down, tile.columns / tile.along
    return _TENSOR_RATE * 2 / element * min(1.0, high * wide / (high + wide) / _FULL_WARP)
