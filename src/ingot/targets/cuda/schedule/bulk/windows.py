"""Convolutions with weights, whose weights then lie in whole tiles as shared memory has them.

    before                       after
    ImplicitGemm  x ∗ w → y      ImplicitGemm  x ∗ w, in tiles → y    algorithm="bulk", box=(images, lines, columns)

The rows of a tile are a box of output pixels. For a tap and 64 channels, what they read is a box of the image, which
one copy takes as it takes rows of a matrix (products.py): with zeros where it leaves the image, and every other
pixel where windows move by two. Convolutions that do not fit stay as they are.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ingot.lowering.dependence import map_steps
from ingot.lowering.dtypes import HALVES
from ingot.lowering.index_expr import estimate
from ingot.lowering.loop_ir import Stmt, StridedView
from ingot.lowering.loop_module import Module
from ingot.targets.cuda.schedule.bulk.products import find_epilogue_kind
from ingot.targets.cuda.schedule.bulk.tiled_weights import TiledWeights
from ingot.targets.cuda.schedule.bulk.tiles import BULK_TERMS, choose_bulk_tile
from ingot.targets.cuda.schedule.statements import GemmTile, ImplicitGemm
from ingot.targets.cuda.schedule.weight_layouts import ReorderedLayout, SwizzledTiles

# Elements of 16 bytes, by which pixels are aligned, and which a run of columns has.
_EACH = 8
# How far apart the pixels of a box may be, and what it may span along a dim: as maps have it.
_MOST_STRIDE = 8
_MOST_SPAN = 256
# Rows of the tile for which the pixels that a box leaves out are counted.
_USUAL_ROWS = 128
# Pixels of all images together, at most: an int holds the number of a row.
_MOST_PIXELS = 1 << 30


def pack_windows(module: Module) -> Module:
    """Convolutions with weights as products by tiles of them; computes the same."""
    packing = _WindowPacking.create(module)
    return packing.finish(map_steps(module.steps, packing.change))


class _WindowPacking(TiledWeights):
    def change(self, step: Stmt) -> Stmt:
        if not isinstance(step, ImplicitGemm) or not self.fits(step):
            return step
        hints = self.module.hints
        images, pixels = estimate(step.images, hints), [estimate(size, hints) for size in step.out_size]
        if images * math.prod(pixels) > _MOST_PIXELS:
            return step
        usual = _count_boxes(images, pixels, choose_box(images, pixels, step.stride, _USUAL_ROWS)) * _USUAL_ROWS
        kind = find_epilogue_kind(step.epilogue, self.buffers)
        # Groups that take tiles in turn have no registers left for the numbers of pixels.
        choice = choose_bulk_tile(
            usual, [step.out_channels], count_window_terms(step), kind, in_turn=False, by_turns=False
        )
        if choice is None:
            return step
        box = choose_box(images, pixels, step.stride, choice.tile.rows)
        return self.pack(step, choice.tile, choice.parts, box)

    def fits(self, step: ImplicitGemm) -> bool:
        weight, buffer = self.weights.get(step.weight.buffer), self.buffers[step.weight.buffer]
        if weight is None or not isinstance(weight.layout, ReorderedLayout) or buffer.kind != "weight":
            return False
        dense = _lies_in_order(step) and buffer.size == step.out_channels * count_window_terms(step)
        alike = buffer.dtype == self.buffers[step.x.buffer].dtype and buffer.dtype in HALVES and step.dtype == "float32"
        return dense and alike and step.algorithm in ("tensor", "warpgroup") and find_window_fault(step) is None

    def pack(self, step: ImplicitGemm, tile: GemmTile, parts: int, box: tuple[int, ...]) -> ImplicitGemm:
        found = self.weights[step.weight.buffer].layout
        assert isinstance(found, ReorderedLayout)
        terms = count_window_terms(step)
        layout = SwizzledTiles(0, step.out_channels, terms, terms, 1, tile.columns, found)
        view = StridedView(self.add(step.weight.buffer, layout, "boxes"), 0, step.weight.strides)
        return replace(step, algorithm="bulk", tile=tile, split_k=parts, box=box, weight=view)


def count_window_terms(step: ImplicitGemm) -> int:
    return step.channels * math.prod(step.kernel)


def _lies_in_order(step: ImplicitGemm) -> bool:
    """Whether a weight is a matrix of output channels by (tap…, channel)."""
    outer, channel, *taps = step.weight.strides
    expected = step.channels
    for size, found in zip(reversed(step.kernel), reversed(taps), strict=True):
        if size > 1 and found != expected:
            return False
        expected *= size
    return step.weight.offset == 0 and channel == 1 and outer == expected


def find_window_fault(step: ImplicitGemm) -> str | None:
    """Why boxes of an image cannot be the rows of a convolution."""
    numbers = (*step.size, *step.out_size, *step.padding, *step.x.strides, step.x.offset)
    if not 1 <= len(step.kernel) <= 2 or step.groups != 1 or not all(isinstance(number, int) for number in numbers):
        return "boxes are of images of one or two dims, of known sizes, without groups"
    image, channel, *steps = step.x.strides
    places = (step.x.offset, image, *steps)
    aligned = channel == 1 and all(isinstance(place, int) and place % _EACH == 0 for place in places)
    if not aligned or not all(isinstance(place, int) and place > 0 for place in places[1:]):
        return "the pixels of an image are not aligned, or its channels are not neighbours"
    if step.channels % BULK_TERMS or step.out_channels % _EACH:
        return f"{step.channels} channels and {step.out_channels} are not whole stages and runs of {_EACH}"
    return None if max(step.stride) <= _MOST_STRIDE else f"windows that move by {max(step.stride)} are not a box"


def choose_box(images: int, pixels: list[int], stride: tuple[int, ...], rows: int) -> tuple[int, ...]:
    """Images, and pixels along each dim, of which as few boxes as possible cover all, with no more pixels than rows. Of
    those that do, the longest lines."""
    high, wide = (1, *pixels)[-2:]
    best: tuple[int, int, int] | None = None
    chosen = (1, 1, 1)
    for columns in range(1, min(wide, rows, _MOST_SPAN // stride[-1]) + 1):
        tallest = 1 if len(pixels) == 1 else min(high, rows // columns, _MOST_SPAN // stride[0])
        for lines in range(1, tallest + 1):
            box = (min(max(images, 1), rows // (columns * lines)), lines, columns)
            rank = (_count_boxes(images, [high, wide], box), -columns, -lines)
            if best is None or rank < best:
                best, chosen = rank, box
    return chosen if len(pixels) == 2 else (chosen[0], chosen[2])


def _count_boxes(images: int, pixels: list[int], box: tuple[int, ...]) -> int:
    return math.prod(-(-size // each) for size, each in zip((images, *pixels), box, strict=True))
