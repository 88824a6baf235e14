"""The pass that has the weights of products of few rows copied ahead, through shared memory.

    before                                   after
    TiledGemm  x · w → y  algorithm=rows     TiledGemm  x · w → y  algorithm=stream

A token is many such products one after another, each as fast as memory gives its weights. These are asked for before
the kernel before has ended, and a few of them always are on their way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ingot.lowering.dependence import map_steps
from ingot.lowering.dtypes import HALVES
from ingot.lowering.loop_ir import Buffer, Stmt
from ingot.lowering.loop_module import Module
from ingot.targets.cuda.schedule.statements import TiledGemm
from ingot.targets.cuda.schedule.tiles import FEW_ROWS, PROCESSORS
from ingot.targets.cuda.schedule.tiling import lies_along

# Lines of a slot, warps that multiply, and the threads of a block: one warp copies.
LINES = 8
WARPS = 8
CONSUMERS = 32 * WARPS
THREADS = CONSUMERS + 32
# Terms of a slot at most, the multiple that they are, and bytes of all slots: blocks of two kernels fit into one
# multiprocessor, so that the next one's slots are filled while this one ends.
MOST_TERMS = 2048
_TERMS = 32 * WARPS
_RING_BYTES = 66 << 10
# The same of a kernel of several products, which fills the slots of its next product itself. Beside one of its blocks a
# multiprocessor has room for a small block of the kernel before it, or behind it. What its warps read and write between
# two products waits behind the slots that are on their way: so many bytes keep memory busy, and more only take time.
_CHAIN_TERMS = 1024
_CHAIN_BYTES = 200 << 10
_CHAIN_FLIGHT = 53 << 10
# Bytes of the sums of a block, and of all its shared memory: a GPU of sm_80 has so much.
_SUM_BYTES = 32 << 10
MOST_SHARED = 160 << 10
# Weights with fewer elements are read in the time that it takes to ask for them.
_LEAST_ELEMENTS = 1 << 19


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """How blocks share a streamed product. `lines` are those of a block at most, of pairs the first ones; `fills` says
    how often it fills a slot of `terms` terms. Shared memory has its rows, `pitch` bytes apart, and its sums."""

    blocks: int
    lines: int
    fills: int
    terms: int
    pitch: int
    row_bytes: int
    sum_bytes: int


@dataclass(frozen=True, slots=True)
class RingPlan:
    """The shared memory of a kernel of streamed products: `slots` of `terms` terms, at most `flight` of which are on
    their way, then the rows, then the sums, which are `sums` bytes behind the rows. `plain_shared` is what a GPU needs
    that reads lines without slots."""

    slots: int
    terms: int
    flight: int
    sums: int
    shared: int
    plain_shared: int


def plan_stream(rows: int, n: int, k: int, *, pairs: bool = False) -> StreamPlan:
    each = LINES // 2 if pairs else LINES
    count = n // 2 if pairs else n
    blocks = max(min(PROCESSORS, -(-count // each)), 1)
    turns = -(-_sum_bytes(rows, count, blocks, each) // _SUM_BYTES)
    if turns > 1:
        blocks = turns * PROCESSORS
    lines = -(-count // blocks)
    terms = min(MOST_TERMS, _round_up(k, _TERMS))
    fills = -(-lines // each) * -(-k // terms)
    pitch = _round_up(2 * k, 128) + 64
    return StreamPlan(blocks, lines, fills, terms, pitch, rows * pitch, _sum_bytes(rows, count, blocks, each))


def plan_ring(products: Sequence[StreamPlan], beside: int = 0) -> RingPlan:
    """What products that share a kernel, or the only one, have in common. What else the kernel does before them needs
    so many bytes beside the slots."""
    alone = len(products) == 1
    terms = max(plan.terms for plan in products) if alone else min(_CHAIN_TERMS, max(plan.terms for plan in products))
    slot = LINES * (2 * terms + 64) + 16
    sums = _round_up(max(plan.row_bytes for plan in products), 16)
    plain = max(sums + max(plan.sum_bytes for plan in products), beside)
    fills = sum(plan.fills for plan in products)
    slots = max(2, min((_RING_BYTES if alone else _CHAIN_BYTES - plain) // slot, fills))
    flight = slots if alone else max(1, min(slots, _CHAIN_FLIGHT // slot))
    return RingPlan(slots, terms, flight, sums, _round_up(slots * slot + 16, 128) + plain, plain)


def _sum_bytes(rows: int, count: int, blocks: int, each: int) -> int:
    """Of a block's sums, each as the parts that its warps have."""
    lines = -(-count // blocks)
    return -(-lines // each) * LINES * rows * WARPS * 4


def _round_up(size: int, to: int) -> int:
    return -(-size // to) * to


def find_stream_fault(step: TiledGemm, buffers: Mapping[str, Buffer]) -> str | None:
    """Why a product cannot be streamed; None where it can."""
    m, n, k = step.m, step.n, step.k
    if step.batch or not isinstance(m, int) or not isinstance(n, int) or not isinstance(k, int):
        return "a streamed product has sizes that are known, and no batch"
    if not 0 < m <= FEW_ROWS or n < 1 or k < 1 or step.split_k != 1:
        return f"a streamed product has one to {FEW_ROWS} rows, and all its terms in one block"
    first, second = (buffers[view.buffer] for view in (step.a, step.b))
    if first.dtype != second.dtype or first.dtype not in HALVES or step.dtype != "float32":
        return "a streamed product multiplies halves into sums of float32"
    if second.kind != "weight":
        return "a streamed product's right side is a weight: it is read before earlier steps have ended"
    along = lies_along(step.a, m, k, 8, rows_first=True) and lies_along(step.b, n, k, 8, rows_first=False)
    if not along or not isinstance(step.b.offset, int):
        return "a streamed product's operands lie along the terms, aligned to 16 bytes"
    if plan_ring([plan_stream(m, n, k)]).shared > MOST_SHARED:
        return "a streamed product's rows and sums lie in shared memory"
    return None


def stream_weights(module: Module) -> Module:
    """Products that warps would read line by line are streamed, where that is worth it."""

    def stream(step: Stmt) -> Stmt:
        if isinstance(step, TiledGemm) and step.algorithm == "rows" and find_stream_fault(step, module.buffers) is None:
            assert isinstance(step.n, int) and isinstance(step.k, int)
            return replace(step, algorithm="stream") if step.n * step.k >= _LEAST_ELEMENTS else step
        return step

    return replace(module, steps=map_steps(module.steps, stream))
