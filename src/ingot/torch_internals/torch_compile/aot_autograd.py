"""AOTAutograd under torch.compile: a graph of torch.compile's becomes functional graphs, which our compilers take.

torch solves outside what a functional graph cannot express: results that share memory, arguments that are
written to, tensor subclasses, and autograd itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._functorch import config as functorch_config
from torch.utils._python_dispatch import _disable_current_modes

from ingot.torch_internals.monkeypatches import detach_from_dynamo

# Takes a graph and its example arguments; what it returns takes the arguments in a list, which it empties.
HalfCompiler = Callable[[fx.GraphModule, Sequence[Any]], Callable[[list[Any]], Sequence[Any]]]


def compile_functional(
    graph: fx.GraphModule,
    inputs: Sequence[Any],
    *,
    inference: HalfCompiler,
    forward: HalfCompiler,
    backward: HalfCompiler,
    decompositions: Mapping[Any, Callable[..., Any]],
) -> Callable[..., Any]:
    """The graph as a function with autograd. A graph without gradients goes to `inference`, any other in two halves,
    cut so that the backward half computes cheap values again instead of keeping them.

    Arguments are written to by the compiled graph where autograd does not need to know; a backward may run twice.
    """
    # Here, because torch's own compiler comes with them.
    from functorch.compile import min_cut_rematerialization_partition  # type: ignore[import-untyped]
    from torch._dynamo.backends.common import aot_autograd

    backend = aot_autograd(
        fw_compiler=forward,
        bw_compiler=backward,
        inference_compiler=inference,
        partition_fn=min_cut_rematerialization_partition,
        decompositions=dict(decompositions),
        keep_inference_input_mutations=True,
    )
    # A donated buffer is one that a backward may overwrite: ours never does, and may then run twice.
    with functorch_config.patch(donated_buffer=False):
        made: Callable[..., Any] = backend(graph, inputs)
    return made


def is_for_dynamo(error: Exception) -> bool:
    """Whether an exception is a message of torch.compile to itself, which a backend must let through."""
    from torch._dynamo import exc

    kinds = tuple(
        getattr(exc, name)
        for name in ("RestartAnalysis", "SkipFrame", "TensorifyScalarRestartAnalysis", "ResumePrologueTracingError")
        if hasattr(exc, name)
    )
    return isinstance(error, kinds)


def argument_number(placeholder: fx.Node) -> int | None:
    """Which argument of torch.compile's graph a placeholder of AOTAutograd's graph is; None where it is another."""
    from torch._functorch._aot_autograd.descriptors import PlainAOTInput

    described = placeholder.meta.get("desc")
    return described.idx if isinstance(described, PlainAOTInput) else None


@contextlib.contextmanager
def leave_torch_compile() -> Iterator[None]:
    """Inside, nothing of torch.compile is in force: no fakes and symbols of it, no modes that its calls run in."""
    with detach_from_dynamo(), _disable_current_modes():
        yield


def increment_version(tensors: Sequence[torch.Tensor]) -> None:
    """Tells autograd that tensors were written to."""
    torch.autograd.graph.increment_version(tensors)


def call_without_tokens(graph: fx.Graph) -> None:
    """What AOTAutograd's graphs call with a token, which orders effects there, is called without: Ingot keeps their
    order. Tokens come in as None, and go out so."""
    tokens: set[fx.Node] = set()
    for node in graph.find_nodes(op="call_function", target=torch.ops.higher_order.with_effects):
        token, operator, *args = node.args
        with graph.inserting_before(node):
            called = graph.call_function(operator, tuple(args), node.kwargs)
        _, *values = node.meta["val"]
        is_tuple = len(operator._schema.returns) > 1
        called.meta = {**node.meta, "val": tuple(values) if is_tuple else next(iter(values), None)}
        for part in list(node.users):
            place = part.args[1]
            if place and is_tuple:
                part.args = (called, place - 1)
                continue
            part.replace_all_uses_with(called if place else token)
            graph.erase_node(part)
        graph.erase_node(node)
        tokens.add(token)
    if tokens:
        output = graph.output_node()
        output.args = fx.map_arg(output.args, lambda one: None if one in tokens else one)
