"""What a kernel writer returns: the text of one kernel, what it takes, and how it is launched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ingot.lowering.dtypes import BYTES
from ingot.lowering.index_expr import Expr, Size

# Threads of a warp.
WARP = 32
# Blocks along y and z that a grid may have.
GRID_LIMIT = 65535


@dataclass(frozen=True, slots=True)
class Grid:
    """Blocks along x, y and z. A grid with none is not launched."""

    x: Size
    y: Size = 1
    z: Size = 1


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A tensor inside a buffer as copies of boxes read it: the innermost dim first, which is dense; the steps of the
    others, in elements. A box is so many elements along each dim, 128 bytes along the innermost one, and lies in shared
    memory swizzled as `ig_swizzle<128>` has it. The view begins at, and its steps are, multiples of 16 bytes. With
    `every`, a box takes elements so many apart along each dim."""

    buffer: str
    offset: Size
    dtype: str
    sizes: tuple[Size, ...]
    steps: tuple[Size, ...]
    box: tuple[int, ...]
    every: tuple[int, ...] = ()


# Words of 8 bytes by which the host describes a map to the driver, as many as a map itself has.
MAP_WORDS = 16
# Dims that a map may have.
MAP_RANK = 5
# What the driver calls the types of elements, and the layout of boxes.
_MAP_DTYPES = {"float16": 6, "float32": 7, "bfloat16": 9}
_MAP_SWIZZLE = 3
# How far apart the elements of a box may be, and how long what it spans.
MAP_EVERY = 8
MAP_SPAN = 256


def map_words(made: TensorMap) -> list[Size]:
    """What the host gives the driver for a map, after the tensor's address: format, sizes, steps in bytes, what a box
    spans."""
    rank, bytes_ = len(made.sizes), BYTES[made.dtype]
    assert 2 <= rank <= MAP_RANK and len(made.steps) == rank - 1 and made.box[0] * bytes_ == 128

    def pad(sizes: Sequence[Size], to: int) -> list[Size]:
        return [*sizes, *[1] * (to - len(sizes))]

    steps = pad([step * bytes_ for step in made.steps], MAP_RANK - 1)
    kind = _MAP_DTYPES[made.dtype] | rank << 8 | _MAP_SWIZZLE << 16
    every = made.every or (1,) * rank
    span = [one * apart for one, apart in zip(made.box, every, strict=True)]
    assert all(1 <= apart <= MAP_EVERY for apart in every) and max(span) <= MAP_SPAN
    for dim, apart in enumerate(every):
        kind |= apart - 1 << 24 + 8 * dim
    return [kind, *pad(made.sizes, MAP_RANK), *steps, *pad(span, MAP_RANK)]


@dataclass(frozen=True, slots=True)
class CudaKernel:
    """One kernel: the text of a function without its name, and its launch.

    `signature` declares its parameters but for the context, which is the last; `buffers` and `sizes` are what the host
    passes for them, in this order. A buffer that begins with "scratch:" is a part of the step's own memory, at the
    offset behind the colon. `block` is its number of threads, `shared` the bytes of its dynamic shared memory.
    `computed` are run-time sizes that the text computes, `limits` those that must not overflow. With `waits`, the text
    waits for the kernel before it (`ig_wait_for_previous`) before it reads or writes what others write: its launch may
    overlap that kernel's end. `resident` blocks at least are to run on a multiprocessor at once: it bounds registers.

    `maps` are what it takes for the parameters `map0`, `map1`, …, which stand before all others, and `cluster` how many
    blocks along x are a cluster; GPUs that have no such things run a text that does without, whose dynamic shared
    memory is `plain_shared`. The text selects by IG_HOPPER of cu/async_copies.cuh.

    A kernel that loops over layers takes a `table` of buffers, a row for each layer, as one parameter `layers`, which
    stands behind the maps.

    With `together`, blocks wait for each other: all of them run at the same time. The grid has no more blocks along x
    than the GPU has multiprocessors, and the text serves any number of them.
    """

    text: str
    signature: tuple[str, ...]
    buffers: tuple[str, ...]
    sizes: tuple[str, ...]
    grid: Grid
    block: int
    shared: Size = 0
    computed: tuple[Expr, ...] = ()
    waits: bool = False
    resident: int = 1
    cluster: int = 1
    maps: tuple[TensorMap, ...] = ()
    plain_shared: int | None = None
    together: bool = False
    table: tuple[tuple[str, ...], ...] = ()

    @property
    def table_words(self) -> int:
        return sum(map(len, self.table))
