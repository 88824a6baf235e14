"""Whether an operator behaves as the graph says at other sizes than those of the trace.

    Call            an operator's arguments, with sizes as expressions
    OperatorSizes   runs a call again on fakes whose sizes are numbers, and compares the shapes of the results

A trace at size 5 says what an operator returns at size 5. Its questions about sizes say where that may differ; this
module asks the operator itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from ingot import torch_internals as internals
from ingot.frontend.dynamic_shapes import RootDim
from ingot.ir import symbolic_dims
from ingot.ir.meta_kernels import on_fakes

Sizes = Mapping[sympy.Symbol, int]

_SEARCHED = 65  # how many sizes from the lower bound on are searched for one that breaks a condition
_TRIED = 8  # at how many of those an operator is run


class _DataDependentSize(Exception):
    """A size is data-dependent."""


@dataclass(frozen=True, slots=True)
class _TensorSpec:
    shape: tuple[sympy.Basic, ...]
    strides: tuple[sympy.Basic, ...]
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True, slots=True)
class _Number:
    expr: sympy.Basic


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """An operator and its arguments; tensors and symbolic numbers as what is known of them at any size."""

    func: Any
    args: Any
    kwargs: Any

    @classmethod
    def from_call(cls, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> OperatorCall:
        return cls(func, _describe(tuple(args)), _describe(dict(kwargs)))


def _describe(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        sizes = tuple(internals.expr_of(size) for size in value.shape)
        return _TensorSpec(sizes, tuple(internals.expr_of(s) for s in value.stride()), value.dtype, value.device)
    if internals.is_symbolic(value):
        return _Number(value.node.expr)
    if isinstance(value, list | tuple):
        return tuple(_describe(item) for item in value)
    if isinstance(value, dict):
        return tuple((key, _describe(item)) for key, item in value.items())
    return value


class OperatorSizes:
    """Knows the sizes that are still possible, and what operators gave at some of them."""

    def __init__(self, roots: Mapping[sympy.Symbol, RootDim]) -> None:
        self._roots = roots
        self._required: dict[sympy.Basic, int] = {}
        self._points: dict[sympy.Basic, list[dict[sympy.Symbol, int]]] = {}
        self._agreed: dict[Any, bool] = {}
        self._mode: internals.FakeTensorMode | None = None

    def require(self, condition: sympy.Basic, at_least: int = 0) -> None:
        """From now on only sizes that satisfy the condition count, where all of its sizes are `at_least` that."""
        if condition.free_symbols <= self._roots.keys():
            self._required[condition] = min(at_least, self._required.get(condition, at_least))

    def _is_possible(self, point: Sizes) -> bool:
        return all(
            holds(condition, point)
            for condition, at_least in self._required.items()
            if all(point[symbol] >= at_least for symbol in condition.free_symbols)
        )

    def find_violations(self, call: OperatorCall, result: Any, asked: Sequence[sympy.Basic]) -> list[sympy.Basic]:
        """Conditions that exclude the sizes at which the call fails, or returns other shapes than `result`'s.

        They are among those asked. One that excludes sizes at which all is well is taken only if no other will do.
        """
        excluded = {
            c: points for c in asked if self._required.get(c) != 0 and (points := self._find_counterexamples(c))
        }
        if not excluded:
            return []
        described = _describe(result)
        failing: list[Sizes] = []
        agreeing: list[Sizes] = []
        for point in {tuple(p.items()): p for points in excluded.values() for p in points}.values():
            if self._is_possible(point):
                (agreeing if self._agrees(call, described, point) else failing).append(point)
        if not failing or not self._agrees(call, described, self._hints()):
            return []
        lost = {c: sum(not holds(c, point) for point in agreeing) for c in excluded}
        found: dict[sympy.Basic, None] = {}
        for failed in failing:
            if all(holds(condition, failed) for condition in found):
                fitting = [c for c in excluded if not holds(c, failed)]
                found[min(fitting, key=lambda c: (lost[c], len(c.free_symbols), sympy.count_ops(c)))] = None
        return list(found)

    def _hints(self) -> dict[sympy.Symbol, int]:
        return {symbol: root.hint for symbol, root in self._roots.items()}

    def _distance(self, point: Sizes) -> int:
        return sum(self._roots[s].hint != size for s, size in point.items())

    def _find_counterexamples(self, condition: sympy.Basic) -> list[dict[sympy.Symbol, int]]:
        """Some sizes inside the declared ranges at which a condition does not hold."""
        if condition in self._points:
            return self._points[condition]
        symbols = sorted(condition.free_symbols & self._roots.keys(), key=lambda s: s.name)
        points: list[dict[sympy.Symbol, int]] = []
        if symbols and len(symbols) == len(condition.free_symbols):
            edges = {int(number) + step for number in condition.atoms(sympy.Integer) for step in (-1, 0, 1)}
            candidates = [self._candidates(s, len(symbols), edges) for s in symbols]
            for sizes in itertools.islice(itertools.product(*candidates), 256):
                point = self._hints() | dict(zip(symbols, sizes, strict=True))
                if not holds(condition, point):
                    points.append(point)
        points.sort(key=self._distance)
        chosen = points if len(points) <= _TRIED else points[: _TRIED // 2] + points[-_TRIED // 2 :]
        self._points[condition] = chosen
        return chosen

    def _candidates(self, symbol: sympy.Symbol, of: int, edges: set[int]) -> list[int]:
        root = self._roots[symbol]
        low, high = root.range
        few = {low, low + 1, 2, 3, root.hint}
        sizes = {*range(low, low + _SEARCHED), *edges, 4 * root.hint} if of == 1 else few
        return [size for size in sorted(sizes) if size >= low and (high is None or size <= high)]

    def _agrees(self, call: OperatorCall, described: Any, point: Sizes) -> bool:
        key = None
        try:
            key = (call, described, tuple(point.items()))
            if key in self._agreed:
                return self._agreed[key]
        except TypeError:  # an argument without a hash
            key = None
        try:
            agreed = self._compare(call, described, point)
        except _DataDependentSize:
            agreed = True
        if key is not None:
            self._agreed[key] = agreed
        return agreed

    def _compare(self, call: OperatorCall, described: Any, point: Sizes) -> bool:
        if self._mode is None:
            self._mode = internals.fake_mode(None)
        run: Callable[..., Any] = on_fakes(call.func)
        try:
            with internals.silence_fake_tensor_logs(), self._mode, torch.no_grad():
                kwargs = {key: _make(value, point) for key, value in call.kwargs}
                found = run(*_make(call.args, point), **kwargs)
            return bool(_evaluate_at(_describe(found), {}) == _evaluate_at(described, point))
        except _DataDependentSize:
            raise
        except Exception:  # whatever a fake kernel raises where sizes do not fit
            return False


def _evaluate_at(described: Any, point: Sizes) -> Any:
    """Shapes and numbers of a result at some sizes; strides are not part of it."""
    if isinstance(described, _TensorSpec):
        return "tensor", tuple(_value(size, point) for size in described.shape), described.dtype
    if isinstance(described, _Number):
        return _value(described.expr, point)
    if isinstance(described, tuple):
        return tuple(_evaluate_at(item, point) for item in described)
    return described


def _make(described: Any, point: Sizes) -> Any:
    """An argument at some sizes, as a fake where it is a tensor; made inside the mode that is in force."""
    if isinstance(described, _TensorSpec):
        shape = [int(_value(size, point)) for size in described.shape]
        strides = [int(_value(stride, point)) for stride in described.strides]
        return torch.empty_strided(shape, strides, dtype=described.dtype, device=described.device)
    if isinstance(described, _Number):
        return _value(described.expr, point)
    if isinstance(described, tuple):
        return [_make(item, point) for item in described]
    return described


def _value(expr: sympy.Basic, point: Sizes) -> Any:
    if not expr.free_symbols <= point.keys():
        raise _DataDependentSize(expr)
    return symbolic_dims.evaluate(expr, point)


def holds(condition: sympy.Basic, point: Sizes) -> bool:
    """Whether a condition holds at some sizes; one that divides by zero there does not."""
    try:
        return bool(symbolic_dims.evaluate(condition, point))
    except ZeroDivisionError:
        return False
