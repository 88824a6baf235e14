"""Tiles of attention: how many queries a block of threads takes, how many keys at a time, and into how many parts the
keys are split where there are too few blocks for the GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace

# Threads of a warp.
WARP = 32
# Queries and keys of the blocks of a mask, as cu/attention_tile.cuh has it.
MASK_BLOCK = 64
# Multiprocessors of the largest GPU: a grid with fewer blocks leaves some of them idle.
PROCESSORS = 132
# Bytes of shared memory that every architecture since sm_80 has for one block: the device text is one for all.
SHARED_LIMIT = 99 << 10
# Rows of matrix elements that one instruction takes.
FRAGMENT = 16
# The widest rows that are multiplied in tiles, and the most columns that threads have sums for.
WIDEST = 512
WIDEST_SUMS = 256
# Keys that are worth a part of their own, and the most parts.
PART_KEYS = 128
PARTS = 32
# Operations of the bodies that are written out into one kernel.
WRITTEN_OPERATIONS = 4096


@dataclass(frozen=True, slots=True)
class MmaTile:
    """A block of threads on tensor cores: each warp has `tiles` times 16 queries against `keys` keys at a time.
    `keeps_own`: whether the fragments of its own rows stay in registers. `resident`: how many blocks a multiprocessor
    has registers for, where bodies need few."""

    warps: int
    tiles: int
    keys: int
    keeps_own: bool
    resident: int = 1

    @property
    def rows(self) -> int:
        return self.warps * self.tiles * FRAGMENT

    @property
    def threads(self) -> int:
        return self.warps * WARP

    @property
    def copies(self) -> int:
        """How often the text of a score's body is written out in a kernel."""
        return self.tiles * self.keys // 8 * 4

    def memory_size(self, depth: int, values: int) -> int:
        """Bytes of shared memory: the queries, and two tiles of keys and of values."""
        return 2 * (self.rows * _pitch(depth) + 2 * self.keys * (_pitch(depth) + _pitch(values)))


# By the widest rows, the largest tile first: registers hold rows · width sums, and rows · keys scores.
_MMA_TILES: tuple[tuple[int, tuple[MmaTile, ...]], ...] = (
    (64, (MmaTile(4, 2, 64, False, 3), MmaTile(4, 1, 64, True), MmaTile(2, 1, 64, True), MmaTile(1, 1, 64, True))),
    (128, (MmaTile(4, 2, 32, False), MmaTile(4, 1, 32, True), MmaTile(2, 1, 32, True), MmaTile(1, 1, 32, True))),
    (256, (MmaTile(4, 1, 32, False), MmaTile(2, 1, 32, False), MmaTile(1, 1, 32, False))),
    (WIDEST, (MmaTile(2, 1, 16, False), MmaTile(1, 1, 16, False))),
)
_LONG_BODY_TILES = (MmaTile(2, 1, 16, True), MmaTile(1, 1, 16, True))


@dataclass(frozen=True, slots=True)
class GroupTile:
    """A block of threads in groups of four warps, on Hopper's tensor cores: each warp has 16 queries, keys come 64 at a
    time, or `elsewhere` on other architectures."""

    warps: int
    elsewhere: int
    resident: int = 1
    keys: int = 64

    @property
    def rows(self) -> int:
        return self.warps * FRAGMENT

    @property
    def threads(self) -> int:
        return self.warps * WARP

    def memory_size(self, depth: int, values: int) -> int:
        """Bytes of shared memory, for either kind of instruction."""
        lines = 2 * (self.rows * depth + 2 * self.keys * (depth + values))
        return max(lines, MmaTile(self.warps, 1, self.elsewhere, True).memory_size(depth, values))


# By depth and columns of values.
_GROUP_TILES = {(64, 64): GroupTile(8, 64), (128, 128): GroupTile(8, 32)}


def find_group_tile(depth: int, values: int, points: int, queries: int) -> GroupTile | None:
    """The tile for groups of warps, where rows are whole lines and blocks fill the GPU."""
    tile = _GROUP_TILES.get((depth, values))
    return tile if tile is not None and points * -(-queries // tile.rows) >= PROCESSORS else None


@dataclass(frozen=True, slots=True)
class BulkTile:
    """A block of threads on Hopper: a group of four warps copies, `groups` multiply, 64 queries each against `keys`
    keys at a time, of which `stages` tiles lie in shared memory. `overlaps`: whether the next scores are multiplied
    while weights are computed; `turns`: whether groups take turns. `more` and `fewer` are the registers of threads that
    multiply and of those that copy. Elsewhere single warps have 16 queries, and `elsewhere` keys at a time."""

    groups: int
    keys: int
    stages: int
    overlaps: bool
    turns: bool
    resident: int
    more: int
    fewer: int
    elsewhere: int

    @property
    def rows(self) -> int:
        return self.groups * GROUP_ROWS

    @property
    def threads(self) -> int:
        return (self.groups + 1) * GROUP_WARPS * WARP

    def memory_size(self, depth: int) -> int:
        """Bytes of shared memory on Hopper: the queries, tiles of keys and values, barriers."""
        return 2 * depth * (self.rows + 2 * self.stages * self.keys) + 8 * (1 + 4 * self.stages)

    def plain_memory_size(self, depth: int) -> int:
        return MmaTile(self.groups * GROUP_WARPS, 1, self.elsewhere, True).memory_size(depth, depth)


# Warps of a group, and its queries.
GROUP_WARPS, GROUP_ROWS = 4, 64
# Operations of bodies that threads have registers for.
BULK_OPERATIONS = 16
# Keys that are worth tiles with more queries, since a block then has less to wait for.
LONG = 4096
# For rows of 64 elements: as a rule; where later keys are hidden, and blocks have unequal work; for many keys, also
# with a body. Measured on an H200.
BULK_64 = BulkTile(2, 64, 3, False, False, 2, 104, 32, 64)
BULK_64_SMALL = BulkTile(1, 128, 2, True, False, 2, 216, 40, 64)
BULK_64_LONG = BulkTile(3, 128, 2, True, False, 1, 160, 32, 64)
BULK_64_LONG_BODY = replace(BULK_64_LONG, turns=True)
# For rows of 128: where there are many blocks, and where there are few.
BULK_128 = BulkTile(2, 128, 2, True, True, 1, 240, 24, 32)
BULK_128_SMALL = BulkTile(1, 128, 1, False, False, 2, 216, 40, 32)


def choose_producer_tile(
    depth: int, points: int, queries: int, keys: int, operations: int, *, causal: bool
) -> BulkTile | None:
    """The tile for groups that multiply and one that copies, where blocks fill the GPU."""

    def blocks(tile: BulkTile) -> int:
        return points * -(-queries // tile.rows)

    if operations > BULK_OPERATIONS or keys < 1 or depth not in (64, 128):
        return None
    # Two blocks of the small tiles run on a processor at once: a few less than there are processors still beat others.
    few = PROCESSORS * 3 // 4
    if depth == 128:
        if blocks(BULK_128) >= PROCESSORS and keys >= LONG // 2:
            return BULK_128
        return BULK_128_SMALL if blocks(BULK_128_SMALL) >= few else None
    if not causal and keys >= LONG and blocks(BULK_64_LONG) >= (4 if operations else 8) * PROCESSORS:
        return BULK_64_LONG_BODY if operations else BULK_64_LONG
    if not causal and blocks(BULK_64) >= PROCESSORS:
        return BULK_64
    return BULK_64_SMALL if blocks(BULK_64_SMALL) >= few else None


@dataclass(frozen=True, slots=True)
class TokenTile:
    """So many parts of the keys of a few queries that share them, each for a block: each warp reads keys `rounds` times
    at once; `once`: these are all of them."""

    queries: int
    rounds: int
    once: bool
    parts: int = 8

    @property
    def threads(self) -> int:
        return TOKEN_WARPS * WARP

    def memory_size(self, depth: int) -> int:
        """Bytes of shared memory: sums, tops and totals of each warp, and of the block."""
        return 4 * (TOKEN_WARPS + 1) * self.queries * (depth + 2)


# Blocks of a cluster, warps of each of them, and the most queries that threads have sums for.
TOKEN_PARTS, TOKEN_WARPS, TOKEN_QUERIES = 8, 8, 8
# The most keys that a lane reads at once, with so many queries at most; sums of more queries need registers as well.
TOKEN_ROUNDS = ((4, 8), (TOKEN_QUERIES, 4))
# The most parts where blocks leave them in memory: each block reads those of all heads.
PHASE_PARTS = 8


def find_token_tile(depth: int, points: int, queries: int, keys: int, *, is_static: bool = True) -> TokenTile | None:
    """The tile for few queries, where blocks that have all keys do not fill the GPU, and each part is worth a block."""
    if depth not in (64, 128) or not 1 <= queries <= TOKEN_QUERIES or points >= PROCESSORS or keys < 2 * PART_KEYS:
        return None
    return _plan_token(depth, queries, keys, TOKEN_PARTS, is_static)


def find_phase_tile(depth: int, points: int, queries: int, keys: int) -> TokenTile | None:
    """The same inside a kernel whose blocks wait for each other, where it costs no kernel of its own: for any number of
    keys. Units of work are no more than blocks, where they can be."""
    if depth not in (64, 128) or not 1 <= queries <= TOKEN_QUERIES or points < 1 or keys < 1:
        return None
    parts = PHASE_PARTS
    while parts > 1 and (points * parts > PROCESSORS or keys < parts * PART_KEYS):
        parts //= 2
    return _plan_token(depth, queries, keys, parts, is_static=True)


def _plan_token(depth: int, queries: int, keys: int, parts: int, is_static: bool) -> TokenTile:
    at_once = parts * TOKEN_WARPS * (8 * WARP // depth)
    most = next(rounds for limit, rounds in TOKEN_ROUNDS if queries <= limit)
    needed = -(-keys // at_once)
    return TokenTile(queries, min(needed, most), is_static and needed <= most, parts)


def choose_mma_tile(
    depth: int,
    values: int,
    points: int,
    queries: int,
    operations: int = 0,
    *,
    light: bool = True,
    gathers: bool = False,
) -> MmaTile:
    """The largest tile of which there are enough to fill the GPU, else the smallest. Bodies, of so many operations,
    need registers too: with one, a multiprocessor has one block at a time."""
    width = max(depth, values)
    tiles = next(tiles for limit, tiles in _MMA_TILES if width <= limit)
    if operations or not light:
        tiles = tuple(replace(tile, resident=1) for tile in tiles)
    if gathers and width > 64:
        tiles = tuple(tile for tile in tiles if tile.tiles == 1)
    if operations * tiles[-1].copies > WRITTEN_OPERATIONS:
        tiles = tuple(replace(tile, keeps_own=width <= 128) for tile in _LONG_BODY_TILES)
    fitting = [tile for tile in tiles if operations * tile.copies <= WRITTEN_OPERATIONS] or list(tiles[-1:])
    for tile in fitting:
        if points * -(-queries // tile.rows) >= PROCESSORS:
            return tile
    return fitting[-1]


def split_columns(values: int) -> int | None:
    """How many of the values' columns a block has sums for: all, or equal parts of them. None where there are none."""
    if values <= WIDEST_SUMS:
        return values
    return next((width for width in range(WIDEST_SUMS, FRAGMENT - 1, -FRAGMENT) if values % width == 0), None)


def choose_split(points: int, queries: int, rows: int, keys: int) -> int:
    """Into how many parts the keys are split: with few blocks, so many that each processor has two."""
    blocks = max(points * -(-queries // rows), 1)
    return max(min(-(-2 * PROCESSORS // blocks), keys // PART_KEYS, PARTS), 1) if blocks < PROCESSORS else 1


@dataclass(frozen=True, slots=True)
class SimtTile:
    """256 threads on queries by keys, in float32."""

    rows: int
    keys: int

    def memory_size(self, depth: int, values: int) -> int:
        pitch = ((depth + 3) // 4 | 1) * 4
        columns = (values + 15) // 16 * 16
        return 4 * ((self.rows + self.keys) * pitch + self.keys * columns + self.rows * (self.keys + 4))

    def gradient_memory_size(self, depth: int, values: int) -> int:
        pitches = sum(((width + 3) // 4 | 1) * 4 for width in (depth, values))
        return 4 * ((self.rows + self.keys) * pitches + 2 * self.rows * (self.keys + 4))


@dataclass(frozen=True, slots=True)
class GradientTile:
    """A block of threads on tensor cores: each warp has 16 rows of one side, against `others` of the other at a time.
    `passes`: which of the two results each of its kernels gives."""

    warps: int
    others: int
    passes: tuple[tuple[bool, bool], ...]

    @property
    def rows(self) -> int:
        return self.warps * FRAGMENT

    @property
    def threads(self) -> int:
        return self.warps * WARP

    def memory_size(self, depth: int, values: int) -> int:
        """Bytes of shared memory: the own rows, and two tiles of the others', each by both widths."""
        return 2 * (self.rows + 2 * self.others) * (_pitch(depth) + _pitch(values))


# By the widest rows. Sums of two results of 256 columns each are more than registers hold.
_GRADIENT_TILES = ((64, 4, 64, 1), (128, 4, 32, 1), (WIDEST_SUMS, 4, 16, 2))


def choose_gradient_tile(depth: int, values: int, side: str) -> GradientTile:
    width = max(depth, values)
    _, warps, others, kernels = next(row for row in _GRADIENT_TILES if width <= row[0])
    if side == "queries":
        return GradientTile(warps, others, ((True, False),))
    return GradientTile(warps, others, ((True, True),) if kernels == 1 else ((True, False), (False, True)))


SIMT_THREADS = 256
_SIMT_TILES = (SimtTile(64, 64), SimtTile(64, 32), SimtTile(32, 32), SimtTile(32, 16), SimtTile(16, 16))


def choose_simt_tile(depth: int, values: int) -> SimtTile:
    return next(tile for tile in _SIMT_TILES if tile.memory_size(depth, values) <= SHARED_LIMIT)


def choose_gradient_simt_tile(depth: int, values: int) -> SimtTile:
    """Own rows, and those of the other side, whose elements and weights shared memory holds."""
    return next(tile for tile in _SIMT_TILES if tile.gradient_memory_size(depth, values) <= SHARED_LIMIT)


def _pitch(width: int) -> int:
    """Elements from one row of a tile to the next."""
    return (width + 15) // 16 * 16 + 8
