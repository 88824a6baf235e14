"""Runs of an operator on tensors that have sizes and no values: numbers, or symbols and what was asked about them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import sympy
import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    UnsupportedOperatorException,
)
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.overrides import TorchFunctionMode

from ingot.torch_internals.fake_tensors import fake_mode
from ingot.torch_internals.monkeypatches import silence_fake_tensor_logs
from ingot.torch_internals.shape_env import OwnShapeEnv
from ingot.torch_internals.symbols import new_symbol, symbolic_value

READS_VALUES: tuple[type[Exception], ...] = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    GuardOnDataDependentSymNode,
)
NO_KERNEL: tuple[type[Exception], ...] = (UnsupportedOperatorException, NotImplementedError)
CANNOT_TELL = (*READS_VALUES, *NO_KERNEL)


class _Careful(TorchFunctionMode):
    """Inside, batch_norm is not called on symbols where it has no dim of channels: it reads one past the end.

    What it finds there is taken for a size, or ends the process.
    """

    READ_DIM_1 = (
        *(torch.nn.functional.batch_norm, torch.batch_norm),
        *(torch.ops.aten.batch_norm.default, torch.ops.aten._batch_norm_impl_index.default),
    )

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if function in self.READ_DIM_1:
            given = args[0] if args else kwargs["input"]
            if given.dim() < 2 and not all(type(size) is int for size in given.shape):
                raise UnsupportedOperatorException(function)
        return function(*args, **kwargs)


class SymbolicRun:
    """Fakes of an environment with the symbols named, each with a size to run with and the range that it has."""

    def __init__(self, symbols: Mapping[str, tuple[int, int, int | None]]) -> None:
        self._env = OwnShapeEnv(duck_shape=False, specialize_zero_one=False)
        self._mode = fake_mode(self._env)
        self._mode.cache_enabled = False  # nothing here comes twice
        self._asked_before = 0
        self._mine: dict[str, sympy.Symbol] = {}
        self._names: dict[sympy.Symbol, sympy.Symbol] = {}
        for name, (size, low, high) in symbols.items():
            symbol = new_symbol(self._env, name, size, low, high)
            self._mine[name] = symbol
            # Outside, a symbol is known by its name alone: what torch assumes of its own ones is not part of it.
            self._names[symbol] = sympy.Symbol(name, integer=True)

    def number(self, value: Any) -> Any:
        """A number as operators take it, of an expression in symbols by their names."""
        expr = sympy.sympify(value)
        return symbolic_value(self._env, expr.xreplace({s: self._mine[s.name] for s in expr.free_symbols}))

    def some(self, kind: type) -> Any:
        """A float or bool of which nothing is known: to ask about it is an error."""
        return self._env.create_unbacked_symfloat() if kind is float else self._env.create_unbacked_symbool()

    def tensor(self, dims: Sequence[Any], dtype: torch.dtype, device: torch.device | None) -> torch.Tensor:
        sizes = [dim if isinstance(dim, int) else self.number(dim) for dim in dims]
        # As the mode itself would make it, without the way through torch's dispatcher.
        bare = torch.empty(sizes, dtype=dtype, device="meta")
        return FakeTensor(self._mode, bare, device or torch.get_default_device())

    def call(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        # Making a tensor asks about its sizes too, to see that it is contiguous, which it is whatever they are.
        self._asked_before = len(self._env.guards)
        with ExitStack() as stack:
            if self._mine:
                # As when capturing: kernels written in C++ would take a symbol for the number that it has in this run.
                stack.enter_context(enable_python_dispatcher())
            for mode in (silence_fake_tensor_logs(), self._mode, _Careful(), torch.no_grad()):
                stack.enter_context(mode)
            return function(*args, **kwargs)

    def rename_symbols(self, expr: sympy.Basic) -> sympy.Basic | None:
        """An expression in symbols by their names; None of what the operator itself found out."""
        known = expr.xreplace(self._names)
        return known if known.free_symbols <= set(self._names.values()) else None

    def conditions(self) -> list[sympy.Basic]:
        """What was asked about sizes, as it came out."""
        asked = [guard.expr for guard in self._env.guards[self._asked_before :]]
        asked += [check.expr for checks in self._env.deferred_runtime_asserts.values() for check in checks]
        named = [self.rename_symbols(expr) for expr in asked if expr not in (sympy.true, True)]
        return [expr for expr in named if expr is not None]
