"""What a kernel writer returns: the text of one kernel, what it takes, and how it is launched."""

from __future__ import annotations

from dataclasses import dataclass

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
class CudaKernel:
    """One kernel: the text of a function without its name, and its launch.

    `signature` declares its parameters but for the context, which is the last; `buffers` and `sizes` are what the host
    passes for them, in this order. A buffer that begins with "scratch:" is a part of the step's own memory, at the
    offset behind the colon. `block` is its number of threads, `shared` the bytes of its dynamic shared memory.
    `computed` are run-time sizes that the text computes, `limits` those that must not overflow. With `waits`, the text
    waits for the kernel before it (`ig_wait_for_previous`) before it reads or writes what others write: its launch may
    overlap that kernel's end. `resident` blocks at least are to run on a multiprocessor at once: it bounds registers.
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
