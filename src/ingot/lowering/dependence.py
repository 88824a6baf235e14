"""Dependence analysis: what steps read and write, which are unused, and which may be reordered."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from ingot.lowering.index_expr import Expr
from ingot.lowering.loop_body import prune, reads
from ingot.lowering.loop_ir import (
    Assert,
    Attention,
    AttentionBackward,
    BindSymbol,
    Body,
    Buffer,
    ClassifyMaskBlocks,
    ExternKernel,
    For,
    If,
    Load,
    LoopNest,
    Map,
    Reduce,
    Scan,
    StepGroup,
    Stmt,
    Store,
    While,
    WithEpilogue,
)


def body_reads(body: Body) -> set[str]:
    return {access.buffer for access in reads(body)}


def reads_and_writes(step: Stmt) -> tuple[set[str], set[str]]:
    """The buffers that a step reads and writes, in nested steps too."""
    match step:
        case Map():
            return body_reads(step.body), {s.buffer for s in step.stores}
        case Reduce():
            return body_reads(step.body), {s.buffer for s in step.stores}
        case LoopNest():
            return _both(step.steps)
        case Attention():
            r, w = reads_and_writes(step.epilogue)
            return r | step.operand_buffers(), w | {store.buffer for store in (step.lse, step.top) if store}
        case WithEpilogue():
            r, w = reads_and_writes(step.epilogue)
            return r | step.operand_buffers(), w
        case StepGroup():
            return _both(step.members())
        case ClassifyMaskBlocks():
            return body_reads(step.mask), {step.buffer}
        case AttentionBackward():
            r = {matrix.buffer for matrix in (step.q, step.k, step.v, step.gradient)}
            r |= body_reads(step.body) | (body_reads(step.masked) if step.masked else set())
            r |= set().union(*(body_reads(scatter.body) for scatter in step.scatter))
            tables = {scatter.store.buffer for scatter in step.scatter}
            r |= tables | ({step.tiles.buffer} if step.tiles else set())
            return r, tables | {name for name in (step.first, step.second) if name}
        case Scan():
            return body_reads(step.start) | body_reads(step.body), {s.buffer for s in step.stores}
        case ExternKernel():
            return set(step.reads), set(step.writes)
        case BindSymbol() | Assert():
            return body_reads(step.body), set()
        case If():
            r, w = _both((*step.then, *step.otherwise))
            return r | body_reads(step.condition), w
        case While():
            r, w = _both((*step.test, *step.steps))
            return r | body_reads(step.condition), w
        case For():
            return _both(step.steps)


def _both(steps: Sequence[Stmt]) -> tuple[set[str], set[str]]:
    reads_: set[str] = set()
    writes: set[str] = set()
    for step in steps:
        r, w = reads_and_writes(step)
        reads_ |= r
        writes |= w
    return reads_, writes


def local_buffers(step: Stmt) -> tuple[str, ...]:
    """Buffers that live inside a step only."""
    return step.local if isinstance(step, LoopNest) else step.local_buffers() if isinstance(step, StepGroup) else ()


def all_steps(steps: Sequence[Stmt]) -> Iterator[Stmt]:
    """Each step, and after it those inside it."""
    for step in steps:
        yield step
        for inner in child_blocks(step):
            yield from all_steps(inner)


def child_blocks(step: Stmt) -> tuple[tuple[Stmt, ...], ...]:
    match step:
        case If():
            return step.then, step.otherwise
        case While():
            return step.test, step.steps
        case For():
            return (step.steps,)
    return ()


def map_child_blocks(step: Stmt, change: Callable[[tuple[Stmt, ...]], Iterable[Stmt]]) -> Stmt:
    """The step with each list of steps inside it changed; a step without such lists as it is."""
    match step:
        case If():
            return replace(step, then=tuple(change(step.then)), otherwise=tuple(change(step.otherwise)))
        case While():
            return replace(step, test=tuple(change(step.test)), steps=tuple(change(step.steps)))
        case For():
            return replace(step, steps=tuple(change(step.steps)))
    return step


def map_steps(steps: Iterable[Stmt], change: Callable[[Stmt], Stmt]) -> tuple[Stmt, ...]:
    """The steps, and those in their branches and loops, each changed by itself."""
    return tuple(change(map_child_blocks(step, lambda inner: map_steps(inner, change))) for step in steps)


# Steps that need not run if what they write is unused.
_WITHOUT_EFFECTS = (WithEpilogue, ClassifyMaskBlocks, AttentionBackward, Scan)


def count_readers(steps: Sequence[Stmt], outside: dict[str, int]) -> Counter[str]:
    """How many steps read each buffer. A step that reads one several times, or for several ends, counts once: what may
    be dropped is never decided by this number alone."""
    count: Counter[str] = Counter(outside)
    for step in steps:
        count.update(reads_and_writes(step)[0])
    return count


def is_read_in_epilogue_only(name: str, step: WithEpilogue, counts: Counter[str]) -> bool:
    """Whether all who read a buffer are one step's epilogue: no other step, and not the sums of that step itself."""
    return counts[name] == 1 and name in reads_and_writes(step.epilogue)[0] and name not in step.operand_buffers()


def is_temporary(name: str, buffers: dict[str, Buffer]) -> bool:
    return buffers[name].kind == "temporary"


def eliminate_dead_steps(steps: Sequence[Stmt], buffers: dict[str, Buffer], outside: dict[str, int]) -> list[Stmt]:
    """Without stores to unused temporaries, and without steps that store nothing or visit no point."""
    needed = set(outside)
    kept: list[Stmt] = []
    for step in reversed(steps):
        written = reads_and_writes(step)[1]
        if written and not child_blocks(step) and all(buffers[name].size == 0 for name in written):
            continue
        if isinstance(step, (Map, Reduce)):
            stores = tuple(s for s in step.stores if s.buffer in needed or not is_temporary(s.buffer, buffers))
            if not stores or any(loop.extent == 0 for loop in step.loops):
                continue
            if len(stores) < len(step.stores):
                step = _replace_stores(step, stores)
        elif isinstance(step, _WITHOUT_EFFECTS):
            _, writes = reads_and_writes(step)
            if not any(name in needed or not is_temporary(name, buffers) for name in writes):
                continue
            if isinstance(step, Attention):
                unread = {
                    s for s in (step.lse, step.top) if s and s.buffer not in needed and is_temporary(s.buffer, buffers)
                }
                lse, top = (None if s in unread else s for s in (step.lse, step.top))
                step = replace(step, lse=lse, top=top)
        needed |= reads_and_writes(step)[0]
        if child_blocks(step):
            needed |= reads_and_writes(step)[1]
        kept.append(step)
    return kept[::-1]


def _replace_stores(step: Map | Reduce, stores: Sequence[Store]) -> Map | Reduce:
    """The step with some of its stores, and only the results that they need."""
    used = sorted({s.result for s in stores})
    body = prune(Body(step.body.ops, tuple(step.body.results[r] for r in used)))
    moved = tuple(replace(s, result=used.index(s.result)) for s in stores)
    if isinstance(step, Map):
        return replace(step, body=body, stores=moved)
    return replace(step, body=body, stores=moved, kinds=tuple(step.kinds[r] for r in used))


class History:
    """Steps in order, and where each buffer was last read and written: questions about a long list of steps take no
    longer than those about a short one."""

    def __init__(self) -> None:
        self._steps: list[Stmt | None] = []
        self._writers: dict[str, list[int]] = {}
        self._read: dict[str, int] = {}
        self._bound: dict[str, int] = {}
        self._last_bind = -1

    def __getitem__(self, place: int) -> Stmt:
        step = self._steps[place]
        assert step is not None
        return step

    def append(self, step: Stmt) -> None:
        self._steps.append(None)
        self.replace(len(self._steps) - 1, step)

    def replace(self, place: int, step: Stmt) -> None:
        """Puts another step there."""
        self._steps[place] = step
        read, written = reads_and_writes(step)
        for name in written:
            places = self._writers.setdefault(name, [])
            at = bisect.bisect_left(places, place)
            if places[at : at + 1] != [place]:
                places.insert(at, place)
        for name in read:
            self._read[name] = max(self._read.get(name, -1), place)
        if isinstance(step, BindSymbol):
            self._bound[step.symbol] = self._last_bind = place

    def remove(self, place: int) -> None:
        """Takes a step out; the places of the others stay."""
        self._steps[place] = None

    def steps(self) -> list[Stmt]:
        return [step for step in self._steps if step is not None]

    def last_writer(self, names: Iterable[str], kinds: tuple[type[Stmt], ...] | None = None) -> int | None:
        """The place of the last step, of these kinds, that writes one of the buffers."""
        found = -1
        for name in names:
            for place in reversed(self._writers.get(name, ())):
                if place <= found:
                    break
                step = self._steps[place]
                if (
                    step is not None
                    and (kinds is None or isinstance(step, kinds))
                    and name in reads_and_writes(step)[1]
                ):
                    found = place
                    break
        return found if found >= 0 else None

    def may_follow(self, step: Stmt, place: int) -> bool:
        """Whether a step that comes next may run right behind the one at `place` instead."""
        if self._last_bind > place and any(self._bound.get(name, -1) > place for name in _symbols(step)):
            return False
        return self._is_apart(step, place)

    def may_come_last(self, place: int) -> bool:
        """Whether the step at `place` may run behind all others, none of which finds out a size."""
        return self._last_bind <= place and self._is_apart(self[place], place)

    def _is_apart(self, step: Stmt, place: int) -> bool:
        """Whether no step behind `place` writes what this one uses, nor reads what it writes."""
        read, written = reads_and_writes(step)
        if any(self._writers.get(name, (-1,))[-1] > place for name in read | written):
            return False
        return not any(self._read.get(name, -1) > place for name in written)


def can_hoist_over(step: Stmt, over: Sequence[Stmt]) -> bool:
    """Whether a step may run before others instead of after them."""
    r, w = reads_and_writes(step)
    bound = {other.symbol for other in over if isinstance(other, BindSymbol)}
    if bound and bound & _symbols(step):
        return False
    for other in over:
        other_r, other_w = reads_and_writes(other)
        if r & other_w or w & (other_r | other_w):
            return False
    return True


def _symbols(step: Stmt) -> set[str]:
    """The sizes that earlier steps bind for a step, loop variables among them."""
    assert isinstance(step, (Map, Reduce))
    loops = (*step.loops, *step.over) if isinstance(step, Reduce) else step.loops
    sizes: list[object] = [*(loop.extent for loop in loops), *(store.index for store in step.stores)]
    sizes += [op.attribute.index if isinstance(op.attribute, Load) else op.attribute for op in step.body.ops]
    return {s.name for size in sizes if isinstance(size, Expr) for s in size.symbols}
