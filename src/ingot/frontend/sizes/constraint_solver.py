"""From the guards of a trace to the ranges of its dims, and the constraints that calls must satisfy."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import sympy

from ingot import torch_internals as internals
from ingot.errors import DynamicShapeError, format_error
from ingot.frontend.dynamic_shapes import AutomaticDimsResolved, DimSpec, DynamicShapeSpec, RootDim
from ingot.frontend.sizes.condition_simplification import resolve_extremes, simplify_condition
from ingot.frontend.sizes.operator_sizes import holds
from ingot.ir import symbolic_dims as dims_
from ingot.ir.metadata import Source
from ingot.ir.symbolic_dims import Constraint, Dim

if TYPE_CHECKING:
    from ingot.frontend.guards import Guard, GuardRecorder

_PERIODS = 64  # sizes that are tried one by one, next to one for which a condition holds


def derive_constraints(
    declared: DynamicShapeSpec, watch: GuardRecorder
) -> tuple[tuple[Dim, ...], tuple[Constraint, ...]]:
    """The dims with the ranges that the trace supports, and the constraints that calls must satisfy.

    Raises AutomaticDimsResolved where the trace fixes automatic dims, or ties them to other dims.
    """
    roots = {root.symbol: root for root in declared.roots.values() if root.symbol is not None}
    if not roots:
        return (), ()
    found = ConstraintSolver(roots, watch.env)
    questions = [q for q in watch.finish() if q.condition.free_symbols <= roots.keys()]
    found.merge_ranges(questions)
    found.tie_automatic()
    for question in questions:
        found.add_guard(question)
    if found.resolved:
        raise AutomaticDimsResolved("\n".join(found.problems.values()), found.resolved)
    if found.problems:
        raise DynamicShapeError("\n".join(found.problems.values()))
    found.check_examples()
    dims = tuple(Dim(r.name, *found.ranges[s], r.auto) for s, r in roots.items() if not found.is_tied(s))
    constraints = [c for c in found.constraints.values() if not follows_from_ranges(c.condition, found.ranges)]
    return dims, tuple(constraints)


def follows_from_ranges(condition: sympy.Basic, ranges: Mapping[sympy.Symbol, tuple[int, int | None]]) -> bool:
    """Whether a condition on several dims holds at all sizes from their lower bounds on.

    A bound that a later guard raised proves earlier ones, such as Max(1, n) * Max(1, m) == n * m from 1 on. A condition
    on one dim is kept: it names the line that the bound comes from.
    """
    if not isinstance(condition, sympy.Eq) or len(condition.free_symbols) < 2:
        return False
    if not condition.free_symbols <= ranges.keys():
        return False
    beyond = {
        symbol: sympy.Dummy(integer=True, nonnegative=True) + ranges[symbol][0] for symbol in condition.free_symbols
    }
    left, right = (side.subs(beyond) for side in condition.args)
    return bool(sympy.expand(left - right) == 0)


class ConstraintSolver:
    def __init__(self, roots: Mapping[sympy.Symbol, RootDim], env: internals.ShapeEnv) -> None:
        self.roots = roots
        self.ranges: dict[sympy.Symbol, tuple[int, int | None]] = {s: root.range for s, root in roots.items()}
        self.problems: dict[str, str] = {}
        self.constraints: dict[sympy.Basic, Constraint] = {}
        self.resolved: dict[str, DimSpec | None] = {}  # automatic dims that are static, or a function of another dim
        self._env = env
        self._random = random.Random(0)

    def is_tied(self, symbol: sympy.Symbol) -> bool:
        return bool(self._env.replace(symbol) != symbol)

    def tie_automatic(self) -> None:
        """Finds the automatic dims that the trace made functions of other dims."""
        for symbol, root in self.roots.items():
            equal = self._env.replace(symbol)
            if equal == symbol or len(equal.free_symbols) != 1:
                continue
            (other,) = equal.free_symbols
            if other not in self.roots:
                continue
            scale, offset = equal.coeff(other), equal.subs(other, 0)
            if not (scale.is_Integer and scale > 0 and offset.is_Integer and equal == scale * other + offset):
                continue
            found = self.roots[other]
            if root.example != scale * found.example + offset:  # one of them has a size of 0 or 1 in the example
                raised = [r for r in (root, found) if r.auto and not r.must_vary and r.hint != r.example]
                self.resolved.update(dict.fromkeys(r.name for r in raised))
            elif root.auto:
                self.resolved[root.name] = DimSpec(found.name, int(scale), int(offset))
            elif found.auto and scale == 1:
                self.resolved[found.name] = DimSpec(root.name, 1, -int(offset))

    def merge_ranges(self, questions: Sequence[Guard]) -> None:
        """A dim that is tied to others keeps its declared range: it becomes theirs."""
        for symbol, root in self.roots.items():
            equal = self._env.replace(symbol)
            if equal == symbol or equal.is_number:
                continue
            source = next(
                (
                    q.source
                    for q in questions
                    if isinstance(q.condition, sympy.Eq) and symbol in q.condition.free_symbols
                ),
                None,
            )
            low, high = root.range
            if not isinstance(equal, sympy.Symbol):
                bounds = [sympy.Ge(equal, low), *([sympy.Le(equal, high)] if high is not None else [])]
                for bound in bounds:
                    if not self._is_proved(bound, 0):
                        self._constrain(bound, Guard(bound, False, source))
                continue
            other_low, other_high = self.ranges[equal]
            low = max(low, other_low)
            high = min((bound for bound in (high, other_high) if bound is not None), default=None)
            if high is not None and low > high:
                self.problems[root.name] = format_error(
                    f"{root.name} ({root.where}) and {self.roots[equal].name} ({self.roots[equal].where}) must be "
                    "equal, but no size is in both of their ranges.",
                    where=_place(source),
                )
            else:
                self.ranges[equal] = low, high

    def check_examples(self) -> None:
        """Raises AutomaticDimsResolved if the trace does not hold for the sizes that the user gave."""
        sizes = {symbol: root.example for symbol, root in self.roots.items()}
        ranges = [Constraint(sympy.Ge(symbol, low), "") for symbol, (low, _) in self.ranges.items()]
        ranges += [
            Constraint(sympy.Le(symbol, high), "") for symbol, (_, high) in self.ranges.items() if high is not None
        ]
        for constraint in (*self.constraints.values(), *ranges):
            if not holds(constraint.condition, sizes):
                raised = [
                    root
                    for s, root in self.roots.items()
                    if root.hint != root.example and s in constraint.condition.free_symbols
                ]
                names = ", ".join(f"{root.name} = {root.example}" for root in raised)
                raise AutomaticDimsResolved(
                    format_error(
                        f"The example's sizes are excluded: the trace holds for "
                        f"{dims_.format_dim(constraint.condition)}, and the example has {names}.",
                        where=constraint.source,
                        why="a size of 1 or 0 broadcasts, so a dynamic dim is traced with a larger one",
                        fix=f"give an example of two or more, make the line independent of the size, or leave "
                        f"{' and '.join(root.name for root in raised)} out of dynamic_shapes",
                    ),
                    dict.fromkeys(root.name for root in raised if root.auto and not root.must_vary),
                )

    def add_guard(self, question: Guard) -> None:
        condition = question.condition
        if not isinstance(condition, sympy.Eq):
            condition = condition.xreplace({s: self._env.replace(s) for s in condition.free_symbols if self.is_tied(s)})
            if condition in (sympy.true, sympy.false):
                return
        condition = self._simplify(condition)
        if self._is_proved(condition, 2 if question.by_operator else 0):
            return
        symbols = sorted(condition.free_symbols, key=lambda s: s.name)
        at_least = 2 if question.by_operator else 0
        if isinstance(condition, sympy.Eq) and not self._holds_everywhere(condition, at_least):
            if len(symbols) == 1 and self._holds_in_an_interval(condition, symbols[0], question.by_operator):
                self._narrow(condition, symbols[0], question)
            elif len(symbols) > 1 and not any(map(self.is_tied, symbols)) and self._holds_everywhere(condition, None):
                self._constrain(condition, question)
            else:
                self._equality(condition, symbols, question)
        elif len(symbols) == 1:
            self._narrow(condition, symbols[0], question)
        else:
            self._constrain(condition, question)

    def _equality(self, condition: sympy.Basic, symbols: list[sympy.Symbol], question: Guard) -> None:
        place = _place(question.source)
        for symbol in symbols:
            fixed = self._env.replace(symbol)
            if fixed.is_number:
                self._report_frozen(symbol, int(fixed), place)
                return
        if all(self.roots[s].auto for s in symbols):
            # Automatic dims may be tied to each other; a tie that torch resolved is in the sizes already.
            if self._env.replace(condition) != sympy.true and self._env.simplify(condition) != sympy.true:
                self._constrain(condition, question)
            return
        if (needs := self._find_sufficient_bounds(condition)) is not None:
            for need in needs:
                self.add_guard(dataclasses.replace(question, condition=need))
            return
        names = " and ".join(dims_.name_of(s) for s in symbols)
        if names in self.problems:  # said once; a hint about the next condition takes long to find
            return
        tie = next((s for s in symbols if self.is_tied(s)), None)
        if tie is not None:
            other = dims_.format_dim(self._env.replace(tie))
            fix = f'declare that dim as "{other}" instead of "{dims_.name_of(tie)}"'
        elif multiple := next(((s, step) for s in symbols if (step := _divisor(condition, s))), None):
            name, step = dims_.name_of(multiple[0]), multiple[1]
            fix = f'declare {name} as a multiple: "{step}*{name}_{step}"'
        elif len(symbols) == 1:
            fix = f"make the line independent of the size, or leave {names} out of dynamic_shapes"
        else:
            fix = "declare one of them through the other, or leave it out of dynamic_shapes"
        self.problems[names] = format_error(
            f"The dynamic dims are not free: {names} must satisfy {dims_.format_dim(condition)}.",
            where=place,
            fix=fix,
        )

    def _find_sufficient_bounds(self, condition: sympy.Basic) -> tuple[sympy.Basic, ...] | None:
        """Inequalities from which the condition follows: those by which its min and max are what they are in the trace.

        A condition such as min(63, n)**2 % n == 0 holds for n <= 63, and beyond for a few sizes, by chance.
        """
        ranges = self._value_ranges(0)
        resolved, needs = resolve_extremes(condition, {s: root.hint for s, root in self.roots.items()}, ranges)
        return needs if needs and simplify_condition(resolved, ranges) == sympy.true else None

    def _report_frozen(self, symbol: sympy.Symbol, value: int, place: str) -> None:
        root = self.roots[symbol]
        if root.auto and not root.must_vary:
            self.resolved.setdefault(root.name, None)
            return
        self.problems.setdefault(
            root.name,
            format_error(
                f"The dim {root.name} ({root.where}) is declared dynamic, but this model works for size {value} only.",
                where=place,
                why="that line needs the size as a plain number, or compares it with one",
                fix=f"make the line independent of the size, or leave {root.name} out of dynamic_shapes",
            ),
        )

    def _narrow(self, condition: sympy.Basic, symbol: sympy.Symbol, question: Guard) -> None:
        root = self.roots[symbol]
        low, high = self._find_feasible_interval(condition, symbol, root.hint)
        old_low, old_high = self.ranges[symbol]
        scattered = self._holds_beyond(condition, symbol, low, high)
        if low == high and (old_low, old_high) != (low, high) and not scattered:
            self._report_frozen(symbol, low, _place(question.source))
            return
        low, high = max(low, old_low), old_high if high is None else (high if old_high is None else min(high, old_high))
        # A lower bound of 0 is torch.export.Dim's default: it lets empty tensors in, and promises nothing.
        excluded_low, excluded_high = low > old_low and bool(root.low), high != old_high and root.high is not None
        if scattered and not (root.low or root.high):
            self._constrain(condition, question)
            return
        if excluded_low or excluded_high:
            wanted = "another range" if scattered else f"min={low}" if excluded_low else f"max={high}"
            self.problems.setdefault(
                f"{root.name} {wanted}",
                format_error(
                    f"The dim {root.name} ({root.where}) is declared in [{root.range[0]}, {root.range[1]}], but this "
                    f"trace holds for {dims_.format_dim(condition)} only.",
                    where=_place(question.source),
                    why=f"{question.refused_by} fails, or returns another shape, at the other sizes"
                    if question.refused_by
                    else "the model's code takes another path for the other sizes",
                    fix=f"declare {wanted}, or make the line independent of the size",
                ),
            )
            return
        self.ranges[symbol] = (low, high)
        if (low, high) != (old_low, old_high) or not self._is_proved(condition, 2 if question.by_operator else 0):
            self._constrain(condition, question)  # the range says it already; the constraint says whose line it was

    def _constrain(self, condition: sympy.Basic, question: Guard) -> None:
        self.constraints.setdefault(condition, Constraint(condition, str(question.source or "")))

    def _simplify(self, condition: sympy.Basic) -> sympy.Basic:
        """The condition in a form that speaks of fewer dims, if there is one."""
        simpler = simplify_condition(condition, self._value_ranges(0))
        return simpler if len(simpler.free_symbols) < len(condition.free_symbols) else condition

    def _is_proved(self, condition: sympy.Basic, at_least: int) -> bool:
        bound = internals.bound_sympy(condition, self._value_ranges(at_least))
        return bool(bound.is_singleton() and bound.lower == sympy.true)

    def _value_ranges(self, at_least: int) -> dict[sympy.Symbol, Any]:
        return {
            s: internals.ValueRanges(
                max(low, at_least if high is None or high >= at_least else low),
                internals.int_oo if high is None else high,
            )
            for s, (low, high) in self.ranges.items()
        }

    def _find_feasible_interval(
        self, condition: sympy.Basic, symbol: sympy.Symbol, hint: int
    ) -> tuple[int, int | None]:
        """The interval of sizes around the example for which the condition holds."""

        def fits(size: int) -> bool:
            return holds(condition, {symbol: size})

        floor, ceiling = self.ranges[symbol]
        low = hint
        while low > floor and fits(low - 1):
            low -= 1
        step, high = 1, hint
        top = 2**40 if ceiling is None else ceiling
        near = min(hint + _PERIODS, top)
        while high < near and fits(high + 1):  # a remainder comes back to its value: what is far says little of it
            high += 1
        if high < near:
            return low, high
        while high < top and fits(min(high + step, top)):
            high = min(high + step, top)
            step *= 2
        if high >= top:
            return low, ceiling
        good, bad = high, min(high + step, top)
        while bad - good > 1:
            middle = (good + bad) // 2
            good, bad = (middle, bad) if fits(middle) else (good, middle)
        return low, good

    def _holds_beyond(self, condition: sympy.Basic, symbol: sympy.Symbol, low: int, high: int | None) -> bool:
        """Whether the condition holds at sizes outside an interval too, so that no interval describes it."""
        if high is None:
            return False
        floor, ceiling = self.ranges[symbol]
        top = high + _PERIODS if ceiling is None else min(ceiling, high + _PERIODS)
        sizes = [*range(floor, low), *range(high + 1, top + 1)]
        return any(holds(condition, {symbol: size}) for size in sizes)

    def _holds_in_an_interval(self, condition: sympy.Basic, symbol: sympy.Symbol, by_operator: bool) -> bool:
        """Whether an equality holds for several sizes next to each other, and no others.

        They reach to one end of the range, unless an operator asks, as for how many parts it returns: a number that
        Python asks for may be symbolic in another trace.
        """
        if self.is_tied(symbol):
            return False
        low, high = self._find_feasible_interval(condition, symbol, self.roots[symbol].hint)
        floor, ceiling = self.ranges[symbol]
        reaches = by_operator or low <= floor or high == ceiling
        return low != high and reaches and not self._holds_beyond(condition, symbol, low, high)

    def _holds_everywhere(self, condition: sympy.Basic, at_least: int | None) -> bool:
        """Whether a condition that could not be proved holds at every size, from `at_least` on, that was tried.

        Without `at_least`, from the sizes of the trace on.
        """
        symbols = list(condition.free_symbols)
        for _ in range(32):
            sizes = {}
            for s in symbols:
                low, high = self.ranges[s]
                least = self.roots[s].hint if at_least is None else at_least
                low = max(low, least if high is None else min(least, high))
                sizes[s] = self._random.randint(low, max(low, 4 * self.roots[s].hint + 64) if high is None else high)
            if not holds(condition, sizes):
                return False
        return True


def _divisor(condition: sympy.Basic, symbol: sympy.Symbol) -> int | None:
    """The step of a condition such as seq % 8 == 0, whatever the other sizes in it."""
    others = [dict.fromkeys(condition.free_symbols - {symbol}, size) for size in (7, 11, 24)]
    for step in range(2, 257):
        sizes = ({**other, symbol: size} for size in range(step, 6 * step) for other in others)
        if all(holds(condition, at) == (at[symbol] % step == 0) for at in sizes):
            return step
    return None


def _place(source: Source | None) -> str:
    if source is None:
        return ""
    return f"{source}" + (f": {source.text}" if source.text else "")
