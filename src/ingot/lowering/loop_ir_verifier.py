"""Checks that a module is well formed: run after scheduling, so that a faulty pass fails instead of computing garbage.

    reads      a buffer that a step reads is an input, a weight or state, or was written by a step before it
    writes     no step writes a weight, or an input that the program does not mutate
    results    every output is written
    local      what lives inside a step is used by that step alone
    symbols    an extent or an index names sizes that have a value there, and loops around it; no two loops of a nest
               have the same variable
    bodies     operands and masks are earlier operations, and so are the values that an index names
    stores     a store writes a result that its body has

Those rules always run. A `full` verification has these besides (verification/):

    dtypes     of operands, results, masks and stores, one rule per kind of operation
    extents    none is negative; the loops of an epilogue visit the rows and columns of its sums
    accesses   loads, stores and views lie inside their buffers
    steps      kinds of reductions, states of scans, tiles of masks, conditions

Sizes may be unknown before run time: what is certainly wrong for all inputs is rejected, what cannot be decided is
accepted. What a target's own steps must hold besides, the target verifies: `more` is called with each step, and says
what is wrong with it, or nothing. One walk over the steps, linear in their number and in the length of their bodies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

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
from ingot.lowering.verification.access_rules import Around, Facts, find_range_fault
from ingot.lowering.verification.body_rules import Given, find_op_fault
from ingot.lowering.verification.step_rules import (
    extents,
    find_extent_fault,
    find_step_fault,
    find_store_dtype_fault,
    loops_of,
    state_dtypes,
)

# Says what is wrong with a step of a target, or nothing.
StepRule: TypeAlias = Callable[[Stmt, Facts], str | None]

# Buffers that hold something before the first step.
_GIVEN = ("input", "weight", "state")


def verify_module(module: Module, after: str, more: StepRule = lambda step, facts: None, *, full: bool = True) -> None:
    """Raises ScheduleError, which names the scheduling pass `after`, where the module is not well formed."""
    try:
        _ModuleWalk(module, more, full).run()
    except _Invalid as error:
        raise ScheduleError(
            format_error(
                f"The scheduling pass {after!r} made a module that is not valid.",
                why=str(error),
                fix=f"report this bug in Ingot, and compile with disable_passes={{{after!r}}} until then",
            )
        ) from None


class _Invalid(Exception):
    """What is wrong, and with which step."""


class _ModuleWalk:
    """`written` are the buffers that hold something here, `known` the symbols that have a value."""

    def __init__(self, module: Module, more: StepRule, full: bool) -> None:
        self.module = module
        self.more = more
        self.full = full
        self.facts = Facts.from_module(module)
        self.written = {name for name, buffer in module.buffers.items() if buffer.kind in _GIVEN}
        mutated = {argument.buffer for argument in module.inputs if argument.mutated}
        self.read_only = {
            name
            for name, buffer in module.buffers.items()
            if buffer.kind == "weight" or (buffer.kind == "input" and name not in mutated)
        }
        self.known = set(module.symbols)
        self.local: dict[str, Stmt] = {}

    def run(self) -> None:
        self.steps(self.module.steps)
        for output in self.module.outputs:
            if output.buffer not in self.written and self.module.buffers[output.buffer].size != 0:
                raise _Invalid(f"the output {output.name!r} ({output.buffer}) is never written")

    def steps(self, steps: Iterable[Stmt], given: Given | None = None) -> None:
        """`given` is what the first of them may read beside its own sums."""
        for step in steps:
            self.step(step, given or {})
            given = None

    def step(self, step: Stmt, given: Given) -> None:
        self.loops(step, loops_of(step))
        match step:
            case Map() | Reduce():
                self.body_step(step, given)
            case LoopNest():
                self.own(step, step.local)
                for one in step.steps:
                    if one.loops[: len(step.outer)] != step.outer:
                        raise _Invalid(f"{_spell(one)}: its outer loops are not those of the nest around it")
                    self.step(one, {})
            case WithEpilogue():
                self.epilogue_step(step, given)
            case StepGroup():
                self.fail(step, self.more(step, self.facts))  # a group that is not one has members that make no sense
                inner = {name for one in step.members() if isinstance(one, StepGroup) for name in one.local_buffers()}
                self.own(step, [name for name in step.local_buffers() if name not in inner])
                self.steps(step.members(), step.given_values())
            case ClassifyMaskBlocks():
                self.loops(step, step.batch)
                self.pair_body(step, step.mask, step.batch, {}, step.queries, step.keys)
                self.writes(step, (step.buffer,))
            case AttentionBackward():
                self.backward(step)
            case Scan():
                self.scan(step)
            case ExternKernel():
                self.reads(step, step.reads)
                self.sizes(step, step.sizes)
                self.writes(step, step.writes)
            case BindSymbol():
                self.body(step, step.body, {})
                self.known.add(step.symbol)
            case Assert():
                self.body(step, step.body, {})
            case If() | While() | For():
                self.control_flow(step)
        if self.full:
            self.fail(step, find_step_fault(step, self.facts))
        if not isinstance(step, StepGroup):
            self.fail(step, self.more(step, self.facts))

    def fail(self, step: Stmt, wrong: str | None) -> None:
        """Ends the walk where something is wrong."""
        if wrong is not None:
            raise _Invalid(f"{_spell(step)}: {wrong}")

    # ------------------------------------------------------------------ kinds of steps

    def body_step(self, step: Map | Reduce, given: Given) -> None:
        around = extents(loops_of(step))
        self.body(step, step.body, around, given)
        self.stores(step, step.body, step.stores, around, step.kinds if isinstance(step, Reduce) else ())

    def epilogue_step(self, step: WithEpilogue, given: Given) -> None:
        self.reads(step, step.operand_buffers())
        batch = step.batch_loops()
        self.loops(step, batch)
        self.sizes(step, step.sums_shape())
        if isinstance(step, Attention):
            for body in (step.score, step.mask):
                if body is not None:
                    self.pair_body(step, body, batch, {"accumulator": step.dtype}, step.queries, step.keys)
            self.writes(step, [store.buffer for store in (step.lse, step.top) if store])
        for offset in step.operand_offsets():
            self.index(step, offset, extents(batch), 0)
        self.loops(step.epilogue, step.epilogue.loops)
        self.body_step(step.epilogue, {**given, "accumulator": step.dtype})

    def backward(self, step: AttentionBackward) -> None:
        read, written = reads_and_writes(step)
        self.reads(step, read)
        self.loops(step, step.batch)
        given = {"accumulator": step.dtype, "gradient": step.dtype}
        for body in (step.body, step.masked, *(scatter.body for scatter in step.scatter)):
            if body is not None:
                self.pair_body(step, body, step.batch, given, step.queries, step.keys)
        around: Around = {**extents(step.batch), "i": step.queries, "j": step.keys, "part": step.parts}
        for scatter in step.scatter:
            self.index(step, scatter.store.index, around, len(scatter.body.ops))
            if self.full:
                self.fail(step, self.facts.find_store_fault(scatter.store, around))
        self.writes(step, sorted(written))

    def scan(self, step: Scan) -> None:
        around = extents(loops_of(step))
        self.body(step, step.start, extents(step.loops))
        states = {f"input {number}": dtype for number, dtype in enumerate(state_dtypes(step))}
        self.body(step, step.body, around, states)
        self.stores(step, step.body, step.stores, around)

    def control_flow(self, step: If | While | For) -> None:
        """What only a branch, or a loop that may not run, writes or finds out is not known behind it."""
        if isinstance(step, If):
            self.body(step, step.condition, {})
            written, known = self.written.copy(), self.known.copy()
            self.steps(step.then)
            then, self.written = self.written, written
            then_known, self.known = self.known, known
            self.steps(step.otherwise)
            self.written &= then
            self.known &= then_known
        elif isinstance(step, While):
            self.steps(step.test)
            self.body(step, step.condition, {})
            written, known = self.written.copy(), self.known.copy()
            self.steps(step.steps)
            self.written, self.known = written, known
        else:
            self.loops(step, (step.loop,))
            known = self.known.copy()
            self.known.add(step.loop.variable)
            self.steps(step.steps)
            self.known = known

    # ------------------------------------------------------------------ parts of steps

    def loops(self, step: Stmt, loops: Sequence[Loop]) -> None:
        for loop in loops:
            if loop.variable in self.known:
                raise _Invalid(f"{_spell(step)}: its loop {loop} has the name of a symbol that is in use around it")
        self.sizes(step, [loop.extent for loop in loops])
        self.fail(step, _find_repeated_loop(loops))
        if self.full:
            self.fail(step, find_extent_fault(loops, self.facts))

    def sizes(self, step: Stmt, sizes: Iterable[Size]) -> None:
        for size in sizes:
            if isinstance(size, Expr):
                self.index(step, size, {}, 0)

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

    def writes(self, step: Stmt, names: Iterable[str]) -> None:
        for name in names:
            if name not in self.module.buffers:
                raise _Invalid(f"{_spell(step)}: it writes {name}, and there is no such buffer")
            if name in self.read_only:
                kind = self.module.buffers[name].kind
                raise _Invalid(f"{_spell(step)}: it writes {name}, which is read-only (kind {kind!r})")
            self.written.add(name)

    def pair_body(self, step: Stmt, body: Body, batch: Sequence[Loop], given: Given, queries: Size, keys: Size) -> None:
        """A body that a kernel evaluates for each pair of a query and a key."""
        self.sizes(step, (queries, keys))
        self.body(step, body, {**extents(batch), "i": queries, "j": keys, "part": None}, given)

    def body(self, step: Stmt, body: Body, around: Around, given: Given | None = None) -> None:
        self.reads(step, {access.buffer for access in reads(body)})
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
            raise _Invalid(f"{_spell(step)}: its body has a result that is not one of its operations")
        if self.full:
            self.fail(step, find_op_fault(body, self.module.buffers, given or {}))
            if 0 not in around.values():
                self.fail(step, self.facts.find_load_fault(body, around))

    def index(self, step: Stmt, index: Size, around: Around, places: int) -> None:
        """`places` is how many operations of the body come before: an index may name their values."""
        for symbol in index.symbols if isinstance(index, Expr) else ():
            name = symbol.name
            value = isinstance(symbol, BodyValue) and symbol.place < places
            if not value and name not in around and name not in self.known:
                raise _Invalid(f"{_spell(step)}: nothing gives {name} a value, in the index {index}")
        if self.full:
            self.fail(step, find_range_fault(index, around))

    def stores(
        self, step: Stmt, body: Body, stores: Sequence[Store], around: Around, kinds: Sequence[str] = ()
    ) -> None:
        for store in stores:
            self.writes(step, (store.buffer,))
            if not 0 <= store.result < len(body.results):
                raise _Invalid(f"{_spell(step)}: it stores result {store.result}, of {len(body.results)}")
            self.index(step, store.index, around, len(body.ops))
            if self.full:
                self.fail(step, find_store_dtype_fault(store, body, kinds, self.facts))
                if 0 not in around.values():
                    self.fail(step, self.facts.find_store_fault(store, around))


def _find_repeated_loop(loops: Sequence[Loop]) -> str | None:
    names = [loop.variable for loop in loops]
    return (
        None if len(set(names)) == len(names) else f"two of its loops have the variable {max(names, key=names.count)}"
    )


def _spell(step: Stmt) -> str:
    origin = str(step.origin)
    return f"{type(step).__name__} ({origin})" if origin else type(step).__name__
