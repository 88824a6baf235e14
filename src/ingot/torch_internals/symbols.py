"""Size symbols, their expressions, and context managers around shape environments."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import sympy
import torch
from sympy.core.relational import Relational
from sympy.logic.boolalg import BooleanFunction
from torch._guards import Source as GuardSource
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
    """A size symbol with its range; `high` is None if it is unbounded."""
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
    """Whether a symbol of this number is unbacked and not known to be 0 or more."""
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

    An unbacked number is its own symbol, and a condition is what was asked, also where a check says what
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
    """What run-time checks inside say about unbacked numbers is forgotten afterwards.

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
def discard_guards(env: ShapeEnv | None) -> Iterator[None]:
    """Inside, calls on fakes add no guard, no assertion and no pending symbol to the environment."""
    if env is None:
        yield
        return
    with env.suppress_guards(), env.ignore_fresh_unbacked_symbols():
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
        # An unbacked symbol: the next one that is created must not get its name.
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
def suppress_size_guards(env: ShapeEnv) -> Iterator[None]:
    """Inside, questions about sizes are answered by the example and leave no trace.

    To read the number itself is an error, FixedSize, unless it is the same for all sizes.
    """
    usual = env.evaluate_expr

    def evaluate(expr: sympy.Basic, *args: Any, **kwargs: Any) -> sympy.Basic:
        if not isinstance(expr, _QUESTIONS) and expr.free_symbols and env._maybe_evaluate_static(expr) is None:
            raise FixedSize(expr)
        return usual(expr, *args, **kwargs)

    with patch_attributes(env, evaluate_expr=evaluate), env.suppress_guards():
        yield


def bounds(found: ValueRanges[Any]) -> tuple[int, int | None]:
    """The least and greatest number of a range; None if it is unbounded above."""
    low = int(found.lower) if found.lower.is_Integer else -(2**63)
    return low, int(found.upper) if found.upper.is_Integer else None


def range_of(size: torch.SymInt) -> tuple[int, int | None]:
    """The least and greatest number that a symbol may be; None if it is unbounded above."""
    return bounds(size.node.shape_env.var_to_range[size.node.expr])


def narrow(env: ShapeEnv, symbol: sympy.Symbol, low: int, high: int | None) -> None:
    env.var_to_range[symbol] = ValueRanges(low, int_oo if high is None else high)


def declare_guards(env: ShapeEnv, sources: Mapping[sympy.Symbol, str], guards: Iterable[sympy.Basic]) -> None:
    """The conditions, and no others, that torch.export checks at each call; `sources` is where it finds a symbol."""
    for symbol, text in sources.items():
        env.var_to_sources[symbol] = [NamedSource(text)]
    env.guards = [ShapeGuard(guard, SLoc("", ""), size_oblivious=False) for guard in guards]
