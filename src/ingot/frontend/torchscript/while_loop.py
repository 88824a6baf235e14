"""prim::Loop: unrolled where that is requested, else a while_loop; its inputs and outputs: subgraph_capture.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ingot import torch_internals as internals
from ingot.frontend.torchscript import dynamic_lists
from ingot.frontend.torchscript.interpreter import Environment, TorchScriptInterpreter, UnsupportedControlFlow
from ingot.frontend.torchscript.runtime_values import (
    UNSET,
    ContainerContents,
    DynamicList,
    RuntimeScalar,
    ValueStructure,
    as_tensor,
    flatten,
    is_number,
    kind_of,
    number,
    refill,
    unflatten,
)
from ingot.frontend.torchscript.subgraph_capture import (
    RetryCapture,
    SubgraphPlan,
    agree,
    attempts,
    content_of,
    describe,
    enter_subgraph,
    inexpressible,
    literal_of,
    make_like,
    only_one,
    pass_in,
    pass_out,
    put_back,
    restore_leaves,
)
from ingot.torch_internals import torchscript as ts

hop = torch.ops.higher_order

# The most iterations of an unrolled loop; beyond it the graph would be too large to be useful.
UNROLLED_ROUNDS = 4096


def loop(machine: TorchScriptInterpreter, node: ts.Node, env: Environment, name: str) -> Any:
    """prim::Loop: the values of its outputs."""
    trip, condition, *start = [env[value.debugName()] for value in node.inputs()]
    (body,) = node.blocks()
    if isinstance(condition, torch.Tensor):
        condition = RuntimeScalar.read(bool, machine.localize(condition))
    if condition is False or (type(trip) is int and trip <= 0):
        return only_one(start)
    if machine.unroll and _countable(trip, body):
        return _unroll(machine, trip, condition, start, body, env, name)
    try:
        return only_one(
            attempts(machine, env, lambda plan: _while(machine, trip, condition, start, body, env, name, plan))
        )
    except UnsupportedControlFlow as failure:
        if isinstance(trip, int) and isinstance(condition, bool):
            return _unroll(machine, trip, condition, start, body, env, name, failure)
        raise inexpressible(machine, "loop", failure) from None


def _countable(trip: Any, body: ts.Block) -> bool:
    """Whether the number of iterations is a constant of the script."""
    return type(trip) is int and trip < UNROLLED_ROUNDS and literal_of(next(iter(body.outputs()))) is True


def _unroll(
    machine: TorchScriptInterpreter,
    trip: int,
    condition: bool,
    values: list[Any],
    body: ts.Block,
    env: Environment,
    name: str,
    failure: UnsupportedControlFlow | None = None,
) -> Any:
    """Unrolls the iterations, as many as there are while the script is imported."""
    contents = ContainerContents(env.values())
    inputs = [value.debugName() for value in body.inputs()]
    count = 0
    try:
        while count < trip and condition:
            if count >= UNROLLED_ROUNDS:
                raise failure or UnsupportedControlFlow(f"it takes more than {UNROLLED_ROUNDS} iterations")
            inner = {**env, **dict(zip(inputs, (count, *values), strict=True))}
            condition, *values = machine.run_block(body, inner, name)
            if not isinstance(condition, bool):
                if isinstance(condition, RuntimeScalar | torch.Tensor) or any(
                    map(internals.is_unbacked, internals.expr_of(condition).free_symbols)
                ):
                    raise failure or UnsupportedControlFlow("its end is data-dependent")
                condition = bool(condition)  # a question about sizes, like any other
            count += 1
    except UnsupportedControlFlow as problem:
        contents.restore()
        raise inexpressible(machine, "loop", problem) from None
    return only_one(values)


def _while(
    machine: TorchScriptInterpreter,
    trip: Any,
    condition: Any,
    start: list[Any],
    body: ts.Block,
    env: Environment,
    name: str,
    plan: SubgraphPlan,
) -> list[Any]:
    counter, *inputs = [value.debugName() for value in body.inputs()]
    again, *outputs = list(body.outputs())
    endless = type(trip) is int and trip == ts.FOREVER
    always = condition is True and literal_of(again) is True
    kept = [slot for slot, value in enumerate(outputs) if value.debugName() == inputs[slot]]
    by_itself = [_is_base(value, plan) or plan.grows(value) for value in start]
    moving = [slot for slot in range(len(start)) if slot not in kept and not by_itself[slot]]
    entering = plan.match_nesting(moving, [start[slot] for slot in moving])
    leaves, shape = flatten([entering, [content_of(c) for c in plan.containers]])
    leaves = plan.fill_uninitialized(leaves)
    carried = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) or is_number(leaf)]
    flags = [] if always else [as_tensor(condition)]
    counts = [] if endless and not next(iter(body.inputs())).uses() else [as_tensor(0)]
    first = len(counts) + len(flags)
    made = [make() for _, make in plan.growing]
    shared: set[int] = set()
    initial = (*counts, *flags, *pass_in(machine, leaves), *made, *plan.bases)

    def proceed(*values: torch.Tensor) -> torch.Tensor:
        within = None if endless else torch.lt(values[0], trip.tensor if isinstance(trip, RuntimeScalar) else trip)
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
            inside[i] = (
                value if isinstance(leaves[i], torch.Tensor) else RuntimeScalar.from_tensor(kind_of(leaves[i]), value)
            )
        tensors = [next(moved) for _ in plan.growing]
        with enter_subgraph(machine, plan, list(moved)) as copies:
            contents = ContainerContents(env.values())
            given, held = unflatten(iter(inside), shape)
            for container, content in zip(plan.containers, held, strict=True):
                refill(container, content)
            lengthened = [value.copy() if isinstance(value, list) else value for value in given]
            round_ = iter(given)
            values_in = [start[slot] if slot not in moving else next(round_) for slot in range(len(start))]
            inner = {**env, **dict(zip(inputs, values_in, strict=True))}
            if counts:
                inner[counter] = _counter(machine, values[0], trip)
            begun = [DynamicList(tensor, inner[counter]) for tensor in tensors]
            for (container, _), rows_so_far in zip(plan.growing, begun, strict=True):
                container.append(rows_so_far)
            proceeds, *results = machine.run_block(body, inner, name)
            now = [content_of(c) for c in plan.containers]
            newest = [_newest(machine, c, r, copies) for (c, _), r in zip(plan.growing, begun, strict=True)]
            grown = [dynamic_lists.fill(machine, *pair) for pair in zip(begun, newest, strict=True)]
            changed = contents.find_changed()
            contents.restore()
            if plan.hold(changed):
                raise RetryCapture
            if always and internals.is_symbolic(number(trip)):
                lists = [*zip(plan.containers, held, now, strict=True)]
                # `a += [b]` passes the list itself to the next iteration.
                lists += [
                    (start[slot], lengthened[place], given[place])
                    for place, slot in enumerate(moving)
                    if results[slot] is given[place]
                ]
                _find_growing(machine, plan, number(trip), lists)
            if any(results[s] is not start[s] for s in range(len(start)) if plan.grows(start[s])):
                raise UnsupportedControlFlow(
                    "a list is appended to in one iteration and replaced in another", machine.place
                )
            _check_bases(machine, plan, [(start[s], results[s]) for s in range(len(start)) if s not in moving])
            leaving = [results[slot] for slot in moving]
            plan.learn(moving, entering, leaving)
            after, after_shape = flatten([plan.match_nesting(moving, leaving), now])
            _check_round(machine, plan, (leaves, shape), (after, after_shape))
            shared.update(i for i, leaf in enumerate(after) if _shares(leaf, newest))
            flag = [] if always else [as_tensor(proceeds)]
            return [*(values[0] + 1 for _ in counts), *flag, *pass_out(machine, after), *grown, *copies]

    out = iter(list(hop.while_loop(proceed, step, initial, ()))[first:])
    back = restore_leaves(leaves, out)
    finished, held = unflatten(iter(back), shape)
    for container, _ in plan.growing:
        container.append(DynamicList(next(out), number(trip)))
        # The last item and what the loop hands on are one tensor in the script, and two here.
        machine.tie(*(back[i] for i in shared), *([container[-1].tensor] if shared else []))
    put_back(machine, plan, held, out)
    finals = iter(finished)
    return [next(finals) if slot in moving else start[slot] for slot in range(len(start))]


def _find_growing(
    machine: TorchScriptInterpreter, plan: SubgraphPlan, trip: Any, lists: Sequence[tuple[Any, Any, Any]]
) -> None:
    """Lists that have one tensor more after an iteration than before it: their items are rows of one tensor."""
    found = False
    for container, was, now in lists:
        if not isinstance(was, list) or len(now) != len(was) + 1 or not isinstance(now[-1], torch.Tensor):
            continue
        if all(one is other for one, other in zip(was, now, strict=False)):
            plan.grow(container, make_like(machine, now[-1], trip))
            found = True
    if found:
        raise RetryCapture


def _newest(
    machine: TorchScriptInterpreter, container: list[Any], begun: DynamicList, written: Sequence[torch.Tensor]
) -> torch.Tensor:
    """What an iteration appended to a list that ended with the rows so far. The rows hold a copy of it."""
    *_, last, newest = container if len(container) > 1 else (None, None)
    if last is not begun or not isinstance(newest, torch.Tensor):
        raise UnsupportedControlFlow("it does more to a list in one iteration than append a tensor", machine.place)
    if _shares(machine.localize(newest), written):
        raise UnsupportedControlFlow("a tensor is written to in place after it was appended to a list", machine.place)
    if not machine.is_own(newest):
        machine.tie(newest)
    return newest


def _shares(value: Any, others: Sequence[torch.Tensor]) -> bool:
    """Whether a value is a tensor with memory of one of the others."""
    return isinstance(value, torch.Tensor) and any(
        internals.storage_id(value) == internals.storage_id(other) for other in others
    )


def _counter(machine: TorchScriptInterpreter, tensor: torch.Tensor, trip: Any) -> RuntimeScalar:
    count = RuntimeScalar.from_tensor(int, tensor)
    if internals.is_symbolic(count.symbol):
        (symbol,) = internals.expr_of(count.symbol).free_symbols
        assert machine.recorder is not None
        # Rounds are counted from 0, whatever the body does.
        internals.narrow(machine.recorder.env, symbol, 0, trip - 1 if type(trip) is int else None)
    return count


def _is_base(value: Any, plan: SubgraphPlan) -> bool:
    """Whether a value is memory that the plan carries by itself."""
    return _shares(value, plan.bases)


def _check_bases(machine: TorchScriptInterpreter, plan: SubgraphPlan, pairs: list[tuple[Any, Any]]) -> None:
    for before, after in pairs:
        if _is_base(before, plan):
            inside = machine.localize(before)
            if not (isinstance(after, torch.Tensor) and internals.same_memory(inside, machine.localize(after))):
                raise UnsupportedControlFlow(
                    "a tensor is written to in one iteration and replaced in another", machine.place
                )


def _check_round(
    machine: TorchScriptInterpreter,
    plan: SubgraphPlan,
    before: tuple[list[Any], ValueStructure],
    after: tuple[list[Any], ValueStructure],
) -> None:
    if before[1] != after[1]:
        raise UnsupportedControlFlow("it builds a list or a dict that grows between iterations", machine.place)
    for i, (one, other) in enumerate(zip(before[0], after[0], strict=True)):
        if one is UNSET and other is not UNSET:
            plan.fills[i] = make_like(machine, other)
            raise RetryCapture
        if not agree(one, other) or (isinstance(one, torch.Tensor) and _sizes(one) != _sizes(other)):
            raise UnsupportedControlFlow(
                f"an iteration takes {describe(one)} and passes {describe(other)} to the next", machine.place
            )


def _sizes(tensor: torch.Tensor) -> list[Any]:
    return [internals.expr_of(size) for size in tensor.shape]
