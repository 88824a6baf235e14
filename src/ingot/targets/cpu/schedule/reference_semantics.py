"""What the CPU's own steps mean, for the interpreter of the loop IR: plain matrices out of panels, and sums of them.

Sums are computed in float64, in which those of integers are exact, and rounded once. A strip is computed alone: what
it does not hold is poisoned, so that one which is too short shows.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ingot.lowering.dtypes import wide
from ingot.lowering.loop_ir import ExternKernel, Stmt
from ingot.registry import Registry
from ingot.targets.base import Fault, ReferenceRule, StepRunner
from ingot.targets.cpu.schedule.statements import (
    K_INTERLEAVE,
    DualGemm,
    GemmGroup,
    PackedGemm,
    QuantizedLayout,
    StripMined,
    Tiled,
    TiledConvolution,
)
from ingot.targets.cpu.schedule.strip_mining import held_lines, window

Array: TypeAlias = NDArray[Any]

# Winograd F(2×2, 3×3): what is done with the 4×4 pixels of a tile, and with the 16 sums of its products.
_SPREAD = np.array([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]], np.float64)
_GATHER = np.array([[1, 1, 1, 0], [0, 1, -1, -1]], np.float64)


def _round(sums: Array, dtype: str) -> Array:
    made = sums.astype(np.int64) if dtype.startswith("int") else sums
    return made.astype(wide(dtype))


def _unpack_panels(flat: Array, offset: int, groups: int, terms: int, columns: int, width: int, each: int) -> Array:
    """Panels [groups][panels][terms / each][width][each] as matrices [groups, terms, columns]."""
    panels, whole = -(-columns // width), -(-terms // each)
    size = groups * panels * whole * width * each
    if offset < 0 or offset + size > flat.size:
        raise Fault(f"its weight has {flat.size} elements, of which it reads {size} from {offset} on")
    parts = flat[offset : offset + size].reshape(groups, panels, whole, width, each)
    return parts.transpose(0, 2, 4, 1, 3).reshape(groups, whole * each, panels * width)[:, :terms, :columns]


# ---------------------------------------------------------------------- products


def _unpack_weight(run: StepRunner, step: PackedGemm, offset: int) -> Array:
    k, n = run.size(step.k), run.size(step.n)
    flat = run.values(step.b.buffer)
    if step.codes is not None:
        return _unpack_codes(run, step.codes, flat, k, n, step.b.width)
    (matrix,) = _unpack_panels(flat, offset, 1, k, n, step.b.width, K_INTERLEAVE[step.factors])
    return np.asarray(matrix, np.float64)


def _unpack_codes(run: StepRunner, codes: QuantizedLayout, words: Array, k: int, n: int, width: int) -> Array:
    """(code - zero) · scale of every term of every column, of words that hold terms lowest first."""
    each, groups = 32 // codes.bits, k // codes.group
    in_group = -(-codes.group // each)
    packed = _unpack_panels(words, 0, 1, groups * in_group, n, width, 1)[0].astype(np.uint32)
    shifts = np.arange(each, dtype=np.uint32) * np.uint32(codes.bits)
    terms = (packed[:, None, :] >> shifts[:, None]) & np.uint32((1 << codes.bits) - 1)
    half = 1 << (codes.bits - 1)
    signed = ((terms.astype(np.int64) ^ half) - half).reshape(groups, in_group * each, n)[:, : codes.group]
    scales, zeros = (
        _unpack_panels(run.values(given), 0, 1, groups, n, width, 1)[0][:, None].astype(np.float64)
        if isinstance(given, str)
        else np.float64(np.float32(given))
        for given in (codes.scales, codes.zeros)
    )
    made: Array = ((signed - zeros) * scales).reshape(k, n)
    return made


def _multiply(run: StepRunner, step: PackedGemm) -> Array:
    """The sums [batch…, m, n], rounded."""
    m, k = run.size(step.m), run.size(step.k)
    if tuple(step.epilogue.loops[: len(step.batch)]) != step.batch:
        raise Fault("the outer loops of its epilogue are not its own")
    rows = run.matrices(step.a, step.batch, m, k)
    offsets = run.place(step.b.offset, step.batch)
    weights = {offset: _unpack_weight(run, step, offset) for offset in sorted(set(offsets))}
    with np.errstate(all="ignore"):
        sums = [a.astype(np.float64) @ weights[offset] for a, offset in zip(rows, offsets, strict=True)]
    return _round(np.stack(sums) if sums else np.empty(0), step.dtype)


REFERENCE_RULES: Registry[type[Stmt] | str, ReferenceRule] = Registry("reference rule")


@REFERENCE_RULES.register(PackedGemm)
def _run_packed_gemm(run: StepRunner, step: PackedGemm) -> None:
    run.run_epilogue(step.epilogue, _multiply(run, step))


@REFERENCE_RULES.register(GemmGroup)
def _run_group(run: StepRunner, group: GemmGroup) -> None:
    """At each place one product after another: some places of all products, then the others."""
    sums = [_multiply(run, step).reshape(-1) for step in group.steps]
    for half in run.halve(sums[0].size):
        for step, total in zip(group.steps, sums, strict=True):
            if total.size != sums[0].size:
                raise Fault("its products are not of one size")
            run.run_epilogue(step.epilogue, total[half], points=half)


@REFERENCE_RULES.register(DualGemm)
def _run_pair(run: StepRunner, pair: DualGemm) -> None:
    first, second = (_sum(run, step) for step in pair.steps)
    run.run_epilogue(pair.steps[0].epilogue, first, second)


def _sum(run: StepRunner, step: Tiled) -> Array:
    return _multiply(run, step) if isinstance(step, PackedGemm) else _convolve(run, step)


# ---------------------------------------------------------------------- convolutions


@REFERENCE_RULES.register(TiledConvolution)
def _run_convolution(run: StepRunner, step: TiledConvolution) -> None:
    run.run_epilogue(step.epilogue, _convolve(run, step))


def _convolve(run: StepRunner, step: TiledConvolution) -> Array:
    if step.algorithm == "winograd":
        return _convolve_tiles(run, step)
    return _convolve_lines(run, step, 0, run.size(step.images) * run.size(step.out_size[0]))


def _convolve_lines(run: StepRunner, step: TiledConvolution, first: int, last: int) -> Array:
    """The sums of lines [first, last), counted through all images: [pixels, out channels]."""
    image, weight = run.values(step.x), run.values(step.weight)
    high, across = (run.size(size) for size in step.size)
    out_high, out_across = (run.size(size) for size in step.out_size)
    lines, columns = np.divmod(np.arange(first * out_across, last * out_across), max(out_across, 1))
    images, rows = np.divmod(lines, max(out_high, 1))
    depthwise = step.algorithm == "depthwise"
    each, width = step.out_channels // step.groups, step.panel
    taps = math.prod(step.kernel)
    if depthwise:
        factors = weight.reshape(taps, step.pixel).astype(np.float64)
    else:
        groups_of_panels, together = step.groups, K_INTERLEAVE[step.factors]
        factors = _unpack_windows(weight, groups_of_panels, taps, step.channels, each, width, together)
    total = np.zeros((lines.size, step.groups, each))
    reads = step.pixel if depthwise else step.channels
    for tap, (a, b) in enumerate(np.ndindex(*step.kernel)):
        y = rows * step.stride[0] + a * step.dilation[0] - step.padding[0]
        x = columns * step.stride[1] + b * step.dilation[1] - step.padding[1]
        inside = (y >= 0) & (y < high) & (x >= 0) & (x < across)
        place = ((images * high + y) * across + x) * step.pixel
        for group in range(1 if depthwise else step.groups):
            found = _gather(image, place + group * step.channels, reads, inside, step.outside, step.x)
            with np.errstate(all="ignore"):
                if depthwise:
                    total[:, :, 0] += (found - step.outside) * factors[tap]
                else:
                    total[:, group] += found @ factors[group, tap]
    return _round(total.reshape(lines.size, step.out_channels), step.dtype)


def _unpack_windows(weight: Array, groups: int, taps: int, channels: int, columns: int, width: int, each: int) -> Array:
    """Panels [groups][panels][taps][channels / each][width][each] as [groups, taps, channels, columns]."""
    whole = -(-channels // each) * each
    matrix = _unpack_panels(weight, 0, groups, taps * whole, columns, width, each)
    return matrix.reshape(groups, taps, whole, columns)[:, :, :channels].astype(np.float64)


def _gather(image: Array, place: Array, count: int, inside: Array, outside: int, name: str) -> Array:
    """`count` neighbours from each place on, in float64; what is not inside is `outside`."""
    made = np.full((place.size, count), float(outside))
    begin = place[inside]
    if begin.size and (begin.min() < 0 or begin.max() + count > image.size):
        raise Fault(f"a window reads {name}[{int(begin.max()) + count - 1}], and {name} has {image.size} elements")
    made[inside] = image[begin[:, None] + np.arange(count)]
    return made


def _convolve_tiles(run: StepRunner, step: TiledConvolution) -> Array:
    images = run.size(step.images)
    out = tuple(run.size(size) for size in step.out_size)
    down, across = ((size + 1) // 2 for size in out)
    tiles = run.values(step.x).reshape(16, -1, step.channels).astype(np.float64)
    factors = _unpack_panels(run.values(step.weight), 0, 16, step.channels, step.out_channels, step.panel, 1)
    sums = (tiles @ factors.astype(np.float64)).reshape(4, 4, images, down, across, step.out_channels)
    made = np.einsum("ya,xb,abnijo->niyjxo", _GATHER, _GATHER, sums)
    whole = made.reshape(images, 2 * down, 2 * across, step.out_channels)[:, : out[0], : out[1]]
    return _round(whole, step.dtype)


@REFERENCE_RULES.register("winograd")
def _spread_tiles(run: StepRunner, step: ExternKernel) -> None:
    """The 4×4 pixels of each tile of 2×2 outputs, as 16 rows of channels."""
    images, _, high, across, channels, down, wide_, padding_y, padding_x = map(run.size, step.sizes)
    image = run.values(step.reads[0]).reshape(images, high, across, channels).astype(np.float64)
    after = (2 * down + 2 - padding_y - high, 2 * wide_ + 2 - padding_x - across)
    margins = ((0, 0), (padding_y, max(after[0], 0)), (padding_x, max(after[1], 0)), (0, 0))
    padded = np.pad(image, margins)
    pixels = np.stack([[padded[:, y : y + 2 * down : 2, x : x + 2 * wide_ : 2] for x in range(4)] for y in range(4)])
    run.write(step.writes[0], np.einsum("ay,bx,yxnijc->abnijc", _SPREAD, _SPREAD, pixels))


# ---------------------------------------------------------------------- strips


@REFERENCE_RULES.register(StripMined)
def _run_strips(run: StepRunner, step: StripMined) -> None:
    """A strip of lines at a time, each alone: its steps compute the lines that the next one reads."""
    lines = run.size(step.grids[-1][0])
    for image in range(run.size(step.images)):
        for first in range(0, lines, step.lines):
            _run_strip(run, step, image, first, min(first + step.lines, lines))


def _run_strip(run: StepRunner, step: StripMined, image: int, first: int, last: int) -> None:
    spans = [(first, last)]
    for place in range(len(step.steps) - 2, -1, -1):
        stride, padding, reach = window(step.steps[place + 1])
        limit = run.size(step.grids[place][0])
        begin, end = spans[0]
        ends = (begin * stride - padding, (end - 1) * stride - padding + reach)
        spans.insert(0, (min(max(ends[0], 0), limit), min(max(ends[1], 0), limit)))
    for name, (begin, end), held in zip(step.local, spans, held_lines(step), strict=False):
        run.poison(name)
        if end - begin > held:
            raise Fault(f"a strip holds {held} lines of {name}, and needs {end - begin}")
    for stage, (begin, end), grid in zip(step.steps, spans, step.grids, strict=True):
        high, columns = (run.size(size) for size in grid)
        if end > begin:
            _run_lines(run, stage, columns, image * high + begin, image * high + end)


def _run_lines(run: StepRunner, stage: Tiled, columns: int, first: int, last: int) -> None:
    """Lines [first, last) of what a step writes, counted through all images."""
    rows = slice(first * columns, last * columns)
    if isinstance(stage, PackedGemm):
        (a,) = run.matrices(stage.a, (), run.size(stage.m), run.size(stage.k))
        with np.errstate(all="ignore"):
            sums = _round(a[rows].astype(np.float64) @ _unpack_weight(run, stage, 0), stage.dtype)
    else:
        sums = _convolve_lines(run, stage, first, last)
    across = run.size(stage.epilogue.loops[-1].extent)
    points = np.arange(rows.start * across, rows.stop * across)
    if points.size != sums.size:
        raise Fault(f"a strip has {points.size} places, and {sums.size} sums are computed for it")
    run.run_epilogue(stage.epilogue, sums.reshape(-1), points=points)
