"""The work a step cannot do without: floating-point operations, and bytes that must be read or written once."""

from __future__ import annotations

from ingot.lowering.expr import Size, product
from ingot.lowering.ir import (
    BYTES,
    TOGETHER,
    Attention,
    AttentionGradient,
    Buffer,
    Convolution,
    Map,
    Nest,
    Pair,
    Product,
    Reduce,
    Scan,
    Siblings,
    Step,
    Strips,
)
from ingot.lowering.memory import touched

_FREE = frozenset({"load", "const", "index", "cast", "check", "accumulator", "beside", "gradient", "input"})


def flops(step: Step) -> Size:
    match step:
        case Map():
            return product([loop.extent for loop in step.loops]) * _operations(step)
        case Reduce():
            return product([loop.extent for loop in (*step.loops, *step.over)]) * (_operations(step) + len(step.kinds))
        case Nest() | Siblings() | Pair() | Strips():
            total: Size = 0
            for inner in step.steps:
                total = total + flops(inner)
            return total
        case Product():
            return product([loop.extent for loop in step.batch]) * step.m * step.n * step.k * 2
        case Convolution():
            taps = (4 if step.way == "winograd" else step.kernel[0] * step.kernel[1]) * step.channels
            return product([step.images, *step.out_size]) * (2 * step.out_channels * taps)
        case Attention():
            pairs = product([loop.extent for loop in step.batch]) * step.queries * step.keys
            return pairs * (step.depth + step.values) * (1 if step.causal else 2)
        case AttentionGradient():
            pairs = product([loop.extent for loop in step.batch]) * step.queries * step.keys
            more = step.depth if step.side == "queries" else step.depth + step.values
            return pairs * (step.depth + step.values + more) * 2
        case Scan():
            return product([loop.extent for loop in (*step.loops, step.over)]) * _operations(step)
    return 0


def effort(step: Step) -> Size:
    """The same, as operations on float32: an instruction multiplies two bfloat16, or four bytes, in the same time."""
    match step:
        case Nest() | Siblings() | Pair() | Strips():
            total: Size = 0
            for inner in step.steps:
                total = total + effort(inner)
            return total
        case Product() | Convolution() if not (isinstance(step, Convolution) and step.way == "depthwise"):
            return flops(step) // TOGETHER[step.factors]
    return flops(step)


def _operations(step: Map | Reduce | Scan) -> int:
    return sum(op.name not in _FREE for op in step.body.ops)


def traffic(step: Step, buffers: dict[str, Buffer]) -> Size:
    """Bytes of every buffer that is touched, once each. A row's own memory costs nothing."""
    reads, writes = touched(step)
    local = set(step.local) if isinstance(step, Nest | Strips) else set()
    total: Size = 0
    for name in sorted((reads | writes) - local):
        total = total + buffers[name].size * BYTES[buffers[name].dtype]
    return total
