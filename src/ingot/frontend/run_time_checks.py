"""Run-time checks: conditions on values known only at run time become assertions in the graph.

torch._check, an assert statement and operators all let the shape environment assume a condition. The
environment reports each condition that is new to it, and a node is written at once: what the environment knows later
implies the condition, and nothing would check it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import sympy
import torch
from torch import fx

from ingot import torch_internals as internals
from ingot.errors import UntraceableError
from ingot.frontend.source_locations import assertion_message, user_frame
from ingot.ir import symbolic_dims

if TYPE_CHECKING:
    from ingot.frontend.tracer import GraphTracer

aten = torch.ops.aten

# Operators that do nothing but check a number.
CHECKS = frozenset(
    {
        aten._assert_scalar.default,
        aten.sym_constrain_range.default,
        aten.sym_constrain_range_for_size.default,
    }
)


class Check(NamedTuple):
    """A condition that must hold at run time, and the user's message for where it does not, "" if there is none."""

    condition: sympy.Basic
    message: str


class RunTimeChecks:
    """Writes the checks of one capture into the graph that its recorder is at."""

    def __init__(self, recorder: GraphTracer) -> None:
        self._recorder = recorder
        self._message = ""
        self._pending: list[Check] = []  # asked by the operator that runs now

    def note(self, condition: sympy.Basic) -> None:
        """Writes an assertion where the user's code stands; one that an operator needs follows that operator."""
        check = Check(condition, self._message or assertion_message(user_frame()))
        if self._recorder.inside_op:
            self._pending.append(check)
        else:
            self._write(check)

    @contextmanager
    def attach_message(self, message: Callable[[], Any] | None) -> Iterator[None]:
        """Inside, checks that fail will say `message()`."""
        said = "" if message is None or self._recorder.inside_op else str(message())
        outer, self._message = self._message, said
        try:
            yield
        finally:
            self._message = outer

    @contextmanager
    def ignore(self, scoped: bool = True) -> Iterator[None]:
        """Inside, the checks that operators need are in the graph already; `scoped`: they hold only inside."""
        asked = len(self._pending)
        with internals.scope_checks(self._recorder.env) if scoped else nullcontext():
            yield
        del self._pending[asked:]

    def write_pending(self) -> None:
        """Writes the checks that operators requested since the last time."""
        if not self._pending or self._recorder.inside_op:
            return
        checks, self._pending = self._pending, []
        for check in checks:
            # An operator also asks about numbers of its own (a storage offset), which no node computes.
            with suppress(UntraceableError):
                self._write(check)

    def _write(self, check: Check) -> None:
        node = self._recorder.size(check.condition)
        if isinstance(node, fx.Node):
            message = check.message or f"expected {symbolic_dims.format_dim(check.condition)}"
            self._recorder.append(aten._assert_scalar.default, (node, message), {}, None)
