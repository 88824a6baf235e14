"""prim::If and prim::Loop.

A branch whose condition is known while the script is imported is taken, and that is all. One that hangs on a value or
on a size that stays open becomes a cond; a loop becomes a while_loop. Both are recorded by the rules that capture has
for them, and what goes in and out of their functions is tensors only:

    tensors                     as they are; one that comes from outside goes out as a copy
    numbers                     tensors of no dims
    None, text, modules         nothing: they must be the same on both paths, or in every round
    memory of outside           that is written to inside: copied in, given out, written back afterwards
    lists and dicts             by what they hold; one that changes inside goes out as well

What must go in and out is found by trying: a function that turns out to need more is recorded again with it.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from ingot import torch_internals as internals
from ingot.capture.script import plain, rows
from ingot.capture.script.machine import Environment, Inexpressible, Machine, Written
from ingot.capture.script.values import (
    LEAF,
    UNSET,
    Contents,
    Live,
    Rows,
    Shape,
    as_tensor,
    flatten,
    is_number,
    kind_of,
    number,
    refill,
    unflatten,
)
from ingot.errors import CaptureError, DataDependentError, explain
from ingot.torch_internals import script as ts

hop = torch.ops.higher_order

# A loop that is unrolled may take so many rounds; beyond it the graph would be of no use to anybody.
UNROLLED_ROUNDS = 4096
_ATTEMPTS = 32


class _Again(Exception):
    """The functions must be recorded again, now that more is known of what goes in and out."""


@dataclass(slots=True)
class _Plan:
    """What goes in and out of the functions of one operator besides what the script says."""

    bases: list[torch.Tensor] = field(default_factory=list)
    containers: list[Any] = field(default_factory=list)
    fills: dict[int, Callable[[], Any]] = field(default_factory=dict)
    shapes: dict[int, Shape] = field(default_factory=dict)
    growing: list[tuple[list[Any], Callable[[], torch.Tensor]]] = field(default_factory=list)

    def shaped(self, slots: Sequence[int], values: Sequence[Any]) -> list[Any]:
        """The values, with those that are uninitialized nested as other paths nest them."""
        pairs = zip(slots, values, strict=True)
        return [
            unflatten(itertools.repeat(UNSET), self.shapes[s]) if value is UNSET and s in self.shapes else value
            for s, value in pairs
        ]

    def learn(self, slots: Sequence[int], one: Sequence[Any], other: Sequence[Any]) -> None:
        """Notes how what is uninitialized on one path is nested on the other."""
        known = len(self.shapes)
        for s, pair in zip(slots, zip(one, other, strict=True), strict=True):
            nested = [shape for shape in (flatten(value)[1] for value in pair) if shape != LEAF]
            if nested and any(value is UNSET for value in pair):
                self.shapes[s] = nested[0]
        if len(self.shapes) > known:
            raise _Again

    def filled(self, leaves: list[Any]) -> list[Any]:
        """The leaves, with something in place of those that are uninitialized and that other paths give a type."""
        return [self.fills[i]() if leaf is UNSET and i in self.fills else leaf for i, leaf in enumerate(leaves)]

    def write(self, base: torch.Tensor) -> None:
        if any(internals.storage_id(base) == internals.storage_id(known) for known in self.bases):
            raise Inexpressible("memory is written to that changes its place from round to round")
        self.bases.append(base)

    def grow(self, container: list[Any], make: Callable[[], torch.Tensor]) -> None:
        """Notes that each round appends to a list what is a row of the tensor that is made."""
        self.containers = [known for known in self.containers if known is not container]
        self.growing.append((container, make))

    def grows(self, value: Any) -> bool:
        return any(value is container for container, _ in self.growing)

    def hold(self, containers: Sequence[Any]) -> bool:
        fresh = [c for c in containers if not self.grows(c) and not any(c is known for known in self.containers)]
        self.containers.extend(fresh)
        return bool(fresh)


def _attempts(machine: Machine, env: Environment, record: Callable[[_Plan], Any]) -> Any:
    """Records until the plan holds everything. What an attempt did to containers is undone."""
    plan = _Plan()
    assert machine.recorder is not None
    for _ in range(_ATTEMPTS):
        contents = Contents(env.values())
        depth, grad = len(machine.scopes), torch.is_grad_enabled()
        try:
            with machine.recorder.modules.tentative():
                return record(plan)
        except Written as write:
            contents.restore()
            torch.set_grad_enabled(grad)
            if write.depth != depth + 1:
                raise  # what a scope around this one must take in
            plan.write(write.base)
        except _Again:
            contents.restore()
            torch.set_grad_enabled(grad)
        except Inexpressible:
            contents.restore()
            torch.set_grad_enabled(grad)
            raise
    raise Inexpressible("what a branch or a loop changes grows with every look at it", machine.place)


# ---------------------------------------------------------------------- branches


def branch(machine: Machine, node: ts.Node, env: Environment, name: str) -> Any:
    """prim::If: the values of its outputs."""
    pred = env[next(iter(node.inputs())).debugName()]
    blocks = list(node.blocks())
    if isinstance(pred, torch.Tensor):
        pred = Live.read(bool, machine.localized(pred))
    if isinstance(pred, bool | int):
        return _only(machine.run_block(blocks[0 if pred else 1], env, name))
    combined = _combined(machine, pred, blocks, env, name)
    if combined is not None:
        return combined
    raising = [_raises(block) for block in blocks]
    if any(raising):
        return _asserted(machine, pred, blocks, raising, env, name)
    try:
        return _attempts(machine, env, lambda plan: _cond(machine, node, pred, env, name, plan))
    except Inexpressible as failure:
        if isinstance(pred, Live) or any(map(internals.is_unbacked, internals.expr_of(pred).free_symbols)):
            raise _inexpressible(machine, "branch", failure) from None
        # On sizes alone: the branch that the example takes, and the sizes that take it too.
        return _only(machine.run_block(blocks[0 if bool(pred) else 1], env, name))


def _combined(machine: Machine, pred: Any, blocks: list[ts.Block], env: Environment, name: str) -> Any:
    """`a and b`, `a or b`: where the second is a comparison of numbers, both are computed and combined."""
    outputs = [list(block.outputs()) for block in blocks]
    if len(outputs[0]) != 1 or not all(_only_numbers(block, env) for block in blocks):
        return None
    then, otherwise = (machine.run_block(block, dict(env), name)[0] for block in blocks)
    if kind_of(then) is not bool or kind_of(otherwise) is not bool:
        return None
    opposite = plain.RULES["__not__"](machine, pred)
    taken = then if then is True or then is False else None
    either, both = plain.RULES["__or__"], plain.RULES["__and__"]
    if taken is True:
        return pred if otherwise is False else either(machine, pred, otherwise)
    if taken is False:
        return opposite if otherwise is True else both(machine, opposite, otherwise)
    if otherwise is False:
        return both(machine, pred, then)
    return either(machine, opposite, then) if otherwise is True else None


def _only_numbers(block: ts.Block, env: Environment) -> bool:
    """Whether a block does nothing but compare and combine numbers, which can neither fail nor change anything."""
    return all(
        node.kind() == "prim::Constant"
        or (node.kind() in _HARMLESS and all("Tensor" not in str(value.type()) for value in node.inputs()))
        for node in block.nodes()
    )


_HARMLESS = frozenset(
    f"aten::{name}"
    for name in ["lt", "le", "gt", "ge", "eq", "ne", "__and__", "__or__", "__not__", "add", "sub", "mul", "neg"]
)


def _only(results: list[Any]) -> Any:
    return results[0] if len(results) == 1 else results


def _raises(block: ts.Block) -> bool:
    return any(node.kind() == "prim::RaiseException" for node in block.nodes())


def _asserted(
    machine: Machine, pred: Any, blocks: list[ts.Block], raising: list[bool], env: Environment, name: str
) -> Any:
    """A branch that raises is an assertion that the other one is taken."""
    if all(raising):
        return _only(machine.run_block(blocks[0], env, name))
    bad = raising.index(True)
    if isinstance(pred, Live):
        holds = torch.logical_not(pred.tensor) if bad == 0 else pred.tensor
        torch.ops.aten._assert_async.msg(holds, _message(machine, blocks[bad], env, name))
    else:
        torch._check(torch.sym_not(pred) if bad == 0 else pred)
    return _only(machine.run_block(blocks[1 - bad], env, name))


def _message(machine: Machine, block: ts.Block, env: Environment, name: str) -> str:
    """What a branch that raises says; the values in it are those of the symbols."""
    inner = dict(env)
    for node in block.nodes():
        if node.kind() == "prim::RaiseException":
            return str(inner.get(next(iter(node.inputs())).debugName(), "the script raises an exception"))
        if node.kind() in ("prim::Constant", "aten::format", "aten::size", "aten::dim", "aten::str", "aten::add"):
            try:
                machine.step(node, inner, name)
            except Exception:
                break
        else:
            break
    return "the script raises an exception"


def _cond(machine: Machine, node: ts.Node, pred: Any, env: Environment, name: str, plan: _Plan) -> Any:
    blocks = list(node.blocks())
    slots = _open_slots(blocks, env)
    first: list[tuple[list[Any], Shape]] = []
    given: list[list[Any]] = []
    shared: set[int] = set()

    def function(block: ts.Block) -> Callable[[], list[torch.Tensor]]:
        def run() -> list[torch.Tensor]:
            with _inside(machine, plan, plan.bases) as copies:
                contents = Contents(env.values())
                inner = dict(env)
                results = machine.run_block(block, inner, name)
                held = [_content(c) for c in plan.containers]
                changed = contents.changed()
                contents.restore()
                if plan.hold(changed):
                    raise _Again
                given.append(plan.shaped(slots, [results[slot] for slot in slots]))
                plan.learn(slots, given[0], given[-1])
                leaves, shape = flatten([given[-1], held])
                if first:
                    leaves = _aligned(machine, plan, first[0], (leaves, shape))
                else:
                    leaves = plan.filled(leaves)
                    first.append((leaves, shape))
                shared.update(_seen_elsewhere(machine, node, leaves))
                return [*_given_out(machine, leaves), *copies]

        return run

    condition = pred.tensor if isinstance(pred, Live) else pred
    out = iter(hop.cond(condition, function(blocks[0]), function(blocks[1]), ()))
    leaves, shape = first[0]
    back = _taken_back(leaves, out)
    machine.tie(*(back[i] for i in shared))
    results, held = unflatten(iter(back), shape)
    _put_back(machine, plan, held, out)
    both = [dict(enumerate(block.outputs())) for block in blocks]
    return _only(
        [
            results[slots.index(slot)] if slot in slots else env_value(machine, both[0][slot], env)
            for slot in range(len(both[0]))
        ]
    )


def env_value(machine: Machine, value: ts.Value, env: Environment) -> Any:
    """A value that both branches give out: one from outside, or a constant."""
    name = value.debugName()
    return env[name] if name in env else ts.constant_of(value.node())


def _open_slots(blocks: list[ts.Block], env: Environment) -> list[int]:
    """The outputs that differ between the branches: not the same value of outside, not the same constant."""
    pairs = zip(*(list(block.outputs()) for block in blocks), strict=True)
    return [slot for slot, (a, b) in enumerate(pairs) if not _one_value(a, b, env)]


def _one_value(a: ts.Value, b: ts.Value, env: Environment) -> bool:
    if a.debugName() == b.debugName():
        return True
    one, other = (env[v.debugName()] if v.debugName() in env else _literal(v) for v in (a, b))
    return type(one) is type(other) and isinstance(one, int | float | bool | str) and one == other


def _literal(value: ts.Value) -> Any:
    node = value.node()
    return ts.constant_of(node) if node.kind() == "prim::Constant" and not ts.is_function(value) else None


def _aligned(
    machine: Machine, plan: _Plan, first: tuple[list[Any], Shape], second: tuple[list[Any], Shape]
) -> list[Any]:
    """The second branch's leaves if they fit the first one's."""
    if first[1] != second[1]:
        raise Inexpressible(_unlike(first[1], second[1]), machine.place)
    leaves = []
    for i, (one, other) in enumerate(zip(first[0], second[0], strict=True)):
        if one is UNSET and other is not UNSET:
            plan.fills[i] = _like(machine, other)
            raise _Again
        if other is UNSET and one is not UNSET:
            other = _like(machine, one)()
        if not _agree(one, other):
            raise Inexpressible(
                f"one side gives {_describe(one)} where the other gives {_describe(other)}", machine.place
            )
        leaves.append(other)
    return leaves


def _unlike(one: Shape, other: Shape) -> str:
    """How two values are nested differently, said of the first place where they are."""
    if one.kind is other.kind and one.keys == other.keys and len(one.children) == len(other.children):
        pairs = zip(one.children, other.children, strict=True)
        return next((_unlike(a, b) for a, b in pairs if a != b), "its two sides give values of different classes")
    if one == LEAF or other == LEAF:
        nested = other if one == LEAF else one
        return f"one side gives {_title(nested)} where the other gives a single value or None"
    return f"one side gives {_title(one)} where the other gives {_title(other)}"


def _title(shape: Shape) -> str:
    name = getattr(shape.kind, "__name__", "object")
    return f"a {name} of {len(shape.children)} item{'s'[: len(shape.children) != 1]}"


def _like(machine: Machine, value: Any, *rows: Any) -> Callable[[], Any]:
    """Makes something of the same type as a value, or so many rows of it, for where nobody looks."""
    if isinstance(value, torch.Tensor):
        sizes = [s for s in value.shape if internals.is_symbolic(s)]
        if any(internals.is_unbacked(symbol) for s in sizes for symbol in internals.expr_of(s).free_symbols):
            raise Inexpressible("a value is left open on one path whose size only the other one knows", machine.place)
        return functools.partial(torch.zeros, (*rows, *value.shape), dtype=value.dtype, device=value.device)
    return kind_of(value) if is_number(value) else lambda: value


def _agree(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.dtype is other.dtype and one.dim() == other.dim()
    if is_number(one) and is_number(other):
        return kind_of(one) is kind_of(other)
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor) or is_number(one) or is_number(other):
        return False
    return one is other or (type(one) is type(other) and one == other)


def _describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        dims = ", ".join(map(str, value.shape))
        return f"a tensor {str(value.dtype).removeprefix('torch.')}[{dims}]"
    return f"a number ({kind_of(value).__name__})" if is_number(value) else repr(value)


# ---------------------------------------------------------------------- loops


def loop(machine: Machine, node: ts.Node, env: Environment, name: str) -> Any:
    """prim::Loop: the values of its outputs."""
    trip, condition, *start = [env[value.debugName()] for value in node.inputs()]
    (body,) = node.blocks()
    if isinstance(condition, torch.Tensor):
        condition = Live.read(bool, machine.localized(condition))
    if condition is False or (type(trip) is int and trip <= 0):
        return _only(start)
    if machine.unroll and _countable(trip, body):
        return _unrolled(machine, trip, condition, start, body, env, name)
    try:
        return _only(
            _attempts(machine, env, lambda plan: _while(machine, trip, condition, start, body, env, name, plan))
        )
    except Inexpressible as failure:
        if isinstance(trip, int) and isinstance(condition, bool):
            return _unrolled(machine, trip, condition, start, body, env, name, failure)
        raise _inexpressible(machine, "loop", failure) from None


def _countable(trip: Any, body: ts.Block) -> bool:
    """Whether the number of rounds is a constant of the script."""
    return type(trip) is int and trip < UNROLLED_ROUNDS and _literal(next(iter(body.outputs()))) is True


def _unrolled(
    machine: Machine,
    trip: int,
    condition: bool,
    values: list[Any],
    body: ts.Block,
    env: Environment,
    name: str,
    failure: Inexpressible | None = None,
) -> Any:
    """The rounds one after another, as many as there are while the script is imported."""
    contents = Contents(env.values())
    inputs = [value.debugName() for value in body.inputs()]
    count = 0
    try:
        while count < trip and condition:
            if count >= UNROLLED_ROUNDS:
                raise failure or Inexpressible(f"it takes more than {UNROLLED_ROUNDS} rounds")
            inner = {**env, **dict(zip(inputs, (count, *values), strict=True))}
            condition, *values = machine.run_block(body, inner, name)
            if not isinstance(condition, bool):
                if isinstance(condition, Live | torch.Tensor) or any(
                    map(internals.is_unbacked, internals.expr_of(condition).free_symbols)
                ):
                    raise failure or Inexpressible("a value of the run ends it")
                condition = bool(condition)  # a question about sizes, like any other
            count += 1
    except Inexpressible as problem:
        contents.restore()
        raise _inexpressible(machine, "loop", problem) from None
    return _only(values)


def _while(
    machine: Machine,
    trip: Any,
    condition: Any,
    start: list[Any],
    body: ts.Block,
    env: Environment,
    name: str,
    plan: _Plan,
) -> list[Any]:
    counter, *inputs = [value.debugName() for value in body.inputs()]
    again, *outputs = list(body.outputs())
    endless = type(trip) is int and trip == ts.FOREVER
    always = condition is True and _literal(again) is True
    kept = [slot for slot, value in enumerate(outputs) if value.debugName() == inputs[slot]]
    by_itself = [_is_base(value, plan) or plan.grows(value) for value in start]
    moving = [slot for slot in range(len(start)) if slot not in kept and not by_itself[slot]]
    entering = plan.shaped(moving, [start[slot] for slot in moving])
    leaves, shape = flatten([entering, [_content(c) for c in plan.containers]])
    leaves = plan.filled(leaves)
    carried = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) or is_number(leaf)]
    flags = [] if always else [as_tensor(condition)]
    counts = [] if endless and not next(iter(body.inputs())).uses() else [as_tensor(0)]
    first = len(counts) + len(flags)
    made = [make() for _, make in plan.growing]
    shared: set[int] = set()
    initial = (*counts, *flags, *_taken_in(machine, leaves), *made, *plan.bases)

    def proceed(*values: torch.Tensor) -> torch.Tensor:
        within = None if endless else torch.lt(values[0], trip.tensor if isinstance(trip, Live) else trip)
        if always:
            assert within is not None, "a loop without a count and without a condition would never end"
            return within
        flag = values[first - 1]
        return flag if within is None else torch.logical_and(within, flag)

    def step(*values: torch.Tensor) -> list[torch.Tensor]:
        moved = iter(values[first:])
        inside: list[Any] = list(leaves)
        for i in carried:
            value = next(moved)
            inside[i] = value if isinstance(leaves[i], torch.Tensor) else Live.of(kind_of(leaves[i]), value)
        tensors = [next(moved) for _ in plan.growing]
        with _inside(machine, plan, list(moved)) as copies:
            contents = Contents(env.values())
            given, held = unflatten(iter(inside), shape)
            for container, content in zip(plan.containers, held, strict=True):
                refill(container, content)
            lengthened = [value.copy() if isinstance(value, list) else value for value in given]
            round_ = iter(given)
            values_in = [start[slot] if slot not in moving else next(round_) for slot in range(len(start))]
            inner = {**env, **dict(zip(inputs, values_in, strict=True))}
            if counts:
                inner[counter] = _counter(machine, values[0], trip)
            begun = [Rows(tensor, inner[counter]) for tensor in tensors]
            for (container, _), rows_so_far in zip(plan.growing, begun, strict=True):
                container.append(rows_so_far)
            proceeds, *results = machine.run_block(body, inner, name)
            now = [_content(c) for c in plan.containers]
            newest = [_newest(machine, c, r, copies) for (c, _), r in zip(plan.growing, begun, strict=True)]
            grown = [rows.filled(machine, *pair) for pair in zip(begun, newest, strict=True)]
            changed = contents.changed()
            contents.restore()
            if plan.hold(changed):
                raise _Again
            if always and internals.is_symbolic(number(trip)):
                lists = [*zip(plan.containers, held, now, strict=True)]
                # `a += [b]` hands the list itself to the next round.
                lists += [
                    (start[slot], lengthened[place], given[place])
                    for place, slot in enumerate(moving)
                    if results[slot] is given[place]
                ]
                _find_growing(machine, plan, number(trip), lists)
            if any(results[s] is not start[s] for s in range(len(start)) if plan.grows(start[s])):
                raise Inexpressible("a list is appended to in one round and replaced by another one", machine.place)
            _check_bases(machine, plan, [(start[s], results[s]) for s in range(len(start)) if s not in moving])
            leaving = [results[slot] for slot in moving]
            plan.learn(moving, entering, leaving)
            after, after_shape = flatten([plan.shaped(moving, leaving), now])
            _check_round(machine, plan, (leaves, shape), (after, after_shape))
            shared.update(i for i, leaf in enumerate(after) if _shares(leaf, newest))
            flag = [] if always else [as_tensor(proceeds)]
            return [*(values[0] + 1 for _ in counts), *flag, *_given_out(machine, after), *grown, *copies]

    out = iter(list(hop.while_loop(proceed, step, initial, ()))[first:])
    back = _taken_back(leaves, out)
    finished, held = unflatten(iter(back), shape)
    for container, _ in plan.growing:
        container.append(Rows(next(out), number(trip)))
        # The last item and what the loop hands on are one tensor in the script, and two here.
        machine.tie(*(back[i] for i in shared), *([container[-1].tensor] if shared else []))
    _put_back(machine, plan, held, out)
    finals = iter(finished)
    return [next(finals) if slot in moving else start[slot] for slot in range(len(start))]


def _find_growing(machine: Machine, plan: _Plan, trip: Any, lists: Sequence[tuple[Any, Any, Any]]) -> None:
    """Lists that have one tensor more after a round than before it: what they hold are rows of one tensor."""
    found = False
    for container, was, now in lists:
        if not isinstance(was, list) or len(now) != len(was) + 1 or not isinstance(now[-1], torch.Tensor):
            continue
        if all(one is other for one, other in zip(was, now, strict=False)):
            plan.grow(container, _like(machine, now[-1], trip))
            found = True
    if found:
        raise _Again


def _newest(machine: Machine, container: list[Any], begun: Rows, written: Sequence[torch.Tensor]) -> torch.Tensor:
    """What a round appended to a list, which held the rows so far at its end. The rows hold a copy of it."""
    *_, last, newest = container if len(container) > 1 else (None, None)
    if last is not begun or not isinstance(newest, torch.Tensor):
        raise Inexpressible("it does more to a list in a round than to append a tensor", machine.place)
    if _shares(machine.localized(newest), written):
        raise Inexpressible("what it appends to a list is written to in place, which the list sees", machine.place)
    if not machine.is_own(newest):
        machine.tie(newest)
    return newest


def _shares(value: Any, others: Sequence[torch.Tensor]) -> bool:
    """Whether a value is a tensor with memory of one of the others."""
    return isinstance(value, torch.Tensor) and any(
        internals.storage_id(value) == internals.storage_id(other) for other in others
    )


def _counter(machine: Machine, tensor: torch.Tensor, trip: Any) -> Live:
    count = Live.of(int, tensor)
    if internals.is_symbolic(count.symbol):
        (symbol,) = internals.expr_of(count.symbol).free_symbols
        assert machine.recorder is not None
        # Rounds are counted from 0, whatever the body does.
        internals.narrow(machine.recorder.env, symbol, 0, trip - 1 if type(trip) is int else None)
    return count


def _is_base(value: Any, plan: _Plan) -> bool:
    """Whether a value is memory that the plan carries by itself."""
    return _shares(value, plan.bases)


def _check_bases(machine: Machine, plan: _Plan, pairs: list[tuple[Any, Any]]) -> None:
    for before, after in pairs:
        if _is_base(before, plan):
            inside = machine.localized(before)
            if not (isinstance(after, torch.Tensor) and internals.same_memory(inside, machine.localized(after))):
                raise Inexpressible("a tensor is written to in one round and replaced by another one", machine.place)


def _check_round(
    machine: Machine, plan: _Plan, before: tuple[list[Any], Shape], after: tuple[list[Any], Shape]
) -> None:
    if before[1] != after[1]:
        raise Inexpressible("it builds a list or a dict, which then grows from round to round", machine.place)
    for i, (one, other) in enumerate(zip(before[0], after[0], strict=True)):
        if one is UNSET and other is not UNSET:
            plan.fills[i] = _like(machine, other)
            raise _Again
        if not _agree(one, other) or (isinstance(one, torch.Tensor) and _sizes(one) != _sizes(other)):
            raise Inexpressible(
                f"a round takes {_describe(one)} and gives {_describe(other)} to the next one", machine.place
            )


def _sizes(tensor: torch.Tensor) -> list[Any]:
    return [internals.expr_of(size) for size in tensor.shape]


# ---------------------------------------------------------------------- in and out of a function


@contextmanager
def _inside(machine: Machine, plan: _Plan, bases: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """A scope in which copies of the plan's bases, as the function sees them, are there to be written to."""
    outer = [machine.localized(base) for base in bases] if bases is plan.bases else list(bases)
    copies = [base.clone() for base in outer]
    with machine.scope(plan.bases, copies):
        yield copies


def _content(container: Any) -> Any:
    return container.copy()


def _seen_elsewhere(machine: Machine, node: ts.Node, leaves: Sequence[Any]) -> list[int]:
    """Which leaves are memory of outside that somebody may still look at after the branch, so that copies differ."""
    found = []
    for i, leaf in enumerate(leaves):
        outside = isinstance(leaf, torch.Tensor) and not machine.is_own(machine.localized(leaf))
        if outside and not machine.forgotten_after(node, leaf):
            machine.tie(leaf)
            found.append(i)
    return found


def _given_out(machine: Machine, leaves: Sequence[Any]) -> list[torch.Tensor]:
    """The leaves that are values, as tensors that share no memory with outside."""
    given: list[torch.Tensor] = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            tensor = machine.localized(leaf)
            fresh = machine.is_own(tensor) and machine.scopes and not _is_among(tensor, given)
            given.append(tensor if fresh else tensor.clone())
        elif is_number(leaf):
            tensor = as_tensor(leaf)
            given.append(tensor if machine.made_here(tensor) and not _is_among(tensor, given) else tensor.clone())
    return given


def _is_among(tensor: torch.Tensor, others: Sequence[torch.Tensor]) -> bool:
    return any(tensor is known for known in others)


def _taken_in(machine: Machine, leaves: Sequence[Any]) -> list[torch.Tensor]:
    """The leaves that are values, as tensors, no two of which are one."""
    taken: list[torch.Tensor] = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor) or is_number(leaf):
            tensor = machine.localized(leaf) if isinstance(leaf, torch.Tensor) else as_tensor(leaf)
            shared = any(internals.storage_id(tensor) == internals.storage_id(known) for known in taken)
            taken.append(tensor.clone() if shared else tensor)
    return taken


def _taken_back(leaves: Sequence[Any], out: Iterator[torch.Tensor]) -> list[Any]:
    """The leaves with the values that came out in place of those that went in."""
    back: list[Any] = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            back.append(next(out))
        elif is_number(leaf):
            back.append(Live.of(kind_of(leaf), next(out)))
        else:
            back.append(leaf)
    return back


def _put_back(machine: Machine, plan: _Plan, held: list[Any], out: Iterator[torch.Tensor]) -> None:
    """Containers hold what came out, and memory that was written to inside is written to."""
    for container, content in zip(plan.containers, held, strict=True):
        refill(container, content)
    for base in plan.bases:
        machine.operate(torch.ops.aten.copy_.default, (base, next(out)), {})


def _inexpressible(machine: Machine, what: str, failure: Inexpressible) -> CaptureError:
    return DataDependentError(
        explain(
            f"A {what} of the script hangs on values of the run and cannot be an operator of a graph.",
            where=failure.place or machine.place,
            why=str(failure),
            fix="compute with tensors of a fixed shape inside it: torch.where for a choice, a preallocated tensor "
            "for a list",
        )
    )
