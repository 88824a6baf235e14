"""Maps that read along one loop and write along another: tiles of both go through shared memory.

Threads first lie along the loop that memory is read along, and fill the tile; then along the one that it is written
along, and take their elements out of it. So all accesses of global memory are by neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass

from ingot.codegen.c_expressions import STORED
from ingot.lowering.dependence import reads_and_writes
from ingot.lowering.dtypes import BYTES
from ingot.lowering.index_expr import BodyValue, Expr, Size, coefficient_of, product
from ingot.lowering.loop_body import reads
from ingot.lowering.loop_ir import Loop, Map
from ingot.targets.cuda.codegen.kernel import CudaKernel, Grid
from ingot.targets.cuda.codegen.kernel_writer import CudaKernelWriter
from ingot.targets.cuda.codegen.loop_kernels.loop_points import loop_type, store_results, unflatten
from ingot.targets.cuda.codegen.loop_kernels.vector_accesses import Place

TILE = 32
ROWS = 8
# Loads that go through a tile each, and the shortest loop that is worth one.
MOST_TILES = 4
SHORTEST = 16


@dataclass(frozen=True, slots=True)
class Transposition:
    """Loads, by buffer and index, that run along the loop `along`; stores run along the innermost one."""

    along: Loop
    loads: tuple[Place, ...]


def find_transposition(out: CudaKernelWriter, step: Map) -> Transposition | None:
    """The loop that most of the loads run along which do not run along the innermost one."""
    *around, inner = step.loops
    if out.hint(inner.extent) < SHORTEST:
        return None
    if any(coefficient_of(store.index, inner.variable) != 1 for store in step.stores):
        return None
    strided = [
        (load.buffer, load.index)
        for load in reads(step.body)
        if load.mask is None and _follows_loops(load.index) and coefficient_of(load.index, inner.variable) not in (0, 1)
    ]
    best: Transposition | None = None
    for loop in around:
        if out.hint(loop.extent) < SHORTEST:
            continue
        along = tuple(dict.fromkeys(at for at in strided if coefficient_of(at[1], loop.variable) == 1))[:MOST_TILES]
        if along and (best is None or len(along) > len(best.loads)):
            best = Transposition(loop, along)
    return best


def _follows_loops(index: Size) -> bool:
    return not isinstance(index, Expr) or not any(isinstance(s, BodyValue) for s in index.symbols)


def write_transposed(out: CudaKernelWriter, step: Map, made: Transposition) -> CudaKernel:
    *around, inner = step.loops
    outer = [loop for loop in around if loop is not made.along]
    read, written = reads_and_writes(step)
    type_ = loop_type(out, sorted(read | written), step.loops, [step.body])
    across, down = ((loop.extent + TILE - 1) // TILE for loop in (inner, made.along))
    out.line(f"const {type_} tile = ({type_})blockIdx.x;")
    names = (
        Loop("rest", product([loop.extent for loop in outer])),
        Loop("tile_down", down),
        Loop("tile_across", across),
    )
    unflatten(out, "tile", type_, names)
    unflatten(out, "rest", type_, outer)
    out.line(f"const int x = (int)threadIdx.x % {TILE}, y = (int)threadIdx.x / {TILE};")
    tiles = {place: f"staged{number}" for number, place in enumerate(made.loads)}
    for (buffer, _), name in tiles.items():
        dtype = out.buffers[buffer].dtype
        # One more word per row: neighbours in a column are then in different banks.
        out.line(f"__shared__ {STORED[dtype]} {name}[{TILE}][{TILE + max(1, 4 // BYTES[dtype])}];")
    _open_tile(out, made.along, inner, type_, "x", "r")
    for (buffer, index), name in tiles.items():
        out.line(f"{name}[r][x] = {out.place(buffer, index)};")
    _close_tile(out)
    out.line("__syncthreads();")
    _open_tile(out, made.along, inner, type_, "r", "x")
    place = out.place
    taken = {at: f"{name}[x][r]" for at, name in tiles.items()}
    code = out.statements(step.body, (), place=lambda buffer, at: taken.get((buffer, at)) or place(buffer, at))
    out.declare_flags(code)
    for line in (*code.before, *code.inside):
        out.line(line)
    store_results(out, step.stores, code)
    out.report_flags(code)
    _close_tile(out)
    total = product([across, down, *(loop.extent for loop in outer)])
    return out.finish(Grid(total), TILE * ROWS)


def _open_tile(out: CudaKernelWriter, along: Loop, inner: Loop, type_: str, down: str, right: str) -> None:
    """The points of the tile that this thread has, one after another; `down` and `right` are their places in it."""
    out.open(f"for (int r = y; r < {TILE}; r += {ROWS})")
    out.line(f"const {type_} {along.variable} = tile_down * {TILE} + {down};")
    out.line(f"const {type_} {inner.variable} = tile_across * {TILE} + {right};")
    inside = f"{along.variable} < {out.size(along.extent)} && {inner.variable} < {out.size(inner.extent)}"
    out.open(f"if ({inside})")


def _close_tile(out: CudaKernelWriter) -> None:
    out.close()
    out.close()
