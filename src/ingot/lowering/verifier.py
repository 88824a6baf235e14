"""Checks that a module is well formed: run after scheduling, so that a faulty pass fails instead of computing garbage.

    reads      a buffer that a step reads is an input, a weight or state, or was written by a step before it
    results    every output is written
    local      what lives for one row or one strip is used by that step alone
    bodies     operands are earlier operations; an index names loops around it, sizes that are known, earlier values
    stores     a store writes a result that its body has; the second step of a pair stores nothing

One walk over the steps, linear in their number and in the length of their bodies.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ingot.errors import ScheduleError, explain
from ingot.lowering.body import reads
from ingot.lowering.expr import Expr, Size
from ingot.lowering.ir import (
    Access,
    Attention,
    AttentionGradient,
    Bind,
    Body,
    Check,
    Convolution,
    If,
    Loop,
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
    Store,
    Strips,
    While,
)
from ingot.lowering.memory import operands, touched

# Buffers that hold something before the first step.
_GIVEN = ("input", "weight", "state")
# Variables of the bodies that a kernel of attention evaluates.
_PAIR_OF_ROWS = ("i", "j", "part")


def verify_module(module: Module, after: str) -> None:
    """Raises ScheduleError, which names the scheduling pass `after`, where the module is not well formed."""
    try:
        _Walk(module).run()
    except _Invalid as error:
        raise ScheduleError(
            explain(
                f"The scheduling pass {after!r} made a module that is not valid.",
                why=str(error),
                fix=f"report this bug of Ingot, and compile with disable_passes={{{after!r}}} until then",
            )
        ) from None


class _Invalid(Exception):
    """What is wrong, and with which step."""


class _Walk:
    """`written` are the buffers that hold something here, `known` the symbols that have a value."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.written = {name for name, buffer in module.buffers.items() if buffer.kind in _GIVEN}
        self.known = set(module.symbols)
        self.local: dict[str, Step] = {}

    def run(self) -> None:
        self.steps(self.module.steps)
        for output in self.module.outputs:
            if output.buffer not in self.written and self.module.buffers[output.buffer].size != 0:
                raise _Invalid(f"the output {output.name!r} ({output.buffer}) is never written")

    def steps(self, steps: Iterable[Step]) -> None:
        for step in steps:
            self.step(step)

    def step(self, step: Step) -> None:
        match step:
            case Map() | Reduce():
                loops = (*step.loops, *step.over) if isinstance(step, Reduce) else step.loops
                if not any(loop.extent == 0 for loop in loops):
                    self.body(step, step.body, loops)
                self.stores(step, step.body, step.stores, loops)
            case Nest():
                self.own(step, step.local)
                for one in step.steps:
                    if one.loops[: len(step.outer)] != step.outer:
                        raise _Invalid(f"{_spell(one)}: its outer loops are not those of the nest around it")
                    self.step(one)
            case Product() | Convolution() | Attention():
                self.reads(step, operands(step))
                batch = () if isinstance(step, Convolution) else step.batch
                if isinstance(step, Attention):
                    self.evaluated(step, (step.score, step.mask), batch)
                    self.written |= {store.buffer for store in (step.lse, step.top) if store}
                if not isinstance(step, Convolution):
                    matrices = (step.a, step.b) if isinstance(step, Product) else (step.q, step.k, step.v)
                    for matrix in matrices:
                        self.index(step, matrix.offset, {loop.variable for loop in batch}, 0)
                if isinstance(step, Product) and step.factors != "same" and step.a.columns != 1:
                    raise _Invalid(f"{_spell(step)}: rows of {step.factors} factors are not contiguous")
                self.step(step.epilogue)
            case Pair():
                first, second = step.steps
                if second.epilogue.stores:
                    raise _Invalid(f"{_spell(step)}: the second step of a pair has stores of its own")
                self.reads(step, operands(second))
                self.step(first)
            case Siblings():
                self.steps(step.steps)
            case Strips():
                self.own(step, step.local)
                self.steps(step.steps)
            case MaskTiles():
                self.evaluated(step, (step.mask,), step.batch)
                self.written.add(step.buffer)
            case AttentionGradient():
                self.reads(step, touched(step)[0])
                self.evaluated(step, (step.body, step.masked), step.batch)
                self.written |= touched(step)[1]
            case Scan():
                self.body(step, step.start, step.loops)
                self.body(step, step.body, (*step.loops, step.over))
                self.written |= {store.buffer for store in step.stores}
            case Routine():
                self.reads(step, step.reads)
                self.written.update(step.writes)
            case Bind():
                self.body(step, step.body, ())
                self.known.add(step.symbol)
            case Check():
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
            case Repeat():
                self.known.add(step.loop.variable)
                self.steps(step.steps)

    # ------------------------------------------------------------------ parts of steps

    def own(self, step: Step, names: Sequence[str]) -> None:
        for name in names:
            if name in self.written or name in self.local:
                raise _Invalid(f"{_spell(step)}: {name} is local to it, and another step uses it too")
            self.local[name] = step

    def reads(self, step: Step, names: Iterable[str]) -> None:
        for name in names:
            buffer = self.module.buffers.get(name)
            if buffer is None:
                raise _Invalid(f"{_spell(step)}: it reads {name}, and there is no such buffer")
            if name not in self.written and buffer.size != 0:
                raise _Invalid(f"{_spell(step)}: it reads {name}, and no step before it writes that")

    def evaluated(self, step: Step, bodies: Sequence[Body | None], batch: Sequence[Loop]) -> None:
        """Bodies that a kernel evaluates for each pair of a query and a key."""
        for body in bodies:
            if body is not None:
                self.body(step, body, batch, _PAIR_OF_ROWS)

    def body(self, step: Step, body: Body, loops: Sequence[Loop], more: Sequence[str] = ()) -> None:
        self.reads(step, {access.buffer for access in reads(body)})
        around = {*(loop.variable for loop in loops), *more}
        for place, op in enumerate(body.ops):
            attribute = op.attribute
            mask = attribute.mask if isinstance(attribute, Access) else None
            for operand in op.operands if mask is None else (*op.operands, mask):
                if not 0 <= operand < place:
                    raise _Invalid(f"{_spell(step)}: %{place} has the operand %{operand}, which is not before it")
            index = attribute.index if isinstance(attribute, Access) else attribute
            if isinstance(index, Expr):
                self.index(step, index, around, place)
        if any(not 0 <= result < len(body.ops) for result in body.results):
            raise _Invalid(f"{_spell(step)}: its body has a result that is none of its operations")

    def index(self, step: Step, index: Size, around: set[str], places: int) -> None:
        """`places` is how many operations of the body come before: an index may name their values."""
        for symbol in index.symbols if isinstance(index, Expr) else ():
            name = symbol.name
            value = name[0] == "v" and name[1:].isdigit() and int(name[1:]) < places
            if not value and name not in around and name not in self.known:
                raise _Invalid(f"{_spell(step)}: nothing gives {name} a value, in the index {index}")

    def stores(self, step: Step, body: Body, stores: Sequence[Store], loops: Sequence[Loop]) -> None:
        around = {loop.variable for loop in loops}
        for store in stores:
            if store.buffer not in self.module.buffers:
                raise _Invalid(f"{_spell(step)}: it writes {store.buffer}, and there is no such buffer")
            if not 0 <= store.result < len(body.results):
                raise _Invalid(f"{_spell(step)}: it stores result {store.result}, of {len(body.results)}")
            self.index(step, store.index, around, len(body.ops))
            self.written.add(store.buffer)


def _spell(step: Step) -> str:
    origin = str(step.origin)
    return f"{type(step).__name__} ({origin})" if origin else type(step).__name__
