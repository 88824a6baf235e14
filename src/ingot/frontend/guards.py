"""Guards: the conditions on dynamic sizes that a trace depends on, and what follows from them.

    GuardRecorder             records every guard on a symbol that the model's code, or an operator, evaluates

A question that Python code asks decides which graph is recorded, so it counts in full. A question that an operator asks
(is this dim 1, so that it broadcasts? which of two strides is larger?) counts where it excludes larger sizes. Where it
excludes sizes 0 and 1, or sizes below the example's only, the operator is run again at those sizes (`operator_sizes`):
it counts if the operator fails there, or returns another shape than the graph says.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from ingot import torch_internals as internals
from ingot.frontend.dynamic_shapes import RootDim
from ingot.frontend.sizes.operator_sizes import OperatorCall, OperatorSizes, holds
from ingot.frontend.sizes.short_circuit import decides_nothing, is_operand
from ingot.frontend.sizes.small_sizes import spares_sizes_from_two
from ingot.frontend.source_locations import user_frame
from ingot.ir.metadata import Source
from ingot.ir.printer import operator_name
from ingot.ir.symbolic_dims import Constraint

_log = logging.getLogger("ingot.guards")
_PERIODS = 64  # sizes that are tried one by one, next to one for which a condition holds


@dataclass(frozen=True, slots=True)
class Guard:
    """A condition that held in the trace.

    `by_operator`: an operator asked it, and it counts from size two on. `refused_by`: the operator that does not work,
    or returns another shape, where the condition does not hold.
    """

    condition: sympy.Basic
    by_operator: bool
    source: Source | None
    refused_by: str = ""


class GuardRecorder:
    """Collects the questions that the trace asked of symbols."""

    def __init__(self, asked_by_operator: Callable[[], bool], place: Callable[[], Source | None]) -> None:
        self.questions: dict[tuple[sympy.Basic, bool], Guard] = {}
        self.env = internals.WatchedShapeEnv(self._evaluate, self._may_be_idle, self._is_idle, self._record_answer)
        self.paused = False
        self.roots: dict[sympy.Symbol, RootDim] = {}
        self._asked: list[dict[sympy.Basic, None]] = []  # by each operator that runs
        self._sizes = OperatorSizes(self.roots)
        self._asked_by_operator = asked_by_operator
        self._place = place
        self._guards_seen = 0

    def _may_be_idle(self) -> bool:
        if self.paused or self._asked_by_operator():
            return True
        frame = user_frame()
        return frame is not None and is_operand(frame)

    def _is_idle(self, expr: sympy.Basic, value: sympy.Basic) -> bool:
        """Whether the trace does not depend on the answer: an operator asks, and all it excludes is small sizes."""
        if self.paused:
            return True
        if not self._asked_by_operator():
            frame = user_frame()
            return frame is not None and value in (sympy.true, sympy.false) and decides_nothing(frame, bool(value))
        condition = _condition(expr, value)
        idle = spares_sizes_from_two(condition) or self._spares_larger_sizes(condition)
        if idle:
            self.env.idle_answers[expr] = value
        return idle

    def _spares_larger_sizes(self, condition: sympy.Basic) -> bool:
        """Whether an inequality about one dim holds at the example's size and at every larger one that is tried."""
        if not isinstance(
            condition, sympy.StrictGreaterThan | sympy.GreaterThan | sympy.StrictLessThan | sympy.LessThan
        ):
            return False
        symbols = condition.free_symbols
        if len(symbols) != 1 or not symbols <= self.roots.keys():
            return False
        (symbol,) = symbols
        root = self.roots[symbol]
        larger = [*range(root.hint, root.hint + _PERIODS), *(root.hint * 2**power for power in range(1, 40))]
        high = root.range[1]
        sizes = [size for size in larger if high is None or size <= high] + ([high] if high is not None else [])
        return all(holds(condition, {symbol: size}) for size in sizes)

    def _record_answer(self, expr: sympy.Basic, value: sympy.Basic) -> None:
        if self._asked and not self.paused:
            self._asked[-1][_condition(expr, value)] = None

    @contextmanager
    def operator(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[list[Any]]:
        """Inside, an operator runs; the caller puts its result into the list.

        Afterwards those of its questions count that exclude sizes at which it does not do what the graph says. Control
        flow is left out: the operators of its bodies were watched one by one, and running it again would record them.
        """
        if isinstance(func, internals.HigherOrderOperator):
            yield []
            return
        call = (
            OperatorCall.from_call(func, args, kwargs) if torch.Tag.inplace_view in getattr(func, "tags", ()) else None
        )
        self._asked.append({})
        results: list[Any] = []
        try:
            yield results
        finally:
            asked = self._asked.pop()
        if not asked or self.paused or not results:
            return
        with internals.suspend_watching(self.env):
            for condition in self._sizes.find_violations(
                call or OperatorCall.from_call(func, args, kwargs), results[0], list(asked)
            ):
                self._note(condition, False, self._place(), operator_name(func))

    def _evaluate(self, expr: sympy.Basic, value: sympy.Basic) -> None:
        by_operator = self._asked_by_operator()
        fresh = len(self.env.guards) > self._guards_seen
        if by_operator:
            self._record_answer(expr, value)
        if by_operator and not fresh:
            return
        source = self._place()
        for guard in self.env.guards[self._guards_seen :]:
            self._note(guard.expr, by_operator, source)
        self._guards_seen = len(self.env.guards)
        if not by_operator:
            self._note(_condition(expr, value), False, source)

    def finish(self) -> Iterable[Guard]:
        for guard in self.env.guards[self._guards_seen :]:
            self._note(guard.expr, False, None)
        self._guards_seen = len(self.env.guards)
        return self.questions.values()

    def _note(self, condition: sympy.Basic, by_operator: bool, source: Source | None, refused_by: str = "") -> None:
        if condition not in (sympy.true, sympy.false):
            self._sizes.require(condition, 2 if by_operator else 0)
            if _log.isEnabledFor(logging.INFO) and (condition, by_operator) not in self.questions:
                asker = refused_by or ("an operator" if by_operator else "the model")
                level = logging.DEBUG if by_operator else logging.INFO
                _log.log(level, "%s, asked by %s at %s", Constraint(condition, ""), asker, _place(source) or "no line")
            self.questions.setdefault((condition, by_operator), Guard(condition, by_operator, source, refused_by))


def _condition(expr: sympy.Basic, value: sympy.Basic) -> sympy.Basic:
    """What the answer `value` to the question `expr` says about the sizes."""
    if value == sympy.true:
        return expr
    return sympy.Not(expr) if value == sympy.false else sympy.Eq(expr, value)


def _place(source: Source | None) -> str:
    if source is None:
        return ""
    return f"{source}" + (f": {source.text}" if source.text else "")
