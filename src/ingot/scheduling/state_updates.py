"""State that is written in place.

    before                               after
    t ← s                                scatter into s
    scatter into t                       … reads s
    … reads t
    s ← t

A functional program computes the next value of a buffer of the model beside the old one, and writes it back at the end.
Here the two share memory where the old value is not read once the new one is being written. Copies from temporary to
temporary are left out by the same argument.

All that is looked at is what steps read and write. A step with steps inside it counts as one place in the order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

from ingot.lowering.dependence import reads_and_writes
from ingot.lowering.index_expr import BodyValue, Expr, Size, product, substitute, symbol
from ingot.lowering.loop_body import reads
from ingot.lowering.loop_ir import Buffer, Load, Map, Stmt
from ingot.lowering.loop_module import Module

# The fields of steps, and of what they are made of, that name buffers.
_NAMES = frozenset({"buffer", "reads", "writes", "local", "first", "second"})


def update_state_in_place(module: Module) -> Module:
    """The module without copies of state, and of temporaries, that it can do without; computes the same."""
    program = _Program(module)
    for place, step in program.maps():
        copied = program.find_copy(step)
        if copied is not None:
            source, target = copied
            kinds = {module.buffers[name].kind for name in copied}
            if kinds == {"temporary"} and program.may_share(place, source, target):
                program.merge(target, source)
    for place, step in program.maps():
        copied = program.find_copy(step)
        if copied is not None:
            value, state = copied
            kept = module.buffers[state].kind == "state" and module.buffers[value].kind == "temporary"
            if kept and program.may_compute_in(place, value, state):
                program.merge(value, state)
    return replace(module, steps=tuple(program.list_steps()))


class _Program:
    """Steps in order, and at which places each buffer is read and written."""

    def __init__(self, module: Module) -> None:
        self.buffers: dict[str, Buffer] = module.buffers
        self.steps: list[Stmt | None] = list(module.steps)
        self.reads: dict[str, set[int]] = {}
        self.writes: dict[str, set[int]] = {}
        for place, step in enumerate(module.steps):
            self._note(place, step)

    def _note(self, place: int, step: Stmt) -> None:
        for names, places in zip(reads_and_writes(step), (self.reads, self.writes), strict=True):
            for name in names:
                places.setdefault(name, set()).add(place)

    def maps(self) -> Iterator[tuple[int, Map]]:
        for place in range(len(self.steps)):
            step = self.steps[place]
            if isinstance(step, Map):
                yield place, step

    def list_steps(self) -> list[Stmt]:
        return [step for step in self.steps if step is not None]

    def find_copy(self, step: Map) -> tuple[str, str] | None:
        """The buffer that a step copies, element for element, and the one that it fills so."""
        if step.collides or len(step.stores) != 1 or len(step.body.ops) != 1:
            return None
        store, (op,) = step.stores[0], step.body.ops
        load = op.attribute
        if not isinstance(load, Load) or load.mask is not None or store.mode != "set":
            return None
        source, target = self.buffers[load.buffer], self.buffers[store.buffer]
        alike = source.dtype == target.dtype and source.size == target.size == product([x.extent for x in step.loops])
        ones: dict[str, Size] = {loop.variable: 0 for loop in step.loops if loop.extent == 1}
        dense: Size = 0
        for loop in step.loops:
            place = 0 if loop.extent == 1 else symbol(loop.variable, below=loop.extent)
            dense = dense * loop.extent + place
        same = all(substitute(index, ones) == dense for index in (load.index, store.index))
        return (source.name, target.name) if alike and same else None

    def may_share(self, place: int, source: str, target: str) -> bool:
        """Whether `target`, which the step at `place` fills from `source`, can be the same memory: from then on one of
        the two stays as it is, or is not read any more."""
        if min(self._touching(target)) < place:
            return False
        changed = [min((p for p in self.writes[name] if p > place), default=None) for name in (source, target)]
        match changed:
            case [None, None]:
                return True
            case [None, int() as first]:
                return max(self.reads.get(source, ()), default=-1) < first
            case [int() as first, None]:
                return max(self.reads.get(target, ()), default=-1) < first
        return False

    def may_compute_in(self, last: int, value: str, state: str) -> bool:
        """Whether `value`, which the step at `last` writes to `state`, can be computed there."""
        first = min(self._touching(value))
        if self.writes[state] != {last} or max(self.writes[value]) > last or first in self.reads[value]:
            return False
        begin = self.steps[first]
        old = {place for place in self.reads.get(state, ()) if first <= place <= last}
        if isinstance(begin, Map) and self.find_copy(begin) == (state, value):
            changed = min((place for place in self.writes[value] if place > first), default=last)
            return all(place < changed for place in old)
        if isinstance(begin, Map) and old == {first}:
            return _reads_where_it_writes(begin, state, value)
        return not old

    def _touching(self, name: str) -> set[int]:
        return self.reads.get(name, set()) | self.writes.get(name, set())

    def merge(self, name: str, into: str) -> None:
        """Gives a buffer the memory of another one. Copies from it to itself go."""
        places = self._touching(name)
        self.reads.pop(name, None)
        self.writes.pop(name, None)
        for place in sorted(places):
            step: Any = _rename(self.steps[place], name, into)
            self.steps[place] = step
            self._note(place, step)
            if isinstance(step, Map) and self.find_copy(step) == (into, into):
                self.steps[place] = None
                self.reads[into].discard(place)
                self.writes[into].discard(place)


def _reads_where_it_writes(step: Map, state: str, value: str) -> bool:
    """Whether each point reads no element of the state but the one whose next value it computes."""
    stores = [store for store in step.stores if store.buffer == value]
    if step.collides or len(stores) != 1 or stores[0].mode != "set" or not _is_known(stores[0].index):
        return False
    return all(load.index == stores[0].index for load in reads(step.body) if load.buffer == state)


def _is_known(index: Size) -> bool:
    """Whether an index depends on loops and sizes only."""
    return not isinstance(index, Expr) or not any(isinstance(s, BodyValue) for s in index.symbols)


def _rename(item: Any, name: str, into: str, field_name: str = "") -> Any:
    """A step, or a part of one, with another buffer's name."""
    if isinstance(item, str):
        return into if item == name and field_name in _NAMES else item
    if isinstance(item, tuple):
        made = tuple(_rename(one, name, into, field_name) for one in item)
        return item if _is_same(item, made) else made
    if is_dataclass(item) and not isinstance(item, type):
        changed = {}
        for field in fields(item):
            before = getattr(item, field.name)
            after = _rename(before, name, into, field.name)
            if after is not before:
                changed[field.name] = after
        return replace(item, **changed) if changed else item
    return item


def _is_same(before: Sequence[Any], after: Sequence[Any]) -> bool:
    return all(one is other for one, other in zip(before, after, strict=True))
