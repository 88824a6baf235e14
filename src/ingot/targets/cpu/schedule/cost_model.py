"""The work of the CPU's own steps, beside that of the loop IR's."""

from __future__ import annotations

from collections.abc import Iterable

from ingot.lowering import cost_model
from ingot.lowering.index_expr import Size, product
from ingot.lowering.loop_ir import LoopNest, StepGroup, Stmt
from ingot.targets.cpu.schedule.statements import K_INTERLEAVE, PackedGemm, TiledConvolution


def flops(step: Stmt) -> Size:
    """Floating-point operations that a step cannot do without."""
    match step:
        case StepGroup():
            return _sum(flops(inner) for inner in step.members())
        case PackedGemm():
            return product([loop.extent for loop in step.batch]) * step.m * step.n * step.k * 2
        case TiledConvolution():
            taps = (4 if step.algorithm == "winograd" else step.kernel[0] * step.kernel[1]) * step.channels
            return product([step.images, *step.out_size]) * (2 * step.out_channels * taps)
    return cost_model.flops(step)


def weighted_flops(step: Stmt) -> Size:
    """The same, as operations on float32: an instruction multiplies two bfloat16, or four bytes, in the same time."""
    match step:
        case LoopNest():
            return _sum(weighted_flops(inner) for inner in step.steps)
        case StepGroup():
            return _sum(weighted_flops(inner) for inner in step.members())
        case PackedGemm():
            return flops(step) // K_INTERLEAVE[step.factors]
        case TiledConvolution() if step.algorithm != "depthwise":
            return flops(step) // K_INTERLEAVE[step.factors]
    return flops(step)


def _sum(sizes: Iterable[Size]) -> Size:
    total: Size = 0
    for size in sizes:
        total = total + size
    return total
