"""`check="numerics"`: whether a pass kept what a program computes, and if not, which node is to blame.

A program is run before and after a pass on its example inputs and on inputs of other sizes within its dims' ranges, in
its own dtypes and in float64. Results, and state and arguments that it writes, must agree: bit for bit after a pass
that only moves things around, within rounding otherwise. On a difference both are run again node by node; the first
node whose value differs although its inputs agree is named.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from ingot.errors import NumericsError
from ingot.ir import execution, metadata, pytree
from ingot.ir.outlining import graph_modules
from ingot.ir.program import Program
from ingot.passes.cse import key_of
from ingot.passes.instrumentation.blame import blame_node
from ingot.passes.instrumentation.float64_conversion import (
    NARROW,
    cast_value,
    convert_to_float64,
    default_to_float64,
    recast_program,
    widen_value,
)
from ingot.passes.instrumentation.input_generation import generate_inputs
from ingot.passes.instrumentation.state_copies import SEED, clone_tensors, copy_state
from ingot.passes.instrumentation.value_comparison import TOLERANCE, compare_values
from ingot.passes.manager import PassInfo

_DRAWS = 8
# How much finer the roundings of float64 are than those of float32.
_FINER = 2.0**-29


class Reference:
    """Inputs to compare programs on: the example's, and generated ones at other sizes."""

    def __init__(self, program: Program) -> None:
        self.inputs: list[list[Any]] = []
        # What the program of the last comparison gave, by whether in float64 and by input: the next one starts there.
        self._last: dict[tuple[bool, int], _Observed] = {}
        for attempts in generate_inputs(program):
            for leaves in attempts:
                try:
                    observed = _observe(program, leaves)
                except (RuntimeError, IndexError):
                    if not self.inputs:
                        raise
                    # The model itself rejects generated inputs: a kernel larger than the image, a row that no table
                    # has.
                    continue
                self._last[False, len(self.inputs)] = observed
                self.inputs.append(leaves)
                break

    def compare(
        self, before: Program, after: Program, info: PassInfo, apply: Callable[[Program], int] | None = None
    ) -> None:
        """Raises NumericsError if the two programs differ on any of the inputs. `apply` runs the pass again.

        `before` is the program that the last comparison ended with, if there was one.
        """
        for wide in (False, True):
            old, new = (convert_to_float64(before), convert_to_float64(after)) if wide else (before, after)
            again = wide and info.computes and apply is not None
            if again and apply is not None:
                new = convert_to_float64(before, values=True)
                with default_to_float64(wide):  # as when it runs: what fold divides, integer by integer, is float64 too
                    apply(new)
                new.graph_module.recompile()
            for index, leaves in enumerate(self.inputs):
                given = [widen_value(leaf) for leaf in leaves] if wide else leaves
                expected = self._last.pop((wide, index), None) or _observe(old, given, wide)
                got = _observe(new, given, wide)
                problem = _difference(expected, got, info.exact, None if wide else _coarsest(before))
                if problem is not None:
                    with default_to_float64(wide):
                        raise NumericsError(blame_node(old, new, given, info, problem))
                if not again:  # else `new` is not what the next pass begins with
                    self._last[wide, index] = got


@dataclass(frozen=True, slots=True)
class Trial:
    """One call of a program: its arguments as leaves, and what it makes known in its own dtypes and in float64.

    `own` and `exact` map "result …", "argument …" and "state …" to values, in the order of the program's results.
    `near` returns such pairs for inputs that are a few roundings away: how far the program's own dtypes are from
    float64 is one draw in each call, and may be a lucky one. Of a program in float64 nothing more exact is known: there
    the last pair is as far apart as float32 is from it, in float64's finer roundings.
    """

    leaves: list[Any]
    own: dict[str, Any]
    exact: dict[str, Any]
    near: Callable[[], Iterator[tuple[dict[str, Any], dict[str, Any]]]]


def trials(program: Program) -> Iterator[Trial]:
    """Calls at the example's sizes and at two others within the range of each dim, where the program takes them."""
    reference = Reference(program)
    wide = convert_to_float64(program)

    def exactly(leaves: list[Any], own: dict[str, Any]) -> dict[str, Any]:
        try:
            return _observe(wide, [widen_value(leaf) for leaf in leaves], wide=True).values
        except (RuntimeError, IndexError, AssertionError):
            return own  # an operator that has no float64, and says so in a way of its own

    def perturb(leaves: list[Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        for seed in range(_DRAWS):
            draws = torch.Generator().manual_seed(seed)
            moved = [_move(leaf, draws) for leaf in leaves]
            own = _observe(program, moved).values
            yield own, exactly(moved, own)
        own = _observe(program, leaves).values
        if any(_is_double(value) for value in own.values()):
            with contextlib.suppress(RuntimeError, IndexError, AssertionError):
                coarse = _observe(recast_program(program, NARROW), [cast_value(leaf, NARROW) for leaf in leaves]).values
                yield own, {name: _refine(value, coarse[name]) for name, value in own.items()}

    for index, leaves in enumerate(reference.inputs):
        own = reference._last[False, index].values
        yield Trial(leaves, own, exactly(leaves, own), functools.partial(perturb, leaves))


def _is_double(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype is torch.float64


def _refine(own: Any, coarse: Any) -> Any:
    """What float64 gave, moved as far as float32 is from it, in float64's roundings."""
    if not _is_double(own) or coarse.shape != own.shape:
        return own
    return own + (coarse.double() - own) * _FINER


def _move(leaf: Any, draws: torch.Generator) -> Any:
    """Every float moved by at most two units in its last place."""
    if not isinstance(leaf, torch.Tensor) or not leaf.is_floating_point():
        return leaf
    steps = torch.randint(-2, 3, leaf.shape, generator=draws).to(leaf.dtype)
    return leaf * (1 + steps * torch.finfo(leaf.dtype).eps)


def is_unchanged(before: Program, after: Program) -> bool:
    """Whether two programs are the same node for node, with the same state."""
    same_state = all(
        a.keys() == b.keys() and all(a[key] is b[key] for key in a)
        for a, b in ((before.state_dict, after.state_dict), (before.constants, after.constants))
    )
    if not same_state or before.signature != after.signature or before.dialect != after.dialect:
        return False
    pairs = list(itertools.zip_longest(graph_modules(before.graph_module), graph_modules(after.graph_module)))
    return all(a is not None and b is not None and _same_graph(a.graph, b.graph) for a, b in pairs)


def _same_graph(a: fx.Graph, b: fx.Graph) -> bool:
    return len(a.nodes) == len(b.nodes) and all(
        x.op == y.op
        and x.name == y.name
        and x.target == y.target
        and key_of(fx.map_arg(x.args, _name_of)) == key_of(fx.map_arg(y.args, _name_of))
        and key_of(fx.map_arg(x.kwargs, _name_of)) == key_of(fx.map_arg(y.kwargs, _name_of))
        for x, y in zip(a.nodes, b.nodes, strict=True)
    )


def _name_of(node: fx.Node) -> Any:
    return ("node", node.name)


# ---------------------------------------------------------------------- running


@dataclass(frozen=True, slots=True)
class _Observed:
    """Everything a call makes known: its result's leaves, the state and the arguments after it."""

    values: dict[str, Any]


def _observe(program: Program, leaves: list[Any], wide: bool = False) -> _Observed:
    """Runs a program on copies of its state and arguments, with a fixed seed. `wide`: it is one in float64."""
    running, given = copy_state(program), clone_tensors(leaves)
    with torch.random.fork_rng(devices=[]), torch.no_grad(), default_to_float64(wide):
        torch.manual_seed(SEED)
        result = execution.run_leaves(running, given)
    out_leaves, out_tree = pytree.flatten(result)
    values = {
        f"result {pytree.format_path(p)}": v for p, v in zip(pytree.leaf_paths(out_tree), out_leaves, strict=True)
    }
    values.update({f"argument {i}": v for i, v in enumerate(given)})
    values.update({f"state {name}": t for name, t in running.state_dict.items()})
    values.update({f"state {name}": t for name, t in running.constants.items() if name in program.constants})
    return _Observed(values)


# ---------------------------------------------------------------------- comparing


def _coarsest(program: Program) -> torch.dtype | None:
    """The dtype with the largest roundings that a program computes in: under autocast, not that of its results.

    An operator and what it is made of round at other places there (attention keeps its scores in float32); that they
    mean the same is for the comparison in float64 to say.
    """
    nodes = (n for m in graph_modules(program.graph_module) for n in m.graph.nodes if n.op == "call_function")
    dtypes = {t.dtype for n in nodes for t in metadata.tensors_in(metadata.value_of(n))}
    return max(dtypes & TOLERANCE.keys(), key=TOLERANCE.__getitem__, default=None)


def _difference(expected: _Observed, got: _Observed, exact: bool, computed_in: torch.dtype | None = None) -> str | None:
    for name, value in expected.values.items():
        if name not in got.values:
            if name.startswith("state"):
                continue  # a pass may fold state away
            return f"{name} is missing"
        problem = compare_values(value, got.values[name], exact, computed_in)
        if problem is not None:
            return f"{name} {problem}"
    return None


__all__ = ["Reference", "Trial", "compare_values", "convert_to_float64", "is_unchanged", "trials"]
