"""The three forms a graph may be in, as data: which operators it may hold, and what else must be true of it.

    CAPTURED    what the trace wrote: composite operators whole, in-place updates, views, mode switches, assertions
    FUNCTIONAL  no writes, no aliases that matter, no mode switches; effects carry tokens
    CORE        FUNCTIONAL, and only torch's core ATen set (and what the caller asked to keep whole)

A pass is registered with the dialect that it takes and the one that it produces; the verifier checks the latter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import fx

from ingot import torch_internals as internals

_PACKETS = ("sym_size", "sym_stride", "sym_numel", "sym_storage_offset")
SHAPE_QUERY_OPS = frozenset(
    getattr(packet, overload)
    for packet in (getattr(torch.ops.aten, name) for name in _PACKETS)
    for overload in packet.overloads()
)


@dataclass(frozen=True, slots=True)
class Dialect:
    """`violation(node)` is why a node may not stand in this dialect, or None. `after` is what it refines.

    `kept` names the operators that a caller of decompose asked to keep whole.
    """

    name: str
    violation: Callable[[fx.Node], str | None]
    after: Dialect | None = None
    kept: tuple[str, ...] = ()

    def accepts(self, other: Dialect) -> bool:
        """Whether a program in `other` may be handed to something that takes this dialect."""
        step: Dialect | None = other
        while step is not None:
            if step.name == self.name:
                return True
            step = step.after
        return False


_SWITCHES = (internals.enter_autocast, internals.exit_autocast, internals.set_grad_enabled)


def _find_captured_violation(node: fx.Node) -> str | None:
    target = node.target
    if target is internals.tracepoint:
        return "a module-call marker was left behind; run ingot.passes.tracepoints"
    return None


def _functional(node: fx.Node) -> str | None:
    target = node.target
    if target in _SWITCHES:
        return "a mode switch stands outside a region"
    if isinstance(target, internals.OpOverload) and target._schema.is_mutable:
        return f"{target} writes to its argument"
    return _find_captured_violation(node)


def core(kept: Iterable[str] = ()) -> Dialect:
    """The CORE dialect with these operators, by their full names ("aten.linear.default"), allowed besides."""
    allowed = tuple(sorted(kept))

    def complaint(node: fx.Node) -> str | None:
        target = node.target
        if isinstance(target, internals.OpOverload) and is_composite(target) and str(target) not in allowed:
            return f"{target} is not in the core ATen set"
        return _functional(node)

    return Dialect("CORE", complaint, FUNCTIONAL, allowed)


@cache
def is_composite(op: Any) -> bool:
    """Whether an operator is made of others and is none of the core set: torch's own core form never holds it."""
    if op in SHAPE_QUERY_OPS or not isinstance(op, internals.OpOverload):
        return False
    hidden = op.namespace == "aten" and bool(op._can_decompose())  # may alias, so torch's table does not list it
    return op in decompositions() or (hidden and torch.Tag.core not in op.tags)


@cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """torch's table from operators to functions that compute the same with smaller ones."""
    return internals.default_decompositions()


CAPTURED = Dialect("CAPTURED", _find_captured_violation)
FUNCTIONAL = Dialect("FUNCTIONAL", _functional, CAPTURED)
CORE = core()
BY_NAME = {dialect.name: dialect for dialect in (CAPTURED, FUNCTIONAL, CORE)}
