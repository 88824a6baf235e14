"""Who reads and writes what: steps that nobody needs, and steps that may change places."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ingot.lowering.body import pruned
from ingot.lowering.expr import Expr
from ingot.lowering.ir import (
    Access,
    Attention,
    AttentionGradient,
    Bind,
    Body,
    Buffer,
    Convolution,
    Map,
    MaskTiles,
    Product,
    Reduce,
    Scan,
    Step,
    Store,
)
from ingot.lowering.memory import nested, operands, touched

# Steps that need not run if nobody reads what they write.
_WITHOUT_EFFECTS = (Product, Convolution, Attention, MaskTiles, AttentionGradient, Scan)


def readers(steps: Sequence[Step], outside: dict[str, int]) -> Counter[str]:
    """How many steps read each buffer. A step that reads one several times, or for several ends, counts once: what may
    be dropped is never told by this number alone."""
    count: Counter[str] = Counter(outside)
    for step in steps:
        count.update(touched(step)[0])
    return count


def is_read_in_epilogue_only(name: str, step: Product | Convolution, counts: Counter[str]) -> bool:
    """Whether all who read a buffer are one step's epilogue: no other step, and not the sums of that step itself."""
    return counts[name] == 1 and name in touched(step.epilogue)[0] and name not in operands(step)


def private(name: str, buffers: dict[str, Buffer]) -> bool:
    return buffers[name].kind == "temporary"


def without_dead(steps: Sequence[Step], buffers: dict[str, Buffer], outside: dict[str, int]) -> list[Step]:
    """Without stores to temporaries that nobody reads, and without steps that store nothing or visit no point."""
    needed = set(outside)
    kept: list[Step] = []
    for step in reversed(steps):
        written = touched(step)[1]
        if written and not nested(step) and all(buffers[name].size == 0 for name in written):
            continue
        if isinstance(step, (Map, Reduce)):
            stores = tuple(s for s in step.stores if s.buffer in needed or not private(s.buffer, buffers))
            if not stores or any(loop.extent == 0 for loop in step.loops):
                continue
            if len(stores) < len(step.stores):
                step = _with_stores(step, stores)
        elif isinstance(step, _WITHOUT_EFFECTS):
            _, writes = touched(step)
            if not any(name in needed or not private(name, buffers) for name in writes):
                continue
            if isinstance(step, Attention):
                unread = {
                    s for s in (step.lse, step.top) if s and s.buffer not in needed and private(s.buffer, buffers)
                }
                lse, top = (None if s in unread else s for s in (step.lse, step.top))
                step = replace(step, lse=lse, top=top)
        needed |= touched(step)[0]
        if nested(step):
            needed |= touched(step)[1]
        kept.append(step)
    return kept[::-1]


def _with_stores(step: Map | Reduce, stores: Sequence[Store]) -> Map | Reduce:
    """The step with some of its stores, and only the results that they need."""
    used = sorted({s.result for s in stores})
    body = pruned(Body(step.body.ops, tuple(step.body.results[r] for r in used)))
    moved = tuple(replace(s, result=used.index(s.result)) for s in stores)
    if isinstance(step, Map):
        return replace(step, body=body, stores=moved)
    return replace(step, body=body, stores=moved, kinds=tuple(step.kinds[r] for r in used))


class History:
    """Steps in order, and where each buffer was last read and written: questions about a long list of steps take no
    longer than those about a short one."""

    def __init__(self) -> None:
        self._steps: list[Step | None] = []
        self._writers: dict[str, list[int]] = {}
        self._read: dict[str, int] = {}
        self._bound: dict[str, int] = {}
        self._last_bind = -1

    def __getitem__(self, place: int) -> Step:
        step = self._steps[place]
        assert step is not None
        return step

    def append(self, step: Step) -> None:
        self._steps.append(None)
        self.replace(len(self._steps) - 1, step)

    def replace(self, place: int, step: Step) -> None:
        """Puts another step there."""
        self._steps[place] = step
        read, written = touched(step)
        for name in written:
            places = self._writers.setdefault(name, [])
            at = bisect.bisect_left(places, place)
            if places[at : at + 1] != [place]:
                places.insert(at, place)
        for name in read:
            self._read[name] = max(self._read.get(name, -1), place)
        if isinstance(step, Bind):
            self._bound[step.symbol] = self._last_bind = place

    def remove(self, place: int) -> None:
        """Takes a step out; the places of the others stay."""
        self._steps[place] = None

    def steps(self) -> list[Step]:
        return [step for step in self._steps if step is not None]

    def last_writer(self, names: Iterable[str], kinds: tuple[type[Step], ...] | None = None) -> int | None:
        """The place of the last step, of these kinds, that writes one of the buffers."""
        found = -1
        for name in names:
            for place in reversed(self._writers.get(name, ())):
                if place <= found:
                    break
                step = self._steps[place]
                if step is not None and (kinds is None or isinstance(step, kinds)) and name in touched(step)[1]:
                    found = place
                    break
        return found if found >= 0 else None

    def may_follow(self, step: Step, place: int) -> bool:
        """Whether a step that comes next may run right behind the one at `place` instead."""
        if self._last_bind > place and any(self._bound.get(name, -1) > place for name in _symbols(step)):
            return False
        return self._is_apart(step, place)

    def may_come_last(self, place: int) -> bool:
        """Whether the step at `place` may run behind all others, none of which finds out a size."""
        return self._last_bind <= place and self._is_apart(self[place], place)

    def _is_apart(self, step: Step, place: int) -> bool:
        """Whether no step behind `place` writes what this one uses, nor reads what it writes."""
        read, written = touched(step)
        if any(self._writers.get(name, (-1,))[-1] > place for name in read | written):
            return False
        return not any(self._read.get(name, -1) > place for name in written)


def may_move(step: Step, over: Sequence[Step]) -> bool:
    """Whether a step may run before others instead of after them."""
    r, w = touched(step)
    bound = {other.symbol for other in over if isinstance(other, Bind)}
    if bound and bound & _symbols(step):
        return False
    for other in over:
        other_r, other_w = touched(other)
        if r & other_w or w & (other_r | other_w):
            return False
    return True


def _symbols(step: Step) -> set[str]:
    """The sizes that a step is told by steps before it, loops' variables among them."""
    assert isinstance(step, (Map, Reduce))
    loops = (*step.loops, *step.over) if isinstance(step, Reduce) else step.loops
    sizes: list[object] = [*(loop.extent for loop in loops), *(store.index for store in step.stores)]
    sizes += [op.attribute.index if isinstance(op.attribute, Access) else op.attribute for op in step.body.ops]
    return {s.name for size in sizes if isinstance(size, Expr) for s in size.symbols}
