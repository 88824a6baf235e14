"""What the CUDA target's own steps mean, for the interpreter of the loop IR: the same as without their tiles.

Sums are computed in float64, or of integers in int64, and rounded once.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ingot.lowering.dtypes import wide
from ingot.lowering.loop_ir import Stmt, StridedView
from ingot.registry import Registry
from ingot.targets.base import Fault, ReferenceRule, StepRunner
from ingot.targets.cuda.schedule.quantized.products import CodedGemm, run_coded_gemm
from ingot.targets.cuda.schedule.statements import GemmTile, ImplicitGemm, TiledGemm
from ingot.targets.cuda.schedule.weight_layouts import find_pieces

Array: TypeAlias = NDArray[Any]


REFERENCE_RULES: Registry[type[Stmt] | str, ReferenceRule] = Registry("reference rule")


@REFERENCE_RULES.register(TiledGemm)
def _run_tiled_gemm(run: StepRunner, step: TiledGemm) -> None:
    m, n, k = (run.size(size) for size in (step.m, step.n, step.k))
    if tuple(step.epilogue.loops[: len(step.batch)]) != step.batch:
        raise Fault("the outer loops of its epilogue are not its own")
    kind = np.float64 if step.dtype.startswith("float") else np.int64
    left = run.matrices(step.a, step.batch, m, k)
    by_tiles = step.algorithm == "bulk"
    right = [_read_columns(run, step, n, k).T] if by_tiles else run.matrices(step.b, step.batch, k, n)
    with np.errstate(all="ignore"):
        sums = [a.astype(kind) @ b.astype(kind) for a, b in zip(left, right, strict=True)]
    run.run_epilogue(step.epilogue, np.stack(sums).astype(wide(step.dtype)) if sums else np.empty(0, step.dtype))


def _read_columns(run: StepRunner, step: TiledGemm, n: int, k: int) -> Array:
    """A product's weight that lies in tiles, its columns in their own order."""
    matrix = _read_tiles(run, step.b.buffer, n, k, step.tile)
    if not step.pairs:
        return matrix
    return matrix.reshape(-1, step.pairs // 8, 2, 8, k).swapaxes(1, 2).reshape(n, k)


def _read_tiles(run: StepRunner, buffer: str, n: int, k: int, tile: GemmTile) -> Array:
    """A weight that lies in tiles, as a matrix of columns by terms."""
    columns = tile.columns
    tiles = np.ascontiguousarray(run.values(buffer)).reshape(-1, k // 64, columns, 8, 8)
    places = find_pieces(columns).numpy()  # a piece's place is found as a place's piece is
    lines = tiles[:, :, np.arange(columns)[:, None], places]
    return lines.transpose(0, 2, 1, 3, 4).reshape(-1, k)[:n]


@REFERENCE_RULES.register(ImplicitGemm)
def _run_implicit_gemm(run: StepRunner, step: ImplicitGemm) -> None:
    """A product of matrices for each tap, of what its windows read."""
    images, size, out = run.size(step.images), list(map(run.size, step.size)), list(map(run.size, step.out_size))
    shape = (images, step.groups, step.channels, *size)
    channel = run.size(step.x.strides[1])
    steps = [run.size(step.x.strides[0]), channel * step.channels, channel, *map(run.size, step.x.strides[2:])]
    x = _cut(run, step.x, shape, steps)
    each = step.out_channels // step.groups
    outer, inner, *taps = map(run.size, step.weight.strides)
    if step.algorithm == "bulk":
        terms = step.channels * int(np.prod(step.kernel))
        tap_major = _read_tiles(run, step.weight.buffer, step.out_channels, terms, step.tile)
        weight = np.moveaxis(tap_major.reshape(1, each, *step.kernel, step.channels), -1, 2)
    else:
        weight = _cut(
            run, step.weight, (step.groups, each, step.channels, *step.kernel), [outer * each, outer, inner, *taps]
        )
    total = np.zeros((images, step.groups, each, int(np.prod(out))))
    for tap in np.ndindex(*step.kernel):
        places = [
            np.arange(o) * stride + t * dilation - run.size(padding)
            for o, stride, t, dilation, padding in zip(out, step.stride, tap, step.dilation, step.padding, strict=True)
        ]
        window = x
        for axis, (place, n) in enumerate(zip(places, size, strict=True), start=3):
            inside = (place >= 0) & (place < n)
            window = np.take(window, np.where(inside, place, 0), axis)
            window = np.where(inside.reshape([-1 if dim == axis else 1 for dim in range(x.ndim)]), window, 0)
        window = window.astype(np.float64).reshape(images, step.groups, step.channels, -1)
        factors = weight[(slice(None), slice(None), slice(None), *tap)].astype(np.float64)
        with np.errstate(all="ignore"):
            total += factors @ window
    sums = np.moveaxis(total.reshape(images, step.out_channels, -1), 1, -1)
    run.run_epilogue(step.epilogue, sums.astype(wide(step.dtype)))


def _cut(run: StepRunner, view: StridedView, shape: tuple[int, ...], steps: list[int]) -> Array:
    flat = np.ascontiguousarray(run.values(view.buffer))
    offset = run.size(view.offset)
    last = offset + sum((n - 1) * step for n, step in zip(shape, steps, strict=True))
    if offset < 0 or last >= flat.size:
        raise Fault(f"it reads {view.buffer}[{last}], and {view.buffer} has {flat.size} elements")
    strides = [step * flat.itemsize for step in steps]
    return np.lib.stride_tricks.as_strided(flat[offset:], shape, strides, writeable=False)


REFERENCE_RULES.register(CodedGemm)(run_coded_gemm)
