"""The loop IR's meaning on NumPy arrays: the third implementation, after torch and the C text, and the simplest.

    Interpreter(module, weights).run(inputs)      arrays in, arrays out, as they are stored

Sums of float32 are accumulated in float64 and rounded once; those of integers wrap around. A step is evaluated at all
points of its loops at once. Points that must not depend on each other are evaluated in two parts, chosen at random,
wherever a step reads a buffer that it also writes: who reads what another point writes then gets another result.

What a target adds to the loop IR, it explains itself: `rules` has a function for each of its types of steps, and for
each of its extern kernels by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ingot.errors import AssertionFailed, IngotError, InputError, InterpreterError, format_error
from ingot.lowering.dependence import body_reads
from ingot.lowering.index_expr import Size, evaluate, product
from ingot.lowering.loop_body import replay
from ingot.lowering.loop_ir import (
    Assert,
    Attention,
    AttentionBackward,
    BindSymbol,
    Body,
    ClassifyMaskBlocks,
    Convolution,
    ExternKernel,
    For,
    Gemm,
    If,
    Loop,
    LoopNest,
    Map,
    MatrixView,
    Reduce,
    Scan,
    StepGroup,
    Stmt,
    Store,
    While,
    WithEpilogue,
)
from ingot.lowering.loop_module import Module
from ingot.registry import Registry
from ingot.scheduling.buffer_planning import MemoryPlan
from ingot.targets.base import Fault, ReferenceRule, StepRunner
from ingot.targets.reference.attention import classify_mask_blocks, run_attention, run_attention_backward
from ingot.targets.reference.body_evaluator import BodyEvaluator, LocalBuffer, make_local
from ingot.targets.reference.extern_kernels import KERNELS
from ingot.targets.reference.index_grid import IndexGrid, IntArray, evaluate_index, halve, make_grid, pick_points
from ingot.targets.reference.memory import Array, Memory, encode, write
from ingot.targets.reference.products import cut_view, run_convolution, run_gemm
from ingot.targets.reference.reductions import combine, start_value

# Points of a grid that are evaluated at once.
MOST_POINTS = 1 << 19


class Interpreter:
    """One run of a module. `weights` has the elements of weights and states, as they are stored; states are written.

    With `plan`, temporaries lie at their places in the arena.
    """

    def __init__(
        self,
        module: Module,
        weights: Mapping[str, Array],
        rules: Mapping[Any, ReferenceRule] | None = None,
        *,
        plan: MemoryPlan | None = None,
        seed: int = 0,
        first_draw: int = 0,
    ) -> None:
        self.module = module
        self.sizes: dict[str, int] = {}
        self.memory = Memory(module.buffers, self.sizes, plan)
        self.rules: Mapping[Any, ReferenceRule] = {**_RULES, **KERNELS, **(rules or {})}
        self.seed = seed
        self.first_draw = first_draw
        self.local: dict[str, LocalBuffer] = {}
        self.block_sizes: dict[str, tuple[int, int]] = {}  # of masks that were classified
        for name, array in weights.items():
            self.memory.assign(name, array)

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """The outputs, in their shapes. Inputs that the module writes are written."""
        self._bind(inputs)
        self.run_steps(self.module.steps)
        return [
            self.memory.array(output.buffer).reshape([evaluate(size, self.sizes) for size in output.shape])
            for output in self.module.outputs
        ]

    def _bind(self, inputs: Sequence[Array]) -> None:
        for name, known in self.module.symbols.items():
            given = inputs[known.place]
            number = int(given) if known.dim < 0 else given.shape[known.dim]
            self.sizes[name] = (number - known.offset) // known.slope
            if self.sizes[name] < known.low or (known.high is not None and self.sizes[name] > known.high):
                raise InputError(f"{known.name} is {self.sizes[name]}, outside its range.")
        for argument, array in zip(self.module.inputs, inputs, strict=True):
            self.memory.assign(argument.buffer, array)

    # ------------------------------------------------------------------ steps

    def run_steps(self, steps: Sequence[Stmt]) -> None:
        for step in steps:
            self.run_step(step)

    def run_step(self, step: Stmt) -> None:
        rule = next((self.rules[kind] for kind in type(step).__mro__ if kind in self.rules), None)
        if rule is None and isinstance(step, StepGroup):
            rule = _run_members
        try:
            if rule is None:
                raise Fault("the interpreter has no rule for it")
            _check_operands(step)
            runner: StepRunner = self
            rule(runner, step)
        except IngotError:
            raise
        except (Fault, ValueError, IndexError) as fault:  # NumPy's own errors report sizes that do not fit
            raise InterpreterError(
                format_error(f"A step cannot be interpreted: {type(step).__name__} ({step.origin}).", why=str(fault))
            ) from fault

    def size(self, size: Size) -> int:
        return int(evaluate_index(size, self.sizes))

    def extents(self, loops: Sequence[Loop]) -> tuple[int, ...]:
        return tuple(self.size(loop.extent) for loop in loops)

    def grid(self, loops: Sequence[Loop]) -> IndexGrid:
        return make_grid([loop.variable for loop in loops], self.extents(loops))

    def pick(self, loops: Sequence[Loop], points: IntArray) -> IndexGrid:
        return pick_points([loop.variable for loop in loops], self.extents(loops), points)

    def values(self, name: str) -> Array:
        """All elements of a buffer, as values that are computed with."""
        return self.memory.values(name)

    def write(self, name: str, values: Array) -> None:
        """Writes all elements of a buffer."""
        array = self.memory.array(name)
        array[...] = encode(values.reshape(-1), self.module.buffers[name].dtype)

    def halve(self, count: int) -> tuple[IntArray, IntArray]:
        """Points that must not depend on each other, in two parts to be evaluated one after another."""
        return halve(count)

    def poison(self, name: str) -> None:
        self.memory.poison(name)

    # ------------------------------------------------------------------ bodies

    def evaluate(self, body: Body, grid: IndexGrid, given: Mapping[str, Any] | None = None) -> BodyEvaluator:
        """The body at every point. What it gives is in the evaluator's values; the results are the body's places."""
        evaluator = BodyEvaluator(self.memory, grid, self.local, given or {}, self.seed, self.first_draw)
        replay(body, evaluator)
        return evaluator

    def evaluate_number(self, body: Body) -> Any:
        return self.evaluate(body, IndexGrid((), {})).values[body.results[0]].item()

    def store(self, store: Store, value: Array, grid: IndexGrid, index: Array, collides: bool) -> None:
        """Writes a value at every point of the grid."""
        index, value = np.broadcast_to(index, grid.shape).reshape(-1), np.broadcast_to(value, grid.shape)
        local = self.local.get(store.buffer)
        if local is not None:
            place = local.place(store.buffer, index.reshape(grid.shape), grid).reshape(-1)
            stored = encode(value.reshape(-1), local.dtype)
            write(local.array, place, stored, store.mode, local.dtype)
            return
        if not collides and store.mode == "set":
            self._check_apart(store.buffer, index)
        self.memory.store(store.buffer, index, value.reshape(-1), store.mode)

    def _check_apart(self, name: str, index: Array) -> None:
        """Points run in any order: no two of them may write the same element."""
        size = self.memory.array(name).size
        if index.size > size:
            raise Fault(f"several points write the same element of {name}")
        if index.size > 1 and not bool((np.diff(index) > 0).all()):
            seen = np.zeros(size + 1, np.bool_)
            seen[np.clip(index, 0, size)] = True
            if int(seen.sum()) != index.size and int(index.max()) < size:
                raise Fault(f"several points write the same element of {name}")

    def run_map(self, step: Map, grid: IndexGrid, given: Mapping[str, Array] | None = None) -> None:
        """The body at the points of a grid. What is `given` has the grid's shape."""
        if not grid.size:
            return
        in_order = step.collides and bool(body_reads(step.body) & {store.buffer for store in step.stores})
        for at, part in grid.split(1 if in_order else MOST_POINTS):
            handed = {name: array[at] for name, array in (given or {}).items()}
            evaluator = self.evaluate(step.body, part, handed)
            for store in step.stores:
                value = evaluator.values[step.body.results[store.result]]
                self.store(store, value, part, evaluator.index(store.index), step.collides)

    def run_reduce(self, step: Reduce, grid: IndexGrid) -> None:
        """Every result over the loops inside, at the points of a grid of the loops outside."""
        if not grid.size:
            return
        over = [loop.variable for loop in step.over], self.extents(step.over)
        count = math.prod(over[1])
        dtypes = [step.body.ops[result].dtype for result in step.body.results]
        for _, outer in grid.split(max(1, MOST_POINTS // max(count, 1))):
            if count:
                inner = outer.extend(*over)
                evaluator = self.evaluate(step.body, inner)
                axes = tuple(range(len(outer.shape), len(inner.shape)))
                results = [
                    combine(kind, np.broadcast_to(evaluator.values[result], inner.shape), axes)
                    for kind, result in zip(step.kinds, step.body.results, strict=True)
                ]
            else:
                results = [start_value(kind, dtype) for kind, dtype in zip(step.kinds, dtypes, strict=True)]
            symbols = {**self.sizes, **outer.variables}
            for store in step.stores:
                index = np.asarray(evaluate_index(store.index, symbols), np.int64)
                self.store(store, results[store.result], outer, index, False)

    def run_epilogue(
        self, epilogue: Map, sums: Array, beside: Array | None = None, points: IntArray | None = None
    ) -> None:
        """An epilogue on sums in the order of its points: all of them, or those at `points`."""
        given = {"accumulator": sums, **({} if beside is None else {"second_accumulator": beside})}
        extents = self.extents(epilogue.loops)
        if points is not None:
            self.run_map(epilogue, self.pick(epilogue.loops, points), given)
            return
        if any(array.size != math.prod(extents) for array in given.values()):
            raise Fault(f"its epilogue has {math.prod(extents)} points, and it computes {sums.size} sums")
        if _is_in_place((epilogue,)):
            for half in halve(math.prod(extents)):
                self.run_epilogue(
                    epilogue, sums.reshape(-1)[half], None if beside is None else beside.reshape(-1)[half], half
                )
            return
        self.run_map(epilogue, self.grid(epilogue.loops), {k: v.reshape(extents) for k, v in given.items()})

    def matrices(self, view: MatrixView, batch: Sequence[Loop], rows: int, columns: int) -> list[Array]:
        """The matrix of each point of the batch loops, in order."""
        flat = np.ascontiguousarray(self.values(view.buffer))
        steps = (self.size(view.rows), self.size(view.columns))
        offsets = self.place(view.offset, batch)
        return [cut_view(flat, offset, (rows, columns), steps, view.buffer) for offset in offsets]

    def place(self, offset: Size, batch: Sequence[Loop]) -> list[int]:
        """An offset at each point of the batch loops, in order."""
        grid = self.grid(batch)
        places = np.broadcast_to(evaluate_index(offset, {**self.sizes, **grid.variables}), grid.shape)
        return [int(place) for place in places.reshape(-1)]


def _check_operands(step: Stmt) -> None:
    """An epilogue runs while other sums are still computed: it may overwrite nothing that they read."""
    if isinstance(step, WithEpilogue):
        lost = step.operand_buffers() & {store.buffer for store in step.epilogue.stores}
        if lost:
            raise Fault(f"its epilogue overwrites {', '.join(sorted(lost))}, which it reads")


def _is_in_place(steps: Sequence[Map | Reduce], local: Sequence[str] = ()) -> bool:
    """Whether steps read memory that they write, but for local buffers."""
    read = set().union(*(body_reads(step.body) for step in steps))
    return bool(read & {store.buffer for step in steps for store in step.stores} - set(local))


# ---------------------------------------------------------------------- loops


_RULES: Registry[type[Stmt], Callable[[Any, Any], None]] = Registry("rule of the interpreter")


@_RULES.register(Map)
def _run_map(run: Interpreter, step: Map) -> None:
    if not step.collides and _is_in_place((step,)):
        for half in halve(math.prod(run.extents(step.loops))):
            run.run_map(step, run.pick(step.loops, half))
        return
    run.run_map(step, run.grid(step.loops))


@_RULES.register(Reduce)
def _run_reduce(run: Interpreter, step: Reduce) -> None:
    if _is_in_place((step,)):
        for half in halve(math.prod(run.extents(step.loops))):
            run.run_reduce(step, run.pick(step.loops, half))
        return
    run.run_reduce(step, run.grid(step.loops))


@_RULES.register(LoopNest)
def _run_nest(run: Interpreter, nest: LoopNest) -> None:
    """Outer points together, as many as give grids of a known size; local buffers have a part for each of them."""
    count = math.prod(run.extents(nest.outer))
    buffers = [run.module.buffers[name] for name in nest.local]
    widest = max((run.size(_inner_points(step, len(nest.outer))) for step in nest.steps), default=1)
    most = max(1, MOST_POINTS // max(widest, 1))
    whole = (np.arange(count, dtype=np.int64),)
    parts = halve(count) if count > 1 and _is_in_place(nest.steps, nest.local) else whole
    for part in parts:
        for first in range(0, part.size, most):
            points = part[first : first + most]
            run.local = {b.name: make_local(points.size, run.size(b.size), b.dtype) for b in buffers}
            for step in nest.steps:
                _run_inner(run, step, run.pick(nest.outer, points), len(nest.outer))
            run.local = {}


def _inner_points(step: Map | Reduce, outer: int) -> Size:
    loops = (*step.loops[outer:], *(step.over if isinstance(step, Reduce) else ()))
    return product([loop.extent for loop in loops])


def _run_inner(run: Interpreter, step: Map | Reduce, grid: IndexGrid, outer: int) -> None:
    inner = step.loops[outer:]
    grid = grid.extend([loop.variable for loop in inner], run.extents(inner))
    try:
        if isinstance(step, Map):
            run.run_map(step, grid)
        else:
            run.run_reduce(step, grid)
    except Fault as fault:
        raise Fault(f"{fault}, in {type(step).__name__} ({step.origin})") from fault


@_RULES.register(Scan)
def _run_scan(run: Interpreter, step: Scan) -> None:
    grid = run.grid(step.loops)
    if not grid.size:
        return
    count = len(step.start.results)
    begun = run.evaluate(step.start, grid)
    state = [begun.values[result] for result in step.start.results]
    turns = range(run.size(step.over.extent))
    for turn in reversed(turns) if step.back else turns:
        here = IndexGrid(grid.shape, {**grid.variables, step.over.variable: np.asarray(turn, np.int64)})
        evaluator = run.evaluate(step.body, here, {"input": state})
        results = [evaluator.values[result] for result in step.body.results]
        state = results[:count]
        for store in step.stores:
            run.store(store, results[store.result], here, evaluator.index(store.index), False)


# ---------------------------------------------------------------------- the rest


def _run_members(run: Any, step: Any) -> None:
    run.run_steps(step.members())


@_RULES.register(ExternKernel)
def _run_extern(run: Interpreter, step: ExternKernel) -> None:
    kernel = run.rules.get(step.name)
    if kernel is None:
        raise Fault(f"the interpreter has no kernel {step.name!r}")
    kernel(run, step)


@_RULES.register(BindSymbol)
def _bind_symbol(run: Interpreter, step: BindSymbol) -> None:
    run.sizes[step.symbol] = int(run.evaluate_number(step.body))


@_RULES.register(Assert)
def _run_assert(run: Interpreter, step: Assert) -> None:
    if not run.evaluate_number(step.body):
        raise (InputError if step.on_sizes else AssertionFailed)(step.message)


@_RULES.register(If)
def _run_if(run: Interpreter, step: If) -> None:
    run.run_steps(step.then if run.evaluate_number(step.condition) else step.otherwise)


@_RULES.register(While)
def _run_while(run: Interpreter, step: While) -> None:
    while True:
        run.run_steps(step.test)
        if not run.evaluate_number(step.condition):
            return
        run.run_steps(step.steps)


@_RULES.register(For)
def _run_for(run: Interpreter, step: For) -> None:
    for turn in range(run.size(step.loop.extent)):
        run.sizes[step.loop.variable] = turn
        run.run_steps(step.steps)


_RULES.register(Gemm)(run_gemm)
_RULES.register(Convolution)(run_convolution)
_RULES.register(Attention)(run_attention)
_RULES.register(AttentionBackward)(run_attention_backward)
_RULES.register(ClassifyMaskBlocks)(classify_mask_blocks)
