"""Symbols of sizes and the environment that knows about them."""

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
import torch
from sympy.core.relational import Relational
from sympy.logic.boolalg import BooleanFunction
from torch._guards import Source as GuardSource
from torch.fx.experimental import symbolic_shapes as _symbolic_shapes
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    ShapeGuard,
    SLoc,
    StrictMinMaxConstraint,
    free_unbacked_symbols,
)
from torch.utils._sympy import functions as sympy_functions
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.symbol import SymT, symbol_is_type
from torch.utils._sympy.value_ranges import ValueRanges
from torch.utils._traceback import CapturedTraceback

from ingot.torch_internals.monkeypatches import patch_attributes

sym_sqrt: Callable[..., Any] = torch._sym_sqrt  # type: ignore[attr-defined]


sym_log2: Callable[..., Any] = torch._sym_log2  # type: ignore[attr-defined]


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
    """A shape environment that reports every symbolic expression whose value is asked for.

    Where `may_be_idle()`, `is_idle(expr, value)` says of a question whether the trace does not hang on the answer: then
    it is answered, and only `on_idle(expr, value)` hears of it. Callbacks return before torch evaluates, so that none
    of their frames stands between torch and the user's.
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
        """Inside, each condition that a run-time check asks for is reported at once, unless it is known to hold."""
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
    """Whether a frame asks for a truth without which an assert statement fails."""
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


class NamedSource(GuardSource):
    """Where a symbol comes from, for torch's own messages: the user's argument and dim."""

    def __init__(self, text: str) -> None:
        object.__setattr__(self, "text", text)

    @property
    def _name_template(self) -> str:
        return str(self.text)  # type: ignore[attr-defined]

    @property
    def name(self) -> str:
        return str(self.text)  # type: ignore[attr-defined]

    @property
    def guard_source(self) -> Any:
        from torch._guards import GuardSource as Kind

        return Kind.CONSTANT

    def __hash__(self) -> int:
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NamedSource) and self.name == other.name


def new_symbol(env: ShapeEnv, name: str, hint: int, low: int, high: int | None) -> sympy.Symbol:
    """A size symbol with its range; `high` None is no bound."""
    ranged = ValueRanges(low, int_oo if high is None else high)
    symbol = env.create_symbol(
        hint,
        NamedSource(name),
        dynamic_dim=DimDynamic.DYNAMIC,
        constraint_dim=StrictMinMaxConstraint(vr=ranged, warn_only=False),
        positive=True if low > 0 else None,
        do_not_specialize_zero_one=True,
    )
    assert isinstance(symbol, sympy.Symbol)
    return symbol


def symint(env: ShapeEnv, expr: sympy.Expr) -> int | torch.SymInt:
    """The SymInt of an expression, or the int where it is one."""
    if expr.is_number:
        return int(expr)
    out: int | torch.SymInt = env.create_symintnode(expr, hint=None)
    return out


def may_be_negative(value: torch.SymInt, symbol: sympy.Symbol) -> bool:
    """Whether a symbol of this number is one that only the run tells, and nothing says that it is 0 or more."""
    if not symbol_is_type(symbol, SymT.UNBACKED_INT):
        return False
    known = value.node.shape_env.var_to_range.get(symbol)
    return known is None or bool(known.lower < 0)


def symbolic_value(env: ShapeEnv, expr: sympy.Basic) -> Any:
    """The SymInt, SymFloat or SymBool of an expression."""
    if expr.is_number or expr in (sympy.true, sympy.false):
        return bool(expr) if expr in (sympy.true, sympy.false) else (int(expr) if expr.is_integer else float(expr))
    if isinstance(expr, sympy.logic.boolalg.Boolean) and not isinstance(expr, sympy.Symbol):  # which is one too
        return env.create_symboolnode(expr)
    if expr.is_integer:
        return env.create_symintnode(expr, hint=None)
    return env.create_symfloatnode(expr, hint=None)


def expr_of(value: Any) -> sympy.Expr:
    """The expression behind a SymInt, SymFloat or SymBool, or of a plain number."""
    if is_symbolic(value):
        return value.node.expr
    if isinstance(value, bool):
        return sympy.true if value else sympy.false
    return sympy.sympify(value)


def is_symbolic(value: Any) -> bool:
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)


def expr_to_check(value: Any) -> sympy.Basic:
    """The expression of a value as a run-time check must compute it.

    A number that only the run tells is its own symbol, and a condition is what was asked, also where a check says what
    the number is equal to or that the condition holds: that check is yet to be made.
    """
    expr = value.node._expr
    if isinstance(value, torch.SymBool):
        return expr if value.node.expr in (sympy.true, sympy.false) else value.node.expr
    return expr if isinstance(expr, sympy.Symbol) and is_unbacked(expr) else value.node.expr


def is_unbacked(symbol: sympy.Symbol) -> bool:
    return bool(free_unbacked_symbols(symbol))


def ignore_fresh_symbols(env: ShapeEnv) -> contextlib.AbstractContextManager[None]:
    return env.ignore_fresh_unbacked_symbols()


def pending_symbols(env: ShapeEnv) -> list[sympy.Symbol]:
    return env.pending_fresh_unbacked_symbols


def rename_symbol(env: ShapeEnv, fresh: sympy.Symbol, known: sympy.Symbol) -> None:
    """From now on a symbol that a run just made is another name of a known one, with all that is known of that."""
    env._rename_unbacked_to(fresh, known)


@contextlib.contextmanager
def scope_checks(env: ShapeEnv) -> Iterator[None]:
    """What run-time checks inside say about numbers that only the run tells is forgotten afterwards.

    A branch may not run, and then its checks say nothing about what follows it.
    """
    ranges = {s: r for s, r in env.var_to_range.items() if is_unbacked(s)}
    replaced = {s: env.replacements.get(s) for s in ranges}
    asserts = {s: len(found) for s, found in env.deferred_runtime_asserts.items()}
    axioms = dict(env.axioms)
    count = env.num_deferred_runtime_asserts
    try:
        yield
    finally:
        if env.num_deferred_runtime_asserts != count:
            for symbol, found in list(env.deferred_runtime_asserts.items()):
                del found[asserts.get(symbol, 0) :]
            env.num_deferred_runtime_asserts = count
            env.axioms.clear()
            env.axioms.update(axioms)
            env.var_to_range.update(ranges)
            for symbol, value in replaced.items():
                if value is None:
                    env.replacements.pop(symbol, None)
                else:
                    env.replacements[symbol] = value
            _count_replacement(env)
            for method in vars(ShapeEnv).values():
                if hasattr(method, "cache_clear"):
                    method.cache_clear()


@contextlib.contextmanager
def nothing_learned(env: ShapeEnv | None) -> Iterator[None]:
    """Inside, calls on fakes add no guard, no assertion and no pending symbol to the environment."""
    if env is None:
        yield
        return
    with env.suppress_guards(), env.ignore_fresh_unbacked_symbols():
        yield


@contextlib.contextmanager
def questions_unwatched(env: ShapeEnv) -> Iterator[None]:
    """Inside, questions about sizes are answered by the example; no guard and no watcher hears of them."""
    watched = isinstance(env, WatchedShapeEnv)
    with patch_attributes(env, unwatched=True) if watched else contextlib.nullcontext(), env.suppress_guards():
        yield


def surely_equal(env: ShapeEnv | None, a: sympy.Basic, b: sympy.Basic) -> bool:
    """Whether two sizes are the same number, by all that the environment knows of their symbols."""
    if env is None or a == b:
        return bool(a == b)
    a, b = (_resolve_extremes(env, env.simplify(expr)) for expr in (a, b))
    if isinstance(a, sympy.logic.boolalg.Boolean) or isinstance(b, sympy.logic.boolalg.Boolean):
        # 2 <= n and n >= 2 are two expressions to sympy.
        return bool(_canonicalize_relations(a) == _canonicalize_relations(b))
    return bool(a == b or env._maybe_evaluate_static(sympy.Eq(a, b)) == sympy.true)


def _resolve_extremes(env: ShapeEnv, expr: sympy.Basic) -> sympy.Basic:
    """The expression with each Min and Max that is the same argument for all sizes replaced by that argument."""

    def resolve(extreme: sympy.Basic) -> sympy.Basic:
        relation = sympy.Le if isinstance(extreme, sympy_functions.Min | sympy.Min) else sympy.Ge
        for chosen in extreme.args:
            others = [other for other in extreme.args if other is not chosen]
            if all(env._maybe_evaluate_static(relation(chosen, other)) == sympy.true for other in others):
                return chosen
        return extreme

    extremes = (sympy_functions.Min, sympy_functions.Max, sympy.Min, sympy.Max)
    return expr.replace(lambda part: isinstance(part, extremes), resolve) if expr.has(*extremes) else expr


def _canonicalize_relations(expr: sympy.Basic) -> sympy.Basic:
    return expr.replace(lambda e: isinstance(e, sympy.core.relational.Relational), lambda e: e.canonical)


def portable_expr_of(value: Any) -> sympy.Expr:
    """The expression of a symbolic value, in symbols that another environment may adopt.

    A size that was found to be equal to something is that. A number known only at run time stays its own symbol, since
    a node makes it known by that name.
    """
    expr, env = value.node._expr, value.node.shape_env
    return expr.xreplace({s: env._find(s) for s in expr.free_symbols if not is_unbacked(s)})


def adopt_symbol(env: ShapeEnv, symbol: sympy.Symbol, origin: ShapeEnv) -> sympy.Basic | None:
    """Makes a symbol of one environment, with its range and example value, known to another.

    Returns what the symbol was found to be equal to, if it was.
    """
    hint = origin.backed_var_to_val.get(symbol)
    if hint is not None:
        env.backed_var_to_val[symbol] = hint
    elif symbol.name[-1:].isdigit():
        # A symbol that only a run makes known: the next one that is made must not get its name.
        number = int("".join(filter(str.isdigit, symbol.name))) + 1
        env.unbacked_symint_counter = max(env.unbacked_symint_counter, number)
        env.unbacked_symfloat_counter = max(env.unbacked_symfloat_counter, number)
    found = origin.var_to_range.get(symbol, ValueRanges.unknown_int())
    env.var_to_stack[symbol] = CapturedTraceback.extract()
    env.constrain_symbol_range(symbol, found.lower, found.upper)
    equal = origin._find(symbol)
    if equal == symbol:
        return None
    env.replacements[symbol] = equal
    _count_replacement(env)
    return equal


def _count_replacement(env: ShapeEnv) -> None:
    """Makes the caches of `env` notice that its replacements changed."""
    if hasattr(env, "_replacements_version_counter"):  # from torch 2.12 on; before, the other counter is all there is
        env._replacements_version_counter += 1
    env._update_version_counter()


def is_replaced(env: ShapeEnv, symbol: sympy.Symbol) -> bool:
    return symbol in env.replacements


_QUESTIONS = (Relational, BooleanFunction)  # a symbol, to sympy, may be a bool as well


class FixedSize(Exception):
    """What is to hold for all sizes would be made for that of the example."""

    def __init__(self, expr: sympy.Basic) -> None:
        super().__init__(f"the size {expr} would be fixed to that of the example")
        self.expr = expr


@contextlib.contextmanager
def guards_suppressed(env: ShapeEnv) -> Iterator[None]:
    """Inside, questions about sizes are answered by the example and leave no trace.

    To ask for the number itself is an error, FixedSize, unless it is the same for all sizes.
    """
    usual = env.evaluate_expr

    def evaluate(expr: sympy.Basic, *args: Any, **kwargs: Any) -> sympy.Basic:
        if not isinstance(expr, _QUESTIONS) and expr.free_symbols and env._maybe_evaluate_static(expr) is None:
            raise FixedSize(expr)
        return usual(expr, *args, **kwargs)

    with patch_attributes(env, evaluate_expr=evaluate), env.suppress_guards():
        yield


def bounds(found: ValueRanges[Any]) -> tuple[int, int | None]:
    """The least and greatest number of a range; None is no bound above."""
    low = int(found.lower) if found.lower.is_Integer else -(2**63)
    return low, int(found.upper) if found.upper.is_Integer else None


def range_of(size: torch.SymInt) -> tuple[int, int | None]:
    """The least and greatest number that a symbol may be; None is no bound above."""
    return bounds(size.node.shape_env.var_to_range[size.node.expr])


def narrow(env: ShapeEnv, symbol: sympy.Symbol, low: int, high: int | None) -> None:
    env.var_to_range[symbol] = ValueRanges(low, int_oo if high is None else high)


def declare_guards(env: ShapeEnv, sources: Mapping[sympy.Symbol, str], guards: Iterable[sympy.Basic]) -> None:
    """The conditions, and no others, that torch.export checks at each call; `sources` is where it finds a symbol."""
    for symbol, text in sources.items():
        env.var_to_sources[symbol] = [NamedSource(text)]
    env.guards = [ShapeGuard(guard, SLoc("", ""), size_oblivious=False) for guard in guards]
