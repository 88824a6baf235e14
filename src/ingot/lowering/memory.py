"""The arena: where every temporary lies, so that what is never alive together may share memory.

With static sizes each buffer gets an offset, largest first, at the lowest place that is free during its life. With
dynamic sizes buffers share slots instead: a slot is as large as the largest buffer it will hold, which the run works
out, so that one plan is right for every size.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ingot.lowering.body import reads
from ingot.lowering.expr import Size, evaluate, guess
from ingot.lowering.ir import (
    BYTES,
    Attention,
    AttentionGradient,
    Bind,
    Body,
    Buffer,
    Check,
    Convolution,
    If,
    Map,
    MaskTiles,
    Module,
    Nest,
    Pair,
    Product,
    Reduce,
    Repeat,
    Routine,
    Scan,
    Siblings,
    Step,
    Strips,
    While,
)

ALIGN = 64


@dataclass(frozen=True, slots=True)
class Plan:
    """Byte offsets of buffers and the arena's size (static), or each buffer's slot and what the slots hold."""

    offsets: dict[str, int]
    size: int
    slots: tuple[tuple[str, ...], ...] = ()

    @property
    def dynamic(self) -> bool:
        return bool(self.slots)


def body_reads(body: Body) -> set[str]:
    return {access.buffer for access in reads(body)}


def operands(step: Product | Convolution | Attention) -> set[str]:
    """The buffers that a step reads to compute its sums: all that it reads, but for what its epilogue reads."""
    match step:
        case Product():
            return {step.a.buffer, step.b.buffer} | (step.codes.buffers if step.codes else set())
        case Convolution():
            return {step.x, step.weight}
        case Attention():
            read: set[str] = set().union(*(body_reads(body) for body in (step.score, step.mask) if body))
            return read | {step.q.buffer, step.k.buffer, step.v.buffer} | ({step.tiles.buffer} if step.tiles else set())


def touched(step: Step) -> tuple[set[str], set[str]]:
    """The buffers that a step reads and writes, in nested steps too."""
    match step:
        case Map():
            return body_reads(step.body), {s.buffer for s in step.stores}
        case Reduce():
            return body_reads(step.body), {s.buffer for s in step.stores}
        case Nest():
            return _both(step.steps)
        case Product() | Convolution():
            r, w = touched(step.epilogue)
            return r | operands(step), w
        case Siblings() | Pair() | Strips():
            return _both(step.steps)
        case Attention():
            r, w = touched(step.epilogue)
            return r | operands(step), w | {store.buffer for store in (step.lse, step.top) if store}
        case MaskTiles():
            return body_reads(step.mask), {step.buffer}
        case AttentionGradient():
            r = {matrix.buffer for matrix in (step.q, step.k, step.v, step.gradient)}
            r |= body_reads(step.body) | (body_reads(step.masked) if step.masked else set())
            r |= set().union(*(body_reads(scatter.body) for scatter in step.scatter))
            tables = {scatter.store.buffer for scatter in step.scatter}
            r |= tables | ({step.tiles.buffer} if step.tiles else set())
            return r, tables | {name for name in (step.first, step.second) if name}
        case Scan():
            return body_reads(step.start) | body_reads(step.body), {s.buffer for s in step.stores}
        case Routine():
            return set(step.reads), set(step.writes)
        case Bind() | Check():
            return body_reads(step.body), set()
        case If():
            r, w = _both((*step.then, *step.otherwise))
            return r | body_reads(step.condition), w
        case While():
            r, w = _both((*step.test, *step.steps))
            return r | body_reads(step.condition), w
        case Repeat():
            return _both(step.steps)


def _both(steps: Sequence[Step]) -> tuple[set[str], set[str]]:
    reads_: set[str] = set()
    writes: set[str] = set()
    for step in steps:
        r, w = touched(step)
        reads_ |= r
        writes |= w
    return reads_, writes


def lives(module: Module) -> dict[str, tuple[int, int]]:
    """First and last top-level step that touches each temporary. What lives in a loop lives for the whole loop."""
    found: dict[str, tuple[int, int]] = {}
    for number, step in enumerate(module.steps):
        reads_, writes = touched(step)
        for name in sorted(reads_ | writes):
            if module.buffers[name].kind == "temporary":
                first, _ = found.get(name, (number, number))
                found[name] = (first, number)
    return found


def plan(module: Module) -> Plan:
    spans = lives(module)
    local = {name for step in all_steps(module.steps) if isinstance(step, Nest | Strips) for name in step.local}
    names = [name for name in spans if name not in local]
    if all(isinstance(module.buffers[name].size, int) for name in names):
        return _static(module, spans, names)
    return _dynamic(module, spans, names)


def all_steps(steps: Sequence[Step]) -> Iterator[Step]:
    """Each step, and after it those inside it."""
    for step in steps:
        yield step
        for inner in nested(step):
            yield from all_steps(inner)


def nested(step: Step) -> tuple[tuple[Step, ...], ...]:
    match step:
        case If():
            return step.then, step.otherwise
        case While():
            return step.test, step.steps
        case Repeat():
            return (step.steps,)
    return ()


def byte_size(buffer: Buffer) -> Size:
    return buffer.size * BYTES[buffer.dtype]


def _aligned(size: int) -> int:
    return max(size + ALIGN - 1, ALIGN) // ALIGN * ALIGN


class _Overlaps:
    """Spans of steps with what was put there: finds those that overlap another in time that grows with their number,
    not with the length of the program."""

    def __init__(self, steps: int) -> None:
        self._leaves = max(steps, 1)
        # A span lies at the nodes of a segment tree that make it up, and at its first step.
        self._nodes: dict[int, list[tuple[int, int]]] = {}
        self._firsts: dict[int, list[tuple[int, int]]] = {}

    def add(self, span: tuple[int, int], item: tuple[int, int]) -> None:
        first, last = span
        self._firsts.setdefault(first, []).append(item)
        left, right = first + self._leaves, last + self._leaves + 1
        while left < right:
            if left & 1:
                self._nodes.setdefault(left, []).append(item)
                left += 1
            if right & 1:
                right -= 1
                self._nodes.setdefault(right, []).append(item)
            left, right = left >> 1, right >> 1

    def find(self, span: tuple[int, int]) -> list[tuple[int, int]]:
        """Each overlaps the span's first step, or begins later in it."""
        first, last = span
        found: list[tuple[int, int]] = []
        node = first + self._leaves
        while node:
            found += self._nodes.get(node, ())
            node >>= 1
        for step in range(first + 1, last + 1):
            found += self._firsts.get(step, ())
        return found


def _static(module: Module, spans: dict[str, tuple[int, int]], names: Sequence[str]) -> Plan:
    sizes = {name: _aligned(evaluate(byte_size(module.buffers[name]), {})) for name in names}
    placed = _Overlaps(len(module.steps))
    offsets: dict[str, int] = {}
    for name in sorted(names, key=lambda n: (-sizes[n], spans[n], n)):
        at = 0
        for begin, end in sorted(placed.find(spans[name])):
            if at + sizes[name] <= begin:
                break
            at = max(at, end)
        offsets[name] = at
        placed.add(spans[name], (at, at + sizes[name]))
    return Plan(offsets, max((at + sizes[name] for name, at in offsets.items()), default=0))


def _dynamic(module: Module, spans: dict[str, tuple[int, int]], names: Sequence[str]) -> Plan:
    slots: list[list[str]] = []
    sizes: list[int] = []  # of the largest buffer of each slot, as far as the example tells
    busy: list[tuple[int, int]] = []  # a heap: the last step of a slot's buffer, and the slot
    free: list[tuple[int, int]] = []  # size and slot, sorted
    for name in sorted(names, key=lambda n: (spans[n], n)):
        first, last = spans[name]
        while busy and busy[0][0] < first:
            slot = heapq.heappop(busy)[1]
            bisect.insort(free, (sizes[slot], slot))
        size = guess(byte_size(module.buffers[name]), module.hints)
        if free:
            slot = free.pop(_nearest(free, size))[1]
            slots[slot].append(name)
            sizes[slot] = max(sizes[slot], size)
        else:
            slot = len(slots)
            slots.append([name])
            sizes.append(size)
        heapq.heappush(busy, (last, slot))
    return Plan({}, 0, tuple(tuple(slot) for slot in slots))


def _nearest(free: Sequence[tuple[int, int]], size: int) -> int:
    """The place of the slot whose size is nearest; of several such slots the first."""
    above = bisect.bisect_left(free, (size, -1))
    found = [above] if above < len(free) else []
    if above:
        found.append(bisect.bisect_left(free, (free[above - 1][0], -1)))
    return min(found, key=lambda place: (abs(free[place][0] - size), free[place][1]))
