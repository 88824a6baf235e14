"""The three forms a graph may be in, as data: which operators it may hold, and what else must be true of it.

    CAPTURED    what the trace wrote: composite operators whole, in-place updates, views, mode switches, assertions
    FUNCTIONAL  no writes, no aliases that matter, no mode switches; effects carry tokens
    CORE        FUNCTIONAL, and only torch's core ATen set (and what the caller asked to keep whole)

A pass is registered with the dialect that it takes and the one that it gives; the verifier checks the latter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import fx

from ingot import torch_internals as internals


@dataclass(frozen=True, slots=True)
class Dialect:
    """`complaint(node)` is why a node may not stand in this dialect, or None. `after` is what it refines."""

    name: str
    complaint: Callable[[fx.Node], str | None]
    after: Dialect | None = None

    def accepts(self, other: Dialect) -> bool:
        """Whether a program in `other` may be handed to something that takes this dialect."""
        step: Dialect | None = other
        while step is not None:
            if step.name == self.name:
                return True
            step = step.after
        return False


_SWITCHES = (internals.enter_autocast, internals.exit_autocast, internals.set_grad_enabled)


def _captured(node: fx.Node) -> str | None:
    target = node.target
    if target is internals.tracepoint:
        return "a module-call marker was left behind; run ingot.passes.tracepoints"
    return None


def _functional(node: fx.Node) -> str | None:
    target = node.target
    if target in _SWITCHES:
        return "a mode switch stands outside of a region"
    if isinstance(target, internals.OpOverload) and target._schema.is_mutable:
        return f"{target} writes to its argument"
    return _captured(node)


def _core(node: fx.Node) -> str | None:
    target = node.target
    if isinstance(target, internals.OpOverload) and target.namespace == "aten" and torch.Tag.core not in target.tags:
        return f"{target} is not in the core ATen set"
    return _functional(node)


CAPTURED = Dialect("CAPTURED", _captured)
FUNCTIONAL = Dialect("FUNCTIONAL", _functional, CAPTURED)
CORE = Dialect("CORE", _core, FUNCTIONAL)
BY_NAME = {dialect.name: dialect for dialect in (CAPTURED, FUNCTIONAL, CORE)}
