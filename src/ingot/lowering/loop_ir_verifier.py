"""Checks that a module is well formed: run after scheduling, so that a faulty pass fails instead of computing garbage.

    reads      a buffer that a step reads is an input, a weight or state, or was written by a step before it
    results    every output is written
    local      what lives inside a step is used by that step alone
    bodies     operands are earlier operations; an index names loops around it, sizes that are known, earlier values
    stores     a store writes a result that its body has

What a target's own steps must hold besides, the target verifies: `more` is called with each step, and says what is
wrong with it, or nothing. One walk over the steps, linear in their number and in the length of their bodies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ingot.errors import ScheduleError, format_error
from ingot.lowering.dependence import reads_and_writes
from ingot.lowering.index_expr import BodyValue, Expr, Size
from ingot.lowering.loop_body import reads
from ingot.lowering.loop_ir import (
    Assert,
    Attention,
    AttentionBackward,
    BindSymbol,
    Body,
    ClassifyMaskBlocks,
    ExternKernel,
    For,
    If,
    Load,
    Loop,
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
from ingot.lowering.loop_module import Module

# Buffers that hold something before the first step.
_GIVEN = ("input", "weight", "state")
# Variables of the bodies that a kernel of attention evaluates.
_PAIR_OF_ROWS = ("i", "j", "part")


def verify_module(module: Module, after: str, more: Callable[[Stmt], str | None] = lambda step: None) -> None:
    """Raises ScheduleError, which names the scheduling pass `after`, where the module is not well formed."""
    try:
        _ModuleWalk(module, more).run()
    except _Invalid as error:
        raise ScheduleError(
            format_error(
                f"The scheduling pass {after!r} made a module that is not valid.",
                why=str(error),
                fix=f"report this bug of Ingot, and compile with disable_passes={{{after!r}}} until then",
            )
        ) from None


class _Invalid(Exception):
    """What is wrong, and with which step."""


class _ModuleWalk:
    """`written` are the buffers that hold something here, `known` the symbols that have a value."""

    def __init__(self, module: Module, more: Callable[[Stmt], str | None]) -> None:
        self.module = module
        self.more = more
        self.written = {name for name, buffer in module.buffers.items() if buffer.kind in _GIVEN}
        self.known = set(module.symbols)
        self.local: dict[str, Stmt] = {}

    def run(self) -> None:
        self.steps(self.module.steps)
        for output in self.module.outputs:
            if output.buffer not in self.written and self.module.buffers[output.buffer].size != 0:
                raise _Invalid(f"the output {output.name!r} ({output.buffer}) is never written")

    def steps(self, steps: Iterable[Stmt]) -> None:
        for step in steps:
            self.step(step)

    def step(self, step: Stmt) -> None:
        wrong = self.more(step)
        if wrong is not None:
            raise _Invalid(f"{_spell(step)}: {wrong}")
        match step:
            case Map() | Reduce():
                loops = (*step.loops, *step.over) if isinstance(step, Reduce) else step.loops
                if not any(loop.extent == 0 for loop in loops):
                    self.body(step, step.body, loops)
                self.stores(step, step.body, step.stores, loops)
            case LoopNest():
                self.own(step, step.local)
                for one in step.steps:
                    if one.loops[: len(step.outer)] != step.outer:
                        raise _Invalid(f"{_spell(one)}: its outer loops are not those of the nest around it")
                    self.step(one)
            case WithEpilogue():
                self.reads(step, step.operand_buffers())
                batch = step.batch_loops()
                if isinstance(step, Attention):
                    self.evaluated(step, (step.score, step.mask), batch)
                    self.written |= {store.buffer for store in (step.lse, step.top) if store}
                for offset in step.operand_offsets():
                    self.index(step, offset, {loop.variable for loop in batch}, 0)
                self.step(step.epilogue)
            case StepGroup():
                self.own(step, step.local_buffers())
                self.steps(step.members())
            case ClassifyMaskBlocks():
                self.evaluated(step, (step.mask,), step.batch)
                self.written.add(step.buffer)
            case AttentionBackward():
                self.reads(step, reads_and_writes(step)[0])
                self.evaluated(step, (step.body, step.masked), step.batch)
                self.written |= reads_and_writes(step)[1]
            case Scan():
                self.body(step, step.start, step.loops)
                self.body(step, step.body, (*step.loops, step.over))
                self.written |= {store.buffer for store in step.stores}
            case ExternKernel():
                self.reads(step, step.reads)
                self.written.update(step.writes)
            case BindSymbol():
                self.body(step, step.body, ())
                self.known.add(step.symbol)
            case Assert():
                self.body(step, step.body, ())
            case If():
                self.body(step, step.condition, ())
                before = self.written.copy()
                self.steps(step.then)
                then, self.written = self.written, before
                self.steps(step.otherwise)
                self.written &= then
            case While():
                self.steps(step.test)
                self.body(step, step.condition, ())
                before = self.written.copy()
                self.steps(step.steps)
                self.written = before
            case For():
                self.known.add(step.loop.variable)
                self.steps(step.steps)

    # ------------------------------------------------------------------ parts of steps

    def own(self, step: Stmt, names: Sequence[str]) -> None:
        for name in names:
            if name in self.written or name in self.local:
                raise _Invalid(f"{_spell(step)}: {name} is local to it, and another step uses it too")
            self.local[name] = step

    def reads(self, step: Stmt, names: Iterable[str]) -> None:
        for name in names:
            buffer = self.module.buffers.get(name)
            if buffer is None:
                raise _Invalid(f"{_spell(step)}: it reads {name}, and there is no such buffer")
            if name not in self.written and buffer.size != 0:
                raise _Invalid(f"{_spell(step)}: it reads {name}, and no step before it writes that")

    def evaluated(self, step: Stmt, bodies: Sequence[Body | None], batch: Sequence[Loop]) -> None:
        """Bodies that a kernel evaluates for each pair of a query and a key."""
        for body in bodies:
            if body is not None:
                self.body(step, body, batch, _PAIR_OF_ROWS)

    def body(self, step: Stmt, body: Body, loops: Sequence[Loop], more: Sequence[str] = ()) -> None:
        self.reads(step, {access.buffer for access in reads(body)})
        around = {*(loop.variable for loop in loops), *more}
        for place, op in enumerate(body.ops):
            attribute = op.attribute
            mask = attribute.mask if isinstance(attribute, Load) else None
            for operand in op.operands if mask is None else (*op.operands, mask):
                if not 0 <= operand < place:
                    raise _Invalid(f"{_spell(step)}: %{place} has the operand %{operand}, which is not before it")
            index = attribute.index if isinstance(attribute, Load) else attribute
            if isinstance(index, Expr):
                self.index(step, index, around, place)
        if any(not 0 <= result < len(body.ops) for result in body.results):
            raise _Invalid(f"{_spell(step)}: its body has a result that is none of its operations")

    def index(self, step: Stmt, index: Size, around: set[str], places: int) -> None:
        """`places` is how many operations of the body come before: an index may name their values."""
        for symbol in index.symbols if isinstance(index, Expr) else ():
            name = symbol.name
            value = isinstance(symbol, BodyValue) and symbol.place < places
            if not value and name not in around and name not in self.known:
                raise _Invalid(f"{_spell(step)}: nothing gives {name} a value, in the index {index}")

    def stores(self, step: Stmt, body: Body, stores: Sequence[Store], loops: Sequence[Loop]) -> None:
        around = {loop.variable for loop in loops}
        for store in stores:
            if store.buffer not in self.module.buffers:
                raise _Invalid(f"{_spell(step)}: it writes {store.buffer}, and there is no such buffer")
            if not 0 <= store.result < len(body.results):
                raise _Invalid(f"{_spell(step)}: it stores result {store.result}, of {len(body.results)}")
            self.index(step, store.index, around, len(body.ops))
            self.written.add(store.buffer)


def _spell(step: Stmt) -> str:
    origin = str(step.origin)
    return f"{type(step).__name__} ({origin})" if origin else type(step).__name__
