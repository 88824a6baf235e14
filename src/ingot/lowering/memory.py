"""The arena: where every temporary lies, so that what is never alive together may share memory.

With static sizes each buffer gets an offset, largest first, at the lowest place that is free during its life. With
dynamic sizes buffers share slots instead: a slot is as large as the largest buffer it will hold, which the run works
out, so that one plan is right for every size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ingot.lowering.body import reads
from ingot.lowering.expr import Size, evaluate
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
    """Each step, and after it those inside of it."""
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


def _static(module: Module, spans: dict[str, tuple[int, int]], names: Sequence[str]) -> Plan:
    sizes = {name: _aligned(evaluate(byte_size(module.buffers[name]), {})) for name in names}
    placed: list[tuple[int, int, int, int]] = []
    offsets: dict[str, int] = {}
    for name in sorted(names, key=lambda n: (-sizes[n], spans[n], n)):
        first, last = spans[name]
        busy = sorted((begin, end) for begin, end, a, b in placed if a <= last and first <= b)
        at = 0
        for begin, end in busy:
            if at + sizes[name] <= begin:
                break
            at = max(at, end)
        offsets[name] = at
        placed.append((at, at + sizes[name], first, last))
    return Plan(offsets, max((end for _, end, _, _ in placed), default=0))


def _dynamic(module: Module, spans: dict[str, tuple[int, int]], names: Sequence[str]) -> Plan:
    def guess(name: str) -> int:
        size = byte_size(module.buffers[name])
        return (
            size
            if isinstance(size, int)
            else evaluate(size, {s.name: module.hints.get(s.name, 8) for s in size.symbols})
        )

    slots: list[list[str]] = []
    free_after: list[int] = []
    for name in sorted(names, key=lambda n: (spans[n], n)):
        first, last = spans[name]
        free = [k for k, end in enumerate(free_after) if end < first]
        if free:
            best = min(free, key=lambda k: (abs(max(map(guess, slots[k])) - guess(name)), k))
            slots[best].append(name)
            free_after[best] = last
        else:
            slots.append([name])
            free_after.append(last)
    return Plan({}, 0, tuple(tuple(slot) for slot in slots))
