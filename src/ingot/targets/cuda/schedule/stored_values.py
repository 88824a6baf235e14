"""A value that a step before has stored is read, and not computed again.

    before                                          after
    Gemm  a · w → t, and x + t → y                  Gemm  a · w, x + … → y
    LoopNest  y / rms(y) → z                        LoopNest  y / rms(y) → z
    Gemm  z · v, (x + t) + … → o                    Gemm  z · v, y + … → o

Lowering computes a sum that is cheap wherever it is read; where one of its readers has it stored, the others need not
read what it is made of, and that is often not stored at all then.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ingot.lowering.dependence import reads_and_writes
from ingot.lowering.dtypes import HALVES
from ingot.lowering.index_expr import BodyValue, Expr, Size, substitute, symbol
from ingot.lowering.loop_body import BodyBuilder, prune, reads, rewrite
from ingot.lowering.loop_ir import Body, Buffer, Load, Map, Op, Stmt, Store, WithEpilogue
from ingot.lowering.loop_module import Module
from ingot.scheduling.fusion import match_loops

# What a value may be made of: operations that give the same wherever they are computed.
_PLAIN = {"load", "const", "cast", "add", "sub", "mul", "neg"}


def read_stored_values(module: Module) -> Module:
    """Reads what epilogues have stored, where steps compute it again; computes the same."""
    return _StoredValues(module).run()


@dataclass(frozen=True, slots=True)
class _StoredValue:
    """A value that the step at `place` stores: operations over loads, and over what else the step stores."""

    place: int
    store: Store
    body: Body
    known: Mapping[int, Store]  # operations of the body that are stored too


class _StoredValues:
    def __init__(self, module: Module) -> None:
        self.module = module
        self.steps: list[Stmt] = list(module.steps)
        self.writers: dict[str, int] = {}  # the last step that writes a buffer
        self.found: dict[str, list[_StoredValue]] = {}  # by the other results of its step
        self.readers: Counter[str] = Counter()

    def run(self) -> Module:
        for step in self.steps:
            self.readers.update(reads_and_writes(step)[0])
        for place, step in enumerate(self.module.steps):
            for value in self.find_candidates(step):
                made = self.read(step, value)
                if made is not None:
                    self.readers.subtract(reads_and_writes(step)[0])
                    self.readers.update(reads_and_writes(made)[0])
                    self.steps[place] = step = made
            for name in reads_and_writes(step)[1]:
                self.writers[name] = place
            if isinstance(step, WithEpilogue) and len(step.epilogue.stores) > 1:
                self.add(place, step)
        steps = [_drop_unread(step, self.readers, self.module.buffers) for step in self.steps]
        return self.module if steps == list(self.module.steps) else replace(self.module, steps=tuple(steps))

    def add(self, place: int, step: WithEpilogue) -> None:
        """Notes the values of a step that are made of others which it stores."""
        body, stores = step.epilogue.body, step.epilogue.stores
        if step.epilogue.collides or any(store.mode != "set" for store in stores):
            return
        for store in stores:
            others = {
                body.results[one.result]: one
                for one in stores
                if body.results[one.result] != body.results[store.result]
            }
            value = _StoredValue(place, store, replace(body, results=(body.results[store.result],)), others)
            for name in sorted({other.buffer for other in others.values()}):
                self.found.setdefault(name, []).append(value)

    def find_candidates(self, step: Stmt) -> list[_StoredValue]:
        """Values that are made of what a step reads."""
        epilogue = step.epilogue if isinstance(step, WithEpilogue) else step
        if not isinstance(epilogue, Map) or epilogue.collides:
            return []
        found = {id(value): value for load in reads(epilogue.body) for value in self.found.get(load.buffer, ())}
        return list(found.values())

    def read(self, step: Stmt, value: _StoredValue) -> Stmt | None:
        """The step, which reads a value instead of computing it; None where it does not, or still reads as much."""
        source = self.steps[value.place]
        epilogue = step.epilogue if isinstance(step, WithEpilogue) else step
        assert isinstance(source, WithEpilogue) and isinstance(epilogue, Map)
        names = match_loops(source.epilogue, epilogue.loops, len(source.batch_loops()))
        if names is None or value.store.buffer in reads_and_writes(step)[1]:
            return None
        # Ranges of variables are a part of their names: those of both sides are said again.
        own: dict[str, Size] = {loop.variable: symbol(loop.variable, below=loop.extent) for loop in epilogue.loops}
        ops, results = rewrite(epilogue.body, symbols=own)
        found = _read_value(ops.finish(results), value, names, self.module.buffers)
        if found is None:
            return None
        body, used = found
        stored = {value.store.buffer, *(store.buffer for store in value.known.values())}
        unchanged = all(self.writers[name] == value.place for name in used & stored | {value.store.buffer})
        unchanged = unchanged and all(self.writers.get(name, -1) < value.place for name in used - stored)
        if not unchanged or len(_list_places(body)) >= len(_list_places(epilogue.body)):
            return None
        made = replace(epilogue, body=body)
        return step.replace_epilogue(made) if isinstance(step, WithEpilogue) else made


def _read_value(
    body: Body, value: _StoredValue, names: Mapping[str, Size], buffers: Mapping[str, Buffer]
) -> tuple[Body, set[str]] | None:
    """A body with a load of the value in place of the operations that compute it, and which buffers these read; None
    where there are none."""
    ops, _ = rewrite(body)
    count, at = len(ops.ops), itertools.count()

    def take_stored(op: Op, operands: tuple[int, ...], into: BodyBuilder) -> int | None:
        store = value.known.get(next(at))
        if store is not None:
            return into.emit("load", (), op.dtype, Load(store.buffer, substitute(store.index, names)))
        return None

    _, (result,) = rewrite(value.body, symbols=names, into=ops, replace=take_stored)
    if result >= count or ops.ops[result].name == "load":
        return None
    cone = [ops.ops[place] for place in _list_cone(ops, result)]
    target, index = ops.ops[result], substitute(value.store.index, names)
    dtype = buffers[value.store.buffer].dtype
    exact = target.attribute == dtype if target.name == "cast" else target.dtype == dtype and dtype not in HALVES
    if not exact or not all(op.name in _PLAIN and _is_certain(op) for op in cone):
        return None

    def take_result(op: Op, operands: tuple[int, ...], into: BodyBuilder) -> int | None:
        return into.load(value.store.buffer, index, dtype) if op == target else None

    ops, results = rewrite(body, replace=take_result)
    return ops.finish(results), {op.attribute.buffer for op in cone if isinstance(op.attribute, Load)}


def _list_cone(ops: BodyBuilder, result: int) -> set[int]:
    """The operations that a value is computed of."""
    found: set[int] = set()
    open_ = [result]
    while open_:
        place = open_.pop()
        if place not in found:
            found.add(place)
            open_ += ops.ops[place].operands
    return found


def _is_certain(op: Op) -> bool:
    """Whether an operation, if it is a load, has an index of loop variables only."""
    if not isinstance(op.attribute, Load):
        return True
    index = op.attribute.index
    symbols = index.symbols if isinstance(index, Expr) else frozenset()
    return op.attribute.mask is None and not any(isinstance(one, BodyValue) for one in symbols)


def _list_places(body: Body) -> set[tuple[str, Size]]:
    return {(load.buffer, load.index) for load in reads(body)}


def _drop_unread(step: Stmt, readers: Counter[str], buffers: Mapping[str, Buffer]) -> Stmt:
    """A product without stores to temporaries that are never read, where it has others."""
    if not isinstance(step, WithEpilogue) or len(step.epilogue.stores) < 2:
        return step
    epilogue = step.epilogue
    kept = [one for one in epilogue.stores if readers[one.buffer] or buffers[one.buffer].kind != "temporary"]
    if len(kept) == len(epilogue.stores) or not kept:
        return step
    used = sorted({store.result for store in kept})
    body = prune(Body(epilogue.body.ops, tuple(epilogue.body.results[result] for result in used)))
    stores = tuple(replace(store, result=used.index(store.result)) for store in kept)
    return step.replace_epilogue(replace(epilogue, body=body, stores=stores))
