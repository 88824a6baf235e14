"""What stands in the place of Inductor while PyTorch's tests run."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import fx
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

    def __init__(self) -> None:
        self.mode: Mode = "native"
        self.reports: list[GraphReport] = []

    def compile_fx(self, graph: fx.GraphModule, inputs: Sequence[Any], *_: Any, **__: Any) -> Any:
        if self.mode == "native":
            return dynamo.compile_graph(graph, inputs, options=self._options())
        if self.mode == "aot_eager":
            from torch._dynamo.backends.debugging import aot_eager

            return aot_eager(graph, inputs)
        if self.mode == "float64":
            return internals.compile_functional(
                graph, inputs, inference=Widened, forward=Widened, backward=Widened, decompositions={}
            )
        return graph.forward

    def compile_named(self, original: Compiler, graph: fx.GraphModule, inputs: Sequence[Any], **given: Any) -> Any:
        return self.compile_fx(graph, inputs) if self.mode == "native" else original(graph, inputs, **given)

    def compile_functional(self, original: Compiler, graph: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        if self.mode != "native":
            return original(graph, inputs)
        return compile_half("inference", {}, BackendOptions(**self._options()), graph, inputs)

    def _options(self) -> dict[str, Any]:
        """What tests ask Inductor for that this backend has, too."""
        from torch._inductor import config

        return {"on_graph": self.reports.append, "fallback_random": config.fallback_random}


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
