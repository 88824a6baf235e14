"""What a file stores of torch's symbols, and how they are restored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import (
    CallMethodKey,
    ConvertIntKey,
    DimDynamic,
    DivideByKey,
    ShapeEnv,
    StrictMinMaxConstraint,
)
from torch.utils import _pytree
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges

from ingot.torch_internals.shape_env import ProgramShapeEnv
from ingot.torch_internals.symbols import NamedSource, ignore_fresh_symbols


class RestoredShapeEnv(ProgramShapeEnv):
    """A shape environment for symbols that come from a file, under the names they had."""

    sealed = True

    def __init__(self) -> None:
        super().__init__(duck_shape=False, specialize_zero_one=False)

    def _generate_unique_id(self, source_name: str) -> Any:
        return source_name


@dataclass(frozen=True, slots=True)
class SymbolFacts:
    """What a shape environment knows of a symbol; None means unbounded, or no hint for a data-dependent symbol."""

    name: str
    hint: int | None
    low: int | None
    high: int | None
    positive: bool = False
    size_like: bool = False


def symbol_facts(env: ShapeEnv, symbol: sympy.Symbol) -> SymbolFacts:
    hints = env.backed_var_to_val if hasattr(env, "backed_var_to_val") else env.var_to_val
    ranged = env.var_to_range.get(symbol)
    bounds = (None, None) if ranged is None else (ranged.lower, ranged.upper)
    low, high = (int(b) if isinstance(b, int | sympy.Integer) else None for b in bounds)
    hint = hints.get(symbol)
    return SymbolFacts(
        symbol.name, None if hint is None else int(hint), low, high, bool(symbol.is_positive), symbol in env.size_like
    )


def restore_symbol(env: RestoredShapeEnv, facts: SymbolFacts) -> sympy.Symbol:
    """Restores the symbol that `symbol_facts` described. Unbacked symbols come in the order of their names.

    Raises ValueError for a name that torch would not give, or a range that the hint is not in.
    """
    kind, number = facts.name.rstrip("0123456789"), facts.name.lstrip("abcdefghijklmnopqrstuvwxyz")
    ranged = ValueRanges(-int_oo if facts.low is None else facts.low, int_oo if facts.high is None else facts.high)
    if facts.hint is None:
        if kind not in ("u", "zuf") or len(number) > 9:
            raise ValueError(f"{facts.name} is not the name of a data-dependent number")
        with ignore_fresh_symbols(env):
            if kind == "zuf":
                env.unbacked_symfloat_counter = int(number)
                return env.create_unbacked_symfloat().node.expr
            env.unbacked_symint_counter = int(number)
            symbol = env.create_unbacked_symint().node.expr
        env.var_to_range[symbol] = ranged
        if facts.size_like:
            env.size_like.add(symbol)
        return symbol
    if not facts.name.startswith("s") or facts.hint not in ranged or facts.low == facts.high:
        raise ValueError(f"{facts.name} = {facts.hint} in {ranged} is not a dynamic size")
    return env.create_symbol(
        facts.hint,
        NamedSource(facts.name[1:]),
        dynamic_dim=DimDynamic.DYNAMIC,
        constraint_dim=StrictMinMaxConstraint(vr=ranged, warn_only=False),
        positive=True if facts.positive else None,
        do_not_specialize_zero_one=True,
    )


def symbolic_of_kind(env: ShapeEnv, expr: sympy.Basic, kind: type) -> Any:
    """The SymInt, SymFloat or SymBool of an expression, also where it is a number by now."""
    wrap = {int: torch.SymInt, float: torch.SymFloat, bool: torch.SymBool}[kind]
    return wrap(SymNode(expr, env, kind, None))


def binding_steps(path: Sequence[Any]) -> list[tuple[str, str | int]] | None:
    """Where in a node's value a symbol becomes known, as plain data; None where a step is of a kind we do not know."""
    steps: list[tuple[str, str | int]] = []
    for key in path:
        match key:
            case CallMethodKey(name=("size" | "stride" | "storage_offset") as name):
                steps.append(("call", name))
            case _pytree.SequenceKey(idx=int(index)):
                steps.append(("item", index))
            case DivideByKey(divisor=int(divisor)):
                steps.append(("divide", divisor))
            case ConvertIntKey():
                steps.append(("int", 0))
            case _:
                return None
    return steps


def binding_path(steps: Sequence[tuple[str, Any]]) -> tuple[Any, ...]:
    """The reverse of `binding_steps`, for steps that are of its kinds."""
    makers: dict[str, Callable[[Any], Any]] = {
        "call": CallMethodKey,
        "item": _pytree.SequenceKey,
        "divide": DivideByKey,
        "int": lambda _: ConvertIntKey(),
    }
    return tuple(makers[kind](value) for kind, value in steps)
