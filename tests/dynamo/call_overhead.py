"""What a call of a compiled graph costs on the host, beside its kernels:

    python -m tests.dynamo.call_overhead [--arguments 100]

Times are the shortest of many, in microseconds, for one result and for as many as there are arguments. Torch's part are
its guards and AOTAutograd around a graph that does nothing; the graph's part is all that this backend does in a call.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from ingot import dynamo
from ingot import torch_internals as internals
from ingot.dynamo.native_graph import NativeGraph

ROUNDS, CALLS = 60, 300


def shortest(call: Callable[[], Any]) -> float:
    found = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        for _ in range(CALLS):
            call()
        found.append((time.perf_counter() - begun) / CALLS)
    return 1e6 * min(found)


def time_torch(function: Callable[..., Any], tensors: Sequence[torch.Tensor]) -> float:
    """A call whose graph hands out results that it made before."""

    def compile_nothing(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[[list[Any]], Sequence[Any]]:
        results = [torch.empty(8) for _ in graph.graph.output_node().args[0]]  # type: ignore[union-attr]

        def run(arguments: list[Any]) -> Sequence[Any]:
            arguments.clear()
            return results

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    def backend(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        half = compile_nothing
        return internals.compile_functional(
            graph, inputs, inference=half, forward=half, backward=half, decompositions={}
        )

    torch._dynamo.reset()
    compiled = torch.compile(function, backend=backend)
    compiled(*tensors)
    return shortest(lambda: compiled(*tensors))


def time_parts(function: Callable[..., Any], tensors: Sequence[torch.Tensor]) -> dict[str, float]:
    torch._dynamo.reset()
    graphs: list[NativeGraph] = []
    call = NativeGraph.__call__

    def note(graph: NativeGraph, arguments: list[Any]) -> list[Any]:
        graphs.append(graph)
        return call(graph, arguments)

    compiled = torch.compile(function, backend=dynamo.compile_graph, options={"threads": 1})
    NativeGraph.__call__ = note  # type: ignore[method-assign]
    compiled(*tensors)
    NativeGraph.__call__ = call  # type: ignore[method-assign]
    graph = graphs[0]
    (code,) = graph._codes.values()
    (plan,) = code.calls._plans.values()
    assert plan is not None
    results = [torch.empty(shape, dtype=dtype) for shape, _, dtype in plan.results]  # alive: kernels write there
    plan.call([tensor.data_ptr() for tensor in (*tensors, *results)])
    frame = plan.call._idle[0]
    parts = {"kernels": shortest(lambda: plan.call._native.run_frame(frame, 0))}
    return parts | {
        "whole call": shortest(lambda: compiled(*tensors)),
        "torch's part": time_torch(function, tensors),
        "graph": shortest(lambda: graph(list(tensors))),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arguments", type=int, default=100)
    given = parser.parse_args()
    tensors = [torch.randn(8) for _ in range(given.arguments)]
    with torch.no_grad():
        for name, function in (
            ("one result", lambda *xs: sum(xs)),
            (f"{given.arguments} results", lambda *xs: [x + 1 for x in xs]),
        ):
            parts = time_parts(function, tensors)
            print(f"{name}: " + ", ".join(f"{part} {value:.1f}" for part, value in parts.items()))


if __name__ == "__main__":
    main()
