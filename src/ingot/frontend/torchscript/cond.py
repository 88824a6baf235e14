"""prim::If: taken where its condition is known, else a cond; its inputs and outputs: subgraph_capture.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ingot import torch_internals as internals
from ingot.frontend.torchscript import scalar_ops
from ingot.frontend.torchscript.interpreter import Environment, TorchScriptInterpreter, UnsupportedControlFlow
from ingot.frontend.torchscript.runtime_values import (
    LEAF,
    UNSET,
    ContainerContents,
    RuntimeScalar,
    ValueStructure,
    flatten,
    kind_of,
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
    find_escaping,
    inexpressible,
    literal_of,
    make_like,
    only_one,
    pass_out,
    put_back,
    restore_leaves,
)
from ingot.torch_internals import torchscript as ts

hop = torch.ops.higher_order


def branch(machine: TorchScriptInterpreter, node: ts.Node, env: Environment, name: str) -> Any:
    """prim::If: the values of its outputs."""
    pred = env[next(iter(node.inputs())).debugName()]
    blocks = list(node.blocks())
    if isinstance(pred, torch.Tensor):
        pred = RuntimeScalar.read(bool, machine.localize(pred))
    if isinstance(pred, bool | int):
        return only_one(machine.run_block(blocks[0 if pred else 1], env, name))
    combined = _combine(machine, pred, blocks, env, name)
    if combined is not None:
        return combined
    raising = [_raises(block) for block in blocks]
    if any(raising):
        return _assert_branch(machine, pred, blocks, raising, env, name)
    try:
        return attempts(machine, env, lambda plan: _cond(machine, node, pred, env, name, plan))
    except UnsupportedControlFlow as failure:
        if isinstance(pred, RuntimeScalar) or any(map(internals.is_unbacked, internals.expr_of(pred).free_symbols)):
            raise inexpressible(machine, "branch", failure) from None
        # On sizes alone: the branch that the example takes, and the sizes that take it too.
        return only_one(machine.run_block(blocks[0 if bool(pred) else 1], env, name))


def _combine(machine: TorchScriptInterpreter, pred: Any, blocks: list[ts.Block], env: Environment, name: str) -> Any:
    """`a and b`, `a or b`: where the second is a comparison of numbers, both are computed and combined."""
    outputs = [list(block.outputs()) for block in blocks]
    if len(outputs[0]) != 1 or not all(_only_numbers(block, env) for block in blocks):
        return None
    then, otherwise = (machine.run_block(block, dict(env), name)[0] for block in blocks)
    if kind_of(then) is not bool or kind_of(otherwise) is not bool:
        return None
    opposite = scalar_ops.RULES["__not__"](machine, pred)
    taken = then if then is True or then is False else None
    either, both = scalar_ops.RULES["__or__"], scalar_ops.RULES["__and__"]
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


def _raises(block: ts.Block) -> bool:
    return any(node.kind() == "prim::RaiseException" for node in block.nodes())


def _assert_branch(
    machine: TorchScriptInterpreter, pred: Any, blocks: list[ts.Block], raising: list[bool], env: Environment, name: str
) -> Any:
    """A branch that raises is an assertion that the other one is taken."""
    if all(raising):
        return only_one(machine.run_block(blocks[0], env, name))
    bad = raising.index(True)
    if isinstance(pred, RuntimeScalar):
        holds = torch.logical_not(pred.tensor) if bad == 0 else pred.tensor
        torch.ops.aten._assert_async.msg(holds, _message(machine, blocks[bad], env, name))
    else:
        said = _message(machine, blocks[bad], env, name)
        torch._check(torch.sym_not(pred) if bad == 0 else pred, lambda: said)
    return only_one(machine.run_block(blocks[1 - bad], env, name))


def _message(machine: TorchScriptInterpreter, block: ts.Block, env: Environment, name: str) -> str:
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


def _cond(
    machine: TorchScriptInterpreter, node: ts.Node, pred: Any, env: Environment, name: str, plan: SubgraphPlan
) -> Any:
    blocks = list(node.blocks())
    slots = _open_slots(blocks, env)
    first: list[tuple[list[Any], ValueStructure]] = []
    given: list[list[Any]] = []
    shared: set[int] = set()

    def function(block: ts.Block) -> Callable[[], list[torch.Tensor]]:
        def run() -> list[torch.Tensor]:
            with enter_subgraph(machine, plan, plan.bases) as copies:
                contents = ContainerContents(env.values())
                inner = dict(env)
                results = machine.run_block(block, inner, name)
                held = [content_of(c) for c in plan.containers]
                changed = contents.find_changed()
                contents.restore()
                if plan.hold(changed):
                    raise RetryCapture
                given.append(plan.match_nesting(slots, [results[slot] for slot in slots]))
                plan.learn(slots, given[0], given[-1])
                leaves, shape = flatten([given[-1], held])
                if first:
                    leaves = _align(machine, plan, first[0], (leaves, shape))
                else:
                    leaves = plan.fill_uninitialized(leaves)
                    first.append((leaves, shape))
                shared.update(find_escaping(machine, node, leaves))
                return [*pass_out(machine, leaves), *copies]

        return run

    condition = pred.tensor if isinstance(pred, RuntimeScalar) else pred
    out = iter(hop.cond(condition, function(blocks[0]), function(blocks[1]), ()))
    leaves, shape = first[0]
    back = restore_leaves(leaves, out)
    machine.tie(*(back[i] for i in shared))
    results, held = unflatten(iter(back), shape)
    put_back(machine, plan, held, out)
    both = [dict(enumerate(block.outputs())) for block in blocks]
    return only_one(
        [
            results[slots.index(slot)] if slot in slots else env_value(machine, both[0][slot], env)
            for slot in range(len(both[0]))
        ]
    )


def env_value(machine: TorchScriptInterpreter, value: ts.Value, env: Environment) -> Any:
    """A value that both branches return: one from outside, or a constant."""
    name = value.debugName()
    return env[name] if name in env else ts.constant_of(value.node())


def _open_slots(blocks: list[ts.Block], env: Environment) -> list[int]:
    """The outputs that differ between the branches: not the same value of outside, not the same constant."""
    pairs = zip(*(list(block.outputs()) for block in blocks), strict=True)
    return [slot for slot, (a, b) in enumerate(pairs) if not _one_value(a, b, env)]


def _one_value(a: ts.Value, b: ts.Value, env: Environment) -> bool:
    if a.debugName() == b.debugName():
        return True
    one, other = (env[v.debugName()] if v.debugName() in env else literal_of(v) for v in (a, b))
    return type(one) is type(other) and isinstance(one, int | float | bool | str) and one == other


def _align(
    machine: TorchScriptInterpreter,
    plan: SubgraphPlan,
    first: tuple[list[Any], ValueStructure],
    second: tuple[list[Any], ValueStructure],
) -> list[Any]:
    """The second branch's leaves if they fit the first one's."""
    if first[1] != second[1]:
        raise UnsupportedControlFlow(_unlike(first[1], second[1]), machine.place)
    leaves = []
    for i, (one, other) in enumerate(zip(first[0], second[0], strict=True)):
        if one is UNSET and other is not UNSET:
            plan.fills[i] = make_like(machine, other)
            raise RetryCapture
        if other is UNSET and one is not UNSET:
            other = make_like(machine, one)()
        if not agree(one, other):
            raise UnsupportedControlFlow(
                f"one branch returns {describe(one)} where the other returns {describe(other)}", machine.place
            )
        leaves.append(other)
    return leaves


def _unlike(one: ValueStructure, other: ValueStructure) -> str:
    """How two values are nested differently, said of the first place where they are."""
    if one.kind is other.kind and one.keys == other.keys and len(one.children) == len(other.children):
        pairs = zip(one.children, other.children, strict=True)
        return next((_unlike(a, b) for a, b in pairs if a != b), "its branches return values of different classes")
    if one == LEAF or other == LEAF:
        nested = other if one == LEAF else one
        return f"one branch returns {_title(nested)} where the other returns a single value or None"
    return f"one branch returns {_title(one)} where the other returns {_title(other)}"


def _title(shape: ValueStructure) -> str:
    name = getattr(shape.kind, "__name__", "object")
    return f"a {name} of {len(shape.children)} item{'s'[: len(shape.children) != 1]}"
