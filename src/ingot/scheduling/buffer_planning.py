"""Buffer planning: offsets of temporaries in one arena; those that are never live together may share memory.

With static sizes each buffer gets an offset, largest first, at the lowest place that is free during its life. With
dynamic sizes buffers share slots instead: a slot is as large as the largest buffer it will hold, which the run works
out, so that one plan is right for every size.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from ingot.lowering.dependence import all_steps, local_buffers, reads_and_writes
from ingot.lowering.dtypes import BYTES
from ingot.lowering.index_expr import Size, estimate, evaluate
from ingot.lowering.loop_ir import Buffer
from ingot.lowering.loop_module import Module

ALIGN = 64


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Byte offsets of buffers and the arena's size (static), or each buffer's slot and what the slots hold."""

    offsets: dict[str, int]
    size: int
    slots: tuple[tuple[str, ...], ...] = ()

    @property
    def dynamic(self) -> bool:
        return bool(self.slots)


def live_ranges(module: Module) -> dict[str, tuple[int, int]]:
    """First and last top-level step that touches each temporary. What lives in a loop lives for the whole loop."""
    found: dict[str, tuple[int, int]] = {}
    for number, step in enumerate(module.steps):
        reads_, writes = reads_and_writes(step)
        for name in sorted(reads_ | writes):
            if module.buffers[name].kind == "temporary":
                first, _ = found.get(name, (number, number))
                found[name] = (first, number)
    return found


def plan(module: Module) -> MemoryPlan:
    spans = live_ranges(module)
    local = {name for step in all_steps(module.steps) for name in local_buffers(step)}
    names = [name for name in spans if name not in local]
    if all(isinstance(module.buffers[name].size, int) for name in names):
        return _static(module, spans, names)
    return _dynamic(module, spans, names)


def byte_size(buffer: Buffer) -> Size:
    return buffer.size * BYTES[buffer.dtype]


def _align(size: int) -> int:
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


def _static(module: Module, spans: dict[str, tuple[int, int]], names: Sequence[str]) -> MemoryPlan:
    sizes = {name: _align(evaluate(byte_size(module.buffers[name]), {})) for name in names}
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
    return MemoryPlan(offsets, max((at + sizes[name] for name, at in offsets.items()), default=0))


def _dynamic(module: Module, spans: dict[str, tuple[int, int]], names: Sequence[str]) -> MemoryPlan:
    slots: list[list[str]] = []
    sizes: list[int] = []  # of the largest buffer of each slot, as far as the example shows
    busy: list[tuple[int, int]] = []  # a heap: the last step of a slot's buffer, and the slot
    free: list[tuple[int, int]] = []  # size and slot, sorted
    for name in sorted(names, key=lambda n: (spans[n], n)):
        first, last = spans[name]
        while busy and busy[0][0] < first:
            slot = heapq.heappop(busy)[1]
            bisect.insort(free, (sizes[slot], slot))
        size = estimate(byte_size(module.buffers[name]), module.hints)
        if free:
            slot = free.pop(_nearest(free, size))[1]
            slots[slot].append(name)
            sizes[slot] = max(sizes[slot], size)
        else:
            slot = len(slots)
            slots.append([name])
            sizes.append(size)
        heapq.heappush(busy, (last, slot))
    return MemoryPlan({}, 0, tuple(tuple(slot) for slot in slots))


def _nearest(free: Sequence[tuple[int, int]], size: int) -> int:
    """The place of the slot whose size is nearest; of several such slots the first."""
    above = bisect.bisect_left(free, (size, -1))
    found = [above] if above < len(free) else []
    if above:
        found.append(bisect.bisect_left(free, (free[above - 1][0], -1)))
    return min(found, key=lambda place: (abs(free[place][0] - size), free[place][1]))
