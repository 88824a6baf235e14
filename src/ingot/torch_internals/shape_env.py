"""Shape environments: what torch knows about sizes, for a thread, for a program, and for a capture with guards."""

from __future__ import annotations

import contextlib
import dis
import inspect
import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FrameType
from typing import Any

import sympy
from torch.fx.experimental import symbolic_shapes as _symbolic_shapes
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges

from ingot.torch_internals.monkeypatches import patch_attributes
from ingot.torch_internals.symbols import bounds, is_unbacked

# torch caches the answers by the expression alone, also those that it gave while guards were suppressed.
_check_at_run_time: Callable[..., bool] = inspect.unwrap(
    ShapeEnv.guard_or_defer_runtime_assert, stop=lambda f: not hasattr(f, "cache_clear")
)


_LARGE = 1 << 20  # a size that stands for any, where a dim has no bound


# torch's caches of what environments answered are cleared when the one that asks has another version than the last one
# that asked. With versions that no two environments share, an answer that a thread computes while another thread's
# environment clears the cache is never taken for a later version's.
_versions = itertools.count(1 << 32)


class OwnShapeEnv(ShapeEnv):
    """torch's, for use in one of several threads."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._version_counter = next(_versions)

    def _update_version_counter(self) -> None:
        before = self._version_counter
        super()._update_version_counter()
        if self._version_counter != before:
            self._version_counter = next(_versions)


class ProgramShapeEnv(OwnShapeEnv):
    """The shape environment of a Program.

    Once it is sealed, a question about sizes teaches it nothing: which sizes a program covers was decided when it was
    captured, and what it knows of them decides how large a slice is. A question whose answer depends on the sizes is
    answered for sizes in general, not for those of the example, which may happen to be 1 where others are not.
    """

    sealed = False
    _conditions: tuple[sympy.Basic, ...] = ()
    _sizes: list[dict[sympy.Symbol, int]] | None = None
    _answers: dict[sympy.Basic, sympy.Basic | None] | None = None

    def seal(self, conditions: Iterable[sympy.Basic] = ()) -> None:
        """From now on nothing is learned. `conditions` are what the program asks of its sizes beyond their ranges."""
        self.sealed = True
        self._conditions = tuple(conditions)
        self._sizes = self._answers = None

    def evaluate_expr(self, orig_expr: sympy.Basic, *args: Any, **kwargs: Any) -> sympy.Basic:
        if not self.sealed:
            return ShapeEnv.evaluate_expr(self, orig_expr, *args, **kwargs)
        if orig_expr.is_Relational or orig_expr.is_Boolean:
            known = self._answers = {} if self._answers is None else self._answers
            if orig_expr not in known:
                known[orig_expr] = self._answer_in_general(orig_expr)
            answer = known[orig_expr]
            if answer is not None:
                return answer
        with self.suppress_guards():
            return ShapeEnv.evaluate_expr(self, orig_expr, *args, **kwargs)

    def _answer_in_general(self, expr: sympy.Basic) -> sympy.Basic | None:
        """Whether a condition holds for sizes in general; None where that is known, or no other sizes are.

        Sizes that are equal for some sizes only are not equal in general.
        """
        symbols = expr.free_symbols
        if not symbols or self._maybe_evaluate_static(expr) is not None:
            return None
        if self._sizes is None or not all(symbols <= sizes.keys() for sizes in self._sizes):
            known = set().union(*(sizes.keys() for sizes in self._sizes or ()))
            self._sizes = self._choose_sizes(symbols | known)
        if len(self._sizes) < 2 or not symbols <= self._sizes[0].keys():
            return None
        found = [expr.xreplace({s: sympy.Integer(sizes[s]) for s in symbols}) for sizes in self._sizes]
        if not all(answer in (sympy.true, sympy.false) for answer in found):
            return None
        if isinstance(expr, sympy.Eq | sympy.Ne) and len(set(found)) == 2:
            return sympy.false if isinstance(expr, sympy.Eq) else sympy.true
        return found[1]

    def _choose_sizes(self, symbols: set[sympy.Symbol]) -> list[dict[sympy.Symbol, int]]:
        """The example's sizes, and others that the ranges and conditions allow: first multiples of it, since what
        divides it divides them."""
        hints = self.backed_var_to_val if hasattr(self, "backed_var_to_val") else self.var_to_val
        for condition in self._conditions:
            symbols = symbols | condition.free_symbols
        example = {symbol: int(hints[symbol]) for symbol in symbols if symbol in hints}
        choices = {symbol: self._other_sizes(symbol, size) for symbol, size in example.items()}
        found = [example]
        for number in range(min(map(len, choices.values()), default=0)):
            sizes = {symbol: others[number] for symbol, others in choices.items()}
            if sizes not in found and self._allows(sizes):
                found.append(sizes)
        return found

    def _other_sizes(self, symbol: sympy.Symbol, size: int) -> list[int]:
        """Sizes to try for a symbol, the best first; the example's where one is out of range."""
        low, high = bounds(self.var_to_range.get(symbol, ValueRanges(0, int_oo)))
        least, most = max(low, 0), _LARGE if high is None else min(high, _LARGE)
        base = size if size > 1 else 11  # 0 and 1 are the sizes in doubt, and have no multiples that are not
        tried = (*(k * base for k in (7, 5, 3, 2)), *(most - k for k in range(4)), *(least + k for k in (4, 3, 2, 1)))
        return [other if least <= other <= most else size for other in tried]

    def _allows(self, sizes: Mapping[sympy.Symbol, int]) -> bool:
        given = {symbol: sympy.Integer(size) for symbol, size in sizes.items()}
        return all(condition.xreplace(given) in (sympy.true, True) for condition in self._conditions)


class WatchedShapeEnv(ProgramShapeEnv):
    """A shape environment that reports every symbolic expression whose value is requested.

    Where `may_be_idle()`, `is_idle(expr, value)` says whether the trace is independent of the answer to a question:
    then it is answered, and only `on_idle(expr, value)` is called. Callbacks return before torch evaluates, so that
    none of their frames stands between torch and the user's.
    """

    def __init__(
        self,
        on_evaluate: Callable[[sympy.Basic, sympy.Basic], None],
        may_be_idle: Callable[[], bool],
        is_idle: Callable[[sympy.Basic, sympy.Basic], bool],
        on_idle: Callable[[sympy.Basic, sympy.Basic], None],
    ) -> None:
        # trace_asserts: an assert statement on a value known only at run time becomes an assertion in the graph.
        super().__init__(duck_shape=False, specialize_zero_one=False, trace_asserts=True)
        self._on_evaluate = on_evaluate
        self._may_be_idle = may_be_idle
        self._is_idle = is_idle
        self._on_idle = on_idle
        self._on_check: Callable[[sympy.Basic], None] | None = None
        self.idle_answers: dict[sympy.Basic, sympy.Basic] = {}
        self.unwatched = False

    def evaluate_expr(self, orig_expr: sympy.Basic, *args: Any, **kwargs: Any) -> sympy.Basic:
        if self.sealed:
            return ProgramShapeEnv.evaluate_expr(self, orig_expr, *args, **kwargs)
        symbols = orig_expr.free_symbols
        if not symbols or self.unwatched:
            return ShapeEnv.evaluate_expr(self, orig_expr, *args, **kwargs)
        if self._may_be_idle() and not any(is_unbacked(symbol) for symbol in symbols):
            known = self.idle_answers.get(orig_expr)
            if known is None:
                with self.suppress_guards():
                    value = ShapeEnv.evaluate_expr(self, orig_expr, *args, **kwargs)
            if known is not None or self._is_idle(orig_expr, value):
                value = value if known is None else known
                self._on_idle(orig_expr, value)
                return value
        value = ShapeEnv.evaluate_expr(self, orig_expr, *args, **kwargs)
        self._on_evaluate(orig_expr, value)
        return value

    # torch looks for the user's frame by file name, to see whether it stands at an assert: this is not that frame.
    evaluate_expr.__code__ = evaluate_expr.__code__.replace(co_filename=_symbolic_shapes.__file__)

    def guard_or_defer_runtime_assert(  # type: ignore[override]
        self, orig_expr: Any, msg: str, fx_node: Any = None
    ) -> bool:
        before = self.num_deferred_runtime_asserts
        holds = _check_at_run_time(self, orig_expr, msg, fx_node)
        if self._on_check is not None and self.num_deferred_runtime_asserts > before:
            self._on_check(orig_expr)
        return holds

    @contextlib.contextmanager
    def report_checks(self, on_check: Callable[[sympy.Basic], None]) -> Iterator[None]:
        """Inside, each condition of a run-time check is reported at once, unless it is known to hold."""
        self._on_check = on_check
        try:
            yield
        finally:
            self._on_check = None

    def _is_python_assert(self) -> bool:
        # torch knows an assert statement without a message, whose condition is a single comparison.
        frame = self._get_user_frame()
        return frame is not None and _decides_assertion(frame)

    _is_python_assert.__code__ = _is_python_assert.__code__.replace(co_filename=_symbolic_shapes.__file__)

    def _generate_unique_id(self, source_name: str) -> Any:
        # torch numbers its symbols by a hash of where they come from; ours carry the dim's name, so that they can be
        # read and are the same in every process.
        return f"_{source_name}"


def _decides_assertion(frame: FrameType) -> bool:
    """Whether a frame evaluates the condition of an assert statement."""
    instructions = list(dis.get_instructions(frame.f_code))
    by_offset = {each.offset: index for index, each in enumerate(instructions)}
    index = bisect_right(list(by_offset), frame.f_lasti) - 1
    while instructions[index].opname in ("COMPARE_OP", "TO_BOOL"):  # from Python 3.13 on they ask, and not the jump
        index += 1
    jump = instructions[index]
    if not jump.opname.startswith("POP_JUMP") or "NONE" in jump.opname:
        return False
    failing = index + 1 if "TRUE" in jump.opname else by_offset[jump.argval]
    while instructions[failing].opname in ("NOT_TAKEN", "NOP", "POP_TOP", "JUMP_FORWARD"):
        here = instructions[failing]
        failing = by_offset[here.argval] if here.opname == "JUMP_FORWARD" else failing + 1
    found = instructions[failing]
    return found.opname == "LOAD_ASSERTION_ERROR" or (
        found.opname == "LOAD_COMMON_CONSTANT" and "AssertionError" in str(found.argrepr)
    )


@contextlib.contextmanager
def suspend_watching(env: ShapeEnv) -> Iterator[None]:
    """Inside, questions about sizes are answered by the example; no guard and no watcher hears of them."""
    watched = isinstance(env, WatchedShapeEnv)
    with patch_attributes(env, unwatched=True) if watched else contextlib.nullcontext(), env.suppress_guards():
        yield
