"""What branches and loops have in common: subgraphs, and their inputs and outputs.

A branch whose condition is known while the script is imported is taken, and that is all. One that depends on a value or
on a size that stays open becomes a cond; a loop becomes a while_loop. Both are recorded by the rules that capture has
for them, whose inputs and outputs are tensors only:

    tensors                     as they are; one that comes from outside goes out as a copy
    numbers                     0-d tensors
    None, text, modules         nothing: they must be the same on both paths, or in every iteration
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
from ingot.errors import CaptureError, DataDependentError, format_error
from ingot.frontend.torchscript.interpreter import (
    Environment,
    OuterMutation,
    TorchScriptInterpreter,
    UnsupportedControlFlow,
)
from ingot.frontend.torchscript.runtime_values import (
    LEAF,
    UNSET,
    ContainerContents,
    RuntimeScalar,
    ValueStructure,
    as_tensor,
    flatten,
    is_number,
    kind_of,
    refill,
    unflatten,
)
from ingot.torch_internals import torchscript as ts

_ATTEMPTS = 32


class RetryCapture(Exception):
    """The functions must be recorded again, now that more of their inputs and outputs is known."""


@dataclass(slots=True)
class SubgraphPlan:
    """Inputs and outputs of the functions of one operator besides those in the script."""

    bases: list[torch.Tensor] = field(default_factory=list)
    containers: list[Any] = field(default_factory=list)
    fills: dict[int, Callable[[], Any]] = field(default_factory=dict)
    shapes: dict[int, ValueStructure] = field(default_factory=dict)
    growing: list[tuple[list[Any], Callable[[], torch.Tensor]]] = field(default_factory=list)

    def match_nesting(self, slots: Sequence[int], values: Sequence[Any]) -> list[Any]:
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
            raise RetryCapture

    def fill_uninitialized(self, leaves: list[Any]) -> list[Any]:
        """The leaves, with something in place of those that are uninitialized and whose type other paths define."""
        return [self.fills[i]() if leaf is UNSET and i in self.fills else leaf for i, leaf in enumerate(leaves)]

    def write(self, base: torch.Tensor) -> None:
        if any(internals.storage_id(base) == internals.storage_id(known) for known in self.bases):
            raise UnsupportedControlFlow("a tensor is written to whose memory changes between iterations")
        self.bases.append(base)

    def grow(self, container: list[Any], make: Callable[[], torch.Tensor]) -> None:
        """Records that each iteration appends a row of the resulting tensor to a list."""
        self.containers = [known for known in self.containers if known is not container]
        self.growing.append((container, make))

    def grows(self, value: Any) -> bool:
        return any(value is container for container, _ in self.growing)

    def hold(self, containers: Sequence[Any]) -> bool:
        fresh = [c for c in containers if not self.grows(c) and not any(c is known for known in self.containers)]
        self.containers.extend(fresh)
        return bool(fresh)


def attempts(machine: TorchScriptInterpreter, env: Environment, record: Callable[[SubgraphPlan], Any]) -> Any:
    """Records until the plan holds everything. What an attempt did to containers is undone."""
    plan = SubgraphPlan()
    assert machine.recorder is not None
    for _ in range(_ATTEMPTS):
        contents = ContainerContents(env.values())
        depth, grad = len(machine.scopes), torch.is_grad_enabled()
        try:
            with machine.recorder.modules.tentative():
                return record(plan)
        except OuterMutation as write:
            contents.restore()
            torch.set_grad_enabled(grad)
            if write.depth != depth + 1:
                raise  # what a scope around this one must take in
            plan.write(write.base)
        except RetryCapture:
            contents.restore()
            torch.set_grad_enabled(grad)
        except UnsupportedControlFlow:
            contents.restore()
            torch.set_grad_enabled(grad)
            raise
    raise UnsupportedControlFlow("the state that a branch or a loop changes has no fixpoint", machine.place)


# ---------------------------------------------------------------------- in and out


@contextmanager
def enter_subgraph(
    machine: TorchScriptInterpreter, plan: SubgraphPlan, bases: Sequence[torch.Tensor]
) -> Iterator[list[torch.Tensor]]:
    """A scope in which copies of the plan's bases, as the function sees them, are there to be written to."""
    outer = [machine.localize(base) for base in bases] if bases is plan.bases else list(bases)
    copies = [base.clone() for base in outer]
    with machine.scope(plan.bases, copies):
        yield copies


def content_of(container: Any) -> Any:
    return container.copy()


def find_escaping(machine: TorchScriptInterpreter, node: ts.Node, leaves: Sequence[Any]) -> list[int]:
    """Which leaves are outer memory that may still be read after the branch, so that copies would differ."""
    found = []
    for i, leaf in enumerate(leaves):
        outside = isinstance(leaf, torch.Tensor) and not machine.is_own(machine.localize(leaf))
        if outside and not machine.is_dead_after(node, leaf):
            machine.tie(leaf)
            found.append(i)
    return found


def pass_out(machine: TorchScriptInterpreter, leaves: Sequence[Any]) -> list[torch.Tensor]:
    """The leaves that are values, as tensors that share no memory with outside."""
    given: list[torch.Tensor] = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            tensor = machine.localize(leaf)
            fresh = machine.is_own(tensor) and machine.scopes and not _is_among(tensor, given)
            given.append(tensor if fresh and tensor.is_contiguous() else _copy(tensor))
        elif is_number(leaf):
            tensor = as_tensor(leaf)
            given.append(
                tensor if machine.is_computed_here(tensor) and not _is_among(tensor, given) else tensor.clone()
            )
    return given


def _is_among(tensor: torch.Tensor, others: Sequence[torch.Tensor]) -> bool:
    return any(tensor is known for known in others)


def pass_in(machine: TorchScriptInterpreter, leaves: Sequence[Any]) -> list[torch.Tensor]:
    """The leaves that are values, as tensors, no two of which are one."""
    taken: list[torch.Tensor] = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor) or is_number(leaf):
            tensor = machine.localize(leaf) if isinstance(leaf, torch.Tensor) else as_tensor(leaf)
            shared = any(internals.storage_id(tensor) == internals.storage_id(known) for known in taken)
            taken.append(tensor if tensor.is_contiguous() and not shared else _copy(tensor))
    return taken


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous copy: an operator's inputs and outputs have the same layout on every path and in every iteration."""
    return tensor.clone(memory_format=torch.contiguous_format)


def restore_leaves(leaves: Sequence[Any], out: Iterator[torch.Tensor]) -> list[Any]:
    """The leaves with the values that came out in place of those that went in."""
    back: list[Any] = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            back.append(next(out))
        elif is_number(leaf):
            back.append(RuntimeScalar.from_tensor(kind_of(leaf), next(out)))
        else:
            back.append(leaf)
    return back


def put_back(machine: TorchScriptInterpreter, plan: SubgraphPlan, held: list[Any], out: Iterator[torch.Tensor]) -> None:
    """Containers hold what came out, and memory that was written to inside is written to."""
    for container, content in zip(plan.containers, held, strict=True):
        refill(container, content)
    for base in plan.bases:
        machine.operate(torch.ops.aten.copy_.default, (base, next(out)), {})


def inexpressible(machine: TorchScriptInterpreter, what: str, failure: UnsupportedControlFlow) -> CaptureError:
    return DataDependentError(
        format_error(
            f"A data-dependent {what} in the script cannot be converted to a graph operator.",
            where=failure.place or machine.place,
            why=str(failure),
            fix="compute with tensors of a fixed shape inside it: torch.where for a choice, a preallocated tensor "
            "for a list",
        )
    )


# ---------------------------------------------------------------------- values on two paths


def literal_of(value: ts.Value) -> Any:
    node = value.node()
    return ts.constant_of(node) if node.kind() == "prim::Constant" and not ts.is_function(value) else None


def make_like(machine: TorchScriptInterpreter, value: Any, *rows: Any) -> Callable[[], Any]:
    """Creates a placeholder of the same type as a value, or of so many rows of it, that is never read."""
    if isinstance(value, torch.Tensor):
        sizes = [s for s in value.shape if internals.is_symbolic(s)]
        if any(internals.is_unbacked(symbol) for s in sizes for symbol in internals.expr_of(s).free_symbols):
            raise UnsupportedControlFlow(
                "a value is uninitialized on one path, and only the other path knows its size", machine.place
            )
        return functools.partial(torch.zeros, (*rows, *value.shape), dtype=value.dtype, device=value.device)
    return kind_of(value) if is_number(value) else lambda: value


def agree(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.dtype is other.dtype and one.dim() == other.dim()
    if is_number(one) and is_number(other):
        return kind_of(one) is kind_of(other)
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor) or is_number(one) or is_number(other):
        return False
    return one is other or (type(one) is type(other) and one == other)


def describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        dims = ", ".join(map(str, value.shape))
        return f"a tensor {str(value.dtype).removeprefix('torch.')}[{dims}]"
    return f"a number ({kind_of(value).__name__})" if is_number(value) else repr(value)


def only_one(results: list[Any]) -> Any:
    return results[0] if len(results) == 1 else results
