"""Example arguments for a script that comes without any."""

from __future__ import annotations

from typing import Any

import torch

from ingot.errors import CaptureError, format_error
from ingot.torch_internals import torchscript as ts


def examples_of(schema: Any, graph: ts.Graph, dynamic_shapes: Any, *, skip_self: bool) -> tuple[tuple[Any, ...], Any]:
    """Arguments of the types that the graph itself states, and which of their dims are open.

    A traced graph remembers the tensors that it was traced with; a scripted one says "Tensor" and no more, so it needs
    examples. A dim that the graph leaves open is dynamic.
    """
    arguments = list(schema.arguments)[1:] if skip_self else list(schema.arguments)
    values = list(graph.inputs())[1:] if skip_self else list(graph.inputs())
    examples: list[Any] = []
    shapes: dict[str, Any] = {}
    unknown: list[str] = []
    for argument, value in zip(arguments, values, strict=True):
        if argument.has_default_value():
            break  # and so have all that follow
        found = _tensor_type(value.type())
        if found is None:
            unknown.append(f"{argument.name}: {argument.type}")
            continue
        dtype, sizes = found
        examples.append(torch.zeros([2 if size is None else size for size in sizes], dtype=dtype))
        open_dims = {dim: "auto" for dim, size in enumerate(sizes) if size is None}
        if open_dims:
            shapes[argument.name] = open_dims
    if unknown:
        raise CaptureError(
            format_error(
                f"The script does not say what its arguments are like: {', '.join(unknown)}.",
                why="a Program knows the dtype and the rank of every tensor, and a scripted graph says neither",
                fix="give examples: ingot.from_torchscript(script, args=(torch.zeros(2, 3), …)), and dynamic_shapes "
                "for dims that may change; to the command, --input x=f32[batch,3]",
            )
        )
    return tuple(examples), dynamic_shapes if dynamic_shapes is not None else (shapes or None)


def _tensor_type(kind: Any) -> tuple[torch.dtype, list[int | None]] | None:
    if not isinstance(kind, ts.TensorType) or kind.dtype() is None or kind.dim() is None:
        return None
    sizes = kind.varyingSizes()
    return kind.dtype(), list(sizes) if sizes is not None else [None] * kind.dim()
