"""What stands in the place of Inductor while PyTorch's tests run."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from torch import fx

from ingot import dynamo
from ingot.dynamo import GraphReport
from ingot.dynamo.backend import compile_half
from ingot.dynamo.options import BackendOptions
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
            return dynamo.compile_graph(graph, inputs, options={"on_graph": self.reports.append})
        if self.mode == "aot_eager":
            from torch._dynamo.backends.debugging import aot_eager

            return aot_eager(graph, inputs)
        return graph.forward

    def compile_named(self, original: Compiler, graph: fx.GraphModule, inputs: Sequence[Any], **given: Any) -> Any:
        return self.compile_fx(graph, inputs) if self.mode == "native" else original(graph, inputs, **given)

    def compile_functional(self, original: Compiler, graph: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        if self.mode != "native":
            return original(graph, inputs)
        options = BackendOptions(on_graph=self.reports.append)
        return compile_half("inference", {}, options, graph, inputs)


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
