"""Tiles of products whose weights are fetched in whole tiles, as data, and which is the fastest by a model of an H200.

The numbers of the model are fitted to what an H200 showed for products of 128, 512 and 4096 rows. They choose, and mean
nothing else: every tile computes the same sums.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ingot.targets.cuda.schedule.statements import GemmTile
from ingot.targets.cuda.schedule.tiles import PROCESSORS, SHARED_BYTES

# Terms of a stage, of 2 bytes each.
BULK_TERMS = 64
# Bytes of a line of a stage.
_LINE = 128
# Sums of a thread from which on the threads that copy leave registers to it.
_MANY_SUMS = 64
# Sums of a thread at most that leave registers to an epilogue which needs some.
_MOST_SUMS = 128
# The same of sums that blocks share.
_SHARED_SUMS = 96
# Blocks of a cluster that share the terms of a tile.
_PARTS = (1, 2, 4)
# Columns that a weight may have more than the product, as a share of them.
_PADDING = 0.25
# Shared memory of the text for other GPUs, at most: all of them have so much.
_PLAIN_BYTES = 99 << 10

# Rows, columns, bytes of depth, stages, warps of a tile, and how many groups of warps take tiles in turn.
BULK_TILES = (
    GemmTile(256, 128, _LINE, 4, 8, 1),
    *(GemmTile(128, columns, _LINE, stages, 8, 1) for columns, stages in (
        (256, 4), (192, 5), (176, 5), (160, 5), (128, 6), (96, 7)
    )),
    GemmTile(128, 192, _LINE, 5, 4, 1, 2),
    GemmTile(128, 128, _LINE, 6, 4, 1, 2),
    GemmTile(64, 64, _LINE, 12, 4, 1),
    GemmTile(64, 96, _LINE, 8, 4, 1),
    GemmTile(128, 64, _LINE, 8, 8, 1),
    GemmTile(128, 64, _LINE, 4, 8, 1),
)  # fmt: skip

# Of the model: multiply-adds and bytes per microsecond of one multiprocessor, microseconds of a step at least, of a
# read, of what comes before the first one, and of an epilogue: of each, and of each sum of a thread, by what it does.
_RATE = 3.4e6
_BANDWIDTH = 125e3
_STEP_TIME = 0.17
_READ_TIME = 0.9
_START_TIME = 2.0
_EPILOGUE_TIME = 0.6
_SUM_TIMES = {"plain": 0.0115, "reads": 0.04, "functions": 0.03}
# Bytes that the epilogues of a multiprocessor's blocks read and write in a microsecond, and bytes of a sum in memory.
_EPILOGUE_RATE = 42e3
_SUM_BYTES = {"plain": 2, "reads": 4, "functions": 4}
# How much longer an epilogue takes while another group multiplies.
_TURN_FACTOR = 1.5
# What it takes to share sums among so many blocks, and each sum of a thread.
_SHARE_TIMES = {1: (0.0, 0.0), 2: (0.2, 0.02), 4: (1.0, 0.04)}
# Clusters of so many blocks that run at once, with one block on a multiprocessor: those of a cluster are neighbours,
# and not every group of neighbours has a multiple of four.
_CLUSTERS = {1: PROCESSORS, 2: PROCESSORS // 2, 4: 28}


@dataclass(frozen=True, slots=True)
class BulkChoice:
    """A tile, and how many blocks of a cluster share its terms."""

    tile: GemmTile
    parts: int


def count_copiers(tile: GemmTile) -> int:
    """Warps of a block that copy: one, or four that leave registers to the others."""
    return 4 if _count_sums(tile) >= _MANY_SUMS else 1


def count_bulk_threads(tile: GemmTile) -> int:
    return 32 * (tile.down * tile.along * tile.turns + count_copiers(tile))


def count_bulk_bytes(tile: GemmTile, parts: int) -> int:
    """Dynamic shared memory: stages, sums of other blocks, barriers."""
    groups = tile.down * tile.along * tile.turns // 4
    received = (parts - 1) * 128 * groups * (_count_sums(tile) // parts) * 4
    return tile.stages * (tile.rows + tile.columns) * tile.depth + received + 16 * tile.stages + 24


def count_bulk_resident(tile: GemmTile, parts: int) -> int:
    """Blocks that run on a multiprocessor at a time: while one has its epilogue, another one multiplies."""
    fits = 2 * (count_bulk_bytes(tile, parts) + 1024) <= SHARED_BYTES
    return 2 if fits and tile.turns == 1 and _count_sums(tile) < _MANY_SUMS else 1


def find_bulk_fault(tile: GemmTile, parts: int) -> str | None:
    """What is wrong with a tile, or with its parts."""
    warps = tile.down * tile.along
    if tile.depth != _LINE or tile.along != 1 or warps % 4 or tile.rows % (16 * warps) or tile.turns not in (1, 2):
        return f"a tile of {tile} is not one of groups of four warps"
    if tile.columns % 16 or not 16 <= tile.columns <= 256:
        return f"{tile.columns} columns are not those of an instruction"
    blocks = tile.columns // 8
    own, rest = divmod(_count_sums(tile) // 4, parts)
    if parts not in range(1, 9) or rest or own % 2 or (parts > 1 and (blocks % own or tile.turns > 1)):
        return f"sums of {tile} cannot be shared out among {parts} blocks"
    if count_bulk_bytes(tile, parts) > SHARED_BYTES:
        return f"a tile of {tile} with {tile.stages} stages needs more shared memory than there is"
    return None


def choose_bulk_tile(
    m: int, widths: list[int], k: int, epilogue: str, *, in_turn: bool, by_turns: bool = True, most_sums: int = 256
) -> BulkChoice | None:
    """The fastest tile for m rows by weights of so many columns each, which one kernel computes: side by side or, in
    turn, at the same places. `by_turns`: groups of warps may take tiles in turn. `most_sums`: of a thread. None where
    none fits."""
    steps = k // BULK_TERMS
    best: tuple[float, int] | None = None
    chosen: BulkChoice | None = None
    for number, tile in enumerate(BULK_TILES):
        if any(-(-n // tile.columns) * tile.columns > (1 + _PADDING) * n for n in widths):
            continue
        if _count_sums(tile) > most_sums:
            continue
        is_simple = epilogue == "plain" and len(set(widths)) == 1
        if tile.turns > 1 and (in_turn or not by_turns or (not is_simple and _count_sums(tile) > _MOST_SUMS)):
            continue
        for parts in _PARTS if not in_turn else (1,):
            if steps % parts or (parts > 1 and _count_sums(tile) > _SHARED_SUMS):
                continue
            trimmed = _trim_stages(tile, parts, steps // parts)
            if find_bulk_fault(trimmed, parts) or 2 * (tile.rows + tile.columns) * tile.depth > _PLAIN_BYTES:
                continue
            time = _estimate(trimmed, parts, m, widths, steps // parts, epilogue)
            if time is not None and (best is None or (round(time, 2), number) < best):
                best, chosen = (round(time, 2), number), BulkChoice(trimmed, parts)
    return chosen


def estimate_bulk_time(choice: BulkChoice, m: int, n: int, k: int, epilogue: str) -> float:
    """Microseconds of a product's kernel, by the model."""
    steps = k // BULK_TERMS // choice.parts
    return _estimate(choice.tile, choice.parts, m, [n], steps, epilogue) or 0.0


def _trim_stages(tile: GemmTile, parts: int, steps: int) -> GemmTile:
    """The tile with as many stages as there are steps, and as shared memory has room for."""
    stages = max(2, min(tile.stages, steps))
    while stages > 2 and count_bulk_bytes(replace(tile, stages=stages), parts) > SHARED_BYTES:
        stages -= 1
    return replace(tile, stages=stages)


def _count_sums(tile: GemmTile) -> int:
    """Of a thread."""
    return tile.rows * tile.columns // (32 * tile.down * tile.along)


def _estimate(tile: GemmTile, parts: int, m: int, widths: list[int], steps: int, epilogue: str) -> float | None:
    """Microseconds of a kernel. Blocks that share terms must all run at once; others take tiles in turn, and those of a
    multiprocessor share what it multiplies, reads and writes in a time, and wait at the same time."""
    tiles = -(-m // tile.rows) * sum(-(-n // tile.columns) for n in widths)
    resident = count_bulk_resident(tile, parts)
    together = min(resident, -(-tiles * parts // PROCESSORS))
    if parts > 1 and tiles > _CLUSTERS[parts] * resident:
        return None
    rounds = -(-tiles * parts // (PROCESSORS * together))
    multiply = tile.rows * tile.columns * BULK_TERMS / _RATE
    # The weight's tiles that fit in the stages are there before the rows can be read.
    lines = tile.rows if steps <= tile.stages else tile.rows + tile.columns
    waiting = _STEP_TIME if steps <= tile.stages else max(_STEP_TIME, _READ_TIME / (tile.stages - 1))
    each = _SUM_TIMES[epilogue] * _count_sums(tile) / parts
    if parts == 1 and together > 1:
        sums = tile.rows * tile.columns * _SUM_BYTES[epilogue] / _EPILOGUE_RATE
        busy = steps * max(multiply, lines * tile.depth / _BANDWIDTH) + sums
        alone = steps * max(multiply, lines * tile.depth / _BANDWIDTH, waiting) + _EPILOGUE_TIME + each
        return _START_TIME + rounds * max(together * busy, alone)
    step = max(together * multiply, together * lines * tile.depth / _BANDWIDTH, waiting)
    if tile.turns > 1:
        finish = _EPILOGUE_TIME + _TURN_FACTOR * each
        return _START_TIME + rounds * max(steps * step, (steps * step + finish) / 2) + finish
    share, share_sum = _SHARE_TIMES[parts]
    sharing = share + share_sum * _count_sums(tile)
    return _START_TIME + rounds * (steps * step + _EPILOGUE_TIME + each) + sharing
