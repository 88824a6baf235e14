"""Strips: products and convolutions one after another, a few lines of an image at a time.

    before                                             after
    PackedGemm        pixels → t0   56 × 56 × 144      StripMined of 8 lines:
    TiledConvolution  t0 → t1       56 × 56 × 144          pixels → t0 → t1 → y, where t0 and t1 are a strip's
    PackedGemm        t1 → y        56 × 56 × 24

What lies between them is large where it is wide, and would go out to memory and come back: an inverted residual block
widens six times. A strip of it stays in the cache of the core that works on it. Lines that two strips need are
computed once where the same core goes on with the next strip.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from ingot.lowering.dependence import reads_and_writes
from ingot.lowering.dtypes import BYTES
from ingot.lowering.index_expr import Size, estimate, evaluate, product, symbol
from ingot.lowering.loop_body import reads
from ingot.lowering.loop_ir import Buffer, Map, Stmt
from ingot.lowering.loop_module import Module
from ingot.targets.cpu.schedule.cost_model import flops
from ingot.targets.cpu.schedule.statements import PackedGemm, StripMined, Tiled, TiledConvolution, rows_dtype

# Bytes of a buffer between two steps that are too many to stay in a core's cache by themselves.
LARGE = 1 << 19
# Bytes of all that a strip holds, and of the weights that each strip reads anew.
HELD = 1 << 19
WEIGHTS = 3 << 17
# Strips that there should be at least, for threads to share.
STRIPS = 8


def strip_mine(module: Module) -> Module:
    """Joins steps that follow one another through large buffers; computes the same."""
    counts: Counter[str] = Counter()
    for step in module.steps:
        counts.update(reads_and_writes(step)[0])
    done: list[Stmt] = []
    waiting: list[Tiled] = []

    def finish() -> None:
        done.extend(_join(waiting, module) if len(waiting) > 1 else waiting)
        waiting.clear()

    for step in module.steps:
        if waiting and not (_is_stage(step) and _follows(step, waiting, counts, module)):
            finish()
        if _is_stage(step):
            assert isinstance(step, Tiled)
            waiting.append(step)
        else:
            done.append(step)
    finish()
    return replace(module, steps=tuple(done))


def _is_stage(step: Stmt) -> bool:
    """Whether a step can be computed line by line: it reads rows as they lie, and weights that are packed."""
    if isinstance(step, TiledConvolution):
        return step.algorithm != "winograd"
    if not isinstance(step, PackedGemm) or step.batch or step.codes:
        return False
    return step.a.columns == 1 and step.a.rows == step.k and step.a.offset == 0


def _image(step: Stmt) -> str:
    return step.x if isinstance(step, TiledConvolution) else step.a.buffer if isinstance(step, PackedGemm) else ""


def _follows(step: Stmt, before: Sequence[Tiled], counts: Counter[str], module: Module) -> bool:
    """Whether a step reads as its image all that the last one before it writes, and no other step does."""
    assert isinstance(step, Tiled)
    last, name = before[-1], _image(step)
    buffer = module.buffers[name]
    (store, *more) = last.epilogue.stores
    if store.buffer != name or more or store.mode != "set" or buffer.kind != "temporary" or counts[name] != 1:
        return False
    if buffer.dtype != rows_dtype(step) or any(access.buffer == name for access in reads(step.epilogue.body)):
        return False
    if not _row_major(last.epilogue) or product([loop.extent for loop in last.epilogue.loops]) != buffer.size:
        return False
    if isinstance(step, TiledConvolution) and step.pixel * product([step.images, *step.size]) != buffer.size:
        return False
    # Strips are written while others still read what the steps before are given.
    given = set().union(*(reads_and_writes(stage)[0] for stage in before))
    return not reads_and_writes(step)[1] & given and estimate(buffer.size, module.hints) * BYTES[buffer.dtype] >= LARGE


def _row_major(epilogue: Map) -> bool:
    flat: Size = 0
    for loop in epilogue.loops:
        flat = flat * loop.extent + symbol(loop.variable, below=loop.extent)
    return epilogue.stores[0].index == flat


def _join(steps: Sequence[Tiled], module: Module) -> list[Stmt]:
    """The steps as one, or as several where a strip of all of them would not fit."""
    found = _strips(steps, module)
    if found is not None:
        return [found]
    if len(steps) == 2:
        return list(steps)
    return [*_join(steps[:-1], module), steps[-1]]


def _strips(steps: Sequence[Tiled], module: Module) -> StripMined | None:
    grids = _grids(steps)
    if grids is None:
        return None
    images, sizes = grids
    local = tuple(stage.epilogue.stores[0].buffer for stage in steps[:-1])
    weights = sum(_weights(stage, module.buffers) for stage in steps)
    most = -(-estimate(images * sizes[-1][0], module.hints) // STRIPS)
    made = StripMined(
        images, tuple(steps), local, sizes, 1, max(steps, key=lambda s: estimate(flops(s), module.hints)).origin
    )
    fitting = [
        lines for lines in range(1, most + 1) if count_held_bytes(replace(made, lines=lines), module.buffers) <= HELD
    ]
    if not fitting or weights > WEIGHTS:
        return None
    return replace(made, lines=fitting[-1])


def _grids(steps: Sequence[Tiled]) -> tuple[Size, tuple[tuple[Size, Size], ...]] | None:
    """The images, and the lines and columns of what each step writes of one. Without a convolution among them, all rows
    are lines of one image."""
    windows = [(place, step) for place, step in enumerate(steps) if isinstance(step, TiledConvolution)]
    if not windows:
        return 1, tuple((step.m, 1) for step in steps if isinstance(step, PackedGemm))
    found: list[tuple[Size, Size]] = []
    for place, step in enumerate(steps):
        if isinstance(step, TiledConvolution):
            found.append(step.out_size)
        else:
            behind = [s for at, s in windows if at < place]
            found.append(behind[-1].out_size if behind else windows[0][1].size)
    if not all(isinstance(columns, int) for _, columns in found):
        return None
    return windows[0][1].images, tuple(found)


def _weights(step: Tiled, buffers: dict[str, Buffer]) -> int:
    weight = buffers[step.weight if isinstance(step, TiledConvolution) else step.b.buffer]
    return evaluate(weight.size, {}) * BYTES[weight.dtype]


def window(step: Tiled) -> tuple[int, int, int]:
    """How lines of a step's image belong to line y of what it writes: from y·stride - padding on, so many of them."""
    if isinstance(step, PackedGemm):
        return 1, 0, 1
    return step.stride[0], step.padding[0], (step.kernel[0] - 1) * step.dilation[0] + 1


def held_lines(step: StripMined) -> list[int]:
    """The most lines that a strip holds of each buffer between two steps."""
    lines = [step.lines]
    for stage in reversed(step.steps[1:]):
        stride, _, reach = window(stage)
        lines.append((lines[-1] - 1) * stride + reach)
    return lines[:0:-1]


def line_size(step: StripMined, place: int) -> int:
    """Elements of a line of what step number `place` writes."""
    channels, columns = step.steps[place].epilogue.loops[-1].extent, step.grids[place][1]
    assert isinstance(channels, int) and isinstance(columns, int)
    return channels * columns


def count_held_bytes(step: StripMined, buffers: dict[str, Buffer]) -> int:
    """Bytes of all that a strip holds."""
    sizes = [
        lines * line_size(step, place) * BYTES[buffers[step.local[place]].dtype]
        for place, lines in enumerate(held_lines(step))
    ]
    return sum(sizes)
