"""The minimum work of a step: floating-point operations, and bytes that must be read or written."""

from __future__ import annotations

from ingot.lowering.dependence import local_buffers, reads_and_writes
from ingot.lowering.dtypes import BYTES
from ingot.lowering.index_expr import Size, product
from ingot.lowering.loop_ir import (
    Attention,
    AttentionBackward,
    Buffer,
    Convolution,
    Gemm,
    LoopNest,
    Map,
    Reduce,
    Scan,
    StepGroup,
    Stmt,
)

_FREE = frozenset({"load", "const", "index", "cast", "bounds_check", "accumulator", "gradient", "input"})


def flops(step: Stmt) -> Size:
    match step:
        case Map():
            return product([loop.extent for loop in step.loops]) * _operations(step)
        case Reduce():
            return product([loop.extent for loop in (*step.loops, *step.over)]) * (_operations(step) + len(step.kinds))
        case LoopNest() | StepGroup():
            total: Size = 0
            for inner in step.steps if isinstance(step, LoopNest) else step.members():
                total = total + flops(inner)
            return total
        case Gemm():
            return product([loop.extent for loop in step.batch]) * step.m * step.n * step.k * 2
        case Convolution():
            terms = product([step.channels, *step.kernel])
            return product([step.images, *step.out_size]) * step.out_channels * terms * 2
        case Attention():
            pairs = product([loop.extent for loop in step.batch]) * step.queries * step.keys
            return pairs * (step.depth + step.values) * (1 if step.causal else 2)
        case AttentionBackward():
            pairs = product([loop.extent for loop in step.batch]) * step.queries * step.keys
            more = step.depth if step.side == "queries" else step.depth + step.values
            return pairs * (step.depth + step.values + more) * 2
        case Scan():
            return product([loop.extent for loop in (*step.loops, step.over)]) * _operations(step)
    return 0


def _operations(step: Map | Reduce | Scan) -> int:
    return sum(op.name not in _FREE for op in step.body.ops)


def bytes_moved(step: Stmt, buffers: dict[str, Buffer]) -> Size:
    """Bytes of every buffer that is touched, once each. A row's own memory costs nothing."""
    reads, writes = reads_and_writes(step)
    total: Size = 0
    for name in sorted((reads | writes) - set(local_buffers(step))):
        total = total + buffers[name].size * BYTES[buffers[name].dtype]
    return total
