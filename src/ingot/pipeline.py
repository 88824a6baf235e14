"""The road a model takes, one function a destination, one line a stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from ingot import passes
from ingot.capture import trace
from ingot.program.program import Program


def capture(
    model: nn.Module | Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    preserve_module_call_signature: Sequence[str] = (),
    concrete_args: Mapping[str, Any] | None = None,
) -> Program:
    """The model as a Program: what it does with these arguments, for every size that `dynamic_shapes` leaves open.

    `dynamic_shapes` maps argument names to dims: {"x": {0: "batch", 1: torch.export.Dim("seq", max=512)}}; a dim is a
    name, an expression of one ("2*seq"), "auto", or a torch.export.Dim. `preserve_module_call_signature` names the
    submodules whose calls are kept, so that unflatten() gives them back as modules that can be swapped.
    `concrete_args` fixes arguments by name to values that every call must then repeat.
    """
    program = trace(
        model,
        args,
        kwargs,
        dynamic_shapes=dynamic_shapes,
        preserve_module_call_signature=preserve_module_call_signature,
        concrete_args=concrete_args,
    )
    passes.tracepoints(program)  # markers are an implementation detail of the trace: no Program shows them
    return program
