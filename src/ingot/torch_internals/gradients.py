"""torch's autograd as a writer of graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._functorch import config as functorch_config
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch._subclasses.functional_tensor import disable_functional_mode
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing, make_fx

Compiler = Callable[[fx.GraphModule, Sequence[Any]], Any]


def with_backward(function: Callable[..., Any], forward: Compiler, backward: Compiler) -> Callable[..., Any]:
    """The function on tensors, with autograd: at the first call each half becomes a graph, which its compiler takes."""
    from functorch.compile import aot_function, default_partition  # type: ignore[import-untyped]

    # Else a backward could not run twice: torch would let it overwrite what the forward has saved. torch asks at each
    # backward, so this holds for the process; it costs others memory at most.
    functorch_config.donated_buffer = False
    made: Callable[..., Any] = aot_function(
        function,
        fw_compiler=forward,
        bw_compiler=backward,
        partition_fn=default_partition,
        decompositions=torch.export.default_decompositions(),
    )
    return made


def graph_of(function: Callable[..., Any], example: Sequence[torch.Tensor]) -> fx.GraphModule:
    """The operators that a function runs on tensors like these, whatever runs around it."""
    with (
        unset_fake_temporarily(),
        disable_proxy_modes_tracing(),
        disable_functional_mode(),
        torch._guards.tracing(None),
    ):
        plain = [torch.zeros(tuple(map(int, t.shape)), dtype=t.dtype) for t in example]
        return make_fx(function)(*plain)
