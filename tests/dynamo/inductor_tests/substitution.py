"""What stands in the place of Inductor while PyTorch's tests run."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils import _pytree as pytree

from ingot import dynamo
from ingot import torch_internals as internals
from ingot.dynamo import GraphReport
from ingot.dynamo.backend import compile_half
from ingot.dynamo.options import BackendOptions
from ingot.ir.metadata import value_of
from tests.dynamo.inductor_tests.outcome import Mode

Compiler = Callable[..., Any]
# Backends that a test of AOTAutograd names, which stand for any compiler there.
_NAMED = ("aot_eager", "aot_eager_decomp_partition", "eager")


class Substitute:
    """Takes the graphs that tests give to Inductor. `mode` decides what runs them, `reports` are of this backend."""

    def __init__(self, *, draws_as_eager: bool = False) -> None:
        self.mode: Mode = "native"
        self._draws_as_eager = draws_as_eager
        self.reports: list[GraphReport] = []
        self.excess: list[str] = []  # results that are farther from float64 than eager's, in the mode "measured"

    def compile_fx(self, graph: fx.GraphModule, inputs: Sequence[Any], *_: Any, **__: Any) -> Any:
        if self.mode == "native":
            return dynamo.compile_graph(graph, inputs, options=self._options())
        if self.mode == "aot_eager":
            from torch._dynamo.backends.debugging import aot_eager

            return aot_eager(graph, inputs)
        if self.mode == "measured":
            half = self._measure
            return internals.compile_functional(
                graph, inputs, inference=half, forward=half, backward=half, decompositions={}
            )
        return graph.forward

    def compile_named(self, original: Compiler, graph: fx.GraphModule, inputs: Sequence[Any], **given: Any) -> Any:
        if self.mode != "native":
            return original(graph, inputs, **given)
        made, plain = self.compile_fx(graph, inputs), original(graph, inputs, **given)
        # torch takes a loop apart by the backend "eager" while it traces the loop.
        return lambda *args: (plain if any(map(is_traced, args)) else made)(*args)

    def compile_functional(self, original: Compiler, graph: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        if self.mode == "measured":
            return self._measure(graph, inputs)
        if self.mode != "native":
            return original(graph, inputs)
        return compile_half("inference", {}, BackendOptions(**self._options()), graph, inputs)

    def _measure(self, graph: fx.GraphModule, inputs: Sequence[Any]) -> Measured:
        return Measured(graph, compile_half("inference", {}, BackendOptions(**self._options()), graph, inputs), self)

    def _options(self) -> dict[str, Any]:
        """What tests ask Inductor for that this backend has, too."""
        from torch._inductor import config

        as_eager = self._draws_as_eager or config.fallback_random
        return {"on_graph": self.reports.append, "fallback_random": as_eager}


def is_traced(value: Any) -> bool:
    """Whether a tensor stands for others, and has no memory."""
    return isinstance(value, FakeTensor | FunctionalTensor)


class Measured:
    """Native code for a functional graph, whose results are compared with eager's and those in float64."""

    def __init__(self, graph: fx.GraphModule, native: Compiler, substitute: Substitute) -> None:
        self._boxed_call = True
        self._native, self._substitute = native, substitute
        self._eager, self._exact = fx.Interpreter(graph).run, Widened(graph, ())

    def __call__(self, arguments: list[Any]) -> Sequence[Any]:
        args = list(arguments)
        arguments.clear()
        eager, exact = self._eager(*_copies(args)), self._exact(_copies(args))
        made: Sequence[Any] = self._native(list(args))
        for have, other, want in zip(made, eager, exact, strict=True):
            if isinstance(want, torch.Tensor) and is_farther(have, other, want):
                self._substitute.excess.append(f"{have.dtype} {tuple(have.shape)}")
        return made


def is_farther(have: torch.Tensor, other: torch.Tensor, want: torch.Tensor) -> bool:
    """Whether a result is farther from the exact one than another is, by more than rounding explains."""
    if have.shape != want.shape or have.dtype != want.dtype:
        return True
    if not want.is_floating_point() and not want.is_complex():
        return not torch.equal(have, want) and not torch.equal(have, other)
    if not torch.equal(have.isfinite(), other.isfinite()):
        return True
    step = torch.finfo(want.dtype).eps * float(want.nan_to_num(0, 0, 0).abs().max()) if want.numel() else 0.0
    return _distance(have, want) > 4 * _distance(other, want) + 4 * step


def _distance(have: torch.Tensor, want: torch.Tensor) -> float:
    fine = have.isfinite() & want.isfinite()
    return float((have - want).abs()[fine].max()) if fine.any() else 0.0


def _copies(args: Sequence[Any]) -> list[Any]:
    return [arg.detach().clone() if isinstance(arg, torch.Tensor) else arg for arg in args]


class Widened(fx.Interpreter):
    """A functional graph whose floating-point numbers are float64 inside: what exact results would be."""

    def __init__(self, graph: fx.GraphModule, _: Sequence[Any]) -> None:
        super().__init__(graph)
        self._boxed_call = True
        self._dtypes = [_dtype_of(node) for node in graph.graph.output_node().args[0]]  # type: ignore[union-attr]

    def __call__(self, arguments: list[Any]) -> list[Any]:
        args = list(arguments)
        arguments.clear()
        made = self.run(*args)
        return [value if dtype is None else value.to(dtype) for value, dtype in zip(made, self._dtypes, strict=True)]

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        schema = getattr(target, "_schema", None)
        if schema is None or not schema.is_mutable:  # else it writes to an argument of the graph, which has its dtype
            args, kwargs = pytree.tree_map(_widen, (args, kwargs))
        return super().call_function(target, args, kwargs)


def _widen(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.double()
    return torch.float64 if isinstance(value, torch.dtype) and value.is_floating_point else value


def _dtype_of(node: Any) -> torch.dtype | None:
    value = value_of(node) if isinstance(node, fx.Node) else None
    return value.dtype if isinstance(value, torch.Tensor) else None


@contextlib.contextmanager
def in_place_of_inductor(substitute: Substitute, *, everywhere: bool) -> Iterator[None]:
    """Inside, torch.compile without a backend, and calls of compile_fx, reach the substitute.

    `everywhere`: so do the backends that run graphs as they are, and AOTAutograd's compiler that does nothing.
    """
    from torch._inductor import compile_fx as module

    with contextlib.ExitStack() as stack:
        _set(stack, vars(module), "compile_fx", substitute.compile_fx)
        if everywhere:
            import functorch.compile  # type: ignore[import-untyped]
            import torch._functorch.compilers as compilers
            from torch._dynamo.backends import registry

            for name in _NAMED:
                original = registry.lookup_backend(name)
                _set(stack, registry._COMPILER_FNS, name, partial(substitute.compile_named, original))
            nop = partial(substitute.compile_functional, compilers.nop)
            for owner in (functorch.compile, compilers):
                _set(stack, vars(owner), "nop", nop)
            checks = sys.modules.get("torch.testing._internal.optests.aot_autograd")
            if checks is not None:
                _set(stack, vars(checks), "nop", nop)
        yield


def _set(stack: contextlib.ExitStack, table: dict[str, Any], name: str, value: Any) -> None:
    stack.callback(table.__setitem__, name, table[name])
    table[name] = value
