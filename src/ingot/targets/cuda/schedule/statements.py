"""Steps of the CUDA schedule: what it adds to the loop IR, in types of its own.

    TiledGemm(…, algorithm, tile, split_k)       a product, and how its sums are shared out
    ImplicitGemm(…, algorithm, tile, split_k)    a convolution as a product of pixels by taps and channels
    SiblingGemms(steps, in_turn)                 products that one kernel computes
    MapGroup(steps)                              Maps that do not depend on each other, as one kernel
    StreamedGemm(steps, local)                   a streamed product with its row before it, or Maps of pairs behind
    StreamedChain(steps)                         such products one after another, as one kernel; first may be attention
    LayerLoop(steps)                             such chains one after another, which differ in buffers only
    GatedGemm(steps, local)                      a product by tiles of a weight with Maps of pairs behind it

The loop IR's printer prints them by their fields; verifier.py has their rules.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from ingot.lowering.loop_ir import Attention, Convolution, Gemm, LoopNest, Map, SourceLocation, StepGroup, Stmt

# How sums are computed: on tensor cores, by warps or by groups of four of them (on a GPU that has these, else by
# warps), by multiply-adds of threads with a block of sums each, or, where one side has a few rows only, by warps that
# read the other side once ("rows"), or that take it from shared memory, to which it is copied ahead ("stream"). "bulk":
# by groups of four warps while one thread asks for tiles; the right operand is a weight in the layout SwizzledTiles.
# Of a convolution, the rows of such a tile are a box of pixels. "channels": each thread has neighbouring channels of a
# pixel.
# Tensor cores multiply float32 too, rounded to tf32, in modules of that precision only.
GemmAlgorithm: TypeAlias = Literal["tensor", "warpgroup", "simt", "rows", "stream", "bulk"]
ConvolutionAlgorithm: TypeAlias = Literal["tensor", "warpgroup", "simt", "bulk", "channels"]


@dataclass(frozen=True, slots=True)
class GemmTile:
    """What a block computes: `rows` × `columns` sums, `depth` bytes of the terms of each operand at a time, of which
    `stages` are in shared memory. `down` × `along` are the warps that share it (tensor), or the sums that each thread
    has (simt). Where `turns` is 2, so many groups of `down` × `along` warps take tiles in turn (bulk)."""

    rows: int
    columns: int
    depth: int
    stages: int
    down: int
    along: int
    turns: int = 1

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}x{self.depth}"


_NOWHERE = SourceLocation()
# The tile of a step that no pass has chosen one for.
PLAIN_TILE = GemmTile(64, 64, 64, 2, 4, 4)


@dataclass(frozen=True, slots=True)
class TiledGemm(Gemm):
    """A Gemm with its algorithm. With `split_k`, so many blocks share the terms of a tile; their sums are added in
    order. With "bulk", these are a cluster, and `b` names a weight in tiles, which no steps describe; with `pairs`, its
    layout has the same `pairs`, and the product is a member of a GatedGemm."""

    algorithm: GemmAlgorithm = "simt"
    tile: GemmTile = PLAIN_TILE
    split_k: int = 1
    pairs: int = 0


@dataclass(frozen=True, slots=True)
class ImplicitGemm(Convolution):
    """A Convolution with its algorithm, as TiledGemm. Each group is a product of its own. With "bulk", the rows of a
    tile are a `box` of output pixels: so many images, lines and columns."""

    algorithm: ConvolutionAlgorithm = "simt"
    tile: GemmTile = PLAIN_TILE
    split_k: int = 1
    box: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SiblingGemms(StepGroup):
    """Products and convolutions that one kernel computes, with blocks of as many threads.

    Each has blocks of its own, and none uses what another one writes; or, `in_turn`, they have the same rows, columns
    and tiles, and each block computes them one after another: an epilogue may read what an earlier product wrote at
    the same place.
    """

    steps: tuple[TiledGemm | ImplicitGemm, ...]
    in_turn: bool = False
    origin: SourceLocation = _NOWHERE

    def members(self) -> tuple[Stmt, ...]:
        return self.steps


@dataclass(frozen=True, slots=True)
class MapGroup(StepGroup):
    """Maps none of which uses what another one writes: each has blocks of its own in one grid."""

    steps: tuple[Map, ...]
    origin: SourceLocation = _NOWHERE

    def members(self) -> tuple[Stmt, ...]:
        return self.steps


@dataclass(frozen=True, slots=True)
class StreamedGemm(StepGroup):
    """A product by "stream" in one kernel with what computes its one row, before it, and with the Maps that alone read
    its result, behind it: pairs of columns, as column_pairs.py finds them. `local` buffers are not in memory; every
    block computes the row for itself, and the first one stores it where others read it."""

    steps: tuple[LoopNest | TiledGemm | Map | MapGroup, ...]
    local: tuple[str, ...] = ()
    origin: SourceLocation = _NOWHERE

    def members(self) -> tuple[Stmt, ...]:
        return self.steps

    def local_buffers(self) -> tuple[str, ...]:
        return self.local

    @property
    def product(self) -> TiledGemm:
        return next(step for step in self.steps if isinstance(step, TiledGemm))

    @property
    def row(self) -> LoopNest | None:
        """What computes the product's one row."""
        first = self.steps[0]
        return first if isinstance(first, LoopNest) else None

    @property
    def gate(self) -> Map | MapGroup | None:
        """What becomes of pairs of the product's columns."""
        last = self.steps[-1]
        return last if isinstance(last, (Map, MapGroup)) else None

    @property
    def gate_maps(self) -> tuple[Map, ...]:
        gate = self.gate
        return gate.steps if isinstance(gate, MapGroup) else () if gate is None else (gate,)


@dataclass(frozen=True, slots=True)
class StreamedChain(StepGroup):
    """Streamed products one after another in one kernel, whose blocks wait for each other between them. A product may
    use what those before it have written. Before them there may be attention of one token, whose result is the row of
    the first one: blocks share its heads and keys, and each combines what all have found; the row is not in memory."""

    steps: tuple[Attention | TiledGemm | StreamedGemm, ...]
    origin: SourceLocation = _NOWHERE

    def members(self) -> tuple[Stmt, ...]:
        return self.steps

    def local_buffers(self) -> tuple[str, ...]:
        rows = () if self.attention is None else tuple(store.buffer for store in self.attention.epilogue.stores)
        return (*rows, *(name for step in self.steps if isinstance(step, StreamedGemm) for name in step.local))

    @property
    def attention(self) -> Attention | None:
        first = self.steps[0] if self.steps else None
        return first if isinstance(first, Attention) else None

    @property
    def products(self) -> tuple[TiledGemm | StreamedGemm, ...]:
        return tuple(step for step in self.steps if not isinstance(step, Attention))


@dataclass(frozen=True, slots=True)
class LayerLoop(StepGroup):
    """Chains that are the same but for their buffers, one after another in one kernel, which loops over them. Its
    blocks wait for each other between two of them too."""

    steps: tuple[StreamedChain, ...]
    origin: SourceLocation = _NOWHERE

    def members(self) -> tuple[Stmt, ...]:
        return self.steps

    def local_buffers(self) -> tuple[str, ...]:
        return tuple(name for chain in self.steps for name in chain.local_buffers())


@dataclass(frozen=True, slots=True)
class GatedGemm(StepGroup):
    """A product by "bulk" in one kernel with the Maps behind it that alone read its result, at columns i and i + half
    of each group of 2 · half: one thread has both. A gate is one Map, of which half is n / 2. The product's result is
    `local`: it is not in memory."""

    steps: tuple[TiledGemm, Map | MapGroup]
    local: tuple[str, ...]
    origin: SourceLocation = _NOWHERE

    def members(self) -> tuple[Stmt, ...]:
        return self.steps

    def local_buffers(self) -> tuple[str, ...]:
        return self.local

    @property
    def gate_maps(self) -> tuple[Map, ...]:
        gate = self.steps[1]
        return gate.steps if isinstance(gate, MapGroup) else (gate,)
